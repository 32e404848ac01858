"""May a request come in? Asked before any of its work is done, and before its body is read.

Nobody waits here: who may not come in is told so at once, and when to try again. Those that are in are counted until
they have their answers, so that a server that ends knows when it may.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from asyncrt.errors import Overloaded

from .errors import TooLarge, Unavailable
from .settings import Limits

_RETRY_S = 1.0


class Place:
    """A request that was let in."""

    def __init__(self, door: Admission) -> None:
        self._door = door
        self.nbytes = 0

    def take(self, nbytes: int) -> None:
        """Note that the request has at least so many bytes in all.

        Raises:
            TooLarge: A request may not have as many.
            Overloaded: All that are here together may not.
        """
        if nbytes > self.nbytes:
            self._door.check_bytes(nbytes, nbytes - self.nbytes)
            self._door.nbytes += nbytes - self.nbytes
            self.nbytes = nbytes


class Admission:
    """Who is in, and who may come.

    Attributes:
        nbytes: Of the bodies of those that are in.
        refused: How many were refused.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.inside = 0
        self.nbytes = 0
        self.refused = 0
        self._closed: str | None = "the server is starting"
        self._emptied = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """Whether requests are let in."""
        return self._closed is None

    def open(self) -> None:
        """Let requests in."""
        self._closed = None

    def close(self, why: str) -> None:
        """Let nobody in any more."""
        self._closed = why

    @contextlib.contextmanager
    def enter(self, nbytes: int = 0) -> Iterator[Place]:
        """Let a request in while this lasts.

        Args:
            nbytes: Of its body, as far as they are known.

        Raises:
            Unavailable: The server starts or ends.
            Overloaded: Too many are in.
            TooLarge: A request may not have so many bytes.
        """
        if self._closed is not None:
            self.refused += 1
            raise Unavailable(self._closed, retry_after_s=_RETRY_S)
        if self.inside >= self.limits.requests:
            self.refused += 1
            raise Overloaded("as many requests are here as may be", retry_after_s=_RETRY_S)
        place = Place(self)
        place.take(nbytes)
        self.inside += 1
        try:
            yield place
        finally:
            self.inside -= 1
            self.nbytes -= place.nbytes
            if not self.inside:
                self._emptied.set()

    def check_bytes(self, nbytes: int, more: int) -> None:
        """Raise unless a request may have *nbytes*, *more* than were counted."""
        if nbytes > self.limits.body_bytes:
            self.refused += 1
            raise TooLarge(f"a request may have {self.limits.body_bytes} bytes")
        if self.nbytes + more > self.limits.pending_bytes:
            self.refused += 1
            raise Overloaded("the requests that are here have as many bytes as they may", retry_after_s=_RETRY_S)

    async def drained(self, patience_s: float) -> bool:
        """Return whether all that are in have left, when they have or after *patience_s* seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while self.inside:
                    self._emptied.clear()
                    await self._emptied.wait()
        return not self.inside
