"""Winograd's convolutions of few channels (`winograd.py` says what that is): a vector holds 16 tiles of one channel.

A work-item takes some rows of tiles. It transforms what they see of every channel, and multiplies that, as 36 matrix
products, with the filters of a few channels of the result at a time.

Where a tile sees an infinity or a NaN, the transforms give it to results that do not see it. So results that are not
finite are calculated once more, plainly.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from asyncrt.devices.base import Registers
from asyncrt.kernels.arithmetic import least
from asyncrt.kernels.codegen.epilogue import SOME, Epilogue
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.codegen.tiles import AHEAD, FETCH, tile_of, turn
from asyncrt.kernels.codegen.vectors import LANES
from asyncrt.kernels.impl import Impl, KernelSource, Launch, WeightsRequest, inp, scratch, weights
from asyncrt.kernels.patterns.grid import round_up
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32, Array
from asyncrt.memory.own_pages import zeros

from .interface import ConvForm, Convolution, bind_conv
from .transforms import POINTS, SEEN, TILE, made, numbered, seen, transform

_LEAST = 160  # positions: of the tiles in vectors half and more are results
_MOST_TILES = 96  # of a work-item: six vectors
_TRANSFORMED = 1 << 12  # tiles × channels that are transformed at once, 590 KB: a core's second cache
_PLACES = _MOST_TILES + 16  # for numbers of tiles, and what vectors at the end of them write
_READ = 17 * TILE  # elements of a row that 16 tiles read
_FOURTHS = ("s048c", "s159d", "s26ae", "s37bf", "s048c", "s159d")  # the columns that a tile sees, four tiles of a vector
_CHANNELS = 32  # of the result, whose sums are kept until they are transformed back
_APART = 16  # elements, so that matrices do not all begin at the same place of a cache


class _Cut(NamedTuple):
    """How tiles are shared out.

    Attributes:
        high, wide: Tiles along the axes.
        down, across: Parts of them along the axes: equal ones, or one more in the first of them.
        pitch: Elements from one channel's tiles to the next channel's.
    """

    high: int
    wide: int
    down: int
    across: int
    pitch: int


def suits_few(conv: Convolution) -> bool:
    """Whether vectors of tiles are full enough for *conv*."""
    _, oh, ow = conv.window.outs
    return oh * ow >= _LEAST


def pack_filters(weight: Array, group: int, rows: int) -> Array:
    """Return a filter ``[M, C / group, 3, 3]`` transformed, as ``[group, 36, ceil(M / group / rows), C / group, rows]``."""
    m, c = weight.shape[0] // group, weight.shape[1]
    blocks = -(-m // rows)
    packed = zeros((group, POINTS, blocks, c, rows), weight.dtype)
    filters = weight.reshape(group, m, c, 3, 3)
    for g, block in np.ndindex(group, blocks):  # one by one, so that there is no second copy of large weights
        part = filters[g, block * rows : (block + 1) * rows]
        transform(part, packed[g, :, block, :, : len(part)])
    return packed


def _cut(conv: Convolution) -> _Cut:
    _, oh, ow = conv.window.outs
    high, wide = -(-oh // TILE), -(-ow // TILE)
    most = max(16, min(_MOST_TILES, _TRANSFORMED // conv.inputs // 16 * 16))
    across = -(-wide // most)
    columns = -(-wide // across)
    down = -(-high // least(high, most // columns))
    return _Cut(high, wide, down, across, round_up(-(-high // down) * columns, 16))


def winograd_few(conv: Convolution, traits: DeviceTraits, after: Epilogue | None) -> Impl:
    """Return the implementation of *conv*, which `suits_few`."""
    w = conv.window
    cut, tile = _cut(conv), tile_of(traits.registers).rows
    blocks = -(-conv.outputs // tile)
    units = conv.batch * conv.group * cut.down * cut.across
    parts = least(blocks, -(-traits.compute_units // units))  # of the channels
    per_item = -(-units // (2 * traits.compute_units))
    items = -(-units // per_item)
    room = POINTS * (conv.inputs * cut.pitch + _APART + _CHANNELS // tile * tile * cut.pitch) + round_up(_READ, 16)
    ints = (
        conv.inputs, conv.outputs, conv.group, *w.spatial[1:], *w.outs[1:], *w.before[1:], *cut, units, per_item, blocks,
        -(-blocks // parts), room, conv.batch * conv.group * conv.inputs * w.spatial[1] * w.spatial[2],
    )  # fmt: skip
    bound = bind_conv(conv, inp(0), weights(0), after)
    source, filters, target, *rest = bound.refs
    launch = Launch(
        _kernel(bound.form, traits.registers), (source, filters, target, scratch(0), *rest), (*ints, *bound.ints),
        (items, parts), (1, 1),
    )  # fmt: skip
    request = WeightsRequest(
        1,
        f"winograd of few, {tile}, group {conv.group}",
        functools.partial(pack_filters, group=conv.group, rows=tile),
        conv.group * blocks * POINTS * conv.inputs * tile,
    )
    return Impl(f"winograd {tile}x{tile_of(traits.registers).columns}", (launch,), (items * parts * room * 4,), (request,))


_INTS = (
    "C", "M", "G", "H", "W", "OH", "OW", "ph", "pw", "high", "wide", "down", "across", "pitch", "units",
    "per_item", "blocks", "part", "room", "all",
)  # fmt: skip


@functools.cache
def _kernel(form: ConvForm, registers: Registers) -> KernelSource:
    tile = tile_of(registers)
    rows, together = tile.rows, tile.columns // 16
    together_rows = _CHANNELS // rows * rows
    again = all(step == 0 for step in form.last.steps)  # no operand lies as the result does, perhaps where it lies
    body = f"""
  float near[{POINTS * _PLACES}] __attribute__((aligned(64))), done[{TILE * TILE * _PLACES}] __attribute__((aligned(64)));
  int16 inside[{SEEN * _MOST_TILES // 16}];
  __global float* const seen = own + ((int)get_global_id(1) * (int)get_global_size(0) + (int)get_global_id(0)) * room;
  const int apart = C * pitch + {_APART}, u1 = min(((int)get_global_id(0) + 1) * per_item, units);
  __global float* const sums = seen + {POINTS} * apart, * const row = sums + {POINTS * together_rows} * pitch;
  const int b0 = (int)get_global_id(1) * part, b1 = min(b0 + part, blocks);
  for (int u = (int)get_global_id(0) * per_item; u < u1; u++) {{
    const int a = u % across, d = u / across % down, q = u / across / down, g = q % G;
    const int left = a * (wide / across) + min(a, wide % across), tw = wide / across + (a < wide % across);
    const int top = d * (high / down) + min(d, high % down), th = high / down + (d < high % down);
    const int w0 = left * {TILE} - pw, h0 = top * {TILE} - ph, tiles = th * tw;
    for (int i = 0; i < (tw + 15) / 16 * {SEEN}; i++) {{
      const int16 column = w0 + i / {SEEN} * {16 * TILE} + i % {SEEN} + {TILE} * {LANES};
      inside[i] = column >= 0 & column < W;
    }}
    for (int c = 0; c < C; c++) {{
      const int plane = (q * C + c) * H * W + w0;
      for (int l = 0; l < th * {TILE} + 2; l++) {{
        const int h = h0 + l, r = l / {TILE}, s = l % {TILE};
        float* const to = near + s * {SEEN * _PLACES} + r * tw;
        float* const above = near + (s + {TILE}) * {SEEN * _PLACES} + (r - 1) * tw;
        for (int t = 0; t < tw; t += 16) {{
          const int at = plane + h * W + {TILE} * t;
          __global const float* from = x + at;
          if (h >= 0 && h < H && (at < 0 || at > all - {_READ})) {{
            for (int i = 0; i < {_READ}; i++) row[i] = at + i >= 0 && at + i < all ? from[i] : 0.0f;
            from = row;
          }}
          $_see_row(from, h >= 0 && h < H, inside + t / 16 * {SEEN}, r < th, to + t, s < 2 && r > 0, above + t);
        }}
      }}
      for (int t = 0; t < tiles; t += 16) $_see_column(near + t, seen + c * pitch + t, apart);
    }}
    for (int c0 = b0 * {rows}, c1; c0 < min(b1 * {rows}, M); c0 = c1) {{
      c1 = min(c0 + {together_rows}, min(b1 * {rows}, M));
      for (int i = 0; i < {POINTS}; i++) {{
        __global const float* const from = seen + i * apart;
        for (int c = c0; c < c1; c += {rows}) {{
          __global const float* const f0 = f + ((g * {POINTS} + i) * blocks + c / {rows}) * C * {rows};
          __global float* const to = sums + (i * {together_rows} + c - c0) * pitch;
          int t = 0;
          {"for (; t + 16 < tiles; t += 32) $_multiply2(f0, from + t, pitch, C, to + t);" if together == 2 else ""}
          for (; t < tiles; t += 16) $_multiply1(f0, from + t, pitch, C, to + t);
        }}
      }}
      for (int m = c0; m < c1; m++) {{
        const int oc = g * M + m, plane = q * M + m;
        const float add = {"bias[oc]" if form.bias else "0.0f"};
        int finite = 1;
        for (int t = 0; t < tiles; t += 16)
          finite &= $_results(sums + (m - c0) * pitch + t, {together_rows} * pitch, done + {TILE} * t, tiles - t);
        if (!finite) {{
          __global const float* const f0 = f + (g * {POINTS} * blocks + m / {rows}) * C * {rows} + m % {rows};
          $_plainly(x + q * C * H * W, f0, blocks * C * {rows}, C, H, W, h0, w0, th * {TILE}, tw * {TILE}, done);
        }}
        for (int h = 0; h < min(th * {TILE}, OH - top * {TILE}); h++) {{
          const int r = plane * OH + top * {TILE} + h, n = min(tw * {TILE}, OW - left * {TILE});
          const float* const from = done + h % {TILE} * {TILE * _PLACES} + h / {TILE} * {TILE} * tw;
          {form.last.rows("r")}
          for (int e = 0; e < n; e += 16) {{
            const int c = {"n >= 16 ? min(e, n - 16) : e" if again else "e"}, column = left * {TILE} + c;
            {_stored(form)}
          }}
        }}
      }}
    }}
  }}"""
    multiply = "".join(_multiply(rows, v) for v in range(1, together + 1))
    helpers = FETCH + _SEE + multiply + _RESULTS + _plainly(rows) + SOME + form.last.helpers
    x, f, y, *rest = form.buffers
    one = "__attribute__((reqd_work_group_size(1, 1, 1)))"
    buffers = (x, f, y, ("own", FLOAT32, "rw"), *rest)
    return kernel("conv_winograd_few", buffers, (*_INTS, *form.last.ints), body, helpers=helpers, attributes=one)


def _see() -> str:
    """Return ``$_see_row`` and ``$_see_column``, which transform what 16 tiles see: a row of 64 elements and two, and lines.

    ``$_see_row(from, any, inside, first, to, again, above)`` stores where the row is one of the first four that tiles see,
    and where it is one of the last two of the tiles above; ``$_see_column(near, to, apart)`` goes on with six of them.
    """
    d, t = [f"d{i}" for i in range(SEEN)], [f"t{i}" for i in range(SEEN)]
    every_fourth = [[f"{v}{k}.{part}" for k in range(TILE)] for v, part in zip("vvvvww", _FOURTHS, strict=True)]
    loads = " ".join(
        f"const float16 {v}{i} = vload16({i}, from{more});" for v, more in (("v", ""), ("w", f" + {TILE}")) for i in range(TILE)
    )
    columns = " ".join(
        f"{v} = as_float16(as_int16((float16)({', '.join(parts)})) & inside[{i}]);"
        for i, (v, parts) in enumerate(zip(d, every_fourth, strict=True))
    )
    stores = " ".join(
        f"if ({when}) {{ {' '.join(f'vstore16(t{i}, 0, {to} + {i * _PLACES});' for i in range(SEEN))} }}"
        for when, to in (("first", "to"), ("again", "above"))
    )
    lines = ""
    for i in range(SEEN):
        six = " ".join(f"d{j} = vload16(0, near + {(j * SEEN + i) * _PLACES});" for j in range(SEEN))
        stored = " ".join(f"vstore16(t{j}, 0, to + {j * SEEN + i} * apart);" for j in range(SEEN))
        lines += f"{six} {seen(d, t)} {stored}\n"
    return f"""
inline void $_see_row(
    __global const float* from, int any, const int16* inside, int first, float* to, int again, float* above) {{
  float16 {", ".join(d)}, {", ".join(t)};
  if (any) {{ {loads} {columns} {seen(d, t)} }}
  else {{ {" ".join(f"{v} = 0.0f;" for v in t)} }}
  {stores}
}}
inline void $_see_column(const float* near, __global float* to, int apart) {{
  float16 {", ".join(d)}, {", ".join(t)};
  {lines}
}}
"""


def _results() -> str:
    """Return ``$_results(sums, apart, to, tiles)``, which makes the results of 16 tiles, four lines of 64.

    It returns whether those of the first *tiles* are finite.
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
        steps, names = turn(y[i], f"z{i}_")
        stores = " ".join(f"vstore16({n}, {k}, to + {i * TILE * _PLACES});" for k, n in enumerate(names))
        finite = " ".join(f"none = fma({v}, 0.0f, none);" for v in y[i])
        text += f"{{ float16 {', '.join(y[i])}; {made(t[i], y[i])} {finite} {steps} {stores} }}\n"
    return f"""
inline int $_results(__global const float* sums, int apart, float* to, int tiles) {{
  float16 none = 0.0f;
  {text}
  return all(none == 0.0f | {LANES} >= tiles);
}}"""


_SEE, _RESULTS = _see(), _results()


def _plainly(rows: int) -> str:
    """Return ``$_plainly(x, f, apart, C, H, W, h0, w0, high, wide, to)``: results as a plain convolution has them.

    The filter comes back from how it was transformed, along each axis as ``4 f₀, 3 (f₂ - f₁), f₅``.
    """
    return f"""
__attribute__((noinline)) void $_plainly(
    __global const float* x, __global const float* f, int apart, int C, int H, int W, int h0, int w0, int high, int wide,
    float* to) {{
  for (int h = 0; h < high; h++)
    for (int w = 0; w < wide; w++) to[h % {TILE} * {TILE * _PLACES} + h / {TILE} * wide + w] = 0.0f;
  for (int c = 0; c < C; c++, f += {rows}, x += H * W) {{
    float r[3][{SEEN}], k[3][3];
    for (int j = 0; j < {SEEN}; j++) {{
      __global const float* const p = f + j * apart;
      r[0][j] = 4.0f * p[0]; r[1][j] = 3.0f * (p[{2 * SEEN} * apart] - p[{SEEN} * apart]); r[2][j] = p[{5 * SEEN} * apart];
    }}
    for (int i = 0; i < 3; i++) {{ k[i][0] = 4.0f * r[i][0]; k[i][1] = 3.0f * (r[i][2] - r[i][1]); k[i][2] = r[i][5]; }}
    for (int h = 0; h < high; h++)
      for (int w = 0; w < wide; w++) {{
        float* const sum = to + h % {TILE} * {TILE * _PLACES} + h / {TILE} * wide + w;
        for (int i = 0; i < 3; i++)
          for (int j = 0; j < 3; j++) {{
            const int ih = h0 + h + i, iw = w0 + w + j;
            if (ih >= 0 && ih < H && iw >= 0 && iw < W) *sum = fma(x[ih * W + iw], k[i][j], *sum);
          }}
      }}
  }}
}}"""


def _multiply(rows: int, vectors: int) -> str:
    """Return ``$_multiply<vectors>(f, seen, pitch, depth, to)``: *rows* channels of so many vectors of tiles."""
    each = [(r, v) for r in range(rows) for v in range(vectors)]
    zero = " ".join(f"float16 s{r}_{v} = 0.0f;" for r, v in each)
    loads = " ".join(f"const float16 b{v} = vload16({v}, seen);" for v in range(vectors))
    products = " ".join(
        f"e = f[{r}]; " + " ".join(f"s{r}_{v} = fma(e, b{v}, s{r}_{v});" for v in range(vectors)) for r in range(rows)
    )
    stores = " ".join(f"vstore16(s{r}_{v}, {v}, to + {r} * pitch);" for r, v in each)
    return f"""
inline void $_multiply{vectors}(
    __global const float* f, __global const float* seen, int pitch, int depth, __global float* to) {{
  {zero}
  for (int k = 0; k < depth; k++, f += {rows}, seen += pitch) {{
    ASYNCRT_FETCH(f + {AHEAD});
    {loads} float16 e; {products}
  }}
  {stores}
}}"""


def _stored(form: ConvForm) -> str:
    """Return statements that store up to 16 results of a row from ``from + c`` on."""
    last = form.last
    if not last.vector:
        element = form.element("r", "(column + j)", "from[c + j] + add")
        return f"for (int j = 0; j < min(16, n - c); j++) {element}"
    whole = last.stored_vector("y + r * OW + column", "column", "vload16(0, from + c) + add")
    some = last.stored_some("y + r * OW + column", "column", "vload16(0, from + c) + add", "n - c")
    return f"if (n - c >= 16) {whole} else {some}"
