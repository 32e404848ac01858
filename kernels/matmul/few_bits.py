"""Products of float32 by constant weights of 2, 4 or 8 bits on CPU devices: how they are packed, and how they become floats.

A weight is ``(number - zero) * scale``; each block of a column's elements has a scale, and it may have a zero point.
Panels have 32 columns, as those of float32 have. A word of 32 bits holds elements of one column that follow each other:
element e begins at bit ``8 (e % 4) + bits (e // 4)``, so that what a mask leaves of a word are neighbours, a byte each.
Every kernel calculates a weight the same way and adds up one chain of ``fma`` over k, so that no bit of a result depends
on how many rows there are.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from asyncrt.devices.opencl.dot_product import LOOKUP, LOOKUP_WANTED
from asyncrt.kernels.codegen.tiles import AHEAD, PANEL
from asyncrt.kernels.impl import WeightsRequest
from asyncrt.layout import FLOAT32, UINT8, Array
from asyncrt.memory.own_pages import zeros

from .interface import FewBits


class BitsOperand(NamedTuple):
    """A constant right-hand side of few bits, ``[K, N]``: the node's inputs that it is made of.

    Attributes:
        block: Elements of a column that have a scale, and a zero point, together.
        zeros: None where there are none; what half of the numbers are above is subtracted then, when they are packed.
    """

    few: FewBits
    columns: int
    block: int
    words: int
    scales: int
    zeros: int | None

    def requests(self, depth: int) -> tuple[WeightsRequest, ...]:
        """Return what is asked for: words, scales, and zero points if there are any."""
        bits, n, panels, blocks = self.few.bits, self.columns, -(-self.columns // PANEL), -(-depth // self.block)
        pack = functools.partial(pack_words, columns=n, bits=bits, signed=self.zeros is None)
        spread, each = functools.partial(pack_scales, columns=n), panels * blocks * PANEL
        named = f"words of {n}, {bits} bits{', signed' if self.zeros is None else ''}"
        requests = [
            WeightsRequest(self.words, named, pack, each * self.block // self.few.numbers),
            WeightsRequest(self.scales, f"blocks of {n}", spread, each),
        ]
        if self.zeros is not None and self.few.zeros is UINT8:
            bytes_ = functools.partial(pack_zeros, columns=n, blocks=blocks, bits=bits)
            requests.append(WeightsRequest(self.zeros, f"zeros of {n}, {bits} bits", bytes_, each))
        elif self.zeros is not None:
            requests.append(WeightsRequest(self.zeros, f"blocks of {n}", spread, each))
        return tuple(requests)


def pack_words(matrix: Array, *, columns: int, bits: int, signed: bool) -> Array:
    """Return numbers, column by column and the first in the lowest bits, in any shape, as ``[panels, words, 32]``.

    Args:
        signed: What half of the numbers are above is subtracted from each.
    """
    flip = np.uint32(sum(1 << (bits * e + bits - 1) for e in range(32 // bits)) if signed else 0)
    words = np.ascontiguousarray(matrix.reshape(columns, -1)).view("<u4")
    n, count = words.shape
    packed = zeros((-(-n // PANEL), count, PANEL), np.uint32)
    for i, panel in enumerate(packed):  # one by one, so that there is no second copy of a large matrix
        part = words[i * PANEL : (i + 1) * PANEL].T
        panel[:, : part.shape[1]] = _spread(part ^ flip, bits)
    return packed


def _spread(words: Array, bits: int) -> Array:
    """Return words in which element e is at bit ``8 (e % 4) + bits (e // 4)``, of those in which it is at ``bits e``."""
    if bits == 8:
        return words
    mask, made = np.uint32((1 << bits) - 1), np.zeros_like(words)
    for e in range(32 // bits):
        made |= (words >> np.uint32(bits * e) & mask) << np.uint32(shift(e, bits))
    return made


def shift(e: int, bits: int) -> int:
    """Return at which bit of a packed word element *e* begins."""
    return 8 * (e % 4) + bits * (e // 4)


def pack_scales(scales: Array, *, columns: int) -> Array:
    """Return what each block of each column has, ``[N, blocks]`` in any shape, as ``[panels, blocks, 32]``."""
    rows = scales.reshape(columns, -1)
    packed = zeros((-(-columns // PANEL), rows.shape[1], PANEL), rows.dtype)
    for i, panel in enumerate(packed):
        part = rows[i * PANEL : (i + 1) * PANEL].T
        panel[:, : part.shape[1]] = part
    return packed


def pack_zeros(zeros: Array, *, columns: int, blocks: int, bits: int) -> Array:
    """Return zero points, those of a column packed in bytes, as `pack_scales` does: a byte each."""
    rows = zeros.reshape(columns, -1)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    wide = (rows[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return pack_scales(wide.reshape(columns, -1)[:, :blocks], columns=columns)


def numbers(few: FewBits) -> str:
    """Return ``$_number(w, s)``: of each of 16 words the number that begins at bit s.

    Numbers of 4 or 2 bits are looked up where that is one instruction: it takes the lowest four bits, and needs no mask.
    """
    bits, signed = few.bits, few.zeros is None
    number = f"as_int16(w << ({32 - bits} - s)) >> {32 - bits}" if signed else f"as_int16(w >> s) & {(1 << bits) - 1}"
    converted = f"inline float16 $_number(uint16 w, uint s) {{ return convert_float16({number}); }}"
    if bits > 4:
        return f"\n{converted}"
    half, every = 1 << (bits - 1), (i % (1 << bits) for i in range(16))
    table = ", ".join(f"{n - 2 * half if signed and n >= half else n}.0f" for n in every)
    return f"""{LOOKUP}
#ifdef {LOOKUP_WANTED}
inline float16 $_number(uint16 w, uint s) {{ return $_looked_up((float16)({table}), w >> s); }}
#else
{converted}
#endif"""


def _block(few: FewBits, p: str, b: str) -> list[str]:
    """Declare ``f<p>_<v>``, the scales of block *b* of panel p, and ``o<p>_<v>``, its zero points if there are any."""
    lines = []
    for v in range(PANEL // 16):
        at = f"({b}) * {PANEL} + {16 * v}"
        lines.append(f"const float16 f{p}_{v} = vload16(0, s{p} + {at});")
        if few.zeros is not None:
            load = f"vload16(0, z{p} + {at})"
            lines.append(f"const float16 o{p}_{v} = {load if few.zeros is FLOAT32 else f'convert_float16({load})'};")
    return lines


def _weight(few: FewBits, p: str, v: int, at: str) -> str:
    number = f"$_number(w{p}_{v}, {at})"
    return f"({number if few.zeros is None else f'({number} - o{p}_{v})'} * f{p}_{v})"


def panel_at(few: FewBits, panel: str) -> list[str]:
    """Return where *panel* of a packed matrix is, as the arguments that `widen_panel` and `pair_tile` take first."""
    z = [] if few.zeros is None else [f"Z + {panel} * blocks * {PANEL}"]
    return [f"B + {panel} * blocks * (block / {few.numbers}) * {PANEL}", f"S + {panel} * blocks * {PANEL}", *z]


BLOCKS = "const int blocks = (K + block - 1) / block;"
"""What `panel_at` needs."""


def widen_panel(few: FewBits) -> str:
    """Return ``$_widen(b, s, z, k, depth, block, panel)``: *depth* rows of a panel from row *k* on, as float32.

    Both are multiples of 64, or what is left behind the last one; as many rows as their words hold are written.
    """
    z = "" if few.zeros is None else f"__global const {few.zeros.c}* z, "
    each = "\n".join(
        f"vstore16({_weight(few, '', v, f'{shift(e, few.bits)}u')}, {v}, panel + {e * PANEL});"
        for e in range(few.numbers)
        for v in range(PANEL // 16)
    )
    words = ", ".join(f"w_{v} = vload16({v}, b)" for v in range(PANEL // 16))
    return f"""
inline void $_widen(
    __global const uint* b, __global const float* s, {z}int k, int depth, int block, float* panel) {{
  b += k / {few.numbers} * {PANEL};
  for (int e = 0; e < depth; e += block) {{
    {" ".join(_block(few, "", "(k + e) / block"))}
    for (const float* const end = panel + min(block, depth - e) * {PANEL}; panel < end;
         b += {PANEL}, panel += {few.numbers * PANEL}) {{
      const uint16 {words};
      ASYNCRT_FETCH(b + {AHEAD});
      {each}
    }}
  }}
}}"""


def pair_tile(few: FewBits, height: int) -> str:
    """Return ``$_pair<height>(b, s, z, a, sa_m, other, K, block, t)``: the products of a few rows and two panels.

    The second panel is ``other`` panels behind the first, 1 or 0; ``t`` is ``[2, height, 32]``.
    """
    r, panels, vectors = range(height), range(2), range(PANEL // 16)
    z = "" if few.zeros is None else f"__global const {few.zeros.c}* z, "
    each = [(p, v) for p in panels for v in vectors]
    rows = " ".join(f"__global const float* a{i} = a + {i} * sa_m;" for i in r)
    sums = " ".join(f"float16 t{p}{i}_{v} = 0.0f;" for p, v in each for i in r)
    places = " ".join(
        f"__global const uint* b{p} = b + {p} * other * words * {PANEL};"
        f" __global const float* const s{p} = s + {p} * other * blocks * {PANEL};"
        + ("" if few.zeros is None else f" __global const {few.zeros.c}* const z{p} = z + {p} * other * blocks * {PANEL};")
        for p in panels
    )
    heads = " ".join(line for p in panels for line in _block(few, str(p), "i"))
    load = " ".join(
        f"const uint16 {', '.join(f'w{p}_{v} = vload16({v}, b{p})' for v in vectors)};"
        f" ASYNCRT_FETCH(b{p} + ahead); ASYNCRT_FETCH(b{p} + ahead + 16); b{p} += {PANEL};"
        for p in panels
    )

    def multiply(at: str, bit: str) -> str:
        factors = " ".join(f"const float16 v{i} = a{i}[{at}];" for i in r)
        one = " ".join(
            f"{{ const float16 w = {_weight(few, str(p), v, bit)}; "
            + " ".join(f"t{p}{i}_{v} = fma(v{i}, w, t{p}{i}_{v});" for i in r)
            + " }"
            for p, v in each
        )
        return f"{{ {factors} {one} }}"

    whole = "\n      ".join(multiply(f"k + {e}", f"{shift(e, few.bits)}u") for e in range(few.numbers))
    store = " ".join(
        f"vstore16(t{p}{i}_{v}, {(p * height + i) * (PANEL // 16) + v}, t);" for p, v in each for i in r
    )
    return f"""
inline void $_pair{height}(
    __global const uint* b, __global const float* s, {z}__global const float* a, int sa_m, int other, int K, int block,
    float* t) {{
  const int blocks = (K + block - 1) / block, words = blocks * (block / {few.numbers});
  {rows}
  {sums}
  {places}
  for (int i = 0, k = 0; i < blocks; i++) {{
    // So many words on, where the next two panels follow this pair.
    const int end = min(k + block, K), next = (k / {few.numbers} + {AHEAD // PANEL}) / words;
    const int ahead = {AHEAD} + next * words * {PANEL};
    {heads}
    for (; k + {few.numbers} <= end; k += {few.numbers}) {{
      {load}
      {whole}
    }}
    if (k < end) {{
      {load}
      for (int e = 0; k < end; e++, k++) {multiply("k", f"(uint)(8 * (e % 4) + {few.bits} * (e / 4))")}
    }}
  }}
  {store}
}}"""
