"""The innermost loops of products of 8-bit integers: tiles of some rows × 32 columns, whose sums stay in registers.

What matrix products and convolutions share, as OpenCL C functions. A step multiplies a number of each row by 32 numbers,
one for each column. A number holds four bytes where the processor multiplies those at once (VNNI), else two shorts: then
bytes are widened, a block of the depth at a time. Tiles follow the registers, as those of floats do.
"""

from __future__ import annotations

from typing import NamedTuple

from asyncrt.devices.base import Registers
from asyncrt.kernels.codegen.tiles import PANEL, tile_of

DEPTH = 64  # numbers of a row that are multiplied before the next block is widened: with 32 columns 8 KiB

# Where packed bytes have to be widened: bytes 0 and 2 of numbers to two shorts each, and bytes 1 and 3.
WIDEN = "".join(
    f"""
inline int{n} __attribute__((overloadable)) $_low(int{n} w) {{
  return as_int{n}((as_short{shorts}(w) << (short)8) >> (short)8);
}}
inline int{n} __attribute__((overloadable)) $_high(int{n} w) {{ return as_int{n}(as_short{shorts}(w) >> (short)8); }}"""
    for n, shorts in (("", 2), ("8", 16))
) + "".join(
    f"""
inline int16 __attribute__((overloadable)) $_{half}(int16 w) {{ return (int16)($_{half}(w.lo), $_{half}(w.hi)); }}"""
    for half in ("low", "high")
)


class Rows(NamedTuple):
    """What the rows of a product are, as OpenCL C.

    Attributes:
        row: Type of what a pointer to a row points to.
        number: Number ``k`` of row ``a``.
        unsigned: Whether their bytes are the unsigned ones, rather than those of the panel.
        start: The sums before, number ``i`` in ``t``.
        end: A last number of row ``a``, of the ``step & 3`` bytes behind *depth* numbers, where rows are bytes as they lie.
    """

    row: str
    number: str
    unsigned: bool
    start: str = "vload16({i}, t)"
    end: str = ""


def add_tiles(registers: Registers, rows: Rows, b_space: str, *, fetch: str = "") -> str:
    """Return ``$_tiles(rows, a, step, b, depth, t)``, which adds the products of rows and a panel to sums.

    ``a`` holds *depth* numbers of each row, *step* apart, ``b`` as many rows of 32 numbers, ``t`` the sums, ``[rows, 32]``.
    There is a tile of every height up to `tile_of`'s rows.

    Args:
        b_space: Address space of the panel.
        fetch: Statements of each step, at ``row`` of the panel.
    """
    most = tile_of(registers).rows
    cases = " ".join(
        f"case {h}: $_tile{h}(a + i * step, step, b, depth, t + i * 32); break;" for h in range(1, most + 1)
    )
    heights = "".join(_tile(h, registers, rows, b_space, fetch) for h in range(1, most + 1))
    return f"""{heights}
inline void $_tiles(int rows, {rows.row}* a, int step, {b_space} const int* b, int depth, int* t) {{
  int i = 0;
  for (int tiles = (rows + {most - 1}) / {most}; tiles > 0; tiles--) {{
    const int height = (rows - i) / tiles;
    switch (height) {{ {cases} }}
    i += height;
  }}
}}"""


def _tile(height: int, registers: Registers, rows: Rows, b_space: str, fetch: str) -> str:
    """Return ``$_tile<height>``, which passes over the rows of a panel once, or once for each half of its columns."""
    passes = tile_of(registers).passes(height, registers)
    together = PANEL // 16 // passes  # vectors
    each = [
        _pass(height, range(p * together, (p + 1) * together), rows, b_space, "" if p else fetch) for p in range(passes)
    ]
    pointers = " ".join(f"{rows.row}* const a{i} = a + {i} * step;" for i in range(height))
    return f"""
inline void $_tile{height}({rows.row}* a, int step, {b_space} const int* b, int depth, int* t) {{
  {pointers}
  {" ".join(each)}
}}"""


def _pass(height: int, vectors: range, rows: Rows, b_space: str, fetch: str) -> str:
    """Return statements that add the products of *height* rows and some vectors of a panel's columns to sums."""
    r, width = range(height), PANEL // 16
    operands = "v, b{v}" if rows.unsigned else "b{v}, v"
    dots = [" ".join(f"s{i}_{v} = $_dot(s{i}_{v}, {operands.format(v=v)});" for v in vectors) for i in r]
    panel = "const int16 " + ", ".join(f"b{v} = vload16({v}, row)" for v in vectors) + "; int16 v;"
    load = " ".join(f"int16 s{i}_{v} = {rows.start.format(i=width * i + v)};" for i in r for v in vectors)
    multiply = " ".join(f"v = (int16)({rows.number.format(a=f'a{i}', k='k')}); {dots[i]}" for i in r)
    store = " ".join(f"vstore16(s{i}_{v}, {width * i + v}, t);" for i in r for v in vectors)
    end = " ".join(f"v = (int16)({rows.end.format(a=f'a{i}')}); {dots[i]}" for i in r)
    return f"""{{
    {load}
    {b_space} const int* row = b;
    for (int k = 0; k < depth; k++, row += {PANEL}) {{
      {panel}
      {fetch}
      {multiply}
    }}
    {f"if (step & 3) {{ {panel} {end} }}" if rows.end else ""}
    {store}
  }}"""
