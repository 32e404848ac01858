"""Depthwise convolutions of short rows, sixteen channels in a vector: against vectors of positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncrt.devices.base import Registers
from asyncrt.kernels.traits import DeviceTraits

from .test_conv_epilogue import CPU, Case, convolved, filled

AVX2 = DeviceTraits("cpu", 2, registers=Registers(8, 16))
SSE = DeviceTraits("cpu", 3, registers=Registers(4, 16))

SIZES = {
    "a whole number of channels": ((2, 32, 7, 7), 7),
    "channels left over": ((3, 37, 14, 14), 7),
    "two tiles, the last moved back": ((1, 16, 9, 13), 7),
    "fifteen positions": ((1, 20, 5, 15), 8),
    "narrow": ((2, 17, 33, 4), 4),
}
WINDOWS = [
    ((3, 3), {"pads": (1, 1, 1, 1)}),
    ((5, 5), {"pads": (2, 2, 2, 2)}),
    ((2, 7), {"pads": (1, 5, 0, 1)}),
    ((5, 3), {"pads": (4, 2, 4, 2), "dilations": (2, 2)}),
]


def both(
    x: tuple[int, ...], window: tuple[int, int], attributes: dict[str, Any], traits: DeviceTraits = CPU
) -> tuple[str, bytes, bytes]:
    """Return the kernel of a constant filter, its result, and that of a filter that is no constant."""
    inputs = [filled(*x), filled(x[1], 1, *window), filled(x[1])]
    case = Case("", traits, x, inputs[1].shape, {"group": x[1], **attributes})
    kernel, got = convolved(case, inputs, None)
    other, want = convolved(case._replace(constant=False), inputs, None)
    assert not other.startswith("depthwise channels")
    return kernel, got.tobytes(), want.tobytes()


@pytest.mark.parametrize(("window", "attributes"), WINDOWS, ids=str)
@pytest.mark.parametrize(("x", "width"), SIZES.values(), ids=SIZES)
def test_vectors_of_channels_give_the_bytes_of_vectors_of_positions(
    x: tuple[int, ...], width: int, window: tuple[int, int], attributes: dict[str, Any]
) -> None:
    """All cells that the input has, in order, whatever the registers are and however many cores."""
    kernel, got, want = both(x, window, attributes)

    others = [both(x, window, attributes, traits) for traits in (AVX2, SSE)]

    if attributes["pads"] == (1, 1, 1, 1):
        assert kernel == f"depthwise channels {width}"
    assert kernel.startswith("depthwise channels")
    assert got == want
    assert all(name.startswith("depthwise channels") and other == got for name, other, _ in others)


@pytest.mark.parametrize("strides", [(2, 2), (1, 2), (3, 1)])
def test_every_second_position_is_turned_like_any_other(strides: tuple[int, int]) -> None:
    """Strides change what is read of what was turned, and nothing else."""
    kernel, got, want = both((2, 40, 21, 14), (5, 5), {"pads": (2, 1, 2, 2), "strides": strides})

    assert kernel.startswith("depthwise channels")
    assert got == want


@pytest.mark.parametrize("odd", [np.inf, np.nan])
def test_what_is_not_finite_stays_in_its_channel(odd: float) -> None:
    """Channels of one vector do not meet."""
    x = filled(1, 16, 7, 7)
    x[0, 5, 3, 3] = odd
    filters = filled(16, 1, 3, 3)

    kernel, got = convolved(Case("", CPU, x.shape, filters.shape, {"group": 16, "pads": (1,) * 4}), [x, filters], None)

    assert kernel == "depthwise channels 7"
    assert set(np.argwhere(~np.isfinite(got))[:, 1]) == {5}


@pytest.mark.parametrize(
    ("x", "attributes"),
    [
        ((1, 15, 7, 7), {}),
        ((1, 32, 16, 16), {}),
        ((1, 32, 3, 5), {}),
        ((1, 32, 90, 14), {}),
        ((1, 32, 14, 14), {"dilations": (3, 3)}),
    ],
    ids=str,
)
def test_what_fills_vectors_of_positions_or_no_cache_stays_with_them(
    x: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    """Few channels, long rows, hardly a vector, more than a cache holds, and cells far from one another."""
    kernel, got, want = both(x, (3, 3), {"pads": (1, 1, 1, 1), **attributes})

    assert not kernel.startswith("depthwise channels")
    assert got == want
