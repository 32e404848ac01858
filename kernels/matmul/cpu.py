"""Matrix products of float32 on CPU devices: a work-item computes some rows of 32 columns of the result.

It takes them in tiles of some rows, whose sums stay in registers (`codegen/tiles.py`). Each element is one chain of ``fma`` over k, whatever the sizes, the strides and the tile, so that the bytes of a result depend on the
values alone.
"""

from __future__ import annotations

import enum
import functools

from asyncrt.kernels.arithmetic import greatest, least
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.codegen.tiles import (
    FETCH,
    PANEL,
    add_tiles,
    fill_panel,
    pair_rows,
    pair_tile,
    tile_functions,
    tile_of,
    walk_tiles,
    widen_panel,
)
from asyncrt.kernels.impl import KernelSource
from asyncrt.layout import FLOAT32, Array
from asyncrt.memory.own_pages import zeros

from . import few_bits
from .interface import ProductForm

_MOST = 64  # rows of a work-item
_DEPTH = 64


class Source(enum.Enum):
    """Where the 32 columns of the right-hand side come from."""

    PACKED = "packed"  # constants: as `pack_panels` has written them
    NARROW = "packed bf16"  # constants that bfloat16 has: as `bf16_weights.pack_panels` has written them
    BITS = "packed bits"  # constants of few bits: as `few_bits.pack_words` has written them
    ROWS = "rows"  # read where they lie: columns are adjacent, and there are at least 32
    ANY = "any"  # the work-item packs `_DEPTH` rows at a time for itself


def pack_panels(matrix: Array) -> Array:
    """Return a ``[K, N]`` matrix as ``[ceil(N / 32), K, 32]``, padded with zeros."""
    k, n = matrix.shape
    packed = zeros((-(-n // PANEL), k, PANEL), matrix.dtype)
    for i, panel in enumerate(packed):  # one by one, so that there is no second copy of a large matrix
        columns = matrix[:, i * PANEL : (i + 1) * PANEL]
        panel[:, : columns.shape[1]] = columns
    return packed


def pack_transposed(matrix: Array) -> Array:
    """Return the transpose of a ``[N, K]`` matrix, whose rows may be on several axes, as `pack_panels` does."""
    return pack_panels(matrix.reshape(-1, matrix.shape[-1]).T)


def rows_per_item(m: int, tile: int, panels: int, compute_units: int) -> int:
    """Return how many of *m* rows a work-item takes, if there are *panels* in all matrices of a batch together.

    Args:
        tile: Rows of a tile.
    """
    tiles = -(-m // tile)
    each = greatest(1, least(_MOST // tile, tiles * panels // (6 * compute_units)))
    return -(-m // -(-tiles // each))


@functools.cache
def tile_kernel(form: ProductForm, source: Source) -> KernelSource:
    """Return the kernel that computes tiles of a product."""
    whole = source in (Source.PACKED, Source.ROWS)
    place = "const int n0 = (int)get_global_id(1) * 32, c0 = 0, c1 = min(32, N - n0);"
    if source is Source.ROWS:  # the last columns are multiplied with some of their neighbours, which are not stored
        place = "const int n0 = min((int)get_global_id(1) * 32, N - 32), c0 = (int)get_global_id(1) * 32 - n0, c1 = 32;"
    body = f"""
  const int m0 = (int)get_global_id(0) * per_item, rows = min(per_item, M - m0);
  {place}
  {form.batch()}
  {_whole(form, source) if whole else _piece_by_piece(form, source)}"""
    helpers = FETCH + form.last.helpers
    if whole:
        helpers += tile_functions(form.registers, "__global", "__global", fetch=source is Source.PACKED)
    else:
        helpers += add_tiles(form.registers, "__global", "", "")
    helpers += fill_panel(FLOAT32, "") if source is Source.ANY else ""
    helpers += widen_panel("") if source is Source.NARROW else ""
    helpers += "" if form.few is None else few_bits.numbers(form.few) + few_bits.widen_panel(form.few)
    one = "__attribute__((reqd_work_group_size(1, 1, 1)))"
    ints = (*form.ints, "per_item")
    name = f"{form.name}_{source.name.lower()}"
    return kernel(name, form.buffers, ints, body, helpers=helpers, attributes=one)


def _whole(form: ProductForm, source: Source) -> str:
    """Multiply a panel that is there as a whole: each tile's results are stored behind it."""
    rows = tile_of(form.registers).rows
    start = "n0" if source is Source.ROWS else "n0 * K"
    walk = walk_tiles(
        form.registers, _fetched_results(form, "m0 + i", "height"), _stored_rows(form, "m0 + i", "height"),
        fetch=source is Source.PACKED,
    )  # fmt: skip
    return f"""__global const float* const a = A + ao + m0 * sa_m;
  __global const float* const b = B + bo + {start};
  const int step = sb_k, depth = K;
  float t[{rows * PANEL}] __attribute__((aligned(64)));
  {walk}"""


def _piece_by_piece(form: ProductForm, source: Source) -> str:
    """Multiply a panel that the work-item makes for itself, `_DEPTH` rows at a time: all tiles' sums are kept."""
    at, blocks = "B + bo + k * sb_k + n0 * sb_n, sb_k, sb_n, depth, c1", ""
    if source is Source.NARROW:  # converted to float32 once for all rows
        at = "B + bo + n0 / 2 * K + k * 16, depth"
    elif source is Source.BITS:
        assert form.few is not None
        at, blocks = f"{', '.join(few_bits.panel_at(form.few, '(n0 / 32)'))}, k, depth, block", few_bits.BLOCKS
    return f"""float t[{_MOST * PANEL}] __attribute__((aligned(64))), panel[{_DEPTH * PANEL}] __attribute__((aligned(64)));
  for (int i = 0; i < rows * 2; i++) vstore16((float16)(0.0f), i, t);
  {_fetched_results(form, "m0", "rows")}
  {blocks}
  for (int k = 0; k < K; k += {_DEPTH}) {{
    const int depth = min({_DEPTH}, K - k);
    $_{"fill" if source is Source.ANY else "widen"}({at}, panel);
    $_tiles(rows, A + ao + m0 * sa_m + k * sa_k, sa_m, sa_k, panel, 32, depth, t);
  }}
  {_stored_rows(form, "m0", "rows")}"""


@functools.cache
def pair_kernel(form: ProductForm, source: Source) -> KernelSource:
    """Return the kernel that computes two packed panels of a product of up to `pair_rows` rows at once."""
    narrow, most = source is Source.NARROW, pair_rows(form.registers)
    panel, heights = f"{PANEL // 2 if narrow else PANEL} * K", range(1, most + 1)
    call, tiles = f"A + ao, sa_m, sa_k, B + bo + p0 * {panel}, (last - p0) * {panel}, K, t", [
        pair_tile(h, "", narrow=narrow) for h in heights
    ]
    blocks = ""
    if form.few is not None:
        blocks, call = few_bits.BLOCKS, f"{', '.join(few_bits.panel_at(form.few, 'p0'))}, A + ao, sa_m, last - p0, K, block, t"
        tiles = [few_bits.numbers(form.few), *(few_bits.pair_tile(form.few, h) for h in heights)]
    cases = " ".join(f"case {h}: $_pair{h}({call}); break;" for h in heights)
    body = f"""
  const int p0 = (int)get_global_id(1) * 2, last = min(p0 + 1, (N - 1) / 32);
  {blocks}
  {form.batch()}
  float t[{2 * most * PANEL}] __attribute__((aligned(64)));
  switch (M) {{ {cases} }}
  for (int p = p0; p <= last; p++)
    for (int m = 0; m < M; m++) {{
      const int n0 = p * 32, c0 = 0, c1 = min(32, N - n0);
      const float* const sums = t + ((p - p0) * M + m) * 32;
      {stored_row(form)}
    }}"""
    helpers = form.last.helpers + FETCH + "".join(tiles)
    one = "__attribute__((reqd_work_group_size(1, 1, 1)))"
    return kernel(f"{form.name}{'_narrow' if narrow else ''}_pairs", form.buffers, form.ints, body, helpers=helpers, attributes=one)


def _fetched_results(form: ProductForm, first: str, count: str) -> str:
    """Fetch where rows of results go, and what they meet there: other cores wrote that, or had what was there last."""
    meets = form.last.fetched("n0", PANEL - 1)
    return f"""for (int r = 0; r < {count}; r++) {{
    __global const float* const to = Y + (first + {first} + r) * N + n0;
    ASYNCRT_FETCH_TO_WRITE(to); ASYNCRT_FETCH_TO_WRITE(to + {PANEL - 1});
    {f"{form.rows(f'{first} + r')} {meets}" if meets else ""}
  }}"""


def _stored_rows(form: ProductForm, first: str, count: str) -> str:
    """Store rows of results from the sums ``t``."""
    return f"""for (int r = 0; r < {count}; r++) {{
    const int m = {first} + r;
    const float* const sums = t + r * 32;
    {stored_row(form)}
  }}"""


def stored_row(form: ProductForm) -> str:
    """Store columns c0 to c1 of the 32 ``sums`` of row m from column n0 on, in a loop over rows."""
    uniform_bias = form.bias is not None and not form.bias_contiguous
    vectors = ""
    if form.last.vector:
        vectors = f"""if (c0 % 16 == 0 && c1 % 16 == 0{" && sc_n == 0" if uniform_bias else ""}) {{
      if (c0 == 0) {form.vector("vload16(0, sums)", "m", "n0")}
      if (c1 == 32) {form.vector("vload16(1, sums)", "m", "n0 + 16")}
      continue;
    }}"""
    return f"""{form.rows("m")}
    {vectors}
    for (int j = c0; j < c1; j++) {form.element("sums[j]", "m", "n0 + j")}"""
