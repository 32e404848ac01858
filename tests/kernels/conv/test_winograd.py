"""Convolutions of 3 × 3 cells by transformed tiles, against the plain sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncrt.devices.base import Registers
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array

from .test_conv_epilogue import CPU, Case, convolved, filled

AVX2 = DeviceTraits("cpu", 2, registers=Registers(8, 16))
PLAIN = DeviceTraits("cpu", 2, winograd=False)

CASES = {
    "one vector of tiles": ((1, 16, 16, 16), 16, (1, 1, 1, 1), 1),
    "odd channels, two images": ((2, 17, 13, 29), 20, (1, 1, 1, 1), 1),
    "several rows of tiles, parts of them": ((1, 32, 80, 80), 40, (1, 1, 1, 1), 1),
    "rows longer than vectors": ((1, 24, 9, 300), 17, (0, 0, 0, 0), 1),
    "groups, and borders that differ": ((1, 32, 40, 17), 32, (2, 1, 0, 3), 2),
    "borders of zeros alone": ((1, 16, 12, 12), 16, (5, 6, 7, 4), 1),
    "many channels": ((1, 128, 28, 28), 72, (1, 1, 1, 1), 1),
    "a tall picture": ((1, 16, 260, 9), 16, (1, 1, 1, 1), 1),
    "six tiles of many channels": ((2, 65, 7, 9), 33, (1, 1, 1, 1), 1),
    "many channels, a tall picture": ((1, 40, 130, 7), 40, (1, 1, 1, 1), 1),
    "many channels, rows longer than parts": ((1, 130, 9, 300), 33, (0, 0, 0, 0), 1),
    "many channels in groups, borders that differ": ((2, 96, 20, 17), 80, (2, 1, 0, 3), 2),
    "many channels, borders of zeros alone": ((1, 48, 4, 4), 32, (9, 6, 7, 9), 1),
}


def case(traits: DeviceTraits, shape: tuple[int, ...], outputs: int, pads: tuple[int, ...], group: int) -> Case:
    return Case("", traits, shape, (outputs, shape[1] // group, 3, 3), {"pads": pads, "group": group})


def operands(shape: tuple[int, ...], outputs: int, group: int) -> list[Array]:
    filters = filled(outputs, shape[1] // group, 3, 3) / np.float32(np.sqrt(9 * shape[1] / group))
    return [filled(*shape), filters, filled(outputs)]


def plain(x: Any, filters: Any, bias: Any, pads: tuple[int, ...], group: int) -> Any:
    top, left, bottom, right = pads
    seen = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    windows = np.lib.stride_tricks.sliding_window_view(seen, (3, 3), axis=(2, 3))
    parts = zip(np.split(windows, group, 1), np.split(filters.astype(np.float64), group), strict=True)
    sums = [np.einsum("nchwij,mcij->nmhw", w, f, optimize=True) for w, f in parts]
    return np.concatenate(sums, 1) + bias.reshape(1, -1, 1, 1)


@pytest.mark.parametrize(("shape", "outputs", "pads", "group"), CASES.values(), ids=CASES)
def test_transformed_tiles_give_what_plain_sums_give(
    shape: tuple[int, ...], outputs: int, pads: tuple[int, ...], group: int
) -> None:
    """Within 2e-5 of what results are made of, and the same bytes whatever the registers and however many cores."""
    inputs = operands(shape, outputs, group)
    want = plain(*inputs, pads, group)

    kernel, got = convolved(case(CPU, shape, outputs, pads, group), inputs, None)
    others = [
        convolved(case(traits, shape, outputs, pads, group), inputs, None)
        for traits in (AVX2, DeviceTraits("cpu", 1), DeviceTraits("cpu", 7), DeviceTraits("cpu", 64))
    ]

    assert kernel == "winograd 8x32"
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-5 * np.abs(want).max())
    assert all(name.startswith("winograd") and other.tobytes() == got.tobytes() for name, other in others)


def test_an_image_alone_and_beside_others_has_the_same_bytes() -> None:
    """What is decided by sizes is decided by those of one image."""
    x, filters, bias = operands((5, 20, 30, 22), 24, 1)

    _, together = convolved(case(CPU, x.shape, 24, (1, 1, 1, 1), 1), [x, filters, bias], None)
    one = case(CPU, x[:1].shape, 24, (1, 1, 1, 1), 1)
    alone = [convolved(one, [x[i : i + 1], filters, bias], None) for i in range(5)]

    assert {kernel for kernel, _ in alone} == {"winograd 8x32"}
    assert together.tobytes() == np.concatenate([result for _, result in alone]).tobytes()


@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan, 3e38])
@pytest.mark.parametrize("channels", [16, 36])
def test_what_is_not_finite_stays_where_it_is_seen(odd: float, channels: int) -> None:
    """An infinity, a NaN and an overflow come to those results that see them, and to no neighbour in their tiles."""
    x, filters, bias = operands((2, channels, 20, 24), channels, 1)
    x[0, 3, 7, 9] = x[1, 0, 0, 0] = x[1, 15, 19, 23] = odd
    args = (x.shape, channels, (1, 1, 1, 1), 1)

    kernel, got = convolved(case(CPU, *args), [x, filters, bias], None)
    other, want = convolved(case(PLAIN, *args), [x, filters, bias], None)

    assert kernel.startswith("winograd")
    assert other.startswith("packed")
    assert np.array_equal(np.isnan(got), np.isnan(want))
    finite = np.abs(want) < 1e30
    assert finite.sum() > 0.9 * finite.size
    assert np.array_equal(got[np.isinf(want)], want[np.isinf(want)])
    np.testing.assert_allclose(got[finite], want[finite], rtol=0, atol=1e-4)


def test_a_tile_that_is_not_finite_changes_no_other_on_any_number_of_cores() -> None:
    """How tiles are shared out does not show in what lies beside an infinity."""
    x, filters, bias = operands((1, 32, 40, 40), 32, 1)
    x[0, 3, 21, 9] = np.inf
    args = (x.shape, 32, (1, 1, 1, 1), 1)

    results = [
        convolved(case(DeviceTraits("cpu", cores), *args), [x, filters, bias], None)[1] for cores in (1, 2, 5, 16)
    ]

    assert len({result.tobytes() for result in results}) == 1


@pytest.mark.parametrize(
    ("shape", "outputs", "attributes"),
    [
        ((1, 15, 40, 40), 64, {}),
        ((1, 64, 40, 40), 15, {}),
        ((1, 320, 40, 40), 320, {}),
        ((1, 64, 6, 7), 64, {"pads": (1, 1, 1, 1)}),
        ((1, 64, 40, 40), 64, {"strides": (2, 2)}),
        ((1, 64, 40, 40), 64, {"dilations": (2, 2)}),
    ],
    ids=str,
)
def test_what_would_gain_nothing_is_multiplied_plainly(
    shape: tuple[int, ...], outputs: int, attributes: dict[str, Any]
) -> None:
    """Few channels, large filters, small pictures, and windows that are not of neighbours."""
    inputs = operands(shape, outputs, 1)

    kernel, _ = convolved(Case("", CPU, shape, inputs[1].shape, attributes), inputs, None)

    assert not kernel.startswith("winograd")
