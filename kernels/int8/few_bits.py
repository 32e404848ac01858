"""Products of rows that are rounded to 8 bits by constant weights of 2, 4 or 8 bits, summed in 32 bits.

Where a file allows that much (`accuracy_level` of MatMulNBits), each block of a row is rounded to signed bytes with a scale
of its own. Then four neighbours of a row are multiplied at once by what a mask leaves of a packed word
(`matmul/few_bits.py`), by VNNI, or where numbers are below 16 in pairs that 16 bits hold, and with the sum x of a block's bytes

    sum over blocks of  row scale * scale * (sum a w  -  zero * x)

On CPU devices a work-item rounds its rows once, into memory of its own, and multiplies them by some panels. Elsewhere rows
are rounded by a launch, to floats, and the product is that of floats.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from asyncrt.devices.base import Registers
from asyncrt.devices.opencl.dot_product import DOT, SMALL_DOT
from asyncrt.kernels.arithmetic import greatest, least
from asyncrt.kernels.codegen.epilogue import Bound
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.codegen.tiles import AHEAD, FETCH, PANEL
from asyncrt.kernels.impl import Impl, KernelSource, Launch, Ref, scratch
from asyncrt.kernels.matmul.cpu import stored_row
from asyncrt.kernels.matmul.few_bits import BLOCKS, BitsOperand, panel_at
from asyncrt.kernels.matmul.interface import FewBits, ProductForm
from asyncrt.kernels.matmul.product import Operand, bits_arguments
from asyncrt.kernels.patterns.walk import WalkedBuffer, walk
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32, INT32, Array, DataType

from .quantize import HELPERS, divided
from .tiles import WIDEN

_ITEMS = 4  # work-items for each core
_VECTORS = PANEL // 16
_LEAST = 1e-30  # what is below it in a block is 0


class _Form(NamedTuple):
    """What the source of the kernel depends on: the product, and rows of a tile."""

    product: ProductForm
    few: FewBits
    rows: int


def rounded_rows(x: Array, block: int) -> Array:
    """Return ``[..., K]`` float32 as it is after rounding; a block with what is not finite becomes NaN."""
    k = x.shape[-1]
    padded = np.zeros((*x.shape[:-1], -(-k // block) * block), np.float32)
    padded[..., :k] = x
    blocks = padded.reshape(*x.shape[:-1], -1, block)
    with np.errstate(all="ignore"):
        most = np.abs(blocks).max(axis=-1, keepdims=True)
        some = most > np.float32(_LEAST)
        rounded = np.rint(blocks * np.where(some, np.float32(127) / most, np.float32(0)))
        scale = np.where(some, most / np.float32(127), np.float32(0))
        scale = np.where(np.isfinite(most), scale, np.float32(np.nan))
        made: Array = (rounded * scale).astype(np.float32)
    return made.reshape(padded.shape)[..., :k]


def round_rows(x: Ref, to: Ref, rows: int, k: int, block: int, traits: DeviceTraits) -> Launch | None:
    """Return the launch that does the same, for devices that multiply floats."""
    statement = f"""{{
    const int r = i / blocks, k0 = (i - r * blocks) * block, n = min(block, k - k0);
    __global const float* a = x + r * k + k0;
    __global float* y = to + r * k + k0;
    float most = 0.0f, wrong = 0.0f;
    for (int e = 0; e < n; e++) {{ most = fmax(most, fabs(a[e])); wrong += a[e] - a[e]; }}
    const bool some = most > {_LEAST}f;
    const float up = some ? {divided("127.0f", "most", traits)} : 0.0f;
    const float scale = (some ? {divided("most", "127.0f", traits)} : 0.0f) + wrong;
    for (int e = 0; e < n; e++) y[e] = rint(a[e] * up) * scale;
    }}"""
    buffers = [WalkedBuffer("x", x, FLOAT32, "r"), WalkedBuffer("to", to, FLOAT32, "w")]
    blocks = -(-k // block)
    ints = (("blocks", blocks), ("block", block), ("k", k))
    return walk("round_rows", statement, (rows * blocks,), buffers, traits, ints=ints, work=4 * block, helpers=HELPERS)


def rounded_product(
    name: str, a: Operand, b: BitsOperand, target: Ref, last: Bound, traits: DeviceTraits, bias: Ref | None = None
) -> Impl:
    """Return the implementation on CPU devices of a product as `matmul_few_bits` has it."""
    rows, depth = a.view.shape
    tall = 1 if rows == 1 else 2 if rows == 2 else _tile_rows(traits.registers)
    product, refs, ints = bits_arguments(name, a, b, target, last, traits, bias)
    form = _Form(product, b.few, tall)
    tiles, panels = -(-rows // tall), -(-b.columns // PANEL)
    spans = least(panels, greatest(1, -(-_ITEMS * traits.compute_units // tiles)))
    span = -(-panels // spans)
    spans = -(-panels // span)
    nbytes = tiles * spans * tall * -(-depth // b.block)
    launch = Launch(
        _kernel(form), (*refs, scratch(0), scratch(1)), (*ints, span), (tiles, spans), (1, 1), varying=(0,)
    )
    return Impl(f"{b.few.bits} bits by 8, packed", (launch,), (nbytes * b.block, nbytes * 8), b.requests(depth))


def _tile_rows(registers: Registers) -> int:
    """Return of how many rows the sums are in registers, in integers and in floats."""
    return 4 if registers.capacity >= 512 else 2


@functools.cache
def _kernel(form: _Form) -> KernelSource:
    product, tall = form.product, form.rows
    stored = " ".join(f"vstore16(t{r}_{v}, {r * _VECTORS + v}, t);" for r in range(tall) for v in range(_VECTORS))
    body = f"""
  const int first = 0, m0 = (int)get_global_id(0) * {tall}, rows = min({tall}, M - m0);
  const int p0 = (int)get_global_id(1) * span, last = min(p0 + span, (N + 31) / 32);
  {BLOCKS}
  const int item = ((int)get_global_id(0) * (int)get_global_size(1) + (int)get_global_id(1)) * {tall};
  __global int* const q = Q + item * blocks * (block / 4);
  __global float* const d = D + item * blocks * 2;
  for (int r = 0; r < {tall}; r++)
    $_round(A + (m0 + min(r, rows - 1)) * K, K, block, q + r * blocks * (block / 4), d + r * blocks * 2);
  float t[{tall * PANEL}] __attribute__((aligned(64)));
  for (int p = p0; p < last; p++) {{
    {{ {_tile(form)} {stored} }}
    for (int i = 0; i < rows; i++) {{
      const int m = m0 + i, n0 = p * 32, c0 = 0, c1 = min(32, N - n0);
      const float* const sums = t + i * 32;
      {stored_row(product)}
    }}
  }}"""
    buffers: tuple[tuple[str, DataType, str], ...] = (*product.buffers, ("Q", INT32, "rw"), ("D", FLOAT32, "rw"))
    helpers = product.last.helpers + FETCH + DOT + SMALL_DOT + WIDEN + _ROUND
    one = "__attribute__((reqd_work_group_size(1, 1, 1)))"
    return kernel(f"{product.name}_bytes", buffers, (*product.ints, "span"), body, helpers=helpers, attributes=one)


# The most and the sum of 16 numbers.
_ACROSS = """
inline float $_most(float16 v) {
  const float8 a = fmax(v.lo, v.hi);
  const float4 b = fmax(a.lo, a.hi);
  return fmax(fmax(b.x, b.y), fmax(b.z, b.w));
}
inline int $_total(int16 v) {
  const int8 a = v.lo + v.hi;
  const int4 b = a.lo + a.hi;
  return b.x + b.y + b.z + b.w;
}"""

_ROUND = f"""{_ACROSS}
inline float16 $_sixteen(__global const float* a, int n) {{
  if (n >= 16) return vload16(0, a);
  float t[16];
  for (int i = 0; i < 16; i++) t[i] = i < n ? a[i] : 0.0f;
  return vload16(0, t);
}}
// Rounds a row to q, four bytes in each number; each block gets its scale and the sum of its bytes.
inline void $_round(__global const float* a, int K, int block, __global int* q, __global float* d) {{
  for (int k = 0; k < K; k += block, d += 2) {{
    float16 most = 0.0f, wrong = 0.0f;
    for (int e = 0; e < block; e += 16) {{
      const float16 v = $_sixteen(a + k + e, K - k - e), size = fabs(v);
      most = size > most ? size : most; wrong += v - v;
    }}
    const float peak = $_most(most), off = dot(wrong.lo.lo + wrong.lo.hi + wrong.hi.lo + wrong.hi.hi, (float4)1.0f);
    const bool some = peak > {_LEAST}f;
    const float up = some ? 127.0f / peak : 0.0f;
    int16 sum = 0;
    for (int e = 0; e < block; e += 16, q += 4) {{
      const int16 v = convert_int16(rint($_sixteen(a + k + e, K - k - e) * up));
      sum += v;
      vstore4(as_int4(convert_char16(v)), 0, q);
    }}
    d[0] = (some ? peak / 127.0f : 0.0f) + off;
    d[1] = (float)$_total(sum);
  }}
}}"""


def _tile(form: _Form) -> str:
    """Statements that leave the results of panel ``p`` in ``t<row>_<vector>``.

    Panels are taken one by one, so that memory is read from one end to the other: two side by side take twice as long where
    they are short.
    """
    few, rows, vectors = form.few, range(form.rows), range(_VECTORS)
    names = ["__global const uint* b", "__global const float* s"]
    names += [] if few.zeros is None else [f"__global const {few.zeros.c}* z"]
    pointers = " ".join(f"{name} = {at};" for name, at in zip(names, panel_at(few, "p"), strict=True))
    sums = " ".join(f"float16 t{r}_{v} = 0.0f;" for r in rows for v in vectors)
    start = "0" if few.zeros is not None else f"{-(1 << (few.bits - 1))} * (int)d[({{r}} * blocks + i) * 2 + 1]"
    begin = " ".join(f"int16 i{r}_{v} = (int16)({start.format(r=r)});" for r in rows for v in vectors)
    load = ", ".join(f"w{v} = vload16({v}, b)" for v in vectors)
    heads = [f"const float16 f{v} = vload16({v}, s);" for v in vectors]
    if few.zeros is not None:
        zero = "vload16({v}, z)" if few.zeros is FLOAT32 else "convert_float16(vload16({v}, z))"
        heads += [f"const float16 o{v} = {zero.format(v=v)};" for v in vectors]
    ends = []
    for r in rows:
        scale, total = (f"d[({r} * blocks + i) * 2{more}]" for more in ("", " + 1"))
        for v in vectors:
            number = f"convert_float16(i{r}_{v})"
            number = number if few.zeros is None else f"fma(o{v}, (float16)(-{total}), {number})"
            ends.append(f"t{r}_{v} = fma({number} * {scale}, f{v}, t{r}_{v});")
    step = "\n        ".join(_dots(form, g) for g in range(8 // few.bits))
    return f"""{pointers}
    {sums}
    __global const int* a = q;
    for (int i = 0; i < blocks; i++) {{
      {begin}
      for (int k = 0; k < block; k += {few.numbers}, a += {few.numbers // 4}, b += {PANEL}) {{
        const uint16 {load};
        ASYNCRT_FETCH(b + {AHEAD}); ASYNCRT_FETCH(b + {AHEAD + 16});
        {step}
      }}
      {" ".join(heads)}
      {" ".join(ends)}
      s += {PANEL}; {"" if few.zeros is None else f"z += {PANEL};"}
    }}"""


def _dots(form: _Form, g: int) -> str:
    """Statements that multiply what a mask leaves of the words, moved by *g* numbers, by four bytes of each row."""
    few, vectors = form.few, range(_VECTORS)
    mask, flip = (sum(x << (8 * j) for j in range(4)) for x in ((1 << few.bits) - 1, 1 << (few.bits - 1)))
    moved = f"(w{{v}} >> {few.bits * g}u) & {mask}u"
    moved = moved if few.zeros is not None else f"({moved}) ^ {flip}u"  # unsigned again
    made = " ".join(f"const uint16 u{v} = {moved.format(v=v)};" for v in vectors)
    low, high = "as_int16(u{v} & 0x00ff00ffu)", "as_int16((u{v} >> 8) & 0x00ff00ffu)"
    dot, has = ("$_small_dot", "defined($_SMALL)") if few.bits <= 4 else ("$_dot", "$_NUMBERS == 1")
    four, two = [], []
    for r in range(form.rows):
        number = f"a[{r} * (blocks * (block / 4)) + {g}]"
        each = " ".join(f"i{r}_{v} = {dot}(i{r}_{v}, as_int16(u{v}), x);" for v in vectors)
        four.append(f"{{ const int16 x = (int16)({number}); {each} }}")
        each = " ".join(
            f"i{r}_{v} = $_dot($_dot(i{r}_{v}, {low.format(v=v)}, l), {high.format(v=v)}, h);" for v in vectors
        )
        two.append(f"{{ const int16 l = (int16)($_low({number})), h = (int16)($_high({number})); {each} }}")
    return f"""{{ {made}
#if {has}
        {" ".join(four)}
#else
        {" ".join(two)}
#endif
        }}"""
