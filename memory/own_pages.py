"""How does a large array that is needed for a moment leave nothing behind? It lies in pages of its own.

Of what a thread has freed glibc keeps up to 64 MiB, which no `malloc_trim()` gives back (what limits that is the
process's to set, not ours). Weights are packed on a few threads that come and go, and each would keep as much as the
largest that it has packed.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import DTypeLike

from asyncrt.devices.huge_pages import huge_pages
from asyncrt.layout import Array

_PIECE = 1 << 18  # bytes that are compared at once


def zeros(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Return an array of zeros, as `numpy.zeros` does; if it is large, the system has its memory when it is dropped."""
    dtype = np.dtype(dtype)
    pages = huge_pages(math.prod(shape) * dtype.itemsize)
    return np.zeros(shape, dtype) if pages is None else pages.view(dtype).reshape(shape)


def same_bytes(a: Array, b: Array) -> bool:
    """Return whether two arrays have the same bytes; makes no array that is as large as they are."""
    if a.nbytes != b.nbytes:
        return False
    x, y = bytes_of(a), bytes_of(b)
    return all(np.array_equal(x[at : at + _PIECE], y[at : at + _PIECE]) for at in range(0, len(x), _PIECE))


def bytes_of(array: Array) -> Array:
    """Return the bytes of an array, in the order of its elements; a copy if they do not lie so."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
