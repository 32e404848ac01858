"""Convolutions that see few channels: what they read at the borders, and how planes are cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncrt.devices.base import Registers
from asyncrt.kernels.conv import depthwise as conv_depthwise
from asyncrt.kernels.traits import DeviceTraits

from .test_conv_epilogue import CPU, Case, convolved, filled

AVX2 = DeviceTraits("cpu", 2, registers=Registers(8, 16))
SSE = DeviceTraits("cpu", 3, registers=Registers(4, 16))

WINDOWS = [
    ((3, 3), {"pads": (1, 1, 1, 1)}),
    ((5, 5), {"pads": (2, 2, 2, 2)}),
    ((3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
    ((5, 5), {"pads": (2, 2, 2, 2), "strides": (2, 2)}),
    ((3, 3), {"pads": (0, 0, 1, 1), "strides": (2, 2)}),
    ((3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 1)}),
    ((3, 3), {"pads": (1, 0, 0, 1), "strides": (1, 2)}),
    ((3, 3), {"pads": (2, 2, 2, 2), "dilations": (2, 2)}),
    ((3, 3), {"pads": (6, 5, 4, 3), "dilations": (3, 3), "strides": (1, 2)}),
    ((1, 7), {"pads": (0, 3, 0, 3), "strides": (1, 2)}),
    ((4, 1), {"pads": (9, 0, 9, 0)}),
    ((9, 9), {"pads": (4, 12, 4, 12), "strides": (3, 2)}),
]
SIZES = [(7, 7), (2, 5), (10, 10), (14, 28), (3, 50), (20, 2), (33, 17)]


def padded(x: Any, pads: tuple[int, ...]) -> Any:
    top, left, bottom, right = pads
    return np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))


def without(attributes: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in attributes.items() if k != "pads"}


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(("window", "attributes"), WINDOWS, ids=str)
def test_what_is_outside_counts_as_zero(
    window: tuple[int, int], attributes: dict[str, Any], size: tuple[int, int]
) -> None:
    """The same bytes as of an input with the borders in it, whatever the registers are: all cells, in order."""
    x, filters, bias = filled(2, 3, *size), filled(6, 1, *window), filled(6)
    whole = padded(x, attributes["pads"])
    given = {"group": 3, **attributes}
    steps = attributes.get("strides", (1, 1))
    apart = attributes.get("dilations", (1, 1))
    outs = [(n - (k - 1) * d - 1) // s + 1 for n, k, d, s in zip(whole.shape[2:], window, apart, steps, strict=True)]
    want = np.broadcast_to(bias.reshape(1, 6, 1, 1), (2, 6, *outs)).astype(np.float64)
    for i, j in np.ndindex(*window):
        rows, columns = (
            slice(c * d, c * d + (o - 1) * s + 1, s) for c, d, o, s in zip((i, j), apart, outs, steps, strict=True)
        )
        seen = np.repeat(whole[:, :, rows, columns], 2, axis=1).astype(np.float64)
        want = (want + seen * filters[:, 0, i, j].reshape(1, 6, 1, 1)).astype(np.float32).astype(np.float64)

    results = [
        convolved(Case("", traits, x.shape, filters.shape, given), [x, filters, bias], None)
        for traits in (CPU, AVX2, SSE)
    ]
    _, inside = convolved(
        Case("", CPU, whole.shape, filters.shape, {"group": 3, **without(attributes)}), [whole, filters, bias], None
    )

    for kernel, got in results:
        assert kernel.startswith("depthwise")
        assert inside.tobytes() == got.tobytes()
    np.testing.assert_allclose(inside, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("attributes", [{}, {"strides": (2, 2)}, {"dilations": (1, 3)}], ids=str)
def test_however_planes_are_cut_the_bytes_are_the_same(
    attributes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines for all of a plane, for some rows of it, and for some columns of some rows."""
    x, filters, bias = filled(1, 3, 41, 140), filled(3, 1, 3, 3), filled(3)
    case = Case("", CPU, x.shape, filters.shape, {"group": 3, "pads": (1, 1, 1, 1), **attributes})

    results = []
    for lines in (16384, 6144, 3000, 2000):
        monkeypatch.setattr(conv_depthwise, "_LINES", lines)
        results.append(convolved(case, [x, filters, bias], None))

    assert {kernel for kernel, _ in results} == {"depthwise 4x16"}
    assert len({got.tobytes() for _, got in results}) == 1


def test_windows_that_no_lines_hold_are_walked_in_planes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes, by the kernel that copies the input with its borders."""
    x, filters, bias = filled(1, 3, 20, 60), filled(3, 1, 3, 3), filled(3)
    case = Case("", CPU, x.shape, filters.shape, {"group": 3, "pads": (1, 1, 1, 1)})
    before, want = convolved(case, [x, filters, bias], None)

    monkeypatch.setattr(conv_depthwise, "_LINES", 100)
    kernel, got = convolved(case, [x, filters, bias], None)

    assert before.startswith("depthwise")
    assert kernel.startswith("planes")
    assert want.tobytes() == got.tobytes()
