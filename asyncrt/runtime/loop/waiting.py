"""What is a request to the dispatcher? It waits for at most one thing at a time, and may have to begin again."""

from __future__ import annotations

import asyncio
import logging

import attrs

from asyncrt.errors import InternalError
from asyncrt.events import Event

_log = logging.getLogger("asyncrt")
RUNS = 4  # times that a request may be hit by others' failures


class RunAgain(Exception):
    """What the request has done so far is to be given up and done again; it never leaves `Network`."""


@attrs.define(eq=False)
class PendingRequest:
    """A request, and what its coroutine waits for.

    Attributes:
        deadline: When it is too late to launch anything of it, by the loop's clock.
        event: The end of its launched chunk.
        known: How far its stream was known to have come when the chunk was enqueued.
        waits: Events of other streams that the chunk waits for.
        hit: Whether something failed that the chunk comes after.
        runs: How often that happened to it, or the scheduler was lost that knew it.
        unknown: What to raise where it asks for something next, because the scheduler does not know it; else None.
        yields: Whether it gave memory up for others, and waits until one of them has ended.
        frugal: Whether memory was so short that it takes no more than it needs.
        alone: How often it began again because nobody else could give any back.
        beside: The ends of the chunk's parts on other streams than its own.
        failed: What failed there.
    """

    priority: int
    deadline: float | None = None
    future: asyncio.Future[int] | None = None
    event: Event | None = None
    known: int = 0
    waits: frozenset[Event] = frozenset()
    hit: bool = False
    runs: int = 0
    unknown: RunAgain | InternalError | None = None
    yields: bool = False
    frugal: bool = False
    alone: int = 0
    beside: tuple[Event, ...] = ()
    failed: BaseException | None = None

    def comes_after(self, event: Event) -> bool:
        """Whether its chunk was enqueued behind *event*, before that was known to be reached."""
        own = self.event
        if own is not None and event.stream == own.stream:
            return self.known < event.stamp < own.stamp
        return event in self.waits

    def forgotten(self, failure: Exception, *, to_blame: bool) -> None:
        """The scheduler that knew it raised *failure*: it fails if it is *to_blame*, or met that too often."""
        self.runs += 1
        self.unknown = internal(failure) if to_blame or self.runs > RUNS else RunAgain()
        if self.future is not None and not self.future.done():
            self.future.set_exception(self.unknown)


def internal(failure: BaseException, logged: str = "") -> InternalError:
    """Return what to tell a request that met *failure*, which nobody expects; what is to be *logged* of it is."""
    if logged:
        _log.error(logged, exc_info=failure)
    if isinstance(failure, InternalError):
        return failure
    error = InternalError(
        f"asyncrt itself failed: {type(failure).__name__}: {failure}",
        hint="it is a bug; the log of 'asyncrt' says where it happened, and other requests have gone on",
    )
    error.__cause__ = failure
    return error
