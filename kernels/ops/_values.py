"""What operators that take part in shape arithmetic share: values that may hold symbolic dims."""

from __future__ import annotations

import numpy as np

from asyncrt.dims import Dim
from asyncrt.layout import Array


def ceil_div(value: int, divisor: int) -> int:
    """Return *value* / *divisor* rounded up, for a positive *divisor*.

    A symbolic value is divided exactly where possible; else the result is an expression of a new name.
    """
    if isinstance(value, Dim) and not isinstance(value % divisor, int):
        return (value + divisor - 1) // divisor
    return -(-value // divisor)


def known(array: Array) -> Array:
    """Return *array* with dtype int64 if its dtype is object; raises `Undetermined` if a symbolic dim is in it."""
    if array.dtype != object:
        return array
    return np.array([int(v) for v in array.reshape(-1).tolist()], np.int64).reshape(array.shape)
