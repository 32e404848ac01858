"""What packed convolutions read where their windows reach past the input, or jump over parts of it."""

from __future__ import annotations

import numpy as np
import pytest

from .test_conv_epilogue import CPU, Case, convolved, filled

SIZES = [(7, 3), (1, 6), (17, 16)]


@pytest.mark.parametrize(
    ("window", "strides", "pads", "size"),
    [
        ((3, 3), (1, 1), (1, 1, 1, 1), (8, 8)),
        ((3, 3), (1, 1), (1, 1, 1, 1), (7, 3)),
        ((3, 3), (1, 1), (1, 1, 1, 1), (9, 1)),
        ((3, 3), (1, 1), (1, 1, 1, 1), (3, 50)),
        ((3, 3), (2, 2), (1, 1, 1, 1), (17, 16)),
        ((3, 3), (2, 2), (1, 1, 1, 1), (8, 9)),
        ((3, 3), (1, 2), (0, 1, 2, 0), (13, 10)),
        ((3, 3), (2, 1), (5, 4, 3, 6), (1, 6)),
        ((5, 5), (1, 1), (2, 2, 2, 2), (7, 3)),
        ((5, 5), (1, 1), (2, 2, 2, 2), (9, 24)),
        ((7, 7), (2, 2), (3, 3, 3, 3), (17, 16)),
        ((1, 3), (1, 1), (0, 1, 0, 1), (1, 6)),
        ((1, 1), (1, 1), (1, 0, 2, 3), (8, 8)),
        ((3, 3), (3, 3), (1, 1, 1, 1), (13, 10)),
        ((2, 9), (1, 1), (1, 4, 1, 4), (7, 12)),
    ],
    ids=str,
)
def test_borders_that_nobody_writes_out_are_zeros(
    window: tuple[int, int], strides: tuple[int, int], pads: tuple[int, int, int, int], size: tuple[int, int]
) -> None:
    """The same bytes as of an input with the borders in it, whichever tiles and rows touch them."""
    top, left, bottom, right = pads
    x, filters, bias = filled(2, 6, *size), filled(48, 3, *window), filled(48)
    inside = {"group": 2, "strides": strides}
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))

    kernel, got = convolved(
        Case("packed", CPU, x.shape, filters.shape, {**inside, "pads": pads}), [x, filters, bias], None
    )
    _, want = convolved(Case("packed", CPU, padded.shape, filters.shape, inside), [padded, filters, bias], None)

    assert kernel.startswith("packed")
    assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize(
    ("window", "dilations", "strides", "pads", "size"),
    [
        ((3, 3), (2, 2), (1, 1), (2, 2, 2, 2), (9, 24)),
        ((3, 3), (6, 4), (1, 1), (6, 4, 6, 4), (7, 3)),
        ((3, 3), (12, 12), (1, 1), (12, 12, 12, 12), (14, 16)),
        ((3, 3), (36, 36), (1, 1), (36, 36, 36, 36), (14, 16)),
        ((3, 3), (4, 2), (2, 3), (4, 2, 1, 5), (13, 10)),
        ((3, 3), (1, 2), (1, 4), (9, 9, 9, 9), (3, 2)),
        ((1, 3), (1, 8), (1, 1), (0, 16, 0, 0), (1, 50)),
        ((1, 9), (1, 1), (1, 2), (0, 4, 0, 4), (1, 33)),
        ((1, 2), (1, 50), (1, 1), (0, 25, 0, 25), (2, 6)),
        ((3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1, 1, 1, 1), (4, 5, 9)),
        ((3, 3, 2), (2, 1, 3), (1, 2, 2), (2, 1, 0, 1, 3, 4), (3, 6, 11)),
    ],
    ids=str,
)
def test_cells_that_no_position_has_an_element_for_are_passed_by(
    window: tuple[int, ...], dilations: tuple[int, ...], strides: tuple[int, ...], pads: tuple[int, ...],
    size: tuple[int, ...],
) -> None:  # fmt: skip
    """The same bytes as of an input with the borders in it: what is passed by would have added nothing."""
    x, filters, bias = filled(2, 6, *size), filled(48, 3, *window), filled(48)
    inside = {"group": 2, "strides": strides, "dilations": dilations}
    around = list(zip(pads[: len(size)], pads[len(size) :], strict=True))
    padded = np.pad(x, [(0, 0), (0, 0), *around])

    kernel, got = convolved(
        Case("packed", CPU, x.shape, filters.shape, {**inside, "pads": pads}), [x, filters, bias], None
    )
    _, want = convolved(Case("packed", CPU, padded.shape, filters.shape, inside), [padded, filters, bias], None)

    assert kernel.startswith("packed")
    assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("strides", [(2, 2), (1, 2), (2, 1), (3, 3)], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_windows_of_one_cell_see_what_their_strides_leave(size: tuple[int, int], strides: tuple[int, int]) -> None:
    """The same bytes as of an input that only has the elements that are seen."""
    x, filters, bias = filled(2, 5, *size), filled(72, 5, 1, 1), filled(72)
    seen = np.ascontiguousarray(x[:, :, :: strides[0], :: strides[1]])

    kernel, got = convolved(Case("packed", CPU, x.shape, filters.shape, {"strides": strides}), [x, filters, bias], None)
    _, want = convolved(Case("packed", CPU, seen.shape, filters.shape), [seen, filters, bias], None)

    assert kernel.startswith("packed")
    assert got.tobytes() == want.tobytes()
