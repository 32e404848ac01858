"""How does memory of a device that computes in the host's lie in few pages? In huge ones, where the system has them.

A core finds pages through tables of which it keeps some dozens of entries, and channels of a picture, or panels of
weights, are thousands of bytes apart: with pages of 4 KiB most of what is loaded waits for an entry first. Linux gives
pages of 2 MiB to who asks for them, and to nobody else as most distributions set it up.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Callable

import numpy as np

from asyncrt.layout import Array

HUGE = 1 << 21
"""Bytes of a huge page of x86-64, and of ARM with pages of 4 KiB; others are not asked for."""


_AHEAD = 4
"""Times as many addresses are taken for memory that may grow as it has bytes at first."""
_POPULATE = 23
"""`MADV_POPULATE_WRITE`, which Linux has from 5.14 on and Python has no name for."""
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
"""The system need not have memory for them all: the number is Linux's, whose name Python has from 3.13 on."""


def huge_pages(nbytes: int, *, grows: bool = False) -> Array | None:
    """Return *nbytes* bytes, zeros, as far as it pays in huge pages; None if none of them is, or there are none.

    What is left behind the last huge page lies in small ones, if that is less than half of one. So at most half of a
    huge page is taken in vain.

    Args:
        grows: `grown()` may be asked for more of it.
    """
    pages = _pages(nbytes)
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is None or not pages:
        return None
    size = max(nbytes, pages * HUGE) * (_AHEAD if grows else 1)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (_NO_RESERVE if grows else 0)
    try:
        area = mmap.mmap(-1, size + HUGE, flags=flags)
        start = -np.frombuffer(area, np.uint8, 1).ctypes.data % HUGE
        area.madvise(advice, start, pages * HUGE)
    except OSError:
        return None
    return np.frombuffer(area, np.uint8, nbytes, start)


def grown(memory: Array, nbytes: int) -> Array | None:
    """Return the memory of `huge_pages` with so many bytes, of which the first are the same; None if others lie there.

    Pages that were in use stay so: a page that a program uses for the first time has to be cleared, and in a virtual
    machine its host may have to find it.
    """
    area = _area(memory)
    start = memory.ctypes.data - np.frombuffer(area, np.uint8, 1).ctypes.data
    if start + max(nbytes, _pages(nbytes) * HUGE) > len(area):
        return None
    area.madvise(mmap.MADV_HUGEPAGE, start, _pages(nbytes) * HUGE)
    return np.frombuffer(area, np.uint8, nbytes, start)


def touch(memory: Array) -> None:
    """Have the system find the pages of the memory of `huge_pages` that nobody has used yet; what is in it stays.

    Blocks for up to some milliseconds a page, and leaves the interpreter to others meanwhile. Where the system can not
    do that, each page is found when it is used first.
    """
    if (advise := _advise()) is not None:  # `mmap.madvise` would keep the interpreter
        advise(memory.ctypes.data, memory.nbytes, _POPULATE)


@functools.cache
def _advise() -> Callable[[int, int, int], int] | None:
    advise = getattr(ctypes.CDLL(None), "madvise", None)
    if advise is not None:
        advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return advise


def _pages(nbytes: int) -> int:
    return (nbytes + HUGE // 2) // HUGE


def _area(memory: Array) -> mmap.mmap:
    assert isinstance(memory.base, memoryview)
    area = memory.base.obj
    assert isinstance(area, mmap.mmap)
    return area


def give_back(memory: Array) -> None:
    """Give the memory of `huge_pages` back to the system at once, whoever still refers to it.

    It may still be read and written, but what was in it is gone.
    """
    _area(memory).madvise(mmap.MADV_DONTNEED)
