"""What every kernel of a convolution is given: its sizes, its buffers, and its input with the borders written out."""

from __future__ import annotations

import functools
from typing import NamedTuple

from asyncrt.layout import DataType

from . import epilogue
from .epilogue import Epilogue, bind
from .grid import cut_rows
from .impl import KernelSource, Launch, Ref, inp, out, scratch
from .operator import DeviceTraits
from .source import kernel
from .window import Window


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


class ConvForm(NamedTuple):
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


class BoundConv(NamedTuple):
    """A convolution's form, and the epilogue's part of a launch."""

    form: ConvForm
    refs: tuple[Ref, ...]
    ints: tuple[int, ...]


def bind_conv(conv: Convolution, source: Ref, filter_: Ref, after: Epilogue | None) -> BoundConv:
    """Bind the operands; rows of the result are those of its last axis, whatever its rank."""
    shape = after.operands[0].view.shape if after is not None and after.operands else (1,)
    last = bind(after, shape)
    bias = (inp(2),) if conv.bias else ()
    return BoundConv(ConvForm(conv.dtype, conv.bias, last.form), (source, filter_, out(0), *bias, *last.refs), last.ints)


class Padded(NamedTuple):
    """The input as the vector kernels read it: with borders and inserted zeros written out."""

    ref: Ref
    spatial: tuple[int, ...]
    launches: tuple[Launch, ...]
    scratch: tuple[int, ...]


def padded_input(conv: Convolution, traits: DeviceTraits) -> Padded:
    w = conv.window
    reach = tuple((o - 1) * s + e for o, s, e in zip(w.outs, w.strides, w.extents, strict=True))
    if conv.steps == (1, 1, 1) and not any(w.before) and all(r <= d for r, d in zip(reach, w.spatial, strict=True)):
        return Padded(inp(0), w.spatial, (), ())
    planes = conv.batch * conv.group * conv.inputs
    rows = planes * reach[0] * reach[1]
    cut = cut_rows(rows, reach[2], traits)
    ints = (*w.spatial, *reach, *w.before, *conv.steps, rows, cut.rows_per_item)
    items = -(-rows // cut.rows_per_item)
    launch = Launch(_pad_kernel(conv.dtype, conv.steps != (1, 1, 1)), (inp(0), scratch(0)), ints, (items,), (1,))
    return Padded(scratch(0), reach, (launch,), (rows * reach[2] * conv.dtype.itemsize,))


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
