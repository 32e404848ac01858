"""What does the dispatcher know of a request? It waits for at most one thing at a time, and may have to run again."""

from __future__ import annotations

import asyncio
import logging

import attrs

from asyncrt.errors import InternalError
from asyncrt.events import Event

_log = logging.getLogger("asyncrt")
RUNS = 4  # times that a request may be hit by others' failures


class RunAgain(Exception):
    """The request has to give up what it has done and run again; this never leaves `Network`."""


@attrs.define(eq=False)
class PendingRequest:
    """A request, and what its coroutine waits for.

    Attributes:
        deadline: When it is too late to launch anything of it, by the loop's clock.
        event: The end of its launched chunk.
        known: How far its stream was known to have come when the chunk was enqueued.
        waits: Events of other streams that the chunk waits for.
        hit: Whether something failed that the chunk comes after.
        runs: How often it had to run again for that, or because the scheduler that knew it was replaced.
        unknown: What to raise when it next asks for something, if the present scheduler does not know it; else None.
        yields: Whether it gave memory up for others, and waits until one of them has ended.
        frugal: Whether memory was so short that it takes no more than it needs.
        iterations: How often nodes of it have gone round since it last began.
        alone: How often it ran again because no other request could give any memory back.
        beside: The ends of the chunk's parts on other streams than its own.
        failed: What failed there.
        brief: Whether it is over so soon that others wait for that rather than be there beside it.
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
    iterations: int = 0
    alone: int = 0
    beside: tuple[Event, ...] = ()
    failed: BaseException | None = None
    brief: bool = False

    def comes_after(self, event: Event) -> bool:
        """Whether its chunk was enqueued behind *event*, before that was known to be reached."""
        own = self.event
        if own is not None and event.stream == own.stream:
            return self.known < event.stamp < own.stamp
        return event in self.waits

    def forgotten(self, failure: Exception, *, to_blame: bool) -> None:
        """Note that the scheduler was replaced because of *failure*: fail if *to_blame* or if that was too often."""
        self.runs += 1
        self.unknown = internal(failure) if to_blame or self.runs > RUNS else RunAgain()
        if self.future is not None and not self.future.done():
            self.future.set_exception(self.unknown)


def internal(failure: BaseException, logged: str = "") -> InternalError:
    """Return *failure*, which is a bug, as the error that the request raises; *logged* is what to log about it."""
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
