"""Shape, Size: the dims of a tensor, and their product, as int64.  Source: ONNX Shape-21, Size-21.

Both need their input's layout and none of its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asyncrt.dims import Dim
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.shapes import count
from asyncrt.layout import Array, Shape


def _kept(attributes: Attributes, shape: Shape) -> Shape:
    """The dims from `start` to `end`, both counted from the back if negative and brought into range (opset 15)."""
    return shape[attributes.get("start", 0) : attributes.get("end")]


def _array(dims: int | Sequence[int]) -> Array:
    """int64, or object where a dim is symbolic or remembers how it was calculated."""
    symbolic = any(type(d) is not int for d in ((dims,) if isinstance(dims, int | Dim) else dims))
    return np.array(dims, object if symbolic else np.int64)


def _shape_infer(call: Call) -> tuple[Shape]:
    return ((len(_kept(call.attributes, call.shape(0))),),)


def _shape_evaluate(call: Call) -> tuple[Array]:
    return (_array(_kept(call.attributes, call.shape(0))),)


def _shape_reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x = inputs[0]
    assert x is not None
    return (_array(_kept(attributes, x.shape)),)


def _size_infer(call: Call) -> tuple[Shape]:
    return ((),)


def _size_evaluate(call: Call) -> tuple[Array]:
    return (_array(count(call.shape(0))),)


def _size_reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x = inputs[0]
    assert x is not None
    return (_array(x.size),)


OPERATORS = (
    Operator(
        name="Shape",
        infer=_shape_infer,
        reference=_shape_reference,
        evaluate=_shape_evaluate,
        examples=(
            Example(("f32[2,3,4]",)),
            Example(("f16[]",)),
            Example(("i64[0,5]",), opset=13),
            Example(("f32[2,3,4]",), {"start": 1}),
            Example(("f32[2,3,4]",), {"end": -1}),
            Example(("f32[2,3,4]",), {"start": -2, "end": 3}),
            Example(("bool[2,3,4]",), {"start": -9, "end": 9}),
            Example(("f32[2,3,4]",), {"start": 2, "end": 1}),
        ),
    ),
    Operator(
        name="Size",
        infer=_size_infer,
        reference=_size_reference,
        evaluate=_size_evaluate,
        examples=(Example(("f32[2,3,4]",)), Example(("i32[]",)), Example(("bool[3,0]",))),
    ),
)
