"""Resize on CPU devices, whose rows end with a vector that is moved back."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest

from asyncrt.kernels.operator import Example
from asyncrt.kernels.registry import operators
from asyncrt.layout import Array

from ..run import assert_close, best_device, make_call, reference, run_impl, traits_of

SIZES = [(40, 56), (39, 41), (20, 136), (7, 3), (13, 30), (60, 17), (9, 31), (20, 28)]


def resized(x: Array, sizes: tuple[int, ...], attributes: dict[str, Any], compute_units: int) -> tuple[Array, str]:
    """Return what the kernels for CPUs give, after a comparison with the reference, and the implementation's name."""
    it = operators()["", "Resize"]
    wanted = np.array((*x.shape[:2], *sizes), np.int64)
    inputs = [x, None, None, wanted]
    example = Example((x, None, None, wanted), attributes)
    expected = reference(it, example, inputs)
    call = make_call(it, example, inputs, expected, constant=False)
    assert it.implement is not None
    impl = it.implement(call, attrs.evolve(traits_of(best_device()), kind="cpu", compute_units=compute_units))

    (got,) = run_impl(impl, call, inputs)

    assert_close(expected[0], got, f"{x.dtype} {x.shape} to {sizes} {attributes} by {impl.name}")
    return got, impl.name


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint8, np.int64])
def test_planes_are_picked_from_at_any_ratio(sizes: tuple[int, int], dtype: Any) -> None:
    """Rows and columns that repeat, or are left out, or both; rows shorter than a vector; pieces of planes."""
    x = np.random.default_rng(0).integers(0, 200, (3, 7, 20, 28)).astype(dtype)

    for coordinates in ("asymmetric", "half_pixel"):
        _, name = resized(x, sizes, {"mode": "nearest", "coordinate_transformation_mode": coordinates}, 5)

        assert name == ("nearest" if 20 in sizes else "nearest of planes")


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_results_do_not_depend_on_how_the_work_is_cut(mode: str) -> None:
    """One core and 64 give the same bits, although pieces begin and end elsewhere."""
    x = np.random.default_rng(1).standard_normal((1, 2, 60, 75)).astype(np.float32)

    one, many = (resized(x, (90, 157), {"mode": mode}, units)[0] for units in (1, 64))

    np.testing.assert_array_equal(one, many)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_sums_are_weighted_in_either_order_of_the_axes(mode: str, sizes: tuple[int, int]) -> None:
    """The axis that grows comes first or last; ends of rows are like their middles."""
    x = np.random.default_rng(2).standard_normal((2, 2, 20, 28)).astype(np.float32)

    resized(x, sizes, {"mode": mode}, 2)
