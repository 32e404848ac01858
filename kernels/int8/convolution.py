"""Convolutions of 8-bit integers, summed in 32 bits.

With constant weights on CPU devices a work-item gathers the window's elements of two times 16 neighbouring positions,
four bytes in each number, and multiplies them by up to 64 filters. `integer_product` does the same with the roles
exchanged: here all lanes share a weight. The data is copied first, as unsigned bytes with its borders, which hold the zero
point. Everything else is the generic kernel, one result at a time.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from asyncrt.devices.base import Registers
from asyncrt.devices.opencl.dot_product import DOT
from asyncrt.kernels.codegen import epilogue
from asyncrt.kernels.codegen.epilogue import Epilogue, bind, join
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.codegen.tiles import PANEL, tile_of
from asyncrt.kernels.codegen.vectors import ALL_VECTORS
from asyncrt.kernels.impl import Impl, KernelSource, Launch, Ref, WeightsRequest, inp, out, scratch, weights
from asyncrt.kernels.patterns.grid import GPU_GROUP, cut_rows, round_up
from asyncrt.kernels.patterns.window import Window
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32, INT8, INT32, UINT8, Array, DataType

from .product import Scales
from .quantize import HELPERS, bounds, divided
from .tiles import DEPTH, WIDEN, Rows, add_tiles

_MOST = 64  # filters of a work-item
_LEAST = 8  # filters of a group for which gathering pays

_BYTES = """
inline uint16 $_bytes(__global const uchar* p, int sw) {
  if (sw == 1) return convert_uint16(vload16(0, p));
  uint t[16];
  for (int i = 0; i < 16; i++) t[i] = p[i * sw];
  return vload16(0, t);
}
"""


class IntegerConv(NamedTuple):
    """A convolution at one set of shapes; the data is input 0.

    Attributes:
        made: dtype of what the sums become: int32, or float32 or 8 bits where there are scales.
        weights: The node's input that the filters are.
        constant: They are a constant of the model.
        inputs, outputs: Channels per group.
        window: Over three spatial axes.
        zeros: Where the zero points of the data and of the filters are; None for those that are 0.
        per_channel: There is a zero point for each filter.
        neutral: The filters' zero point is known to be 0, or 128 if they are unsigned.
        bias: What is added to the sums, in int32.
    """

    x: DataType
    w: DataType
    made: DataType
    weights: int
    constant: bool
    batch: int
    group: int
    inputs: int
    outputs: int
    window: Window
    zeros: tuple[Ref | None, Ref | None]
    per_channel: bool = False
    neutral: bool = False
    scales: Scales | None = None
    bias: Ref | None = None


class _IntegerConvForm(NamedTuple):
    """What the source of a kernel depends on."""

    x: DataType
    w: DataType
    made: DataType
    result: DataType
    x_zero: bool
    w_zero: bool
    sums: bool
    scaled: bool
    rounded: bool
    bias: bool
    last: epilogue.EpilogueForm

    def buffers(self, x: DataType, w: DataType) -> tuple[tuple[str, DataType, str], ...]:
        return (
            ("x", x, "r"),
            ("f", w, "r"),
            ("y", self.result, "w"),
            *((("zx", self.x, "r"),) if self.x_zero else ()),
            *((("zw", self.w, "r"),) if self.w_zero else ()),
            *((("sx", FLOAT32, "r"), ("sf", FLOAT32, "r")) if self.scaled else ()),
            *((("sy", FLOAT32, "r"), ("zy", self.made, "r")) if self.rounded else ()),
            *((("bias", INT32, "r"),) if self.bias else ()),
            *self.last.buffers,
        )

    def factor(self, traits: DeviceTraits) -> str:
        """What a sum of filter ``oc`` is multiplied by."""
        scale = "sx[0] * sf[oc * sf_step]"
        return divided(scale, "sy[0]", traits) if self.rounded else f"({scale})"


def integer_conv(conv: IntegerConv, traits: DeviceTraits, shape: tuple[int, ...], after: Epilogue | None) -> Impl:
    """Return the implementation of *conv*.

    Args:
        shape: Of its result.
        after: What becomes of each element before it is stored.
    """
    if traits.is_cpu and traits.packed_weights and conv.constant and conv.outputs >= _LEAST and conv.inputs:
        return _packed(conv, traits, shape, after)
    return _generic(conv, traits, shape, after)


def _bound(
    conv: IntegerConv, shape: tuple[int, ...], after: Epilogue | None, *, integers: bool
) -> tuple[_IntegerConvForm, tuple[Ref, ...], tuple[Ref, ...], tuple[int, ...], tuple[int, int]]:
    """Return the form, the buffers behind the result, the epilogue's, its sizes, and the steps of zeros and scales."""
    last = bind(after, shape, integers=integers)
    scales, result = conv.scales, conv.made if after is None or after.result is None else after.result
    form = _IntegerConvForm(
        conv.x, conv.w, conv.made, result, conv.zeros[0] is not None, conv.zeros[1] is not None, not conv.neutral,
        scales is not None, scales is not None and scales.result is not None, conv.bias is not None, last.form,
    )  # fmt: skip
    refs = tuple(zero for zero in conv.zeros if zero is not None)
    if scales is not None:
        refs += (scales.left, scales.right, *(scales.result or ()))
    refs += () if conv.bias is None else (conv.bias,)
    return form, refs, last.refs, last.ints, (int(conv.per_channel), int(scales is not None and scales.per_column))


# --- packed -----------------------------------------------------------------------------------------------------------


def pack_filters(filters: Array) -> Array:
    """Return ``[M, ...]`` filters of bytes as ``[M, ceil(K / 4) + 1]``: four signed bytes in each number, then their sum."""
    m = filters.shape[0]
    flat = filters.reshape(m, -1)
    signed = (flat ^ 0x80).view(np.int8) if flat.dtype == np.uint8 else flat
    steps = -(-flat.shape[1] // 4)
    padded = np.zeros((m, 4 * steps), np.int8)
    padded[:, : flat.shape[1]] = signed
    packed = np.empty((m, steps + 1), np.int32)
    packed[:, :steps] = padded.view("<i4")
    packed[:, steps] = padded.sum(axis=1, dtype=np.int32)
    return packed


def _packed(conv: IntegerConv, traits: DeviceTraits, shape: tuple[int, ...], after: Epilogue | None) -> Impl:
    w = conv.window
    reach = tuple((o - 1) * s + e for o, s, e in zip(w.outs, w.strides, w.extents, strict=True))
    outs, spatial = w.outs, w.spatial
    if w.is_identity:  # rows follow each other: one long row
        joins, joined = join(after, 2)
        if joins:
            positions = outs[0] * outs[1] * outs[2]
            after, outs = joined, (1, 1, positions)
            reach = spatial = (1, 1, positions)
            shape = (*shape[:2], positions)
    form, refs, more, last, (zero_step, scale_step) = _bound(conv, shape, after, integers=True)
    rows = conv.batch * conv.group * conv.inputs * reach[0] * reach[1]
    cut = cut_rows(rows, reach[2], traits)
    copy = Launch(
        _copy_kernel(conv.x, conv.zeros[0] is not None),
        (inp(0), scratch(0), *(zero for zero in conv.zeros[:1] if zero is not None)),
        (*spatial, *reach, *w.before, rows, cut.rows_per_item), (-(-rows // cut.rows_per_item),), (1,),
    )  # fmt: skip
    halves = -(-outs[2] // 16)
    panels = -(-outs[0] * outs[1] * halves // 2)
    images, tile = conv.batch * conv.group, tile_of(traits.registers).rows
    pieces = max(-(-conv.outputs // _MOST), min(-(-conv.outputs // tile), -(-4 * traits.compute_units // (panels * images))))
    each = -(-conv.outputs // pieces)
    ints = (
        conv.inputs, conv.outputs, conv.group, *reach, *outs, *w.size, *w.strides, *w.dilations, halves, each, zero_step,
        scale_step,
    )  # fmt: skip
    launch = Launch(
        _packed_kernel(form, traits.registers), (scratch(0), weights(0), out(0), *refs, *more), (*ints, *last),
        (panels, -(-conv.outputs // each), images), (1, 1, 1),
    )  # fmt: skip
    beyond = 16 * w.strides[2] + 16  # lanes behind the end of a row are read and not stored
    steps = -(-conv.inputs * w.size[0] * w.size[1] * w.size[2] // 4)
    request = WeightsRequest(conv.weights, "filters of bytes", pack_filters, conv.group * conv.outputs * (steps + 1))
    return Impl("bytes, packed", (copy, launch), (rows * reach[2] + beyond,), (request,))


@functools.cache
def _copy_kernel(dtype: DataType, zero: bool) -> KernelSource:
    """Copy the data as unsigned bytes, with its borders; 128 is added to signed data."""
    flip = " ^ 0x80" if dtype is INT8 else ""
    body = f"""
  const int r0 = (int)get_global_id(0) * per_item, r1 = min(r0 + per_item, rows);
  const uchar border = (uchar)((uchar){"zx[0]" if zero else "0"}{flip});
  const int first = max(pw, 0), last = min(pw + W, PW);
  for (int r = r0; r < r1; r++) {{
    const int line = r / PH, plane = line / PD, h = r - line * PH - ph, d = line - plane * PD - pd;
    __global uchar* to = y + r * PW;
    const bool inside = h >= 0 && d >= 0 && h < H && d < D;
    __global const uchar* from = (__global const uchar*)x + ((plane * D + d) * H + h) * W - pw;
    int c = 0;
    for (; c < (inside ? first : PW); c++) to[c] = border;
    if (inside) {{
      for (; c + 16 <= last; c += 16) vstore16(vload16(0, from + c){flip and " ^ (uchar)0x80"}, 0, to + c);
      for (; c < last; c++) to[c] = from[c]{flip};
      for (; c < PW; c++) to[c] = border;
    }}
  }}"""
    buffers = (("x", dtype, "r"), ("y", UINT8, "w"), *((("zx", dtype, "r"),) if zero else ()))
    ints = ("D", "H", "W", "PD", "PH", "PW", "pd", "ph", "pw", "rows", "per_item")
    return kernel("conv_bytes_copy", buffers, ints, body)


_HALVES = (0, 1)  # of the 32 positions of a panel


@functools.cache
def _packed_kernel(form: _IntegerConvForm, registers: Registers) -> KernelSource:
    low = ("zx[0]" if form.x_zero else "0") + (" + 128" if form.x is INT8 else "")
    count = " ".join(f"u{h} = $_count(u{h}, a{h});" for h in _HALVES) if form.sums else ""
    body = f"""
  const int n = (int)get_global_id(2) / G, g = (int)get_global_id(2) % G;
  const int m0 = (int)get_global_id(1) * each, rows = min(each, M - m0);
  const int K = C * KD * KH * KW, K4 = (K + 3) / 4, low = {low};
  const int h0 = (int)get_global_id(0) * 2, h1 = min(h0 + 1, OD * OH * halves - 1);
  {" ".join(f"const int line{h} = h{h} / halves, ow{h} = (h{h} - line{h} * halves) * 16;" for h in _HALVES)}
  {" ".join(f"const int from{h} = (line{h} / OH * sd * PH + line{h} % OH * sh) * PW + ow{h} * sw;" for h in _HALVES)}
  __global const uchar* const xn = x + (n * G + g) * C * PD * PH * PW;
  __global const int* const wp = f + (g * M + m0) * (K4 + 1);
  int t[{_MOST * PANEL}] __attribute__((aligned(64))), panel[{DEPTH * PANEL}] __attribute__((aligned(64)));
  for (int i = 0; i < rows * 2; i++) vstore16((int16)(0), i, t);
  {"int16 u0 = 0, u1 = 0;" if form.sums else ""}
  int c = 0, kd = 0, kh = 0, kw = 0;
  for (int k = 0; k < K4; k += {DEPTH} / $_NUMBERS) {{
    const int steps = min({DEPTH} / $_NUMBERS, K4 - k);
    for (int q = 0; q < steps; q++) {{
      uint16 a0 = 0, a1 = 0;
      {_GATHER}
      $_keep(a0, panel + q * {PANEL}, steps * {PANEL}); $_keep(a1, panel + q * {PANEL} + 16, steps * {PANEL});
      {count}
    }}
    $_multiply(rows, wp + k, K4 + 1, panel, steps, t);
  }}
  {_results(form)}"""
    helpers = DOT + _BYTES + _multiply(registers) + form.last.helpers
    ints = (
        "C", "M", "G", "PD", "PH", "PW", "OD", "OH", "OW", "KD", "KH", "KW", "sd", "sh", "sw", "dd", "dh", "dw",
        "halves", "each", "zw_step", "sf_step", *form.last.ints,
    )  # fmt: skip
    one = "__attribute__((reqd_work_group_size(1, 1, 1)))"
    return kernel("conv_bytes", form.buffers(UINT8, INT32), ints, body, helpers=helpers, attributes=one)


def _multiply(registers: Registers) -> str:
    """What keeps gathered bytes, and multiplies filters by a panel of them."""
    bytes_, shorts = (
        add_tiles(registers, Rows(f"{space}const int", "{a}[{k}]", False), "") for space in ("__global ", "")
    )
    return f"""
inline int16 $_count(int16 u, uint16 a) {{
  const uint16 two = (a & 0x00ff00ffu) + ((a >> 8) & 0x00ff00ffu);
  return u + as_int16((two & 0xffffu) + (two >> 16));
}}
#if $_NUMBERS == 1
inline void $_keep(uint16 a, int* to, int next) {{ vstore16(as_int16(a), 0, to); }}
{bytes_}
inline void $_multiply(int rows, __global const int* w, int step, const int* panel, int steps, int* t) {{
  $_tiles(rows, w, step, panel, steps, t);
}}
#else
inline void $_keep(uint16 a, int* to, int next) {{
  vstore16(as_int16(a & 0x00ff00ffu), 0, to); vstore16(as_int16((a >> 8) & 0x00ff00ffu), 0, to + next);
}}
{WIDEN}{shorts}
inline void $_multiply(int rows, __global const int* w, int step, const int* panel, int steps, int* t) {{
  int left[{_MOST * DEPTH}] __attribute__((aligned(64)));
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


# The bytes of four cells of the window, in each number those that one position sees.
_GATHER = " ".join(
    f"if (c < C) {{ __global const uchar* at = xn + ((c * PD + kd * dd) * PH + kh * dh) * PW + kw * dw; "
    f"a0 |= $_bytes(at + from0, sw) << {8 * j}; a1 |= $_bytes(at + from1, sw) << {8 * j}; "
    "if (++kw == KW) { kw = 0; if (++kh == KH) { kh = 0; if (++kd == KD) { kd = 0; c++; } } } }"
    for j in range(4)
)


def _results(form: _IntegerConvForm) -> str:
    """Return statements that make results of the sums of each filter, and store them."""
    high = ("zw[oc * zw_step]" if form.w_zero else "0") + (" - 128" if form.w is UINT8 else "")
    sums = " ".join(
        f"uint16 s{h} = as_uint16(vload16(2 * i + {h}, t)) - (uint)low * (uint)wp[i * (K4 + 1) + K4];"
        + (f" s{h} -= (uint)({high}) * (as_uint16(u{h}) - (uint)K * (uint)low);" if form.sums else "")
        + (f" s{h} += (uint)bias[oc];" if form.bias else "")
        for h in _HALVES
    )
    values = ["as_int16(s0)", "as_int16(s1)"]
    if form.scaled:
        values = [f"convert_float16({v}) * factor" for v in values]
    if form.rounded:
        least, greatest = bounds(form.made)
        values = [f"convert_int16(clamp(rint({v}) + (float)zy[0], {least}, {greatest}))" for v in values]
    return f"""for (int i = 0; i < rows; i++) {{
    const int oc = g * M + m0 + i;
    {f"const float factor = {form.factor(DeviceTraits('cpu'))};" if form.scaled else ""}
    {sums}
    const {ALL_VECTORS[form.made]} v0 = {values[0]}, v1 = {values[1]};
    {_stored_half(form, 0)}
    if (h1 > h0) {_stored_half(form, 1)}
  }}"""


def _stored_half(form: _IntegerConvForm, h: int) -> str:
    """Return statements that store 16 positions of a filter, or as many as are left of their row."""
    row = f"((n * G + g) * M + m0 + i) * OD * OH + line{h}"
    at, column = f"y + row * OW + ow{h}", f"ow{h}"
    whole = form.last.stored_vector(at, column, f"v{h}", form.made, form.result)
    one = form.last.element(form.made, "y", f"row * OW + ow{h} + j", f"ow{h} + j", "o[j]", form.result)
    element = ALL_VECTORS[form.made].removesuffix("16")
    spill = f"{element} o[16]; vstore16(v{h}, 0, o); for (int j = 0; j < min(16, OW - ow{h}); j++) {one}"
    fast = f"if (ow{h} + 16 <= OW) {whole} else" if form.last.vector else ""
    return f"{{ const int row = {row}; {form.last.rows('row')} {fast} {{ {spill} }} }}"


# --- generic ----------------------------------------------------------------------------------------------------------


def _generic(conv: IntegerConv, traits: DeviceTraits, shape: tuple[int, ...], after: Epilogue | None) -> Impl:
    form, refs, more, last, (zero_step, scale_step) = _bound(conv, shape, after, integers=False)
    w = conv.window
    od, oh, ow = w.outs
    rows = conv.batch * conv.group * conv.outputs * od * oh
    items, group = (rows, 1) if traits.is_cpu else (rows * ow, GPU_GROUP)
    ints = (
        conv.inputs, conv.outputs, conv.group, *w.spatial, *w.outs, *w.size, *w.strides, *w.dilations, *w.before, items,
        zero_step, scale_step, *last,
    )  # fmt: skip
    launch = Launch(
        _generic_kernel(form, traits.is_cpu), (inp(0), inp(conv.weights), out(0), *refs, *more), ints,
        (round_up(items, group),), (group,),
    )  # fmt: skip
    return Impl("integers", (launch,))


@functools.cache
def _generic_kernel(form: _IntegerConvForm, cpu: bool) -> KernelSource:
    traits = DeviceTraits("cpu" if cpu else "gpu")
    value = "(int)s"
    if form.scaled:
        value = f"(float)(int)s * {form.factor(traits)}"
    if form.rounded:
        least, greatest = bounds(form.made)
        value = f"clamp(rint({value}) + (float)zy[0], {least}, {greatest})"
    one = f"""
    uint s = {"(uint)bias[oc]" if form.bias else "0"};
    for (int c = 0; c < C; c++)
      for (int kd = 0; kd < KD; kd++) {{
        const int id = od * sd + kd * dd - pd;
        if (id < 0 || id >= D) continue;
        for (int kh = 0; kh < KH; kh++) {{
          const int ih = oh * sh + kh * dh - ph;
          if (ih < 0 || ih >= H) continue;
          const int row = ((((n * G + g) * C + c) * D + id) * H + ih) * W, cell = (((oc * C + c) * KD + kd) * KH + kh) * KW;
          for (int kw = 0; kw < KW; kw++) {{
            const int iw = ow * sw + kw * dw - pw;
            if (iw >= 0 && iw < W) s += (uint)((int)x[row + iw] - low) * (uint)((int)f[cell + kw] - high);
          }}
        }}
      }}
    {form.last.rows("r")}
    {form.last.element(form.made, "y", "r * OW + ow", "ow", value, form.result)}"""
    place = f"""
    int q = r;
    const int oh = q % OH; q /= OH;
    const int od = q % OD; q /= OD;
    const int oc = q % (G * M), n = q / (G * M), g = oc / M;
    const int low = {"zx[0]" if form.x_zero else "0"}, high = {"zw[oc * zw_step]" if form.w_zero else "0"};"""
    if cpu:
        body = f"""
  const int r = (int)get_global_id(0);
  {place}
  for (int ow = 0; ow < OW; ow++) {{ {one} }}"""
    else:
        body = f"""
  const int item = (int)get_global_id(0);
  if (item >= items) return;
  const int r = item / OW, ow = item % OW;
  {place}
  {one}"""
    ints = (
        "C", "M", "G", "D", "H", "W", "OD", "OH", "OW", "KD", "KH", "KW", "sd", "sh", "sw", "dd", "dh", "dw", "pd", "ph",
        "pw", "items", "zw_step", "sf_step", *form.last.ints,
    )  # fmt: skip
    helpers = HELPERS + form.last.helper_text
    return kernel("conv_integers", form.buffers(form.x, form.w), ints, body, helpers=helpers)
