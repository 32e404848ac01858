"""How can large data be used without being in memory as a whole? As a private file that is mapped read-only.

The system reads the pages that are used, and may drop them again; the rest takes space on disk only. The file has no
name, so nobody can change or truncate it, and it is deleted when the last holder of the data is gone. It serves tables
of which a request needs a few rows. One file serves many arrays: a process may have few open, often 1,024.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from asyncrt.layout import Array

_PIECE = 1 << 20
"""Bytes that are read at a time of a file that is gone through once."""


class Digest(Protocol):
    """A digest of `hashlib`."""

    def update(self, data: memoryview, /) -> None:
        """Add bytes."""
        ...


class PagedFile(mmap.mmap):
    """The bytes of such a file. Made by `page_out()`."""


def page_out(arrays: Sequence[Array], folder: Path) -> list[Array] | None:
    """Return *arrays* as parts of one file in *folder*, each with pages of its own; None if that cannot be written.

    Blocks.
    """
    starts, size = [], 0
    for array in arrays:
        starts.append(size)
        size += _in_pages(max(array.nbytes, 1))
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            for start, array in zip(starts, arrays, strict=True):
                file.seek(start)
                file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
            file.truncate(size)
            file.flush()
            pages = PagedFile(file.fileno(), size, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        return None
    return [
        np.frombuffer(pages, array.dtype, array.size, start).reshape(array.shape)
        for start, array in zip(starts, arrays, strict=True)
    ]


def _in_pages(nbytes: int) -> int:
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE


def pages_of(array: Array) -> Array | None:
    """Return the whole pages of such a file that *array* begins and ends in; None if it does not begin one."""
    file = mapping_of(array)
    if not isinstance(file, PagedFile):
        return None
    pages = np.frombuffer(file, np.uint8)
    start = array.ctypes.data - pages.ctypes.data
    return None if start % mmap.PAGESIZE else pages[start : start + _in_pages(array.nbytes)]


def mapping_of(array: Array) -> mmap.mmap | None:
    """Return the mapped file that an array is a part of; None if it has memory."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return base if isinstance(base, mmap.mmap) else None


def update_digest(digest: Digest, data: Array) -> None:
    """Add the bytes of a vector to a digest; of those of a file few are in memory at a time."""
    for start in range(0, len(data), _PIECE):
        piece = data[start : start + _PIECE]
        digest.update(piece.data)
        forget(piece)


def forget(array: Array) -> None:
    """Drop the pages of *array* that are in memory if it is part of such a file; they are read again when used."""
    file = mapping_of(array)
    if file is None or not array.nbytes:
        return
    offset = array.ctypes.data - np.frombuffer(file, np.uint8, 1).ctypes.data
    page = mmap.PAGESIZE
    start, end = -(-offset // page) * page, (offset + array.nbytes) // page * page
    if start < end and hasattr(mmap, "MADV_DONTNEED"):
        file.madvise(mmap.MADV_DONTNEED, start, end - start)
