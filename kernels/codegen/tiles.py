"""The innermost loops of products on CPU devices: tiles of some rows × 32 columns, whose sums stay in registers.

What matrix products and attention share, as OpenCL C functions. How many rows there are, and whether a tile's columns
are multiplied together or one half after the other, follows from the registers of the processor (`tile_of`). No bit of a
result does: each sum is one chain of ``fma``.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

from asyncrt.devices.base import Registers
from asyncrt.layout import FLOAT16, DataType

PANEL = 32  # columns: two float16
_MOST_ROWS = 8  # with 32 columns 16 sums of a float16, enough to hide the latency of fma
# Elements from what is multiplied to what is fetched: 8 KiB. Processors follow a stream of packed weights too closely to
# hide what memory takes to answer; with fewer, or with none, eight rows take half as long again.
AHEAD = 2048

# OpenCL's own `prefetch` is a call on CPU drivers that costs more than it saves.
FETCH = """
#if defined(ASYNCRT_CPU) && defined(__has_builtin)
#if __has_builtin(__builtin_prefetch)
#define ASYNCRT_FETCH(p) __builtin_prefetch((const void*)(size_t)(p))
#define ASYNCRT_FETCH_TO_WRITE(p) __builtin_prefetch((const void*)(size_t)(p), 1)
#endif
#endif
#ifndef ASYNCRT_FETCH
#define ASYNCRT_FETCH(p)
#define ASYNCRT_FETCH_TO_WRITE(p)
#endif
"""

# In front of loops that are no inner ones: a driver that unrolls them takes a quarter of a kernel's build for that.
ROLLED = """
#if defined(ASYNCRT_CPU) && defined(__clang__)
#define ASYNCRT_ROLLED _Pragma("nounroll")
#else
#define ASYNCRT_ROLLED
#endif
"""


class RegisterTile(NamedTuple):
    """Rows and columns whose sums are in registers at the same time, with what they are multiplied by.

    Attributes:
        rows: The most there are.
        columns: Multiplied together: 32, or 16 where that many rows leave no registers for more.
    """

    rows: int
    columns: int

    def passes(self, height: int, registers: Registers) -> int:
        """Return in how many passes *height* rows are multiplied with a panel: 1, or one for each half of it."""
        return 1 if height <= _rows(PANEL, registers) else PANEL // self.columns


def _rows(columns: int, registers: Registers) -> int:
    """Return of how many rows the sums are in registers, beside a row of the panel and one broadcast element."""
    return min(_MOST_ROWS, (registers.capacity - columns - registers.floats) // columns)


@functools.cache
def tile_of(registers: Registers) -> RegisterTile:
    """Return the tile that loads least for each multiplication: 8 × 32 with AVX-512, 6 × 16 with AVX2 or NEON."""

    def loads(columns: int) -> float:
        rows = _rows(columns, registers)
        return (rows + columns / registers.floats) / (rows * columns) if rows > 0 else float("inf")

    columns = min((PANEL, PANEL // 2), key=loads)
    return RegisterTile(max(1, _rows(columns, registers)), columns)


# One tile of rows fetches what is soon needed of its panel. Several have time for the next panel, and fetch a part of it
# each: else the first tile of every panel waits for memory, and the others leave it idle.
_FETCH_PLAN = f"""const int all = tiles, pace = ({PANEL - 1} + all) / all;
  int near = all > 1 ? {AHEAD} : {AHEAD + 16};
  __global const float* soon = b + (all > 1 ? depth * {PANEL} : {AHEAD});"""
_FETCH_NEXT = "soon += depth * pace; near = 0;"


def add_tiles(registers: Registers, a_space: str, b_space: str, sums_space: str, *, fetch: bool = False) -> str:
    """Return ``$_tiles(rows, a, sa_m, sa_k, b, step, depth, t)``, which adds the products of rows and a panel to sums.

    ``a`` holds *depth* elements of each row, ``b`` as many rows of 32 columns, ``t`` the sums, ``[rows, 32]``. There is a
    tile of every height up to `tile_of`'s rows, so that a new number of rows needs no other kernel and is not rounded up.

    Args:
        fetch: ``b`` is one of many panels that follow one another in memory: ask for them early.
    """
    return f"""{_heights(registers, a_space, b_space, sums_space, fetch, adds=True)}
inline void $_tiles(
    int rows, {a_space} const float* a, int sa_m, int sa_k, {b_space} const float* b, int step, int depth,
    {sums_space} float* t) {{
  {_walk(registers, "t + i * 32", "", fetch)}
}}"""


def tile_functions(registers: Registers, a_space: str, b_space: str, *, fetch: bool = False) -> str:
    """Return the functions that `walk_tiles` calls; the arguments are those of `add_tiles`."""
    return _heights(registers, a_space, b_space, "", fetch, adds=False)


def walk_tiles(registers: Registers, before: str, after: str, *, fetch: bool = False) -> str:
    """Return statements that multiply rows and a panel as `add_tiles` does, whose arguments are variables here.

    Sums begin as zeros, and ``t`` holds those of one tile: its ``height`` rows, from row ``i`` on.

    Args:
        before: Statements in front of a tile.
        after: Statements behind it, which find its sums in the nearest cache.
    """
    return _walk(registers, "t", before, fetch, after)


def _heights(registers: Registers, a_space: str, b_space: str, sums_space: str, fetch: bool, *, adds: bool) -> str:
    """Return the functions of tiles of all heights."""
    heights = range(1, tile_of(registers).rows + 1)
    each = "".join(_tile(h, registers, a_space, b_space, sums_space, fetch, adds) for h in heights)
    return f"{FETCH if fetch else ''}{each}"


def _walk(registers: Registers, sums: str, before: str, fetch: bool, after: str = "") -> str:
    """Return a loop over tiles of about equal height, whose sums are at *sums*."""
    most, more = tile_of(registers).rows, ", soon, pace, near" if fetch else ""
    cases = " ".join(
        f"case {h}: $_tile{h}(a + i * sa_m, sa_m, sa_k, b, step, depth, {sums}{more}); break;"
        for h in range(1, most + 1)
    )
    return f"""int i = 0, tiles = (rows + {most - 1}) / {most};
  {_FETCH_PLAN if fetch else ""}
  for (; tiles > 0; tiles--) {{
    const int height = (rows - i) / tiles;
    {before}
    switch (height) {{ {cases} }}
    {after}
    i += height;
    {_FETCH_NEXT if fetch else ""}
  }}"""


def _tile(
    height: int, registers: Registers, a_space: str, b_space: str, sums_space: str, fetch: bool, adds: bool
) -> str:
    """Return ``$_tile<height>``, which passes over the rows of a panel once, or once for each half of its columns."""
    passes = tile_of(registers).passes(height, registers)
    fetches = ["ASYNCRT_FETCH(soon); soon += pace;", "ASYNCRT_FETCH(row + near);"] if fetch else ["", ""]
    together = PANEL // 16 // passes  # vectors
    each = [
        _pass(height, range(p * together, (p + 1) * together), " ".join(fetches[p::passes]), b_space, adds)
        for p in range(passes)
    ]
    rows = " ".join(f"{a_space} const float* a{i} = a + {i} * sa_m;" for i in range(height))
    return f"""
inline void $_tile{height}(
    {a_space} const float* a, int sa_m, int sa_k, {b_space} const float* b, int step, int depth,
    {sums_space} float* t{", __global const float* soon, int pace, int near" if fetch else ""}) {{
  {rows}
  {" ".join(each)}
}}"""


def _pass(height: int, vectors: range, fetch: str, b_space: str, adds: bool) -> str:
    """Return statements for the products of *height* rows and some vectors of a panel's columns: sums, or added to them."""
    r, width = range(height), PANEL // 16
    load = " ".join(
        f"float16 s{i}_{v} = {f'vload16({width * i + v}, t)' if adds else '0.0f'};" for i in r for v in vectors
    )
    panel = ", ".join(f"b{v} = vload16({v}, row)" for v in vectors)
    multiply = " ".join(
        f"e = a{i}[k * sa_k]; " + " ".join(f"s{i}_{v} = fma(e, b{v}, s{i}_{v});" for v in vectors) for i in r
    )
    store = " ".join(f"vstore16(s{i}_{v}, {width * i + v}, t);" for i in r for v in vectors)
    return f"""{{
    {load}
    {b_space} const float* row = b;
    for (int k = 0; k < depth; k++, row += step) {{
      const float16 {panel}; float16 e;
      {fetch}
      {multiply}
    }}
    {store}
  }}"""


def widen_panel(space: str) -> str:
    """Return ``$_widen(b, depth, panel)``: *depth* rows of a panel of bfloat16 as float32.

    Each number of ``b`` holds columns i and i + 16 in its halves (`bf16_weights.pack_panels`), so a shift and a mask suffice.
    """
    return f"""{FETCH}
inline void $_widen(__global const uint* b, int depth, {space} float* panel) {{
  for (int k = 0; k < depth; k++, b += 16, panel += {PANEL}) {{
    ASYNCRT_FETCH(b + {AHEAD});
    const uint16 w = vload16(0, b);
    vstore16({LOW_HALF}, 0, panel); vstore16({HIGH_HALF}, 1, panel);
  }}
}}"""


LOW_HALF = "as_float16(w << 16)"
HIGH_HALF = "as_float16(w & 0xffff0000u)"


def pair_rows(registers: Registers) -> int:
    """Return of how many rows the sums with two whole panels are in registers."""
    return max(0, min(2, (registers.capacity - PANEL - registers.floats) // (2 * PANEL)))


def pair_tile(height: int, sums_space: str, *, narrow: bool = False) -> str:
    """Return ``$_pair<height>(a, sa_m, sa_k, b, other, depth, t)``: the products of a few rows and two packed panels.

    One or two rows times one panel are fewer chains of additions than it takes to keep up with what the caches give. The
    second panel is ``other`` elements behind the first, and ``t`` is ``[2, height, 32]``. Floats are not fetched early: so
    few rows follow memory as closely as the processor does by itself, and what is in its caches arrives a third sooner.

    Args:
        narrow: The panels are of bfloat16, as for `widen_panel`.
    """
    r, panels = range(height), range(2)
    element, step = ("uint", PANEL // 2) if narrow else ("float", PANEL)
    load = "const float16 l = vload16(0, b{w}), h = vload16(1, b{w});"
    if narrow:
        load = f"const uint16 w = vload16(0, b{{w}}); const float16 l = {LOW_HALF}, h = {HIGH_HALF}; ASYNCRT_FETCH(b{{w}} + {AHEAD});"
    rows = " ".join(f"__global const float* a{i} = a + {i} * sa_m;" for i in r)
    zero = " ".join(f"float16 s{w}{i}l = 0.0f, s{w}{i}h = 0.0f;" for w in panels for i in r)
    factors = " ".join(f"const float16 v{i} = a{i}[k * sa_k];" for i in r)
    multiply = " ".join(
        f"{{ {load.format(w=w)} "
        + " ".join(f"s{w}{i}l = fma(v{i}, l, s{w}{i}l); s{w}{i}h = fma(v{i}, h, s{w}{i}h);" for i in r)
        + " }"
        for w in panels
    )
    store = " ".join(
        f"vstore16(s{w}{i}l, {(w * height + i) * 2}, t); vstore16(s{w}{i}h, {(w * height + i) * 2 + 1}, t);"
        for w in panels
        for i in r
    )
    return f"""
inline void $_pair{height}(
    __global const float* a, int sa_m, int sa_k, __global const {element}* b, int other, int depth,
    {sums_space} float* t) {{
  {rows}
  {zero}
  __global const {element} *b0 = b, *b1 = b + other;
  for (int k = 0; k < depth; k++, b0 += {step}, b1 += {step}) {{
    {factors}
    {multiply}
  }}
  {store}
}}"""


def fill_panel(dtype: DataType, space: str) -> str:
    """Return ``$_fill(b, sb_k, sb_n, depth, left, panel)``: *depth* rows of 32 columns of a matrix, one after the other.

    Where there are only ``left`` columns the last is repeated. Where elements of a column are adjacent, 16 × 16 of them
    are turned at a time: in four steps, each of which interleaves every vector with the one eight places on.
    """
    loads = " ".join(f"float16 x{j} = {load16(dtype, f'b + min(c + {j}, left - 1) * sb_n')};" for j in range(16))
    steps, names = turn([f"x{j}" for j in range(16)], "y")
    stores = " ".join(f"vstore16({name}, 0, to + {PANEL * j});" for j, name in enumerate(names))
    return f"""
inline void $_turn(__global const {dtype.c}* b, int sb_n, int c, int left, {space} float* to) {{
  {loads}
  {steps}
  {stores}
}}
inline void $_fill(__global const {dtype.c}* b, int sb_k, int sb_n, int depth, int left, {space} float* panel) {{
  int k = 0;
  if (sb_k == 1)
    for (; k + 16 <= depth; k += 16)
      for (int c = 0; c < {PANEL}; c += 16) $_turn(b + k, sb_n, c, left, panel + k * {PANEL} + c);
  for (; k < depth; k++)
    for (int c = 0; c < {PANEL}; c++)
      panel[k * {PANEL} + c] = LOAD({dtype.name}, b, k * sb_k + min(c, left - 1) * sb_n);
}}"""


def turn(vectors: Sequence[str], prefix: str) -> tuple[str, list[str]]:
    """Return statements that turn 16 or 8 ``float16`` vectors, and the names of the results, which begin with *prefix*.

    The results have element 0 of all vectors first, then element 1 of all, and so on. Each step interleaves every vector
    with the one half of them on.
    """
    steps: list[str] = []
    names, half = list(vectors), len(vectors) // 2
    for step in range(half.bit_length()):
        made = [f"{prefix}{step}_{j}" for j in range(2 * half)]
        for j in range(half):
            for half_of, name in (("asyncrt_low", made[2 * j]), ("asyncrt_high", made[2 * j + 1])):
                steps.append(f"const float16 {name} = {half_of}({names[j]}, {names[j + half]});")
        names = made
    return " ".join(steps), names


def load16(dtype: DataType, at: str) -> str:
    """Return 16 adjacent elements of float32 or float16 as a ``float16`` vector."""
    return f"vload_half16(0, {at})" if dtype is FLOAT16 else f"vload16(0, {at})"


def store16(dtype: DataType, value: str, at: str) -> str:
    """Return the statement that stores a ``float16`` vector as 16 elements of float32 or float16."""
    return f"vstore_half16_rte({value}, 0, {at});" if dtype is FLOAT16 else f"vstore16({value}, 0, {at});"
