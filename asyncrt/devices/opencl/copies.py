"""By which call of the driver are bytes copied between an array and a buffer?

pyopencl's own functions for buffers, rather than `enqueue_copy`, which looks first what it was given: 0.7 µs of 3 for
each copy.

Intel's CPU runtime (2026.2) notes the address of every array of `LEAST` bytes or more that is read to or written from,
with the event of the copy, and forgets none before its context ends: 110 bytes for each address that comes for the
first time, several megabytes for a hundred thousand requests with results of many sizes. For copies of rectangles it
notes nothing, and a rectangle of one row is the same copy at the same speed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from asyncrt.layout import Array

from .drivers import INTEL_CPU

NOTES_ADDRESSES = frozenset({INTEL_CPU})
"""Platforms and kinds of devices whose drivers note the addresses of arrays for good."""
LEAST = 512  # bytes of a copy whose address is noted

#: Enqueues a copy of an array's bytes at an offset of a buffer; takes the queue, the buffer, the offset and the array,
#: and returns the command's event.
Copy: TypeAlias = Callable[[Any, Any, int, Array], Any]


class Copies(NamedTuple):
    """How a device's queues copy.

    Attributes:
        read: From a buffer to an array.
        write: From an array to a buffer.
    """

    read: Copy
    write: Copy


def find_copies(platform: str, kind: str, functions: Any) -> Copies:
    """Return how devices of this *kind* on this *platform* copy.

    Args:
        functions: pyopencl's.
    """
    read = _flat(functions._enqueue_read_buffer)
    write = _flat(functions._enqueue_write_buffer)
    if (platform, kind) not in NOTES_ADDRESSES:
        return Copies(read, write)
    return Copies(
        _rectangle(functions._enqueue_read_buffer_rect, read), _rectangle(functions._enqueue_write_buffer_rect, write)
    )


def _flat(function: Any) -> Copy:
    def copy(queue: Any, buffer: Any, offset: int, data: Array) -> Any:
        return function(queue, buffer, data, offset, is_blocking=False)

    return copy


def _rectangle(function: Any, flat: Copy) -> Copy:
    def copy(queue: Any, buffer: Any, offset: int, data: Array) -> Any:
        nbytes = data.nbytes
        if nbytes < LEAST:
            return flat(queue, buffer, offset, data)
        return function(queue, buffer, data, (offset,), (0,), (nbytes,), is_blocking=False)

    return copy
