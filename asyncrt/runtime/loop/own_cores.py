"""Which requests have a core each, where about as many are there as cores?

A kernel on many cores ends when the last of them has done its part, and only then the next one begins: each time the
others wait. Requests that have a core each wait for nothing. So where about as many are there as cores, each is carried
out by one thread alone, from its inputs to its results; it takes longer so, but more are answered in a second. That is
for devices whose driver lets a thread carry out by itself what it enqueues.

The threads have queues of their own. The scheduler, the timeline and the marks never hear of these requests: what they
use is nobody else's, from before they begin until they have ended. Requests on the general way may be there meanwhile.
"""

from __future__ import annotations

import asyncio
import functools
import math
import queue
import threading
from collections.abc import Callable, Collection
from typing import Any, Protocol, TypeAlias

from asyncrt.devices.base import Stream
from asyncrt.loops import tell_loop

from .waiting_line import WaitingLine, tell

_PART = 0.75
"""Of the cores, each of which has a request, that answer as many as all of them do together."""
_LONGEST_S = 0.25
"""For which a core may be kept by one request: a long one among brief ones is sooner done by all of them."""
_AHEAD = 2  # requests for each core that are made ready at once, so that a thread need not wait for the event loop


def enough(cores: int) -> int:
    """Return from how many requests on each is to have a core."""
    return max(2, round(_PART * cores))


class Work(Protocol):
    """A request that is ready to be carried out."""

    def carry_out(self, stream: Stream) -> None:
        """Do all of it, on the thread that calls this; raises what fails."""
        ...

    def stop(self) -> None:
        """Nobody waits for it any more: let it end soon."""
        ...

    def end(self, error: BaseException | None) -> Any:
        """Give back what it has used, and return its outcome or raise what it failed with. On the event loop."""
        ...


Begin: TypeAlias = Callable[[], Work | None]
"""Makes a request ready; returns None if it has to go the general way."""


class OwnCores:
    """The requests that have a core each, or wait for one.

    Args:
        cores: How many there are.
        most: Requests that may be at work, or ready for it.
        open_stream: Opens a stream for a thread; None where no request may have a core.
        loop: Where requests begin and end.
        others: Returns how many requests are on the general way.
        may: Whether one may begin.
        on_begun: Called when the first begins.
        on_ended: Called when one has ended.
    """

    def __init__(
        self,
        cores: int,
        most: int,
        open_stream: Callable[[], Stream] | None,
        loop: asyncio.AbstractEventLoop,
        others: Callable[[], int],
        may: Callable[[], bool],
        on_begun: Callable[[], None],
        on_ended: Callable[[], None],
    ) -> None:
        self.cores, self._open_stream, self._loop = cores, open_stream, loop
        self._most = min(most, _AHEAD * cores)
        self._others, self._may, self._on_begun, self._on_ended = others, may, on_begun, on_ended
        self._enough = math.inf if open_stream is None or most < enough(cores) else enough(cores)
        #: Those that a thread works on, or will before long.
        self._begun: dict[asyncio.Future[Any], Work] = {}
        #: Those that are to begin.
        self._waiting: WaitingLine[Begin] = WaitingLine()
        self._inbox: queue.SimpleQueue[tuple[Work, asyncio.Future[Any]] | None] = queue.SimpleQueue()
        self._threads = 0

    def __repr__(self) -> str:
        return f"<OwnCores {len(self._begun)} requests, {len(self._waiting)} wait>"

    def __len__(self) -> int:
        return len(self._begun) + len(self._waiting)

    @property
    def begun(self) -> Collection[asyncio.Future[Any]]:
        """What those are told by that use memory, be it that they were cancelled."""
        return self._begun.keys()

    @property
    def wanted(self) -> bool:
        """Whether so many requests are there, with one that has just come, that each is to have a core."""
        return len(self) + self._others() + 1 >= self._enough

    def suits(self, seconds: float) -> bool:
        """Whether one of them may be a request that takes one core so long."""
        return seconds <= _LONGEST_S

    async def run(self, begin: Begin, priority: int, until: float | None) -> Any:
        """Return a request's outcome; None if it has to go the general way. Of who is cancelled it stops before long,
        and what it uses is given back when it has.

        Args:
            until: Its deadline: if it has not begun by then, it goes the general way, which is told of it.
        """
        if not self._may():
            return None
        future: asyncio.Future[Any] = self._loop.create_future()
        alarm = None
        if self._waiting or not self._has_room():
            self._waiting.push(priority, until, begin, future)
            if until is not None:
                alarm = self._loop.call_at(until, self._give_up, future)
        elif not self._begin(begin, future):
            return None
        try:
            return await future
        except asyncio.CancelledError:
            work = self._begun.get(future)
            if work is not None:
                work.stop()
            raise
        finally:
            if alarm is not None:
                alarm.cancel()

    def lose(self, error: BaseException) -> None:
        """The device is lost: tell all who wait."""
        for future in (*self._waiting.leave(), *[future for future in self._begun if not future.done()]):
            future.set_exception(error)
        self._begun.clear()

    def close(self) -> None:
        """Let the threads end, when they have done what was begun; nothing may begin any more."""
        self._enough, self._open_stream = math.inf, None
        self._others, self._may, self._on_begun, self._on_ended = int, bool, _nothing, _nothing
        for _ in range(self._threads):
            self._inbox.put(None)

    def _give_up(self, future: asyncio.Future[Any]) -> None:
        """The deadline has come of a request that waits, or has begun."""
        if future not in self._begun and not future.done():
            future.set_result(None)

    def _has_room(self) -> bool:
        return len(self._begun) < self._most

    def _begin(self, begin: Begin, future: asyncio.Future[Any]) -> bool:
        if self._threads < min(self.cores, len(self._begun) + 1):
            self._start_thread()
        work = begin() if self._threads else None
        if work is None:
            return False
        self._begun[future] = work
        if len(self._begun) == 1:
            self._on_begun()
        self._inbox.put((work, future))
        return True

    def _start_thread(self) -> None:
        assert self._open_stream is not None
        serve = _serving(self._inbox, self._open_stream(), self._loop, self._ended)
        try:
            threading.Thread(target=serve, name=f"asyncrt-core-{self._threads}", daemon=True).start()
        except RuntimeError:  # the system has no more
            return
        self._threads += 1

    def _ended(self, future: asyncio.Future[Any], error: BaseException | None) -> None:
        work = self._begun.pop(future, None)
        if work is None:
            return  # the device was lost
        tell(future, functools.partial(work.end, error))
        self._waiting.begin_next(self._has_room, self._begin)
        self._on_ended()


def _nothing() -> None:
    """Nobody listens."""


def _serving(
    inbox: queue.SimpleQueue[tuple[Work, asyncio.Future[Any]] | None],
    stream: Stream,
    loop: asyncio.AbstractEventLoop,
    ended: Callable[[asyncio.Future[Any], BaseException | None], None],
) -> Callable[[], None]:
    """Return what a thread does: carry out what is ready, one request after the other."""

    def serve() -> None:
        while (item := inbox.get()) is not None:
            work, future = item
            error: BaseException | None = None
            try:
                work.carry_out(stream)
            except BaseException as failure:
                error = failure
            tell_loop(loop, ended, future, error)
            del item, work, future, error  # hold nothing of it while idle

    return serve
