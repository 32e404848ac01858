"""Transposed convolutions of float32 on CPU devices with constant weights: plain ones, whose results are then put side by side.

With a stride of s, results o, o + s, o + 2s, ... see the same cells of the filter, and the inputs that they see move on by
one. So they are a plain convolution of stride 1 by those cells. There are s of them along each axis: each channel of the
result is calculated as so many channels, and a last kernel reads them in turn, with what else is to be calculated.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from asyncrt.kernels.codegen.epilogue import Epilogue
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.impl import Impl, KernelSource, Launch, inp, out, scratch
from asyncrt.kernels.patterns.grid import cut_rows
from asyncrt.kernels.patterns.window import Window
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array

from .interface import ConvForm, Convolution, bind_conv
from .packed import packed


class Between(NamedTuple):
    """One axis of a transposed convolution as a plain one.

    Attributes:
        step: As how many channels the results are calculated.
        before: Elements in front of the input that the window of result 0 sees.
        size, dilation: Of the window.
        cells: For each cell of the filter its cell in the window, and in which of those channels.
    """

    step: int
    before: int
    size: int
    dilation: int
    cells: tuple[tuple[int, int], ...]


def between(size: int, step: int, dilation: int, cut: int) -> Between:
    """Return an axis where cell k of input i adds to result ``i * step + k * dilation - cut``.

    Args:
        size, dilation: Of the filter.
    """
    if step == 1:
        return Between(1, (size - 1) * dilation - cut, size, dilation, tuple((size - 1 - k, 0) for k in range(size)))
    places = [divmod(k * dilation - cut, step) for k in range(size)]  # result (i + q) * step + r
    before, least = max(q for q, _ in places), min(q for q, _ in places)
    return Between(step, before, before - least + 1, 1, tuple((before - q, r) for q, r in places))


def spread_filter(weight: Array, group: int, axes: tuple[Between, ...]) -> Array:
    """Return the filter ``[C, M / group, cells...]`` of a transposed convolution as that of the plain one."""
    c, m, cells = weight.shape[0] // group, weight.shape[1], [len(axis.cells) for axis in axes]
    filters = weight.reshape(group, c, m, *cells)
    steps = [axis.step for axis in axes]
    plain = np.zeros((group, m, *steps, c, *(axis.size for axis in axes)), weight.dtype)
    for cell in np.ndindex(*cells):
        places = [axis.cells[k] for axis, k in zip(axes, cell, strict=True)]
        part = plain[(slice(None), slice(None), *(r for _, r in places), slice(None), *(u for u, _ in places))]
        part[:] = filters[(slice(None),) * 3 + cell].swapaxes(1, 2)
    return plain.reshape(group * m * math.prod(steps), *plain.shape[-len(axes) - 1 :])


@functools.cache
def _packer(group: int, axes: tuple[Between, ...], pack: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda weight: pack(spread_filter(weight, group, axes))


def transposed(conv: Convolution, traits: DeviceTraits, after: Epilogue | None) -> Impl:
    """Return the implementation of *conv*, which is transposed."""
    w = conv.window
    axes = tuple(
        between(size, step, dilation, (size - 1) * dilation - before)
        for size, step, dilation, before in zip(w.size, conv.steps, w.dilations, w.before, strict=True)
    )
    steps = tuple(axis.step for axis in axes)
    outs = tuple(-(-o // step) for o, step in zip(w.outs, steps, strict=True))
    window = Window(
        tuple(axis.size for axis in axes), (1, 1, 1), tuple(axis.dilation for axis in axes),
        tuple(axis.before for axis in axes), (0, 0, 0), w.spatial, outs,
    )  # fmt: skip
    plain = Convolution(conv.dtype, conv.batch, conv.group, conv.inputs, conv.outputs * math.prod(steps), window)
    impl = packed(plain, traits, None)
    sums = scratch(len(impl.scratch))
    launches = [launch._replace(buffers=tuple(sums if b == out(0) else b for b in launch.buffers)) for launch in impl.launches]
    (request,) = impl.weights
    pack = _packer(conv.group, axes, request.pack)
    request = request._replace(layout=f"{request.layout}, between {[(*axis[:4], *axis.cells) for axis in axes]}", pack=pack)
    nbytes = conv.batch * conv.group * plain.outputs * math.prod(outs) * conv.dtype.itemsize
    bound = bind_conv(conv, sums, inp(1), after)
    refs = (sums, *bound.refs[2:])
    rows = conv.batch * conv.group * conv.outputs * w.outs[0] * w.outs[1]
    cut = cut_rows(rows, w.outs[2], traits)
    ints = (conv.group * conv.outputs, *w.outs, *steps, *outs, rows, cut.rows_per_item, *bound.ints)
    launches.append(Launch(_side_by_side(bound.form), refs, ints, (-(-rows // cut.rows_per_item),), (1,)))
    return Impl(f"transposed, {impl.name}", tuple(launches), (*impl.scratch, nbytes), (request,))


@functools.cache
def _side_by_side(form: ConvForm) -> KernelSource:
    """Return the kernel that makes rows of a result from the rows of its channels; ``D, H, W`` are the result's sizes."""
    last, bias = form.last, "bias[c]" if form.bias else "0.0f"
    vectors = ""
    if last.vector:
        vectors = f"""
    if (tw <= 2)
      for (; w + 16 <= W; w += 16) {{
        float16 sums;
        if (tw == 1) sums = vload16(0, from + w);
        else {{ sums.even = vload8(0, from + w / 2); sums.odd = vload8(0, from + next + w / 2); }}
        {last.stored_vector("y + r * W + w", "w", "sums + add")}
      }}"""
    element = last.element(form.dtype, "y", "r * W + w", "w", "from[w % tw * next + w / tw] + add")
    body = f"""
  const int r0 = (int)get_global_id(0) * per_item, r1 = min(r0 + per_item, rows), next = OD * OH * OW;
  for (int r = r0; r < r1; r++) {{
    const int h = r % H, d = r / H % D, p = r / H / D, c = p % M;
    const float add = {bias};
    __global const float* const from = x + (((p * td + d % td) * th + h % th) * tw * OD + d / td) * OH * OW + h / th * OW;
    {last.rows("r")}
    int w = 0;
    {vectors}
    for (; w < W; w++) {element}
  }}"""
    buffers = tuple(b for b in form.buffers if b[0] != "f")
    ints = ("M", "D", "H", "W", "td", "th", "tw", "OD", "OH", "OW", "rows", "per_item", *last.ints)
    return kernel("conv_side_by_side", buffers, ints, body, helpers=last.helpers)
