"""BitCast: the same bytes as another dtype of the same size.  Source: ONNX BitCast-26."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asyncrt.errors import UnsupportedOperatorError
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import Impl
from asyncrt.kernels.operator import Example, Operator, ViewOf
from asyncrt.kernels.patterns.copy import materialise
from asyncrt.kernels.shapes import check
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, DataType, Shape, dtype_from_onnx
from asyncrt.memory.view import View


def _target(attributes: Attributes) -> DataType:
    dtype = dtype_from_onnx(attributes["to"])
    if dtype is None:
        raise UnsupportedOperatorError(f"BitCast to the ONNX type of number {attributes['to']} is not supported")
    return dtype


def types(attributes: Attributes, inputs: Sequence[DataType | None], outputs: int) -> Sequence[DataType]:
    return (_target(attributes),)


def infer(call: Call) -> tuple[Shape]:
    source, target = call.dtype(0), _target(call.attributes)
    check(call, source.itemsize == target.itemsize, f"{source} and {target} differ in size")
    return (call.shape(0),)


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x = inputs[0]
    assert x is not None
    return (np.ascontiguousarray(x).reshape(x.shape).view(_target(attributes).numpy).copy(),)


def views(call: Call) -> tuple[ViewOf]:
    return (ViewOf(0, View.dense(call.shape(0))),)


def implement(call: Call, traits: DeviceTraits) -> Impl:
    return materialise(call, views(call), traits)


OPERATOR = Operator(
    name="BitCast",
    infer=infer,
    reference=reference,
    implement=implement,
    views=views,
    why="the same bytes, as another dtype",
    types=types,
    examples=(
        Example(("f32[3,5]",), {"to": 6}, opset=26),
        Example(("i64[3]",), {"to": 11}, opset=26),
        Example(("u8[2,3]",), {"to": 3}, opset=26),
        Example(("f32[]",), {"to": 12}, opset=26),
        Example(("f32[3,5]",), {"to": 1}, opset=26),
    ),
)
