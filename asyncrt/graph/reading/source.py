"""What is a model given as? The bytes of a file, or a `ModelProto`. Nothing here understands ONNX, or imports it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import attrs
import numpy as np

from asyncrt.arguments import check_path
from asyncrt.errors import ModelFormatError
from asyncrt.layout import Array
from asyncrt.mechanisms import Mechanism
from asyncrt.options import RuntimeOptions

from . import mapped
from .limits import check_size

if TYPE_CHECKING:
    import onnx

ModelSource: TypeAlias = "str | os.PathLike[str] | bytes | onnx.ModelProto"

_END = 1 << 14  # bytes
_WAITS: frozenset[Mechanism] = frozenset({"stand_in"})  # who does without waits for kernels, and wants the same ones


@attrs.frozen(eq=False)
class ModelBytes:
    """A model's file, read or mapped, or what stands for one.

    Attributes:
        data: Its bytes.
        where: What it is, for messages.
        folder: Where its external data may lie; None if it did not come from a file.
    """

    data: Array
    where: str
    folder: Path | None = None


def bytes_of(source: ModelSource, options: RuntimeOptions) -> ModelBytes:
    """Return the bytes of a model that is a path, or bytes already.

    Raises:
        ArgumentError: It is neither.
        ModelFormatError: It is no regular file.
        ModelLimitError: It is larger than the options allow.
        OSError: The file cannot be read: `FileNotFoundError`, `IsADirectoryError`, `PermissionError`.
    """
    if isinstance(source, bytes | bytearray | memoryview):
        given = ModelBytes(np.frombuffer(bytes(source), np.uint8), "the given bytes")
    else:
        path = check_path("a model that is neither bytes nor an onnx.ModelProto", source)
        folder, where = path.absolute().parent.resolve(), f"'{path}'"
        check_size(path.stat().st_size, options, where)
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ModelFormatError(f"{where} is not a regular file")
        file = mapped.map_file(path) if options.uses("map_files") else None
        given = ModelBytes(np.frombuffer(path.read_bytes() if file is None else file, np.uint8), where, folder)
    check_size(given.data.nbytes, options, given.where)
    return given


def likeness(source: ModelSource, options: RuntimeOptions) -> str | None:
    """Return what a model is likely to be known by when it is loaded again the same way; None if that takes too long.

    It goes by the size and both ends of the file, so two models may be alike: nothing that is right or wrong may depend
    on it. Raises nothing: whoever reads the model does.
    """
    ends: tuple[bytes, ...] = ()
    nbytes = 0
    if isinstance(source, bytes):
        nbytes, ends = len(source), (source[:_END], source[-_END:])
    elif isinstance(source, str | os.PathLike):
        with contextlib.suppress(Exception), open(source, "rb", opener=_without_waiting) as file:
            status = os.fstat(file.fileno())
            if stat.S_ISREG(status.st_mode):
                nbytes, begin = status.st_size, file.read(_END)
                file.seek(max(0, nbytes - _END))
                ends = begin, file.read(_END)
    if not ends:
        return None
    asked = f"{nbytes}|{options.precision}|{sorted(options.without - _WAITS)}".encode()
    return hashlib.sha256(b"".join((asked, *ends))).hexdigest()


def _without_waiting(path: str, flags: int) -> int:
    """Open a file, and wait for nobody who writes to a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
