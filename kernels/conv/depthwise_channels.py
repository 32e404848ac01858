"""Depthwise convolutions of float32 on CPU devices whose rows are short: a vector holds 16 channels of one position.

Where rows are shorter than a vector of positions (`depthwise.py`), most of it would be empty. So positions are turned on
their way in, and on their way out; in between no vector has an empty place, and no row of cells outside of the input is
multiplied.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from asyncrt.kernels.arithmetic import greatest, least
from asyncrt.kernels.codegen import epilogue
from asyncrt.kernels.codegen.epilogue import SOME, Epilogue
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.codegen.tiles import tile_of
from asyncrt.kernels.impl import Impl, KernelSource, Launch, WeightsRequest, chosen, inp, scratch, weights
from asyncrt.kernels.patterns.grid import round_up
from asyncrt.kernels.patterns.window import Window
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32, Array

from .interface import ConvForm, Convolution, bind_conv
from .packed import WORK
from .turned import turned_in, turned_out

_SHORT = 15  # positions of the longest row
_KEPT = 1024  # positions of 16 channels that are turned at once, 64 KiB; with the cells around them twice as many
_WRITTEN = 7  # cells of a window's row that are written out
_NEAR = 2  # strides and dilations


class _Tile(NamedTuple):
    """What is written out in a kernel: positions of a row, its cells, and their strides and dilations."""

    width: int
    cells: int
    stride: int
    dilation: int


def suits(conv: Convolution, after: Epilogue | None) -> bool:
    """Whether *conv* is of this kind; it has float32, and the device is a CPU."""
    w = conv.window
    flat = w.size[0] == w.spatial[0] == w.outs[0] == 1 and w.before[0] == 0
    depthwise = conv.inputs == conv.outputs == 1 and conv.group >= 16 and w.size != (1, 1, 1)
    if not (flat and depthwise and near(w)) or w.outs[2] > _SHORT:
        return False
    _, high, _ = w.spatial
    enough = w.spatial[1] * w.spatial[2] >= 16 and w.outs[1] * w.outs[2] >= 16
    # A picture's positions, at any stride: so that layers of a network, each of half the sides, go past this at the same
    # sizes of what the network is given, as `expanded.py:_near` says.
    small = high * w.spatial[2] < _KEPT and high * _line(conv) < 2 * _KEPT
    return enough and small and plain(after)


def near(window: Window) -> bool:
    """Whether a row of the window's cells can be written out in a kernel."""
    written = window.size[2] <= _WRITTEN and max(window.strides[2], window.dilations[2]) <= _NEAR
    return written and min(window.before) >= 0


def plain(after: Epilogue | None) -> bool:
    """Whether *after* is calculated in vectors of positions that are one row."""
    return after is None or (after.vector and epilogue.join(after, 2)[0])


def _line(conv: Convolution) -> int:
    """Return how many columns the windows of a row see."""
    w = conv.window
    return (w.outs[2] - 1) * w.strides[2] + w.extents[2]


def pack_filters(weight: Array, multiple: int = 16) -> Array:
    """Return a filter ``[M, 1, cells...]`` as ``[ceil(M / 16), cells, 16]``, padded with zeros to a multiple of channels."""
    flat = weight.reshape(len(weight), -1)
    packed = np.zeros((round_up(len(flat), multiple), flat.shape[1]), weight.dtype)
    packed[: len(flat)] = flat
    return np.ascontiguousarray(packed.reshape(-1, 16, flat.shape[1]).swapaxes(1, 2))


def filters_wanted(source: int, conv: Convolution, multiple: int = 16) -> WeightsRequest:
    """Return the filter of *conv*, which is input *source*, as kernels with vectors of channels read it."""
    elements = round_up(conv.group, multiple) * math.prod(conv.window.size)
    return WeightsRequest(source, f"depthwise, {multiple} channels", _packer(multiple), elements)


@functools.cache
def _packer(multiple: int) -> Callable[[Array], Array]:
    return functools.partial(pack_filters, multiple=multiple)


def by_channels(conv: Convolution, traits: DeviceTraits, after: Epilogue | None) -> Impl:
    """Return the implementation of *conv*, which `suits`."""
    w = conv.window
    _, oh, ow = w.outs
    _, kh, kw = w.size
    most = tile_of(traits.registers).rows
    width = -(-ow // -(-ow // most))
    blocks, line = -(-conv.group // 16), _line(conv)
    units = conv.batch * blocks
    per_item = greatest(1, least(-(-units // (4 * traits.compute_units)), WORK // (oh * ow * kh * kw)))
    items = -(-units // per_item)
    near = (w.spatial[1] * line + 1) * 16
    done = near + (oh * ow + 16) * 16
    room = round_up(done + w.spatial[1] * w.spatial[2], 16)
    ints = (
        conv.group, *w.spatial[1:], oh, ow, kh, *w.before[1:], w.strides[1], w.dilations[1], blocks, line, units, per_item,
        near, done, room,
    )  # fmt: skip
    bound = bind_conv(conv, inp(0), weights(0), epilogue.join(after, 2)[1])
    source, filters, target, *rest = bound.refs
    k = chosen(width, _kernel_of, bound.form, _Tile(1, kw, w.strides[2], w.dilations[2]))
    launch = Launch(k, (source, filters, target, scratch(0), *rest), (*ints, *bound.ints), (items,), (1,))
    return Impl(f"depthwise channels {width}", (launch,), (items * room * 4,), (filters_wanted(1, conv),))


_INTS = (
    "G", "H", "W", "OH", "OW", "KH", "ph", "pw", "sh", "dh", "blocks", "line", "units", "per_item", "done_at", "places_at",
    "room",
)  # fmt: skip


def _kernel_of(form: ConvForm, tile: _Tile, width: int) -> KernelSource:
    return _kernel(form, tile._replace(width=width))


@functools.cache
def _kernel(form: ConvForm, tile: _Tile) -> KernelSource:
    last, positions = form.last, range(tile.width)
    again = all(step == 0 for step in last.steps)  # no operand lies as the result does, perhaps where it lies
    zero = " ".join(f"float16 a{p} = start;" for p in positions)
    multiply = " ".join(
        f"{{ const float16 w = vload16(kh * {tile.cells} + {k}, fb); "
        + " ".join(
            f"a{p} = fma(w, vload16({p * tile.stride + k * tile.dilation}, from), a{p});" for p in positions
        )
        + " }"
        for k in range(tile.cells)
    )
    keep = " ".join(f"vstore16(a{p}, {p}, to);" for p in positions)
    at, value = "y + row * P + c", "vload16(0, z + j * 16)"
    body = f"""
  __global float* const near = own + (int)get_global_id(0) * room, * const done = near + done_at;
  __global int* const places = (__global int*)(near + places_at);
  const int u1 = min(((int)get_global_id(0) + 1) * per_item, units), P = OH * OW, other = H * line;
  for (int h = 0; h < H; h++)  /* what no window sees has a place behind the others; the borders stay zero */
    for (int c = 0; c < W; c++) places[h * W + c] = (c + pw < line ? h * line + c + pw : other) * 16;
  for (int i = 0; i < other; i++) vstore16((float16)(0.0f), i, near);
  for (int u = (int)get_global_id(0) * per_item; u < u1; u++) {{
    const int n = u / blocks, c0 = u % blocks * 16;
    __global const float* const xn = x + n * G * H * W;
    __global const float* const fb = f + c0 * KH * {tile.cells};
    for (int p = 0; p < H * W; p += 16) {{
      const int p0 = min(p, H * W - 16);
      $_turned(xn + p0, c0, G, H * W, near, places + p0);
    }}
    float add[16];
    for (int j = 0; j < 16; j++) add[j] = {"bias[min(c0 + j, G - 1)]" if form.bias else "0.0f"};
    const float16 start = vload16(0, add);
    for (int oh = 0; oh < OH; oh++)
      for (int t = 0; t < OW; t += {tile.width}) {{
        const int ow = min(t, OW - {tile.width});
        {zero}
        for (int kh = 0; kh < KH; kh++) {{
          const int ih = oh * sh + kh * dh - ph;
          if (ih < 0 || ih >= H) continue;
          __global const float* const from = near + (ih * line + ow * {tile.stride}) * 16;
          {multiply}
        }}
        __global float* const to = done + (oh * OW + ow) * 16;
        {keep}
      }}
    for (int p = 0; p < P; p += 16) {{
      const int c = {"min(p, P - 16)" if again else "p"};
      float z[256] __attribute__((aligned(64)));
      $_turned_out(done + c * 16, z);
      for (int j = 0; j < min(16, G - c0); j++) {{
        const int row = n * G + c0 + j;
        {last.rows("row")}
        if (P - c >= 16) {last.stored_vector(at, "c", value)}
        else {last.stored_some(at, "c", value, "P - c")}
      }}
    }}
  }}"""
    x, f, y, *rest = form.buffers
    buffers = (x, f, y, ("own", FLOAT32, "rw"), *rest)
    helpers = turned_in() + turned_out() + SOME + last.helpers
    one = "__attribute__((reqd_work_group_size(1, 1, 1)))"
    return kernel("conv_depthwise_channels", buffers, (*_INTS, *last.ints), body, helpers=helpers, attributes=one)
