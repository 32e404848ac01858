"""Products of half precision on tensor cores that work-items feed by groups of 128 (`codegen/wgmma.py`): large tiles.

They multiply from local memory by themselves, so that work-items only copy what comes next, several stages ahead.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from asyncrt.kernels.codegen import mma, runs, wgmma
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.codegen.wgmma import DEPTH
from asyncrt.kernels.impl import KernelSource
from asyncrt.kernels.traits import DeviceTraits

from .interface import ProductForm

_HELD = 4  # runs whose operands are read before any of them is stored
_PAD = 8  # floats between rows of results in local memory, so that rows begin at different banks


class WarpgroupTile(NamedTuple):
    """The tile of a work-group: 64 rows for each of *down* groups that multiply together.

    Attributes:
        stages: Of local memory.
        under_way: How many of them are multiplied while the next is begun; the others are being copied.
        least: Terms of a sum that it gains by.
    """

    down: int
    columns: int
    stages: int
    under_way: int
    least: int

    @property
    def rows(self) -> int:
        return self.down * wgmma.ROWS

    @property
    def group(self) -> int:
        """Work-items."""
        return self.down * wgmma.GROUP

    @property
    def stage(self) -> int:
        """Elements of both operands in one."""
        return (self.rows + self.columns) * DEPTH

    @property
    def nbytes(self) -> int:
        """Of local memory: of the stages, or of the results behind them."""
        return max(2 * self.stages * self.stage, 4 * self.rows * (self.columns + _PAD))


WIDE = WarpgroupTile(2, 256, 4, 1, 2048)
NARROW, FLAT = WarpgroupTile(2, 128, 3, 0, DEPTH), WarpgroupTile(1, 128, 4, 0, DEPTH)
SLIM = WarpgroupTile(1, 64, 4, 0, DEPTH)


def choose_warpgroups(m: int, n: int, k: int, batches: int, traits: DeviceTraits) -> WarpgroupTile | None:
    """Return the largest tile of which each processor has one, and of which less than half is empty; None if there is none.

    Of the smallest it is enough if each second processor has one. Of the wide tile's columns no more than a ninth may be
    empty. Two of the others fit a processor, so that one stores results while the other multiplies, which counts where
    sums are short.
    """
    if "wgmma" not in traits.features:
        return None
    for tile in (WIDE, NARROW, FLAT, SLIM):
        across = -(-n // tile.columns)
        enough = -(-m // tile.rows) * across * batches * (2 if tile is SLIM else 1) >= traits.compute_units
        full = 2 * m > tile.rows and (9 * n >= 8 * across * tile.columns or tile is not WIDE)
        if enough and full and k >= tile.least and tile.nbytes <= traits.local_memory:
            return tile
    return None


@functools.cache
def warpgroup_kernel(form: ProductForm, tile: WarpgroupTile, turned: bool) -> KernelSource:
    """*turned*: the columns of the right-hand side are adjacent in memory, not its rows."""
    ahead = tile.stages - 1 - tile.under_way
    begin = wgmma.name(form.a, tile.columns, turned=turned)
    fill = f"""{{
      if (next < steps) {{
        __local ushort* to = own + filled * {tile.stage};
        const int left = clamp((K - next * {DEPTH} - id % 8 * 8) * 2, 0, 16);
        {_copies(tile, turned)}
      }}
      asyncrt_copies_end_a_group();
      next++;
      filled = filled == {tile.stages - 1} ? 0 : filled + 1;
    }}"""
    body = f"""
  __local ushort space[{tile.nbytes // 2}] __attribute__((aligned({wgmma.ALIGNMENT})));
  const int id = (int)get_local_id(0), lane = id & 31;
  const int m0 = (int)get_group_id(1) * {tile.rows}, n0 = (int)get_group_id(0) * {tile.columns};
  {form.batch()}
  __local ushort* own = space + id / 8 * {DEPTH} + (id % 8 ^ id / 8 % 8) * 8;
  {_sources(form, turned)}
  float c[{tile.columns // 2}];
  #pragma unroll
  for (int i = 0; i < {tile.columns // 2}; i++) c[i] = 0;
  const int steps = (K + {DEPTH - 1}) / {DEPTH};
  int next = 0, filled = 0, stage = 0;
  for (int i = 0; i < {ahead}; i++) {fill}
  #pragma unroll 1
  for (int step = 0; step < steps; step++) {{
    ASYNCRT_WAIT_FOR_COPIES({ahead - 1});
    asyncrt_products_see_copies();
    barrier(CLK_LOCAL_MEM_FENCE);
    const __local ushort* at = space + stage * {tile.stage};
    {begin}(c, at + id / {wgmma.GROUP} * {wgmma.ROWS * DEPTH}, at + {tile.rows * DEPTH});
    {fill}
    ASYNCRT_WAIT_FOR_PRODUCTS({tile.under_way});
    stage = stage == {tile.stages - 1} ? 0 : stage + 1;
  }}
  {begin}_end(c);
  barrier(CLK_LOCAL_MEM_FENCE);
  {_results(form, tile)}"""
    group = f"__attribute__((reqd_work_group_size({tile.group}, 1, 1)))"
    texts = mma.helpers(form.a) + wgmma.helpers(form.a, tile.columns, turned=turned) + runs.helpers + form.last.helper_text
    name = f"{form.name}_wgmma{tile.columns}{'t' if turned else ''}"
    return kernel(name, form.buffers, form.ints, body, helpers=texts, attributes=group)


def _sources(form: ProductForm, turned: bool) -> str:
    """Find where this work-item's copies begin, and how far the matrices go from there: eight of them copy a line."""
    left = f"""const __global {form.a.c}* pa = A + ao + (m0 + id / 8) * sa_m + id % 8 * 8;
  const int rows = M - m0 - id / 8;"""
    if turned:
        return f"""{left}
  const __global {form.b.c}* pb = B + bo + (n0 + id / 8) * sb_n + id % 8 * 8;
  const int columns = N - n0 - id / 8;"""
    return f"""{left}
  const __global {form.b.c}* pb = B + bo + id / 8 * sb_k + n0 + id % 8 * 8;
  const int columns = N - n0 - id % 8 * 8;
  int terms = K - id / 8;"""


def _copies(tile: WarpgroupTile, turned: bool) -> str:
    """Copy the next `DEPTH` terms, of which `left` bytes of this work-item's chunk of a row are there."""
    lines = tile.group // 8  # at once
    text = f"""#pragma unroll
        for (int i = 0; i < {tile.rows // lines}; i++)
          asyncrt_copy16(to + i * {lines * DEPTH}, pa + i * {lines} * sa_m, rows > i * {lines} ? left : 0);
        pa += {DEPTH};
        to += {tile.rows * DEPTH};"""
    if turned:
        return f"""{text}
        #pragma unroll
        for (int i = 0; i < {tile.columns // lines}; i++)
          asyncrt_copy16(to + i * {lines * DEPTH}, pb + i * {lines} * sb_n, columns > i * {lines} ? left : 0);
        pb += {DEPTH};"""
    return f"""{text}
        #pragma unroll
        for (int p = 0; p < {tile.columns // DEPTH}; p++) {{
          const int some = clamp((columns - p * {DEPTH}) * 2, 0, 16);
          #pragma unroll
          for (int i = 0; i < {DEPTH // lines}; i++)
            asyncrt_copy16(to + (p * {DEPTH} + i * {lines}) * {DEPTH}, pb + i * {lines} * sb_k + p * {DEPTH},
                           terms > i * {lines} ? some : 0);
        }}
        pb += {DEPTH} * sb_k;
        terms -= {DEPTH};"""


def _results(form: ProductForm, tile: WarpgroupTile) -> str:
    """Store the sums by way of local memory, so that each lane has runs of a row; 32 lanes have rows of their own."""
    line, lanes = tile.columns + _PAD, tile.columns // runs.RUN
    per = mma.LANES // lanes  # rows at once
    there = "m < M && n < N"
    row = f"const int q = r0 + i * {per} + lane / {lanes}, m = m1 + q;"
    pairs = " ".join(
        f"{{ float low, high; {form.calculated('low', f'sums[{x}]', f'i * {runs.RUN} + {x}')}"
        f" {form.calculated('high', f'sums[{x + 1}]', f'i * {runs.RUN} + {x + 1}')}"
        f" words[{x // 2}] = asyncrt_pair_{mma.TYPES[form.a]}(low, high); }}"
        for x in range(0, runs.RUN, 2)
    )
    return f"""__local float* parts = (__local float*)space + id / 32 * {16 * line};
  #pragma unroll
  for (int j = 0; j < {tile.columns // 8}; j++)
    #pragma unroll
    for (int x = 0; x < 2; x++)
      *(__local float2*)(parts + (lane / 4 + x * 8) * {line} + j * 8 + lane % 4 * 2) =
          (float2)(c[j * 4 + x * 2], c[j * 4 + x * 2 + 1]);
  asyncrt_lanes_meet();
  const int m1 = m0 + id / 32 * 16, n = n0 + lane % {lanes} * {runs.RUN};
  #pragma unroll 1
  for (int r0 = 0; r0 < 16; r0 += {_HELD * per}) {{
    {form.held(_HELD * runs.RUN)}
    #pragma unroll
    for (int i = 0; i < {_HELD}; i++) {{
      {row}
      {form.rows("m")}
      if ({there}) {{ {form.hold_run(f"i * {runs.RUN}", "m", "n", "N - n")} }}
    }}
    #pragma unroll
    for (int i = 0; i < {_HELD}; i++) {{
      {row}
      const __local float4* from = (const __local float4*)(parts + q * {line} + lane % {lanes} * {runs.RUN});
      const float4 f0 = from[0], f1 = from[1];
      const float sums[{runs.RUN}] = {{f0.x, f0.y, f0.z, f0.w, f1.x, f1.y, f1.z, f1.w}};
      if ({there}) {{
        uint words[{runs.RUN // 2}];
        {pairs}
        {runs.write("Y + (first + m) * N + n", "words", "N - n")}
      }}
    }}
  }}"""
