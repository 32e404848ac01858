"""Products of 8-bit integers by constant weights on CPU devices, summed in 32 bits.

A work-item computes some rows of 32 columns. Four bytes of a row lie in one number, against those of 32 columns, as
processors with VNNI multiply them; for others they are widened (`tiles.py`). Unsigned bytes are multiplied by signed
ones, so 128 is added to signed bytes on the left, or subtracted from unsigned ones on the right, and likewise their zero
points; with sums of rows and of columns

    sum (a - za) (w - zw)  =  sum a w  -  za sum w  -  zw (sum a - K za)

Sums wrap around, as 32-bit integers do, so the result is exact wherever it fits, whatever the order.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from asyncrt.devices.base import Registers
from asyncrt.devices.opencl.dot_product import DOT
from asyncrt.kernels.codegen import epilogue
from asyncrt.kernels.codegen.alignment import fake_alignment
from asyncrt.kernels.codegen.epilogue import Epilogue, bind
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.codegen.tiles import AHEAD, FETCH, PANEL, tile_of
from asyncrt.kernels.codegen.vectors import ALL_VECTORS
from asyncrt.kernels.impl import Impl, KernelSource, Launch, Ref, WeightsRequest, inp, out, weights
from asyncrt.kernels.matmul.cpu import rows_per_item
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32, INT8, INT32, UINT8, Array, DataType
from asyncrt.memory.own_pages import zeros

from .quantize import bounds, whole16
from .tiles import DEPTH, WIDEN, Rows, add_tiles

_MOST = 64  # rows of a work-item
_FEW = 2  # rows for which a panel is widened in registers


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
    packed = zeros((panels, steps + 1, PANEL), np.int32)
    for i in range(panels):  # one by one, so that there is no second copy of a large matrix
        part = np.zeros((4 * steps, PANEL), np.int8)
        columns = matrix[:, i * PANEL : (i + 1) * PANEL]
        if columns.dtype == np.uint8:
            columns = (columns ^ 0x80).view(np.int8)
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
    last = bind(after, shape, integers=True, converts=True)
    result = p.made if after is None or after.result is None else after.result
    a_zero, w_zero = p.zeros
    form = _IntegerProductForm(
        p.name, p.a, p.w, a_zero is not None, w_zero is not None, not p.neutral, p.scales is not None,
        p.scales is not None and p.scales.result is not None, p.made, result, last.form, traits.registers,
    )  # fmt: skip
    refs = (inp(0), weights(0), out(0), *(zero for zero in p.zeros if zero is not None))
    steps = (int(p.per_column), 0)
    if p.scales is not None:
        refs += (p.scales.left, p.scales.right, *(p.scales.result or ()))
        steps = (int(p.per_column), int(p.scales.per_column))
    panels = -(-p.columns // PANEL)
    tile = tile_of(traits.registers).rows
    rows = rows_per_item(fake_alignment(p.rows, tile), tile, panels, traits.compute_units)
    launch = Launch(
        _kernel(form), (*refs, *last.refs), (p.rows, p.columns, p.depth, *steps, *last.ints, rows),
        (-(-p.rows // rows), panels), (1, 1), varying=(0,),
    )  # fmt: skip
    request = WeightsRequest(p.weights, "bytes32", pack_bytes, panels * (-(-p.depth // 4) + 1) * PANEL)
    return Impl(f"bytes {tile}x{PANEL}, packed", (launch,), weights=(request,))


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
    registers: Registers

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
        values = [whole16(f"clamp(rint({v}) + (float)zy[0], {least}, {greatest})") for v in values]
    whole = ""
    if form.last.vector:
        stores = (
            form.last.stored_vector(f"Y + m * N + n0 + {16 * h}", f"n0 + {16 * h}", f"v{h}", form.made, form.result)
            for h in halves
        )
        whole = f"if (c1 == 32) {{ {' '.join(stores)} continue; }}"
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
  $_multiply(rows, (__global const uchar*)A + m0 * K, K, b, t, r);
  for (int i = 0; i < rows; i++) {{
    const int m = m0 + i;
    {sums}
    const {vector} v0 = {values[0]}, v1 = {values[1]};
    {form.last.rows("m")}
    {whole}
    {vector.removesuffix("16")} o[32];
    vstore16(v0, 0, o); vstore16(v1, 1, o);
    for (int j = 0; j < c1; j++) {form.last.element(form.made, "Y", "m * N + n0 + j", "n0 + j", "o[j]", form.result)}
  }}"""
    helpers = multiply_bytes(form.registers, form.a, sums=form.sums) + form.last.helpers
    one = "__attribute__((reqd_work_group_size(1, 1, 1)))"
    ints = ("M", "N", "K", "zb_column", "sb_column", *form.last.ints, "per_item")
    return kernel(f"{form.name}_bytes", form.buffers, ints, body, helpers=helpers, attributes=one)


def multiply_bytes(registers: Registers, a: DataType, *, sums: bool) -> str:
    """Return ``$_multiply(rows, a, K, b, t, r)``: rows of K bytes times a packed panel, into ``t``, ``[rows, 32]``.

    Args:
        a: Of the rows' bytes.
        sums: Whether the sums of the rows matter, which go to ``r``.
    """
    flip, flip_one = (" ^ 0x80808080u", " ^ 0x80u") if a is INT8 else ("", "")
    summed = "for (int i = 0; i < rows; i++) r[i] = $_sum(a + i * K, K);" if sums else ""
    return f"""{FETCH}{DOT}
inline uint8 $_numbers(__global const uchar* a) {{
  return (uint8)(as_uint4(vload16(0, a)), as_uint4(vload16(1, a))){flip};
}}
inline uint $_number(__global const uchar* a, int bytes) {{
  uint v = 0;
  for (int j = 0; j < bytes; j++) v |= ((uint)a[j]{flip_one}) << (8 * j);
  return v;
}}
{_SUM if sums else ""}
#if $_NUMBERS == 1
{_multiply_bytes(registers, flip)}
#else
{_multiply_shorts(registers)}
#endif
inline void $_multiply(int rows, __global const uchar* a, int K, __global const int* b, int* t, uint* r) {{
  {summed}
  $_add(rows, a, K, b, t);
}}"""


_FETCH = f"ASYNCRT_FETCH({{p}} + {AHEAD}); ASYNCRT_FETCH({{p}} + {AHEAD + 16});"

# The sum of a row's bytes, as unsigned ones.
_SUM = """
inline uint $_sum(__global const uchar* a, int bytes) {
  uint8 sum = 0;
  for (; bytes >= 32; bytes -= 32, a += 32) {
    const uint8 v = $_numbers(a), two = (v & 0x00ff00ffu) + ((v >> 8) & 0x00ff00ffu);
    sum += (two & 0xffffu) + (two >> 16);
  }
  for (; bytes > 0; bytes--, a++) sum.s0 += $_number(a, 1);
  const uint4 four = sum.lo + sum.hi;
  return four.x + four.y + four.z + four.w;
}"""


def _multiply_bytes(registers: Registers, flip: str) -> str:
    """``$_add(rows, a, K, b, t)`` where four bytes are a number: they are multiplied where they lie."""
    rows = Rows(
        "__global const uchar", f"(int)(as_uint(vload4({{k}}, {{a}})){flip})", True, "0",
        "(int)$_number({a} + 4 * depth, step & 3)",
    )  # fmt: skip
    return f"""{add_tiles(registers, rows, "__global", fetch=_FETCH.format(p="row"))}
inline void $_add(int rows, __global const uchar* a, int K, __global const int* b, int* t) {{
  $_tiles(rows, a, K, b, K / 4, t);
}}"""


def _multiply_shorts(registers: Registers) -> str:
    """``$_add(rows, a, K, b, t)`` where two shorts are a number: bytes are widened, a block of the depth at a time."""
    few = " ".join(f"if (rows == {h}) {{ $_few{h}(left, b, steps, t); continue; }}" for h in range(1, _FEW + 1))
    return f"""{WIDEN}{add_tiles(registers, Rows("const int", "{a}[{k}]", True), "")}
{"".join(map(_few, range(1, _FEW + 1)))}
inline void $_widen(__global const int* b, int steps, int* panel) {{
  for (int k = 0; k < steps; k++, b += {PANEL}, panel += {PANEL}) {{
    {_FETCH.format(p="b")}
    for (int i = 0; i < {PANEL}; i += 8) {{
      const int8 w = vload8(0, b + i);
      vstore8($_low(w), 0, panel + i); vstore8($_high(w), 0, panel + steps * {PANEL} + i);
    }}
  }}
}}
inline void $_take(__global const uchar* a, int bytes, int* to) {{
  const int steps = (bytes + 3) / 4;
  int k = 0;
  for (; k + 8 <= bytes / 4; k += 8) {{
    const uint8 v = $_numbers(a + 4 * k);
    vstore8(as_int8(v & 0x00ff00ffu), 0, to + k); vstore8(as_int8((v >> 8) & 0x00ff00ffu), 0, to + steps + k);
  }}
  for (; k < steps; k++) {{
    const uint v = $_number(a + 4 * k, min(4, bytes - 4 * k));
    to[k] = (int)(v & 0x00ff00ffu); to[steps + k] = (int)((v >> 8) & 0x00ff00ffu);
  }}
}}
inline void $_add(int rows, __global const uchar* a, int K, __global const int* b, int* t) {{
  int left[{_MOST * DEPTH}] __attribute__((aligned(64))), panel[{DEPTH * PANEL}] __attribute__((aligned(64)));
  for (int i = 0; i < 2 * rows; i++) vstore16((int16)(0), i, t);
  for (int k = 0; k < K; k += {2 * DEPTH}, b += {DEPTH // 2 * PANEL}) {{
    const int bytes = min({2 * DEPTH}, K - k), steps = (bytes + 3) / 4;
    for (int i = 0; i < rows; i++) $_take(a + i * K + k, bytes, left + i * {DEPTH});
    {few}
    $_widen(b, steps, panel);
    $_tiles(rows, left, {DEPTH}, panel, 2 * steps, t);
  }}
}}"""


def _few(height: int) -> str:
    """``$_few<height>``: a few rows, widened, times a panel that is widened for them alone, so that it streams by."""
    each, vectors = range(height), range(PANEL // 16)
    load = " ".join(f"int16 s{i}_{v} = vload16({2 * i + v}, t);" for i in each for v in vectors)
    panel = " ".join(
        f"const int16 w{v} = vload16({v}, b), low{v} = $_low(w{v}), high{v} = $_high(w{v});" for v in vectors
    )
    multiply = " ".join(
        f"u = (int16)(left[{i * DEPTH} + {at}]); " + " ".join(f"s{i}_{v} = $_dot(s{i}_{v}, u, {half}{v});" for v in vectors)
        for i in each
        for half, at in (("low", "k"), ("high", "steps + k"))
    )
    store = " ".join(f"vstore16(s{i}_{v}, {2 * i + v}, t);" for i in each for v in vectors)
    return f"""
inline void $_few{height}(const int* left, __global const int* b, int steps, int* t) {{
  {load}
  for (int k = 0; k < steps; k++, b += {PANEL}) {{
    {panel}
    int16 u;
    {_FETCH.format(p="b")}
    {multiply}
  }}
  {store}
}}"""
