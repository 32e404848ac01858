"""A model's large tensors as parts of a mapped file, which the system reads when they are needed.

A mapped file takes no memory of the process, and pages that were read can be given back at any time. In return the file
must not change: bytes written into it show through, and reading a part that was cut off ends the process. So a file is
mapped only if nobody but the user (or root) may write to it, and after reading a tensor one asks `check()` whether the
file was written to. Only the device gets such tensors; those that the host reads in a request are copied when the model
is loaded. A file that is replaced or deleted stays as it was.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from asyncrt.errors import ModelFormatError
from asyncrt.layout import Array
from asyncrt.memory.paged import Digest, forget, mapping_of

LEAST = 1 << 16
"""Bytes of a tensor that is worth it; smaller ones are read."""
_PIECE = 1 << 20  # bytes that are read at a time


class MappedFile(mmap.mmap):
    """A file's bytes. Made by `map_file()`."""

    path: Path
    descriptor: int
    status: os.stat_result

    def changed(self) -> bool:
        """Whether the file was written to since it was mapped."""
        now = os.fstat(self.descriptor)
        return (now.st_size, now.st_mtime_ns) != (self.status.st_size, self.status.st_mtime_ns)

    def update(self, digest: Digest) -> None:
        """Add the file's bytes to a digest. They are read, not mapped: of what was cut off there are none then."""
        at = 0
        while piece := os.pread(self.descriptor, _PIECE, at):
            digest.update(memoryview(piece))
            at += len(piece)

    def __del__(self) -> None:
        os.close(self.descriptor)


def map_file(path: Path) -> MappedFile | None:
    """Return the bytes of a file, or None if it should be read instead: others may write to it, or it is too small."""
    if not hasattr(os, "getuid") or not hasattr(mmap, "MADV_DONTNEED"):
        return None
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        own = status.st_uid in (os.getuid(), 0) and not status.st_mode & 0o022
        if not own or not stat.S_ISREG(status.st_mode) or status.st_size < LEAST:
            os.close(descriptor)
            return None
        file = MappedFile(descriptor, 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):  # a file system that cannot map, or a file that is empty by now
        os.close(descriptor)
        return None
    file.path, file.descriptor, file.status = path, descriptor, status
    return file


def file_of(array: Array) -> MappedFile | None:
    """Return the mapped file that an array is a part of, or None if it is in memory or in a file of its own."""
    file = mapping_of(array)
    return file if isinstance(file, MappedFile) else None


def check(array: Array) -> None:
    """Raise `ModelFormatError` if *array* is a part of a file that was written to since the model was loaded."""
    file = file_of(array)
    if file is not None and file.changed():
        raise ModelFormatError(
            f"'{file.path}' was written to while a model of it is loaded, and its tensors are read when needed",
            hint="write the new model to another file and rename that, or set RuntimeOptions(without={'map_files'})",
        )


def used(array: Array) -> None:
    """Give back the pages of *array*, and raise as `check()` does if they may have changed since loading."""
    forget(array)
    check(array)


def forget_files(arrays: Iterable[Array | None]) -> None:
    """Give back the pages of all files that *arrays* are parts of, also those between the arrays."""
    for file in {file_of(array) for array in arrays if array is not None} - {None}:
        assert file is not None
        file.madvise(mmap.MADV_DONTNEED)


def with_memory(array: Array) -> Array:
    """Return *array*, copied into memory if it is a part of a file."""
    return array if file_of(array) is None else array.copy()
