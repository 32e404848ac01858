"""Convolutions of half precision on NVIDIA's tensor cores: the product that `patches` describes, in tiles.

The filter is copied to local memory as in matrix products; what the windows see is read by work-items, several
neighbouring terms of one column by each, while the tile before is multiplied.
"""

from __future__ import annotations

import functools

from asyncrt.kernels.codegen.mma import LANES, TYPES, helpers
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.impl import KernelSource
from asyncrt.kernels.matmul.tensor_cores import DEPTH, HALF_TILES, HELD, PAD, MatrixTile, choose_tile, products, zeros
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import DataType

from .patches import CHUNK, Patches, PatchForm

_LINE = DEPTH + PAD
_RUN = 64  # elements that memory hands over at once
# Tiles whose sums are not cut must keep more of the device busy: windows are read piece by piece, and what one group waits
# for meanwhile another one calculates.
_CHOICES = tuple((tile, 150 if tile.slices == 1 else percent) for tile, percent in HALF_TILES)
_ACROSS = 4  # groups of lanes side by side where the epilogue has operands: registers are short then


def takes(dtype: DataType, traits: DeviceTraits) -> bool:
    """Return whether the device has tensor cores for *dtype*."""
    return "mma" in traits.features and dtype in TYPES


def by_tensor_cores(
    form: PatchForm, product: Patches, groups: int, traits: DeviceTraits
) -> tuple[KernelSource, MatrixTile]:
    """Return the kernel of *groups* products, and the tile that each of its work-groups calculates."""
    tile = choose_tile(_CHOICES, product.rows, product.columns, groups, traits)
    if tile.slices == 1 and form.conv.last.dtypes:
        tile = tile._replace(across=_ACROSS)
    return patches_kernel(form, tile), tile


@functools.cache
def patches_kernel(form: PatchForm, tile: MatrixTile) -> KernelSource:
    dtype = form.conv.dtype
    a_size, b_size = tile.rows * _LINE, tile.columns * _LINE
    stage, lanes = a_size + b_size, tile.down * tile.across * LANES
    mi, ni = tile.rows // tile.down // 16, tile.columns // tile.across // 8
    run = DEPTH * tile.columns // lanes  # terms that a work-item reads of its column
    body = f"""
  __local ushort space[{2 * stage * tile.slices}] __attribute__((aligned(16)));
  const int id = (int)get_local_id(0), lane = id & 31, own = id % {lanes}, slice = id / {lanes};
  const int row = own / 32 / {tile.across} * {mi * 16}, column = own / 32 % {tile.across} * {ni * 8};
  const int g = (int)get_group_id(1) / blocks, m0 = (int)get_group_id(1) % blocks * {tile.rows};
  const int n0 = (int)get_group_id(0) * {tile.columns};
  const int steps = (K + {DEPTH * tile.slices - 1}) / {DEPTH * tile.slices}, first = slice * steps * {DEPTH};
  const int bn = own % {tile.columns}, bk = own / {tile.columns} * {run};
  {form.column("n0 + bn")}
  {form.start("first + bk")}
  __global const {dtype.c}* const filters = f + (g * M + m0) * K;
  __local ushort* mine = space + slice * {2 * stage};
  {_fetches(form, tile)}
  float s[{mi}][{ni}][4];
  uint b[{run // 2}];
  {zeros("s", mi, ni)}
  for (int step = -1; step < steps; step++) {{
    if (step >= 0) {{
      ASYNCRT_WAIT_FOR_COPIES(0);
      barrier(CLK_LOCAL_MEM_FENCE);
    }}
    __local ushort* to = mine + (step + 1) % 2 * {stage};
    if (step + 1 < steps) {{
      const int k0 = first + (step + 1) * {DEPTH};
      #pragma unroll
      for (int e = own; e < {tile.rows * DEPTH // CHUNK}; e += {lanes}) {{
        const int r = e / {DEPTH // CHUNK}, k = k0 + e % {DEPTH // CHUNK} * {CHUNK};
        const int bytes = m0 + r < M && k < K ? 16 : 0;
        asyncrt_copy16(to + r * {_LINE} + k - k0, bytes > 0 ? filters + r * K + k : f, bytes);
      }}
      #pragma unroll
      for (int j = 0; j < {run // CHUNK}; j++) {{
        #pragma unroll
        for (int i = 0; i < {CHUNK // 2}; i++)
          b[j * {CHUNK // 2} + i] = {form.bits("2 * i")} | {form.bits("2 * i + 1")} << 16;
        {form.advance(CHUNK)}
      }}
      {form.advance(DEPTH - run) if run < DEPTH else ""}
    }}
    asyncrt_copies_end_a_group();
    if (step >= 0) {{
      const __local ushort* at = mine + step % 2 * {stage}; const __local ushort* bt = at + {a_size};
      {products(dtype, mi, ni, _LINE, _LINE, "s", turned=True)}
    }}
    if (step + 1 < steps) {{
      #pragma unroll
      for (int j = 0; j < {run // CHUNK}; j++)
        *(__local uint4*)(to + {a_size} + bn * {_LINE} + bk + j * {CHUNK}) =
            (uint4)(b[4 * j], b[4 * j + 1], b[4 * j + 2], b[4 * j + 3]);
    }}
  }}
  barrier(CLK_LOCAL_MEM_FENCE);
  {_results(form, tile, mi, ni)}"""
    group = f"__attribute__((reqd_work_group_size({tile.group}, 1, 1)))"
    texts = helpers(dtype) + form.conv.last.helper_text
    return kernel(f"conv_mma{tile.rows}", form.conv.buffers, form.ints, body, helpers=texts, attributes=group)


def _fetches(form: PatchForm, tile: MatrixTile) -> str:
    """Fetch what the epilogue will read, so that it comes while products are calculated."""
    fetches = form.fetched("(m0 + r)")
    runs = tile.columns // _RUN
    if not fetches or not runs:
        return ""
    return f"""for (int e = id; e < {tile.rows * runs}; e += {tile.group}) {{
    const int r = e / {runs}, q = n0 + e % {runs} * {_RUN};
    {form.place("q")}
    if (m0 + r < M && q < Q) {{ {fetches} }}
  }}"""


def _results(form: PatchForm, tile: MatrixTile, mi: int, ni: int) -> str:
    """Store the sums, neighbouring columns by adjacent lanes; parts of them are added in local memory first."""
    if tile.slices > 1:
        return _summed(form, tile, mi, ni)
    line, each = ni * 8 + 4, ni * 8 // LANES
    places = " ".join(form.place(f"(n0 + column + lane + {32 * x})", str(x)) for x in range(each))
    holds, stores = ("", "")
    for x in range(each):
        there, index = f"if (m < M && n0 + column + lane + {32 * x} < Q)", f"(r - r0) * {each} + {x}"
        holds += f" {there} {{ {form.hold(index, 'm', str(x))} }}"
        value = f"parts[r * {line} + lane + {32 * x}] + added[r - r0]"
        stores += f" {there} {form.element(value, 'm', str(x), index)}"
    return f"""__local float* parts = (__local float*)space + id / 32 * {16 * line};
  {places}
  #pragma unroll
  for (int i = 0; i < {mi}; i++) {{
    asyncrt_lanes_meet();
    #pragma unroll
    for (int j = 0; j < {ni}; j++)
      #pragma unroll
      for (int x = 0; x < 4; x++) parts[(lane / 4 + x / 2 * 8) * {line} + j * 8 + lane % 4 * 2 + x % 2] = s[i][j][x];
    asyncrt_lanes_meet();
    #pragma unroll 1
    for (int r0 = 0; r0 < 16; r0 += {HELD}) {{
      float added[{HELD}];
      {form.held(HELD * each)}
      #pragma unroll
      for (int r = r0; r < r0 + {HELD}; r++) {{
        const int m = m0 + row + i * 16 + r;
        added[r - r0] = m < M ? {form.bias("m")} : 0;
        {holds}
      }}
      #pragma unroll
      for (int r = r0; r < r0 + {HELD}; r++) {{
        const int m = m0 + row + i * 16 + r;
        {stores}
      }}
    }}
  }}"""


def _summed(form: PatchForm, tile: MatrixTile, mi: int, ni: int) -> str:
    """Store sums of the slices' parts; each work-item has one column."""
    size, step = tile.rows * tile.columns, tile.group // tile.columns
    held = min(HELD, tile.rows // step)
    parts = " + ".join(f"parts[r * {tile.columns} + bc + {s * size}]" for s in range(tile.slices))
    return f"""__local float* parts = (__local float*)space;
  #pragma unroll
  for (int i = 0; i < {mi}; i++)
    #pragma unroll
    for (int j = 0; j < {ni}; j++)
      #pragma unroll
      for (int x = 0; x < 4; x++) {{
        const int r = row + i * 16 + lane / 4 + x / 2 * 8;
        parts[slice * {size} + r * {tile.columns} + column + j * 8 + lane % 4 * 2 + x % 2] = s[i][j][x];
      }}
  barrier(CLK_LOCAL_MEM_FENCE);
  const int bc = id % {tile.columns}, q = n0 + bc;
  {form.place("q")}
  for (int r0 = id / {tile.columns}; r0 < {tile.rows}; r0 += {held * step}) {{
    float added[{held}];
    {form.held(held)}
    #pragma unroll
    for (int i = 0; i < {held}; i++) {{
      const int m = m0 + r0 + i * {step};
      added[i] = m < M ? {form.bias("m")} : 0;
      if (m < M && q < Q) {{ {form.hold("i", "m")} }}
    }}
    #pragma unroll
    for (int i = 0; i < {held}; i++) {{
      const int r = r0 + i * {step}, m = m0 + r;
      if (m < M && q < Q) {form.element(f"{parts} + added[i]", "m", held="i")}
    }}
  }}"""
