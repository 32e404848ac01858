"""Tile: a tensor repeated along each axis.  Source: ONNX Tile-13."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asyncrt.dims import Dim
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import Impl
from asyncrt.kernels.operator import Example, Operator, ViewOf
from asyncrt.kernels.ops._values import known
from asyncrt.kernels.patterns.copy import materialise
from asyncrt.kernels.shapes import check
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, Shape
from asyncrt.memory.view import View


def _times(call: Call) -> list[int]:
    times, rank = call.ints(1), len(call.shape(0))
    check(call, len(times) == rank, f"{len(times)} repeats for a tensor of rank {rank}")
    check(call, all(isinstance(n, Dim) or n >= 0 for n in times), f"the repeats {times} have a negative one")
    return times


def infer(call: Call) -> tuple[Shape]:
    return (tuple(d * n for d, n in zip(call.shape(0), _times(call), strict=True)),)


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x, times = inputs[0], inputs[1]
    assert x is not None
    assert times is not None
    return (np.tile(x, known(times).tolist()),)


def views(call: Call) -> tuple[ViewOf]:
    return (ViewOf(0, View.dense(call.shape(0)).repeat(_times(call))),)


def why_not(call: Call) -> str:
    axis = next(axis for axis, times in enumerate(_times(call)) if times != 1)
    return f"the tile repeats axis {axis}"


def implement(call: Call, traits: DeviceTraits) -> Impl:
    return materialise(call, views(call), traits)


def _i64(*values: int) -> Array:
    return np.array(values, np.int64)


OPERATOR = Operator(
    name="Tile",
    infer=infer,
    reference=reference,
    implement=implement,
    views=views,
    why="nothing is repeated",
    why_not=why_not,
    shape_infer_dependencies=(1,),
    examples=(
        Example(("f32[2,3]", _i64(2, 3))),
        Example(("f32[2,1,37]", _i64(1, 4, 1))),
        Example(("i64[5]", _i64(3))),
        Example(("f16[2,3,2]", _i64(2, 1, 2))),
        Example(("bool[2,3]", _i64(1, 1))),
        Example(("i32[1,1]", _i64(3, 2))),
        Example(("f32[]", _i64())),
    ),
)
