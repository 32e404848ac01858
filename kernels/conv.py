"""Convolutions: what Conv and ConvTranspose share.

A transposed convolution is the convolution of its input with zeros inserted (`steps`) by the flipped filter, so one
set of kernels serves both:

- packed: float32 on a CPU with constant weights. A work-item computes tiles of 32 output channels (or 16)
  × up to 8 neighbouring positions over weights packed ``[group][channel block][ic][kd][kh][kw][32]``.
- planes: float32 on a CPU otherwise, and few channels per group. A vector holds neighbouring positions of one channel.
- matrix product: windows of one cell (in `ops.conv`).
- shared: on GPUs, 64 × 64 tiles of the product of filter and patches, in local memory.
- generic: any dtype, one result at a time, with checked borders.

All of them can go on calculating before they store (`epilogue`).

The vector kernels read no borders: padding (and zeros between elements) are written into a scratch copy of the input
first. Their last tile of a row is moved back to end with the row, so that nothing beyond it is read.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from asyncrt.layout import FLOAT32, Array, DataType

from . import epilogue
from .epilogue import Epilogue, bind
from .grid import GPU_GROUP, cut_rows, round_up
from .impl import Impl, KernelSource, Launch, Ref, WeightsRequest, inp, out, scratch, weights
from .operator import DeviceTraits
from .source import accumulator_type, kernel
from .tiles import AHEAD, FETCH, turn
from .window import Window

# Output channels of a packed block, two float16 or one, and what a channel costs in it: one loads twice as often for
# each multiplication.
_BLOCKS = {32: 1.0, 16: 1.4}
_TILE = 8  # positions of a packed tile
_UNROLLED = 7  # cells of a window's row that are written out one after the other
_WORK = 1 << 16  # multiply-adds (of vectors) that a work-item should have
_GPU_TILE, _GPU_DEPTH = 64, 16


class Convolution(NamedTuple):
    """One convolution at one set of shapes: input 0 is the data, 1 the filter, 2 the bias.

    Attributes:
        dtype: Of every tensor.
        batch, group: Sizes.
        inputs, outputs: Channels per group.
        window: Over three spatial axes; the equivalent stride-1 window if transposed.
        steps: Distance of the input's elements after zeros are inserted, per spatial axis.
        transposed: The filter is ``[C, M / group, ...]`` and flipped, not ``[M, C / group, ...]``.
        bias: Whether there is one.
    """

    dtype: DataType
    batch: int
    group: int
    inputs: int
    outputs: int
    window: Window
    steps: tuple[int, int, int] = (1, 1, 1)
    transposed: bool = False
    bias: bool = False


def convolution(conv: Convolution, traits: DeviceTraits, *, constant: bool, after: Epilogue | None = None) -> Impl:
    """Return the implementation of *conv*.

    Args:
        constant: The filter is a constant of the model.
        after: What becomes of each element before it is stored.
    """
    if not traits.is_cpu:
        wide = conv.outputs >= 16 and conv.dtype.is_float and traits.max_group >= 256
        return _shared(conv, after) if wide else _generic(conv, traits, after)
    if conv.dtype is not FLOAT32 or conv.inputs == 0:
        return _generic(conv, traits, after)
    if constant and traits.packed_weights and conv.outputs >= 8:
        return _packed(conv, traits, after)
    return _generic(conv, traits, after) if conv.transposed else _planes(conv, traits, after)


class _Form(NamedTuple):
    """What the source of every kernel depends on."""

    dtype: DataType
    bias: bool
    last: epilogue.Form

    @property
    def buffers(self) -> tuple[tuple[str, DataType, str], ...]:
        t = self.dtype
        bias = (("bias", t, "r"),) if self.bias else ()
        return (("x", t, "r"), ("f", t, "r"), ("y", t, "w"), *bias, *self.last.buffers)

    def element(self, row: str, column: str, value: str) -> str:
        """Store *value* in *column* of row ``row`` of the result, whose columns are its last axis."""
        return self.last.element(self.dtype, "y", f"({row}) * OW + {column}", column, value)


class _Bound(NamedTuple):
    """A convolution's form, and the epilogue's part of a launch."""

    form: _Form
    refs: tuple[Ref, ...]
    ints: tuple[int, ...]


def _bound(conv: Convolution, source: Ref, filter_: Ref, after: Epilogue | None) -> _Bound:
    """Bind the operands; rows of the result are those of its last axis, whatever its rank."""
    shape = after.operands[0].view.shape if after is not None and after.operands else (1,)
    last = bind(after, shape)
    bias = (inp(2),) if conv.bias else ()
    return _Bound(_Form(conv.dtype, conv.bias, last.form), (source, filter_, out(0), *bias, *last.refs), last.ints)


class _Padded(NamedTuple):
    """The input as the vector kernels read it: with borders and inserted zeros written out."""

    ref: Ref
    spatial: tuple[int, ...]
    launches: tuple[Launch, ...]
    scratch: tuple[int, ...]


def _padded(conv: Convolution, traits: DeviceTraits) -> _Padded:
    w = conv.window
    reach = tuple((o - 1) * s + e for o, s, e in zip(w.outs, w.strides, w.extents, strict=True))
    if conv.steps == (1, 1, 1) and not any(w.before) and all(r <= d for r, d in zip(reach, w.spatial, strict=True)):
        return _Padded(inp(0), w.spatial, (), ())
    planes = conv.batch * conv.group * conv.inputs
    rows = planes * reach[0] * reach[1]
    cut = cut_rows(rows, reach[2], traits)
    ints = (*w.spatial, *reach, *w.before, *conv.steps, rows, cut.rows_per_item)
    items = -(-rows // cut.rows_per_item)
    launch = Launch(_pad_kernel(conv.dtype, conv.steps != (1, 1, 1)), (inp(0), scratch(0)), ints, (items,), (1,))
    return _Padded(scratch(0), reach, (launch,), (rows * reach[2] * conv.dtype.itemsize,))


@functools.cache
def _pad_kernel(dtype: DataType, stepped: bool) -> KernelSource:
    """Element i of an axis goes to ``before + i * step``; what falls outside is dropped, the rest is zero."""
    if stepped:
        inside = "h >= 0 && d >= 0 && h % th == 0 && d % td == 0 && h / th < H && d / td < D"
        row = "(plane * D + d / td) * H + h / th"
        copy = "for (int c = 0; c < PW; c++) to[c] = 0; for (int c = first; c < last; c++) to[pw + c * tw] = from[c];"
    else:
        inside = "h >= 0 && d >= 0 && h < H && d < D"
        row = "(plane * D + d) * H + h"
        copy = """for (int c = 0; c < pw; c++) to[c] = 0;
    int c = first;
    for (; c + 16 <= last; c += 16) vstore16(vload16(0, from + c), 0, to + pw + c);
    for (; c < last; c++) to[pw + c] = from[c];
    for (int c = max(pw + last, 0); c < PW; c++) to[c] = 0;"""
    body = f"""
  const int r0 = (int)get_global_id(0) * per_item, r1 = min(r0 + per_item, rows);
  const int first = pw < 0 ? (-pw + tw - 1) / tw : 0;
  const int last = pw >= PW ? 0 : min(W, (PW - pw - 1) / tw + 1);
  for (int r = r0; r < r1; r++) {{
    const int line = r / PH, plane = line / PD, h = r - line * PH - ph, d = line - plane * PD - pd;
    __global {dtype.c}* to = y + r * PW;
    if (!({inside}) || last <= first) {{ for (int c = 0; c < PW; c++) to[c] = 0; continue; }}
    __global const {dtype.c}* from = x + ({row}) * W;
    {copy}
  }}"""
    ints = ("D", "H", "W", "PD", "PH", "PW", "pd", "ph", "pw", "td", "th", "tw", "rows", "per_item")
    return kernel("conv_pad", (("x", dtype, "r"), ("y", dtype, "w")), ints, body)


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


def _packed(conv: Convolution, traits: DeviceTraits, after: Epilogue | None) -> Impl:
    padded = _padded(conv, traits)
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
    chunk = tile * max(1, -(-_WORK // (cells * tile)))
    block = min(_BLOCKS, key=lambda b: round_up(conv.outputs, b) * _BLOCKS[b])
    blocks = -(-conv.outputs // block)
    ints = (
        conv.inputs, conv.outputs, conv.group, blocks, *spatial, od, oh, ow, kd, kh, kw, sd, sh, dd, dh, dw, chunk,
        cells * block, sw,
    )  # fmt: skip
    # Neighbours share weights, which may be more than a cache keeps while others pass.
    grid = (-(-ow // chunk), conv.batch * od * oh, conv.group * blocks)
    bound = _bound(conv, padded.ref, weights(0), after)
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
def _packed_kernel(form: _Form, block: int, tile: int, stride: int, unrolled: tuple[int, int]) -> KernelSource:
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
    turned = _turned(form.last, block, tile) if tile > 4 and form.last.vector else ""
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
    """Return statements that store a whole tile of 5 to 8 positions, which lies as vectors of channels."""
    lines: list[str] = []
    for h in range(block // 16):
        steps, names = turn([f"a{min(p, tile - 1)}_{h}" for p in range(8)], f"z{h}_")
        lines.append(steps)
        for i, name in enumerate(names):
            rows = [f"(first + {16 * h + 2 * i + k} * OD * OH)" for k in (0, 1)]
            lines.append(last.stored_pair(rows, [f"y + {row} * OW + ow0" for row in rows], "ow0", name, tile))
    return f"""if (tile0 == ow0 && left == {block}) {{
      const int first = ((n * G * M + oc0) * OD + od) * OH + oh;
      {" ".join(lines)}
      continue;
    }}"""


def _planes(conv: Convolution, traits: DeviceTraits, after: Epilogue | None) -> Impl:
    padded = _padded(conv, traits)
    w = conv.window
    (sd, sh, sw), (dd, dh, dw), (od, oh, ow) = w.strides, w.dilations, w.outs
    width = next(v for v in (16, 8, 4, 2, 1) if v <= ow)
    height = next(h for h in (4, 2, 1) if h <= oh)
    blocks = -(-oh // height)
    units = conv.batch * conv.group * conv.outputs * od * blocks
    cells = conv.inputs * w.size[0] * w.size[1] * w.size[2]
    work = height * cells * -(-ow // width)
    per_item = max(1, min(-(-units // (4 * traits.compute_units)), _WORK // max(1, work)))
    ints = (
        conv.inputs, conv.outputs, conv.group, *padded.spatial, od, oh, ow, *w.size, sd, sh, dd, dh, dw, blocks,
        units, per_item, sw,
    )  # fmt: skip
    bound = _bound(conv, padded.ref, inp(1), after)
    k = _planes_kernel(bound.form, height, width, sw if sw <= 2 else 0)
    launch = Launch(k, bound.refs, (*ints, *bound.ints), (-(-units // per_item),), (1,))
    return Impl(f"planes {height}x{width}", (*padded.launches, launch), padded.scratch)


@functools.cache
def _planes_kernel(form: _Form, height: int, width: int, stride: int) -> KernelSource:
    """Tiles of *height* rows × *width* positions of one channel; several rows, so that additions need not wait."""
    vector = "float" if width == 1 else f"float{width}"
    step = str(stride) if stride else "sw"
    rows = range(height)

    def load(at: str) -> str:
        if width == 1:
            return f"{at}[0]"
        if stride == 1:
            return f"vload{width}(0, {at})"
        return f"({vector})({', '.join(f'{at}[{i} * {step}]' for i in range(width))})"

    last = form.last

    def store(i: int) -> str:
        """Store the positions of row i."""
        row = f"(q * OD + od) * OH + h{i}"
        if last.vector and width == 16:
            stored = last.stored_vector(f"y + ({row}) * OW + ow0", "ow0", f"a{i}")
        elif last == epilogue.NONE:
            at = f"y + ({row}) * OW + ow0"
            stored = f"*({at}) = a{i};" if width == 1 else f"vstore{width}(a{i}, 0, {at});"
        else:
            spill = f"*t = a{i};" if width == 1 else f"vstore{width}(a{i}, 0, t);"
            each = form.element(row, "(ow0 + p)", "t[p]")
            stored = f"float t[{width}]; {spill} for (int p = 0; p < {width}; p++) {each}"
        return f"{{ {last.rows(row)} {stored} }}"

    # Where there are fewer rows left, the last one is calculated again.
    places = " ".join(
        f"const int h{i} = min(block * {height} + {i}, OH - 1); __global const float* const x{i} = xn + h{i} * sh * W;"
        for i in rows
    )
    zero = " ".join(f"{vector} a{i} = ({vector})({'bias[oc]' if form.bias else '0.0f'});" for i in rows)
    multiply = " ".join(f"a{i} = fma(w, {load(f'(x{i} + at)')}, a{i});" for i in rows)
    stores = " ".join(map(store, rows))
    body = f"""
  const int u1 = min(((int)get_global_id(0) + 1) * per_item, units);
  for (int u = (int)get_global_id(0) * per_item; u < u1; u++) {{
    const int block = u % blocks, od = u / blocks % OD, q = u / blocks / OD;
    const int oc = q % (G * M), n = q / (G * M), g = oc / M;
    __global const float* const xn = x + ((n * G + g) * C * D + od * sd) * H * W;
    {places}
    for (int tile0 = 0; tile0 < OW; tile0 += {width}) {{
      const int ow0 = min(tile0, OW - {width});
      __global const float* wp = f + oc * C * KD * KH * KW;
      {zero}
      for (int c = 0; c < C; c++)
        for (int kd = 0; kd < KD; kd++)
          for (int kh = 0; kh < KH; kh++) {{
            int at = ((c * D + kd * dd) * H + kh * dh) * W + ow0 * {step};
            for (int kw = 0; kw < KW; kw++, at += dw) {{
              const {vector} w = ({vector})(*wp++);
              {multiply}
            }}
          }}
      {stores}
    }}
  }}"""
    ints = (
        "C", "M", "G", "D", "H", "W", "OD", "OH", "OW", "KD", "KH", "KW", "sd", "sh", "dd", "dh", "dw", "blocks",
        "units", "per_item", "sw", *last.ints,
    )  # fmt: skip
    return kernel(f"conv_planes{height}x{width}", form.buffers, ints, body, helpers=last.helpers)


def _filter_strides(conv: Convolution) -> tuple[int, ...]:
    """Return offset, and strides of group, output channel, input channel and the window's axes, in the filter."""
    kd, kh, kw = conv.window.size
    cells = kd * kh * kw
    group = conv.inputs * conv.outputs * cells
    if conv.transposed:
        return (cells - 1, group, cells, conv.outputs * cells, -kh * kw, -kw, -1)
    return (0, group, conv.inputs * cells, cells, kh * kw, kw, 1)


def _generic_ints(conv: Convolution) -> tuple[int, ...]:
    w = conv.window
    return (
        conv.inputs, conv.outputs, conv.group, *w.spatial, *w.outs, *w.size, *w.strides, *w.dilations, *w.before,
        *conv.steps, *_filter_strides(conv),
    )  # fmt: skip


_GENERIC_INTS = (
    "C", "M", "G", "D", "H", "W", "OD", "OH", "OW", "KD", "KH", "KW", "sd", "sh", "sw", "dd", "dh", "dw", "pd", "ph",
    "pw", "td", "th", "tw", "fo", "fg", "fm", "fc", "fd", "fh", "fw",
)  # fmt: skip


def _inside(axis: str, stepped: bool) -> str:
    """Whether coordinate ``i<axis>`` (in the input with zeros inserted) is an element of the input."""
    size = axis.upper()
    if stepped:
        return f"i{axis} >= 0 && i{axis} % t{axis} == 0 && i{axis} / t{axis} < {size}"
    return f"i{axis} >= 0 && i{axis} < {size}"


def _generic(conv: Convolution, traits: DeviceTraits, after: Epilogue | None) -> Impl:
    stepped = conv.steps != (1, 1, 1)
    od, oh, ow = conv.window.outs
    rows = conv.batch * conv.group * conv.outputs * od * oh
    ints = _generic_ints(conv)
    bound = _bound(conv, inp(0), inp(1), after)
    refs = bound.refs
    k = _generic_kernel(bound.form, stepped, traits.is_cpu)
    if traits.is_cpu:
        cells = conv.inputs * conv.window.size[0] * conv.window.size[1] * conv.window.size[2]
        cut = cut_rows(rows, ow * max(1, cells), traits)
        per_item = cut.rows_per_item
        return Impl("generic", (Launch(k, refs, (*ints, rows, per_item, *bound.ints), (-(-rows // per_item),), (1,)),))
    grid = (round_up(rows * ow, GPU_GROUP),)
    return Impl("generic", (Launch(k, refs, (*ints, rows * ow, 1, *bound.ints), grid, (GPU_GROUP,)),))


@functools.cache
def _generic_kernel(form: _Form, stepped: bool, cpu: bool) -> KernelSource:
    t = form.dtype
    acc = accumulator_type(t)
    at = {a: f"i{a} / t{a}" if stepped else f"i{a}" for a in "dhw"}
    one = f"""
    int q = r;
    const int oh = q % OH; q /= OH;
    const int od = q % OD; q /= OD;
    const int oc = q % (G * M), n = q / (G * M), g = oc / M;
    {acc} a = {f"({acc})LOAD({t.name}, bias, oc)" if form.bias else "0"};
    for (int c = 0; c < C; c++) {{
      const int plane = (n * G + g) * C + c, fa = fo + g * fg + (oc - g * M) * fm + c * fc;
      for (int kd = 0; kd < KD; kd++) {{
        const int id = od * sd + kd * dd - pd;
        if (!({_inside("d", stepped)})) continue;
        for (int kh = 0; kh < KH; kh++) {{
          const int ih = oh * sh + kh * dh - ph;
          if (!({_inside("h", stepped)})) continue;
          const int row = ((plane * D + {at["d"]}) * H + {at["h"]}) * W, fr = fa + kd * fd + kh * fh;
          for (int kw = 0; kw < KW; kw++) {{
            const int iw = ow * sw + kw * dw - pw;
            if ({_inside("w", stepped)})
              a += ({acc})LOAD({t.name}, x, row + {at["w"]}) * ({acc})LOAD({t.name}, f, fr + kw * fw);
          }}
        }}
      }}
    }}
    {form.last.rows("r")}
    {form.element("r", "ow", "a")}"""
    if cpu:
        body = f"""
  const int r0 = (int)get_global_id(0) * per_item, r1 = min(r0 + per_item, items);
  for (int r = r0; r < r1; r++) for (int ow = 0; ow < OW; ow++) {{ {one} }}"""
    else:
        body = f"""
  const int item = (int)get_global_id(0);
  if (item >= items) return;
  const int r = item / OW, ow = item % OW;
  {one}"""
    ints = (*_GENERIC_INTS, "items", "per_item", *form.last.ints)
    return kernel("conv_generic", form.buffers, ints, body, helpers=form.last.helpers)


def _shared(conv: Convolution, after: Epilogue | None) -> Impl:
    positions = conv.window.outs[0] * conv.window.outs[1] * conv.window.outs[2]
    blocks = -(-conv.outputs // _GPU_TILE)
    grid = (16 * -(-positions // _GPU_TILE), 16 * conv.group * blocks, conv.batch)
    bound = _bound(conv, inp(0), inp(1), after)
    k = _shared_kernel(bound.form, conv.steps != (1, 1, 1))
    launch = Launch(k, bound.refs, (*_generic_ints(conv), blocks, *bound.ints), grid, (16, 16, 1))
    return Impl(f"shared {_GPU_TILE}x{_GPU_TILE}", (launch,))


@functools.cache
def _shared_kernel(form: _Form, stepped: bool) -> KernelSource:
    """The product of the filter ``[M, C * cells]`` and the patches ``[C * cells, positions]``, in tiles."""
    t = form.dtype
    acc = accumulator_type(t)
    tile, depth = _GPU_TILE, _GPU_DEPTH
    at = {a: f"i{a} / t{a}" if stepped else f"i{a}" for a in "dhw"}
    bias = f"({acc})LOAD({t.name}, bias, g * M + m)" if form.bias else "0"
    body = f"""
  __local {acc} ft[{depth}][{tile} + 1]; __local {acc} xt[{depth}][{tile} + 1];
  const int lx = (int)get_local_id(0), ly = (int)get_local_id(1), id0 = ly * 16 + lx;
  const int n = (int)get_group_id(2), g = (int)get_group_id(1) / blocks;
  const int m0 = ((int)get_group_id(1) % blocks) * {tile}, p0 = (int)get_group_id(0) * {tile};
  const int cells = KD * KH * KW, K = C * cells, P = OD * OH * OW;
  const int pp = p0 + id0 % {tile};  /* each work-item fills one column of the patches */
  const int ow = pp % OW, oh = pp / OW % OH, od = pp / OW / OH;
  const int bw = ow * sw - pw, bh = oh * sh - ph, bd = od * sd - pd;
  {acc} c[4][4];
  for (int i = 0; i < 4; i++) for (int j = 0; j < 4; j++) c[i][j] = 0;
  for (int k0 = 0; k0 < K; k0 += {depth}) {{
    for (int e = id0; e < {tile * depth}; e += 256) {{
      const int m = m0 + e / {depth}, kk = e % {depth}, k = k0 + kk;
      {acc} v = 0;
      if (m < M && k < K) {{
        const int ci = k / cells, cell = k - ci * cells, kw = cell % KW, kh = cell / KW % KH, kd = cell / KW / KH;
        v = ({acc})LOAD({t.name}, f, fo + g * fg + m * fm + ci * fc + kd * fd + kh * fh + kw * fw);
      }}
      ft[kk][e / {depth}] = v;
    }}
    for (int kk = id0 / {tile}; kk < {depth}; kk += {256 // tile}) {{
      const int k = k0 + kk;
      {acc} v = 0;
      if (k < K && pp < P) {{
        const int ci = k / cells, cell = k - ci * cells, kw = cell % KW, kh = cell / KW % KH, kd = cell / KW / KH;
        const int id = bd + kd * dd, ih = bh + kh * dh, iw = bw + kw * dw;
        if ({_inside("d", stepped)} && {_inside("h", stepped)} && {_inside("w", stepped)})
          v = ({acc})LOAD({t.name}, x, ((((n * G + g) * C + ci) * D + {at["d"]}) * H + {at["h"]}) * W + {at["w"]});
      }}
      xt[kk][id0 % {tile}] = v;
    }}
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int k = 0; k < {depth}; k++) {{
      {acc} rf[4], rx[4];
      for (int i = 0; i < 4; i++) {{ rf[i] = ft[k][ly + 16 * i]; rx[i] = xt[k][lx + 16 * i]; }}
      for (int i = 0; i < 4; i++) for (int j = 0; j < 4; j++) c[i][j] += rf[i] * rx[j];
    }}
    barrier(CLK_LOCAL_MEM_FENCE);
  }}
  for (int i = 0; i < 4; i++) for (int j = 0; j < 4; j++) {{
    const int m = m0 + ly + 16 * i, p = p0 + lx + 16 * j;
    if (m < M && p < P) {{
      const int row = ((n * G + g) * M + m) * (OD * OH) + p / OW;
      {form.last.rows("row")}
      {form.element("row", "(p % OW)", f"c[i][j] + {bias}")}
    }}
  }}"""
    group = "__attribute__((reqd_work_group_size(16, 16, 1)))"
    ints = (*_GENERIC_INTS, "blocks", *form.last.ints)
    return kernel("conv_shared", form.buffers, ints, body, helpers=form.last.helpers, attributes=group)
