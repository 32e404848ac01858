"""Compiled kernels on disk, in a folder that the user or root alone may write to.

An entry is code that the driver loads into the process, so the folder and the entry must belong to the user or to root,
who fills a folder for others; others must not be able to write to them, and an entry must say what it is and match its own digest. Whatever does not is
ignored, and built again.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import stat
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

import numpy as np
import platformdirs

from asyncrt.memory.paged import update_digest
from asyncrt.options import RuntimeOptions

_MAGIC = b"asyncrt-kernels-1\n"
_DIGEST = hashlib.sha256().digest_size

ALIGNMENT = 64
"""At which the body of an entry begins in its file, in bytes."""

_Bytes = TypeVar("_Bytes", bytes, mmap.mmap)


class Entry(NamedTuple):
    """What lies under a key, as a part of its file or in memory.

    Attributes:
        body: Its bytes.
        is_whole: Whether they are what was put there. It reads all of them.
    """

    body: memoryview
    is_whole: Callable[[], bool]


def cache_folder(options: RuntimeOptions) -> Path:
    """Return the folder for what is kept on disk."""
    return options.cache_dir or Path(platformdirs.user_cache_dir("asyncrt")) / "kernels"


class BinaryStore:
    """Bytes by key, in files. Every failure of the file system counts as a miss.

    Args:
        folder: Made if it is missing, for the user alone. One that others may write to is not used.
        max_bytes: When more lies there, the entries longest unused are deleted.
    """

    def __init__(self, folder: Path, *, max_bytes: int = 1 << 30) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self.usable = self._make_folder()

    def __repr__(self) -> str:
        return f"<BinaryStore {str(self.folder)!r}{'' if self.usable else ' unusable'}>"

    def get(self, key: str) -> bytes | None:
        """Return what was put under *key*, or None: absent, damaged, or of somebody else."""
        data = self._read(key, lambda file: file.read())
        return data[_begin(key) :] if data is not None and _is_whole(data, key) else None

    def map(self, key: str) -> Entry | None:
        """Return what was put under *key* as a part of its file, of which the system reads what is used; None as `get()`.

        Whether it is whole is for the caller to ask, for that reads all of it.
        """
        data = self._read(key, lambda file: mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        return None if data is None else Entry(memoryview(data)[_begin(key) :], lambda: _is_whole(data, key))

    def read(self, key: str) -> Entry | None:
        """Return what was put under *key* in memory, as `map()` does."""
        body = self.get(key)
        return None if body is None else Entry(memoryview(body), lambda: True)

    def _read(self, key: str, read: Callable[[BinaryIO], _Bytes]) -> _Bytes | None:
        """Return the file of an entry as *read* gives it, if nobody else may have written it."""
        if not self.usable:
            return None
        path = self.path_of(key)
        try:
            with open(path, "rb", opener=_open_itself) as file:
                status = os.fstat(file.fileno())
                if not _private(status) or not stat.S_ISREG(status.st_mode) or status.st_size > self.max_bytes:
                    return None
                data = read(file)
        except (OSError, ValueError, MemoryError):  # an empty file cannot be mapped
            return None
        with contextlib.suppress(OSError):  # one that may only be read is as good
            os.utime(path)
        return data

    def put(self, key: str, body: bytes) -> None:
        """Keep *body* under *key*, whole or not at all."""
        self.put_all([(key, body)])

    def put_all(self, entries: Iterable[tuple[str, bytes | bytearray]]) -> None:
        """Keep each body under its key, in this order, each whole or not at all."""
        if not self.usable:
            return
        with contextlib.suppress(OSError):
            for key, body in entries:
                self._write(key, body)
            self._shrink()

    def _write(self, key: str, body: bytes | bytearray) -> None:
        head = _head(key)
        digest = hashlib.sha256(head)
        digest.update(body)
        handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=".new-")
        try:
            with os.fdopen(handle, "wb") as f:
                f.writelines((head, digest.digest(), body))
            os.replace(temporary, self.path_of(key))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    def path_of(self, key: str) -> Path:
        """Where what is put under *key* lies."""
        return self.folder / f"{hashlib.sha256(key.encode()).hexdigest()}.bin"

    def _make_folder(self) -> bool:
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            return _private(self.folder.stat())
        except (OSError, ValueError):  # a path that no system takes is a ValueError
            return False

    def _shrink(self) -> None:
        entries: list[tuple[float, int, Path]] = []
        # What a process that was killed left half written counts as well.
        for path in (*self.folder.glob("*.bin"), *self.folder.glob(".new-*")):
            with contextlib.suppress(OSError):  # another process was faster
                status = path.lstat()
                if not stat.S_ISDIR(status.st_mode):
                    entries.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= self.max_bytes:
                return
            with contextlib.suppress(OSError):
                path.unlink()
                total -= size


def _head(key: str) -> bytes:
    """Return what the file of an entry begins with; filled up so that its body is aligned."""
    head = _MAGIC + key.encode() + b"\n"
    return head + b"\n" * (-(len(head) + _DIGEST) % ALIGNMENT)


def _begin(key: str) -> int:
    """Return where the body of an entry begins, behind the digest."""
    return len(_head(key)) + _DIGEST


def _is_whole(data: bytes | mmap.mmap, key: str) -> bool:
    """Whether the file of an entry says that it is of *key*, and matches its own digest."""
    head, begin = _head(key), _begin(key)
    if len(data) < begin or data[: len(head)] != head:
        return False
    digest = hashlib.sha256(head)
    update_digest(digest, np.asarray(memoryview(data)[begin:]))
    return digest.digest() == data[len(head) : begin]


def _open_itself(path: str, flags: int) -> int:
    """Open a file, but not what a symbolic link points to, and do not wait for who writes to a pipe."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))


def _private(status: os.stat_result) -> bool:
    """Return whether only the user can write to a file or folder, or only root; Windows keeps that elsewhere."""
    return not hasattr(os, "getuid") or (status.st_uid in (os.getuid(), 0) and not status.st_mode & 0o022)
