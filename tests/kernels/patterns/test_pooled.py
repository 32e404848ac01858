"""Pools on CPU devices, whose windows are folded row by row into lines and then along them."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest

from asyncrt.kernels.impl import Launch
from asyncrt.kernels.operator import Example
from asyncrt.kernels.registry import operators
from asyncrt.layout import Array

from ...ops.run import assert_close, best_device, make_call, reference, run_impl, traits_of

_DTYPES: dict[str, tuple[Any, ...]] = {
    "MaxPool": (np.float32, np.float16, np.int8, np.uint8),
    "AveragePool": (np.float32, np.float16),
    "LpPool": (np.float32, np.float16),
}

WINDOWS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 7, 7), {"kernel_shape": (5, 5), "pads": (2, 2, 2, 2)}),
    ((1, 5, 13, 13), {"kernel_shape": (13, 13), "pads": (6, 6, 6, 6)}),
    ((1, 3, 6, 17), {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}),
    ((1, 3, 9, 16), {"kernel_shape": (2, 2), "strides": (2, 2)}),
    ((1, 2, 9, 37), {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1), "ceil_mode": 1}),
    ((1, 2, 12, 40), {"kernel_shape": (3, 2), "dilations": (2, 5), "pads": (2, 4, 1, 3)}),
    ((1, 2, 14, 50), {"kernel_shape": (4, 4), "strides": (4, 4)}),
    (
        (1, 2, 5, 23),
        {"kernel_shape": (2, 5), "strides": (3, 7), "dilations": (1, 3), "pads": (0, 6, 1, 5), "ceil_mode": 1},
    ),
    ((1, 1, 3, 1100), {"kernel_shape": (2, 3), "strides": (1, 2), "pads": (1, 1, 0, 1)}),
    ((2, 3, 700), {"kernel_shape": (7,), "pads": (3, 3)}),
    ((1, 2, 4, 6, 9), {"kernel_shape": (3, 2, 3), "strides": (2, 1, 1), "pads": (1, 0, 1, 1, 1, 1)}),
    ((3, 1, 1, 3), {"kernel_shape": (1, 2), "pads": (0, 1, 0, 1)}),
    ((1, 1, 3, 470), {"kernel_shape": (2, 2), "dilations": (1, 460), "pads": (0, 0, 0, 0)}),  # wider than a line
]


def check(name: str, x: Array, attributes: dict[str, Any], compute_units: int = 3) -> str:
    """Compare the kernel for CPUs with the reference, and return the implementation's name."""
    it, example = operators()["", name], Example((x,), attributes)
    expected = reference(it, example, [x])
    call = make_call(it, example, [x], expected, constant=False)
    assert it.implement is not None
    impl = it.implement(call, attrs.evolve(traits_of(best_device()), kind="cpu", compute_units=compute_units))

    (got,) = run_impl(impl, call, [x])

    assert_close(expected[0], got, f"{name} of {x.dtype} {x.shape} {attributes} by {impl.name}")
    return impl.name


@pytest.mark.parametrize(("shape", "window"), WINDOWS, ids=range(len(WINDOWS)))
@pytest.mark.parametrize("name", list(_DTYPES))
def test_windows_of_every_kind_see_what_the_reference_sees(
    name: str, shape: tuple[int, ...], window: dict[str, Any]
) -> None:
    """Rows shorter and longer than a vector, steps of any size, borders, and positions behind the input."""
    rng = np.random.default_rng(len(shape))

    for dtype in _DTYPES[name]:
        values = rng.standard_normal(shape) if np.dtype(dtype).kind == "f" else rng.integers(0, 120, shape)
        check(name, np.asarray(values).astype(dtype), window)
        if name == "AveragePool":
            check(name, np.asarray(values).astype(dtype), {**window, "count_include_pad": 1})


def test_a_nan_of_any_sign_is_the_greatest() -> None:
    """Processors make NaN with the sign bit set; it wins against infinity like any other."""
    x = np.zeros((1, 3, 8, 21), np.float32)
    x[0, 0, 3, 4], x[0, 0, 6, 20] = np.array([0xFFC00000, 0x7FC00000], np.uint32).view(np.float32)
    x[0, 1, 2] = np.inf
    x[0, 2] = -np.inf

    assert check("MaxPool", x, {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}) == "lines"


@pytest.mark.parametrize("name", list(_DTYPES))
def test_a_window_wider_than_a_line_is_walked_cell_by_cell(name: str) -> None:
    """Nothing is refused because lines are short."""
    x = np.random.default_rng(1).standard_normal((1, 1, 2, 1000)).astype(np.float32)

    assert check(name, x, {"kernel_shape": (2, 600)}) == "rows"


@pytest.mark.parametrize("name", list(_DTYPES))
def test_results_do_not_depend_on_how_the_work_is_cut(name: str) -> None:
    """One core and 64 give the same bits, although each does other planes."""
    x = np.random.default_rng(2).standard_normal((2, 9, 31, 33)).astype(np.float32)
    it, example = operators()["", name], Example((x,), {"kernel_shape": (3, 5), "pads": (1, 2, 1, 2)})
    call = make_call(it, example, [x], reference(it, example, [x]), constant=False)
    assert it.implement is not None
    results, grids = [], set[tuple[int, ...]]()

    for units in (1, 64):
        impl = it.implement(call, attrs.evolve(traits_of(best_device()), kind="cpu", compute_units=units))
        (launch,) = impl.launches
        assert isinstance(launch, Launch)
        grids.add(launch.grid)
        results.append(run_impl(impl, call, [x])[0])

    assert len(grids) == 2
    np.testing.assert_array_equal(results[0].view(np.uint32), results[1].view(np.uint32))
