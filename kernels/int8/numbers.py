"""The data of a convolution of 8-bit integers as numbers of four bytes, with its borders, and its filters in their order.

A product of such numbers is that of four bytes. They are those of four channels at one place, or of four cells of a row
of the window, whichever fills them better: then what a position multiplies by a filter lies as it is read, and nothing is
gathered byte by byte. Data is unsigned here; borders hold the zero point, and a channel that there is not is zero.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from asyncrt.kernels.codegen.epilogue import store_some
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.codegen.vectors import LANES
from asyncrt.kernels.impl import KernelSource, Launch, inp, scratch
from asyncrt.kernels.patterns.grid import cut_rows
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import INT8, INT32, Array, DataType

from .conv_interface import IntegerConv

TOGETHER = 4
"""Bytes of a number."""


class Numbers(NamedTuple):
    """Data as numbers: ``[batch * group, planes, *room]``, and how windows walk it.

    Attributes:
        launch: What writes it to scratch 0.
        nbytes: Its size, with what vectors at its end read and do not use.
        in_rows: A number has four cells of a row of the window, rather than four channels.
        planes: For each group of channels.
        room: Depth, height and width, with borders.
        size: Numbers of the window, per spatial axis.
        strides: From one position to the next.
        dilations: From one number of the window to the next.
    """

    launch: Launch
    nbytes: int
    in_rows: bool
    planes: int
    room: tuple[int, int, int]
    size: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]

    @property
    def depth(self) -> int:
        """Numbers that a position multiplies by each filter."""
        return self.planes * self.size[0] * self.size[1] * self.size[2]


def as_numbers(conv: IntegerConv, traits: DeviceTraits) -> Numbers:
    """Return the data of *conv* as numbers."""
    w, channels = conv.window, conv.inputs
    by_channels = -(-channels // TOGETHER) * w.size[2]
    # Zero points of filters need the sums of what a window sees, without cells that there are not.
    in_rows = conv.neutral and channels * -(-w.size[2] // TOGETHER) < by_channels
    thin = w.size == (1, 1, 1) and not any(w.before)  # what no position sees is left out
    steps = w.strides if thin else (1, 1, 1)
    strides = (1, 1, 1) if thin else w.strides
    size, dilations = w.size, w.dilations
    if in_rows:
        size, dilations = (*w.size[:2], -(-w.size[2] // TOGETHER)), (*w.dilations[:2], TOGETHER * w.dilations[2])
    planes = channels if in_rows else -(-channels // TOGETHER)
    depth, height, width = ((o - 1) * s + (k - 1) * d + 1 for o, s, k, d in zip(w.outs, strides, size, dilations, strict=True))
    rows = conv.batch * conv.group * planes * depth * height
    cut = cut_rows(rows, width, traits)
    total = conv.batch * conv.group * channels * w.spatial[0] * w.spatial[1] * w.spatial[2]
    zero = conv.zeros[0]
    launch = Launch(
        _kernel(conv.x, zero is not None, in_rows),
        (inp(0), scratch(0), *(() if zero is None else (zero,))),
        (channels, planes, *w.spatial, depth, height, width, *w.before, *steps, w.dilations[2], total, rows, cut.rows_per_item),
        (-(-rows // cut.rows_per_item),), (1,),
    )  # fmt: skip
    beyond = 16 * strides[2] + 16  # lanes behind the end of a row are read and not stored
    return Numbers(
        launch, 4 * (rows * width + beyond), in_rows, planes, (depth, height, width), size, strides, dilations
    )


def pack_channels(filters: Array) -> Array:
    """Return ``[M, C, cells...]`` filters of bytes as ``[M, ceil(C / 4) * cells + 1]``: four signed bytes in each number,
    those of four channels, then the sum of all."""
    m, channels = filters.shape[:2]
    cells = _signed(filters).reshape(m, channels, -1)
    padded = np.zeros((m, -(-channels // TOGETHER) * TOGETHER, cells.shape[2]), np.int8)
    padded[:, :channels] = cells
    return _with_sums(padded.reshape(m, -1, TOGETHER, cells.shape[2]).swapaxes(2, 3))


def pack_rows(filters: Array) -> Array:
    """Return the same with those of four cells of a row in each number: ``[M, C * rows * ceil(width / 4) + 1]``."""
    m, width = filters.shape[0], filters.shape[-1]
    padded = np.zeros((m, filters.size // (m * width), -(-width // TOGETHER) * TOGETHER), np.int8)
    padded[..., :width] = _signed(filters).reshape(m, -1, width)
    return _with_sums(padded)


def _signed(filters: Array) -> Array:
    return filters if filters.dtype == np.int8 else (filters ^ 0x80).view(np.int8)


def _with_sums(padded: Array) -> Array:
    """Return bytes ``[M, ...]``, by fours, as numbers, and behind each filter's their sum."""
    flat = np.ascontiguousarray(padded).reshape(len(padded), -1)
    packed = np.empty((len(flat), flat.shape[1] // TOGETHER + 1), np.int32)
    packed[:, :-1] = flat.view("<i4")
    packed[:, -1] = flat.sum(axis=1, dtype=np.int32)
    return packed


def row_functions(dtype: DataType, *, own: bool) -> str:
    """Return ``$_outside`` and ``$_row``, which write one row of numbers.

    ``$_outside(border, PW, to)`` is one of borders. ``$_row(x, start, last, total, apart, shift, left, W, pw, tw, border, PW,
    to)`` has number c from the elements ``c * tw - pw`` on of a row of ``W``, which starts at ``start`` of ``x``: four that are
    ``shift`` apart if that is not 0, else one from each of ``left`` rows that are ``apart``, the last one at ``last``.

    Args:
        own: They write to memory of the work-item's own, also up to 15 numbers behind the row, which nobody needs yet.
    """
    flip = " ^ 0x80808080u" if dtype is INT8 else ""
    each = range(TOGETHER)
    taken = " ".join(
        f"const uint16 b{j} = $_bytes(from + min({j}, left - 1) * apart + {j} * shift, tw);" for j in each
    )
    whole = " | ".join(f"(b{j} << {8 * j})" for j in each)
    part = " | ".join(
        f"(select(outer, b{j}, as_uint16(s + {j} * shift) < (uint)W) << {8 * j})" for j in each
    )
    single = " | ".join(
        f"((uint)((uint)(a + {j} * shift) < (uint)W ? row[min({j}, left - 1) * apart + {j} * shift + a] : (outer & 0xffu)) << {8 * j})"
        for j in each
    )
    space, at, keep = ("", "c", "vstore16({}, 0, {});") if own else (
        "__global ", "max(0, min(c, PW - 16))", "$_store({}, min(16, PW), {});"
    )  # fmt: skip
    storing = "" if own else store_some(INT32)
    return f"""{storing}
inline uint16 $_bytes(__global const uchar* p, int step) {{
  if (step == 1) return convert_uint16(vload16(0, p));
  if (step == 2) return convert_uint16((ushort16)(as_ushort8(vload16(0, p)), as_ushort8(vload16(1, p)))) & 0xffu;
  uint t[16];
  for (int i = 0; i < 16; i++) t[i] = p[i * step];
  return vload16(0, t);
}}
inline void $_outside(uint border, int PW, {space}int* to) {{
  for (int c = 0; c < PW; c += 16) {keep.format("(int16)(as_int(border))", f"to + {at}")}
}}
inline void $_row(
    __global const uchar* x, int start, int last, int total, int apart, int shift, int left, int W, int pw, int tw,
    uint border, int PW, {space}int* to) {{
  const uint there = left == {TOGETHER} ? 0xffffffffu : (1u << (8 * left)) - 1u, outer = (border{flip}) & 0xffu;
  __global const uchar* const row = x + start;
  for (int c = 0; c < PW; c += 16) {{
    const int at = {at}, a0 = at * tw - pw, a1 = a0 + {TOGETHER - 1} * shift + 15 * tw;
    uint16 v;
    if (start + a0 >= 0 && last + a1 + tw <= total) {{
      __global const uchar* const from = row + a0;
      {taken}
      if (a0 >= 0 && a1 < W) {{
        v = {whole};
      }} else {{
        const int16 s = {LANES} * tw + a0;
        v = {part};
      }}
    }} else {{
      uint t[16];
      for (int i = 0; i < 16; i++) {{ const int a = a0 + i * tw; t[i] = {single}; }}
      v = vload16(0, t);
    }}
    v = (v{flip}) & there;
    {keep.format("as_int16(v)", "to + at")}
  }}
}}"""


def apart(space: str) -> str:
    """Return ``$_apart(p, step)``: 16 numbers, each *step* from the next."""
    return f"""
inline int16 $_apart({space} const int* p, int step) {{
  if (step == 1) return vload16(0, p);
  if (step == 2) return (int16)(vload16(0, p).even, vload16(1, p).even);
  int t[16];
  for (int i = 0; i < 16; i++) t[i] = p[i * step];
  return vload16(0, t);
}}"""


def border_of(dtype: DataType, zero: bool) -> str:
    """Return the number of four borders: of the zero point ``zx``, if there is one."""
    flip = " ^ 0x80808080u" if dtype is INT8 else ""
    return f"((uint)(uchar)({'zx[0]' if zero else '0'}) * 0x01010101u){flip}"


@functools.cache
def _kernel(dtype: DataType, zero: bool, in_rows: bool) -> KernelSource:
    """Row ``r`` of the numbers, from the rows of up to four channels, or four times from that of one."""
    first, left, apart, shift = ("plane", "4", "0", "dw") if in_rows else ("plane * 4", "min(4, C - first)", "D * H * W", "0")
    body = f"""
  const int r0 = (int)get_global_id(0) * per_item, r1 = min(r0 + per_item, rows);
  const uint border = {border_of(dtype, zero)};
  int plane = r0 / PH / PD, d = r0 / PH % PD, h = r0 % PH, image = plane / planes;
  plane -= image * planes;
  for (int r = r0; r < r1; r++) {{  /* rows are short: counting is faster than dividing */
    const int first = {first}, left = {left}, apart = {apart}, from_h = h * th - ph, from_d = d * td - pd;
    const int start = (((image * C + first) * D + from_d) * H + from_h) * W;
    if (from_h < 0 || from_d < 0 || from_h >= H || from_d >= D)
      $_outside(left == 4 ? border : border & ((1u << (8 * left)) - 1u), PW, y + r * PW);
    else
      $_row((__global const uchar*)x, start, start + (left - 1) * apart, total, apart, {shift}, left, W, pw, tw, border, PW,
        y + r * PW);
    if (++h == PH) {{ h = 0; if (++d == PD) {{ d = 0; if (++plane == planes) {{ plane = 0; image++; }} }} }}
  }}"""
    buffers = (("x", dtype, "r"), ("y", INT32, "w"), *((("zx", dtype, "r"),) if zero else ()))
    ints = (
        "C", "planes", "D", "H", "W", "PD", "PH", "PW", "pd", "ph", "pw", "td", "th", "tw", "dw", "total", "rows", "per_item",
    )  # fmt: skip
    return kernel("conv_numbers", buffers, ints, body, helpers=row_functions(dtype, own=False))
