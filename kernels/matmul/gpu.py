"""Matrix products on GPUs, and on any device where no other kernel fits."""

from __future__ import annotations

import enum
import functools

from asyncrt.kernels.codegen.source import accumulator_type, kernel
from asyncrt.kernels.impl import KernelSource
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import DataType

from .interface import ProductForm

WIDE, NARROW = 128, 64
"""Rows and columns of the tiles that a work-group shares."""
GROUP = 16
"""Work-items of such a group along either axis."""
SLICE_ROWS, SLICE_COLUMNS, SLICES = 16, 32, 16
"""Of the tiles of products of few rows, and into how many parts the sums of each are cut."""
_UNROLL = "__attribute__((opencl_unroll_hint))"  # so that arrays are registers


class Regime(enum.Enum):
    """Which kernel carries out a product."""

    SLICES = "sliced sums"
    NARROW = f"shared {NARROW}x{NARROW}"
    WIDE = f"shared {WIDE}x{WIDE}"
    GENERIC = "generic"


_LONG = 128  # terms of a sum from which it is worth cutting it
_PERCENT = 75  # of the device that large tiles must keep busy
_FEW = 3  # times as many multiprocessors as small tiles: then cut sums are faster


def choose_regime(m: int, n: int, k: int, batches: int, element: int, traits: DeviceTraits) -> Regime:
    """Return which kernel carries out *batches* products of ``[m, k]`` and ``[k, n]``.

    Large tiles read each operand least often, but they must fill most of the device, and less than half of a tile may be
    empty. Where even small ones are few, sums are cut into parts that work-items of one group calculate side by side.

    Args:
        element: Bytes of a sum.
    """
    if traits.is_cpu or traits.max_group < GROUP * GROUP:
        return Regime.GENERIC

    def tiles(rows: int, columns: int) -> int:
        return -(-m // rows) * -(-n // columns) * batches

    if 2 * m > WIDE and 100 * tiles(WIDE, WIDE) >= _PERCENT * traits.compute_units:  # of ints: recipes follow no others
        return Regime.WIDE
    few = m <= SLICE_ROWS or _FEW * tiles(NARROW, NARROW) < traits.compute_units
    if few and k >= _LONG and element == 4 and traits.max_group >= SLICES * SLICE_COLUMNS:
        return Regime.SLICES
    return Regime.NARROW


def depth_of(dtype: DataType, tile: int) -> int:
    """Return how many terms a tile adds between two barriers: enough for what comes next to arrive meanwhile."""
    return 32 if tile == NARROW and accumulator_type(dtype) in ("float", "int") else 16


@functools.cache
def shared_kernel(form: ProductForm, tile: int) -> KernelSource:
    """Tiles shared by 16 × 16 work-items through local memory; each computes squares of 4 × 4, 64 apart.

    What comes next is on its way from memory while the work-items multiply.
    """
    acc, depth = accumulator_type(form.a), depth_of(form.a, tile)
    # In one rounding, whatever a compiler makes of it, as in convolutions that do the same (`conv/convolution.py`).
    added = "fma(ra[i], rb[j], c[i][j])" if form.a.is_float else "c[i][j] + ra[i] * rb[j]"
    squares = tile // NARROW
    each = tile * depth // (GROUP * GROUP)
    # Results of a work-item whose operands are read before any of them is stored; large tiles have no registers for more.
    held = 4 if tile == NARROW else 1
    body = f"""
  __local {acc} at[{depth}][{tile} + 4] __attribute__((aligned(16)));
  __local {acc} bt[{depth}][{tile} + 4] __attribute__((aligned(16)));
  const int lx = (int)get_local_id(0), ly = (int)get_local_id(1), id = ly * 16 + lx;
  const int m0 = (int)get_group_id(1) * {tile}, n0 = (int)get_group_id(0) * {tile};
  {form.batch()}
  {acc} c[{4 * squares}][{4 * squares}], na[{each}], nb[{each}];
  {_UNROLL} for (int i = 0; i < {4 * squares}; i++) {_UNROLL} for (int j = 0; j < {4 * squares}; j++) c[i][j] = 0;
  const int a_fast_k = sa_k == 1, b_fast_k = sb_k == 1 && sb_n != 1;
  for (int k0 = -{depth}; k0 < K; k0 += {depth}) {{
    const int next = k0 + {depth};
    {_UNROLL} for (int i = 0; i < {each}; i++) {{
      const int e = id + i * 256;
      const int am = a_fast_k ? e / {depth} : e % {tile}, ak = next + (a_fast_k ? e % {depth} : e / {tile});
      const int bn = b_fast_k ? e / {depth} : e % {tile}, bk = next + (b_fast_k ? e % {depth} : e / {tile});
      na[i] = (m0 + am < M && ak < K) ? ({acc})LOAD({form.a.name}, A, ao + (m0 + am) * sa_m + ak * sa_k) : ({acc})0;
      nb[i] = (n0 + bn < N && bk < K) ? ({acc})LOAD({form.b.name}, B, bo + bk * sb_k + (n0 + bn) * sb_n) : ({acc})0;
    }}
    {shared_products(acc, depth, squares, "c", added)}
    {_UNROLL} for (int i = 0; i < {each}; i++) {{
      const int e = id + i * 256;
      if (a_fast_k) at[e % {depth}][e / {depth}] = na[i]; else at[e / {tile}][e % {tile}] = na[i];
      if (b_fast_k) bt[e % {depth}][e / {depth}] = nb[i]; else bt[e / {tile}][e % {tile}] = nb[i];
    }}
    barrier(CLK_LOCAL_MEM_FENCE);
  }}
  {_UNROLL} for (int i = 0; i < {4 * squares}; i++) {{
    const int m = m0 + (i / 4) * {NARROW} + ly * 4 + i % 4;
    {form.rows("m")}
    {_UNROLL} for (int j0 = 0; j0 < {4 * squares}; j0 += {held}) {{
      {form.held(held)}
      {_UNROLL} for (int j = 0; j < {held}; j++) {{
        const int n = n0 + ((j0 + j) / 4) * {NARROW} + lx * 4 + (j0 + j) % 4;
        if (m < M && n < N) {{ {form.hold("j", "m", "n")} }}
      }}
      {_UNROLL} for (int j = 0; j < {held}; j++) {{
        const int n = n0 + ((j0 + j) / 4) * {NARROW} + lx * 4 + (j0 + j) % 4;
        if (m < M && n < N) {form.element("c[i][j0 + j]", "m", "n", "j")}
      }}
    }}
  }}"""
    group = "__attribute__((reqd_work_group_size(16, 16, 1)))"
    helpers = form.last.helper_text
    return kernel(f"{form.name}_shared{tile}", form.buffers, form.ints, body, helpers=helpers, attributes=group)


def shared_products(acc: str, depth: int, squares: int, sums: str, added: str) -> str:
    """Add what two tiles in local memory, ``at`` and ``bt``, give to *sums*, unless none has come yet.

    Args:
        acc: The type of sums.
        depth: Terms of a tile.
        squares: Squares of 4 × 4 in each direction that a work-item has.
        sums: The name of its sums.
        added: The new value of ``sums[i][j]``, of ``ra[i]`` and ``rb[j]``.
    """
    size = 4 * squares
    return f"""if (k0 >= 0) {{
      {_UNROLL} for (int k = 0; k < {depth}; k++) {{
        {acc} ra[{size}], rb[{size}];
        {_UNROLL} for (int i = 0; i < {size}; i++) {{
          ra[i] = at[k][(i / 4) * {NARROW} + ly * 4 + i % 4];
          rb[i] = bt[k][(i / 4) * {NARROW} + lx * 4 + i % 4];
        }}
        {_UNROLL} for (int i = 0; i < {size}; i++) {_UNROLL} for (int j = 0; j < {size}; j++) {sums}[i][j] = {added};
      }}
      barrier(CLK_LOCAL_MEM_FENCE);
    }}"""


def slice_products(acc: str, sums: str, left: str) -> str:
    """Add products of a line's step to its *sums*: of ``b``, a work-item's own, and of rows that it shares.

    Those lie in local memory, a column of the tile after the other, turned so that lines of a bank are met seldom.

    Args:
        acc: The type of sums.
        sums: The name of a work-item's sums.
        left: What loads element ``(m0 + i, k0 + lane)`` of the left-hand side.
    """
    rows, columns = SLICE_ROWS, SLICE_COLUMNS
    return f"""{_UNROLL} for (int i = 0; i < {rows}; i++)
      parts[line][lane * {rows} + (((i >> 2) ^ (lane >> 1)) & 3) * 4 + (i & 3)] = (m0 + i < M && k0 + lane < K)
          ? ({acc}){left} : ({acc})0;
    barrier(CLK_LOCAL_MEM_FENCE);
    {_UNROLL} for (int k = 0; k < {columns}; k++)
      {_UNROLL} for (int i = 0; i < {rows}; i++)
        {sums}[i] += parts[line][k * {rows} + (((i >> 2) ^ (k >> 1)) & 3) * 4 + (i & 3)] * b[k];
    barrier(CLK_LOCAL_MEM_FENCE);"""


def slice_sum(acc: str, sums: str) -> str:
    """Declare ``sum``: the sum of all lines' *sums* of row ``line`` and column ``lane``, in their order."""
    return f"""{_UNROLL} for (int i = 0; i < {SLICE_ROWS}; i++) parts[line][i * {SLICE_COLUMNS} + lane] = {sums}[i];
  barrier(CLK_LOCAL_MEM_FENCE);
  {acc} sum = 0;
  {_UNROLL} for (int i = 0; i < {SLICES}; i++) sum += parts[i][line * {SLICE_COLUMNS} + lane];"""


@functools.cache
def slices_kernel(form: ProductForm) -> KernelSource:
    """Tiles of 16 rows × 32 columns; 16 lines of 32 work-items each add a part of every sum, which are added in order.

    A line's work-items have a column each, so that they read rows of the right-hand side together.
    """
    acc = accumulator_type(form.a)
    rows, columns, slices = SLICE_ROWS, SLICE_COLUMNS, SLICES
    body = f"""
  __local {acc} parts[{slices}][{columns} * {rows}] __attribute__((aligned(16)));
  const int lane = (int)get_local_id(0), line = (int)get_local_id(1);
  const int m0 = (int)get_group_id(1) * {rows}, n = (int)get_group_id(0) * {columns} + lane;
  {form.batch()}
  {acc} c[{rows}];
  {_UNROLL} for (int i = 0; i < {rows}; i++) c[i] = 0;
  const int steps = ((K + {slices} - 1) / {slices} + {columns} - 1) / {columns};
  for (int step = 0; step < steps; step++) {{
    const int k0 = (line * steps + step) * {columns};
    {acc} b[{columns}];
    {_UNROLL} for (int k = 0; k < {columns}; k++)
      b[k] = (n < N && k0 + k < K) ? ({acc})LOAD({form.b.name}, B, bo + (k0 + k) * sb_k + n * sb_n) : ({acc})0;
    {slice_products(acc, "c", f"LOAD({form.a.name}, A, ao + (m0 + i) * sa_m + (k0 + lane) * sa_k)")}
  }}
  {slice_sum(acc, "c")}
  const int m = m0 + line;
  {form.rows("m")}
  if (m < M && n < N) {form.element("sum", "m", "n")}"""
    group = f"__attribute__((reqd_work_group_size({columns}, {slices}, 1)))"
    helpers = form.last.helper_text
    return kernel(f"{form.name}_slices", form.buffers, form.ints, body, helpers=helpers, attributes=group)


@functools.cache
def generic_kernel(form: ProductForm) -> KernelSource:
    """One result per work-item; any dtype, any strides. The reference for the others."""
    acc = accumulator_type(form.a)
    body = f"""
  const int n = (int)get_global_id(0), m = (int)get_global_id(1);
  if (n >= N) return;
  {form.batch()}
  {acc} c = 0;
  for (int k = 0; k < K; k++)
    c += ({acc})LOAD({form.a.name}, A, ao + m * sa_m + k * sa_k) * ({acc})LOAD({form.b.name}, B, bo + k * sb_k + n * sb_n);
  {form.rows("m")}
  {form.element("c", "m", "n")}"""
    return kernel(f"{form.name}_generic", form.buffers, form.ints, body, helpers=form.last.helper_text)
