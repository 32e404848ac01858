"""Products of 8-bit integers on CPU devices: tiles follow the registers, and sums do not depend on them."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from asyncrt.devices.base import AVX512, Registers
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.tiles import tile_of
from asyncrt.kernels.impl import inp
from asyncrt.kernels.int8.product import Product, integer_product
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import INT8, INT32, UINT8, Layout, layout_of

from ...ops.run import run_impl

CPU = DeviceTraits("cpu", 2)
#: Of AVX-512, AVX2, NEON and SSE.
REGISTERS = (AVX512, Registers(8, 16), Registers(4, 32), Registers(4, 16))


@pytest.mark.parametrize("registers", REGISTERS, ids=lambda r: f"{r.number} of {r.floats}")
def test_tiles_are_as_high_as_those_of_floats(registers: Registers) -> None:
    """A 32-bit sum takes as much of a register as a float does."""
    product = Product("product", UINT8, INT8, 128, 384, 384, INT32, 1, (None, None))

    impl = integer_product(product, attrs.evolve(CPU, registers=registers), (128, 384), None)

    assert impl.name == f"bytes {tile_of(registers).rows}x32, packed"


@pytest.mark.parametrize("rows", [1, 2, 3, 6, 7, 13, 64])
def test_sums_do_not_depend_on_registers(rows: int) -> None:
    """Tiles for AVX-512, AVX2, NEON and SSE; every sum is exact."""
    random = np.random.default_rng(rows)
    x = random.integers(-128, 128, (rows, 301)).astype(np.int8)
    w = random.integers(0, 256, (301, 77)).astype(np.uint8)
    zx, zw = np.array(-5, np.int8), random.integers(0, 256, 77).astype(np.uint8)
    product = Product("product", INT8, UINT8, rows, 77, 301, INT32, 1, (inp(2), inp(3)), per_column=True)
    inputs = (x, w, zx, zw)
    call = Call(
        "product", Attributes(), tuple(map(layout_of, inputs)), (None,) * 4, (Layout(INT32, (rows, 77)),), (INT32,)
    )

    seen = [
        run_impl(integer_product(product, attrs.evolve(CPU, registers=r), (rows, 77), None), call, inputs)[0]
        for r in REGISTERS
    ]

    expected = (x.astype(np.int64) + 5) @ (w.astype(np.int64) - zw)
    for ours in seen:
        np.testing.assert_array_equal(expected, ours)
