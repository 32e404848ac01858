"""Products of nearly as many rows share their kernel, and touch nothing beyond the rows that there are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncrt.kernels.codegen.alignment import fake_alignment
from asyncrt.kernels.impl import Impl, inp, out
from asyncrt.kernels.matmul.product import Operand, matmul
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32, Array
from asyncrt.memory.view import View

from ...ops.run import best_device, workbench

K, N = 40, 70
B = np.random.default_rng(1).standard_normal((K, N)).astype(np.float32)


def product(rows: int, traits: DeviceTraits) -> Impl:
    a = Operand(inp(0), FLOAT32, View.dense((rows, K)))
    return matmul("product", a, Operand(inp(1), FLOAT32, View.dense((K, N))), out(0), (), traits, constant=1)


@pytest.mark.parametrize(
    ("rows", "expected"), [(1, 1), (2, 2), (3, 4), (5, 8), (7, 8), (8, 8), (9, 16), (33, 40), (40, 40), (41, 48)]
)
def test_rows_are_rounded_to_whole_tiles_or_a_power_of_two(rows: int, expected: int) -> None:
    """Few choices for small products, where a tile too large costs most."""
    assert expected == fake_alignment(rows, 8)


def test_nearly_as_many_rows_share_kernel_and_grid() -> None:
    """33 to 40 rows are one choice; how many there are is an argument."""
    (first, *others) = (product(rows, DeviceTraits()) for rows in range(33, 41))

    for rows, other in enumerate(others, 34):
        assert (first.name, first.launches[0].kernel) == (other.name, other.launches[0].kernel)
        assert first.launches[0].grid == other.launches[0].grid
        assert rows in other.launches[0].ints
    assert product(41, DeviceTraits()).launches[0].grid != first.launches[0].grid


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "as it is"])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 7, 8, 9, 31, 33, 40, 41])
def test_what_lies_beyond_the_rows_is_neither_read_nor_written(rows: int, packed: bool) -> None:
    """NaN behind the input does not come in, and the output's neighbours stay."""
    device = best_device()
    stream = device.open_stream()
    kind = "cpu" if device.info.is_cpu else "gpu"
    impl = product(rows, DeviceTraits(kind, max_group=device.info.max_group, packed_weights=packed))
    (launch,) = impl.launches
    given = np.full((fake_alignment(rows, 64) + 64, K), np.nan, np.float32)
    given[:rows] = np.random.default_rng(rows).standard_normal((rows, K))
    b = impl.weights[0].pack(B) if impl.weights else B
    kept = np.full((len(given) + 1, N), 7.0, np.float32)  # one row before the output

    def upload(array: Array) -> Any:
        memory = device.allocate(array.nbytes)
        stream.write(memory, 0, array)
        return memory

    a_memory, b_memory, y_memory = upload(given), upload(b), upload(kept)
    kernels = workbench().kernels([launch.kernel])
    record = device.pack([0, 0, kept.strides[0]], launch.ints)
    stream.launch(
        kernels[launch.kernel], [a_memory, b_memory, y_memory], record, launch.grid, launch.group, launch.local
    )
    result = np.empty_like(kept)
    stream.read(y_memory, 0, result)
    stream.close()
    for memory in (a_memory, b_memory, y_memory):
        device.release(memory)

    np.testing.assert_allclose(result[1 : rows + 1], given[:rows] @ B, rtol=1e-4, atol=1e-4)
    assert (result[0] == 7).all()
    assert (result[rows + 1 :] == 7).all()
