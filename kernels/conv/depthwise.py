"""Convolutions of float32 on CPU devices whose windows see few channels: above all depthwise ones, which see one.

A work-item copies the rows that some rows of the result see into lines of its own, which stay in the first cache, with
zeros where the borders are; with a stride of 2 the even columns and the odd ones apart. From there every vector of 16
positions is 16 adjacent elements, whatever the stride, and no kernel checks a border.

A tile is some rows of such vectors. Where the window is written out, its weights are in registers, and each vector that
is loaded serves all rows of the tile that see it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

from asyncrt.devices.base import Registers
from asyncrt.kernels.arithmetic import below, either, greatest, least, power
from asyncrt.kernels.codegen.epilogue import SOME, Epilogue
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.impl import Impl, KernelSource, Launch, chosen, inp
from asyncrt.kernels.patterns.grid import round_up
from asyncrt.kernels.traits import DeviceTraits

from .interface import ConvForm, Convolution, bind_conv
from .packed import WORK

_LINES = 6144  # elements of the lines, 24 KiB: the rest of a core's first cache is for what comes and goes
_SLACK = 80  # elements behind the lines that the vectors at the end of the last one may see
_TOGETHER = 4  # vectors of a tile, if there are registers for as many and once more for weights
_WRITTEN = 49  # cells of a window that are written out
_NEAR = 2  # strides and dilations of a window that is written out


class _Tile(NamedTuple):
    """What is written out in a kernel.

    Attributes:
        height, vectors: Rows of a tile, and vectors of 16 positions in each.
        step: The stride of the columns: 1 or 2.
        size, strides, dilations: Rows and columns of the window, if it is written out; else none.
        single: There is one plane of the window's cells to walk, and its weights stay where they are.
    """

    height: int
    vectors: int
    step: int
    size: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    single: bool = False

    @property
    def sums(self) -> list[tuple[int, int]]:
        """Row and vector of each sum."""
        return [(r, v) for r in range(self.height) for v in range(self.vectors)]

    def column(self, cell: int) -> str:
        """Return where the column that *cell* of a row of cells sees is in a line."""
        odd, at = (cell * self.dilations[1]) % self.step, cell * self.dilations[1] // self.step
        return f"{at} + odds" if odd else str(at)

    def seen(self) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        """Yield the lines that a tile sees, from above, and for each the rows of the tile and of cells that see it."""
        (height, _), (down, _), (apart, _) = self.size, self.strides, self.dilations
        for line in range((self.height - 1) * down + (height - 1) * apart + 1):
            by = [(r, k) for r in range(self.height) for k in range(height) if r * down + k * apart == line]
            if by:
                yield line, by


class _Cut(NamedTuple):
    """How a plane of the result is cut, so that what a part of it sees is in the lines.

    Attributes:
        blocks, across: Parts of its rows, and of its columns: equal ones, or one more in the first of them.
        lines: For each plane that a window sees.
        pitch: Elements from one line to the next: a multiple of 16 for each of the strides' columns.
    """

    blocks: int
    across: int
    lines: int
    pitch: int


def _tile(conv: Convolution, registers: Registers) -> _Tile:
    """Return the tile of *conv*: as many rows as it has, else vectors beside one another."""
    w = conv.window
    _, oh, ow = w.outs
    together = max(1, min(_TOGETHER, registers.capacity // 32))
    height = power(least(together, oh), _TOGETHER)
    vectors = power(least(together // height, ow // 16), _TOGETHER)
    step = w.strides[2]
    near = max(*w.strides[1:], *w.dilations[1:]) <= _NEAR
    if not near or w.size[1] * w.size[2] > _WRITTEN:
        return _Tile(height, vectors, step)
    single = conv.inputs * w.size[0] == 1
    return _Tile(height, vectors, step, w.size[1:], w.strides[1:], w.dilations[1:], single)


def _cut(conv: Convolution, tile: _Tile) -> _Cut | None:
    """Return the cut with the fewest parts; None if the lines hold less than that takes."""
    w = conv.window
    _, oh, ow = w.outs
    _, sh, sw = w.strides
    _, high, wide = w.extents
    planes = conv.inputs * w.size[0]

    def pitch(columns: int) -> int:
        return sw * round_up(-(-((columns - 1) * sw + wide) // sw), 16)

    # With room for all but two tiles, no part of an axis is less than a tile, so that its last one can be moved back.
    fewest = round_up(least(oh, 2 * tile.height - 1), tile.height)
    room = _LINES // (planes * ((fewest - 1) * sh + high))  # of a line
    columns = room // (16 * sw) * 16 - (wide - 1) // sw - 1
    if columns < 32 * tile.vectors - 1 and pitch(ow) > room:
        return None
    across = -(-ow // either(below(room, pitch(ow)), columns, ow))
    line = pitch(-(-ow // across))
    rows = (_LINES // (planes * line) - high) // sh + 1
    # Where no tile is moved back, the last one may see lines that nobody has filled.
    blocks = -(-oh // (rows // tile.height * tile.height))
    return _Cut(blocks, across, (round_up(-(-oh // blocks), tile.height) - 1) * sh + high, line)


def depthwise(conv: Convolution, traits: DeviceTraits, after: Epilogue | None) -> Impl | None:
    """Return the implementation of *conv*; None if it is not of this kind."""
    w = conv.window
    if conv.outputs >= 8 or w.size == (1, 1, 1) or w.strides[2] > 2:
        return None
    tile = _tile(conv, traits.registers)
    cut = _cut(conv, tile)
    if cut is None:
        return None
    od, oh, ow = w.outs
    units = conv.batch * conv.group * od * cut.blocks
    cells = conv.inputs * conv.outputs * w.size[0] * w.size[1] * w.size[2]
    work = cells * -(-oh // cut.blocks) * -(-ow // cut.across // 16)
    per_item = greatest(1, least(-(-units * cut.across // (4 * traits.compute_units)), WORK // greatest(1, work)))
    ints = (
        conv.inputs, conv.outputs, conv.group, *w.spatial, *w.outs, *w.size, *w.strides, *w.dilations, *w.before, *cut,
        units, per_item, conv.batch * conv.group * conv.inputs * w.spatial[0] * w.spatial[1] * w.spatial[2],
    )  # fmt: skip
    bound = bind_conv(conv, inp(0), inp(1), after)
    k = chosen(8 * tile.height + tile.vectors, _kernel_of, bound.form, tile._replace(height=1, vectors=1))
    launch = Launch(k, bound.refs, (*ints, *bound.ints), (-(-units // per_item), cut.across), (1, 1))
    return Impl(f"depthwise {tile.height}x{16 * tile.vectors}", (launch,))


_INTS = (
    "C", "M", "G", "D", "H", "W", "OD", "OH", "OW", "KD", "KH", "KW", "sd", "sh", "sw", "dd", "dh", "dw", "pd", "ph",
    "pw", "blocks", "across", "lines", "pitch", "units", "per_item", "all",
)  # fmt: skip


def _kernel_of(form: ConvForm, tile: _Tile, number: int) -> KernelSource:
    return _kernel(form, tile._replace(height=number // 8, vectors=number % 8), _LINES)


@functools.cache
def _kernel(form: ConvForm, tile: _Tile, room: int) -> KernelSource:
    """Return the kernel that computes tiles from lines of *room* elements together."""
    zero = " ".join(f"float16 a{r}_{v} = start;" for r, v in tile.sums)
    body = f"""
  float own[{room + _SLACK}] __attribute__((aligned(64)));
  const int u1 = min(((int)get_global_id(0) + 1) * per_item, units);
  const int part = (int)get_global_id(1), left = part * (OW / across) + min(part, OW % across);
  const int wide = OW / across + (part < OW % across);
  const int planes = C * KD, cells = KH * KW, odds = pitch / {tile.step};
  {_COLUMNS.format(step=tile.step, wide=16 * tile.step)}
  $_clear(own, planes * lines * pitch + {_SLACK - 16});
  for (int u = (int)get_global_id(0) * per_item; u < u1; u++) {{
    const int block = u % blocks, od = u / blocks % OD, plane = u / blocks / OD;
    const int oh0 = block * (OH / blocks) + min(block, OH % blocks), high = OH / blocks + (block < OH % blocks);
    {_FILL}
    for (int m = 0; m < M; m++) {{
      const int q = plane * M + m, oc = q % (G * M), line0 = (q * OD + od) * OH + oh0;
      const float16 start = {"bias[oc]" if form.bias else "0.0f"};
      __global const float* wp = f + oc * planes * cells;
      {_weights(tile) if tile.single else ""}
      for (int r1 = 0; r1 < high; r1 += {tile.height})
        for (int c1 = 0; c1 < wide; c1 += {16 * tile.vectors}) {{
          const int {_place(form, tile)};
          {zero}
          const float* at = own + r0 * sh * pitch + c0;
          {_walk(tile)}
          {_stored(form, tile)}
        }}
    }}
  }}"""
    last = form.last
    ints = (*_INTS, *last.ints)
    one = "__attribute__((reqd_work_group_size(1, 1, 1)))"
    return kernel(
        "conv_depthwise", form.buffers, ints, body, helpers=_copies(tile.step) + SOME + last.helpers, attributes=one
    )


# The columns of the input that lines hold: `count` from `in0 + first` on, as columns `first` and on of a line. The last
# `rest` of them are read with what follows, where that is still the input, and stored with zeros in its place.
_COLUMNS = """const int in0 = left * {step} - pw, first = max(0, -in0);
  const int count = min((wide - 1) * {step} + (KW - 1) * dw + 1, W - in0) - first;
  const int rest = (count - 1) % {wide} + 1, safe = all - {wide};"""

# What is left and right of the input was set to zero before, and stays so.
_FILL = """for (int p = 0; p < planes; p++) {
      const int id = od * sd + p % KD * dd - pd, ih0 = oh0 * sh - ph, end = (high - 1) * sh + (KH - 1) * dh + 1;
      const int i0 = count <= 0 || id < 0 || id >= D ? end : min(max(0, -ih0), end), i1 = min(end, H - ih0);
      float* to = own + p * lines * pitch;
      int from = (((plane * C + p / KD) * D + id) * H + ih0 + i0) * W + in0 + first, i = 0;
      for (; i < i0; i++, to += pitch) $_clear(to, pitch);
      for (; i < i1; i++, to += pitch, from += W) $_copy(x + from, to, first, count, rest, odds, from + count - rest <= safe);
      for (; i < end; i++, to += pitch) $_clear(to, pitch);
    }"""

_LANES = "(int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)"


def _copies(step: int) -> str:
    """Return ``$_clear(to, n)`` and ``$_copy(from, to, c, n, rest, odds, safe)``: *n* elements become columns *c* and on.

    The last *rest* are stored first, because vectors reach into what follows in the lines.
    """
    if step == 1:
        put = "inline void $_put(float16 v, float* to, int c, int odds) { vstore16(v, 0, to + c); }"
        body = "$_put(vload16(0, from + i), to, c + i, odds);"
        tail = f"$_put(as_float16(as_int16(vload16(0, from + i)) & ({_LANES} < rest)), to, c + i, odds);"
        one = "to[c + i] = from[i];"
    else:
        put = """inline void $_put(float16 e, float16 o, float* to, int c, int odds) {
  if (c & 1) { vstore16(o, 0, to + (c + 1) / 2); vstore16(e, 0, to + odds + c / 2); }
  else { vstore16(e, 0, to + c / 2); vstore16(o, 0, to + odds + c / 2); }
}"""
        e, o = (f"(float16)(vload16(0, from + i).{p}, vload16(1, from + i).{p})" for p in ("even", "odd"))
        body = f"$_put({e}, {o}, to, c + i, odds);"
        tail = (
            f"$_put(as_float16(as_int16({e}) & (2 * {_LANES} < rest)), "
            f"as_float16(as_int16({o}) & (2 * {_LANES} + 1 < rest)), to, c + i, odds);"
        )
        one = "to[(c + i & 1) * odds + (c + i) / 2] = from[i];"
    return f"""
{put}
inline void $_clear(float* to, int n) {{ for (int i = 0; i < n; i += 16) vstore16((float16)(0.0f), 0, to + i); }}
inline void $_copy(__global const float* from, float* to, int c, int n, int rest, int odds, int safe) {{
  int i = n - rest;
  if (safe) {tail}
  else for (; i < n; i++) {one}
  for (i = 0; i < n - rest; i += {16 * step}) {body}
}}"""


def _weights(tile: _Tile) -> str:
    return " ".join(f"const float16 w{k} = wp[{k}];" for k in range(tile.size[0] * tile.size[1]))


def _walk(tile: _Tile) -> str:
    """Return statements that add the products of all cells of the window, in order, to the sums of a tile."""
    if tile.single:
        return _written(tile)
    one = f"{_weights(tile)} {_written(tile)}" if tile.size else _looped(tile)
    return f"for (int p = 0; p < planes; p++, at += lines * pitch) {{ const int k0 = p * cells; {one} }}".replace(
        "wp[", "wp[k0 + "
    )


def _written(tile: _Tile) -> str:
    vectors = range(tile.vectors)
    text = ""
    for line, by in tile.seen():
        text += f"{{ const float* const from = at + {line} * pitch; "
        for cell in range(tile.size[1]):
            loads = " ".join(f"const float16 e{v} = vload16({v}, from + {tile.column(cell)});" for v in vectors)
            products = " ".join(
                f"a{r}_{v} = fma(w{k * tile.size[1] + cell}, e{v}, a{r}_{v});" for r, k in by for v in vectors
            )
            text += f"{{ {loads} {products} }} "
        text += "}\n"
    return text


def _looped(tile: _Tile) -> str:
    column = "kw * dw" if tile.step == 1 else "(kw * dw & 1) * odds + (kw * dw >> 1)"
    products = " ".join(
        f"a{r}_{v} = fma(w, vload16({v}, from + {r} * sh * pitch), a{r}_{v});"
        for r in range(tile.height)
        for v in range(tile.vectors)
    )
    return f"""for (int kh = 0; kh < KH; kh++)
            for (int kw = 0; kw < KW; kw++) {{
              const float16 w = wp[kh * KW + kw];
              const float* const from = at + kh * dh * pitch + {column};
              {products}
            }}"""


def _again(form: ConvForm) -> bool:
    """Whether what was stored may be stored again: no operand lies as the result does, which might be where it lies."""
    return all(step == 0 for step in form.last.steps)


def _place(form: ConvForm, tile: _Tile) -> str:
    """Return where a tile is: the last ones are moved back to end with the part, if that may be."""
    if not _again(form):
        return "r0 = r1, c0 = c1"
    return f"r0 = min(r1, high - {tile.height}), c0 = max(0, min(c1, wide - {16 * tile.vectors}))"


def _stored(form: ConvForm, tile: _Tile) -> str:
    """Return statements that store a tile, without what is outside of the result."""
    last = form.last
    if last.vector and not last.dtypes:
        return _stored_whole(form, tile)
    value = "vload16(i, t)"
    if last.vector:
        one = last.stored_some("y + row * OW + column", "column", value, "n")
    else:
        one = f"for (int j = 0; j < min(16, n); j++) {form.element('row', '(column + j)', 't[i * 16 + j]')}"
    spill = " ".join(f"vstore16(a{r}_{v}, {k}, t);" for k, (r, v) in enumerate(tile.sums))
    return f"""float t[{len(tile.sums) * 16}] __attribute__((aligned(64)));
          {spill}
          for (int i = 0; i < min({tile.height}, high - r0) * {tile.vectors}; i++) {{
            const int row = line0 + r0 + i / {tile.vectors}, c = c0 + i % {tile.vectors} * 16, column = left + c, n = wide - c;
            {"" if tile.vectors == 1 else "if (n <= 0) continue;"}
            {last.rows("row")}
            {one}
          }}"""


def _stored_whole(form: ConvForm, tile: _Tile) -> str:
    """Return statements that store a tile of which nothing is outside, but for columns of rows that are shorter than it.

    Those reach into the next rows, which are stored after them.
    """
    finish = " ".join(
        f"{{ const float16 v = a{r}_{v}; a{r}_{v} = (float16)({form.last.expression}); }}" for r, v in tile.sums
    )
    whole = " ".join(f"vstore16(a{r}_{v}, {v}, to + {r} * OW);" for r, v in tile.sums)
    part = " ".join(f"$_store(a{r}_0, (high - r0 - {r}) * OW, to + {r} * OW);" for r in range(tile.height))
    return f"""__global float* const to = y + (line0 + r0) * OW + left + c0;
          {finish}
          if (OW >= 16) {{ {whole} }}
          else {{ {part} }}"""
