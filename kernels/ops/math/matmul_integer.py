"""MatMulInteger and QLinearMatMul: matrix products of 8-bit integers less their zero points, in 32 bits.

MatMulInteger gives the 32-bit sums. QLinearMatMul scales them, rounds half to even, adds a zero point and saturates.
`SCALED` gives them scaled, as float32; `passes/quantized/products.py` puts it where a model dequantises both operands.
A zero point or scale is one for the matrix, one for each row of the left (``[M]`` or ``[..., M, 1]``) or one for each
column of the right (``[N]`` or ``[..., 1, N]``).

Source: ONNX MatMulInteger-10, QLinearMatMul-21.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen import epilogue as after
from asyncrt.kernels.codegen.epilogue import Epilogue, bind
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.impl import Impl, KernelSource, Launch, inp, out
from asyncrt.kernels.int8.inputs import Places, scales_of, zeros_of
from asyncrt.kernels.int8.product import Product, integer_product
from asyncrt.kernels.int8.quantize import HELPERS, divided, saturate, saturated
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.patterns.grid import round_up
from asyncrt.kernels.shapes import broadcast_shapes, check, check_spreads, count
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32, INT32, Array, DataType, Shape, dtype_of, row_major
from asyncrt.memory.view import broadcast_strides, collapse

_SPAN, _HEIGHT = 32, 4  # columns and rows of the results that a work-item of a CPU calculates at once
_GPU_GROUP = 64


_INTEGER = Places(w=1, x_zero=2, w_zero=3)
_SCALED = Places(w=1, x_scale=2, w_scale=3, x_zero=4, w_zero=5)
_LINEAR = Places(w=3, x_zero=2, w_zero=5, x_scale=1, w_scale=4, y_scale=6, y_zero=7)


def _matrices(a: Shape, b: Shape) -> tuple[Shape, Shape]:
    """Return the shapes with at least two axes."""
    return a if len(a) > 1 else (1, *a), b if len(b) > 1 else (*b, 1)


def _infer(places: Places, call: Call) -> tuple[Shape]:
    a, b = call.shape(0), call.shape(places.w)
    check(call, len(a) > 0 and len(b) > 0, "operands must have at least one axis")
    left, right = _matrices(a, b)
    check(call, left[-1] == right[-2], f"inner dims differ: {left[-1]} and {right[-2]}")
    batch = broadcast_shapes(call, left[:-2], right[:-2])
    for index in (places.x_zero, places.x_scale):
        if index is not None and call.has(index):
            check_spreads(call, index, _of_rows(call.shape(index)), (*batch, left[-2], 1))
    for index in (places.w_zero, places.w_scale):
        if index is not None and call.has(index):
            check_spreads(call, index, _of_columns(call.shape(index)), (*batch, 1, right[-1]))
    for index in (places.y_scale, places.y_zero):
        check(call, index is None or count(call.shape(index)) == 1, f"input {index} must have one element")
    return ((*batch, *([left[-2]] if len(a) > 1 else []), *([right[-1]] if len(b) > 1 else [])),)


def _of_rows(shape: Shape) -> Shape:
    return (shape[0], 1) if len(shape) == 1 else shape


def _of_columns(shape: Shape) -> Shape:
    return (1, shape[0]) if len(shape) == 1 else shape


def _product(places: Places, inputs: Sequence[Array | None]) -> Any:
    """Return the sums in int64; NumPy multiplies float64 many times as fast, and exactly up to 2 ** 53."""
    a, b = inputs[0], inputs[places.w]
    assert a is not None
    assert b is not None
    left: Any = a.astype(np.float64)
    right: Any = b.astype(np.float64)
    rows, columns = _matrices(a.shape, b.shape)
    left, right = left.reshape(rows), right.reshape(columns)
    za = inputs[places.x_zero] if len(inputs) > places.x_zero else None
    zb = inputs[places.w_zero] if len(inputs) > places.w_zero else None
    if za is not None:
        left = left - za.astype(np.float64).reshape(_of_rows(za.shape))
    if zb is not None:
        right = right - zb.astype(np.float64).reshape(_of_columns(zb.shape))
    return np.matmul(left, right).astype(np.int64)


def _drop(y: Array, a: Array | None, b: Array | None) -> Array:
    """Remove the axes that an operand of one axis does not have."""
    assert a is not None
    assert b is not None
    if b.ndim == 1:
        y = y[..., 0]
    if a.ndim == 1:
        y = y[..., 0] if b.ndim == 1 else y[..., 0, :]
    return y


def _integer_reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    y = _product(_INTEGER, inputs).astype(np.int32)
    return (np.ascontiguousarray(_drop(y, inputs[0], inputs[1])),)


def _linear_reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    scale_a, scale_b, scale_y, zero = inputs[1], inputs[4], inputs[6], inputs[7]
    assert scale_a is not None
    assert scale_b is not None
    assert scale_y is not None
    assert zero is not None
    a: Any = scale_a.astype(np.float32).reshape(_of_rows(scale_a.shape))
    b: Any = scale_b.astype(np.float32).reshape(_of_columns(scale_b.shape))
    kind = dtype_of(zero.dtype)
    assert kind is not None
    scaled = _product(_LINEAR, inputs).astype(np.int32).astype(np.float32) * (a * b / scale_y.astype(np.float32).reshape(()))
    return (np.ascontiguousarray(_drop(saturate(scaled, zero.reshape(()), kind), inputs[0], inputs[3])),)


def _implement(places: Places, call: Call, traits: DeviceTraits, epilogue: Epilogue | None = None) -> Impl:
    product = _packed(places, call) if traits.is_cpu and traits.packed_weights else None
    if product is not None:
        return integer_product(product, traits, call.outputs[0].shape, epilogue)
    left, right = _matrices(call.shape(0), call.shape(places.w))
    (m, k), n = left[-2:], right[-1]
    batch = broadcast_shapes(call, left[:-2], right[:-2])
    operands: list[tuple[str, int, tuple[int, ...]]] = [
        ("A", 0, broadcast_strides(left, (*batch, m, k))),
        ("B", places.w, broadcast_strides(right, (*batch, k, n))),
    ]
    for name, index, rows in (
        ("za", places.x_zero, True), ("zb", places.w_zero, False),
        ("sa", places.x_scale, True), ("sb", places.w_scale, False),
    ):  # fmt: skip
        if index is not None and call.has(index):
            shape = _of_rows(call.shape(index)) if rows else _of_columns(call.shape(index))
            operands.append((name, index, broadcast_strides(shape, (*batch, m, 1) if rows else (*batch, 1, n))))
    outs = row_major((*batch, m, n))
    axes, steps = collapse(batch, *(s[:-2] for _, _, s in operands), outs[:-2])
    batches = count(axes)
    walk = tuple(x for i in range(len(axes) - 1, -1, -1) for x in (axes[i], *(s[i] for s in steps)))
    own = {name: s for name, _, s in operands}
    za_row = own["za"][-2] if "za" in own else 0
    zb_column = own["zb"][-1] if "zb" in own else 0
    sa_row = own["sa"][-2] if "sa" in own else 0
    sb_column = own["sb"][-1] if "sb" in own else 0
    names = tuple(name for name, _, _ in operands)
    dtypes = tuple(call.dtype(index) for _, index, _ in operands)
    refs = tuple(inp(index) for _, index, _ in operands)
    if places.y_scale is not None and places.y_zero is not None:
        names += ("sy", "zy")
        dtypes += (call.dtype(places.y_scale), call.dtype(places.y_zero))
        refs += (inp(places.y_scale), inp(places.y_zero))
    height, span = (_HEIGHT, _SPAN) if traits.is_cpu else (1, 1)
    last = bind(epilogue, call.outputs[0].shape)
    made = call.outputs[0].dtype
    result = made if epilogue is None or epilogue.result is None else epilogue.result
    form = _MatMulIntegerForm(names, dtypes, made, result, len(axes), height, span, last.form)
    ints = (m, n, k, za_row, zb_column, sa_row, sb_column, *walk, *last.ints)
    group = 1 if traits.is_cpu else _GPU_GROUP
    grid = (round_up(-(-n // span), group), -(-m // height), batches)
    return Impl("integers", (Launch(_kernel(form), (*refs, out(0), *last.refs), ints, grid, (group, 1, 1)),))


def _packed(places: Places, call: Call) -> Product | None:
    """Return the product as one of packed weights: constants, and one scale and zero point on the left; else None."""
    a, b = call.shape(0), call.shape(places.w)
    if not call.constants[places.w] or len(b) != 2 or 0 in b:
        return None
    for index in (places.x_zero, places.x_scale):
        if index is not None and call.has(index) and not _is_one(call.shape(index)):
            return None
    for index in (places.w_zero, places.w_scale):
        if index is not None and call.has(index):
            shape = call.shape(index)
            if not _is_one(shape) and shape != (b[1],):
                return None
    zeros = zeros_of(places, call)
    return Product(
        "matmul_integer", call.dtype(0), call.dtype(places.w), count(a[:-1]), b[1], b[0], call.outputs[0].dtype, places.w,
        zeros.refs, zeros.per_column, zeros.neutral, scales_of(places, call),
    )  # fmt: skip


def _is_one(shape: Shape) -> bool:
    return len(shape) <= 1 and count(shape) == 1


class _MatMulIntegerForm(NamedTuple):
    """What the source of the kernel depends on."""

    names: tuple[str, ...]
    dtypes: tuple[DataType, ...]
    made: DataType
    result: DataType
    axes: int
    height: int
    span: int
    last: after.EpilogueForm


@functools.cache
def _kernel(form: _MatMulIntegerForm) -> KernelSource:
    """`height` rows of `span` adjacent results per work-item. Sums wrap around, as 32-bit integers do.

    The last columns are calculated with those before them, as far as there are as many as a work-item takes: it stores
    only what no other does. Rows behind the last are the last one again.
    """
    moved = [name for name in form.names if name not in ("sy", "zy")]
    of = dict(zip(form.names, form.dtypes, strict=True))
    batch = ["int rest = (int)get_global_id(2), oY = 0; " + " ".join(f"int o{name} = 0;" for name in moved)]
    batch += [
        f"{{ const int q = rest / d{i}, r = rest - q * d{i}; rest = q; oY += r * tY{i}; "
        + " ".join(f"o{name} += r * t{name}{i};" for name in moved)
        + " }"
        for i in range(form.axes)
    ]
    a_zero = "za[oza + at * za_row]" if "za" in of else "0"
    b_zero = "zb[ozb + (n0 + j) * zb_column]" if "zb" in of else "0"
    helpers = ""
    if "sy" in of:
        helpers = HELPERS
        gpu = DeviceTraits("gpu" if form.span == 1 else "cpu")
        scales = (
            f"LOAD({of['sa'].name}, sa, osa + m * sa_row) * LOAD({of['sb'].name}, sb, osb + (n0 + j) * sb_column)"
        )
        ratio = divided(scales, f"LOAD({of['sy'].name}, sy, 0)", gpu)
        result = saturated(f"(float)(int)sum[j] * {ratio}", "zy[0]", form.made)
    elif "sa" in of:
        result = "(float)(int)sum[j] * (sa[osa + m * sa_row] * sb[osb + (n0 + j) * sb_column])"
    else:
        result = "(int)sum[j]"
    each = "for (int j = 0; j < left; j++)"
    few = f"""for (int k = 0; k < K; k++, b += N) {{
    for (int i = 0; i < count; i++) {{
      const uint l = (uint)((int)a[rows[i] + k] - low[i]);
      {each} sums[i * {form.span} + j] += l * (uint)((int)b[j] - zeros[j]);
    }}
  }}"""
    sums = few if form.span == 1 else f"if (left == {form.span}) {{ {_tile(form.height, form.span)} }}\n  else {few}"
    body = f"""
  const int start = (int)get_global_id(0) * {form.span}, first = (int)get_global_id(1) * {form.height};
  if (start >= N) return;
  {" ".join(batch)}
  const int n0 = max(min(start, N - {form.span}), 0), left = min({form.span}, N - n0), count = min({form.height}, M - first);
  int zeros[{form.span}], rows[{form.height}], low[{form.height}]; uint sums[{form.height * form.span}];
  for (int i = 0; i < {form.height * form.span}; i++) sums[i] = 0;
  {each} zeros[j] = {b_zero};
  for (int i = 0; i < {form.height}; i++) {{
    const int at = min(first + i, M - 1); rows[i] = at * K; low[i] = {a_zero};
  }}
  __global const {of["A"].c}* a = A + oA;
  __global const {of["B"].c}* b = B + oB + n0;
  {sums}
  for (int i = 0; i < count; i++) {{
    const int m = first + i; const uint* sum = sums + i * {form.span};
    {form.last.rows("oY / N + m")}
    for (int j = start - n0; j < left; j++) {form.last.element(form.made, "Y", "oY + m * N + n0 + j", "n0 + j", result, form.result)}
  }}"""
    walk = (x for i in range(form.axes) for x in (f"d{i}", *(f"t{name}{i}" for name in moved), f"tY{i}"))
    ints = ("M", "N", "K", "za_row", "zb_column", "sa_row", "sb_column", *walk, *form.last.ints)
    buffers = (*((n, t, "r") for n, t in zip(form.names, form.dtypes, strict=True)), ("Y", form.result, "w"))
    return kernel("matmul_integer", (*buffers, *form.last.buffers), ints, body, helpers=helpers + form.last.helper_text)


def _tile(height: int, span: int) -> str:
    """Return statements that add all products of *height* rows and *span* columns to `sums`, in vectors of 16."""
    vectors, each = range(span // 16), range(height)
    zeros = " ".join(f"const int16 z{v} = vload16({v}, zeros);" for v in vectors)
    start = " ".join(f"uint16 s{i}_{v} = 0;" for i in each for v in vectors)
    right = " ".join(f"const uint16 b{v} = as_uint16(convert_int16(vload16({v}, b)) - z{v});" for v in vectors)
    left = " ".join(f"const uint l{i} = (uint)((int)a[rows[{i}] + k] - low[{i}]);" for i in each)
    add = " ".join(f"s{i}_{v} += l{i} * b{v};" for i in each for v in vectors)
    end = " ".join(f"vstore16(s{i}_{v}, {i * len(vectors) + v}, sums);" for i in each for v in vectors)
    return f"{zeros} {start}\n    for (int k = 0; k < K; k++, b += N) {{ {right} {left} {add} }}\n    {end}"


def _scaled_reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    a, b = inputs[2], inputs[3]
    assert a is not None
    assert b is not None
    scale = a.astype(np.float32).reshape(()) * b.astype(np.float32)
    y = _product(_SCALED, inputs).astype(np.int32).astype(np.float32) * (scale if b.ndim else scale.reshape(()))
    return (np.ascontiguousarray(_drop(np.asarray(y), inputs[0], inputs[1])),)


def _linear_types(attributes: Attributes, inputs: Sequence[DataType | None], outputs: int) -> Sequence[DataType]:
    assert inputs[7] is not None
    return (inputs[7],)


def _integer_types(attributes: Attributes, inputs: Sequence[DataType | None], outputs: int) -> Sequence[DataType]:
    return (INT32,)


def _u8(*values: int) -> Array:
    return np.array(values, np.uint8)


def _i8(*values: int) -> Array:
    return np.array(values, np.int8)


def _one(value: float) -> Array:
    return np.array(value, np.float32)


def _scaled_types(attributes: Attributes, inputs: Sequence[DataType | None], outputs: int) -> Sequence[DataType]:
    return (FLOAT32,)


SCALED = Operator(
    name="MatMulScaled",
    infer=functools.partial(_infer, _SCALED),
    reference=_scaled_reference,
    implement=functools.partial(_implement, _SCALED),
    with_epilogue=functools.partial(_implement, _SCALED),
    converts=True,
    value_hints=(5,),
    compares_hints=False,
    types=_scaled_types,
    domain="asyncrt",
    examples=(
        Example(("u8[5,7]", "i8[7,33]", _one(0.02), _one(0.3), np.array(3, np.uint8), None)),
        Example(("i8[2,4,7]", "u8[7,2]", _one(0.5), np.array([0.1, 0.2], np.float32), None, _u8(127, 130))),
    ),
)

OPERATORS = (
    SCALED,
    Operator(
        name="MatMulInteger",
        infer=functools.partial(_infer, _INTEGER),
        reference=_integer_reference,
        implement=functools.partial(_implement, _INTEGER),
        with_epilogue=functools.partial(_implement, _INTEGER),
        converts=True,
        types=_integer_types,
        value_hints=(3,),
        compares_hints=False,
        examples=(
            Example(("u8[5,7]", "u8[7,40]")),
            Example(("u8[5,7]", "i8[7,33]", np.array(3, np.uint8), np.array(-2, np.int8))),
            Example(("i8[2,3,4,5]", "u8[5,6]", np.array(1, np.int8), _u8(1, 2, 3, 4, 5, 6))),
            Example(("i8[2,1,4,5]", "i8[3,5,64]", "i8[2,1,4,1]", "i8[3,1,64]")),
            Example(("i8[2,1,6,5]", "u8[3,5,45]", "i8[2,1,6,1]", "u8[3,1,45]")),
            Example(("u8[2,9,70]", "i8[2,70,32]", np.array(200, np.uint8))),
            Example(("u8[5]", "u8[5,3]")),
        ),
    ),
    Operator(
        name="QLinearMatMul",
        infer=functools.partial(_infer, _LINEAR),
        reference=_linear_reference,
        implement=functools.partial(_implement, _LINEAR),
        types=_linear_types,
        value_hints=(5,),
        compares_hints=False,
        examples=(
            Example(
                ("u8[5,7]", _one(0.0066), np.array(113, np.uint8), "u8[7,40]", _one(0.00705), np.array(114, np.uint8),
                 _one(0.0107), np.array(118, np.uint8))
            ),
            Example(
                ("i8[2,4,7]", _one(0.05), np.array(3, np.int8), "i8[7,5]",
                 np.array([0.1, 0.2, 0.3, 0.4, 0.5], np.float32), _i8(0, 1, 2, 3, 4), _one(0.13), np.array(-9, np.int8))
            ),
            Example(
                ("u8[2,3,4]", _one(0.5), np.array(1, np.uint8), "i8[2,4,3]", _one(1.5), np.array(0, np.int8), _one(30),
                 np.array(100, np.uint8))
            ),
        ),
    ),
)  # fmt: skip
