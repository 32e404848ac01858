"""Which caller may run a request on its own thread next, where several want to, and for how long in a turn of the loop?

Everything else on the event loop waits meanwhile, so one turn has time for `TURN_S` of such requests. Who comes later
waits for a turn that follows (`asyncrt.runtime.loop.waiting_line`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator

from asyncrt.runtime.loop.dispatcher import Dispatcher
from asyncrt.runtime.loop.waiting_line import WaitingLine

TURN_S = 500e-6
"""For which such requests may go on in one turn of the event loop."""
_TURN_NS = round(TURN_S * 1e9)
_MIXED = 256  # requests for which nobody waits for others to end, after one was there that is not brief


class CallersTurns:
    """The turns of one event loop.

    Args:
        dispatcher: Knows the requests that are in flight.
        loop: Whose turns these are.
        clock: Returns now in nanoseconds.
    """

    def __init__(self, dispatcher: Dispatcher, loop: asyncio.AbstractEventLoop, clock: Callable[[], int]) -> None:
        self._dispatcher, self._loop, self._clock = dispatcher, loop, clock
        #: When the first request of this turn began.
        self._began: int | None = None
        #: What one of them takes lately, in seconds.
        self._usual = TURN_S
        self._line: WaitingLine[None] = WaitingLine()
        #: Those whose turn it was when there was no time left: they go first.
        self._again: deque[asyncio.Future[None]] = deque()
        #: When a request ended last on the general way.
        self._ended_at = 0
        #: Whether the end of this turn is listened for.
        self._listens = False
        #: For how many more requests nobody waits for those in flight: others than brief ones were among them.
        self._mixed = 0
        #: Done when those in flight that were waited for last have ended.
        self._drain: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<CallersTurns, {len(self._line) + len(self._again)} wait>"

    @property
    def ran(self) -> bool:
        """Whether a request has run in this turn."""
        return self._began is not None

    @property
    def wanted(self) -> bool:
        """Whether others wait for one."""
        return bool(self._line) or bool(self._again)

    @property
    def free(self) -> bool:
        """Whether a request may run in this turn that has not waited."""
        return self._has_time and not self.wanted

    @property
    def _has_time(self) -> bool:
        return self._began is None or self._clock() - self._began < _TURN_NS

    async def drained(self) -> bool:
        """Return when no request is in flight, or one that is not brief; False at once if one is so, or was lately.

        One task looks for all who wait: each of them would be woken whenever a request has ended.
        """
        if not self._dispatcher.in_flight:
            return True
        if self._mixed or not self._dispatcher.only_brief:
            self._mixed = self._mixed - 1 if self._mixed else _MIXED
            return False
        if self._drain is None or self._drain.done():
            self._drain = self._loop.create_task(self._look())
        await asyncio.wait((self._drain,))
        return True

    async def _look(self) -> None:
        """Return when the requests in flight are not all brief any more, or there are none."""
        while self._dispatcher.only_brief:
            await self._dispatcher.progress()

    async def wait(self, priority: int, until: float | None) -> None:
        """Return in a turn in which the caller may run a request, before anything else is awaited.

        Args:
            until: When its request is too late.
        """
        future: asyncio.Future[None] = self._loop.create_future()
        self._line.push(priority, until, None, future)
        self._listen()
        await future
        while not self._has_time:  # those before it took longer than was thought
            future = self._loop.create_future()
            self._again.append(future)
            self._listen()
            await future

    async def of_part(self, request: int) -> None:
        """Return in a turn in which a part of a request may run, before anything else is awaited.

        Where no other request is there, that is at once: between two parts the loop has turns anyway.
        """
        if self._dispatcher.in_flight > 1 and not self.free:
            await self.wait(*self._dispatcher.urgency(request))

    @contextlib.contextmanager
    def part(self) -> Iterator[None]:
        """Note for how long the part runs whose turn it is, where other requests are there."""
        if self._dispatcher.in_flight == 1:
            yield
            return
        self.begin()
        began = self._clock()
        yield
        self.took((self._clock() - began) / 1e9)

    def begin(self) -> None:
        """Note that a request, or a part of one, begins on the loop's thread."""
        if self._began is None:
            self._began = self._clock()
            self._listen()

    def took(self, seconds: float) -> None:
        """Note how long one took."""
        self._usual += (seconds - self._usual) / 4

    def between_ends(self, seconds: float, others: int) -> float | None:
        """Note that a request has ended on the general way; returns the seconds from the end before it to its own, of
        those in which it was there; None if no other was there meanwhile.

        Args:
            seconds: Which it took.
            others: How many are still there.
        """
        before, self._ended_at = self._ended_at, self._clock()
        between = (self._ended_at - before) / 1e9
        return min(between, seconds) if others or between < seconds else None

    def _listen(self) -> None:
        if not self._listens:
            self._listens = True
            self._loop.call_soon(self._ended)

    def _ended(self) -> None:
        """This turn has ended: let as many of those who wait go on in the next as it has time for."""
        self._began, self._listens = None, False
        left = TURN_S
        while left > 0 and (future := self._next()) is not None:
            future.set_result(None)
            left -= self._usual
        if self.wanted:  # whatever becomes of those
            self._listen()

    def _next(self) -> asyncio.Future[None] | None:
        """Return by what the next is told that still waits."""
        while self._again:
            future = self._again.popleft()
            if not future.done():
                return future
        found = self._line.pop()
        return None if found is None else found[1]
