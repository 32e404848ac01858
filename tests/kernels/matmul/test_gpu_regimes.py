"""Which kernel carries out a product on a GPU, and that each gives the product, on whatever device there is."""

from __future__ import annotations

import math
from typing import Any

import attrs
import ml_dtypes
import numpy as np
import pytest

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import inp, out
from asyncrt.kernels.matmul import tensor_cores
from asyncrt.kernels.matmul.gpu import Regime, choose_regime
from asyncrt.kernels.matmul.product import Operand, matmul
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT16, FLOAT32, Array, DataType, Layout, dtype_of, layout_of
from asyncrt.memory.view import View
from asyncrt.runtime.plan.traced_int import Recording

from ...ops.run import run_impl
from ..emulated_mma import emulated_mma as emulated_mma  # a fixture

LARGE = DeviceTraits("gpu", 132, max_group=1024)


@pytest.mark.parametrize(
    ("m", "n", "k", "batches", "regime"),
    [
        (16, 384, 384, 1, Regime.SLICES),
        (256, 384, 384, 1, Regime.SLICES),
        (512, 384, 1536, 1, Regime.NARROW),
        (16, 384, 64, 1, Regime.NARROW),
        (1024, 1536, 384, 1, Regime.NARROW),
        (4096, 1536, 384, 1, Regime.WIDE),
        (64, 64, 128, 200, Regime.NARROW),
        (16, 50257, 384, 1, Regime.SLICES),
        (17, 50257, 384, 1, Regime.NARROW),
    ],
)
def test_tiles_are_as_large_as_fill_the_device(m: int, n: int, k: int, batches: int, regime: Regime) -> None:
    """Where even small ones do not, long sums are cut into parts."""
    assert choose_regime(m, n, k, batches, 4, LARGE) is regime


@pytest.mark.parametrize(
    ("traits", "element", "regime"),
    [
        (DeviceTraits("cpu", 2), 4, Regime.GENERIC),
        (DeviceTraits("gpu", 132, max_group=64), 4, Regime.GENERIC),
        (DeviceTraits("gpu", 132, max_group=256), 4, Regime.NARROW),
        (LARGE, 8, Regime.NARROW),
    ],
)
def test_a_device_gets_groups_that_it_can_hold(traits: DeviceTraits, element: int, regime: Regime) -> None:
    """Parts of sums of eight bytes would take more local memory than many have."""
    assert choose_regime(16, 384, 384, 1, element, traits) is regime


@pytest.mark.parametrize("regime", [Regime.SLICES, Regime.NARROW, Regime.WIDE])
@pytest.mark.parametrize(
    ("left", "right", "order"),
    [
        ((1, 1), (1, 1), "C"),
        ((5, 130), (130, 70), "C"),
        ((17, 200), (200, 33), "F"),
        ((130, 513), (513, 131), "C"),
        ((3, 40, 150), (3, 150, 129), "C"),
        ((2, 1, 140), (140, 40), "C"),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32])
def test_each_gives_the_product(
    regime: Regime, left: Any, right: Any, order: Any, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of sizes that fill no tile, of batches, and of operands that lie either way round."""
    monkeypatch.setattr("asyncrt.kernels.matmul.product.choose_regime", lambda *given: regime)
    monkeypatch.setattr("asyncrt.kernels.matmul.product.choose_stream", lambda *given: None)
    rng = np.random.default_rng(0)
    if dtype is np.int32 and regime is Regime.SLICES:
        pytest.skip("sums of integers take eight bytes")
    draw = (lambda s: rng.integers(-9, 9, s).astype(dtype)) if dtype is np.int32 else (
        lambda s: rng.standard_normal(s).astype(dtype)
    )  # fmt: skip
    a, b = draw(left), draw(right)

    got, which = product(a, b, order, DeviceTraits("gpu", 8, max_group=1024))

    assert which == regime.value
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    tolerance = {np.float32: 1e-5, np.float16: 2e-3, np.int32: 0}[dtype]
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=tolerance, atol=tolerance * np.abs(wanted).max())


def product(a: Array, b: Array, order: str, traits: DeviceTraits) -> tuple[Array, str]:
    """Return the product and the name of its kernel; order "F": the columns of *b* are adjacent in memory."""
    shape = (*a.shape[:-1], b.shape[-1])
    batch = shape[:-2]
    stored = np.ascontiguousarray(b.swapaxes(-1, -2)) if order == "F" else b

    def strides(x: Array, *, turned: bool = False) -> tuple[int, ...]:
        rows, columns = x.shape[-2:]
        size = rows * columns
        own = [0 if n == 1 else size * math.prod(x.shape[i + 1 : -2]) for i, n in enumerate(x.shape[:-2])]
        return (*[0] * (len(batch) - len(own)), *own, *((1, rows) if turned else (columns, 1)))

    left = Operand(inp(0), layout_of(a).dtype, View((*batch, *a.shape[-2:]), strides(a), 0))
    right = Operand(inp(1), layout_of(b).dtype, View((*batch, *b.shape[-2:]), strides(b, turned=order == "F"), 0))
    impl = matmul("product", left, right, out(0), batch, traits)
    made = layout_of(a).dtype
    call = Call("node", Attributes({}), (layout_of(a), layout_of(stored)), (None,) * 2, (Layout(made, shape),), (made,))
    (got,) = run_impl(impl, call, [a, stored])
    return got, impl.name


MMA = DeviceTraits("gpu", 132, max_group=1024, features=frozenset({"mma"}))


@pytest.mark.parametrize(
    ("dtype", "m", "n", "tile"),
    [
        (FLOAT16, 4096, 4096, tensor_cores.LARGE),
        (FLOAT16, 64, 16384, tensor_cores.FLAT),
        (FLOAT16, 1024, 384, tensor_cores.MIDDLE),
        (FLOAT16, 256, 384, tensor_cores.SMALL),
        (FLOAT16, 16, 384, tensor_cores.TINY),
        (FLOAT16, 16, 50257, tensor_cores.TINY),
        (FLOAT16, 17, 50257, tensor_cores.SMALL),
        (FLOAT32, 4096, 1536, tensor_cores.TALL),
        (FLOAT32, 1024, 1536, tensor_cores.SQUARE),
        (FLOAT32, 1024, 384, tensor_cores.SMALL),
        (FLOAT32, 64, 384, tensor_cores.TINY),
    ],
)
def test_tensor_cores_get_tiles_that_fill_the_device(
    dtype: DataType, m: int, n: int, tile: tensor_cores.MatrixTile
) -> None:
    """Where there are few, work-items share a sum."""
    assert tensor_cores.choose_tile(tensor_cores.choices_of(dtype), m, n, 1, MMA) is tile


@pytest.mark.parametrize(
    ("a", "b", "dtype", "traits", "taken"),
    [
        ((24, 1, 0), (40, 1, 8), np.float16, MMA, True),
        ((24, 1, 0), (1, 24, 0), np.float16, MMA, True),
        ((0, 24, 1, 0), (960, 40, 1, 0), np.float16, MMA, True),
        ((20, 1, 0), (40, 1, 0), np.float16, MMA, False),
        ((24, 1, 4), (40, 1, 0), np.float16, MMA, False),
        ((1, 24, 0), (40, 1, 0), np.float16, MMA, False),
        ((24, 1, 0), (40, 2, 0), np.float16, MMA, False),
        ((20, 1, 4), (40, 1, 0), np.float32, MMA, True),
        ((18, 1, 0), (40, 1, 0), np.float32, MMA, False),
        ((24, 1, 2), (40, 1, 0), np.float32, MMA, False),
        ((24, 1, 0), (40, 1, 0), np.float32, attrs.evolve(MMA, split_floats=False), False),
        ((24, 1, 0), (40, 1, 0), np.float64, MMA, False),
        ((24, 1, 0), (40, 1, 0), np.float16, LARGE, False),
    ],
)
def test_tensor_cores_get_rows_that_begin_where_a_copy_may(
    a: Any, b: Any, dtype: Any, traits: DeviceTraits, taken: bool
) -> None:
    """At multiples of 16 bytes; everything else goes to the kernels for any device."""
    type = dtype_of(dtype)
    assert type is not None

    assert tensor_cores.takes((type, type), a, b, traits) is taken


LARGE_TILE, FLAT_TILE = tensor_cores.LARGE, tensor_cores.FLAT
TALL_TILE, SQUARE_TILE = tensor_cores.TALL, tensor_cores.SQUARE
MIDDLE_TILE, SMALL_TILE, TINY_TILE = tensor_cores.MIDDLE, tensor_cores.SMALL, tensor_cores.TINY


@pytest.mark.usefixtures("emulated_mma")
@pytest.mark.parametrize(
    ("tile", "left", "right", "order", "dtype"),
    [
        (LARGE_TILE, (130, 72), (72, 136), "C", "float16"),
        (LARGE_TILE, (17, 200), (200, 33), "F", "float16"),
        (FLAT_TILE, (70, 72), (72, 136), "C", "float16"),
        (FLAT_TILE, (3, 17, 200), (200, 33), "F", "bfloat16"),
        (MIDDLE_TILE, (130, 136), (136, 72), "C", "float16"),
        (MIDDLE_TILE, (3, 40, 72), (72, 33), "F", "float16"),
        (SMALL_TILE, (8, 8), (8, 8), "C", "float16"),
        (TINY_TILE, (17, 200), (200, 24), "C", "float16"),
        (TINY_TILE, (3, 5, 264), (264, 33), "F", "bfloat16"),
        (SMALL_TILE, (3, 40, 72), (3, 72, 136), "C", "bfloat16"),
        (SMALL_TILE, (17, 200), (200, 33), "F", "bfloat16"),
        (TALL_TILE, (130, 72), (72, 132), "C", "float32"),
        (TALL_TILE, (3, 17, 204), (204, 33), "F", "float32"),
        (SQUARE_TILE, (130, 132), (132, 72), "C", "float32"),
        (SQUARE_TILE, (70, 68), (68, 33), "F", "float32"),
        (SMALL_TILE, (3, 40, 76), (3, 76, 136), "C", "float32"),
        (SMALL_TILE, (17, 4), (4, 33), "F", "float32"),
        (TINY_TILE, (3, 37, 264), (264, 33), "F", "float32"),
        (TINY_TILE, (37, 200), (200, 24), "C", "float32"),
    ],
)
def test_tensor_cores_give_the_product(
    tile: Any, left: Any, right: Any, order: Any, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of sizes that fill no tile, of batches, and of right-hand sides that lie either way round."""
    monkeypatch.setattr("asyncrt.kernels.matmul.product.choose_tile", lambda *given: tile)
    monkeypatch.setattr("asyncrt.kernels.matmul.product.choose_strip", lambda *given: None)
    monkeypatch.setattr("asyncrt.kernels.matmul.product.tensor_core_kernel", tensor_cores.tensor_core_kernel)
    rng = np.random.default_rng(0)
    monkeypatch.setattr("asyncrt.kernels.matmul.product.choose_stream", lambda *given: None)
    number = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    a, b = (rng.standard_normal(s).astype(number) for s in (left, right))

    got, which = product(a, b, order, MMA)

    assert which == f"tensor cores {tile.rows}x{tile.columns}"
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    tolerance = {"float16": 1e-3, "bfloat16": 1e-2, "float32": 1e-6}[dtype]
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=tolerance, atol=tolerance * np.abs(wanted).max())


@pytest.mark.usefixtures("emulated_mma")
@pytest.mark.parametrize("tile", [SQUARE_TILE, TALL_TILE])
def test_floats_that_have_no_two_parts_are_multiplied_as_they_are(tile: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Infinities stay infinite, NaN stays NaN, the largest floats become neither, and neighbours do not change."""
    monkeypatch.setattr("asyncrt.kernels.matmul.product.choose_tile", lambda *given: tile)
    monkeypatch.setattr("asyncrt.kernels.matmul.product.tensor_core_kernel", tensor_cores.tensor_core_kernel)
    a, b = np.ones((70, 72), np.float32), np.full((72, 40), 0.5, np.float32)
    plain, _ = product(a, b, "C", MMA)
    a[3, 5], a[7, 9], a[60] = np.inf, np.nan, 0
    a[60, 4], a[69, 8], b[30, 6] = np.finfo(np.float32).max, -np.inf, np.inf
    with np.errstate(invalid="ignore"):
        wanted = a @ b

    got, which = product(a, b, "C", MMA)

    assert which == f"tensor cores {tile.rows}x{tile.columns}"
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(np.delete(got, [3, 7, 60, 69], 0)[:, :6], np.delete(plain, [3, 7, 60, 69], 0)[:, :6])


def test_the_choice_of_a_tile_is_a_comparison_that_holds_for_many_sizes() -> None:
    """So that a recipe of one size tells the plans of others."""
    recording = Recording()
    rows = recording.size(1000)

    choose_regime(rows, 384, 384, 1, 4, LARGE)
    tensor_cores.choose_tile(tensor_cores.HALF_TILES, rows, 384, 1, MMA)

    assert recording.asked_any
    assert not recording.fixed
