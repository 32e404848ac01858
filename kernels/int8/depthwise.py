"""Depthwise convolutions of 8-bit integers with constant filters on CPU devices, summed in 32 bits.

A work-item makes numbers of some rows of a channel, four cells of a row of the window in each (`numbers.py`), in its own
memory. There every vector of 16 positions is read for each row of the window once, or twice. Sums of positions lie one
behind the other, whatever the length of rows, before they become results.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from asyncrt.devices.opencl.dot_product import DOT
from asyncrt.kernels.arithmetic import greatest, least
from asyncrt.kernels.codegen.epilogue import Epilogue, join
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.codegen.vectors import ALL_VECTORS
from asyncrt.kernels.impl import Impl, KernelSource, Launch, WeightsRequest, inp, out, weights
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import INT32

from .conv_interface import IntegerConv, IntegerConvForm, bind_conv
from .numbers import TOGETHER, apart, border_of, pack_rows, row_functions
from .packed_convolution import COUNT
from .tiles import WIDEN

_NEAR = 8192  # numbers of a work-item's rows: 32 KiB
_SUMS = 1024  # positions whose sums it keeps
_WORK = 1 << 14  # vectors that it multiplies, or more
_WRITTEN = 8  # rows of a window that are written out, and cells of one


class _Tile(NamedTuple):
    """What of a window is written out in a kernel.

    Attributes:
        rows, numbers, cells: Its rows, and numbers and cells of each.
        step: Numbers from one position to the next.
        thinned: Elements from one number to the next.
    """

    rows: int
    numbers: int
    cells: int
    step: int
    thinned: int


def suits(conv: IntegerConv) -> bool:
    """Whether *conv*, whose filters are constant, is of this kind; the device is a CPU."""
    w = conv.window
    flat = w.size[0] == w.spatial[0] == w.outs[0] == 1 and w.before[0] == 0
    small = max(w.size[1:]) <= _WRITTEN and w.size != (1, 1, 1)
    if not (flat and small and conv.inputs == 1 and conv.outputs < TOGETHER):
        return False
    return w.outs[2] <= _SUMS and w.extents[1] * _line(conv) <= _NEAR


def _thinned(conv: IntegerConv) -> int:
    """Return from one number to the next how many elements: what no position begins at is left out where that can be."""
    stride = conv.window.strides[2]
    return stride if TOGETHER * conv.window.dilations[2] % stride == 0 else 1


def _line(conv: IntegerConv) -> int:
    """Return how many numbers a row's windows see."""
    w, thinned = conv.window, _thinned(conv)
    more = (-(-w.size[2] // TOGETHER) - 1) * TOGETHER * w.dilations[2]
    return ((w.outs[2] - 1) * w.strides[2] + more) // thinned + 1


def depthwise(conv: IntegerConv, traits: DeviceTraits, shape: tuple[int, ...], after: Epilogue | None) -> Impl:
    """Return the implementation of *conv*, which `suits`; the rest as for `packed`."""
    w, line = conv.window, _line(conv)
    _, oh, ow = w.outs
    joins, joined = join(after, 2)
    if joins:
        after, shape = joined, (*shape[:2], oh * ow)
    bound = bind_conv(conv, shape, after, integers=True)
    thinned = _thinned(conv)
    tile = _Tile(w.size[1], -(-w.size[2] // TOGETHER), w.size[2], w.strides[2] // thinned, thinned)
    lines = _NEAR // line  # of input
    most = least(oh, least(_SUMS // ow, (lines - w.extents[1]) // w.strides[1] + 1))
    high = -(-oh // -(-oh // most))
    blocks = -(-oh // high)
    units = conv.batch * conv.group * blocks
    work = greatest(1, high * -(-ow // 16) * conv.outputs * tile.rows * tile.numbers)
    per_item = greatest(1, least(-(-units // (4 * traits.compute_units)), -(-_WORK // work)))
    ints = (
        conv.outputs, conv.group, *w.spatial[1:], oh, ow, *w.before[1:], w.strides[1], *w.dilations[1:],
        TOGETHER * w.dilations[2] // thinned, line, high, blocks, units, per_item,
        conv.batch * conv.group * w.spatial[1] * w.spatial[2], *bound.steps,
    )  # fmt: skip
    launch = Launch(
        _kernel(bound.form, joins, tile), (inp(0), weights(0), out(0), *bound.refs), (*ints, *bound.ints),
        (-(-units // per_item),), (1,),
    )  # fmt: skip
    elements = conv.group * conv.outputs * (tile.rows * tile.numbers + 1)
    request = WeightsRequest(conv.weights, "filters of bytes, cells of rows", pack_rows, elements)
    return Impl("bytes, depthwise", (launch,), weights=(request,))


_INTS = (
    "M", "G", "H", "W", "OH", "OW", "ph", "pw", "sh", "dh", "dw", "gap", "line", "high", "blocks", "units", "per_item", "total",
    "zw_step", "sf_step",
)  # fmt: skip


@functools.cache
def _kernel(form: IntegerConvForm, joined: bool, tile: _Tile) -> KernelSource:
    cells = [(r, k) for r in range(tile.rows) for k in range(tile.numbers)]
    filters = " ".join(f"const int w{r}_{k} = wp[{r * tile.numbers + k}];" for r, k in cells)
    multiply, mask = "", 0xFFFFFFFF >> 8 * (-tile.cells % TOGETHER)
    for r, k in cells:
        at = f"from + {r} * dh * line + {k} * gap"
        counted = f"u = $_count(u, as_uint16(a) & {mask if k == tile.numbers - 1 else 0xFFFFFFFF:#x}u);" if form.sums else ""
        multiply += f"{{ const int16 a = $_apart({at}, {tile.step}); s = $_four(s, a, w{r}_{k}); {counted} }} "
    body = f"""
  int near[{_NEAR + 16 * tile.step + 16}] __attribute__((aligned(64))), t[{_SUMS + 16}] __attribute__((aligned(64)));
  {f"int seen[{_SUMS + 16}] __attribute__((aligned(64)));" if form.sums else ""}
  const int u1 = min(((int)get_global_id(0) + 1) * per_item, units), P = OH * OW, low = {form.low};
  const uint border = {border_of(form.x, form.x_zero)};
  const int K = {tile.rows * tile.cells}, depth = {tile.rows * tile.numbers};
  for (int unit = (int)get_global_id(0) * per_item; unit < u1; unit++) {{
    const int plane = unit / blocks, g = plane % G, oh0 = (unit - plane * blocks) * high, rows = min(high, OH - oh0);
    const int h0 = oh0 * sh - ph, lines = (rows - 1) * sh + {tile.rows - 1} * dh + 1;
    for (int i = 0; i < lines; i++) {{
      const int start = (plane * H + h0 + i) * W;
      if (h0 + i < 0 || h0 + i >= H) $_outside(border, line, near + i * line);
      else $_row((__global const uchar*)x, start, start, total, 0, dw, {TOGETHER}, W, pw, {tile.thinned}, border, line, near + i * line);
    }}
    for (int m = 0; m < M; m++) {{
      const int oc = g * M + m, row = plane * M + m, q0 = oh0 * OW, count = rows * OW;
      __global const int* const wp = f + oc * (depth + 1);
      {filters}
      {f"const float factor = {form.factor(DeviceTraits('cpu'))};" if form.scaled else ""}
      for (int r = 0; r < rows; r++)
        for (int ow = 0; ow < OW; ow += 16) {{
          const int* const from = near + r * sh * line + ow * {tile.step};
          int16 s = 0{", u = 0" if form.sums else ""};
          {multiply}
          vstore16(s, 0, t + r * OW + ow); {"vstore16(u, 0, seen + r * OW + ow);" if form.sums else ""}
        }}
      {_results(form, joined)}
    }}
  }}"""
    helpers = DOT + apart("") + _FOUR + (COUNT if form.sums else "") + row_functions(form.x, own=True) + form.helpers
    one = "__attribute__((reqd_work_group_size(1, 1, 1)))"
    return kernel(
        "conv_depthwise_bytes", form.buffers(form.x, INT32), (*_INTS, *form.last.ints), body, helpers=helpers, attributes=one
    )


_FOUR = f"""
#if $_NUMBERS == 1
inline int16 $_four(int16 s, int16 a, int w) {{ return $_dot(s, a, (int16)(w)); }}
#else
{WIDEN}
inline int16 $_four(int16 s, int16 a, int w) {{
  return $_dot($_dot(s, a & 0x00ff00ff, (int16)($_low(w))), (a >> 8) & 0x00ff00ff, (int16)($_high(w)));
}}
#endif
"""


def _results(form: IntegerConvForm, joined: bool) -> str:
    """Return statements that make results of the sums of a filter at ``count`` positions from ``q0`` on, and store them."""
    sums = form.sum16("vload16(0, t + c)", "wp[depth]", "vload16(0, seen + c)")
    return f"""{form.rows(joined)}
      for (int c = 0; c < count; c += 16) {{
        const uint16 sum = {sums};
        const {ALL_VECTORS[form.made]} made = {form.made16("sum")};
        {form.stored16(joined, "made", "q0 + c", "count - c")}
      }}"""
