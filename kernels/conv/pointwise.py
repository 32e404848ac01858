"""Convolutions of one cell, of float32 on CPU devices, whose vectors hold positions.

Such a convolution is a product of matrices: its filter, ``[M, C]``, and a picture, ``[C, positions]``. A tile is some
channels of the result × 32 or 16 neighbouring positions. These are loaded and stored as they lie, and channels are
counted in steps of a tile's few rows. Where vectors hold channels (`packed.py`) results are turned, which takes as long
as multiplying a dozen channels, and up to 31 places of the last block have nothing to do.

The sums are the same chains of ``fma`` as there, so no result tells which of the two has run.
"""

from __future__ import annotations

import functools

from asyncrt.devices.base import Registers
from asyncrt.kernels.arithmetic import greatest, least
from asyncrt.kernels.codegen import epilogue
from asyncrt.kernels.codegen.epilogue import SOME, Epilogue
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.codegen.tiles import FETCH, RegisterTile, tile_of
from asyncrt.kernels.impl import Impl, KernelSource, Launch, inp
from asyncrt.kernels.patterns.grid import round_up
from asyncrt.kernels.traits import DeviceTraits

from .interface import ConvForm, Convolution, bind_conv
from .packed import blocked

_LEAST = 160  # positions, of which at most a tenth are calculated twice
# What a tile costs beside its products, in channels of the input: here, and where results are turned. What is gained by
# that count has to be a ninth at least: channels lie far apart in memory, and tiles of positions walk all of them.
_FINISH, _TURNED = 4, 12
_GAIN = (10, 9)
# From so many positions on, results of more channels than there are inputs find no place in a cache, the less the more
# positions are a multiple of a page; where they are none it is as fast either way, and one rule has fewer plans.
_FAR = 12288
_WORK = 1 << 17  # products of vectors that a work-item should have


def suits_positions(conv: Convolution, traits: DeviceTraits, after: Epilogue | None) -> bool:
    """Whether *conv* is faster this way; it has float32 and a constant filter, and the device is a CPU."""
    w = conv.window
    if w.size != (1, 1, 1) or not _gains(conv.inputs, conv.outputs, traits.registers):
        return False
    positions = _positions(conv)
    if not w.is_identity or not epilogue.join(after, 2)[0] or positions < _LEAST:
        return False
    return conv.outputs <= conv.inputs or positions < _FAR


def _gains(inputs: int, outputs: int, registers: Registers) -> bool:
    mine, other = _GAIN
    cost = round_up(outputs, tile_of(registers).rows) * (inputs + _FINISH)
    return cost * mine < blocked(outputs, registers) * (inputs + _TURNED) * other


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
    # The last positions and the last channels are moved back: what was calculated before is not stored again.
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
      {_widths(form, tile)}
    }}
  }}"""
    one = "__attribute__((reqd_work_group_size(1, 1, 1)))"
    ints, helpers = (*_INTS, *form.last.ints), FETCH + SOME + form.last.helpers
    return kernel("conv_positions", form.buffers, ints, body, helpers=helpers, attributes=one)


def _widths(form: ConvForm, tile: RegisterTile) -> str:
    """Return statements that compute a tile, or at the end one of half as many columns, if they do."""
    whole = _computed(form, tile, whole=True)
    if tile.columns == 16:
        return whole
    return f"if (left > 16) {{ {whole} }} else {{ {_computed(form, tile._replace(columns=16), whole=False)} }}"


def _computed(form: ConvForm, tile: RegisterTile, *, whole: bool) -> str:
    """Return statements that compute and store a tile.

    Args:
        whole: Whether all of it may have to be stored.
    """
    rows, vectors, columns = range(tile.rows), range(tile.columns // 16), tile.columns
    zero = " ".join(
        f"const float s{i} = {f'bias[oc + {i}]' if form.bias else '0.0f'}; "
        + " ".join(f"float16 a{i}_{v} = s{i};" for v in vectors)
        for i in rows
    )
    loads = ", ".join(f"b{v} = vload16({v}, row)" for v in vectors)
    multiply = " ".join(
        f"e = w[{i} * C + c]; " + " ".join(f"a{i}_{v} = fma(e, b{v}, a{i}_{v});" for v in vectors) for i in rows
    )
    fetch = " ".join(f"ASYNCRT_FETCH(row + next + {16 * v});" for v in vectors) if whole else ""
    return f"""
        const int p0 = min(from, P - {columns}), done = from - p0;
        __global const float* row = xg + p0;
        __global float* const to = y + channel * P + p0;
        {_fetched_results(form, tile) if whole else ""}
        {zero}
        for (int c = 0; c < C; c++, row += P) {{
          const float16 {loads}; float16 e;
          {fetch}
          {multiply}
        }}
        {_stored(form, tile, whole)}"""


def _fetched_results(form: ConvForm, tile: RegisterTile) -> str:
    """Return statements that fetch where the results go, and what they meet there: each channel has lines of its own."""
    last, end = form.last, tile.columns - 1
    meets = last.fetched("p0", end)
    return f"""for (int i = 0; i < {tile.rows}; i++) {{
          ASYNCRT_FETCH_TO_WRITE(to + i * P); ASYNCRT_FETCH_TO_WRITE(to + i * P + {end});
          {f"{last.rows('channel + i')} {meets}" if meets else ""}
        }}"""


def _stored(form: ConvForm, tile: RegisterTile, whole: bool) -> str:
    """Return statements that store a tile, but for its first ``skipped`` rows and its first ``done`` columns."""
    last, columns, vectors = form.last, tile.columns, range(tile.columns // 16)
    if last.vector:
        one = last.stored_some("to + i * P + k", "p0 + k", "vload16(0, sums + k)", f"{columns} - k")
        some = f"for (int k = done; k < {columns}; k += 16) {one}"
    else:
        one = last.element(form.dtype, "to", "i * P + k", "p0 + k", "sums[k]")
        some = f"for (int k = done; k < {columns}; k++) {one}"
    spill = " ".join(f"vstore16(a{i}_{v}, {i * len(vectors) + v}, t);" for i in range(tile.rows) for v in vectors)
    part = f"""float t[{tile.rows * columns + 16}] __attribute__((aligned(64)));
          {spill}
          for (int i = skipped; i < {tile.rows}; i++) {{
            const float* const sums = t + i * {columns};
            {last.rows("channel + i")}
            {some}
          }}"""
    if not (whole and last.vector):
        return f"{{ {part} }}"
    each = " ".join(
        f"{{ {last.rows(f'channel + {i}')} "
        + " ".join(last.stored_vector(f"to + {i} * P + {16 * v}", f"p0 + {16 * v}", f"a{i}_{v}") for v in vectors)
        + " }"
        for i in range(tile.rows)
    )
    return f"""if (skipped == 0 && done == 0) {{ {each} }} else {{
          {part}
        }}"""
