"""Which requests of callers who ask at once are at work on a device that works by itself, a request on each stream?

On the general way a brief request takes longer between threads than the device takes for it: one waits for its stream
and wakes the event loop, which enqueues the next. Here a thread without Python does what is to be done between a
request's inputs and its results, for all streams (`asyncrt.devices.base.Launcher`); the loop's thread only makes
requests ready, up to two for each stream, and hands out their results.

Where there is no such thread, the loop's begins a request on each stream and, in its next turn, waits for the one that
it began first; meanwhile the others are at work. So a turn is kept for no longer than a brief request takes, and less
the more of them there are.

A request that is alone, and too long for its caller's thread, is left to that thread as well, on any device that has
one: the event loop is woken up once, when there are results.

The scheduler, the timeline and the marks never hear of these: they begin while no request is known and every stream has
passed all that it was given, and before one goes the general way all of them are ended. Who waits for a stream then
goes it as well.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

from asyncrt.devices.base import Launcher

from .waiting_line import WaitingLine, tell
from .wake_up import WakeUp, started

End: TypeAlias = Callable[[], Any]
"""Waits until a request is done, and returns its outcome or raises what it failed with. Its stream is free then."""
Begin: TypeAlias = Callable[[int], End | None]
"""Begins a request on a stream and returns what ends it; None if it has to go the general way."""
_OFTEN = 3
_AHEAD = 2  # requests of each stream that a thread has, so that it need not wait for the event loop between them


class Overlapping:
    """The requests that are at work so.

    Args:
        streams: How many there are.
        most: Requests that may have begun.
        loop: Whose thread begins and ends them.
        open_launcher: Starts a thread that does so in its place, which writes to an eventfd; returns None, or is None,
            where that cannot be.
        may: Whether one may begin.
        on_begun: Called when the first begins.
        on_ended: Called when one has ended.

    Attributes:
        most: Requests that may have begun.
        launcher: The thread; None where the loop's does it.
    """

    def __init__(
        self,
        streams: int,
        most: int,
        loop: asyncio.AbstractEventLoop,
        open_launcher: Callable[[int], Launcher | None] | None,
        may: Callable[[], bool],
        on_begun: Callable[[], None],
        on_ended: Callable[[], None],
    ) -> None:
        self._loop, self._may, self._on_begun, self._on_ended = loop, may, on_begun, on_ended
        self.launcher: Launcher | None
        self._wake_up: WakeUp | None
        found = None if open_launcher is None else started(loop, self._collect, open_launcher)
        self.launcher, self._wake_up = (None, None) if found is None else found
        each = 1 if self.launcher is None else _AHEAD
        self.most = min(each * streams, most)
        #: The streams of those that may begin.
        self._idle = deque([*range(streams)] * each, self.most)
        #: Those at work, in the order in which they were begun.
        self._begun: deque[tuple[int, End, asyncio.Future[Any]]] = deque()
        #: Those that wait for a stream.
        self._waiting: WaitingLine[Begin] = WaitingLine()
        #: How often in a row one was at work whom nobody was beside; and whether somebody is beside those that are.
        self._lonely, self._company = 0, False
        #: For how many who are to go the general way none begins; they are told when none is at work any more.
        self._held = 0
        self._drain: asyncio.Future[None] | None = None
        #: Whether the next turn of the loop is ours.
        self._listens = False

    def __repr__(self) -> str:
        return f"<Overlapping {len(self)} requests, {len(self._waiting)} wait>"

    def __len__(self) -> int:
        return len(self._begun)

    @property
    def begun(self) -> list[asyncio.Future[Any]]:
        """What those at work are told by, be it that they were cancelled."""
        return [future for _, _, future in self._begun]

    @property
    def lonely(self) -> bool:
        """Whether nobody was beside those that were at work lately."""
        return self._lonely >= _OFTEN

    @property
    def held(self) -> bool:
        """Whether somebody waits until none is at work."""
        return self._held > 0

    def expect(self) -> None:
        """Somebody is there whose requests may be at work beside others."""
        self._lonely = 0

    async def run(self, begin: Begin, priority: int, until: float | None) -> Any:
        """Return a request's outcome; None if it has to go the general way. Who is cancelled leaves it to its end.

        Args:
            until: Its deadline, by which it is ordered among those that wait.
        """
        if not self._may() or self._held:
            return None
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._waiting or not self._idle:
            self._waiting.push(priority, until, begin, future)
        elif not self._begin(begin, future):
            return None
        return await future

    async def drained(self) -> None:
        """Return when none is at work; until then none begins, and those that wait for a stream go the general way."""
        while self._begun:
            self._held += 1
            self._leave()
            if self._drain is None:
                self._drain = self._loop.create_future()
            try:
                await asyncio.wait((self._drain,))
            finally:
                self._held -= 1
                self._on_ended()  # who closes waits for those who wait

    def drain(self) -> None:
        """Do the same at once. Blocks."""
        if self.launcher is not None and self._begun:
            self.launcher.wait()
            self.launcher.collect()
        while self._begun:
            self._end_first()
        self._leave()

    def _leave(self) -> None:
        """Let those that wait for a stream go the general way."""
        for future in self._waiting.leave():
            future.set_result(None)

    def close(self) -> None:
        """Let none begin any more; those that were at work have ended, or their device is lost."""
        if self.launcher is not None and not self._begun:
            self.launcher.close()
        if self._wake_up is not None:
            self._wake_up.close()
        self.launcher = self._wake_up = None
        self._may, self._on_begun, self._on_ended = _never, _nothing, _nothing

    def _begin(self, begin: Begin, future: asyncio.Future[Any]) -> bool:
        stream = self._idle[0]
        end = begin(stream)
        if end is None:
            return False
        self._idle.popleft()
        self._begun.append((stream, end, future))
        if len(self._begun) == 1:
            self._on_begun()
        else:
            self._company = True
        self._listen()
        return True

    def _end_first(self) -> None:
        stream, end, future = self._begun.popleft()
        try:
            tell(future, end)
        finally:
            self._idle.append(stream)
        if not self._begun:
            self._lonely, self._company = 0 if self._company else self._lonely + 1, False
            if self._drain is not None:
                self._drain.set_result(None)
                self._drain = None
        self._on_ended()

    def _listen(self) -> None:
        if not self._listens and self.launcher is None:
            self._listens = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """End the one that was begun first, and begin those that wait for its stream."""
        self._listens = False
        self._go_on(min(1, len(self._begun)))
        if self._begun:
            self._listen()

    def _collect(self) -> None:
        """End those that the thread has ended, and begin those that wait for their streams."""
        if self.launcher is not None:
            self._go_on(len(self.launcher.collect()))

    def _go_on(self, ended: int) -> None:
        for _ in range(ended):
            self._end_first()
        if not self._may():
            self._leave()
        self._waiting.begin_next(lambda: self._idle, self._begin)


def _never() -> bool:
    return False


def _nothing() -> None:
    """Nobody listens."""
