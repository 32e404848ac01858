"""Convolutions of float32 on CPU devices with constant weights.

A work-item computes tiles of 32 output channels (or 16) × up to 8 neighbouring positions over weights packed
``[group][channel block][ic][kd][kh][kw][32]``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from asyncrt.layout import FLOAT32, Array, DataType

from . import epilogue
from .conv_form import ConvForm, Convolution, bind_conv, padded_input
from .epilogue import Epilogue
from .grid import round_up
from .impl import Impl, KernelSource, Launch, WeightsRequest, weights
from .operator import DeviceTraits
from .source import kernel
from .tiles import AHEAD, FETCH, turn

# Output channels of a packed block, two float16 or one, and what a channel costs in it: one loads twice as often for
# each multiplication.
_BLOCKS = {32: 1.0, 16: 1.4}
_TILE = 8  # positions of a packed tile
_UNROLLED = 7  # cells of a window's row that are written out one after the other
WORK = 1 << 16  # multiply-adds (of vectors) that a work-item should have


def _canonical(weight: Array, group: int, transposed: bool) -> Array:
    """Return the filter as ``[group, M / group, C / group, cells...]`` of the equivalent plain convolution."""
    if not transposed:
        return weight.reshape(group, weight.shape[0] // group, *weight.shape[1:])
    cells = weight.ndim - 2
    grouped = weight.reshape(group, weight.shape[0] // group, *weight.shape[1:]).swapaxes(1, 2)
    return grouped[(slice(None),) * 3 + (slice(None, None, -1),) * cells]


def _pack(weight: Array, group: int, transposed: bool, block: int) -> Array:
    filters = _canonical(weight, group, transposed)
    g, m, c = filters.shape[:3]
    cells = math.prod(filters.shape[3:])
    packed = np.zeros((g, -(-m // block), c, cells, block), weight.dtype)
    for i in range(packed.shape[1]):  # one by one, so that there is no second copy of large weights
        part = filters[:, i * block : (i + 1) * block]
        packed[:, i, :, :, : part.shape[1]] = part.reshape(g, part.shape[1], c, cells).transpose(0, 2, 3, 1)
    return packed


@functools.cache
def _packer(group: int, transposed: bool, block: int) -> Callable[[Array], Array]:
    return functools.partial(_pack, group=group, transposed=transposed, block=block)


def _tile_width(positions: int) -> int:
    """Return how many positions of a row a tile has: few are calculated twice, and tiles are not too narrow."""
    return min(range(1, min(_TILE, positions) + 1), key=lambda p: (-(-positions // p) * (p + 2), -p))


def packs(dtype: DataType, outputs: int, traits: DeviceTraits, *, constant: bool) -> bool:
    """Return whether a convolution to *outputs* channels per group is of this kind."""
    return traits.is_cpu and dtype is FLOAT32 and constant and traits.packed_weights and outputs >= 8


def packed(conv: Convolution, traits: DeviceTraits, after: Epilogue | None) -> Impl:
    """Return the implementation of *conv*."""
    padded = padded_input(conv, traits)
    w = conv.window
    (kd, kh, kw), (sd, sh, sw), (dd, dh, dw), (od, oh, ow) = w.size, w.strides, w.dilations, w.outs
    spatial = padded.spatial
    if w.size == (1, 1, 1) and w.strides == (1, 1, 1):  # rows follow each other: one long row
        joins, joined = epilogue.join(after, 2)
        if joins:
            after, od, oh, ow = joined, 1, 1, od * oh * ow
            spatial = (1, 1, ow)
    tile = _tile_width(ow)
    cells = conv.inputs * kd * kh * kw
    chunk = tile * max(1, -(-WORK // (cells * tile)))
    block = min(_BLOCKS, key=lambda b: round_up(conv.outputs, b) * _BLOCKS[b])
    blocks = -(-conv.outputs // block)
    ints = (
        conv.inputs, conv.outputs, conv.group, blocks, *spatial, od, oh, ow, kd, kh, kw, sd, sh, dd, dh, dw, chunk,
        cells * block, sw,
    )  # fmt: skip
    # Neighbours share weights, which may be more than a cache keeps while others pass.
    grid = (-(-ow // chunk), conv.batch * od * oh, conv.group * blocks)
    bound = bind_conv(conv, padded.ref, weights(0), after)
    plain = (kd, dh, dw) == (1, 1, 1) and kw <= _UNROLLED
    k = _packed_kernel(bound.form, block, tile, sw if sw <= 2 else 0, (kh if kh <= 3 else 0, kw) if plain else (0, 0))
    launch = Launch(k, bound.refs, (*ints, *bound.ints), grid, (1, 1, 1))
    request = WeightsRequest(
        1,
        f"conv{block} group {conv.group}{' transposed' if conv.transposed else ''}",
        _packer(conv.group, conv.transposed, block),
    )
    return Impl(f"packed {block}x{tile}", (*padded.launches, launch), padded.scratch, (request,))


@functools.cache
def _packed_kernel(form: ConvForm, block: int, tile: int, stride: int, unrolled: tuple[int, int]) -> KernelSource:
    """Tiles of *block* output channels × *tile* positions of a row, whose sums stay in registers."""
    tall, wide = unrolled
    step = str(stride) if stride else "sw"
    positions, halves = range(tile), range(block // 16)
    zero = " ".join(f"float16 a{p}_{h} = vload16({h}, bs);" for p in positions for h in halves)

    def cell(number: int, at: str) -> str:
        """Multiply with one cell of the window, whose element for the first position is at ``xr[at]``."""
        weights = " ".join(f"const float16 v{h} = vload16({number * len(halves) + h}, wp);" for h in halves)
        multiply = " ".join(
            f"e = xr[{at}{p} * {step}]; " + " ".join(f"a{p}_{h} = fma(v{h}, e, a{p}_{h});" for h in halves)
            for p in positions
        )
        ahead = " ".join(f"ASYNCRT_FETCH(wp + {AHEAD + number * block + 16 * h});" for h in halves)
        return f"{{ {weights} {ahead} float16 e; {multiply} }}"

    if tall:
        row = " ".join(cell(i * wide + j, f"{i} * W + {j} + ") for i in range(tall) for j in range(wide))
        walk = f"{{ __global const float* xr = xn + c * D * H * W + ow0 * {step}; {row} wp += {tall * wide * block}; }}"
    elif wide:
        row = " ".join(cell(j, f"{j} + ") for j in range(wide))
        walk = f"""for (int kh = 0; kh < KH; kh++, wp += {wide * block}) {{
          __global const float* xr = xn + (c * D * H + kh) * W + ow0 * {step};
          {row}
        }}"""
    else:
        walk = f"""for (int kd = 0; kd < KD; kd++)
        for (int kh = 0; kh < KH; kh++) {{
          __global const float* xr = xn + ((c * D + kd * dd) * H + kh * dh) * W + ow0 * {step};
          for (int kw = 0; kw < KW; kw++, wp += {block}, xr += dw) {cell(0, "")}
        }}"""
    last, after = form.last, "v"
    if last.vector and not last.dtypes:  # what has no operands is calculated for 16 channels at a time
        form, after = form._replace(last=epilogue.NONE), last.expression
    turned = _turned(form.last, block, tile) if tile >= 4 and form.last.vector else ""
    finish = " ".join(f"{{ const float16 v = a{p}_{h}; a{p}_{h} = (float16)({after}); }}" for p in positions for h in halves)
    spill = " ".join(f"vstore16(a{p}_{h}, {p * len(halves) + h}, t);" for p in positions for h in halves)
    first = "j < left ? bias[oc0 + j] : 0.0f" if form.bias else "0.0f"
    body = f"""
  const int block = (int)get_global_id(2) % blocks, g = (int)get_global_id(2) / blocks;
  int r = (int)get_global_id(1);
  const int oh = r % OH; r /= OH;
  const int od = r % OD, n = r / OD;
  const int c0 = (int)get_global_id(0) * chunk, c1 = min(c0 + chunk, OW);
  const int oc0 = g * M + block * {block}, left = min({block}, M - block * {block});
  float bs[{block}]; for (int j = 0; j < {block}; j++) bs[j] = {first};
  __global const float* xn = x + (((n * G + g) * C * D + od * sd) * H + oh * sh) * W;
  for (int tile0 = c0; tile0 < c1; tile0 += {tile}) {{
    const int ow0 = min(tile0, OW - {tile});
    __global const float* wp = f + (g * blocks + block) * panel;
    {zero}
    for (int c = 0; c < C; c++)
      {walk}
    {finish if after != "v" else ""}
    {turned}
    float t[{block * tile}];
    {spill}
    for (int j = 0; j < left; j++) {{
      const int row = ((n * G * M + oc0 + j) * OD + od) * OH + oh;
      {form.last.rows("row")}
      for (int p = tile0 - ow0; p < {tile}; p++) {form.element("row", "(ow0 + p)", f"t[p * {block} + j]")}
    }}
  }}"""
    ints = (
        "C", "M", "G", "blocks", "D", "H", "W", "OD", "OH", "OW", "KD", "KH", "KW", "sd", "sh", "dd", "dh", "dw",
        "chunk", "panel", "sw", *last.ints,
    )  # fmt: skip
    one = "__attribute__((reqd_work_group_size(1, 1, 1)))"
    return kernel(f"conv_packed{tile}", form.buffers, ints, body, helpers=FETCH + last.helpers, attributes=one)


def _turned(last: epilogue.Form, block: int, tile: int) -> str:
    """Return statements that store a whole tile of 4 to 8 positions, which lies as vectors of channels."""
    lines: list[str] = []
    for h in range(block // 16):
        steps, names = turn([f"a{min(p, tile - 1)}_{h}" for p in range(8)], f"z{h}_")
        lines += [steps, *(f"vstore16({name}, {8 * h + i}, t);" for i, name in enumerate(names))]
    rows = ("row", "(row + OD * OH)")
    stored = last.stored_pair(rows, [f"y + {row} * OW + ow0" for row in rows], "ow0", "vload16(j / 2, t)", tile)
    return f"""if (tile0 == ow0 && left == {block}) {{
      float t[{block * 8}] __attribute__((aligned(64)));
      {" ".join(lines)}
      for (int j = 0; j < {block}; j += 2) {{
        const int row = ((n * G * M + oc0 + j) * OD + od) * OH + oh;
        {stored}
      }}
      continue;
    }}"""
