"""QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear: between floats and integers with a scale and zero point.

There is one scale for the whole tensor, one for each index of an axis, or one for each block of `block_size` indices
of it, of which the last may be shorter.

Source: ONNX QuantizeLinear-25, DequantizeLinear-25 (for 8, 16 and 32 bit integers), DynamicQuantizeLinear-11.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrt.dims import Dim
from asyncrt.errors import ModelTypeError, ShapeError
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.narrow import saturated as saturated_narrow
from asyncrt.kernels.codegen.source import kernel, rounded
from asyncrt.kernels.impl import Impl, KernelSource, Launch, Ref, inp, out, scratch
from asyncrt.kernels.int8.quantize import (
    EXPRESSIONS,
    HELPERS,
    bounds,
    divided,
    precision_of,
    quotient,
    saturate,
    saturated,
)
from asyncrt.kernels.operator import Example, Expression, Operator
from asyncrt.kernels.patterns.copy import copy_launch
from asyncrt.kernels.patterns.elementwise import elementwise
from asyncrt.kernels.patterns.grid import GPU_GROUP
from asyncrt.kernels.shapes import check, count
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import (
    FLOAT32,
    INT8,
    INT16,
    NARROW_TYPES,
    UINT8,
    UINT16,
    Array,
    DataType,
    Layout,
    Shape,
    dtype_from_onnx,
    dtype_of,
    show_shape,
)
from asyncrt.memory.view import View


def infer(call: Call) -> tuple[Shape]:
    shape, scale = call.shape(0), call.shape(1)
    if not any(isinstance(d, Dim) for d in (*shape, *scale)):
        _factor_shape(call.name, call.attributes, shape, scale)
        if call.has(2):
            check(call, count(call.shape(2)) == count(scale), "scale and zero point must have the same shape")
    return (shape,)


def _factor_shape(name: str, attributes: Attributes, shape: Shape, scale: Shape) -> tuple[Shape, int]:
    """Return the scales' shape with the input's axes, or fewer, and the blocked axis, or -1 if none is blocked."""
    if count(scale) == 1 and len(scale) <= 1:
        return (), -1
    axis, block = attributes.get("axis", 1), attributes.get("block_size", 0)
    if not -len(shape) <= axis < len(shape):
        raise ShapeError(f"'{name}': axis {axis} is outside a tensor of rank {len(shape)}")
    axis %= len(shape)
    if len(scale) == 1 and not block:
        if scale[0] != shape[axis]:
            raise ShapeError(f"'{name}': {scale[0]} scales for the {shape[axis]} indices of axis {axis}")
        return (scale[0], *(1 for _ in shape[axis + 1 :])), -1
    if not block and scale == shape:
        block = 1
    wanted = (*shape[:axis], -(-shape[axis] // block) if block > 0 else 0, *shape[axis + 1 :])
    if scale != wanted or block < 1:
        raise ShapeError(
            f"'{name}': scales {show_shape(scale)} do not fit blocks of {block} on axis {axis} of {show_shape(shape)}"
        )
    return scale, axis


def _spread(attributes: Attributes, shape: Shape, factor: Array) -> Any:
    """Return *factor*, a scale or a zero point, as an array that broadcasts to *shape*."""
    parts, axis = _factor_shape("reference", attributes, shape, factor.shape)
    if axis < 0:
        return factor.reshape(parts)
    block = attributes.get("block_size", 0) or 1
    return factor.take(np.arange(shape[axis]) // block, axis=axis)  # a block may be far longer than the axis


def _transform(call: Call, traits: DeviceTraits, name: str, expression: str) -> Impl:
    """Return the implementation of *expression* over the input, its scale and its zero point."""
    shape, output = call.shape(0), call.outputs[0]
    parts, axis = _factor_shape(call.name, call.attributes, shape, call.shape(1))
    given = (1, 2) if call.has(2) else (1,)
    sources = (0, *given)
    block = call.attributes.get("block_size", 0) or 1
    if axis < 0 or shape[axis] % block == 0:
        walked = shape
        if axis >= 0:  # the blocked axis becomes two: which block, and where in it
            walked = (*shape[:axis], shape[axis] // block, block, *shape[axis + 1 :])
            parts = (*parts[: axis + 1], 1, *parts[axis + 1 :])
        layouts = [Layout(call.dtype(0), walked), *(Layout(call.dtype(i), parts) for i in given)]
        return elementwise(
            name, expression, layouts, Layout(output.dtype, walked), traits, sources=sources, helpers=HELPERS
        )
    launches: list[Launch] = []
    for position, index in enumerate(given):
        launches += _spread_launches(call, index, scratch(position), axis, block, traits)
    layouts = [Layout(call.dtype(0), shape), *(Layout(call.dtype(i), shape) for i in given)]
    impl = elementwise(name, expression, layouts, output, traits, sources=sources, helpers=HELPERS)
    buffers = (inp(0), *(scratch(p) for p in range(len(given))), out(0))
    launches += [launch._replace(buffers=buffers) for launch in impl.launches]
    sizes = tuple(count(shape) * call.dtype(i).itemsize for i in given)
    return Impl(f"{name}, last block shorter", tuple(launches), sizes)


def _one_step(call: Call, step: DataType) -> bool:
    """Whether scale and zero point broadcast as they are: one for all, or one for each index of the last axis."""
    shape, scale = call.shape(0), call.shape(1)
    if call.dtype(1) is not FLOAT32 or step is not FLOAT32:
        return False
    if count(scale) == 1 and len(scale) <= 1:
        return True
    last = call.attributes.get("axis", 1) in (-1, len(shape) - 1)
    return len(scale) == 1 and last and not call.attributes.get("block_size", 0)


def _spread_launches(
    call: Call, index: int, target: Ref, axis: int, block: int, traits: DeviceTraits
) -> list[Launch]:
    """Copy the factors of whole blocks, then of the last, so that every element has its own."""
    shape, itemsize = call.shape(0), call.dtype(index).itemsize
    before, length, after = count(shape[:axis]), shape[axis], count(shape[axis + 1 :])
    whole, rest = divmod(length, block)
    blocks, line = whole + 1, length * after
    pieces = (
        (
            View((before, whole, block, after), (blocks * after, after, 0, 1)),
            View((before, whole, block, after), (line, block * after, after, 1)),
        ),
        (
            View((before, rest, after), (blocks * after, 0, 1), whole * after),
            View((before, rest, after), (line, after, 1), whole * block * after),
        ),
    )
    made = [copy_launch(inp(index), src, target, dst, itemsize, traits) for src, dst in pieces]
    return [launch for launch in made if launch is not None]


def _expressed(call: Call, traits: DeviceTraits, name: str, found: Expression) -> Impl:
    """Return the implementation of an expression over the input, its scale and its zero point."""
    one = count(call.shape(1)) == 1
    layouts = [
        Layout(call.dtype(i), call.shape(0) if i == 0 else () if one else call.shape(i)) for i in found.operands
    ]
    return elementwise(
        name, found.text, layouts, call.outputs[0], traits, sources=found.operands, vector=found.vector,
        integers=found.integers, helpers=found.helpers,
    )  # fmt: skip


# QuantizeLinear

_WIDE = (UINT8, INT8, UINT16, INT16)
"""What quotients become, beside the types that are narrower than a byte or floats of a byte."""


def _quantized_type(attributes: Attributes, zero_point: DataType | None) -> DataType:
    kind = zero_point or dtype_from_onnx(attributes.get("output_dtype", 0)) or UINT8
    if kind not in NARROW_TYPES and kind not in _WIDE:
        raise ModelTypeError(f"QuantizeLinear to {kind.name}, which holds no levels")
    return kind


def _quantize_types(attributes: Attributes, inputs: Sequence[DataType | None], outputs: int) -> Sequence[DataType]:
    return (_quantized_type(attributes, inputs[2] if len(inputs) > 2 else None),)


def _precision(attributes: Attributes, x: DataType, scale: DataType) -> DataType:
    return dtype_from_onnx(attributes.get("precision", 0)) or precision_of(x, scale)


def _quantize_reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x, scale = inputs[0], inputs[1]
    assert x is not None
    assert scale is not None
    zero_point = inputs[2] if len(inputs) > 2 else None
    kind = _quantized_type(attributes, None if zero_point is None else dtype_of(zero_point.dtype))
    own, divisor = dtype_of(x.dtype), dtype_of(scale.dtype)
    assert own is not None
    assert divisor is not None
    ratio = quotient(x, _spread(attributes, x.shape, scale), _precision(attributes, own, divisor))
    moved = None if zero_point is None else _spread(attributes, x.shape, zero_point)
    if kind.is_on_host:
        whole = ratio if kind.name.startswith("float") else np.rint(ratio)
        levels = whole if moved is None else whole + moved.astype(np.float64)
        return (saturated_narrow(levels, kind, saturate=bool(attributes.get("saturate", 1))),)
    return (saturate(ratio, moved, kind),)


def _quantize_expression(call: Call) -> Expression | None:
    kind = call.outputs[0].dtype
    if call.dtype(0) is not FLOAT32 or not _one_step(call, _precision(call.attributes, FLOAT32, call.dtype(1))):
        return None
    low, high = bounds(kind)
    zero = "$_real(a2), " if call.has(2) else ""
    text = f"$_level(a0, a1, {zero}{low}, {high})"
    operands = (0, 1, 2) if call.has(2) else (0, 1)
    return Expression(text, operands, vector=True, helpers=EXPRESSIONS, integers=True)


def _quantize(call: Call, traits: DeviceTraits) -> Impl:
    if (found := _quantize_expression(call)) is not None:
        return _expressed(call, traits, "quantize", found)
    precision = _precision(call.attributes, call.dtype(0), call.dtype(1))
    ratio = rounded(divided(rounded("a0", precision), rounded("a1", precision), traits), precision)
    text = saturated(ratio, "a2" if call.has(2) else "0", call.outputs[0].dtype)
    return _transform(call, traits, "quantize", text)


# DequantizeLinear


def _dequantize_types(attributes: Attributes, inputs: Sequence[DataType | None], outputs: int) -> Sequence[DataType]:
    assert inputs[1] is not None
    return (dtype_from_onnx(attributes.get("output_dtype", 0)) or inputs[1],)


def _dequantize_reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x, scale = inputs[0], inputs[1]
    assert x is not None
    assert scale is not None
    wide: Any = x.astype(np.float64)
    if len(inputs) > 2 and inputs[2] is not None:
        wide = wide - _spread(attributes, x.shape, inputs[2]).astype(np.float64)
    kind = dtype_from_onnx(attributes.get("output_dtype", 0))
    result = wide * _spread(attributes, x.shape, scale).astype(np.float64)
    with np.errstate(all="ignore"):
        return (np.asarray(result).astype(kind.numpy if kind else scale.dtype),)


def _dequantize_expression(call: Call) -> Expression | None:
    if not _one_step(call, call.outputs[0].dtype):
        return None
    text = "($_real(a0) - $_real(a2)) * a1" if call.has(2) else "$_real(a0) * a1"
    operands = (0, 1, 2) if call.has(2) else (0, 1)
    return Expression(text, operands, vector=True, helpers=EXPRESSIONS, integers=True)


def _dequantize(call: Call, traits: DeviceTraits) -> Impl:
    if (found := _dequantize_expression(call)) is not None:
        return _expressed(call, traits, "dequantize", found)
    value = "((float)a0 - (float)a2)" if call.has(2) else "(float)a0"
    return _transform(call, traits, "dequantize", f"{value} * (float)a1")


# DynamicQuantizeLinear


def _dynamic_infer(call: Call) -> Sequence[Shape]:
    return (call.shape(0), (), ())


def _dynamic_reference(attributes: Attributes, inputs: Sequence[Array | None]) -> Sequence[Array]:
    x: Any = inputs[0]
    # What is no number is neither.
    high, low = np.float32(np.fmax.reduce(x, axis=None, initial=0)), np.float32(np.fmin.reduce(x, axis=None, initial=0))
    with np.errstate(all="ignore"):
        scale = np.float32(1 if high == low else high - low) / np.float32(255)
        zero_point = saturate(np.asarray(np.float32(0) - low / scale), None, UINT8)
    scale_array, zero_array = np.asarray(scale, np.float32), np.asarray(zero_point, np.uint8)
    return saturate(quotient(x, scale_array, FLOAT32), zero_array, UINT8), scale_array, zero_array


@functools.cache
def _extremes_kernel() -> KernelSource:
    """Each work-item finds the least and the greatest of its piece, 0 being among them."""
    body = """
  const int id = (int)get_global_id(0), c1 = min((id + 1) * each, n);
  float low = 0.0f, high = 0.0f;
  for (int c = id * each; c < c1; c++) { low = fmin(low, x[c]); high = fmax(high, x[c]); }
  part[2 * id] = low; part[2 * id + 1] = high;"""
    return kernel("extremes", (("x", FLOAT32, "r"), ("part", FLOAT32, "w")), ("n", "each"), body)


@functools.cache
def _parameters_kernel() -> KernelSource:
    traits = DeviceTraits("gpu")
    body = f"""
  float low = 0.0f, high = 0.0f;
  for (int i = 0; i < parts; i++) {{ low = fmin(low, part[2 * i]); high = fmax(high, part[2 * i + 1]); }}
  const float s = {divided("high == low ? 1.0f : high - low", "255.0f", traits)};
  scale[0] = s;
  zero[0] = (uchar)rint(clamp(-{divided("low", "s", traits)}, 0.0f, 255.0f));"""
    buffers = (("part", FLOAT32, "r"), ("scale", FLOAT32, "w"), ("zero", UINT8, "w"))
    return kernel("quantization", buffers, ("parts",), body, helpers=HELPERS)


# Both are written without branches and calls, which would keep elements apart. What is not a number is neither.
_EXTREMES = """
inline float2 $_extremes(__global const float* x, int n) {
  float16 l = 0.0f, h = 0.0f;
  int c = 0;
  for (; c + 16 <= n; c += 16) {
    const float16 v = vload16(0, x + c);
    l = select(l, v, v < l);
    h = select(h, v, v > h);
  }
  float low = 0.0f, high = 0.0f, t[32];
  vstore16(l, 0, t); vstore16(h, 1, t);
  for (int i = 0; i < 16; i++) { low = t[i] < low ? t[i] : low; high = t[16 + i] > high ? t[16 + i] : high; }
  for (; c < n; c++) { low = x[c] < low ? x[c] : low; high = x[c] > high ? x[c] : high; }
  return (float2)(low, high);
}"""
_LEVELS = """
inline void $_levels(__global const float* x, int n, float2 range, __global float* scale, __global uchar* zero,
                     __global uchar* y, bool first) {
  const float s = (range.y == range.x ? 1.0f : range.y - range.x) / 255.0f;
  const float z = rint(clamp(-(range.x / s), 0.0f, 255.0f));
  if (first) { scale[0] = s; zero[0] = (uchar)z; }
  int c = 0;
  for (; c + 16 <= n; c += 16)
    vstore16(convert_uchar16(clamp(rint(vload16(0, x + c) / s) + z, 0.0f, 255.0f)), 0, y + c);
  for (; c < n; c++) y[c] = (uchar)clamp(rint(x[c] / s) + z, 0.0f, 255.0f);
}"""
_ONE_ITEM = 8192  # elements that one work-item takes sooner than two kernels could


@functools.cache
def _at_once_kernel() -> KernelSource:
    """One work-item finds the extremes and quantises."""
    body = "$_levels(x, n, $_extremes(x, n), scale, zero, y, true);"
    buffers = (("x", FLOAT32, "r"), ("y", UINT8, "w"), ("scale", FLOAT32, "w"), ("zero", UINT8, "w"))
    return kernel("quantize_at_once", buffers, ("n",), body, helpers=_EXTREMES + _LEVELS, contract=False)


@functools.cache
def _parts_kernel() -> KernelSource:
    """Each work-item finds the extremes of its piece."""
    body = """
  const int id = (int)get_global_id(0), c0 = min(id * each, n);
  vstore2($_extremes(x + c0, min(each, n - c0)), id, part);"""
    return kernel("extremes", (("x", FLOAT32, "r"), ("part", FLOAT32, "w")), ("n", "each"), body, helpers=_EXTREMES)


@functools.cache
def _pieces_kernel() -> KernelSource:
    """Each work-item quantises its piece, by the extremes of all."""
    body = """
  const int id = (int)get_global_id(0), c0 = min(id * each, n);
  float2 range = 0.0f;
  for (int i = 0; i < parts; i++) {
    const float2 p = vload2(i, part);
    range = (float2)(p.x < range.x ? p.x : range.x, p.y > range.y ? p.y : range.y);
  }
  $_levels(x + c0, min(each, n - c0), range, scale, zero, y + c0, id == 0);"""
    buffers = (
        ("x", FLOAT32, "r"), ("part", FLOAT32, "r"), ("y", UINT8, "w"), ("scale", FLOAT32, "w"), ("zero", UINT8, "w"),
    )  # fmt: skip
    return kernel("quantize_pieces", buffers, ("n", "each", "parts"), body, helpers=_LEVELS, contract=False)


def _dynamic_cpu(n: int, traits: DeviceTraits) -> Impl:
    if n <= _ONE_ITEM:
        launch = Launch(_at_once_kernel(), (inp(0), out(0), out(1), out(2)), (n,), (1,), (1,))
        return Impl("dynamic, at once", (launch,))
    parts = 4 * traits.compute_units
    each = -(-n // (16 * parts)) * 16
    launches = (
        Launch(_parts_kernel(), (inp(0), scratch(0)), (n, each), (parts,), (1,)),
        Launch(_pieces_kernel(), (inp(0), scratch(0), out(0), out(1), out(2)), (n, each, parts), (parts,), (1,)),
    )
    return Impl("dynamic", launches, (8 * parts,))


def _dynamic(call: Call, traits: DeviceTraits) -> Impl:
    shape = call.shape(0)
    n = count(shape)
    if traits.is_cpu:
        return _dynamic_cpu(n, traits)
    parts = max(1, min(16 * GPU_GROUP, n // 256))
    each = max(1, -(-n // parts))
    text = saturated(divided("a0", "a1", traits), "a2", UINT8)
    layouts = (Layout(FLOAT32, shape), Layout(FLOAT32, ()), Layout(UINT8, ()))
    last = elementwise("quantize", text, layouts, call.outputs[0], traits, helpers=HELPERS) if n else None
    launches = [
        Launch(_extremes_kernel(), (inp(0), scratch(0)), (n, each), (parts,), None),
        Launch(_parameters_kernel(), (scratch(0), out(1), out(2)), (parts,), (1,), (1,)),
    ]
    if last is not None:
        launches += [launch._replace(buffers=(inp(0), out(1), out(2), out(0))) for launch in last.launches]
    return Impl("dynamic", tuple(launches), (8 * parts,))


def _f32(*values: float) -> Array:
    return np.array(values, np.float32)


_TIES = _f32(-300, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 127.5, 128.5, 1000).reshape(2, 5)
_SCALES = np.array([[0.5, 0.25, 1, 2], [0.1, 0.3, 0.7, 0.9]], np.float32)
_BLOCKS = _SCALES[:, :2]

OPERATORS = (
    Operator(
        name="QuantizeLinear",
        infer=infer,
        reference=_quantize_reference,
        implement=_quantize,
        expression=_quantize_expression,
        types=_quantize_types,
        examples=(
            Example((_TIES, np.array(1, np.float32)), opset=13),
            Example((_TIES, np.array(1, np.float32), np.array(3, np.int8)), opset=13),
            Example(("f32[3,40]", np.array(0.01, np.float32), np.array(128, np.uint8)), opset=19),
            Example(("f32[3,4,5]", _f32(0.1, 0.2, 0.3, 0.4), np.array([1, 2, 3, 4], np.uint8)), opset=13),
            Example(("f32[3,4]", _f32(0.1, 0.2, 0.3), np.array([1, 2, 3], np.int16)), {"axis": -2}, opset=21),
            Example(("f32[2,12]", _SCALES, np.ones((2, 4), np.uint16)), {"axis": 1, "block_size": 3}, opset=21),
            Example(("f32[2,11,3]", "f32[2,4,3]", np.ones((2, 4, 3), np.int8)), {"block_size": 3}, opset=21),
            Example(("f32[5,4]", "f32[1,4]"), {"axis": 0, "block_size": 1 << 12, "output_dtype": 3}, opset=21),
        Example(("f32[5,4]", _SCALES), {"axis": 0, "block_size": 3, "output_dtype": 3}, opset=21),
            Example(("f16[2,40]", np.array(0.07, np.float16), np.array(5, np.uint8)), opset=21),
            Example(("f32[2,40]", np.array(0.07, np.float32)), {"precision": 10}, opset=23),
            Example(("i32[7]", np.array(2, np.float32)), opset=19),
        ),
    ),
    Operator(
        name="DequantizeLinear",
        infer=infer,
        reference=_dequantize_reference,
        implement=_dequantize,
        expression=_dequantize_expression,
        types=_dequantize_types,
        examples=(
            Example(("u8[3,40]", np.array(0.01, np.float32), np.array(3, np.uint8)), opset=19),
            Example(("i8[3,4,5]", _f32(0.1, 0.2, 0.3, 0.4), np.array([1, 2, 3, 4], np.int8)), opset=19),
            Example(("i32[3,4]", _f32(0.1, 0.2, 0.3)), {"axis": 0}, opset=19),
            Example(("u16[2,12]", _SCALES, np.ones((2, 4), np.uint16)), {"axis": 1, "block_size": 3}, opset=21),
            Example(("i16[2,5]", _BLOCKS), {"axis": 1, "block_size": 3}, opset=21),
            Example(("i8[2,3]", np.array(0.3, np.float16)), opset=21),
            Example(("i8[2,3]", np.array(0.3, np.float32)), {"output_dtype": 10}, opset=23),
        ),
    ),
    Operator(
        name="DynamicQuantizeLinear",
        infer=_dynamic_infer,
        reference=_dynamic_reference,
        implement=_dynamic,
        examples=(
            Example(("f32[3,40]",), outputs=3),
            Example((_TIES,), outputs=3),
            Example((_f32(0, 0, 0),), outputs=3),
            Example((_f32(1, 2.5, 3),), outputs=3),
            Example(("f32[50,100]",), outputs=3),
            Example(("f32[97,101]",), outputs=3),
        ),
    ),
)
