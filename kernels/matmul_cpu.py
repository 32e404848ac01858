"""Matrix products of float32 on CPU devices: a work-item computes some rows of 32 columns of the result.

It takes them in tiles of up to 8 rows, whose sums stay in registers as two ``float16`` for each row. Each element is
one chain of ``fma`` over k, whatever the sizes, the strides and the tile, so that the bytes of a result depend on the
values alone.
"""

from __future__ import annotations

import enum
import functools

import numpy as np

from asyncrt.layout import Array

from .impl import KernelSource
from .matmul_form import Form
from .source import kernel

PANEL = 32
TILE = 8  # rows: 16 sums, enough to hide the latency of fma, and 32 vector registers hold them
_MOST = 64  # rows of a work-item
_DEPTH = 64


class Source(enum.Enum):
    """Where the 32 columns of the right-hand side come from."""

    PACKED = "packed"  # constants: as `pack_panels` has written them
    ROWS = "rows"  # read where they lie: columns are adjacent, and there are at least 32
    ANY = "any"  # the work-item packs `_DEPTH` rows at a time for itself


def pack_panels(matrix: Array) -> Array:
    """Return a ``[K, N]`` matrix as ``[ceil(N / 32), K, 32]``, padded with zeros."""
    k, n = matrix.shape
    packed = np.zeros((-(-n // PANEL), k, PANEL), matrix.dtype)
    for i, panel in enumerate(packed):  # one by one, so that there is no second copy of a large matrix
        columns = matrix[:, i * PANEL : (i + 1) * PANEL]
        panel[:, : columns.shape[1]] = columns
    return packed


def pack_transposed(matrix: Array) -> Array:
    """Return the transpose of a ``[N, K]`` matrix as `pack_panels` does."""
    return pack_panels(matrix.T)


def rows_per_item(m: int, panels: int, compute_units: int) -> int:
    """Return how many of *m* rows a work-item takes, if there are *panels* in all matrices of a batch together."""
    tiles = -(-m // TILE)
    each = max(1, min(_MOST // TILE, tiles * panels // (8 * compute_units)))
    return -(-m // -(-tiles // each))


@functools.cache
def tile_kernel(form: Form, source: Source) -> KernelSource:
    """Return the kernel that computes tiles of a product."""
    place = "const int n0 = (int)get_global_id(1) * 32, c0 = 0, c1 = min(32, N - n0);"
    if source is Source.ROWS:  # the last columns are multiplied with some of their neighbours, which are not stored
        place = "const int n0 = min((int)get_global_id(1) * 32, N - 32), c0 = (int)get_global_id(1) * 32 - n0, c1 = 32;"
    if source is Source.ANY:
        multiply = f"""float panel[{_DEPTH * PANEL}] __attribute__((aligned(64)));
  for (int k = 0; k < K; k += {_DEPTH}) {{
    const int depth = min({_DEPTH}, K - k);
    $_fill(B + bo + k * sb_k + n0 * sb_n, sb_k, sb_n, depth, c1, panel);
    $_tiles(rows, A + ao + m0 * sa_m + k * sa_k, sa_m, sa_k, panel, 32, depth, t);
  }}"""
    else:
        start = "n0" if source is Source.ROWS else "n0 * K"
        multiply = f"$_tiles(rows, A + ao + m0 * sa_m, sa_m, sa_k, B + bo + {start}, sb_k, K, t);"
    uniform_bias = form.bias is not None and not form.bias_contiguous
    vectors = f"""if (c1 - c0 == 32{" && sc_n == 0" if uniform_bias else ""}) {{
      {form.vector("vload16(0, t + i * 32)", "m", "n0")}
      {form.vector("vload16(1, t + i * 32)", "m", "n0 + 16")}
      continue;
    }}"""
    body = f"""
  const int m0 = (int)get_global_id(0) * per_item, rows = min(per_item, M - m0);
  {place}
  {form.batch()}
  float t[{_MOST * PANEL}] __attribute__((aligned(64)));
  for (int i = 0; i < rows * 2; i++) vstore16((float16)(0.0f), i, t);
  {multiply}
  for (int i = 0; i < rows; i++) {{
    const int m = m0 + i;
    {form.rows("m")}
    {vectors if form.last.vector else ""}
    for (int j = c0; j < c1; j++) {form.element("t[i * 32 + j]", "m", "n0 + j")}
  }}"""
    helpers = form.last.helpers + _tiles("" if source is Source.ANY else "__global")
    helpers += _fill() if source is Source.ANY else ""
    one = "__attribute__((reqd_work_group_size(1, 1, 1)))"
    ints = (*form.ints, "per_item")
    return kernel(f"{form.name}_{source.value}", form.buffers, ints, body, helpers=helpers, attributes=one)


def _tiles(space: str) -> str:
    """``$_tiles(rows, ...)`` adds the products of some rows and a panel to the sums in t.

    Tiles have every height, so that no new number of rows needs another kernel or is rounded up.
    """
    cases = " ".join(
        f"case {h}: $_tile{h}(a + i * sa_m, sa_m, sa_k, b, step, depth, t + i * 32); break;" for h in range(1, TILE + 1)
    )
    return f"""{"".join(_tile(h, space) for h in range(1, TILE + 1))}
inline void $_tiles(
    int rows, __global const float* a, int sa_m, int sa_k, {space} const float* b, int step, int depth, float* t) {{
  int i = 0;
  for (int tiles = (rows + {TILE - 1}) / {TILE}; tiles > 0; tiles--) {{
    const int height = (rows - i) / tiles;
    switch (height) {{ {cases} }}
    i += height;
  }}
}}"""


def _tile(height: int, space: str) -> str:
    r = range(height)
    rows = " ".join(f"__global const float* a{i} = a + {i} * sa_m;" for i in r)
    load = " ".join(f"float16 p{i} = vload16({2 * i}, t), q{i} = vload16({2 * i + 1}, t);" for i in r)
    multiply = " ".join(f"v = a{i}[k * sa_k]; p{i} = fma(v, b0, p{i}); q{i} = fma(v, b1, q{i});" for i in r)
    store = " ".join(f"vstore16(p{i}, {2 * i}, t); vstore16(q{i}, {2 * i + 1}, t);" for i in r)
    return f"""
inline void $_tile{height}(
    __global const float* a, int sa_m, int sa_k, {space} const float* b, int step, int depth, float* t) {{
  {rows}
  {load}
  for (int k = 0; k < depth; k++, b += step) {{
    const float16 b0 = vload16(0, b), b1 = vload16(1, b); float16 v;
    {multiply}
  }}
  {store}
}}"""


def _fill() -> str:
    """``$_fill`` packs *depth* rows of 32 columns, of which the last is repeated where there are only *left*.

    Where columns are contiguous, 16 × 16 elements are turned at a time: four times, each vector is interleaved with
    the one eight places on.
    """
    loads = " ".join(f"float16 x{j} = vload16(0, b + min(c + {j}, left - 1) * sb_n);" for j in range(16))
    steps, names = [], [f"x{j}" for j in range(16)]
    for stage in range(4):
        made = [f"y{stage}_{j}" for j in range(16)]
        for j in range(8):
            a, b = names[j], names[j + 8]
            for half, name in (("lo", made[2 * j]), ("hi", made[2 * j + 1])):
                steps.append(f"float16 {name}; {name}.even = {a}.{half}; {name}.odd = {b}.{half};")
        names = made
    stores = " ".join(f"vstore16({name}, 0, to + {32 * j});" for j, name in enumerate(names))
    return f"""
inline void $_turn(__global const float* b, int sb_n, int c, int left, float* to) {{
  {loads}
  {" ".join(steps)}
  {stores}
}}
inline void $_fill(__global const float* b, int sb_k, int sb_n, int depth, int left, float* panel) {{
  int k = 0;
  if (sb_k == 1)
    for (; k + 16 <= depth; k += 16)
      for (int c = 0; c < 32; c += 16) $_turn(b + k, sb_n, c, left, panel + k * 32 + c);
  for (; k < depth; k++)
    for (int c = 0; c < 32; c++) panel[k * 32 + c] = b[k * sb_k + min(c, left - 1) * sb_n];
}}"""
