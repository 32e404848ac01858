"""Products of 8-bit integers by constant weights on CPU devices, summed in 32 bits.

A work-item computes some rows of 32 columns. Four products are one step: bytes of a row lie in one number, against those
of 32 columns, as processors with VNNI multiply them. They multiply unsigned bytes by signed ones, so 128 is added
to signed bytes on the left, or subtracted from unsigned ones on the right, and likewise their zero points; with sums of
rows and of columns

    sum (a - za) (w - zw)  =  sum a w  -  za sum w  -  zw (sum a - K za)

Sums wrap around, as 32-bit integers do, so the result is exact wherever it fits, whatever the order.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from asyncrt.kernels.codegen import epilogue
from asyncrt.kernels.codegen.alignment import fake_alignment
from asyncrt.kernels.codegen.epilogue import Epilogue, bind
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.codegen.tiles import AHEAD, FETCH, PANEL
from asyncrt.kernels.codegen.vectors import ALL_VECTORS
from asyncrt.kernels.impl import Impl, KernelSource, Launch, Ref, WeightsRequest, inp, out, weights
from asyncrt.kernels.matmul.cpu import rows_per_item
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32, INT8, INT32, UINT8, Array, DataType

from .quantize import bounds

TILE = 8  # rows whose sums are in registers
_MOST = 64  # rows of a work-item

# `u` is four unsigned bytes, `w` four signed ones for each column. Without VNNI they are taken apart; what is done to the
# weights is done once for all rows of a tile. The letters of the constraint are those that both Intel's compiler, for
# which this is not yet a program for x86, and PoCL's understand; `devices/opencl/dot_product.py` tries whether they mean the same.
_DOT = """
#ifdef ASYNCRT_DOT
inline int16 $_dot(int16 s, uint u, int16 w) {
  const int16 v = (int16)((int)u);
  __asm__("vpdpbusd %2, %1, %0" : "+vr"(s) : "vr"(v), "vr"(w));
  return s;
}
#else
inline int16 $_dot(int16 s, uint u, int16 w) {
  s += (int16)((int)(u & 255)) * ((w << 24) >> 24);
  s += (int16)((int)((u >> 8) & 255)) * ((w << 16) >> 24);
  s += (int16)((int)((u >> 16) & 255)) * ((w << 8) >> 24);
  return s + (int16)((int)(u >> 24)) * (w >> 24);
}
#endif
"""


class Scales(NamedTuple):
    """The scales of sums: ``sum * (left * right)``, with the product of the scales rounded first.

    Attributes:
        left: One for the matrix.
        right: One for the matrix, or one for each column.
        per_column: Whether that is so.
        result: Scale and zero point of a result of 8 bits; None leaves it float32.
    """

    left: Ref
    right: Ref
    per_column: bool
    result: tuple[Ref, Ref] | None = None


class Product(NamedTuple):
    """A product at one set of shapes.

    Attributes:
        name: For traces.
        rows: M, with all batch axes.
        made: dtype of what the sums become: int32, or float32 or 8 bits where there are scales.
        weights: The node's input that they are.
        zeros: Where the zero points of the left and of the weights are; None for those that are 0.
        per_column: The weights have a zero point for each column.
        neutral: The weights' zero point is known to be 0, or 128 if they are unsigned.
    """

    name: str
    a: DataType
    w: DataType
    rows: int
    columns: int
    depth: int
    made: DataType
    weights: int
    zeros: tuple[Ref | None, Ref | None]
    per_column: bool = False
    neutral: bool = False
    scales: Scales | None = None


def pack_bytes(matrix: Array) -> Array:
    """Return a ``[K, N]`` matrix of bytes as ``[ceil(N / 32), ceil(K / 4) + 1, 32]``: four rows of bytes, signed, in each
    number, and behind them the sums of the columns."""
    k, n = matrix.shape
    steps, panels = -(-k // 4), -(-n // PANEL)
    signed = (matrix ^ 0x80).view(np.int8) if matrix.dtype == np.uint8 else matrix
    packed = np.zeros((panels, steps + 1, PANEL), np.int32)
    for i in range(panels):  # one by one, so that there is no second copy of a large matrix
        part = np.zeros((4 * steps, PANEL), np.int8)
        columns = signed[:, i * PANEL : (i + 1) * PANEL]
        part[:k, : columns.shape[1]] = columns
        together = np.ascontiguousarray(part.reshape(steps, 4, PANEL).swapaxes(1, 2))
        packed[i, :steps] = together.view("<i4")[..., 0]
        packed[i, steps] = part.sum(0, dtype=np.int32)
    return packed


def integer_product(product: Product, traits: DeviceTraits, shape: tuple[int, ...], after: Epilogue | None) -> Impl:
    """Return the implementation of *product*.

    Args:
        shape: Of its result.
        after: What becomes of each element before it is stored.
    """
    p = product
    last = bind(after, shape, integers=True)
    result = p.made if after is None or after.result is None else after.result
    a_zero, w_zero = p.zeros
    form = _IntegerProductForm(
        p.name, p.a, p.w, a_zero is not None, w_zero is not None, not p.neutral, p.scales is not None,
        p.scales is not None and p.scales.result is not None, p.made, result, last.form,
    )  # fmt: skip
    refs = (inp(0), weights(0), out(0), *(zero for zero in p.zeros if zero is not None))
    steps = (int(p.per_column), 0)
    if p.scales is not None:
        refs += (p.scales.left, p.scales.right, *(p.scales.result or ()))
        steps = (int(p.per_column), int(p.scales.per_column))
    panels = -(-p.columns // PANEL)
    rows = rows_per_item(fake_alignment(p.rows, TILE), TILE, panels, traits.compute_units)
    launch = Launch(
        _kernel(form), (*refs, *last.refs), (p.rows, p.columns, p.depth, *steps, *last.ints, rows),
        (-(-p.rows // rows), panels), (1, 1), varying=(0,),
    )  # fmt: skip
    request = WeightsRequest(p.weights, "bytes32", pack_bytes, panels * (-(-p.depth // 4) + 1) * PANEL)
    return Impl(f"bytes {TILE}x{PANEL}, packed", (launch,), weights=(request,))


class _IntegerProductForm(NamedTuple):
    """What the source of the kernel depends on.

    Attributes:
        sums: Whether sums of rows matter: the weights, as they are packed, have a zero point.
    """

    name: str
    a: DataType
    w: DataType
    a_zero: bool
    w_zero: bool
    sums: bool
    scaled: bool
    rounded: bool
    made: DataType
    result: DataType
    last: epilogue.EpilogueForm

    @property
    def buffers(self) -> tuple[tuple[str, DataType, str], ...]:
        return (
            ("A", self.a, "r"),
            ("B", INT32, "r"),
            ("Y", self.result, "w"),
            *((("za", self.a, "r"),) if self.a_zero else ()),
            *((("zb", self.w, "r"),) if self.w_zero else ()),
            *((("sa", FLOAT32, "r"), ("sb", FLOAT32, "r")) if self.scaled else ()),
            *((("sy", FLOAT32, "r"), ("zy", self.made, "r")) if self.rounded else ()),
            *self.last.buffers,
        )


@functools.cache
def _kernel(form: _IntegerProductForm) -> KernelSource:
    left, right = ("za[0]" if form.a_zero else "0"), ("zb[n * zb_column]" if form.w_zero else "0")
    left += " + 128" if form.a is INT8 else ""
    right += " - 128" if form.w is UINT8 else ""
    scale = "sa[0] * sb[n * sb_column]"
    if form.rounded:
        scale = f"({scale}) / sy[0]"
    halves = (0, 1)
    sums = " ".join(
        f"uint16 s{h} = as_uint16(vload16({h}, t + i * 32)) - (uint)low * as_uint16(vload16({h}, b + K4 * 32));"
        + (f" s{h} -= vload16({h}, zeros) * (r[i] - (uint)K * (uint)low);" if form.sums else "")
        for h in halves
    )
    values = ["as_int16(s0)", "as_int16(s1)"]
    if form.scaled:
        values = [f"convert_float16({v}) * vload16({h}, f)" for h, v in zip(halves, values, strict=True)]
    if form.rounded:
        least, greatest = bounds(form.made)
        values = [f"convert_int16(clamp(rint({v}) + (float)zy[0], {least}, {greatest}))" for v in values]
    stored = [
        form.last.stored_vector(f"Y + m * N + n0 + {16 * h}", f"n0 + {16 * h}", f"v{h}", form.made, form.result)
        for h in halves
    ]
    vector = ALL_VECTORS[form.made]
    body = f"""
  const int m0 = (int)get_global_id(0) * per_item, rows = min(per_item, M - m0);
  const int n0 = (int)get_global_id(1) * 32, c1 = min(32, N - n0), K4 = (K + 3) / 4, low = {left};
  __global const int* const b = B + (int)get_global_id(1) * (K4 + 1) * 32;
  int t[{_MOST * PANEL}] __attribute__((aligned(64)));
  uint r[{_MOST}], zeros[32];
  float f[32];
  for (int j = 0; j < 32; j++) {{
    const int n = n0 + min(j, c1 - 1);
    zeros[j] = (uint)(int)({right});
    {f"f[j] = {scale};" if form.scaled else ""}
  }}
  $_tiles(rows, A + m0 * K, K, b, t, r);
  for (int i = 0; i < rows; i++) {{
    const int m = m0 + i;
    {sums}
    const {vector} v0 = {values[0]}, v1 = {values[1]};
    {form.last.rows("m")}
    {f"if (c1 == 32) {{ {' '.join(stored)} continue; }}" if form.last.vector else ""}
    {vector.removesuffix("16")} o[32];
    vstore16(v0, 0, o); vstore16(v1, 1, o);
    for (int j = 0; j < c1; j++) {form.last.element(form.made, "Y", "m * N + n0 + j", "n0 + j", "o[j]", form.result)}
  }}"""
    helpers = FETCH + _DOT + "".join(_tile(h, form) for h in range(1, TILE + 1)) + _tiles(form) + form.last.helpers
    one = "__attribute__((reqd_work_group_size(1, 1, 1)))"
    ints = ("M", "N", "K", "zb_column", "sb_column", *form.last.ints, "per_item")
    return kernel(f"{form.name}_bytes", form.buffers, ints, body, helpers=helpers, attributes=one)


def _tiles(form: _IntegerProductForm) -> str:
    """The function that multiplies all rows of a work-item by a panel, in tiles of every height as `add_tiles` does."""
    cases = " ".join(f"case {h}: $_tile{h}(a + i * K, K, b, t + i * 32, r + i); break;" for h in range(1, TILE + 1))
    return f"""
inline void $_tiles(int rows, __global const {form.a.c}* a, int K, __global const int* b, int* t, uint* r) {{
  int i = 0;
  for (int tiles = (rows + {TILE - 1}) / {TILE}; tiles > 0; tiles--) {{
    const int height = (rows - i) / tiles;
    switch (height) {{ {cases} }}
    i += height;
  }}
}}"""


def _tile(height: int, form: _IntegerProductForm) -> str:
    """The function that multiplies a tile's rows by a panel, and sums the rows where that matters."""
    each = range(height)
    flip = "^ 0x80808080u" if form.a is INT8 else ""
    rows = " ".join(f"__global const {form.a.c}* a{i} = a + {i} * K; int16 p{i} = 0, q{i} = 0;" for i in each)
    add = "r{i} = $_dot(r{i}, v, (int16)(0x01010101));" if form.sums else ""
    rows += " ".join(f" int16 r{i} = 0;" for i in each) if form.sums else ""
    multiply = f"p{{i}} = $_dot(p{{i}}, v, b0); q{{i}} = $_dot(q{{i}}, v, b1); {add}"
    whole = " ".join(f"v = as_uint(vload4(k, a{i})) {flip}; {multiply.format(i=i)}" for i in each)
    part = " ".join(
        f"v = 0; for (int j = 0; j < (K & 3); j++) v |= ((uint)(uchar)a{i}[K / 4 * 4 + j] {flip and '^ 0x80u'}) << (8 * j);"
        f" {multiply.format(i=i)}"
        for i in each
    )
    store = " ".join(f"vstore16(p{i}, {2 * i}, t); vstore16(q{i}, {2 * i + 1}, t);" for i in each)
    store += " ".join(f" r[{i}] = (uint)r{i}.s0;" for i in each) if form.sums else ""
    return f"""
inline void $_tile{height}(__global const {form.a.c}* a, int K, __global const int* b, int* t, uint* r) {{
  {rows}
  uint v;
  for (int k = 0; k < K / 4; k++, b += 32) {{
    const int16 b0 = vload16(0, b), b1 = vload16(1, b);
    ASYNCRT_FETCH(b + {AHEAD}); ASYNCRT_FETCH(b + {AHEAD + 16});
    {whole}
  }}
  if (K & 3) {{
    const int16 b0 = vload16(0, b), b1 = vload16(1, b);
    {part}
  }}
  {store}
}}"""
