"""Convolutions on GPUs: tiles of the product that `patches` describes, in local memory, or sums cut into parts.

The regimes are those of matrix products (`matmul.gpu`), and so are the kernels, but for where the right-hand side is.
"""

from __future__ import annotations

import functools

from asyncrt.kernels.codegen.epilogue import Epilogue
from asyncrt.kernels.codegen.source import accumulator_type, kernel
from asyncrt.kernels.impl import Impl, KernelSource, Launch, inp
from asyncrt.kernels.matmul.gpu import (
    GROUP,
    NARROW,
    SLICE_COLUMNS,
    SLICE_ROWS,
    SLICES,
    WIDE,
    Regime,
    choose_regime,
    depth_of,
    shared_products,
    slice_products,
    slice_sum,
)
from asyncrt.kernels.traits import DeviceTraits

from .interface import Convolution, bind_conv
from .patches import CHUNK, PatchForm, patches
from .tensor_cores import by_tensor_cores, takes

_HELD = 4  # results of a work-item whose operands are read before any of them is stored
_UNROLL = "__attribute__((opencl_unroll_hint))"  # so that arrays are registers


def suits(conv: Convolution, traits: DeviceTraits) -> bool:
    """Return whether there are kernels here for *conv*: of enough channels, and groups of enough work-items."""
    enough = conv.outputs >= 16 and conv.inputs > 0 and traits.max_group >= GROUP * GROUP
    return not traits.is_cpu and conv.dtype.is_float and enough


def by_patches(conv: Convolution, traits: DeviceTraits, after: Epilogue | None, *, constant: bool) -> Impl:
    """Return the implementation of *conv*, which `suits`."""
    product = patches(conv, packed=constant and traits.packed_weights)
    bound = bind_conv(conv, inp(0), product.filter, after)
    form = PatchForm.of(conv, bound.form)
    if takes(conv.dtype, traits):
        source, tile = by_tensor_cores(form, product, conv.group, traits)
        name, rows, columns, group = f"tensor cores {tile.rows}x{tile.columns}", tile.rows, tile.columns, (tile.group, 1)
    else:
        element = 8 if accumulator_type(conv.dtype) == "double" else 4
        regime = choose_regime(product.rows, product.columns, product.terms, conv.group, element, traits)
        name, rows, columns, group = regime.value, SLICE_ROWS, SLICE_COLUMNS, (SLICE_COLUMNS, SLICES)
        if regime is Regime.SLICES:
            source = _slices_kernel(form)
        else:
            rows = columns = WIDE if regime is Regime.WIDE else NARROW
            source, group = _shared_kernel(form, rows), (GROUP, GROUP)
    blocks = -(-product.rows // rows)
    grid = (-(-product.columns // columns) * group[0], conv.group * blocks * group[1])
    launch = Launch(source, bound.refs, (*product.ints, blocks, *bound.ints), grid, group)
    return Impl(name, (*product.launches, launch), product.scratch, product.requests)


@functools.cache
def _shared_kernel(form: PatchForm, tile: int) -> KernelSource:
    """As `matmul.gpu.shared_kernel`; each work-item reads neighbouring terms of one column."""
    t = form.conv.dtype
    acc, depth = accumulator_type(t), depth_of(t, tile)
    squares, each = tile // NARROW, tile * depth // (GROUP * GROUP)
    body = f"""
  __local {acc} at[{depth}][{tile} + 4] __attribute__((aligned(16)));
  __local {acc} bt[{depth}][{tile} + 4] __attribute__((aligned(16)));
  const int lx = (int)get_local_id(0), ly = (int)get_local_id(1), id = ly * 16 + lx;
  const int g = (int)get_group_id(1) / blocks, m0 = (int)get_group_id(1) % blocks * {tile}, n0 = (int)get_group_id(0) * {tile};
  const int bn = id % {tile}, bk = id / {tile} * {each};
  {form.column("n0 + bn")}
  {form.start("bk")}
  __global const {t.c}* const rows = f + (g * M + m0) * K;
  {acc} s[{4 * squares}][{4 * squares}], na[{each}], nb[{each}];
  {_UNROLL} for (int i = 0; i < {4 * squares}; i++) {_UNROLL} for (int j = 0; j < {4 * squares}; j++) s[i][j] = 0;
  for (int k0 = -{depth}; k0 < K; k0 += {depth}) {{
    const int next = k0 + {depth};
    {_UNROLL} for (int i = 0; i < {each}; i++) {{
      const int e = id + i * 256, am = e / {depth}, ak = next + e % {depth};
      na[i] = (m0 + am < M && ak < K) ? ({acc})LOAD({t.name}, rows, am * K + ak) : ({acc})0;
      nb[i] = ({acc}){form.value("i")};
    }}
    {form.advance(depth)}
    {shared_products(acc, depth, squares, "s", "fma(ra[i], rb[j], s[i][j])")}
    {_UNROLL} for (int i = 0; i < {each}; i++) {{
      const int e = id + i * 256;
      at[e % {depth}][e / {depth}] = na[i];
      bt[bk + i][bn] = nb[i];
    }}
    barrier(CLK_LOCAL_MEM_FENCE);
  }}
  {acc} added[{4 * squares}];
  {_UNROLL} for (int i = 0; i < {4 * squares}; i++) {{
    const int m = m0 + (i / 4) * {NARROW} + ly * 4 + i % 4;
    added[i] = m < M ? {form.bias("m")} : 0;
  }}
  {_UNROLL} for (int j = 0; j < {4 * squares}; j++) {{
    const int q = n0 + (j / 4) * {NARROW} + lx * 4 + j % 4;
    {form.place("q")}
    {_UNROLL} for (int i0 = 0; i0 < {4 * squares}; i0 += {_HELD}) {{
      {form.held(_HELD)}
      {_UNROLL} for (int i = 0; i < {_HELD}; i++) {{
        const int m = m0 + ((i0 + i) / 4) * {NARROW} + ly * 4 + (i0 + i) % 4;
        if (m < M && q < Q) {{ {form.hold("i", "m")} }}
      }}
      {_UNROLL} for (int i = 0; i < {_HELD}; i++) {{
        const int m = m0 + ((i0 + i) / 4) * {NARROW} + ly * 4 + (i0 + i) % 4;
        if (m < M && q < Q) {form.element("s[i0 + i][j] + added[i0 + i]", "m", held="i")}
      }}
    }}
  }}"""
    group = "__attribute__((reqd_work_group_size(16, 16, 1)))"
    last = form.conv.last
    return kernel(f"conv_shared{tile}", form.conv.buffers, form.ints, body, helpers=last.helpers, attributes=group)


@functools.cache
def _slices_kernel(form: PatchForm) -> KernelSource:
    """As `matmul.gpu.slices_kernel`; a line's work-items have a column each."""
    t = form.conv.dtype
    acc = accumulator_type(t)
    rows, columns, slices = SLICE_ROWS, SLICE_COLUMNS, SLICES
    body = f"""
  __local {acc} parts[{slices}][{columns} * {rows}] __attribute__((aligned(16)));
  const int lane = (int)get_local_id(0), line = (int)get_local_id(1), q = (int)get_group_id(0) * {columns} + lane;
  const int g = (int)get_group_id(1) / blocks, m0 = (int)get_group_id(1) % blocks * {rows};
  const int steps = ((K + {slices} - 1) / {slices} + {columns} - 1) / {columns};
  {form.column("q")}
  {form.start(f"line * steps * {columns}")}
  __global const {t.c}* const filters = f + (g * M + m0) * K;
  {acc} s[{rows}];
  {_UNROLL} for (int i = 0; i < {rows}; i++) s[i] = 0;
  for (int step = 0; step < steps; step++) {{
    const int k0 = (line * steps + step) * {columns};
    {acc} b[{columns}];
    {_UNROLL} for (int j = 0; j < {columns // CHUNK}; j++) {{
      {_UNROLL} for (int i = 0; i < {CHUNK}; i++) b[j * {CHUNK} + i] = ({acc}){form.value("i")};
      {form.advance(CHUNK)}
    }}
    {slice_products(acc, "s", f"LOAD({t.name}, filters, i * K + k0 + lane)")}
  }}
  {slice_sum(acc, "s")}
  const int m = m0 + line;
  {form.place("q")}
  if (m < M && q < Q) {form.element(f"sum + {form.bias('m')}", "m")}"""
    group = f"__attribute__((reqd_work_group_size({columns}, {slices}, 1)))"
    last = form.conv.last
    return kernel("conv_slices", form.conv.buffers, form.ints, body, helpers=last.helpers, attributes=group)
