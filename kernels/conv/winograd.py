"""Convolutions of 3 × 3 cells by Winograd's F(4 × 4, 3 × 3), for float32 on CPU devices with constant weights.

A tile of 4 × 4 results sees 6 × 6 elements. Both they and the filter are transformed; then 36 numbers are multiplied for a
tile and a channel where a plain convolution multiplies 144, and the sums over the channels are transformed back:

    Y = Aᵀ [ Σ (G g Gᵀ) ⊙ (Bᵀ d B) ] A

A work-item takes some rows of tiles. It transforms what they see of every channel, and multiplies that, as 36 matrix
products, with the filters of 32 channels of the result at a time. A vector holds 16 channels of one element, so that none
is half empty, however few tiles there are: elements are turned on their way in, and results on their way out.

Where a tile sees an infinity, a NaN or a very large number, the transforms give some of it to results that do not see it.
So a tile whose
results are not all finite is calculated once more, plainly.

Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2015, with the points 0, ±1, ±2 and ∞.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from asyncrt.devices.base import Registers
from asyncrt.kernels.arithmetic import least
from asyncrt.kernels.codegen import epilogue
from asyncrt.kernels.codegen.epilogue import SOME, Epilogue
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.codegen.tiles import PANEL, add_tiles, tile_of, turn
from asyncrt.kernels.impl import Impl, KernelSource, Launch, WeightsRequest, inp, scratch, weights
from asyncrt.kernels.patterns.grid import round_up
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32, Array
from asyncrt.memory.own_pages import zeros

from .interface import ConvForm, Convolution, bind_conv
from .transforms import POINTS, SEEN, TILE, made, numbered, seen, transform
from .turned import turned_in
from .winograd_few import suits_few, winograd_few

# Channels of which the transforms are worth their time, and filters that are not much larger than they were: transformed
# ones take four times as much memory.
_LEAST, _MOST = 16, 1 << 16
_VECTORS = 32  # channels from which on vectors of channels are fuller than those of tiles
_FEWEST = 56  # results of a channel: for fewer a transformed filter takes longer to come than to be multiplied
_MOST_TILES = 96  # of a work-item
_TRANSFORMED = 1 << 12  # tiles × channels that are transformed at once, 590 KB: a core's second cache
_NEAR = 1 << 13  # elements of a filter that each core may read whole: transformed, it stays in a second cache
_LARGE = "0x1p64f"  # as good as infinite: what is a millionth of such a number is much to a neighbour
_APART = 16  # elements, so that matrices do not all begin at the same place of a cache


class _Cut(NamedTuple):
    """How tiles are shared out.

    Attributes:
        high, wide: Tiles along the axes.
        down, across: Parts of them along the axes: equal ones, or one more in some of them.
        most: Tiles of a part.
    """

    high: int
    wide: int
    down: int
    across: int
    most: int


def suits(conv: Convolution, traits: DeviceTraits) -> bool:
    """Whether *conv* is faster this way; it has float32 and a constant filter, and the device is a CPU."""
    w = conv.window
    near = w.size == (1, 3, 3) and w.strides == w.dilations == (1, 1, 1) and w.outs[0] == 1
    inside = w.before[0] == 0 and min(w.before) >= 0 and w.spatial[0] == 1
    enough = min(conv.inputs, conv.outputs) >= _LEAST and conv.inputs * conv.outputs <= _MOST
    if not (near and inside and enough and traits.winograd):
        return False
    if _few(conv):
        return suits_few(conv)
    return w.spatial[1] * w.spatial[2] >= 16 and w.outs[1] * w.outs[2] >= _FEWEST


def _few(conv: Convolution) -> bool:
    """Whether *conv* has so few channels that vectors hold tiles; its sizes do not matter, since its filter lies so."""
    return min(conv.inputs, conv.outputs) < _VECTORS


def pack_filters(weight: Array, group: int) -> Array:
    """Return a filter ``[M, C / group, 3, 3]`` transformed, as ``[group, ceil(M / group / 32), 36, C / group, 32]``."""
    m, c = weight.shape[0] // group, weight.shape[1]
    blocks = -(-m // PANEL)
    packed = zeros((group, blocks, POINTS, c, PANEL), weight.dtype)
    filters = weight.reshape(group, m, c, 3, 3)
    for g, block in np.ndindex(group, blocks):  # one by one, so that there is no second copy of large weights
        part = filters[g, block * PANEL : (block + 1) * PANEL]
        transform(part, packed[g, block, :, :, : len(part)])
    return packed


def _cut(conv: Convolution, traits: DeviceTraits) -> _Cut:
    _, oh, ow = conv.window.outs
    high, wide = -(-oh // TILE), -(-ow // TILE)
    most = max(16, min(_MOST_TILES, _TRANSFORMED // conv.inputs))
    across = -(-wide // most)
    columns = -(-wide // across)
    down = -(-high // least(high, most // columns))
    if conv.inputs * conv.outputs <= _NEAR:  # as many for each core
        down = least(high, round_up(down, traits.compute_units))
    return _Cut(high, wide, down, across, -(-high // down) * columns)


def winograd(conv: Convolution, traits: DeviceTraits, after: Epilogue | None) -> Impl:
    """Return the implementation of *conv*, which `suits`."""
    if _few(conv):
        return winograd_few(conv, traits, after)
    w = conv.window
    cut, tile = _cut(conv, traits), tile_of(traits.registers)
    deep, blocks = round_up(conv.inputs, 16), -(-conv.outputs // PANEL)
    units = conv.batch * conv.group * cut.down * cut.across
    parts = least(blocks, -(-traits.compute_units // units))  # of the channels
    per_item = -(-units // (2 * traits.compute_units))
    items = -(-units // per_item)
    sums = POINTS * (cut.most * deep + _APART)
    done = sums + POINTS * (cut.most * PANEL + _APART)
    places = done + 16 * (TILE * TILE * cut.most + 16)
    filters_again = places + (TILE * -(-cut.high // cut.down) + 2) * w.spatial[2] + 32
    room = round_up(filters_again + 9 * conv.inputs, 16)
    joins, joined = epilogue.join(after, 2)
    ints = (
        conv.inputs, conv.outputs, conv.group, *w.spatial[1:], *w.outs[1:], *w.before[1:], *cut[:-1], units, per_item,
        blocks, -(-blocks // parts), deep, sums, done, places, filters_again, room,
    )  # fmt: skip
    bound = bind_conv(conv, inp(0), weights(0), joined if joins else after)
    source, filters, target, *rest = bound.refs
    launch = Launch(
        _kernel(bound.form, traits.registers, joins), (source, filters, target, scratch(0), *rest),
        (*ints, *bound.ints), (items, parts), (1, 1),
    )  # fmt: skip
    request = WeightsRequest(
        1,
        f"winograd group {conv.group}",
        functools.partial(pack_filters, group=conv.group),
        conv.group * blocks * POINTS * conv.inputs * PANEL,
    )
    return Impl(f"winograd {tile.rows}x{tile.columns}", (launch,), (items * parts * room * 4,), (request,))


_INTS = (
    "C", "M", "G", "H", "W", "OH", "OW", "ph", "pw", "high", "wide", "down", "across", "units", "per_item", "blocks",
    "part", "deep", "sums_at", "done_at", "places_at", "again_at", "room",
)  # fmt: skip


@functools.cache
def _kernel(form: ConvForm, registers: Registers, joined: bool) -> KernelSource:
    body = f"""
  __global float* const seen = own + ((int)get_global_id(1) * (int)get_global_size(0) + (int)get_global_id(0)) * room;
  __global float* const sums = seen + sums_at, * const done = seen + done_at, * const again = seen + again_at;
  __global float* const near = sums;
  __global int* const places = (__global int*)(seen + places_at);
  const int u1 = min(((int)get_global_id(0) + 1) * per_item, units), whole = across == 1;
  const int b0 = (int)get_global_id(1) * part, b1 = min(b0 + part, blocks);
  for (int u = (int)get_global_id(0) * per_item; u < u1; u++) {{
    const int a = u % across, d = u / across % down, q = u / across / down, g = q % G;
    const int left = a * wide / across, tw = (a + 1) * wide / across - left;
    const int top = d * high / down, th = (d + 1) * high / down - top;
    const int w0 = left * {TILE} - pw, h0 = top * {TILE} - ph, tiles = th * tw;
    const int apart = tiles * deep + {_APART}, made = tiles * {PANEL} + {_APART};
    __global const float* const xq = x + q * C * H * W;
    {_ALL_SEEN}
    const int rows = min(th * {TILE}, OH - top * {TILE}), n = min(tw * {TILE}, OW - left * {TILE});
    const int run = whole ? OW : tw * {TILE}, pitch = th * {TILE} * run + 16;
    for (int b = b0; b < b1; b++) {{
      __global const float* const fb = f + (g * blocks + b) * {POINTS * PANEL} * C;
      for (int i = 0; i < {POINTS}; i++) {{
        __global float* const to = sums + i * made;
        for (int e = 0; e < tiles * {PANEL // 16}; e++) vstore16((float16)(0.0f), e, to);
        $_tiles(tiles, seen + i * apart, deep, 1, fb + i * C * {PANEL}, {PANEL}, C, to);
      }}
      for (int c0 = b * {PANEL}; c0 < min(M, (b + 1) * {PANEL}); c0 += 16) {{
        float add[16]; int finite[16];
        for (int j = 0; j < 16; j++) add[j] = {"bias[g * M + min(c0 + j, M - 1)]" if form.bias else "0.0f"};
        float16 none = 0.0f;
        for (int r = 0; r < th; r++)
          for (int s = tw - 1; s >= 0; s--)  /* what of a tile is outside is stored over by the first of the next row */
            none += $_results(
                sums + (r * tw + s) * {PANEL} + c0 % {PANEL}, made, vload16(0, add), done + {TILE} * (r * run + s), pitch, run);
        vstore16(none == 0.0f, 0, finite);
        for (int j = 0; j < min(16, M - c0); j++) {{
          const int plane = q * M + c0 + j;
          __global float* const own_done = done + j * pitch;
          if (!finite[j])
            $_plainly(xq, fb + c0 % {PANEL} + j, again, C, H, W, h0, w0, rows, n, add[j], own_done, run);
          {_stored(form, joined)}
        }}
      }}
    }}
  }}"""
    # What is written out at length is not inlined: that took compilers twice as long.
    helpers = turned_in() + _SEE + add_tiles(registers, "__global", "__global", "__global", fetch=True) + _RESULTS + _PLAINLY
    x, f, y, *rest = form.buffers
    one = "__attribute__((reqd_work_group_size(1, 1, 1)))"
    buffers = (x, f, y, ("own", FLOAT32, "rw"), *rest)
    ints = (*_INTS, *form.last.ints)
    return kernel("conv_winograd", buffers, ints, body, helpers=helpers + SOME + form.last.helpers, attributes=one)


# All positions of the rows that tiles see are turned, 16 of a plane at a time. Each has a place; that of those which no tile
# sees is behind the others'. The borders stay zero.
_ALL_SEEN = f"""
    const int line = tw * {TILE} + 2, other = (th * {TILE} + 2) * line;
    const int r0 = max(h0, 0), r1 = max(r0, min(h0 + th * {TILE} + 2, H)), first = max(w0, 0), end = min(w0 + line, W);
    for (int i = 0; i < (r1 - r0) * W + 32; i++) places[i] = other * 16;
    for (int r = r0; r < r1; r++)
      for (int c = first; c < end; c++) places[16 + (r - r0) * W + c] = ((r - h0) * line + c - w0) * 16;
    for (int i = 0; i < other; i++) vstore16((float16)(0.0f), i, near);
    for (int c = 0; c < C; c += 16) {{
      for (int r = r0; r < r1; r += whole ? r1 - r0 : 1) {{
        const int p1 = whole ? r1 * W : r * W + end;
        for (int p = r * W + (whole ? 0 : first); p < p1; p += 16) {{
          const int p0 = min(p, H * W - 16);
          $_turned(xq + p0, c, C, H * W, near, places + 16 + p0 - r0 * W);
        }}
      }}
      for (int t = 0; t < tiles; t++)
        $_see(near + (t / tw * line + t % tw) * {TILE * 16}, line * 16, seen + t * deep + c, apart);
    }}"""


def _see() -> str:
    """Return ``$_see(near, line, to, apart)``, which transforms what a tile sees of 16 channels."""
    d, t = [f"d{i}" for i in range(SEEN)], [f"t{i}" for i in range(SEEN)]
    rows = columns = ""
    for i in range(SEEN):
        from_near = " ".join(f"{v} = vload16({j}, near + {i} * line);" for j, v in enumerate(d))
        kept = " ".join(f"vstore16({v}, {i * SEEN + j}, half_done);" for j, v in enumerate(t))
        rows += f"{from_near} {seen(d, t)} {kept}\n"
        column = " ".join(f"{v} = vload16({j * SEEN + i}, half_done);" for j, v in enumerate(d))
        stored = " ".join(f"vstore16({v}, 0, to + {j * SEEN + i} * apart);" for j, v in enumerate(t))
        columns += f"{column} {seen(d, t)} {stored}\n"
    return f"""
__attribute__((noinline)) void $_see(__global const float* near, int line, __global float* to, int apart) {{
  float half_done[{POINTS * 16}] __attribute__((aligned(64)));
  float16 {", ".join(d)}, {", ".join(t)};
  {rows}
  {columns}
}}
"""


def _results() -> str:
    """Return ``$_results(sums, apart, add, to, pitch, run)``: 4 rows of 4 results of a tile for each of 16 channels.

    It returns what is 0 for the channels of which none is large.
    """
    d, t, y = numbered("d", SEEN, SEEN), numbered("t", TILE, SEEN), numbered("y", TILE, TILE)
    text = ""
    for j in range(SEEN):
        column = [d[i][j] for i in range(SEEN)]
        loads = (f"vload16(0, sums + {i * SEEN + j} * apart)" for i in range(SEEN))
        text += f"float16 {', '.join(t[i][j] for i in range(TILE))}; {{ const float16 "
        text += ", ".join(map(" = ".join, zip(column, loads, strict=True)))
        text += f"; {made(column, [t[i][j] for i in range(TILE)])} }}\n"
    for i in range(TILE):
        finished = " ".join(f"{v} += add; none = fma({v} * {_LARGE}, 0.0f, none);" for v in y[i])
        text += f"float16 {', '.join(y[i])}; {made(t[i], y[i])} {finished}\n"
    steps, names = turn([v for row in y for v in row], "z")
    stores = " ".join(
        f"vstore4({name}.s{part}, 0, to + {c} * pitch + {i} * run);"
        for c, name in enumerate(names)
        for i, part in enumerate(("0123", "4567", "89ab", "cdef"))
    )
    return f"""
__attribute__((noinline)) float16 $_results(__global const float* sums, int apart, float16 add, __global float* to, int pitch, int run) {{
  float16 none = 0.0f;
  {text}
  {steps} {stores}
  return none;
}}"""


_SEE, _RESULTS = _see(), _results()

# The filter comes back from how it was transformed, along each axis as 4 f₀, 3 (f₂ - f₁), f₅. Tiles of finite results stay
# as they are, so that no result depends on how tiles are shared out.
_PLAINLY = f"""
__attribute__((noinline)) void $_plainly(
    __global const float* x, __global const float* f, __global float* again, int C, int H, int W, int h0, int w0, int high,
    int wide, float add, __global float* to, int run) {{
  for (int c = 0; c < C; c++) {{
    float r[3][{SEEN}];
    for (int j = 0; j < {SEEN}; j++) {{
      __global const float* const p = f + (j * C + c) * {PANEL};
      r[0][j] = 4.0f * p[0];
      r[1][j] = 3.0f * (p[{2 * SEEN * PANEL} * C] - p[{SEEN * PANEL} * C]); r[2][j] = p[{5 * SEEN * PANEL} * C];
    }}
    for (int i = 0; i < 3; i++) {{
      __global float* const k = again + c * 9 + i * 3;
      k[0] = 4.0f * r[i][0]; k[1] = 3.0f * (r[i][2] - r[i][1]); k[2] = r[i][5];
    }}
  }}
  for (int h1 = 0; h1 < high; h1 += {TILE})
    for (int w1 = 0; w1 < wide; w1 += {TILE}) {{
      int finite = 1;
      for (int h = h1; h < min(h1 + {TILE}, high); h++)
        for (int w = w1; w < min(w1 + {TILE}, wide); w++) finite &= fabs(to[h * run + w] * {_LARGE}) <= MAXFLOAT;
      if (finite) continue;
      for (int h = h1; h < min(h1 + {TILE}, high); h++)
        for (int w = w1; w < min(w1 + {TILE}, wide); w++) {{
          float sum = 0.0f;
          for (int c = 0; c < C; c++)
            for (int i = 0; i < 3; i++)
              for (int j = 0; j < 3; j++) {{
                const int ih = h0 + h + i, iw = w0 + w + j;
                if (ih >= 0 && ih < H && iw >= 0 && iw < W)
                  sum = fma(x[(c * H + ih) * W + iw], again[c * 9 + i * 3 + j], sum);
              }}
          to[h * run + w] = sum + add;
        }}
    }}
}}"""


def _stored(form: ConvForm, joined: bool) -> str:
    """Return statements that store the rows of a channel's results: all as one, where they follow one another in the result."""
    last = form.last
    again = all(step == 0 for step in last.steps)  # no operand lies as the result does, perhaps where it lies
    place = "min(e, count - 16)" if again else "e"
    at, value = "y + row * columns + column", "vload16(0, from + c)"
    if last.vector:
        some = last.stored_some(at, "column", value, "count - c")
        one = f"if (count - c >= 16) {last.stored_vector(at, 'column', value)} else {some}"
    else:
        element = last.element(form.dtype, "y", "row * columns + column + k", "(column + k)", "from[c + k]")
        one = f"for (int k = 0; k < min(16, count - c); k++) {element}"
    lines, count, columns = ("whole ? 1 : rows", "whole ? rows * OW : n", "OH * OW") if joined else ("rows", "n", "OW")
    row, start = ("plane", "(top * 4 + l) * OW + left * 4") if joined else ("plane * OH + top * 4 + l", "left * 4")
    return f"""for (int l = 0; l < ({lines}); l++) {{
            __global const float* const from = own_done + l * run;
            const int row = {row}, count = {count}, columns = {columns};
            {last.rows("row")}
            for (int e = 0; e < count; e += 16) {{
              const int c = count >= 16 ? {place} : e, column = {start} + c;
              {one}
            }}
          }}"""
