"""Transpose: output axis k is input axis ``perm[k]``.  Source: ONNX Transpose-21."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from asyncrt.errors import ShapeError
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import Impl
from asyncrt.kernels.operator import Example, Operator, ViewOf
from asyncrt.kernels.patterns.copy import materialise
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, Shape
from asyncrt.memory.view import View


def _order(call: Call) -> tuple[int, ...]:
    rank = len(call.shape(0))
    order: tuple[int, ...] = tuple(call.attributes.get("perm") or range(rank - 1, -1, -1))
    if sorted(order) != list(range(rank)):
        raise ShapeError(f"'{call.name}': perm {list(order)} does not order the {rank} axes of its input")
    return order


def infer(call: Call) -> tuple[Shape]:
    shape = call.shape(0)
    return (tuple(shape[axis] for axis in _order(call)),)


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x = inputs[0]
    assert x is not None
    return (np.transpose(x, attributes.get("perm") or None).copy(),)


def views(call: Call) -> tuple[ViewOf]:
    return (ViewOf(0, View.dense(call.shape(0)).permute(_order(call))),)


def why_not(call: Call) -> str:
    """The first pair of axes larger than 1 that changes places."""
    shape = call.shape(0)
    kept = [axis for axis in _order(call) if shape[axis] != 1]
    later, earlier = next((a, b) for a, b in itertools.pairwise(kept) if a > b)
    return f"moves axis {earlier} past axis {later}"


def implement(call: Call, traits: DeviceTraits) -> Impl:
    return materialise(call, views(call), traits)


OPERATOR = Operator(
    name="Transpose",
    infer=infer,
    reference=reference,
    implement=implement,
    views=views,
    why="only unit axes move",
    why_not=why_not,
    examples=(
        Example(("f32[128,1,32,64]",), {"perm": (0, 2, 1, 3)}),
        Example(("f32[3,5]",)),
        Example(("f16[2,3,4]",), {"perm": (2, 0, 1)}),
        Example(("i64[2,3,4,5]",), {"perm": (0, 3, 1, 2)}),
        Example(("bool[7,9]",), {"perm": (1, 0)}),
    ),
)
