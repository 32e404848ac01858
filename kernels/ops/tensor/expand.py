"""Expand: broadcasting to a shape, by NumPy's rules.  Source: ONNX Expand-13."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asyncrt.dims import Dim
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import Impl
from asyncrt.kernels.operator import Example, Operator, ViewOf
from asyncrt.kernels.ops._values import known
from asyncrt.kernels.patterns.copy import materialise
from asyncrt.kernels.shapes import broadcast_shapes, check
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, Shape
from asyncrt.memory.view import View


def infer(call: Call) -> tuple[Shape]:
    wanted = call.vector(1)
    check(call, all(isinstance(d, Dim) or d >= 0 for d in wanted), f"the shape {wanted} has a negative dim")
    return (broadcast_shapes(call, call.shape(0), wanted),)


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x, shape = inputs[0], inputs[1]
    assert x is not None
    assert shape is not None
    return (np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(known(shape).tolist()))).copy(),)


def views(call: Call) -> tuple[ViewOf]:
    return (ViewOf(0, View.dense(call.shape(0)).expand(infer(call)[0])),)


def why_not(call: Call) -> str:
    shape = call.outputs[0].shape
    mine = (1,) * (len(shape) - len(call.shape(0))) + call.shape(0)
    axis = next(axis for axis, (a, b) in enumerate(zip(mine, shape, strict=True)) if a != b)
    return f"axis {axis} grows from {mine[axis]} to {shape[axis]}"


def implement(call: Call, traits: DeviceTraits) -> Impl:
    return materialise(call, views(call), traits)


def _i64(*values: int) -> Array:
    return np.array(values, np.int64)


OPERATOR = Operator(
    name="Expand",
    infer=infer,
    reference=reference,
    implement=implement,
    views=views,
    why="it has that shape already",
    why_not=why_not,
    shape_infer_dependencies=(1,),
    examples=(
        Example(("f32[3,1]", _i64(2, 3, 37))),
        Example(("f32[1,4,1]", _i64(3, 1, 5))),
        Example(("f16[5]", _i64(3, 1))),
        Example(("i64[2,3]", _i64(2, 3))),
        Example(("i64[2,3]", _i64(1))),
        Example(("bool[]", _i64(2, 2))),
        Example(("i32[1,1]", _i64(1, 1, 1))),
    ),
)
