"""Choices between sizes that ask nothing."""

from __future__ import annotations

import random

from asyncrt.devices.base import AVX512, Registers
from asyncrt.kernels.arithmetic import below, either, greatest, least, power
from asyncrt.kernels.conv import packed
from asyncrt.kernels.patterns.grid import cut_rows
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.runtime.cooperative import finished
from asyncrt.runtime.plan.traced_int import Recording


def test_they_choose_as_comparisons_do() -> None:
    """Also where both are equal, and below 0."""
    for a in range(-20, 40):
        for b in range(-20, 40):
            assert (a < b, min(a, b), max(a, b)) == (below(a, b), least(a, b), greatest(a, b))
            assert (a if a < b else b) == either(below(a, b), a, b)
        for most in (1, 2, 4, 16):
            assert max([p for p in (1, 2, 4, 8, 16) if p <= min(a, most)], default=1) == power(a, most)


def test_what_they_give_is_one_formula_for_all_sizes() -> None:
    """A recording of them has no question, and gives for other sizes what calculating with those gives."""
    traits = DeviceTraits(compute_units=3)

    def numbers(rows: int, inner: int) -> list[int]:
        cut = cut_rows(rows, inner, traits)
        width = packed.tile_width(inner, 16, 9, packed.blocks_of(AVX512))
        return [cut.chunk, cut.rows_per_item, *cut.grid, width, power(rows, 4)]

    recording = Recording()
    formulas = finished(recording.compiled(numbers(recording.size(40), recording.size(300))))

    assert not recording.asked_any
    for rows, inner in [(1, 1), (1, 7), (3, 8), (7, 4096), (1, 100_000), (900, 13), (65, 64)]:
        assert tuple(numbers(rows, inner)) == formulas(rows, inner)


def test_a_tile_is_as_wide_as_costs_least() -> None:
    """A row that one tile covers is never cut; of equal costs the widest is taken; few widths serve single cells."""
    chance = random.Random(1)
    for _ in range(2000):
        positions, channels = chance.randrange(1, 200), chance.choice((1, 3, 16, 65, 512))
        cells, registers = chance.choice((1, 3, 9, 25)), chance.choice((AVX512, Registers(8, 16), Registers(4, 32)))
        blocks = packed.blocks_of(registers)
        most = blocks.positions

        weights = channels, cells, blocks.least

        def cost(width: int, positions: int = positions, weights: tuple[int, int, int] = weights) -> float:
            channels, cells, least = weights
            each = max(width, 6.5) + 0.5 if cells == 1 else max(width, least)
            return -(-positions // width) * (each * channels * cells + 96)

        width = packed.tile_width(positions, channels, cells, blocks)

        widths = [min(4, most), most - 1, most] if cells == 1 else range(1, most + 1)
        assert min({min(w, positions) for w in widths}, key=lambda w: (cost(w), -w)) == width
        assert positions > most or width == positions


def test_a_cut_covers_every_element_once() -> None:
    """Whatever the sizes: whole rows, or pieces of rows that are multiples of some elements."""
    chance = random.Random(2)
    for _ in range(3000):
        rows, inner, align = chance.randrange(1, 3000), chance.randrange(0, 90_000), chance.choice((1, 3, 16))
        cut = cut_rows(rows, inner, DeviceTraits(compute_units=chance.choice((1, 2, 8, 64))), align=align)
        pieces, blocks = cut.grid

        assert (pieces - 1) * cut.chunk < max(inner, 1) <= max(pieces * cut.chunk, 1)
        assert (blocks - 1) * cut.rows_per_item < rows <= blocks * cut.rows_per_item
        assert pieces == 1 or cut.chunk % align == 0
