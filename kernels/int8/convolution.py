"""Convolutions of 8-bit integers, summed in 32 bits: which kernel, and the one for everything.

- depthwise: a channel for each group, and constant filters, on CPU devices (`depthwise.py`).
- packed: other constant filters there (`packed_convolution.py`).
- integers: everything else, one result at a time.
"""

from __future__ import annotations

import functools

from asyncrt.kernels.codegen.epilogue import Epilogue
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.impl import Impl, KernelSource, Launch, inp, out
from asyncrt.kernels.patterns.grid import GPU_GROUP, round_up
from asyncrt.kernels.traits import DeviceTraits

from .conv_interface import IntegerConv, IntegerConvForm, bind_conv
from .depthwise import depthwise, suits
from .packed_convolution import packed
from .quantize import HELPERS, bounds


def integer_conv(conv: IntegerConv, traits: DeviceTraits, shape: tuple[int, ...], after: Epilogue | None) -> Impl:
    """Return the implementation of *conv*.

    Args:
        shape: Of its result.
        after: What becomes of each element before it is stored.
    """
    if traits.is_cpu and traits.packed_weights and conv.constant and conv.inputs:
        return (depthwise if suits(conv) else packed)(conv, traits, shape, after)
    return _generic(conv, traits, shape, after)


def _generic(conv: IntegerConv, traits: DeviceTraits, shape: tuple[int, ...], after: Epilogue | None) -> Impl:
    bound = bind_conv(conv, shape, after, integers=False)
    w = conv.window
    od, oh, ow = w.outs
    rows = conv.batch * conv.group * conv.outputs * od * oh
    items, group = (rows, 1) if traits.is_cpu else (rows * ow, GPU_GROUP)
    ints = (
        conv.inputs, conv.outputs, conv.group, *w.spatial, *w.outs, *w.size, *w.strides, *w.dilations, *w.before, items,
        *bound.steps, *bound.ints,
    )  # fmt: skip
    launch = Launch(
        _generic_kernel(bound.form, traits.is_cpu), (inp(0), inp(conv.weights), out(0), *bound.refs), ints,
        (round_up(items, group),), (group,),
    )  # fmt: skip
    return Impl("integers", (launch,))


@functools.cache
def _generic_kernel(form: IntegerConvForm, cpu: bool) -> KernelSource:
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
