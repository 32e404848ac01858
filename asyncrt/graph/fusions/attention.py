"""Scaled dot-product attention, written out in pieces as exporters do where ONNX's operator is newer than the opset.

A softmax that is looked through for NaN before it is used (``Where(IsNaN(w), 0, w)``) is left alone: what it makes of a
row of NaN, the kernels do not.
"""

from __future__ import annotations

from typing import Any

from asyncrt.graph.node import ProgramNode
from asyncrt.kernels.fused_attention import fused_attention

from .base import Group, Pattern, Surroundings
from .text import Text

_ATTENTION = Text("""
    flipped = Transpose(key)
    product = MatMul(query, flipped)
    scores = Div(product, divisor) | Mul(product, factor) | product
    biased = Add(scores, mask) | scores
    weights = Softmax(biased)
    mixed = MatMul(weights, value)
    result = Transpose(mixed) | mixed
""")


def find(last: ProgramNode, around: Surroundings) -> Group | None:
    found = _ATTENTION.match(last, around)
    if found is None:
        return None
    values, nodes = found
    rank = len(around.shape(nodes["product"].outputs[0]) or ())
    if rank not in (3, 4) or nodes["weights"].attributes.get("axis", -1) not in (-1, rank - 1):
        return None
    scale = 1.0
    for name in ("divisor", "factor"):
        if name in values:
            constant = around.constant(values[name])
            if constant is None or constant.size != 1 or not (number := float(constant.reshape(-1)[0])):
                return None
            scale = number if name == "factor" else 1 / number
    attributes: dict[str, Any] = {
        "scale": scale,
        "masked": "mask" in values,
        "keys": _order(nodes["flipped"], rank),
        "result": _order(nodes["result"], rank) if "result" in nodes else tuple(range(rank)),
    }
    first = [values[name] for name in ("query", "key", "value", "mask") if name in values]
    return Group(nodes.values(), first, fused_attention, attributes)


def _order(node: ProgramNode, rank: int) -> tuple[int, ...]:
    return tuple(node.attributes.get("perm") or reversed(range(rank)))


ATTENTION = Pattern("attention", find)
