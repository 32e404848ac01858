"""The functions that replace slow ones of drivers, against Python's own on the whole range of float32."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from asyncrt.kernels.operator import Example
from asyncrt.kernels.registry import find_operator
from asyncrt.kernels.traits import DeviceTraits

from ...ops.run import make_call, reference, run_impl


@pytest.mark.parametrize(("name", "exact"), [("Erf", math.erf), ("Tanh", math.tanh)])
@pytest.mark.parametrize("length", [16, 1], ids=["vectors", "single elements"])
def test_functions_are_exact_and_never_leave_their_range(
    name: str, exact: Callable[[float], float], length: int
) -> None:
    """Within 4e-7, odd, at most 1, exactly 1 at infinity, and NaN of NaN; as vectors and as single elements."""
    positive = [*np.linspace(0, 12, 3000), *np.logspace(-37, 38, 1000), np.inf, np.nan]
    x = np.array([*positive, *(-v for v in positive)], np.float32)
    x = np.repeat(x[:, None], length, axis=1) if length > 1 else x[: x.size // 16 * 16 + 15]
    operator = find_operator("", name)
    assert operator is not None
    assert operator.implement is not None
    call = make_call(operator, Example((x,)), [x], reference(operator, Example((x,)), [x]), constant=False)
    rows = DeviceTraits("cpu", 2) if length > 1 else DeviceTraits("gpu", 2)

    (got,) = run_impl(operator.implement(call, rows), call, [x])

    wanted = np.array([exact(float(v)) for v in x.reshape(-1)]).reshape(x.shape)
    np.testing.assert_allclose(got, wanted, rtol=4e-7, atol=1e-38)
    assert np.nanmax(np.abs(got)) == 1
    np.testing.assert_array_equal(got[np.isinf(x)], np.sign(x[np.isinf(x)]))


@pytest.mark.parametrize(
    ("name", "exact"), [("Exp", math.exp), ("Sigmoid", lambda x: 0.0 if x < -700 else 1 / (1 + math.exp(-x)))]
)
@pytest.mark.parametrize("length", [16, 1], ids=["vectors", "single elements"])
def test_exponentials_are_no_subnormal_numbers(name: str, exact: Callable[[float], float], length: int) -> None:
    """Processors take long for those below 1.2e-38, so they are zeros; all others are as exact as they were."""
    x = np.concatenate([np.linspace(-120, 88.7, 4000), [-np.inf, np.nan]]).astype(np.float32)
    x = np.repeat(x[:, None], length, axis=1) if length > 1 else x[: x.size // 16 * 16 + 15]
    operator = find_operator("", name)
    assert operator is not None
    assert operator.implement is not None
    call = make_call(operator, Example((x,)), [x], reference(operator, Example((x,)), [x]), constant=False)

    (got,) = run_impl(operator.implement(call, DeviceTraits("cpu", 2)), call, [x])

    wanted = np.array([exact(float(v)) for v in x.reshape(-1)]).reshape(x.shape)
    np.testing.assert_allclose(got, wanted, rtol=4e-7, atol=1.2e-38)
    if name == "Exp":
        assert not ((got > 0) & (got < np.finfo(np.float32).tiny)).any()
