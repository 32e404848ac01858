"""Are a request's results in a batch those that it gives alone, up to another order of additions?"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from asyncrt.layout import Array


def is_float(dtype: np.dtype[Any]) -> bool:
    """Return whether *dtype* is one of the floats, of which NumPy does not know all."""
    return dtype.kind == "f" or dtype == ml_dtypes.bfloat16


def tolerance(dtype: np.dtype[Any]) -> float:
    """Return how far elements may be from those of the request alone, relative to the largest one; 0 for integers.

    Room for another order of additions in a deep model, and less than what a wrong position makes of a float: 256 times
    the distance from 1 to the next number, but no more than its square root.
    """
    if not is_float(dtype):
        return 0.0
    eps = float(ml_dtypes.finfo(dtype).eps)
    return min(256 * eps, math.sqrt(eps))


def difference(expected: Array, got: Array) -> float:
    """Return the largest difference of *got*, relative to the largest finite element.

    Infinite if shapes or dtypes differ, or what is not finite does.
    """
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return math.inf
    if expected.tobytes() == got.tobytes():
        return 0.0
    a, b = expected.astype(np.float64), got.astype(np.float64)
    finite = np.isfinite(a)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(b[finite]).all():
        return math.inf
    scale = float(np.abs(a[finite]).max(initial=0.0))
    off = float(np.abs(a[finite] - b[finite]).max(initial=0.0))
    return off / scale if scale else off
