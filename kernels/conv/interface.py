"""What every kernel of a convolution is given: its sizes, its buffers, and its input as it wants to read it."""

from __future__ import annotations

import functools
from typing import NamedTuple

from asyncrt.kernels.codegen import epilogue
from asyncrt.kernels.codegen.epilogue import Epilogue, bind
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.impl import KernelSource, Launch, Ref, inp, out, scratch
from asyncrt.kernels.patterns.grid import cut_rows
from asyncrt.kernels.patterns.window import Window
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import DataType


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
    last: epilogue.EpilogueForm

    @property
    def buffers(self) -> tuple[tuple[str, DataType, str], ...]:
        t = self.dtype
        bias = (("bias", t, "r"),) if self.bias else ()
        return (("x", t, "r"), ("f", t, "r"), ("y", t, "w"), *bias, *self.last.buffers)

    def element(self, row: str, column: str, value: str, held: str = "") -> str:
        """Store *value* in *column* of row ``row`` of the result, whose columns are its last axis."""
        return self.last.element(self.dtype, "y", f"({row}) * OW + {column}", column, value, held=held)


class BoundConv(NamedTuple):
    """A convolution's form, and the epilogue's part of a launch."""

    form: ConvForm
    refs: tuple[Ref, ...]
    ints: tuple[int, ...]


def bind_conv(
    conv: Convolution, source: Ref, filter_: Ref, after: Epilogue | None, *, unbiased: Ref | None = None
) -> BoundConv:
    """Bind the operands; rows of the result are those of its last axis, whatever its rank.

    Args:
        unbiased: What a kernel that always takes a bias is given, and does not read, where there is none.
    """
    shape = after.operands[0].view.shape if after is not None and after.operands else (1,)
    last = bind(after, shape, integers=True)
    bias = inp(2) if conv.bias else unbiased
    refs = (source, filter_, out(0), *(() if bias is None else (bias,)), *last.refs)
    return BoundConv(ConvForm(conv.dtype, bias is not None, last.form), refs, last.ints)


class Padded(NamedTuple):
    """The input as the vector kernels read it: with borders written out, or thinned."""

    ref: Ref
    spatial: tuple[int, ...]
    launches: tuple[Launch, ...]
    scratch: tuple[int, ...]


def padded_input(conv: Convolution, traits: DeviceTraits) -> Padded:
    """Return the input with all that windows reach."""
    w = conv.window
    reach = tuple((o - 1) * s + e for o, s, e in zip(w.outs, w.strides, w.extents, strict=True))
    if not any(w.before) and all(r <= d for r, d in zip(reach, w.spatial, strict=True)):
        return Padded(inp(0), w.spatial, (), ())
    return _padded(conv, w.before, reach, traits)


def widened_input(conv: Convolution, left: int, right: int, traits: DeviceTraits) -> Padded:
    """Return the input with so many zeros in front of each row and behind it."""
    depth, height, width = conv.window.spatial
    if (left, right) == (0, 0):
        return Padded(inp(0), conv.window.spatial, (), ())
    return _padded(conv, (0, 0, left), (depth, height, left + width + right), traits)


def _padded(conv: Convolution, before: tuple[int, ...], spatial: tuple[int, ...], traits: DeviceTraits) -> Padded:
    """Return the input from *before* its first element on, with zeros where there is none."""
    rows = conv.batch * conv.group * conv.inputs * spatial[0] * spatial[1]
    cut = cut_rows(rows, spatial[2], traits)
    ints = (*conv.window.spatial, *spatial, *before, rows, cut.rows_per_item)
    items = -(-rows // cut.rows_per_item)
    launch = Launch(_pad_kernel(conv.dtype), (inp(0), scratch(0)), ints, (items,), (1,))
    return Padded(scratch(0), spatial, (launch,), (rows * spatial[2] * conv.dtype.itemsize,))


def thinned_input(conv: Convolution, traits: DeviceTraits) -> Padded:
    """Return the input with only the elements that windows of one cell see, one beside the other."""
    w = conv.window
    rows = conv.batch * conv.group * conv.inputs * w.outs[0] * w.outs[1]
    cut = cut_rows(rows, w.outs[2], traits)
    ints = (*w.spatial, *w.outs, *w.strides, rows, cut.rows_per_item)
    items = -(-rows // cut.rows_per_item)
    launch = Launch(_thin_kernel(conv.dtype), (inp(0), scratch(0)), ints, (items,), (1,))
    return Padded(scratch(0), w.outs, (launch,), (rows * w.outs[2] * conv.dtype.itemsize,))


@functools.cache
def _thin_kernel(dtype: DataType) -> KernelSource:
    body = """
  const int r0 = (int)get_global_id(0) * per_item, r1 = min(r0 + per_item, rows);
  int plane = r0 / OH / OD, d = r0 / OH % OD, h = r0 % OH;
  for (int r = r0; r < r1; r++) {
    const int from = ((plane * D + d * sd) * H + h * sh) * W, to = r * OW;
    int c = 0;
    if (sw == 2)
      for (; c + 8 < OW; c += 8) vstore8(vload16(0, x + from + 2 * c).even, 0, y + to + c);
    for (; c < OW; c++) y[to + c] = x[from + c * sw];
    if (++h == OH) { h = 0; if (++d == OD) { d = 0; plane++; } }
  }"""
    ints = ("D", "H", "W", "OD", "OH", "OW", "sd", "sh", "sw", "rows", "per_item")
    return kernel("conv_thin", (("x", dtype, "r"), ("y", dtype, "w")), ints, body)


@functools.cache
def _pad_kernel(dtype: DataType) -> KernelSource:
    """Element i of an axis goes to ``before + i``; what falls outside is dropped, the rest is zero."""
    c = dtype.c
    # Rows are short: counting is faster than dividing, and vectors that overlap are faster than single elements.
    body = f"""
  const int r0 = (int)get_global_id(0) * per_item, r1 = min(r0 + per_item, rows);
  const int first = max(0, -pw), last = min(W, PW - pw);
  int plane = r0 / PH / PD, d = r0 / PH % PD - pd, h = r0 % PH - ph;
  __global {c}* to = y + r0 * PW;
  for (int r = r0; r < r1; r++, to += PW) {{
    if (h >= 0 && d >= 0 && h < H && d < D && first < last) {{
      __global const {c}* from = x + ((plane * D + d) * H + h) * W;
      for (int c = 0; c < pw; c++) to[c] = 0;
      $_copy(from + first, to + pw + first, last - first);
      for (int c = pw + last; c < PW; c++) to[c] = 0;
    }} else {{
      for (int c = 0; c < PW; c++) to[c] = 0;
    }}
    if (++h == PH - ph) {{ h = -ph; if (++d == PD - pd) {{ d = -pd; plane++; }} }}
  }}"""
    vectors = " ".join(
        f"if (n >= {v}) {{ vstore{v}(vload{v}(0, from), 0, to); vstore{v}(vload{v}(0, from + n - {v}), 0, to + n - {v}); return; }}"
        for v in (8, 4, 2)
    )
    helpers = f"""
inline void $_copy(__global const {c}* from, __global {c}* to, int n) {{
  if (n >= 16) {{
    for (int i = 0; i < n - 16; i += 16) vstore16(vload16(0, from + i), 0, to + i);
    vstore16(vload16(0, from + n - 16), 0, to + n - 16);
    return;
  }}
  {vectors}
  to[0] = from[0];
}}"""
    ints = ("D", "H", "W", "PD", "PH", "PW", "pd", "ph", "pw", "rows", "per_item")
    buffers = (("x", dtype, "r"), ("y", dtype, "w"))
    return kernel("conv_pad", buffers, ints, body, helpers=helpers)
