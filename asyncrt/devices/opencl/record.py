"""The argument record of OpenCL kernels: a 64-bit byte offset per buffer, then the 32-bit sizes.

One record by value costs one call into the driver where an argument per size would cost many.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence


def record_slots(buffers: int, ints: int) -> tuple[int, int]:
    """Return how many ``long`` and ``int`` slots the record has: none empty, and its size a multiple of 8 bytes."""
    sizes = max(ints, 1)
    return max(buffers, 1), sizes + sizes % 2


@functools.lru_cache(maxsize=1024)
def _format(buffers: int, ints: int) -> struct.Struct:
    offsets, sizes = record_slots(buffers, ints)
    return struct.Struct(f"={buffers}q{8 * (offsets - buffers)}x{ints}i{4 * (sizes - ints)}x")


def pack_record(offsets: Sequence[int], ints: Sequence[int]) -> bytes:
    """Return the bytes of the record; raises `struct.error` if a size does not fit 32 bits."""
    return _format(len(offsets), len(ints)).pack(*offsets, *ints)
