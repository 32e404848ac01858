"""Cast, CastLike: the same values in another dtype.  Source: ONNX Cast-21, CastLike-21.

Floats become integers towards zero; anything but zero becomes true; what float16 cannot hold becomes infinite. What an
integer type cannot hold is, as in ONNX, not defined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from asyncrt.dims import Dim, Undetermined
from asyncrt.errors import ModelTypeError
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.conversion import cast, to_integer
from asyncrt.kernels.codegen.narrow import narrow
from asyncrt.kernels.impl import Impl
from asyncrt.kernels.operator import Example, Expression, Operator, ViewOf
from asyncrt.kernels.ops._texts import as_texts, example, of_texts
from asyncrt.kernels.ops._values import known
from asyncrt.kernels.patterns.copy import materialise, takes_any_view
from asyncrt.kernels.patterns.elementwise import elementwise
from asyncrt.kernels.shapes import same_shape
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import (
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT32,
    INT64,
    STRING,
    Array,
    DataType,
    dtype_from_onnx,
    dtype_of,
    whole_numbers,
)
from asyncrt.memory.view import View

# From double by way of float to half would round twice. Rounding to odd keeps what the second rounding must know.
_ODD = """
inline float $_odd(double x) {
  const float f = convert_float_rtz(x);
  return isnan(x) || (double)f == x ? f : as_float(as_uint(f) | 1);
}"""


def _cast(x: Array, target: DataType, attributes: Attributes | None = None) -> Array:
    if target is STRING or x.dtype == STRING.numpy:
        return as_texts(x) if target is STRING else of_texts(x, target)
    if x.dtype == object:
        return _cast_dims(x, target)
    source = dtype_of(x.dtype)
    if target.is_narrow or (source is not None and source.is_narrow):
        given: Mapping[str, Any] = attributes or {}
        return narrow(x, target, bool(given.get("saturate", 1)), str(given.get("round_mode", "up")))
    return cast(x, target.numpy)


def _cast_dims(x: Array, target: DataType) -> Array:
    """Cast integers and symbolic dims, which stay what they are in a type that holds every dim.

    So do integers that remember how they were calculated, in a type that holds them, be it of floats.
    """
    elements = x.reshape(-1).tolist()
    if not any(isinstance(v, Dim) for v in elements):
        plain = all(type(v) is int for v in elements) or target is BOOL
        least, most = whole_numbers(target)
        return _cast(known(x), target) if plain or not all(least <= v <= most for v in elements) else x.copy()
    # No axis has 2³¹ elements; whether an expression stays below that is for a request to tell.
    small = [v.name is not None if isinstance(v, Dim) else -(2**31) <= v < 2**31 for v in elements]
    if target is INT64 or (target is INT32 and all(small)):
        return x.copy()
    if target is BOOL:
        return np.array([v != 0 for v in x.reshape(-1).tolist()], np.bool_).reshape(x.shape)
    raise Undetermined(f"symbolic dims as {target}")


def _expression(source: DataType, target: DataType) -> str:
    if target is BOOL:
        return "a0 != 0"
    if source.is_float and target.is_integer:
        return to_integer("a0", target)
    return "$_odd(a0)" if source is FLOAT64 and target is FLOAT16 else "a0"


def _same_bytes(source: DataType, target: DataType) -> bool:
    """Integers of one size keep their bytes, whatever their signs; true is 1."""
    integers = (source.is_integer or source is BOOL) and target.is_integer and source.itemsize == target.itemsize
    return source is target or integers


def views(call: Call) -> tuple[ViewOf] | None:
    if not _same_bytes(call.dtype(0), call.outputs[0].dtype):
        return None
    return (ViewOf(0, View.dense(call.shape(0))),)


def why_not(call: Call) -> str:
    return f"{call.dtype(0)} and {call.outputs[0].dtype} differ in their bytes"


_WIDE = """
inline float __attribute__((overloadable)) $_to_float(int a) { return (float)a; }
inline float16 __attribute__((overloadable)) $_to_float(int16 a) { return convert_float16(a); }
"""


def express(call: Call) -> Expression:
    if (call.dtype(0), call.outputs[0].dtype) == (INT32, FLOAT32):
        return Expression("$_to_float(a0)", (0,), vector=True, helpers=_WIDE, integers=True)
    text = _expression(call.dtype(0), call.outputs[0].dtype)
    if (call.dtype(0), call.outputs[0].dtype) == (FLOAT32, INT32):
        return Expression(text, (0,), vector=True, integers=True)
    vector = call.dtype(0) in (FLOAT16, FLOAT32) and call.outputs[0].dtype in (FLOAT16, FLOAT32, BOOL)
    return Expression(text, (0,), vector, _ODD if "$" in text else "")


def implement(call: Call, traits: DeviceTraits) -> Impl:
    same = views(call)
    if same is not None:
        return materialise(call, same, traits)
    layout, found = call.inputs[0], express(call)
    assert layout is not None
    return elementwise(
        "cast", found.text, (layout,), call.outputs[0], traits, vector=found.vector, integers=found.integers,
        helpers=found.helpers, views=call.strided[:1],
    )  # fmt: skip


def _target(attributes: Attributes) -> DataType:
    target = dtype_from_onnx(attributes["to"])
    if target is None:
        raise ModelTypeError(f"Cast to the ONNX type {attributes['to']}, which asyncrt does not have")
    return target


def _types(attributes: Attributes, inputs: Sequence[DataType | None], outputs: int) -> tuple[DataType]:
    return (_target(attributes),)


def _types_like(attributes: Attributes, inputs: Sequence[DataType | None], outputs: int) -> tuple[DataType]:
    target = inputs[1]
    if target is None:
        raise ModelTypeError("CastLike to the dtype of an input whose dtype is not known")
    return (target,)


def _reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x = inputs[0]
    assert x is not None
    return (_cast(x, _target(attributes), attributes),)


def _reference_like(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x, like = inputs[0], inputs[1]
    assert x is not None
    assert like is not None
    return (_cast(x, INT64 if like.dtype == object else dtype_of(like.dtype) or FLOAT32, attributes),)


_MIXED = np.array([0, -0.0, 0.5, -0.75, 1.5, -2.5, 3.999, -7, 100.25, 1e-3], np.float32)
_TWICE_ROUNDED = np.array([65504, 65519, 1 + 2**-11 + 2**-40, 1 - 2**-12, 2**-25 + 2**-60, np.nan])
_TO: dict[str, Any] = {
    t: {"to": n}
    for t, n in (("f32", 1), ("u8", 2), ("i8", 3), ("i16", 5), ("i32", 6), ("i64", 7), ("bool", 9), ("f16", 10),
                 ("f64", 11), ("u32", 12), ("u64", 13), ("bf16", 16))
}  # fmt: skip

OPERATORS = (
    Operator(
        name="Cast",
        infer=same_shape,
        reference=_reference,
        implement=implement,
        expression=express,
        views=views,
        takes_view=takes_any_view,
        why="its bytes are those of that dtype already",
        why_not=why_not,
        types=_types,
        examples=(
            *(Example((_MIXED,), _TO[t]) for t in ("i64", "i32", "i16", "i8", "bool", "f16", "bf16", "f64", "f32")),
            *(Example((np.abs(_MIXED),), _TO[t]) for t in ("u8", "u32", "u64")),
            *(Example(("i64[3,1,37]",), _TO[t]) for t in ("i32", "f32", "f16", "bool", "u8", "bf16")),
            *(Example(("bool[7,9]",), _TO[t]) for t in ("f32", "i64", "i32", "f16", "u8")),
            *(Example(("f16[5,3]",), _TO[t]) for t in ("f32", "i32", "bool", "f64", "bf16")),
            *(Example((np.array([-128, -1, 0, 127], np.int8),), _TO[t]) for t in ("f32", "i64", "bool")),
            *(Example((np.array([0, 1, 255], np.uint8),), _TO[t]) for t in ("f16", "i32", "bool", "f32")),
            Example((np.array([2**40 + 5, -(2**33) - 1, 7], np.int64),), _TO["i32"]),
            Example((np.array([3e4, np.nan, -np.inf], np.float32),), _TO["f16"]),
            Example((_TWICE_ROUNDED,), _TO["f16"]),
            Example((example(["1", "-7"]),), _TO["i64"]),
            Example((example(["1.5", "NaN", "-INF"]),), _TO["f32"]),
            Example((np.array([-5, 12], np.int64),), {"to": STRING.onnx}),
            Example(("i32[5]",), _TO["u32"]),
            Example((np.array([-1, 2**40], np.int64),), _TO["u64"]),
            Example(("bool[7]",), _TO["i8"]),
            Example(("f64[5]",), _TO["f32"]),
            Example(("bf16[5]",), _TO["f32"]),
            Example(("bf16[5]",), _TO["i32"]),
            Example(("f32[]",), _TO["i32"]),
        ),
    ),
    Operator(
        name="CastLike",
        infer=same_shape,
        reference=_reference_like,
        implement=implement,
        expression=express,
        views=views,
        takes_view=takes_any_view,
        why="its bytes are those of that dtype already",
        why_not=why_not,
        types=_types_like,
        examples=(
            Example((_MIXED, "i64[1]")),
            Example((_MIXED, "bool[2,3]")),
            Example(("i32[2,3]", "f16[]")),
            Example(("f32[2,3]", "f32[7]")),
        ),
    ),
)
