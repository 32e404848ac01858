"""What is a caller told when something goes wrong, and with which status? One table for HTTP and gRPC.

A caller is told what it did wrong in full. What went wrong on this side is told in general terms: paths, drivers and
tracebacks are for the log.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import ClassVar, NamedTuple

from asyncrt.errors import (
    ArgumentError,
    AsyncrtError,
    DeadlineExceeded,
    DeviceLostError,
    DeviceStalledError,
    InputError,
    ModelError,
    OutOfDeviceMemory,
    OutOfHostMemory,
    Overloaded,
    RuntimeClosedError,
    SequenceError,
    ShapeError,
)


class Situation(Enum):
    """A status of HTTP, and the name of gRPC's."""

    WRONG = 400, "INVALID_ARGUMENT"
    NO_KEY = 401, "UNAUTHENTICATED"
    UNKNOWN = 404, "NOT_FOUND"
    SLOW_SENDER = 408, "DEADLINE_EXCEEDED"
    TOO_LARGE = 413, "RESOURCE_EXHAUSTED"
    ENCODING = 415, "INVALID_ARGUMENT"
    OVERLOADED = 429, "RESOURCE_EXHAUSTED"
    CANCELLED = 499, "CANCELLED"
    FAILED = 500, "INTERNAL"
    UNAVAILABLE = 503, "UNAVAILABLE"
    LATE = 504, "DEADLINE_EXCEEDED"

    def __init__(self, http: int, grpc: str) -> None:
        self.http, self.grpc = http, grpc


class ServeError(AsyncrtError):
    """A request that the server itself refuses."""

    situation: ClassVar[Situation] = Situation.WRONG


class BadRequest(ServeError, ValueError):
    """A message is not what the protocol says."""


class WrongSettings(ServeError, ValueError):
    """A file of settings, or an option, says what there cannot be."""


class NotFound(ServeError, LookupError):
    """There is no such model, version or sequence."""

    situation = Situation.UNKNOWN


class NotLoaded(ServeError):
    """A model cannot be loaded.

    Args:
        cause: Why.
        message: What is said of that.
    """

    def __init__(self, cause: AsyncrtError, message: str) -> None:
        super().__init__(message)
        self.situation = situation_of(cause)  # type: ignore[misc]  # of the error, where others have their class's


class NoKey(ServeError, PermissionError):
    """The request does not carry the key that the server asks for."""

    situation = Situation.NO_KEY


class TooLarge(ServeError, ValueError):
    """A message is larger than the server takes."""

    situation = Situation.TOO_LARGE


class SlowSender(ServeError, TimeoutError):
    """A message did not arrive in time."""

    situation = Situation.SLOW_SENDER


class UnknownEncoding(ServeError, ValueError):
    """A body is encoded in a way that the server does not decode."""

    situation = Situation.ENCODING


class Unavailable(ServeError, RuntimeError):
    """The server does not take requests now: it starts, or it ends.

    Attributes:
        retry_after_s: Seconds after which to try again, here or elsewhere.
    """

    situation = Situation.UNAVAILABLE

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


_SITUATIONS: dict[type[BaseException], Situation] = {
    InputError: Situation.WRONG,
    ShapeError: Situation.WRONG,
    SequenceError: Situation.WRONG,
    ArgumentError: Situation.WRONG,
    ModelError: Situation.WRONG,
    OutOfHostMemory: Situation.TOO_LARGE,
    OutOfDeviceMemory: Situation.UNAVAILABLE,
    Overloaded: Situation.OVERLOADED,
    DeadlineExceeded: Situation.LATE,
    DeviceLostError: Situation.UNAVAILABLE,
    DeviceStalledError: Situation.UNAVAILABLE,
    RuntimeClosedError: Situation.UNAVAILABLE,
}

_GENERAL = {
    Situation.FAILED: "the server failed; its log says more",
    Situation.UNAVAILABLE: "the server cannot do this now; its log says more",
}


class Told(NamedTuple):
    """What a caller is told.

    Attributes:
        retry_after_s: When to try again; None if that would not help.
    """

    situation: Situation
    message: str
    retry_after_s: float | None = None

    @property
    def headers(self) -> dict[str, str]:
        """Headers that say so; gRPC has them as trailing metadata."""
        headers = {} if self.retry_after_s is None else {"retry-after": str(max(1, math.ceil(self.retry_after_s)))}
        return headers | {"www-authenticate": "Bearer"} if self.situation is Situation.NO_KEY else headers


def situation_of(error: BaseException) -> Situation:
    """Return what kind of trouble an error is to a caller."""
    if isinstance(error, ServeError):
        return error.situation
    return next((_SITUATIONS[kind] for kind in type(error).__mro__ if kind in _SITUATIONS), Situation.FAILED)


def tell(error: BaseException) -> Told:
    """Return what a caller is told of an error."""
    situation = situation_of(error)
    after: float | None = getattr(error, "retry_after_s", None)
    if situation is Situation.UNAVAILABLE and after is None:
        after = 1.0
    of_ours = situation in _GENERAL and not isinstance(error, ServeError)
    return Told(situation, _GENERAL[situation] if of_ours else told_in_full(error), after)


def told_in_full(error: BaseException) -> str:
    """Return all that an error says, in a line."""
    if not isinstance(error, AsyncrtError):
        return str(error)
    detail = "; ".join(line.strip() for line in error.detail.splitlines() if line.strip())
    return ". ".join(part for part in (error.message, detail, error.hint) if part)
