"""Compiled kernels on disk, in a folder private to the user.

An entry is code that the driver loads into the process, so the folder must belong to the user and be closed to others,
and an entry must say what it is and match its own digest. Whatever does not is ignored, and built again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from pathlib import Path

_MAGIC = b"asyncrt-kernels-1\n"


class BinaryStore:
    """Bytes by key, in files. Every failure of the file system counts as a miss.

    Args:
        folder: Made if it is missing, for the user alone.
        max_bytes: When more lies there, the entries longest unused are deleted.
    """

    def __init__(self, folder: Path, *, max_bytes: int = 1 << 30) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self.usable = self._make_folder()

    def __repr__(self) -> str:
        return f"<BinaryStore {str(self.folder)!r}{'' if self.usable else ' unusable'}>"

    def get(self, key: str) -> bytes | None:
        """Return what was put under *key*, or None: absent, damaged, or not the user's."""
        if not self.usable:
            return None
        path = self._path(key)
        try:
            if path.is_symlink() or path.stat().st_uid != os.getuid():
                return None
            data = path.read_bytes()
            os.utime(path)
        except OSError:
            return None
        head = _MAGIC + key.encode() + b"\n"
        body = data[len(head) + 32 :]
        if not data.startswith(head) or hashlib.sha256(head + body).digest() != data[len(head) : len(head) + 32]:
            return None
        return body

    def put(self, key: str, body: bytes) -> None:
        """Keep *body* under *key*, whole or not at all."""
        if not self.usable:
            return
        head = _MAGIC + key.encode() + b"\n"
        with contextlib.suppress(OSError):
            handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=".new-")
            try:
                with os.fdopen(handle, "wb") as f:
                    f.write(head + hashlib.sha256(head + body).digest() + body)
                os.replace(temporary, self._path(key))
            except OSError:
                os.unlink(temporary)
                raise
            self._shrink()

    def _path(self, key: str) -> Path:
        return self.folder / f"{hashlib.sha256(key.encode()).hexdigest()}.bin"

    def _make_folder(self) -> bool:
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            status = self.folder.stat()
            if status.st_uid != os.getuid():
                return False
            if stat.S_IMODE(status.st_mode) & 0o077:
                self.folder.chmod(0o700)
        except OSError:
            return False
        return True

    def _shrink(self) -> None:
        entries = [(p.stat().st_mtime, p.stat().st_size, p) for p in self.folder.glob("*.bin")]
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= self.max_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size
