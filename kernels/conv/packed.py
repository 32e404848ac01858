"""Convolutions of float32 on CPU devices with constant weights.

A work-item computes tiles of 32 output channels (or 16) × up to 8 positions that follow one another, over weights packed
``[group][channel block][ic][kd][kh][kw][32]``. Where the weights of a block of channels are more than a cache keeps, it
walks them in pieces, several tiles over each piece (`tile.py` has the kernel).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from asyncrt.devices.base import Registers
from asyncrt.kernels.arithmetic import greatest, least
from asyncrt.kernels.codegen import epilogue
from asyncrt.kernels.codegen.epilogue import Epilogue
from asyncrt.kernels.codegen.tiles import tile_of
from asyncrt.kernels.impl import Impl, KernelSource, Launch, WeightsRequest, chosen, inp, weights
from asyncrt.kernels.patterns.grid import round_up
from asyncrt.kernels.patterns.window import Window
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32, Array, DataType
from asyncrt.memory.own_pages import zeros

from .interface import ConvForm, Convolution, Padded, bind_conv, padded_input, thinned_input, widened_input
from .tile import TOGETHER, ZEROS, Tile, tile_kernel

# What a tile costs beside its products, as many products of a position. Where a channel is one cell, each needs lines of
# the cache that no other does, and loading them takes as long as multiplying six or seven positions, and a bit.
_FINISH, _LINES, _BIT = 96, 6.5, 0.5
_OUTSIDE = 2  # columns that a tile may find outside of the input: each takes a register for every row
_SHALLOW = 4  # channels of a picture
_UNROLLED = 7  # cells of a window's row that are written out one after the other
WORK = 1 << 16  # multiply-adds (of vectors) that a work-item should have
_ITEMS = 4  # work-items for each compute unit, as long as there can be so many


class Pieces(NamedTuple):
    """How the weights of a block of channels are walked.

    Attributes:
        whole: So many elements are one piece.
        piece: Elements of a piece of more. While the last tiles pass over one, the next is fetched, for which the first must
            be short.
    """

    whole: int
    piece: int


_SECOND, _FIRST = Pieces(1 << 16, 12 << 10), Pieces(16 << 10, 6 << 10)
"""So that tiles find them in a core's second cache, or in its first."""


class Blocks(NamedTuple):
    """What a tile may be, so that its sums stay in registers.

    Attributes:
        costs: Output channels of a packed block, two float16 or one, and what a channel costs in it: one loads twice as
            often for each multiplication.
        positions: The most of a tile.
        least: How many positions take as long as fewer do: that long it takes until a cell's weights are there.
        pieces: How the weights of a block are cut where windows have several cells.
    """

    costs: Mapping[int, float]
    positions: int
    least: int
    pieces: Pieces


def blocks_of(registers: Registers) -> Blocks:
    if tile_of(registers).columns == 32:
        return Blocks({32: 1.0, 16: 1.4}, 8, 6, _FIRST)
    return Blocks({16: 1.0}, tile_of(registers).rows, 5, _SECOND)


def _block(outputs: int, costs: Mapping[int, float]) -> int:
    return min(costs, key=lambda b: round_up(outputs, b) * costs[b])


def block_of(outputs: int, registers: Registers) -> int:
    """Return how many output channels a packed block has."""
    return _block(outputs, blocks_of(registers).costs)


def pack_filters(weight: Array, group: int, block: int) -> Array:
    """Return a filter ``[M, C / group, cells...]`` as ``[group, ceil(M / group / block), C / group, cells, block]``, padded
    with zeros, and some more zeros behind it."""
    filters = weight.reshape(group, weight.shape[0] // group, *weight.shape[1:])
    g, m, c = filters.shape[:3]
    cells = math.prod(filters.shape[3:])
    shape = (g, -(-m // block), c, cells, block)
    flat = zeros((math.prod(shape) + ZEROS,), weight.dtype)
    packed = flat[:-ZEROS].reshape(shape)
    for i in range(shape[1]):  # one by one, so that there is no second copy of large weights
        part = filters[:, i * block : (i + 1) * block]
        packed[:, i, :, :, : part.shape[1]] = part.reshape(g, part.shape[1], c, cells).transpose(0, 2, 3, 1)
    return flat


@functools.cache
def packer(group: int, block: int) -> Callable[[Array], Array]:
    return functools.partial(pack_filters, group=group, block=block)


def tile_width(positions: int, channels: int, cells: int, blocks: Blocks) -> int:
    """Return how many positions of a row a tile has: few are calculated twice.

    Each width is a kernel. Windows of one cell, of which a model has many kinds and whose rows are whole planes, do with
    three widths, but for rows that are shorter: they lose 0.1 % where there are 13 to 100 positions, and nothing from
    there on.
    """
    most = blocks.positions

    def rank(width: int) -> int:
        """The cost in halves, and of equal ones the widest first."""
        each = 2 * max(width, _LINES) + 2 * _BIT if cells == 1 else 2 * max(width, blocks.least)
        cost = (int(each) * channels * cells + 2 * _FINISH) * (most + 1)
        return (-positions // width) * -cost + most - width

    widths = sorted({min(4, most), max(1, most - 1), most}) if cells == 1 else range(1, most + 1)
    # Wider than the row it costs no less than as wide as the row.
    return least(positions, most - functools.reduce(least, map(rank, widths)) % (most + 1))


def packs(dtype: DataType, outputs: int, traits: DeviceTraits, *, constant: bool) -> bool:
    """Return whether a convolution to *outputs* channels per group is of this kind."""
    return traits.is_cpu and dtype is FLOAT32 and constant and traits.packed_weights and outputs >= 8


def _reads_past(conv: Convolution) -> tuple[int, int] | None:
    """Return how many columns left and right of the input the tiles of *conv* may see; None if it needs them written out.

    The right ones are as many as may be at any width, so that a new one needs no other kernel.
    """
    w = conv.window
    if not _plain(w) or w.strides[2] > 2 or min(w.before) < 0:
        return None
    reach = [(o - 1) * s + e - b for o, s, e, b in zip(w.outs, w.strides, w.extents, w.before, strict=True)]
    if w.before[0] or reach[0] > w.spatial[0]:
        return None
    left, right = w.before[2], max(w.after[2], reach[2] - w.spatial[2], 0)
    return (left, right) if left + right <= _OUTSIDE else None


def _thins(conv: Convolution) -> bool:
    """Whether the elements that *conv* sees are put together first, because it sees each of them several times."""
    w = conv.window
    single = w.size == (1, 1, 1) and w.strides != (1, 1, 1) and not any(w.before)
    return single and all((o - 1) * s < n for o, s, n in zip(w.outs, w.strides, w.spatial, strict=True)) and conv.outputs > 64


def _plain(window: Window) -> bool:
    """Whether a row of the window's cells can be written out in a kernel."""
    return (window.size[0], *window.dilations[1:]) == (1, 1, 1) and window.size[2] <= _UNROLLED


def _passes_by(conv: Convolution) -> bool:
    """Whether the tiles of *conv* pass by the cells that none of their positions has an element for.

    Windows that reach far have many of them, and the borders for those would be larger than the input.
    """
    return not _plain(conv.window) and min(conv.window.before) >= 0


def _margins(conv: Convolution, width: int) -> tuple[int, int]:
    """Return how many columns left and right of the input tiles of that *width* see that pass cells by."""
    w = conv.window
    most = (width - 1) * w.strides[2]
    reach = (w.outs[2] - 1) * w.strides[2] + w.extents[2] - w.before[2]
    return least(w.before[2], most), least(greatest(reach - w.spatial[2], 0), most)


def _input(
    conv: Convolution, traits: DeviceTraits
) -> tuple[Padded, tuple[int, int] | None, tuple[int, ...]]:
    """Return what the tiles of *conv* read, what `_reads_past` says where they read past it, and their strides in it."""
    if _thins(conv):
        return thinned_input(conv, traits), None, (1, 1, 1)
    padded, borders = padded_input(conv, traits), None
    if padded.launches and (borders := _reads_past(conv)) is not None:
        padded = Padded(inp(0), conv.window.spatial, (), ())
    return padded, borders, conv.window.strides


def packed(conv: Convolution, traits: DeviceTraits, after: Epilogue | None) -> Impl:
    """Return the implementation of *conv*."""
    w = conv.window
    (kd, kh, kw), (dd, dh, dw), (od, oh, ow) = w.size, w.dilations, w.outs
    padded, borders, (sd, sh, sw) = _input(conv, traits)
    passes = bool(padded.launches) and _passes_by(conv)
    spatial = padded.spatial
    joins, joined = epilogue.join(after, 2)
    if joins:
        after = joined
        if w.size == (sd, sh, sw) == (1, 1, 1) and borders is None:  # rows follow each other: one long row
            od, oh, ow, spatial = 1, 1, od * oh * ow, (1, 1, od * oh * ow)
    cells = kd * kh * kw
    allowed = blocks_of(traits.registers)
    most = allowed.positions
    rows, width = 1, tile_width(ow, conv.inputs, cells, allowed)
    if joins and 2 * ow <= most and oh > 1 and not passes:  # short rows, each of them one tile: several of them
        rows = next(r for r in (most // width, 2) if r <= oh)
    places: tuple[int, ...] = () if borders is None else w.before[1:]
    if passes:
        margins = _margins(conv, width)
        padded = widened_input(conv, *margins, traits)
        spatial, places = padded.spatial, (*w.before, margins[0], w.spatial[2])
    block = _block(conv.outputs, allowed.costs)
    blocks = -(-conv.outputs // block)
    down, across = -(-oh // rows), -(-ow // width)
    tiles = od * down * across
    pieces = _SECOND if cells == 1 else allowed.pieces
    whole = conv.inputs * cells * block <= pieces.whole
    each = -(-WORK // (conv.inputs * cells * rows * width))
    if not whole:  # a tile alone walks all weights of its channels, which come from far
        apart = tiles * conv.batch * conv.group * blocks // (_ITEMS * traits.compute_units)
        each = greatest(each, least(TOGETHER, greatest(apart, 1)))
    each = -(-tiles // -(-tiles // each))
    piece = conv.inputs if whole else max(1, pieces.piece // (cells * block))
    ints = (
        conv.inputs, conv.outputs, conv.group, blocks, *spatial, od, oh, ow, kd, kh, kw, sd, sh, dd, dh, dw, sw,
        cells * block, tiles, down, across, each, piece, int(conv.bias), *places,
    )  # fmt: skip
    # Neighbours share weights, which may be more than a cache keeps while others pass.
    grid = (-(-tiles // each), conv.batch, conv.group * blocks)
    bound = bind_conv(conv, padded.ref, weights(0), after, unbiased=weights(0))
    plain = _plain(w)
    tile = Tile(
        block, 1, 1, sw if sw <= 2 else 0, kw if plain else 0, plain and kh == 1,
        plain and _at_once(kw, sw, block, most, traits.registers), not whole, joins, borders, passes,
        conv.inputs <= _SHALLOW and cells > 1,
    )  # fmt: skip
    k = chosen(64 * rows + width, _kernel_of, bound.form, tile)
    launch = Launch(k, bound.refs, (*ints, *bound.ints), grid, (1, 1, 1))
    request = WeightsRequest(
        1,
        f"conv{block} group {conv.group}, zeros",
        packer(conv.group, block),
        conv.group * blocks * conv.inputs * cells * block + ZEROS,
    )
    name = f"packed {block}x{width}" if rows == 1 else f"packed {block}x{rows}x{width}"
    return Impl(name, (*padded.launches, launch), padded.scratch, (request,))


def _at_once(cells: int, stride: int, block: int, positions: int, registers: Registers) -> bool:
    """Whether the weights of a row of *cells* have registers beside the sums of so many *positions*, and an element one more."""
    return cells > 1 and stride <= 2 and (positions + cells + 1) * block <= registers.capacity


def _kernel_of(form: ConvForm, tile: Tile, number: int) -> KernelSource:
    return tile_kernel(form, tile._replace(rows=number // 64, width=number % 64))
