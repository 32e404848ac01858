"""The kernel of convolutions over packed weights: tiles of output channels × positions, whose sums stay in registers.

Several tiles of a work-item pass over the same weights, one after the other: their sums lie in private memory in
between. Results are turned from vectors of channels into rows of positions, and where two tiles of 8 follow one another,
rows of 16 are stored, which are whole cache lines: rows of many sizes are a multiple of 4 KiB apart, and a cache cannot
keep as many half lines at such distances.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from asyncrt.kernels.codegen import epilogue
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.codegen.tiles import AHEAD, FETCH, ROLLED, turn
from asyncrt.kernels.impl import KernelSource

from .interface import ConvForm

_INTS = (
    "C", "M", "G", "blocks", "D", "H", "W", "OD", "OH", "OW", "KD", "KH", "KW", "sd", "sh", "dd", "dh", "dw", "sw",
    "deep", "tiles", "down", "across", "each", "piece", "biased",
)  # fmt: skip
BORDER = ("ph", "pw")
PLACES = ("pd", "ph", "pw", "margin", "columns")
"""Where windows begin in front of the input, columns of zeros in front of each row, and those of the input behind them."""
TOGETHER = 8
"""Tiles that walk each piece of the weights, one after the other."""
ZEROS = 32
"""Elements behind the weights that are 0: what tiles with `borders` read in the place of elements that are not there."""


_FETCHING = 7  # columns of a tile


class Tile(NamedTuple):
    """What is written out in a kernel.

    Attributes:
        block: Output channels: 32 or 16.
        rows, width: Positions: so many rows of so many columns; whole rows of the result, if there is more than one.
        stride: Of the columns, if it is 1 or 2; else 0.
        wide: Cells of a row of the window, if they are written out; else 0.
        flat: The window is one row of cells.
        at_once: The weights of such a row have registers beside the sums, and an element one more.
        pieces: The weights are walked in pieces.
        joined: All positions of a channel are one row to the epilogue.
        borders: The input has no borders: at most so many columns of a tile's are left and right of it, and rows of the
            window may be above and below. None: it has what the windows reach. Only where a row of cells is written out
            and the stride is.
        passes: Cells are passed by that no position of a tile has an element for; the input has columns of zeros for the
            others. Only with one row of positions, and where cells are not written out.
        shallow: There are few channels of the input.
    """

    block: int
    rows: int
    width: int
    stride: int
    wide: int
    flat: bool
    at_once: bool
    pieces: bool
    joined: bool
    borders: tuple[int, int] | None = None
    passes: bool = False
    shallow: bool = False

    @property
    def positions(self) -> int:
        return self.rows * self.width

    @property
    def together(self) -> int:
        """Tiles whose sums are there at the same time: few, so that stores go on while the next are calculated."""
        return TOGETHER if self.pieces else 2


@functools.cache
def tile_kernel(form: ConvForm, tile: Tile) -> KernelSource:
    """Return the kernel that computes tiles of a convolution."""
    block = tile.block
    last, after = form.last, "v"
    if last.vector and not last.dtypes:  # what has no operands is calculated for 16 channels at a time
        last, after = epilogue.NONE, last.expression
    zeros = "__global const float* const zeros = f + G * blocks * C * deep;" if tile.borders else ""
    body = f"""
  const int block = (int)get_global_id(2) % blocks, g = (int)get_global_id(2) / blocks, n = (int)get_global_id(1);
  const int i0 = (int)get_global_id(0) * each, i1 = min(i0 + each, tiles);
  const int oc0 = g * M + block * {block}, left = min({block}, M - block * {block}), channel = n * G * M + oc0;
  const int hop = sh * W, plane = D * H * W, P = OD * OH * OW;
  __global const float* const xg = x + (n * G + g) * C * plane;
  __global const float* const weights = f + (g * blocks + block) * C * deep;
  {zeros}
  float bs[{block}] __attribute__((aligned(64)));
  ASYNCRT_ROLLED for (int j = 0; j < {block}; j++) bs[j] = biased && j < left ? bias[oc0 + j] : 0.0f;
  float t[{tile.together * tile.positions * block}] __attribute__((aligned(64)));
  int oa0 = i0 % across, ob0 = i0 / across % down, od0 = i0 / across / down;
  for (int g0 = i0; g0 < i1; g0 += {tile.together}) {{
    const int count = min({tile.together}, i1 - g0);
    {_fetched_results(tile, form.last)}
    {_computed(tile, after)}
    {_stored(tile, form, last)}
    oa0 = oa; ob0 = ob; od0 = od;
  }}"""
    one = "__attribute__((reqd_work_group_size(1, 1, 1)))"
    ints = (*_INTS, *(BORDER if tile.borders else PLACES if tile.passes else ()), *form.last.ints)
    helpers = FETCH + ROLLED + (_CELLS if tile.passes else "") + form.last.helpers
    return kernel(f"conv_packed{tile.positions}", form.buffers, ints, body, helpers=helpers, attributes=one)


_CELLS = """
/* Of cells that are `step` apart, the first of which is at `first`: which is the first at 0 or behind it? */
inline int $_from(int first, int step) { return first < 0 ? (step - 1 - first) / step : 0; }
/* And how many of `cells` are in front of `end`? */
inline int $_until(int first, int step, int end, int cells) {
  return first < end ? min(cells, (end - 1 - first) / step + 1) : 0;
}"""


# Counted on from tile to tile: divisions would take a tenth of the time of a tile of few channels.
_GO_ON = "if (++oa == across) { oa = 0; if (++ob == down) { ob = 0; od++; } }"


def _place(tile: Tile) -> str:
    """Return statements that find the first position of a tile; the last tiles of an axis are moved back to end with it."""
    return f"const int oh = min(ob * {tile.rows}, OH - {tile.rows}), ow0 = min(oa * {tile.width}, OW - {tile.width});"


def _computed(tile: Tile, after: str) -> str:
    """Return statements that compute the sums of all tiles into ``t``, and what becomes of them: *after*, over ``v``."""
    if not tile.pieces:
        return f"{{ const int c0 = 0, c1 = C; {_summed(tile, after)} }}"
    halves = range(tile.block // 16)
    start = " ".join(f"vstore16(vload16({h}, bs), p * {len(halves)} + {h}, t);" for h in halves)
    return f"""
    for (int p = 0; p < count * {tile.positions}; p++) {{ {start} }}
    for (int c0 = 0; c0 < C; c0 += piece) {{
      const int c1 = min(c0 + piece, C);
      {_summed(tile, after)}
    }}"""


def _summed(tile: Tile, after: str) -> str:
    """Return statements that add the products of input channels c0 to c1 to the sums of all tiles."""
    halves = range(tile.block // 16)
    sums = [(p * len(halves) + h, h, f"a{p}_{h}") for p in range(tile.positions) for h in halves]
    load = " ".join(
        f"float16 {a} = vload16({k if tile.pieces else h}, {'own' if tile.pieces else 'bs'});" for k, h, a in sums
    )
    finish = " ".join(f"{{ const float16 v = {a}; {a} = (float16)({after}); }}" for _, _, a in sums)
    spill = " ".join(f"vstore16({a}, {k}, own);" for k, _, a in sums)
    return f"""
      int oa = oa0, ob = ob0, od = od0;
      for (int i = 0; i < count; i++) {{
        {_place(tile)}
        {_corner(tile)}
        __global const float* xn = xg + c0 * plane + (id * H + ih) * W + iw;
        __global const float* wp = weights + c0 * deep;
        {_fetching(tile)}
        float* const own = t + i * {tile.positions * tile.block};
        {load}
        for (int c = c0; c < c1; c++, xn += plane) {_walk(tile)}
        {f"if (c1 == C) {{ {finish} }}" if after != "v" else ""}
        {spill}
        {_GO_ON}
      }}"""


def _stored(tile: Tile, form: ConvForm, last: epilogue.EpilogueForm) -> str:
    """Return statements that store the results of all tiles: in vectors where they can, else one by one."""
    block = tile.block
    return f"""int oa = oa0, ob = ob0, od = od0;
    for (int i = 0; i < count; i++) {{
      {_place(tile)}
      const int line = od * OH + oh, at = line * OW + ow0, column = {"at" if tile.joined else "ow0"};
      const int skipped = (ob * {tile.rows} - oh) * OW + oa * {tile.width} - ow0;
      const float* const own = t + i * {tile.positions * block};
      {_GO_ON}
      {_sixteen(tile, last) if tile.positions == 8 and last.vector else ""}
      {_turned(tile, last) if tile.positions >= 4 and last.vector else ""}
      ASYNCRT_ROLLED for (int j = 0; j < left; j++) {{
        const int row = {_row(tile, "j")};
        {last.rows("row")}
        ASYNCRT_ROLLED for (int p = skipped; p < {tile.positions}; p++)
          {last.element(form.dtype, "y", "(channel + j) * P + at + p", "(column + p)", f"own[p * {block} + j]")}
      }}
    }}"""


def _row(tile: Tile, j: str) -> str:
    """Return the epilogue's row of channel *j* of the block."""
    return f"channel + {j}" if tile.joined else f"(channel + {j}) * OD * OH + line"


def _fetching(tile: Tile) -> str:
    """Return statements that find what to fetch while the weights at ``wp`` are multiplied.

    A tile alone needs what comes next. Several have time for what follows all that they walk, and fetch a part each.
    """
    walked, number, tiles = ("piece", "i", "count") if tile.pieces else ("C", "(g0 - i0 + i)", "(i1 - i0)")
    return f"""const int pace = ({tile.block - 1} + {tiles}) / {tiles};
        const int near = {tiles} == 1 ? {AHEAD + 16} : {number} == 0 ? {AHEAD} : 0;
        __global const float* soon = wp + ({tiles} == 1 ? {AHEAD} : {walked} * deep + {number} * pace * (c1 - c0) * (KD * KH * KW));"""


def _fetched_results(tile: Tile, last: epilogue.EpilogueForm) -> str:
    """Return statements that fetch where the results of the next tiles go, and the rows that they meet there.

    Each channel has a line of its own, and what was there last is in another core's cache or in none.
    """
    end = tile.together * tile.positions - 1
    meets = last.fetched("column", end)
    return f"""{{
      const int oa = oa0, ob = ob0, od = od0;
      {_place(tile)}
      const int line = od * OH + oh, at = line * OW + ow0, column = {"at" if tile.joined else "ow0"};
      ASYNCRT_ROLLED for (int j = 0; j < left; j++) {{
        __global const float* const to = y + (channel + j) * P + at;
        ASYNCRT_FETCH_TO_WRITE(to); ASYNCRT_FETCH_TO_WRITE(to + {end});
        {f"const int row = {_row(tile, 'j')}; {last.rows('row')} {meets}" if meets else ""}
      }}
    }}"""


def _step(tile: Tile) -> str:
    return str(tile.stride) if tile.stride else "sw"


def _corner(tile: Tile) -> str:
    """Return statements that find the first element that a tile reads, and which of its columns are outside the input."""
    if tile.passes:
        return f"""const int id = od * sd - pd, ih = oh * sh - ph, at = ow0 * {_step(tile)} - pw, iw = at + margin;
        const int kd0 = $_from(id, dd), kd1 = $_until(id, dd, D, KD), kh0 = $_from(ih, dh), kh1 = $_until(ih, dh, H, KH);
        const int kw0 = $_from(at + {tile.width - 1} * {_step(tile)}, dw), kw1 = $_until(at, dw, columns, KW);"""
    if tile.borders is None:
        return f"const int id = od * sd, ih = oh * sh, iw = ow0 * {_step(tile)};"
    there = " ".join(f"const int there{o} = iw >= {-o} && iw < W - {o};" for o in _outside(tile))
    return f"const int id = od * sd, ih = oh * sh - ph, iw = ow0 * {_step(tile)} - pw; {there}"


def _outside(tile: Tile) -> list[int]:
    """Return which of the columns that a tile reads may be outside the input, counted from its first."""
    assert tile.borders is not None
    left, right = tile.borders
    seen = range((tile.width - 1) * tile.stride + tile.wide)
    return [o for o in seen if o < left or o >= len(seen) - right]


def _walk(tile: Tile) -> str:
    """Return statements that add the products of one input channel, and move on in the weights."""
    halves, step = range(tile.block // 16), _step(tile)

    def cell(number: int, element: Callable[[int, int], str]) -> str:
        """Multiply with one cell of the window, which sees *element* for a row and a column of the tile."""
        weights = " ".join(f"const float16 v{h} = vload16({number * len(halves) + h}, wp);" for h in halves)
        multiply = " ".join(
            f"e = {element(i, j)}; "
            + " ".join(f"a{i * tile.width + j}_{h} = fma(v{h}, e, a{i * tile.width + j}_{h});" for h in halves)
            for i in range(tile.rows)
            for j in range(tile.width)
        )
        return f"{{ {weights} {_ahead(tile, number)} float16 e; {multiply} }}"

    outside = [] if tile.borders is None else _outside(tile)

    def seen(c: int, i: int, j: int) -> str:
        """The element that cell *c* of a row of cells sees for a row and a column of the tile."""
        o = j * tile.stride + c
        return f"*r{i}_{o}" if o in outside else f"r{i}[{j} * {step} + {c}]"

    if tile.wide:
        start = ""
        for i in range(tile.rows):
            there = "" if tile.borders is None else f"(uint)(ih + {i} * sh + kh) >= (uint)H ? zeros : "
            start += f"__global const float* const r{i} = {there}xn + kh * W + {i} * hop; "
            start += " ".join(f"__global const float* const r{i}_{o} = there{o} ? r{i} + {o} : zeros;" for o in outside)
        # The next tile's elements are fetched meanwhile: each channel's are far from the last one's. Narrow tiles load
        # as much as they can already. Where there are few channels, the first to read a picture finds it in no cache;
        # then the rows are fetched that tiles two rows further down see.
        fetched = ""
        if tile.shallow:
            fetched = f"ASYNCRT_FETCH(r0 + 2 * hop + {tile.width * max(1, tile.stride) // 2});"
        elif tile.stride and tile.width >= _FETCHING:
            fetched = f"ASYNCRT_FETCH(r0 + {(2 * tile.width - 1) * tile.stride});"
        each = (cell(c, functools.partial(seen, c)) for c in range(tile.wide))
        multiply = _at_once(tile, outside) if tile.at_once else " ".join(each)
        # A loop, however few rows there are: of several that are written out a compiler begins all loads at once, and
        # keeps what they load in memory.
        row, move = f"{start} {fetched} {multiply}", f"wp += {tile.wide * tile.block}"
        if tile.flat:
            return f"{{ const int kh = 0; {row} {move}; }}"
        return f"for (int kh = 0; kh < KH; kh++, {move}) {{ {row} }}"
    if tile.passes:
        multiply = cell(0, lambda i, j: f"xr[{j} * {step}]")
        return f"""{{
          __global const float* const wc = wp;
          for (int kd = kd0; kd < kd1; kd++)
            for (int kh = kh0; kh < kh1; kh++) {{
              __global const float* xr = xn + (kd * dd * H + kh * dh) * W + kw0 * dw;
              wp = wc + ((kd * KH + kh) * KW + kw0) * {tile.block};
              for (int kw = kw0; kw < kw1; kw++, wp += {tile.block}, xr += dw) {multiply}
            }}
          wp = wc + deep;
        }}"""
    return f"""for (int kd = 0; kd < KD; kd++)
        for (int kh = 0; kh < KH; kh++) {{
          __global const float* xr = xn + (kd * dd * H + kh * dh) * W;
          for (int kw = 0; kw < KW; kw++, wp += {tile.block}, xr += dw)
            {cell(0, lambda i, j: f"xr[{i} * hop + {j} * {step}]")}
        }}"""


def _at_once(tile: Tile, outside: Sequence[int]) -> str:
    """Return statements that multiply with a row of cells, element by element.

    Each element is loaded once for all cells that see it; cell by cell a compiler keeps it in memory in between. The sums'
    order is the same.
    """
    halves, cells = range(tile.block // 16), range(tile.wide)
    weights = " ".join(f"const float16 v{c}_{h} = vload16({c * len(halves) + h}, wp);" for c in cells for h in halves)
    multiply = []
    for i in range(tile.rows):
        for o in range((tile.width - 1) * tile.stride + tile.wide):
            sums = [(c, (o - c) // tile.stride) for c in cells if (o - c) % tile.stride == 0]
            sums = [(c, i * tile.width + j) for c, j in sums if 0 <= j < tile.width]
            if sums:
                multiply.append(f"e = {f'*r{i}_{o}' if o in outside else f'r{i}[{o}]'};")
                multiply += [f"a{p}_{h} = fma(v{c}_{h}, e, a{p}_{h});" for c, p in sums for h in halves]
    return f"{weights} {' '.join(_ahead(tile, c) for c in cells)} float16 e; {' '.join(multiply)}"


def _ahead(tile: Tile, number: int) -> str:
    """Return statements that fetch weights while those of cell *number* are multiplied (`_fetching`)."""
    return f"ASYNCRT_FETCH(soon); soon += pace; ASYNCRT_FETCH(wp + near + {number * tile.block});"


def _sixteen(tile: Tile, last: epilogue.EpilogueForm) -> str:
    """Return statements that store this tile of 8 and the next one together, if they are 16 of a row."""
    steps, names = turn([f"x{p}" for p in range(16)], "z")
    loads = " ".join(f"const float16 x{p} = vload16(h, own + {p * tile.block});" for p in range(16))
    stores = " ".join(f"vstore16({name}, {j}, z);" for j, name in enumerate(names))
    follows = f"ow0 + {2 * tile.width} <= OW" if tile.rows == 1 else f"oh + {2 * tile.rows} <= OH"
    return f"""
      if (left == {tile.block} && skipped == 0 && i + 1 < count && {follows}) {{
        float z[256] __attribute__((aligned(64)));
        for (int h = 0; h < {tile.block // 16}; h++) {{
          {loads} {steps} {stores}
          for (int j = 0; j < 16; j++) {{
            const int row = {_row(tile, "h * 16 + j")};
            {last.rows("row")}
            {last.stored_vector("y + (channel + h * 16 + j) * P + at", "column", "vload16(j, z)")}
          }}
        }}
        i++;
        {_GO_ON}
        continue;
      }}"""


def _turned(tile: Tile, last: epilogue.EpilogueForm) -> str:
    """Return statements that store a whole tile of 4 to 8 positions."""
    steps, names = turn([f"x{min(p, tile.positions - 1)}" for p in range(8)], "z")
    loads = " ".join(f"const float16 x{p} = vload16(h, own + {p * tile.block});" for p in range(tile.positions))
    stores = " ".join(f"vstore16({name}, {j}, z);" for j, name in enumerate(names))
    rows = ("row", f"({_row(tile, 'h * 16 + j + 1')})")
    to = [f"y + (channel + h * 16 + {j}) * P + at" for j in ("j", "j + 1")]
    return f"""
      if (left == {tile.block} && skipped == 0) {{
        float z[128] __attribute__((aligned(64)));
        for (int h = 0; h < {tile.block // 16}; h++) {{
          {loads} {steps} {stores}
          for (int j = 0; j < 16; j += 2) {{
            const int row = {_row(tile, "h * 16 + j")};
            {last.stored_pair(rows, to, "column", "vload16(j / 2, z)", tile.positions)}
          }}
        }}
        continue;
      }}"""
