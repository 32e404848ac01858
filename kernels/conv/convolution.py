"""Convolutions: what Conv and ConvTranspose share.

A transposed convolution is the convolution of its input with zeros inserted (`steps`) by the flipped filter. What can be
is calculated without those zeros (`transposed.py`); the kernels that check borders take them for granted.

- packed: float32 on a CPU with constant weights (`packed.py`).
- positions: such ones of one cell, where vectors of positions are fuller than those of channels (`pointwise.py`).
- strips: such ones of few channels, the first of a network (`strips.py`).
- winograd: such ones of 3 × 3 cells (`winograd.py`).
- expanded: such ones of one cell, together with the depthwise one that alone reads them (`expanded.py`, by `fusion`).
- depthwise: float32 on a CPU, from few channels to few (`depthwise.py`), or in short rows (`depthwise_channels.py`).
- planes: float32 on a CPU otherwise. A vector holds neighbouring positions of one channel.
- matrix product: windows of one cell (in `ops.conv`); on GPUs, where its kernels may copy rows.
- shared, sliced sums, tensor cores: on GPUs, tiles of the product of filter and patches (`gpu.py`).
- generic: any dtype, one result at a time, with checked borders.

All of them can go on calculating before they store (`epilogue`).

The vector kernels read no borders: padding is written into a scratch copy of the input
first. Their last tile of a row is moved back to end with the row, so that nothing beyond it is read.
"""

from __future__ import annotations

import functools

from asyncrt.kernels.arithmetic import greatest, least, power
from asyncrt.kernels.codegen import epilogue
from asyncrt.kernels.codegen.epilogue import Epilogue
from asyncrt.kernels.codegen.source import accumulator_type, kernel
from asyncrt.kernels.impl import Impl, KernelSource, Launch, chosen, inp
from asyncrt.kernels.patterns.grid import GPU_GROUP, cut_rows, round_up
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32

from .depthwise import depthwise
from .depthwise_channels import by_channels
from .depthwise_channels import suits as suits_channels
from .gpu import by_patches
from .gpu import suits as suits_patches
from .interface import ConvForm, Convolution, bind_conv, padded_input
from .packed import WORK, packed, packs
from .pointwise import by_positions, suits_positions
from .strips import by_strips, suits_strips
from .transposed import transposed
from .winograd import suits, winograd


def convolution(conv: Convolution, traits: DeviceTraits, *, constant: bool, after: Epilogue | None = None) -> Impl:
    """Return the implementation of *conv*.

    Args:
        constant: The filter is a constant of the model.
        after: What becomes of each element before it is stored.
    """
    if suits_patches(conv, traits):
        return by_patches(conv, traits, after, constant=constant)
    if not traits.is_cpu or conv.dtype is not FLOAT32 or conv.inputs == 0:
        return _generic(conv, traits, after)
    if conv.transposed:
        return transposed(conv, traits, after) if constant and traits.packed_weights else _generic(conv, traits, after)
    if packs(conv.dtype, conv.outputs, traits, constant=constant):
        if suits_positions(conv, traits, after):
            return by_positions(conv, traits, after)
        if suits_strips(conv):
            return by_strips(conv, traits, after)
        return winograd(conv, traits, after) if suits(conv, traits) else packed(conv, traits, after)
    if constant and traits.packed_weights and suits_channels(conv, after):
        return by_channels(conv, traits, after)
    return depthwise(conv, traits, after) or _planes(conv, traits, after)


def _planes(conv: Convolution, traits: DeviceTraits, after: Epilogue | None) -> Impl:
    padded = padded_input(conv, traits)
    w = conv.window
    (sd, sh, sw), (dd, dh, dw), (od, oh, ow) = w.strides, w.dilations, w.outs
    width, height = power(ow, 16), power(oh, 4)
    blocks = -(-oh // height)
    units = conv.batch * conv.group * conv.outputs * od * blocks
    cells = conv.inputs * w.size[0] * w.size[1] * w.size[2]
    work = height * cells * -(-ow // width)
    per_item = greatest(1, least(-(-units // (4 * traits.compute_units)), WORK // greatest(1, work)))
    ints = (
        conv.inputs, conv.outputs, conv.group, *padded.spatial, od, oh, ow, *w.size, sd, sh, dd, dh, dw, blocks,
        units, per_item, sw,
    )  # fmt: skip
    bound = bind_conv(conv, padded.ref, inp(1), after)
    stride = sw if sw <= 2 else 0
    k = chosen(32 * height + width, _planes_kernel_of, bound.form, stride)
    launch = Launch(k, bound.refs, (*ints, *bound.ints), (-(-units // per_item),), (1,))
    return Impl(f"planes {height}x{width}", (*padded.launches, launch), padded.scratch)


def _planes_kernel_of(form: ConvForm, stride: int, number: int) -> KernelSource:
    return _planes_kernel(form, number // 32, number % 32, stride)


@functools.cache
def _planes_kernel(form: ConvForm, height: int, width: int, stride: int) -> KernelSource:
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

    # Where there are fewer rows left, the last one is calculated again.
    places = " ".join(
        f"const int h{i} = min(block * {height} + {i}, OH - 1); __global const float* const x{i} = xn + h{i} * sh * W;"
        for i in rows
    )
    zero = " ".join(f"{vector} a{i} = ({vector})({'bias[oc]' if form.bias else '0.0f'});" for i in rows)
    multiply = " ".join(f"a{i} = fma(w, {load(f'(x{i} + at)')}, a{i});" for i in rows)
    stores = " ".join(_stored_row(form, i, width) for i in rows)
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
        "units", "per_item", "sw", *form.last.ints,
    )  # fmt: skip
    return kernel(f"conv_planes{height}x{width}", form.buffers, ints, body, helpers=form.last.helpers)


def _stored_row(form: ConvForm, i: int, width: int) -> str:
    """Return statements that store the *width* positions of row *i* of a tile."""
    last = form.last
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
    bound = bind_conv(conv, inp(0), inp(1), after)
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
def _generic_kernel(form: ConvForm, stepped: bool, cpu: bool) -> KernelSource:
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
