"""The error function by NumPy, against that of Python."""

from __future__ import annotations

import math

import numpy as np

from asyncrt.kernels.ops.math._erf import erf

RNG = np.random.default_rng(1)


def test_it_is_as_exact_as_float64() -> None:
    """Near 0 and far from it, on both sides of where the formula changes, of either sign."""
    sizes = np.concatenate([np.linspace(0, 7, 20_001), 10.0 ** np.linspace(-300, 0, 601), RNG.standard_normal(5_000)])
    x = np.concatenate([sizes, -sizes, np.nextafter([0.46875] * 2 + [6.0] * 2, [0.0, 1.0, 0.0, 7.0])])

    np.testing.assert_allclose(erf(x), [math.erf(v) for v in x], rtol=1e-15, atol=0)


def test_what_is_special_stays_so() -> None:
    """Zeros keep their signs, infinities become ones, and NaN stays NaN."""
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan])

    found = erf(x)

    np.testing.assert_array_equal(found, [0.0, 0.0, 1.0, -1.0, np.nan])
    assert list(np.signbit(found[:4])) == [False, True, False, True]
