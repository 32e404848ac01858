"""How is a convolution of one cell carried out together with the depthwise one that alone reads it?

Such pairs are what networks for phones are made of: many channels are made of few, and each is then looked at by
itself. What lies between them is the largest tensor of its block, and the second convolution only ever needs a few of
its rows. So a work-item makes them, 16 channels at a time or 32, keeps those that a row of windows sees in lines of its own,
which go round, and multiplies them there. In between, nothing comes to memory, and nothing is turned: vectors hold 16
channels of one position, from the products of the first convolution to the sums of the second.

Each sum is the same chain of ``fma`` as where the two are carried out one after the other, so the bits are, too.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from asyncrt.devices.base import Registers
from asyncrt.kernels.arithmetic import below, either, greatest, least
from asyncrt.kernels.codegen import epilogue
from asyncrt.kernels.codegen.epilogue import SOME, Epilogue
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.codegen.tiles import FETCH
from asyncrt.kernels.impl import Impl, KernelSource, Launch, Ref, WeightsRequest, chosen, inp, out, weights
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32, DataType

from . import depthwise_channels
from .interface import Convolution
from .packed import block_of, packer
from .tile import ZEROS
from .turned import turned_out

_BLOCK, _WIDE = 16, 32  # channels of a work-item, and where rows are short, so that sums are as many
_SHORT = 16  # positions
_KEPT, _DONE = 13312, 4096  # elements of the lines, and of results that wait to be turned: 64 KiB
_DEEP = 3 << 12  # elements of a block's weights, which are walked once for a few positions
# Elements of a picture that stay near while each block reads them, about, and channels if they need not.
_PICTURE, _FEW = 1 << 17, 32
_TURNING = 512  # elements of registers: as many as hold 16 positions of 16 channels, twice
_MADE = 16, 14  # positions of a tile in a block of 16, half as many in one of 32; each is another kernel
_TWICE = {16: 5, 32: 10}  # of so many positions, at most one more is calculated a second time
_AHEAD = 64  # elements from what is multiplied to what is fetched: channels are far apart in memory
_ROWS = 7  # of cells
_BANDS = 4  # work-items for each core, if rows are enough


class _Tile(NamedTuple):
    """What is written out in a kernel.

    Attributes:
        block: Channels of a work-item.
        made: Positions of a tile of the first convolution.
        cells, stride, dilation: Of a row of the second's window.
    """

    block: int
    made: int
    cells: int
    stride: int
    dilation: int

    @property
    def width(self) -> int:
        """Positions of a tile of the second convolution."""
        return _seen(self.block, self.made)


class _Form(NamedTuple):
    """What the source of a kernel depends on beside the tile.

    Attributes:
        biased: Whether the first convolution has a bias, and whether the second has.
        between: What becomes of the first one's results, which takes no operands.
        last: What becomes of the second one's.
    """

    biased: tuple[bool, bool]
    between: epilogue.EpilogueForm
    last: epilogue.EpilogueForm

    @property
    def buffers(self) -> tuple[tuple[str, DataType, str], ...]:
        biases = [(n, FLOAT32, "r") for n, there in zip(("added", "bias"), self.biased, strict=True) if there]
        given = (("x", FLOAT32, "r"), ("w", FLOAT32, "r"), ("f", FLOAT32, "r"), ("y", FLOAT32, "w"))
        return (*given, *biases, *self.last.buffers)


def why_not_expanded(
    first: Convolution, second: Convolution, between: Epilogue | None, after: Epilogue | None, traits: DeviceTraits
) -> str:
    """Return why the two are not carried out together; "" if they are. Their filters are constant."""
    v, w = first.window, second.window
    if not traits.is_cpu or not traits.packed_weights or not first.dtype is second.dtype is FLOAT32:
        return "the kernel is for floats on CPUs"
    if first.group != 1 or not v.is_identity or v.size != (1, 1, 1) or first.inputs == 0 or first.outputs < 16:
        return "the first is no product of all channels"
    if second.inputs != 1 or second.outputs != 1 or second.group != first.outputs:
        return "the second is not depthwise"
    if (
        not w.size[0] == w.spatial[0] == w.outs[0] == 1
        or w.before[0]
        or w.size[1] > _ROWS
        or not depthwise_channels.near(w)
    ):
        return "the second one's windows are not small ones of a plane"
    if min(first.batch, *w.spatial, *w.outs) < 1:
        return "there is nothing to do"
    if between is not None and (between.operands or not between.vector):
        return "what lies between them takes more than the first one's results"
    if not depthwise_channels.plain(after) or (after is not None and any(o.view.strides[-1] for o in after.operands)):
        return "what follows takes more than a number of each channel"
    if traits.registers.capacity < _TURNING:
        return "there are too few registers to turn results"
    if first.inputs >= _FEW and w.spatial[1] * w.spatial[2] > _near(first.inputs):
        return "each block of channels would fetch a large picture"
    if _WIDE * first.inputs > _DEEP:
        return "a block's weights are more than a cache keeps"
    block, row = _block(first, traits.registers), w.spatial[2]
    made = _made(block, row)
    if row < made or (-row % made) * _TWICE[block] > row or w.outs[2] < _seen(block, made):
        return "rows are too short for its tiles"
    return ""


def _near(inputs: int) -> int:
    """Return how many positions a picture of so many channels may have that stays near.

    A power of four, so that layers of a network, each of half the sides, go past theirs at the same sizes of what the
    network is given: each size at which one of them does has plans of its own.
    """
    positions = (2 * _PICTURE - 1) // inputs
    return 1 << (positions.bit_length() - 1) // 2 * 2


def _made(block: int, row: int) -> int:
    """Return of how many positions the tiles of a row of the first are, so that few are calculated twice; the last tile is
    moved back."""
    wide, narrow = (made * _BLOCK // block for made in _MADE)
    return either(below(-(-row // narrow) * narrow, -(-row // wide) * wide), narrow, wide)


def _seen(block: int, made: int) -> int:
    """Return how many positions a tile of the second has, beside tiles of *made* positions of the first."""
    return made * block // _WIDE


def _block(conv: Convolution, registers: Registers) -> int:
    """Return how many channels a work-item of the first convolution makes."""
    return _WIDE if conv.window.spatial[2] < _SHORT and block_of(conv.outputs, registers) == _WIDE else _BLOCK


def expanded(
    first: Convolution,
    second: Convolution,
    between: Epilogue | None,
    after: Epilogue | None,
    biases: tuple[Ref | None, Ref | None],
    traits: DeviceTraits,
) -> Impl:
    """Return the implementation of a pair that `why_not_expanded` says nothing about.

    Args:
        between: What becomes of the first one's results.
        after: What becomes of the second one's.
        biases: The first one's, and the second one's.
    """
    w = second.window
    _, high, wide = w.spatial
    _, oh, ow = w.outs
    block = _block(first, traits.registers)
    blocks = -(-first.outputs // block)
    planes, cores = first.batch * blocks, traits.compute_units
    bands = -(-_BANDS * cores // planes)
    bands = bands + below(1, bands) * below(0, bands * planes % cores)  # as many for each core
    # What two of them see is made twice.
    bands = least(bands, greatest(1, oh * w.strides[1] // (_BANDS * w.extents[1])))
    rows = -(-oh // bands)
    # Where a line would be too long, it is cut; all parts are of one width, and the last one is moved back.
    most = least((_KEPT // (block * w.extents[1]) - w.extents[2]) // w.strides[2] + 1, _DONE // block)
    across = -(-ow // most)
    part = -(-ow // across)
    made = _made(block, wide)
    line = greatest((part - 1) * w.strides[2] + w.extents[2], made + w.before[2])
    fit = _DONE // (block * part)
    together = -(-rows // -(-rows // least(fit, rows)))
    joined = epilogue.join(after, 2)[1]
    last = epilogue.bind(joined, joined.operands[0].view.shape if joined is not None and joined.operands else (1,))
    inner = epilogue.bind(between, (1,))
    form = _Form((biases[0] is not None, biases[1] is not None), _renamed(inner.form), last.form)
    ints = (
        first.inputs, first.outputs, high, wide, oh, ow, w.size[1], *w.before[1:], w.strides[1], w.dilations[1], blocks,
        line, w.extents[1], rows, together, across, part, w.strides[2],
    )  # fmt: skip
    refs = (inp(0), weights(0), weights(1), out(0), *(b for b in biases if b is not None), *last.refs)
    k = chosen(made, _kernel_of, form, _Tile(block, 1, w.size[2], w.strides[2], w.dilations[2]))
    launch = Launch(k, refs, (*ints, *inner.ints, *last.ints), (-(-oh // rows) * across, planes), (1, 1))
    requests = (
        WeightsRequest(1, f"conv{block} group 1, zeros", packer(1, block), blocks * first.inputs * block + ZEROS),
        depthwise_channels.filters_wanted(3, second, block),
    )
    return Impl(f"expanded {block}x{made}", (launch,), (), requests)


def _renamed(form: epilogue.EpilogueForm) -> epilogue.EpilogueForm:
    """Return a form whose functions and numbers have other names than those of a second one in the same kernel."""
    text = form.expression.replace("$", "$_between").replace("number", "between_number")
    return form._replace(expression=text, helper_text=form.helper_text.replace("$", "$_between"))


_INTS = (
    "C", "G", "H", "W", "OH", "OW", "KH", "ph", "pw", "sh", "dh", "blocks", "line", "lines", "rows", "together", "across", "part", "sw",
)  # fmt: skip


def _kernel_of(form: _Form, tile: _Tile, made: int) -> KernelSource:
    return _kernel(form, tile._replace(made=made))


@functools.cache
def _kernel(form: _Form, tile: _Tile) -> KernelSource:
    last, block, halves = form.last, tile.block, range(tile.block // 16)
    at, value = "y + row * OH * OW + p0 + c", "vload16(0, z + j * 16)"
    added, bias = (f"{n}[c0 + j]" if b else "0.0f" for n, b in zip(("added", "bias"), form.biased, strict=True))
    body = f"""
  const int block = (int)get_global_id(1) % blocks, n = (int)get_global_id(1) / blocks;
  const int oh0 = (int)get_global_id(0) / across * rows, oh1 = min(oh0 + rows, OH);
  const int ow0 = min((int)get_global_id(0) % across * part, OW - part);
  const int left0 = ow0 * sw - pw, w0 = max(0, left0), w1 = min(W, left0 + line);  /* columns that are seen */
  const int c0 = block * {block}, left = min({block}, G - c0), plane = H * W;
  __global const float* const xn = x + n * C * plane;
  __global const float* const wn = w + c0 * C;
  __global const float* const fn = f + c0 * KH * {tile.cells};
  float near[{_KEPT}] __attribute__((aligned(64))), done[{_DONE}] __attribute__((aligned(64)));
  float add[{block}] __attribute__((aligned(64))), start[{block}] __attribute__((aligned(64)));
  for (int j = 0; j < {block}; j++) {{ add[j] = j < left ? {added} : 0.0f; start[j] = j < left ? {bias} : 0.0f; }}
  for (int i = 0; i < lines * line * {len(halves)}; i++) vstore16((float16)(0.0f), i, near);  /* the borders stay so */
  int places[{_ROWS}];
  const int apart = together * part * 16;  /* of the halves of what is done */
  int next = max(0, oh0 * sh - ph);
  for (int g0 = oh0; g0 < oh1; g0 += together) {{
    const int g1 = min(g0 + together, oh1);
    for (int oh = g0; oh < g1; oh++) {{
      const int top = oh * sh - ph, end = min(H, top + (KH - 1) * dh + 1);
      for (next = max(next, top); next < end; next++) {{
        float* const to = near + (next % lines * line - left0) * {block};
        {_first(form, tile)}
      }}
      int k0 = KH, k1 = 0;  /* the rows of cells that are inside, and where what they see is kept */
      for (int kh = KH - 1; kh >= 0; kh--) {{
        const int ih = top + kh * dh;
        if (ih < 0 || ih >= H) continue;
        places[kh] = ih % lines * line * {block};
        k0 = kh; k1 = max(k1, kh + 1);
      }}
      for (int h = 0; h < {len(halves)}; h++) {{
        __global const float* const fh = fn + h * KH * {tile.cells * 16};
        float* const to = done + h * apart + (oh - g0) * part * 16;
        {_second(tile)}
      }}
    }}
    const int runs = across == 1 ? 1 : g1 - g0, count = across == 1 ? (g1 - g0) * OW : part;  /* rows that follow each other */
    for (int i = 0; i < runs * {len(halves)}; i++) {{
      const int h = i % {len(halves)}, run = i / {len(halves)}, p0 = (g0 + run) * OW + ow0;
      for (int p = 0; p < count; p += 16) {{
        const int c = max(0, min(p, count - 16));
        float z[256] __attribute__((aligned(64)));
        $_turned_out(done + h * apart + (run * part + c) * 16, z);
        for (int j = 0; j < min(16, left - h * 16); j++) {{
          const int row = n * G + c0 + h * 16 + j;
          {last.rows("row")}
          if (count - c >= 16) {last.stored_vector(at, "p0 + c", value)}
          else {last.stored_some(at, "p0 + c", value, "count - c")}
        }}
      }}
    }}
  }}"""
    ints = (*_INTS, *(f"between_{name}" for name in form.between.ints), *last.ints)
    helpers = FETCH + turned_out("") + SOME + form.between.helpers + last.helpers
    one = "__attribute__((reqd_work_group_size(1, 1, 1)))"
    return kernel("conv_expanded", form.buffers, ints, body, helpers=helpers, attributes=one)


def _first(form: _Form, tile: _Tile) -> str:
    """Return statements that make row ``next`` of the first convolution's results, in vectors of channels at ``to``."""
    halves, positions = range(tile.block // 16), range(tile.made)
    start = " ".join(f"float16 a{p}_{h} = vload16({h}, add);" for p in positions for h in halves)
    loads = " ".join(f"const float16 v{h} = vload16({h}, wp);" for h in halves)
    multiply = " ".join(
        f"e = xp[{p}]; " + " ".join(f"a{p}_{h} = fma(v{h}, e, a{p}_{h});" for h in halves) for p in positions
    )
    finish = " ".join(
        f"{{ const float16 v = a{p}_{h}; vstore16((float16)({form.between.expression}), {p * len(halves) + h}, own); }}"
        for p in positions
        for h in halves
    )
    return f"""for (int t = w0; t < w1; t += {tile.made}) {{
          const int iw = min(t, w1 - {tile.made});
          __global const float* xp = xn + next * W + iw;
          __global const float* wp = wn;
          float* const own = to + iw * {tile.block};
          {start}
          for (int c = 0; c < C; c++, xp += plane, wp += {tile.block}) {{
            {loads} float16 e;
            ASYNCRT_FETCH(xp + {_AHEAD});
            {multiply}
          }}
          {finish}
        }}"""


def _second(tile: _Tile) -> str:
    """Return statements that multiply what the windows of row ``oh`` see."""
    positions = range(tile.width)
    zero = " ".join(f"float16 a{p} = first;" for p in positions)
    multiply = " ".join(
        f"{{ const float16 v = vload16(kh * {tile.cells} + {k}, fh); "
        + " ".join(
            f"a{p} = fma(v, vload16({(p * tile.stride + k * tile.dilation) * (tile.block // 16)}, from), a{p});"
            for p in positions
        )
        + " }"
        for k in range(tile.cells)
    )
    keep = " ".join(f"vstore16(a{p}, ow + {p}, to);" for p in positions)
    return f"""const float16 first = vload16(h, start);
      for (int t = 0; t < part; t += {tile.width}) {{
        const int ow = min(t, part - {tile.width});
        {zero}
        for (int kh = k0; kh < k1; kh++) {{
          const float* const from = near + places[kh] + ow * {tile.stride * tile.block} + h * 16;
          {multiply}
        }}
        {keep}
      }}"""
