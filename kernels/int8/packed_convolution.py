"""Convolutions of 8-bit integers with constant filters on CPU devices, summed in 32 bits.

Data becomes numbers of four bytes first (`numbers.py`). A work-item copies what 32 positions, one behind the other, see
of them beside each other, a part of the depth at a time, and multiplies it by up to 64 filters. `integer_product` does the
same with the roles exchanged: here all lanes share a weight. What is stored lies as it is calculated, whatever the length
of rows.
"""

from __future__ import annotations

import functools

from asyncrt.devices.base import Registers
from asyncrt.devices.opencl.dot_product import DOT
from asyncrt.kernels.arithmetic import greatest, least
from asyncrt.kernels.codegen.epilogue import Epilogue, join
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.codegen.tiles import PANEL, tile_of
from asyncrt.kernels.codegen.vectors import ALL_VECTORS
from asyncrt.kernels.impl import Impl, KernelSource, Launch, WeightsRequest, out, scratch, weights
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import INT32

from .conv_interface import IntegerConv, IntegerConvForm, bind_conv
from .numbers import apart, as_numbers, pack_channels, pack_rows
from .tiles import DEPTH, WIDEN, Rows, add_tiles

_MOST = 64  # filters of a work-item
_HALVES = (0, 1)  # of the 32 positions of a panel


def packed(conv: IntegerConv, traits: DeviceTraits, shape: tuple[int, ...], after: Epilogue | None) -> Impl:
    """Return the implementation of *conv*, whose filters are constant and have channels.

    Args:
        shape: Of its result.
        after: What becomes of each element before it is stored.
    """
    outs = conv.window.outs
    positions = outs[0] * outs[1] * outs[2]
    joins, joined = join(after, 2)
    if joins:
        after, shape = joined, (*shape[:2], positions)
    bound = bind_conv(conv, shape, after, integers=True)
    numbers = as_numbers(conv, traits)
    images, tile = conv.batch * conv.group, tile_of(traits.registers).rows
    panels = -(-positions // PANEL)
    wanted = least(-(-conv.outputs // tile), -(-4 * traits.compute_units // greatest(1, panels * images)))
    each = -(-conv.outputs // greatest(-(-conv.outputs // _MOST), wanted))
    ints = (
        numbers.planes, conv.inputs * conv.window.size[0] * conv.window.size[1] * conv.window.size[2], conv.outputs,
        conv.group, *numbers.room, *outs, *numbers.size, *numbers.strides, *numbers.dilations, each, *bound.steps,
    )  # fmt: skip
    launch = Launch(
        _kernel(bound.form, joins, traits.registers), (scratch(0), weights(0), out(0), *bound.refs), (*ints, *bound.ints),
        (panels, -(-conv.outputs // each), images), (1, 1, 1),
    )  # fmt: skip
    pack, order = (pack_rows, "cells of rows") if numbers.in_rows else (pack_channels, "channels")
    request = WeightsRequest(
        conv.weights, f"filters of bytes, {order}", pack, conv.group * conv.outputs * (numbers.depth + 1)
    )
    return Impl("bytes, packed", (numbers.launch, launch), (numbers.nbytes,), (request,))


@functools.cache
def _kernel(form: IntegerConvForm, joined: bool, registers: Registers) -> KernelSource:
    body = f"""
  const int n = (int)get_global_id(2) / G, g = (int)get_global_id(2) % G;
  const int m0 = (int)get_global_id(1) * each, rows = min(each, M - m0);
  const int P = OD * OH * OW, depth = planes * KD * KH * KW, low = {form.low};
  const int q0 = (int)get_global_id(0) * {PANEL}, count = min({PANEL}, P - q0);
  int from[{PANEL}], to[{PANEL}], runs = 0;  /* runs of up to 16 positions, one behind the other in a row */
  for (int i = 0; i < count;) {{
    const int line = (q0 + i) / OW, ow = q0 + i - line * OW;
    from[runs] = (line / OH * sd * PH + line % OH * sh) * PW + ow * sw;
    to[runs++] = i;
    i += min(min(OW - ow, count - i), 16);
  }}
  const bool whole = runs == 2 && to[1] == 16 && sw == 1;
  __global const int* const xn = x + (n * G + g) * planes * PD * PH * PW;
  __global const int* const wp = f + (g * M + m0) * (depth + 1);
  int t[{_MOST * PANEL}] __attribute__((aligned(64))), panel[{DEPTH * PANEL + 16}] __attribute__((aligned(64)));
  for (int i = 0; i < rows * 2; i++) vstore16((int16)(0), i, t);
  {"int16 u0 = 0, u1 = 0;" if form.sums else ""}
  int c = 0, kd = 0, kh = 0, kw = 0;
  for (int k = 0; k < depth; k += {DEPTH} / $_NUMBERS) {{
    const int steps = min({DEPTH} / $_NUMBERS, depth - k);
    for (int q = 0; q < steps; q++) {{
      __global const int* const at = xn + ((c * PD + kd * dd) * PH + kh * dh) * PW + kw * dw;
      if (whole) {{
        const int16 a0 = vload16(0, at + from[0]), a1 = vload16(0, at + from[1]);
        vstore16(a0, 0, panel + q * {PANEL}); vstore16(a1, 1, panel + q * {PANEL});
      }} else {{
        for (int i = 0; i < runs; i++) vstore16($_apart(at + from[i], sw), 0, panel + q * {PANEL} + to[i]);
      }}
      if (++kw == KW) {{ kw = 0; if (++kh == KH) {{ kh = 0; if (++kd == KD) {{ kd = 0; c++; }} }} }}
    }}
    {_COUNT_ALL if form.sums else ""}
    $_multiply(rows, wp + k, depth + 1, panel, steps, t);
  }}
  {_results(form, joined)}"""
    helpers = DOT + apart("__global") + _multiply(registers, sums=form.sums) + form.helpers
    ints = (
        "planes", "K", "M", "G", "PD", "PH", "PW", "OD", "OH", "OW", "KD", "KH", "KW", "sd", "sh", "sw", "dd", "dh", "dw",
        "each", "zw_step", "sf_step", *form.last.ints,
    )  # fmt: skip
    one = "__attribute__((reqd_work_group_size(1, 1, 1)))"
    buffers = form.buffers(INT32, INT32)
    return kernel("conv_bytes", buffers, ints, body, helpers=helpers, attributes=one)


# Adds the four bytes of each number.
COUNT = """
inline int16 $_count(int16 u, uint16 a) {
  const uint16 two = (a & 0x00ff00ffu) + ((a >> 8) & 0x00ff00ffu);
  return u + as_int16((two & 0xffffu) + (two >> 16));
}"""

_COUNTED = " ".join(f"u{h} = $_count(u{h}, as_uint16(vload16({h}, panel + q * {PANEL})));" for h in _HALVES)
_COUNT_ALL = f"for (int q = 0; q < steps; q++) {{ {_COUNTED} }}"


def _multiply(registers: Registers, *, sums: bool) -> str:
    """What multiplies filters by a panel of numbers, which it widens where bytes are not multiplied by fours.

    Args:
        sums: Whether the sums of what positions see matter.
    """
    bytes_, shorts = (
        add_tiles(registers, Rows(f"{space}const int", "{a}[{k}]", False), "") for space in ("__global ", "")
    )
    return f"""{COUNT if sums else ""}
#if $_NUMBERS == 1
{bytes_}
inline void $_multiply(int rows, __global const int* w, int step, int* panel, int steps, int* t) {{
  $_tiles(rows, w, step, panel, steps, t);
}}
#else
{WIDEN}{shorts}
inline void $_multiply(int rows, __global const int* w, int step, int* panel, int steps, int* t) {{
  int left[{_MOST * DEPTH}] __attribute__((aligned(64)));
  for (int i = 0; i < 2 * steps; i++) {{
    const uint16 a = as_uint16(vload16(i, panel));
    vstore16(as_int16((a >> 8) & 0x00ff00ffu), i, panel + steps * {PANEL});
    vstore16(as_int16(a & 0x00ff00ffu), i, panel);
  }}
  for (int i = 0; i < rows; i++, w += step) {{
    int* const to = left + i * {DEPTH};
    int k = 0;
    for (; k + 8 <= steps; k += 8) {{
      const int8 v = vload8(0, w + k);
      vstore8($_low(v), 0, to + k); vstore8($_high(v), 0, to + steps + k);
    }}
    for (; k < steps; k++) {{ to[k] = $_low(w[k]); to[steps + k] = $_high(w[k]); }}
  }}
  $_tiles(rows, left, {DEPTH}, panel, 2 * steps, t);
}}
#endif
"""


def _results(form: IntegerConvForm, joined: bool) -> str:
    """Return statements that make results of the sums of each filter, and store them.

    Args:
        joined: A filter's positions are one row of the result; else they are `outs`, rows of the last axis.
    """
    sums = " ".join(
        f"const uint16 s{h} = {form.sum16(f'vload16(2 * i + {h}, t)', 'wp[i * (depth + 1) + depth]', f'u{h}')};" for h in _HALVES
    )
    made = ", ".join(f"v{h} = {form.made16(f's{h}')}" for h in _HALVES)
    stored = " ".join(form.stored16(joined, f"v{h}", f"q0 + {16 * h}", f"count - {16 * h}") for h in _HALVES)
    return f"""for (int i = 0; i < rows; i++) {{
    const int oc = g * M + m0 + i, row = n * G * M + oc;
    {f"const float factor = {form.factor(DeviceTraits('cpu'))};" if form.scaled else ""}
    {sums}
    const {ALL_VECTORS[form.made]} {made};
    {form.rows(joined)}
    {stored}
  }}"""
