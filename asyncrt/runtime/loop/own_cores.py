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
from collections.abc import Callable, Collection
from typing import Any, TypeAlias

from .crew import Crew, TellEnd, Work
from .waiting_line import WaitingLine, tell

_PART = 0.75
"""Of the cores, each of which has a request, that answer as many as all of them do together."""
_LONGEST_S = 0.25
"""For which a core may be kept by one request: a long one among brief ones is sooner done by all of them."""
_AHEAD = 2  # requests for each core that are made ready at once, so that a thread need not wait for the event loop


def enough(cores: int) -> int:
    """Return from how many requests on each is to have a core."""
    return max(2, round(_PART * cores))


Begin: TypeAlias = Callable[[], Work | None]
"""Makes a request ready; returns None if it has to go the general way."""


class OwnCores:
    """The requests that have a core each, or wait for one.

    Args:
        cores: How many there are.
        most: Requests that may be at work, or ready for it.
        open_crew: Returns threads for so many cores, which call what they are given when a request has ended; None
            where no request may have a core.
        loop: Where requests begin and end.
        others: Returns how many requests are there that have all cores.
        may: Whether one may begin.
        on_begun: Called when the first begins.
        on_ended: Called when one has ended.
    """

    def __init__(
        self,
        cores: int,
        most: int,
        open_crew: Callable[[int, TellEnd], Crew] | None,
        loop: asyncio.AbstractEventLoop,
        others: Callable[[], int],
        may: Callable[[], bool],
        on_begun: Callable[[], None],
        on_ended: Callable[[], None],
    ) -> None:
        self.cores, self._open_crew, self._loop = cores, open_crew, loop
        self._most = min(most, _AHEAD * cores)
        self._others, self._may, self._on_begun, self._on_ended = others, may, on_begun, on_ended
        self._enough = math.inf if open_crew is None or most < enough(cores) else enough(cores)
        #: Those that a thread works on, or will before long.
        self._begun: dict[asyncio.Future[Any], Work] = {}
        #: Those that are to begin.
        self._waiting: WaitingLine[Begin] = WaitingLine()
        #: The threads, once there was one to begin.
        self._crew: Crew | None = None

    def __repr__(self) -> str:
        return f"<OwnCores {len(self._begun)} requests, {len(self._waiting)} wait>"

    def __len__(self) -> int:
        return len(self._begun) + len(self._waiting)

    @property
    def begun(self) -> Collection[asyncio.Future[Any]]:
        """What those at work are told by, be it that they were cancelled."""
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
        self._enough, self._open_crew = math.inf, None
        self._others, self._may, self._on_begun, self._on_ended = int, bool, _nothing, _nothing
        if self._crew is not None:
            self._crew.close()

    def _give_up(self, future: asyncio.Future[Any]) -> None:
        """The deadline has come of a request that waits, or has begun."""
        if future not in self._begun and not future.done():
            future.set_result(None)

    def _has_room(self) -> bool:
        return len(self._begun) < self._most

    def _begin(self, begin: Begin, future: asyncio.Future[Any]) -> bool:
        if self._crew is None:
            assert self._open_crew is not None
            self._crew = self._open_crew(self.cores, self._ended)
        work = begin() if self._crew.has(len(self._begun) + 1) else None
        if work is None:
            return False
        try:
            self._crew.give(work, future)
        except Exception as error:
            work.end(error)  # raises it
        self._begun[future] = work
        if len(self._begun) == 1:
            self._on_begun()
        return True

    def _ended(self, future: asyncio.Future[Any], error: BaseException | None) -> None:
        work = self._begun.pop(future, None)
        if work is None:
            return  # the device was lost
        tell(future, functools.partial(work.end, error))
        self._waiting.begin_next(self._has_room, self._begin)
        self._on_ended()


def _nothing() -> None:
    """Nobody listens."""
