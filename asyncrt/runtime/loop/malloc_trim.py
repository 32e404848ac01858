"""How does memory get back to the system that this process has freed, but the C library keeps for later?

Loading a model allocates a lot for a moment, on several threads, for each of which glibc keeps memory of its own. To
give it back takes a fraction of a millisecond where little is to be given back, and a tenth of a millisecond for each
megabyte otherwise, on a thread beside the event loop's.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from typing import Any

_M_ARENA_MAX = -8  # of malloc.h


def give_back_freed() -> None:
    """Have the C library give back what it can, if it is one that does so when asked. Blocks for a moment."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@functools.cache
def _malloc_trim() -> Any:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # it is not glibc
        return None


def one_heap() -> None:
    """Have all threads of this process share one heap, as far as they have none of their own yet.

    glibc gives threads heaps of their own, and of what is free at the end of such a heap it never gives up to 64 MiB
    back, asked or not: a server that exchanged its model a few times had a tenth more than before. Not for a process
    that is somebody else's. Returning each large allocation to the system instead (M_MMAP_THRESHOLD) takes a third
    longer for tensors of megabytes.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # it is not glibc
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
