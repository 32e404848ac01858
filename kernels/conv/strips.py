"""Convolutions of the few channels of a picture or a sound, of float32 on CPU devices, whose vectors hold positions.

A window of 3 × 3 cells over three channels is 27 products, so little that turning results, as `packed.py` does, and
picking every other element of a row take longer than multiplying. A work-item computes some rows of the result. First it
writes out what they see: with the borders, and where windows are two elements apart the even columns of a row in front
of the odd ones, so that whatever cell of the windows is multiplied, that of neighbouring positions lies side by side.
Then tiles (`positions.py`) go along the rows.

The sums are the same chains of ``fma`` as in `packed.py`, so no result tells which of the two has run.
"""

from __future__ import annotations

import functools

from asyncrt.kernels.arithmetic import greatest, least
from asyncrt.kernels.codegen.epilogue import SOME, Epilogue
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.codegen.tiles import FETCH, RegisterTile, tile_of
from asyncrt.kernels.impl import Impl, KernelSource, Launch, inp
from asyncrt.kernels.patterns.grid import round_up
from asyncrt.kernels.traits import DeviceTraits

from .interface import ConvForm, Convolution, bind_conv
from .positions import Results, computed, multiplied

_CHANNELS = 4  # of a picture with a mask; more take longer to be written out, and turning results counts for less
_CELLS = 7  # of a window's row, whose products are written out one after the other
_LEAST = 32  # positions of a row: those of the widest tile
_WORK = 1 << 18  # products of vectors that a work-item should have
_STRIP = 1 << 14  # elements that a work-item writes out, in memory of its own, which is near as long as one core has it


def suits_strips(conv: Convolution) -> bool:
    """Whether *conv* is faster this way; it has float32 and a constant filter, and the device is a CPU."""
    w = conv.window
    near = w.size[0] == w.outs[0] == w.spatial[0] == 1 and w.dilations == (1, 1, 1) and w.strides[2] in (1, 2)
    few = conv.group == 1 and conv.inputs <= _CHANNELS and 1 < w.size[2] <= _CELLS
    return near and few and min(w.before) >= 0 == w.before[0] and w.outs[2] >= _LEAST and _rows(conv) >= 1


def _rows(conv: Convolution) -> int:
    """Return of how many rows what they see has room in a strip; 0 if there is none for one."""
    w = conv.window
    return greatest(0, (_STRIP // (conv.inputs * w.strides[2] * _run(conv)) - w.size[1]) // w.strides[1] + 1)


def _run(conv: Convolution) -> int:
    """Return how long that is of a row of the input, for each distance of cells from the first column of their window."""
    w = conv.window
    return round_up(w.outs[2] + (w.size[2] - 1) // w.strides[2], 16)


def by_strips(conv: Convolution, traits: DeviceTraits, after: Epilogue | None) -> Impl:
    """Return the implementation of *conv*, which `suits_strips`."""
    w, tile = conv.window, tile_of(traits.registers)
    (_, high, wide), (_, oh, ow), (_, kh, kw), (_, sh, sw) = w.spatial, w.outs, w.size, w.strides
    tiles, across = -(-conv.outputs // tile.rows), -(-ow // tile.columns)
    row = conv.inputs * kh * kw * tile.rows * tiles * across
    rows = greatest(1, least(least(-(-_WORK // row), _rows(conv)), conv.batch * oh // (4 * traits.compute_units)))
    down = -(-oh // rows)
    deep = (-(-oh // down) - 1) * sh + kh
    read = least(wide, (ow - 1) * sw + kw - w.before[2])
    ints = (
        conv.inputs, conv.outputs, high, wide, oh, ow, kh, sh, *w.before[1:], tiles, across, down, deep, _run(conv), read,
    )  # fmt: skip
    bound = bind_conv(conv, inp(0), inp(1), after)
    grid = (conv.batch * down,)
    launch = Launch(_kernel(bound.form, tile, kw, sw), bound.refs, (*ints, *bound.ints), grid, (1,))
    return Impl(f"strips {tile.rows}x{tile.columns}", (launch,))


_INTS = (
    "C", "M", "H", "W", "OH", "OW", "KH", "sh", "ph", "pw", "tiles", "across", "down", "deep", "run", "read",
)  # fmt: skip


@functools.cache
def _kernel(form: ConvForm, tile: RegisterTile, cells: int, stride: int) -> KernelSource:
    results = Results("y + (channel * OH + h) * OW", "OW", "OH * OW", "(channel + i) * OH + h", short=True)
    products = functools.partial(_products, cells=cells, stride=stride)
    body = f"""
  float strip[{_STRIP}] __attribute__((aligned(64)));
  const int n = (int)get_global_id(0) / down, d = (int)get_global_id(0) % down;
  const int h0 = d * OH / down, h1 = (d + 1) * OH / down, seen = (h1 - h0 - 1) * sh + KH, K = C * KH * {cells};
  for (int c = 0; c < C; c++)
    for (int i = 0; i < seen; i++) {{
      const int h = h0 * sh - ph + i;
      float* const to = strip + (c * deep + i) * {stride} * run;
      const int inside = h >= 0 && h < H, zeros = inside ? max(0, (pw + read) / {stride} - 1) : 0;
      for (int k = 0; k < {stride}; k++) {{
        for (int e = 0; e <= pw / {stride}; e += 16) vstore16((float16)(0.0f), 0, to + k * run + min(e, run - 16));
        for (int e = zeros; e < run; e += 16) vstore16((float16)(0.0f), 0, to + k * run + min(e, run - 16));
      }}
      if (inside) $_written(x + ((n * C + c) * H + h) * W, read, to, run, pw);
    }}
  for (int h = h0; h < h1; h++)
    for (int j = 0; j < across; j++) {{
      const int from = j * {tile.columns}, left = OW - from;
      for (int t = 0; t < tiles; t++) {{
        const int oc = min(t * {tile.rows}, M - {tile.rows}), skipped = t * {tile.rows} - oc, channel = n * M + oc;
        const float* const first = strip + (h - h0) * sh * {stride} * run;
        {computed(form, tile, results, products)}
      }}
    }}"""
    one = "__attribute__((reqd_work_group_size(1, 1, 1)))"
    helpers = FETCH + SOME + _WRITTEN[stride] + form.last.helpers
    return kernel("conv_strips", form.buffers, (*_INTS, *form.last.ints), body, helpers=helpers, attributes=one)


def _products(tile: RegisterTile, whole: bool, *, cells: int, stride: int) -> str:
    def one(k: int) -> str:
        at = f"row + {k % stride} * run + {k // stride}"
        return f"{{ {multiplied(tile, lambda i: f'w[{i} * K + {k}]', lambda v: f'vload16({v}, {at})')} }}"

    return f"""__global const float* w = f + oc * K;
        for (int c = 0; c < C; c++) {{
          const float* row = first + c * deep * {stride} * run + p0;
          for (int k = 0; k < KH; k++, row += {stride} * run, w += {cells}) {{
            {" ".join(map(one, range(cells)))}
          }}
        }}"""


# ``$_written(row, n, to, run, before)`` writes the first n elements of a row where windows see them, `before` elements
# behind where they begin.
_WRITTEN = {
    1: """
inline void $_written(__global const float* row, int n, float* to, int run, int before) {
  int c = 0;
  for (; c + 16 <= n; c += 16) vstore16(vload16(0, row + c), 0, to + before + c);
  for (; c < n; c++) to[before + c] = row[c];
}""",
    2: """
inline void $_written(__global const float* row, int n, float* to, int run, int before) {
  float* const even = to + before / 2 + before % 2 * run;
  float* const odd = to + (before + 1) / 2 + (1 - before % 2) * run;
  int c = 0;
  for (; c + 16 <= n; c += 16) {
    const float16 v = vload16(0, row + c);
    vstore8(v.even, 0, even + c / 2);
    vstore8(v.odd, 0, odd + c / 2);
  }
  for (; c < n; c++) (c % 2 ? odd : even)[c / 2] = row[c];
}""",
}
