"""Convolutions of 8-bit integers on CPU devices: every sum is exact, whatever the shapes and the registers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import pytest

from asyncrt.devices.base import AVX512, Registers
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.ops.nn.conv_integer import OPERATORS
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import INT32, Array, Layout, layout_of

from ...ops.run import run_impl

CPU = DeviceTraits("cpu", 2, packed_weights=True)
#: Of AVX-512, AVX2, NEON and SSE.
REGISTERS = (AVX512, Registers(8, 16), Registers(4, 32), Registers(4, 16))
CONV = next(operator for operator in OPERATORS if operator.name == "ConvInteger")

#: Batch, groups, channels of each, filters of each, sides, window, strides, dilations, pads.
SHAPES: Sequence[tuple[Any, ...]] = (
    (1, 1, 3, 16, (20, 17), (3, 3), (2, 2), (1, 1), (1, 1, 1, 1)),
    (2, 1, 16, 40, (14, 14), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    (1, 1, 64, 70, (7, 7), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    (1, 1, 37, 9, (5, 2), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    (1, 1, 130, 33, (9, 11), (1, 1), (1, 1), (1, 1), (0, 0, 0, 0)),
    (2, 1, 20, 24, (15, 33), (1, 1), (2, 2), (1, 1), (0, 0, 0, 0)),
    (1, 1, 6, 8, (19, 50), (1, 1), (3, 3), (1, 1), (0, 0, 0, 0)),
    (1, 1, 1, 64, (30, 25), (7, 7), (2, 2), (1, 1), (3, 3, 3, 3)),
    (1, 1, 2, 12, (40,), (9,), (1,), (2,), (8, 8)),
    (1, 4, 4, 4, (10, 12), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    (1, 3, 5, 1, (6, 40), (1, 5), (1, 1), (1, 1), (0, 2, 0, 2)),
    (1, 2, 6, 3, (4, 5, 6), (2, 3, 3), (1, 2, 1), (1, 1, 2), (1, 0, 2, 0, 1, 2)),
    (1, 1, 300, 8, (3, 3), (3, 3), (1, 1), (1, 1), (0, 0, 0, 0)),
    (1, 1, 9, 10, (8, 64), (2, 2), (1, 4), (1, 1), (0, 0, 0, 0)),
    (1, 7, 1, 1, (14, 14), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    (2, 5, 1, 1, (33, 29), (5, 5), (2, 2), (1, 1), (2, 2, 2, 2)),
    (1, 3, 1, 2, (9, 70), (3, 3), (1, 1), (2, 2), (2, 2, 2, 2)),
    (1, 2, 1, 1, (300,), (4,), (3,), (1,), (0, 1)),
    (1, 2, 1, 1, (40, 90), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
)


@pytest.mark.parametrize("registers", REGISTERS, ids=lambda r: f"{r.number} of {r.floats}")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("types", ["u8 i8", "i8 u8"])
@pytest.mark.parametrize("neutral", [True, False], ids=["filters of no zero point", "filters with zero points"])
def test_sums_are_exact(shape: tuple[Any, ...], registers: Registers, types: str, neutral: bool) -> None:
    """Rows of any length, strides, dilations, borders with zero points, groups, few and many channels."""
    batch, group, inputs, outputs, sides, window, strides, dilations, pads = shape
    random = np.random.default_rng(0)
    x_type, w_type = ((np.uint8, np.int8) if types == "u8 i8" else (np.int8, np.uint8))

    def some(dtype: type, *dims: int) -> Array:
        info = np.iinfo(dtype)
        return random.integers(info.min, info.max + 1, dims).astype(dtype)

    middle = 0 if w_type is np.int8 else 128
    zeros = some(x_type).reshape(()), np.full((), middle, w_type) if neutral else some(w_type, group * outputs)
    inputs_ = (some(x_type, batch, group * inputs, *sides), some(w_type, group * outputs, inputs, *window), *zeros)
    attributes = Attributes({"group": group, "strides": strides, "dilations": dilations, "pads": pads})
    (expected,) = CONV.reference(attributes, inputs_)
    call = Call(
        "conv", attributes, tuple(map(layout_of, inputs_)), (None, None, None, inputs_[3]),
        (Layout(INT32, expected.shape),), (INT32,), constants=(False, True, False, True),
    )  # fmt: skip

    (ours,) = run_impl(CONV.implement(call, attrs.evolve(CPU, registers=registers)), call, inputs_)

    np.testing.assert_array_equal(expected, ours)
