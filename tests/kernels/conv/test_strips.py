"""Convolutions of few channels whose vectors hold positions: against those whose vectors hold channels."""

from __future__ import annotations

from typing import Any

import pytest

from asyncrt.kernels.conv import convolution, strips
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array

from .test_conv_epilogue import CPU, filled
from .test_pointwise import DEVICES, convolved_by

LAYERS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "every other column": ((2, 3, 65, 97), (24, 3, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
    "an odd border on the left": ((1, 3, 9, 80), (11, 3, 5, 7), {"strides": (1, 2), "pads": (2, 3, 1, 4)}),
    "an even border, rows left out": ((1, 4, 19, 77), (9, 4, 2, 6), {"strides": (3, 2), "pads": (0, 2, 3, 3)}),
    "nothing left over": ((1, 3, 33, 65), (16, 3, 3, 3), {"strides": (2, 2)}),
    "rows end in half a tile": ((1, 1, 12, 48), (17, 1, 3, 3), {"pads": (1, 1, 1, 1)}),
    "the last column is not seen": ((1, 2, 8, 68), (8, 2, 1, 3), {"strides": (1, 2)}),
    "a border wider than the window": ((1, 1, 3, 30), (10, 1, 3, 3), {"pads": (4, 5, 6, 7)}),
    "a wide border": ((1, 1, 2, 33), (8, 1, 1, 3), {"pads": (0, 51, 0, 47)}),
    "a wide border, every other column": ((1, 2, 3, 60), (8, 2, 3, 5), {"strides": (1, 2), "pads": (1, 77, 1, 70)}),
    "a sound": ((3, 1, 131), (21, 1, 5), {"strides": (2,), "pads": (2, 2)}),
}


def made(traits: DeviceTraits, layer: str) -> tuple[str, bytes]:
    x, filters, attributes = LAYERS[layer]
    return convolved_by(traits, given(x, filters), **attributes)


def given(x: tuple[int, ...], filters: tuple[int, ...]) -> list[Array]:
    return [filled(*x), filled(*filters), filled(filters[0])]


@pytest.mark.parametrize("layer", LAYERS)
def test_vectors_of_positions_give_the_bytes_of_vectors_of_channels(
    layer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sum is one chain over channels and cells, whatever the registers are and however many cores."""
    monkeypatch.setattr(convolution, "suits_strips", lambda _: False)
    other, want = made(CPU, layer)
    monkeypatch.undo()

    got = [made(traits, layer) for traits in DEVICES]

    assert other.startswith("packed")
    assert [kernel for kernel, _ in got] == ["strips 8x32", "strips 6x16", "strips 6x16", "strips 2x16"]
    assert all(result == want for _, result in got)


def test_few_rows_at_a_time_give_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a work-item writes out decides nothing; where one row has no room, vectors hold channels."""
    layer = "every other column"
    one_row = 3 * 3 * 2 * 64  # channels, rows of a window, runs of its columns
    want = made(CPU, layer)

    monkeypatch.setattr(strips, "_STRIP", one_row)
    by_rows = made(CPU, layer)
    monkeypatch.setattr(strips, "_STRIP", one_row - 1)
    other, bytes_ = made(CPU, layer)

    assert by_rows == want
    assert (other.split()[0], bytes_) == ("packed", want[1])


@pytest.mark.parametrize(
    ("x", "filters", "attributes"),
    [
        ((1, 5, 40, 40), (16, 5, 3, 3), {}),
        ((1, 3, 40, 40), (16, 3, 3, 3), {"dilations": (1, 2)}),
        ((1, 3, 40, 200), (16, 3, 3, 3), {"strides": (1, 3)}),
        ((1, 3, 40, 33), (16, 3, 3, 3), {}),
        ((1, 3, 40, 64), (16, 3, 3, 11), {}),
        ((1, 6, 40, 40), (16, 3, 3, 3), {"group": 2}),
        ((1, 3, 4, 9, 40), (16, 3, 2, 3, 3), {}),
    ],
    ids=["channels", "dilation", "stride", "short rows", "wide windows", "groups", "three axes"],
)
def test_other_convolutions_go_other_ways(
    x: tuple[int, ...], filters: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    """More channels, cells or steps than are worth to be written out, and rows shorter than a tile."""
    kernel, _ = convolved_by(CPU, given(x, filters), **attributes)

    assert not kernel.startswith("strips")
