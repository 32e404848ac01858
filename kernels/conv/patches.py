"""Convolutions as products, for GPUs: of the filter ``[M, K]`` and of what the windows see, ``[K, positions of all images]``.

The second operand is nowhere in memory: each work-item reads of the input what it multiplies. Terms of a sum follow each
other cell by cell, and in a cell channel by channel, because which element of the input a cell sees is then calculated
once for many terms; the filter is packed in that order. Channels are filled up to multiples of `CHUNK`. Where there are so
few that lines of cells are fuller, terms follow each other channel by channel, line by line, and along the line.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.impl import KernelSource, Launch, Ref, WeightsRequest, inp, scratch, weights
from asyncrt.kernels.patterns.grid import GPU_GROUP, round_up
from asyncrt.layout import Array, DataType
from asyncrt.memory.own_pages import zeros

from .interface import ConvForm, Convolution

CHUNK = 8
"""Terms that are all of one cell."""

INTS = (
    "M", "G", "C", "L", "K", "Q", "D", "H", "W", "OD", "OH", "OW", "KD", "KH", "KW", "sd", "sh", "sw", "dd", "dh",
    "dw", "pd", "ph", "pw", "td", "th", "tw", "blocks",
)  # fmt: skip


class PatchForm(NamedTuple):
    """What the source of a kernel depends on.

    Attributes:
        stepped: The input is read as if it had zeros between its elements.
        deep: The windows have a depth.
        lines: Terms follow each other along lines of cells, else from channel to channel.
        filled: There are terms of zeros.
    """

    conv: ConvForm
    stepped: bool
    deep: bool
    lines: bool
    filled: bool

    @classmethod
    def of(cls, conv: Convolution, form: ConvForm) -> PatchForm:
        """Return the form of a convolution's kernels."""
        deep, lines = conv.window.size[0] * conv.window.spatial[0] > 1, _by_lines(conv)
        return cls(form, conv.steps != (1, 1, 1), deep, lines, _length(conv, lines=lines) % CHUNK > 0)

    @property
    def ints(self) -> tuple[str, ...]:
        return (*INTS, *self.conv.last.ints)

    def column(self, q: str) -> str:
        """Find where the window of column *q* begins, and the channels of its image and group: ``begin``."""
        return f"""
  const int position = ({q}) % (OD * OH * OW);
  const int bw = position % OW * sw - pw, bh = position / OW % OH * sh - ph, bd = position / OW / OH * sd - pd;
  const int begin = (({q}) / (OD * OH * OW) * G + g) * C * D * H * W, plane = D * H * W, inside = ({q}) < Q;"""

    def start(self, k: str) -> str:
        """Find where term *k* is, which begins a chunk: ``c`` along what is neighbouring, the others around it."""
        digits = ("kh", "KH"), ("kd", "KD"), ("ch", "C")
        if not self.lines:
            digits = ("kw", "KW"), ("kh", "KH"), ("kd", "KD")
        (a, many), (b, more), (last, _) = digits
        rest = f"({k}) / L"
        return f"""
  int c = ({k}) % L, {a} = {rest} % {many}, {b} = {rest} / {many} % {more}, {last} = {rest} / {many} / {more}, seen, from;
  {self._see()}"""

    def advance(self, by: int) -> str:
        """Go on by so many terms, which are a multiple of a chunk."""
        carry = "if (++kw == KW) { kw = 0; if (++kh == KH) { kh = 0; kd++; } }"
        if self.lines:
            carry = "if (++kh == KH) { kh = 0; if (++kd == KD) { kd = 0; ch++; } }"
        carry = f"c -= L; {carry}" if by == CHUNK else f"do {{ c -= L; {carry} }} while (c >= L);"
        return f"c += {by}; if (c >= L) {{ {carry} {self._see()} }}"

    def value(self, i: str) -> str:
        """Return what the column has as the *i*-th term of the chunk, as a float."""
        there, at = self._element(i)
        return f"({there} ? LOAD({self.conv.dtype.name}, x, {at}) : 0)"

    def bits(self, i: str) -> str:
        """Return the same as it is stored, of a type of two bytes."""
        there, at = self._element(i)
        return f"(uint)({there} ? ((__global const ushort*)x)[{at}] : 0)"

    def _element(self, i: str) -> tuple[str, str]:
        """Return whether there is an element for the *i*-th term, and where it is."""
        if not self.lines:
            return f"seen && c + {i} < C" if self.filled else "seen", f"from + (c + {i}) * plane"
        there = f"seen && (uint)(bw + (c + {i}) * dw) < (uint)W"
        return f"{there} && c + {i} < KW" if self.filled else there, f"from + (c + {i}) * dw"

    def _see(self) -> str:
        """Find which element of the input the cell sees, if any; there are none behind the last term."""
        inside, places = ["inside", "ch < C" if self.lines else "kd < KD"], {}
        for axis in "dhw":
            if (axis == "d" and not self.deep) or (axis == "w" and self.lines):
                continue
            i = f"(b{axis} + k{axis} * d{axis})"
            size = axis.upper()
            if self.stepped:
                inside.append(f"{i} >= 0 && {i} % t{axis} == 0 && {i} / t{axis} < {size}")
                i = f"{i} / t{axis}"
            else:
                inside.append(f"(uint){i} < (uint){size}")
            places[axis] = i
        depth = f"{places['d']} * H + " if self.deep else ""
        across = "bw + ch * plane" if self.lines else places["w"]
        return f"seen = {' && '.join(inside)}; from = begin + ({depth}{places['h']}) * W + {across};"

    def place(self, q: str, suffix: str = "") -> str:
        """Find where column *q* of the result goes: its image, and its row and column there."""
        return (
            f"const int p{suffix} = ({q}) % (OD * OH * OW), "
            f"place{suffix} = (({q}) / (OD * OH * OW) * G + g) * M * (OD * OH) + p{suffix} / OW, "
            f"ow{suffix} = p{suffix} % OW;"
        )

    def fetched(self, m: str) -> str:
        """Fetch what the epilogue reads from filter *m*'s element on at the place of no suffix; "" if there is nothing."""
        fetches = self.conv.last.fetched_run("ow")
        return f"{self.conv.last.rows(self._row(m, ''))} {fetches}" if fetches else ""

    def held(self, count: int) -> str:
        """Declare what `hold` reads for *count* elements."""
        return self.conv.last.held(count)

    def hold(self, index: str, m: str, suffix: str = "") -> str:
        """Read what belongs to filter *m*'s element at the place of that suffix; `EpilogueForm.held` says why."""
        return f"{self.conv.last.rows(self._row(m, suffix))} {self.conv.last.hold(index, f'ow{suffix}')}"

    def bias(self, m: str) -> str:
        """Return what is added to the sums of filter *m*."""
        return f"LOAD({self.conv.dtype.name}, bias, g * M + {m})" if self.conv.bias else "0"

    def element(self, value: str, m: str, suffix: str = "", held: str = "") -> str:
        """Store *value* as filter *m*'s, at the place of that suffix.

        Args:
            held: The index under which `hold` has read what belongs to it.
        """
        row = self._row(m, suffix)
        return f"{{ {'' if held else self.conv.last.rows(row)} {self.conv.element(row, f'ow{suffix}', value, held)} }}"

    def _row(self, m: str, suffix: str) -> str:
        return f"place{suffix} + ({m}) * (OD * OH)"


class Patches(NamedTuple):
    """A convolution as a product at one set of shapes: of ``[rows, terms]`` and ``[terms, columns]`` for each group.

    Attributes:
        ints: All sizes but how many tiles there are below one another in a group.
        filter: Where the packed filter is.
        requests: It is packed beforehand, if it is a constant.
        launches: What packs it, if it is none.
        scratch: Where to.
    """

    rows: int
    columns: int
    terms: int
    ints: tuple[int, ...]
    filter: Ref
    requests: tuple[WeightsRequest, ...] = ()
    launches: tuple[Launch, ...] = ()
    scratch: tuple[int, ...] = ()


def _length(conv: Convolution, *, lines: bool) -> int:
    """Return how many terms are neighbours."""
    return conv.window.size[2] if lines else conv.inputs


def _terms(conv: Convolution, *, lines: bool) -> int:
    """Return how many terms a sum has."""
    cells, length = math.prod(conv.window.size), _length(conv, lines=lines)
    return conv.inputs * cells // length * round_up(length, CHUNK)


def _by_lines(conv: Convolution) -> bool:
    """Whether there are fewer terms along lines of cells than from channel to channel."""
    return conv.steps == (1, 1, 1) and _terms(conv, lines=True) < _terms(conv, lines=False)


def patches(conv: Convolution, *, packed: bool) -> Patches:
    """Return *conv* as a product.

    Args:
        packed: The filter is a constant, which may be packed beforehand.
    """
    w, lines = conv.window, _by_lines(conv)
    length, terms, columns = _length(conv, lines=lines), _terms(conv, lines=lines), conv.batch * math.prod(w.outs)
    ints = (
        conv.outputs, conv.group, conv.inputs, round_up(length, CHUNK), terms, columns, *w.spatial, *w.outs, *w.size,
        *w.strides, *w.dilations, *w.before, *conv.steps,
    )  # fmt: skip
    size = conv.group * conv.outputs * terms
    product = Patches(conv.outputs, columns, terms, ints, weights(0) if packed else scratch(0))
    if packed:
        how = f"{', transposed' if conv.transposed else ''}{', by lines' if lines else ''}"
        pack = _packer(conv.group, conv.transposed, length if lines else 0)
        return product._replace(requests=(WeightsRequest(1, f"patches group {conv.group}{how}", pack, size),))
    source = _pack_kernel(conv.dtype, conv.transposed, lines)
    own = (conv.inputs, conv.outputs, math.prod(w.size), length, round_up(length, CHUNK), size)
    launch = Launch(source, (inp(1), scratch(0)), own, (round_up(size, GPU_GROUP),), (GPU_GROUP,))
    return product._replace(launches=(launch,), scratch=(size * conv.dtype.itemsize,))


def pack(weight: Array, group: int, *, transposed: bool, line: int) -> Array:
    """Return a filter as ``[group, M / group, cells, channels]``, the channels filled up with zeros.

    Args:
        transposed: It is ``[C, M / group, ...]`` and its cells are in reverse order, not ``[M, C / group, ...]``.
        line: Cells in a line, if the filter is to be ``[group, M / group, channels, lines, cells]``; else 0.
    """
    filters = weight.reshape(group, weight.shape[0] // group, weight.shape[1], -1)
    if transposed:
        filters = filters.swapaxes(1, 2)[..., ::-1]
    g, m, c, cells = filters.shape
    filters = filters.reshape(g, m, c * cells // line, line) if line else filters.swapaxes(2, 3)
    made = zeros((*filters.shape[:3], round_up(filters.shape[3], CHUNK)), weight.dtype)
    made[..., : filters.shape[3]] = filters
    return made.reshape(-1)


@functools.cache
def _packer(group: int, transposed: bool, line: int) -> Callable[[Array], Array]:
    return functools.partial(pack, group=group, transposed=transposed, line=line)


@functools.cache
def _pack_kernel(dtype: DataType, transposed: bool, lines: bool) -> KernelSource:
    """Do what `pack` does; *length* terms are neighbours, *L* with zeros."""
    source = "((g * C + c) * M + m) * cells + cells - 1 - cell" if transposed else "((g * M + m) * C + c) * cells + cell"
    place = "c = at / (cells / length), cell = at % (cells / length) * length + e" if lines else "c = e, cell = at"
    body = f"""
  const int i = (int)get_global_id(0), each = C * cells / length;
  if (i >= items) return;
  const int e = i % L, at = i / L % each, m = i / L / each % M, g = i / L / each / M;
  const int {place};
  y[i] = e < length ? f[{source}] : 0;"""
    buffers = (("f", dtype, "r"), ("y", dtype, "w"))
    return kernel("conv_pack", buffers, ("C", "M", "cells", "length", "L", "items"), body)
