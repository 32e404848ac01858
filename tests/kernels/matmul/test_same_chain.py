"""Matrix products on CPU devices: each element is the same chain of operations, however the operands lie."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from asyncrt.devices.base import AVX512, Registers
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.tiles import RegisterTile, tile_of
from asyncrt.kernels.impl import inp, out
from asyncrt.kernels.matmul.cpu import rows_per_item
from asyncrt.kernels.matmul.product import Operand, matmul
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32, Array, Layout, layout_of
from asyncrt.memory.view import View

from ...ops.run import run_impl

CPU = DeviceTraits("cpu", 2)
#: Of AVX-512, AVX2, NEON and SSE.
REGISTERS = (AVX512, Registers(8, 16), Registers(4, 32), Registers(4, 16))


def spread(x: Array, order: tuple[int, ...], gap: int) -> tuple[Array, View]:
    """Return an array in which *x* lies with its axes in *order* and *gap* elements after each row, and its view."""
    turned = x.transpose(order)
    memory = np.full((*turned.shape[:-1], turned.shape[-1] + gap), np.nan, np.float32)
    memory[..., : turned.shape[-1]] = turned
    strides = [s // 4 for s in memory.strides]
    return memory, View(x.shape, tuple(strides[order.index(axis)] for axis in range(x.ndim)))


def multiplied(
    a: Array,
    b: Array,
    views: tuple[View, View],
    batch: tuple[int, ...],
    constant: bool,
    traits: DeviceTraits = CPU,
) -> Array:
    left, right = views
    impl = matmul(
        "product", Operand(inp(0), FLOAT32, left), Operand(inp(1), FLOAT32, right), out(0), batch, traits,
        constant=1 if constant else None,
    )  # fmt: skip
    shape = (*batch, left.shape[-2], right.shape[-1])
    layouts = (layout_of(a), layout_of(b))
    call = Call("product", Attributes(), layouts, (None, None), (Layout(FLOAT32, shape),), (FLOAT32,))
    return run_impl(impl, call, (a, b))[0]


@pytest.mark.parametrize(
    ("batch", "m", "k", "n"),
    [((), 1, 1, 1), ((), 9, 70, 80), ((2, 3), 5, 33, 31), ((3,), 17, 130, 33), ((2,), 1, 64, 100), ((), 65, 7, 32)],
    ids=str,
)
def test_bytes_do_not_depend_on_strides(batch: tuple[int, ...], m: int, k: int, n: int) -> None:
    """Dense, turned, with gaps, packed or not: the same values give the same bytes."""
    random = np.random.default_rng(m)
    x, w = random.standard_normal((*batch, m, k), np.float32), random.standard_normal((k, n), np.float32)
    rows, columns = len(batch), len(batch) + 1
    plain, turned = tuple(range(columns + 1)), (*range(rows), columns, rows)
    rotated = (rows, *range(rows), columns)
    whole = np.ascontiguousarray(np.broadcast_to(w, (*batch, k, n)))
    seen = multiplied(x, w, (View.dense(x.shape), View.dense((k, n)).expand((*batch, k, n))), batch, True)

    np.testing.assert_allclose(seen, x.astype(np.float64) @ w, rtol=1e-4, atol=1e-4)
    for a_order, a_gap, b_order, b_gap in (
        (plain, 0, plain, 0), (plain, 3, plain, 5), (turned, 0, turned, 0), (turned, 1, turned, 1),
        (rotated, 0, rotated, 2), (plain, 0, turned, 16),
    ):  # fmt: skip
        a, a_view = spread(x, a_order, a_gap)
        b, b_view = spread(whole, b_order, b_gap)
        got = multiplied(a, b, (a_view, b_view), batch, False)
        assert seen.tobytes() == got.tobytes(), (a_order, a_gap, b_order, b_gap)


@pytest.mark.parametrize("rows", [1, 2, 4, 7, 8, 9, 12, 15, 23, 129])
def test_a_row_does_not_depend_on_those_beside_it(rows: int) -> None:
    """However many rows a product has, the first row's bytes are those that it has alone."""
    random = np.random.default_rng(rows)
    x, w = random.standard_normal((rows, 96), np.float32), random.standard_normal((96, 64), np.float32)
    one = multiplied(x[:1], w, (View.dense((1, 96)), View.dense(w.shape)), (), True)

    every = multiplied(x, w, (View.dense(x.shape), View.dense(w.shape)), (), True)

    assert one.tobytes() == every[:1].tobytes()


def test_a_work_item_has_room_for_its_rows() -> None:
    """However many rows there are, a work-item takes no more than its sums have room for, and few are idle."""
    for m in (*range(1, 200), 512, 1000, 4096):
        for panels in (1, 2, 12, 500):
            for tile in (8, 6, 2):
                rows = rows_per_item(m, tile, panels, 2)

                assert 1 <= rows <= 64, m
                assert -(-m // rows) * panels >= min(16, -(-m // tile) * panels) // 2, m


def test_a_tile_is_what_registers_hold() -> None:
    """8 x 32 sums with AVX-512, 6 x 16 with AVX2 and NEON; beside them a row of the panel and a broadcast element."""
    assert [tile_of(registers) for registers in REGISTERS] == [
        RegisterTile(8, 32), RegisterTile(6, 16), RegisterTile(6, 16), RegisterTile(2, 16),
    ]  # fmt: skip


@pytest.mark.parametrize("m", [1, 2, 3, 6, 7, 13, 64])
@pytest.mark.parametrize("constant", [True, False], ids=["packed", "as it is"])
def test_bytes_do_not_depend_on_registers(m: int, constant: bool) -> None:
    """Tiles for AVX-512, AVX2, NEON and SSE: each sum is the same chain."""
    random = np.random.default_rng(m)
    x, w = random.standard_normal((m, 70), np.float32), random.standard_normal((70, 300), np.float32)
    views = View.dense(x.shape), View.dense(w.shape)

    seen = [multiplied(x, w, views, (), constant, attrs.evolve(CPU, registers=r)).tobytes() for r in REGISTERS]

    assert seen == [seen[0]] * len(REGISTERS)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("columns", [256, 257, 300, 288], ids=str)
def test_few_rows_take_two_panels_at_once_and_give_the_same_bytes(rows: int, columns: int) -> None:
    """An odd number of panels, and a last one that is not full; beside a device with too many cores to pair them."""
    random = np.random.default_rng(columns)
    x, w = random.standard_normal((rows, 70), np.float32), random.standard_normal((70, columns), np.float32)
    views = View.dense(x.shape), View.dense(w.shape)

    paired, single = (
        matmul(
            "product", Operand(inp(0), FLOAT32, views[0]), Operand(inp(1), FLOAT32, views[1]), out(0), (), traits,
            constant=1,
        )
        for traits in (CPU, DeviceTraits("cpu", 64))
    )  # fmt: skip

    assert paired.launches[0].grid[1] == -(-single.launches[0].grid[1] // 2)
    call = Call(
        "product", Attributes(), (layout_of(x), layout_of(w)), (None, None),
        (Layout(FLOAT32, (rows, columns)),), (FLOAT32,),
    )  # fmt: skip
    seen = [run_impl(impl, call, (x, w))[0] for impl in (paired, single)]
    np.testing.assert_allclose(seen[0], x.astype(np.float64) @ w, rtol=1e-4, atol=1e-4)
    assert seen[0].tobytes() == seen[1].tobytes()
