"""Which exceptions do programs of ONNX Runtime catch, and which of them is an error of asyncrt there?

The classes have ONNX Runtime's names and its way to begin a message; `error()` makes one. What ONNX Runtime says with
an exception of Python's own derives from that one here as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from asyncrt.public import (
    AsyncrtError,
    DeviceError,
    IndexOutOfRange,
    InputError,
    ModelFormatError,
    ModelTypeError,
    OutOfHostMemory,
    RuntimeClosedError,
    ShapeError,
    UnsupportedOperatorError,
)


class OrtError(AsyncrtError):
    """Base of the exceptions that have a status of ONNX Runtime.

    Attributes:
        status: The number and the name of the status.
    """

    status: ClassVar[tuple[int, str]] = (1, "FAIL")


class Fail(OrtError):
    """What has no class of its own."""


class InvalidArgument(OrtError):
    """Inputs, outputs or a model that there cannot be."""

    status = (2, "INVALID_ARGUMENT")


class NoSuchFile(OrtError):
    """There is no such file."""

    status = (3, "NO_SUCHFILE")


class NoModel(OrtError):
    """Not raised here."""

    status = (4, "NO_MODEL")


class EngineError(OrtError):
    """Not raised here."""

    status = (5, "ENGINE_ERROR")


class RuntimeException(OrtError):
    """The device, or memory, failed while the model ran."""

    status = (6, "RUNTIME_EXCEPTION")


class InvalidProtobuf(OrtError):
    """The model is not an ONNX file."""

    status = (7, "INVALID_PROTOBUF")


class ModelLoaded(OrtError):
    """Not raised here."""

    status = (8, "MODEL_LOADED")


class NotImplemented(OrtError):
    """The model uses an operator, or the program a function, that asyncrt does not have."""

    status = (9, "NOT_IMPLEMENTED")


class InvalidGraph(OrtError):
    """The model contradicts ONNX's schemas."""

    status = (10, "INVALID_GRAPH")


class EPFail(OrtError):
    """Not raised here: there is no execution provider to fall back from."""

    status = (11, "EP_FAIL")


class ModelLoadCanceled(OrtError):
    """Not raised here."""

    status = (12, "MODEL_LOAD_CANCELED")


class ModelRequiresCompilation(OrtError):
    """Not raised here."""

    status = (13, "MODEL_REQUIRES_COMPILATION")


class NotFound(OrtError):
    """Not raised here."""

    status = (14, "NOT_FOUND")


class DeviceReset(OrtError):
    """Not raised here: a lost device is a `RuntimeException`."""

    status = (15, "DEVICE_RESET")


class Refused(AsyncrtError, RuntimeError):
    """What ONNX Runtime says with a `RuntimeError`: a value that it cannot take, or a binding that it cannot make."""


class WrongType(AsyncrtError, TypeError):
    """What ONNX Runtime says with a `TypeError`: an argument of another kind."""


class WrongValue(AsyncrtError, ValueError):
    """What ONNX Runtime says with a `ValueError`: an argument that there cannot be, or an input that is missing."""


#: From the special to the general.
_KINDS: tuple[tuple[type[BaseException], type[OrtError]], ...] = (
    (UnsupportedOperatorError, NotImplemented),
    (ModelTypeError, InvalidGraph),
    (ModelFormatError, Fail),
    (InputError, InvalidArgument),
    (IndexOutOfRange, InvalidArgument),
    (ShapeError, Fail),
    (DeviceError, RuntimeException),
    (OutOfHostMemory, RuntimeException),
    (RuntimeClosedError, RuntimeException),
    (FileNotFoundError, NoSuchFile),
    (IsADirectoryError, InvalidProtobuf),
    (AsyncrtError, Fail),
    (OSError, Fail),
)


def error(kind: type[OrtError], text: str) -> OrtError:
    """Return an exception that says *text* as ONNX Runtime does."""
    number, name = kind.status
    return kind(f"[ONNXRuntimeError] : {number} : {name} : {text}")


@contextmanager
def translated(what: str = "") -> Iterator[None]:
    """Raise what asyncrt raises as ONNX Runtime would; *what* is written before its message."""
    try:
        yield
    except (OrtError, Refused, WrongType, WrongValue):
        raise
    except (AsyncrtError, OSError) as cause:
        raise translation(cause, what) from cause


def translation(cause: BaseException, what: str = "") -> OrtError:
    """Return the exception that ONNX Runtime has for one of asyncrt's."""
    kind = next(ours for theirs, ours in _KINDS if isinstance(cause, theirs))
    return error(kind, f"{what}{cause}")
