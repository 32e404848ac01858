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
# How many inputs of a tile's positions are copied beside each other, if so many tiles of channels read them: rows of a
# picture lie far apart, and begin anywhere in a cache line.
_NEAR, _OFTEN = 1 << 15, 16


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
    near = conv.inputs * tile.columns <= _NEAR and tiles >= _OFTEN
    ints = (conv.inputs, conv.outputs, conv.group, positions, across, each, tiles, -(-tiles // parts))
    bound = bind_conv(conv, inp(0), inp(1), epilogue.join(after, 2)[1])
    grid = (items, parts, planes)
    launch = Launch(_kernel(bound.form, tile, near), bound.refs, (*ints, *bound.ints), grid, (1, 1, 1))
    return Impl(f"positions {tile.rows}x{tile.columns}", (launch,))


_INTS = ("C", "M", "G", "P", "across", "each", "tiles", "part")


@functools.cache
def _kernel(form: ConvForm, tile: RegisterTile, near: bool) -> KernelSource:
    """Return the kernel of tiles of the form *tile*.

    Args:
        near: Copies the inputs of a tile's positions to where they lie beside each other, for all channels.
    """
    results = Results("y + channel * P", "P", "P", "channel + i")

    def products(part: RegisterTile, whole: bool) -> str:
        return _products_near(part, tile.columns) if near else _products(part, whole)

    body = f"""
  const int g = (int)get_global_id(2) % G, n = (int)get_global_id(2) / G;
  const int i0 = (int)get_global_id(0) * each, i1 = min(i0 + each, across);
  const int t0 = (int)get_global_id(1) * part, t1 = min(t0 + part, tiles);
  __global const float* const xg = x + (n * G + g) * C * P;
  {f"float near[{_NEAR}] __attribute__((aligned(64)));" if near else ""}
  for (int i = i0; i < i1; i++) {{
    const int from = i * {tile.columns}, left = P - from, next = i + 1 < i1 ? {tile.columns} : 0;
    {_copied(tile) if near else ""}
    for (int t = t0; t < t1; t++) {{
      const int r0 = min(t * {tile.rows}, M - {tile.rows}), skipped = t * {tile.rows} - r0;
      const int oc = g * M + r0, channel = n * G * M + oc;
      __global const float* const w = f + oc * C;
      {computed(form, tile, results, products)}
    }}
  }}"""
    one, name = "__attribute__((reqd_work_group_size(1, 1, 1)))", "conv_near_positions" if near else "conv_positions"
    ints, helpers = (*_INTS, *form.last.ints), FETCH + SOME + form.last.helpers
    return kernel(name, form.buffers, ints, body, helpers=helpers, attributes=one)


def _products(tile: RegisterTile, whole: bool) -> str:
    fetch = " ".join(f"ASYNCRT_FETCH(row + next + {16 * v});" for v in range(tile.columns // 16)) if whole else ""
    return f"""__global const float* row = xg + p0;
        for (int c = 0; c < C; c++, row += P) {{
          {fetch}
          {multiplied(tile, lambda i: f"w[{i} * C + c]", lambda v: f"vload16({v}, row)")}
        }}"""


def _copied(tile: RegisterTile) -> str:
    """Copy the inputs of a tile's positions, or of the half that there is, to ``near``, ``[C, columns]``."""
    vectors = range(tile.columns // 16)
    copies = " ".join(
        f"ASYNCRT_FETCH(row + next + {16 * v}); if ({16 * v} < columns) vstore16(vload16({v}, row), {v}, to);"
        for v in vectors
    )
    return f"""const int columns = left > 16 ? {tile.columns} : 16;
    __global const float* row = xg + min(from, P - columns);
    float* to = near;
    for (int c = 0; c < C; c++, row += P, to += {tile.columns}) {{ {copies} }}"""


def _products_near(tile: RegisterTile, apart: int) -> str:
    """Multiply what `_copied` has copied, of which that of each channel is *apart* elements from the one before."""
    each = multiplied(tile, lambda i: f"w[{i} * C + c]", lambda v: f"vload16({v}, row)")
    return f"""const float* row = near;
        for (int c = 0; c < C; c++, row += {apart}) {{ {each} }}"""
