"""The error function by NumPy, which has none.

Source: W. J. Cody, Rational Chebyshev Approximations for the Error Function, Mathematics of Computation 23 (1969); the
coefficients are those of his program CALERF.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asyncrt.layout import Array

# From the highest power on: of x² for the function itself, and of |x| for what is left to 1.
_NEAR = (
    (1.85777706184603153e-1, 3.16112374387056560e00, 1.13864154151050156e02, 3.77485237685302021e02,
     3.20937758913846947e03),
    (1.0, 2.36012909523441209e01, 2.44024637934444173e02, 1.28261652607737228e03, 2.84423683343917062e03),
)  # fmt: skip
_FAR = (
    (2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594e0, 6.61191906371416295e01,
     2.98635138197400131e02, 8.81952221241769090e02, 1.71204761263407058e03, 2.05107837782607147e03,
     1.23033935479799725e03),
    (1.0, 1.57449261107098347e01, 1.17693950891312499e02, 5.37181101862009858e02, 1.62138957456669019e03,
     3.29079923573345963e03, 4.36261909014324716e03, 3.43936767414372164e03, 1.23033935480374942e03),
)  # fmt: skip
_BORDER = 0.46875  # up to which the function itself is calculated
_ONE = 6.0  # from which on it is 1


def erf(x: Array) -> Array:
    """Return the error function of float64 elements, with a relative error of at most 1e-15."""
    size = np.minimum(np.abs(x), _ONE)
    square = size * size
    near = _ratio(_NEAR, square)
    near *= x
    left = _ratio(_FAR, size)
    left *= np.exp(-square)
    return np.where(size <= _BORDER, near, np.copysign(1 - left, x))


def _ratio(of: tuple[Sequence[float], Sequence[float]], x: Array) -> Array:
    above, below = (_polynomial(coefficients, x) for coefficients in of)
    above /= below
    return above


def _polynomial(coefficients: Sequence[float], x: Array) -> Array:
    first, *others, last = coefficients
    result = first * x
    for coefficient in others:
        result += coefficient
        result *= x
    result += last
    return result
