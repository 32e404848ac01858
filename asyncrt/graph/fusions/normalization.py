"""Layer and root-mean-square normalisation over the last axis, written out in pieces as older opsets have it."""

from __future__ import annotations

import functools

from asyncrt.graph.ir import ProgramNode
from asyncrt.kernels.fusion.groups import fused_as
from asyncrt.kernels.registry import find_operator

from .base import FusionGroup, Pattern, Surroundings
from .text import Match, Text

_LAYER = Text("""
    wide = Cast(x) | x
    mean = ReduceMean(wide)
    centred = Sub(wide, mean)
    square = Pow(centred, 2) | Mul(centred, centred)
    variance = ReduceMean(square)
    shifted = Add(variance, epsilon)
    deviation = Sqrt(shifted)
    inverse = Reciprocal(deviation) | Div(1, deviation)
    normal = Div(centred, deviation) | Mul(centred, inverse)
    narrow = Cast(normal) | normal
    scaled = Mul(narrow, scale)
    result = Add(scaled, bias)
""")

_RMS = Text("""
    wide = Cast(x) | x
    square = Pow(wide, 2) | Mul(wide, wide)
    variance = ReduceMean(square)
    shifted = Add(variance, epsilon)
    deviation = Sqrt(shifted)
    inverse = Reciprocal(deviation) | Div(1, deviation)
    normal = Div(wide, deviation) | Mul(wide, inverse)
    narrow = Cast(normal) | normal
    result = Mul(narrow, scale)
""")


def _find(text: Text, operator: str, last: ProgramNode, around: Surroundings) -> FusionGroup | None:
    found = text.match(last, around)
    target = find_operator("", operator)
    if found is None or target is None:
        return None
    epsilon = around.constant(found.values["epsilon"])
    if epsilon is None or epsilon.size != 1 or not all(_over_last_axis(n, around) for n in found.nodes.values()):
        return None
    if not _agree(found, around):
        return None
    first = [found.values[name] for name in ("x", "scale", "bias") if name in found.values]
    attributes = {"axis": -1, "epsilon": float(epsilon.reshape(-1)[0])}
    build = functools.partial(fused_as, target=target, inputs=len(first))
    return FusionGroup(found.nodes.values(), first, build, attributes)


def _over_last_axis(node: ProgramNode, around: Surroundings) -> bool:
    """Whether a ReduceMean, if *node* is one, is over the last axis and keeps it."""
    if node.operator.name != "ReduceMean":
        return True
    axes = node.attributes.get("axes")
    if axes is None and len(node.inputs) > 1:
        given = around.constant(node.inputs[1])
        axes = None if given is None else tuple(given.reshape(-1).tolist())
    shape = around.shape(node.uses[0])
    rank = None if shape is None else len(shape)
    return (
        bool(node.attributes.get("keepdims", 1))
        and axes is not None
        and (tuple(axes) == (-1,) or (rank is not None and tuple(axes) == (rank - 1,)))
    )


def _agree(found: Match, around: Surroundings) -> bool:
    """Whether scale and bias have the dtype of the normalised value, as the operators require."""
    dtypes = {around.dtype(found.values[name]) for name in ("x", "scale", "bias", "result") if name in found.values}
    return len(dtypes) == 1


LAYER_NORMALIZATION = Pattern("layer normalization", functools.partial(_find, _LAYER, "LayerNormalization"))
RMS_NORMALIZATION = Pattern("root mean square normalization", functools.partial(_find, _RMS, "RMSNormalization"))
