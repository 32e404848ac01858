"""Convolutions of one cell, of float32 on CPU devices, whose vectors hold positions.

Such a convolution is a product of matrices: its filter, ``[M, C]``, and a picture, ``[C, positions]``, of which a tile
(`positions.py`) loads as they lie what it multiplies. Where vectors hold channels (`packed.py`) results are turned, which
takes as long as multiplying a dozen channels, and up to 31 places of the last block have nothing to do.

The sums are the same chains of ``fma`` as there, so no result tells which of the two has run.
"""

from __future__ import annotations

import functools

from asyncrt.kernels.arithmetic import greatest, least
from asyncrt.kernels.codegen import epilogue
from asyncrt.kernels.codegen.epilogue import SOME, Epilogue
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.codegen.tiles import FETCH, RegisterTile, tile_of
from asyncrt.kernels.impl import Impl, KernelSource, Launch, inp
from asyncrt.kernels.traits import DeviceTraits

from .interface import ConvForm, Convolution, bind_conv
from .positions import Results, computed, multiplied

_LEAST = 160  # positions, of which at most a tenth are calculated twice
# From so many positions on, results of more channels than there are inputs find no place in a cache, the less the more
# positions are a multiple of a page; where they are none it is as fast either way, and one rule has fewer plans.
_FAR = 12288
_WORK = 1 << 17  # products of vectors that a work-item should have


def suits_positions(conv: Convolution, traits: DeviceTraits, after: Epilogue | None) -> bool:
    """Whether *conv* is faster this way; it has float32 and a constant filter, and the device is a CPU."""
    w = conv.window
    if w.size != (1, 1, 1) or not w.is_identity or not epilogue.join(after, 2)[0]:
        return False
    positions = _positions(conv)
    return positions >= _LEAST and (conv.outputs <= conv.inputs or positions < _FAR)


def _positions(conv: Convolution) -> int:
    od, oh, ow = conv.window.outs
    return od * oh * ow


def by_positions(conv: Convolution, traits: DeviceTraits, after: Epilogue | None) -> Impl:
    """Return the implementation of *conv*, which `suits_positions`."""
    tile, positions, planes = tile_of(traits.registers), _positions(conv), conv.batch * conv.group
    tiles, across = -(-conv.outputs // tile.rows), -(-positions // tile.columns)
    # A work-item walks all channels of its positions, which stay near meanwhile, if there is enough to do for every core.
    each = greatest(1, least(_WORK // (conv.inputs * tile.rows * tiles), across * planes // (4 * traits.compute_units)))
    items = -(-across // each)
    parts = least(tiles, -(-4 * traits.compute_units // (items * planes)))
    ints = (conv.inputs, conv.outputs, conv.group, positions, across, each, tiles, -(-tiles // parts))
    bound = bind_conv(conv, inp(0), inp(1), epilogue.join(after, 2)[1])
    grid = (items, parts, planes)
    launch = Launch(_kernel(bound.form, tile), bound.refs, (*ints, *bound.ints), grid, (1, 1, 1))
    return Impl(f"positions {tile.rows}x{tile.columns}", (launch,))


_INTS = ("C", "M", "G", "P", "across", "each", "tiles", "part")


@functools.cache
def _kernel(form: ConvForm, tile: RegisterTile) -> KernelSource:
    results = Results("y + channel * P", "P", "P", "channel + i")
    body = f"""
  const int g = (int)get_global_id(2) % G, n = (int)get_global_id(2) / G;
  const int i0 = (int)get_global_id(0) * each, i1 = min(i0 + each, across);
  const int t0 = (int)get_global_id(1) * part, t1 = min(t0 + part, tiles);
  __global const float* const xg = x + (n * G + g) * C * P;
  for (int i = i0; i < i1; i++) {{
    const int from = i * {tile.columns}, left = P - from, next = i + 1 < i1 ? {tile.columns} : 0;
    for (int t = t0; t < t1; t++) {{
      const int r0 = min(t * {tile.rows}, M - {tile.rows}), skipped = t * {tile.rows} - r0;
      const int oc = g * M + r0, channel = n * G * M + oc;
      __global const float* const w = f + oc * C;
      {computed(form, tile, results, _products)}
    }}
  }}"""
    one = "__attribute__((reqd_work_group_size(1, 1, 1)))"
    ints, helpers = (*_INTS, *form.last.ints), FETCH + SOME + form.last.helpers
    return kernel("conv_positions", form.buffers, ints, body, helpers=helpers, attributes=one)


def _products(tile: RegisterTile, whole: bool) -> str:
    fetch = " ".join(f"ASYNCRT_FETCH(row + next + {16 * v});" for v in range(tile.columns // 16)) if whole else ""
    return f"""__global const float* row = xg + p0;
        for (int c = 0; c < C; c++, row += P) {{
          {fetch}
          {multiplied(tile, lambda i: f"w[{i} * C + c]", lambda v: f"vload16({v}, row)")}
        }}"""
