"""How can data be at hand without being in memory as a whole? As a file that nobody else has, mapped read-only.

The system reads what is looked at, and may forget it again; for the rest there is only space on disk. The file has no
name, so nobody can change it or cut it off, and it is gone with whoever holds the data. Tables of which a request needs
a few rows are the case in point.
"""

from __future__ import annotations

import mmap
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from asyncrt.layout import Array


class PagedFile(mmap.mmap):
    """The bytes of such a file. Made by `page_out()`."""


def page_out(data: Array, folder: Path) -> Array | None:
    """Return *data* as the beginning of a file in *folder*; None if that cannot be written. Blocks."""
    size = -(-max(data.nbytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(np.ascontiguousarray(data).reshape(-1).view(np.uint8).data)
            file.truncate(size)
            file.flush()
            pages = PagedFile(file.fileno(), size, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        return None
    return np.frombuffer(pages, data.dtype, data.size).reshape(data.shape)


def pages_of(array: Array) -> Array | None:
    """Return all bytes of the file that *array* is the beginning of, whole pages; None if there is no such file."""
    file = mapping_of(array)
    if not isinstance(file, PagedFile):
        return None
    pages = np.frombuffer(file, np.uint8)
    return pages if pages.ctypes.data == array.ctypes.data else None


def mapping_of(array: Array) -> mmap.mmap | None:
    """Return the mapped file that an array is a part of; None if it has memory."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return base if isinstance(base, mmap.mmap) else None


def forget(array: Array) -> None:
    """Give back what was read of *array* if it is a part of a file: who looks at it again has it read again."""
    file = mapping_of(array)
    if file is None or not array.nbytes:
        return
    offset = array.ctypes.data - np.frombuffer(file, np.uint8, 1).ctypes.data
    page = mmap.PAGESIZE
    start, end = -(-offset // page) * page, (offset + array.nbytes) // page * page
    if start < end and hasattr(mmap, "MADV_DONTNEED"):
        file.madvise(mmap.MADV_DONTNEED, start, end - start)
