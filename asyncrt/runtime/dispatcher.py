"""Carries out what the scheduler decides, on the event loop, and keeps the streams' marks.

The only place where the state machine, the timeline and the streams meet. All of it runs on the loop's thread, so there
are no locks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import attrs

from asyncrt.devices.base import Mark, Stream
from asyncrt.events import Event, Timeline
from asyncrt.scheduler.happenings import Ended, Happening, Launched, Reached, Ready, Submitted
from asyncrt.scheduler.instructions import Admit, Launch, Resume
from asyncrt.scheduler.state import SchedulerState

from .checked import Checks
from .completion import Completions
from .traced import Tracer


@attrs.define(eq=False)
class _Waiting:
    """What the coroutine of a request waits for: at most one thing at a time."""

    future: asyncio.Future[int] | None = None


class Dispatcher:
    """Between the requests' coroutines and the scheduler.

    Args:
        streams: In the order of their indices.
        state: The scheduler.
        timeline: Moved on as streams report.
        checks: Is told of what the host does; None where hazards are not checked.
        on_idle: Called when for *idle_s* seconds no request was known and no stream had anything to pass.
        idle_s: None never calls it.
    """

    def __init__(
        self,
        streams: list[Stream],
        state: SchedulerState,
        timeline: Timeline,
        *,
        checks: Checks | None = None,
        on_idle: Callable[[], object] = lambda: None,
        idle_s: float | None = None,
    ) -> None:
        self.streams = streams
        self.state = state
        self.timeline = timeline
        self.checks = checks
        #: Is told of requests and plans while a trace is taken.
        self.tracer: Tracer | None = None
        self._loop = asyncio.get_running_loop()
        self._completions = Completions(self._loop, self._on_reached)
        self._stamps = [0] * len(streams)
        self._marks: dict[Event, Mark] = {}
        #: What the commands before an event use, until it is reached.
        self._kept: dict[Event, object] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._changed: list[asyncio.Future[None]] = []
        self._on_idle = on_idle
        self._idle_s = idle_s
        self._idle: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Dispatcher {len(self._waiting)} requests, {len(self._marks)} marks, {self.state!r}>"

    @property
    def in_flight(self) -> int:
        """How many requests have not ended."""
        return len(self._waiting)

    async def admit(self, request: int, priority: int = 0) -> None:
        """Return when the request may begin."""
        self._stop_idling()
        self._waiting[request] = _Waiting()
        await self._ask(request, Submitted(request, priority))

    async def place(self, request: int) -> int:
        """Return the stream that the request's planned chunk goes to, when it is its turn."""
        return await self._ask(request, Ready(request))

    def launched(self, request: int, stream: int, keep: object = None) -> Event:
        """Note that the request's chunk was enqueued on *stream*; returns the event at its end.

        Args:
            keep: What the chunk uses: it is held until the event, even if the request ends before.
        """
        event = self._stamp(stream)
        self._kept[event] = keep
        waiting = self._waiting[request]
        waiting.future = self._loop.create_future()
        self._handle(Launched(request, event))
        return event

    async def passed(self, request: int) -> None:
        """Return when the device has passed the request's launched chunk; raises what failed there."""
        future = self._waiting[request].future
        assert future is not None
        await future
        self._waiting[request].future = None

    def abandon(self, stream: int, keep: object = None) -> Event:
        """Part of a chunk was enqueued on *stream* and no more will be; returns the event behind that part."""
        event = self._stamp(stream)
        self._kept[event] = keep
        self.state.abandoned(event)
        return event

    def wait_for(self, stream: int, events: Iterable[Event]) -> None:
        """Let what is enqueued next on *stream* wait for *events* of other streams."""
        marks = [self._marks[e] for e in events if not self.timeline.reached(e)]
        if marks:
            self.streams[stream].wait_for(marks)

    def end(self, request: int) -> None:
        """The request is over; what it enqueued still runs out."""
        waiting = self._waiting.pop(request, None)
        if waiting is not None:
            if waiting.future is not None and not waiting.future.done():
                waiting.future.cancel()
            self._handle(Ended(request))
            self._tell()

    @property
    def busy(self) -> bool:
        """Whether a stream has something to pass that was enqueued."""
        return bool(self._marks)

    async def progress(self) -> None:
        """Return when a stream has come further, or a request has ended."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._changed.append(future)
        await future

    async def drained(self) -> None:
        """Return when all requests have ended and every stream has passed all that was enqueued; none may follow."""
        while self._marks or self._waiting:
            await self.progress()
        self._stop_idling()

    async def _ask(self, request: int, happening: Happening) -> int:
        waiting = self._waiting[request]
        waiting.future = self._loop.create_future()
        self._handle(happening)
        answer = await waiting.future
        waiting.future = None
        return answer

    def _stamp(self, stream: int) -> Event:
        self._stamps[stream] += 1
        event = Event(stream, self._stamps[stream])
        mark = self.streams[stream].mark()
        self._marks[event] = mark
        self._completions.watch(self.streams[stream], mark, event)
        return event

    def _on_reached(self, event: Event, error: BaseException | None) -> None:
        self.timeline.advance(event)
        self._marks.pop(event, None)
        self._kept.pop(event, None)
        self._handle(Reached(event), error)
        self._tell()

    def _tell(self) -> None:
        if not self._marks and not self._waiting and self._idle_s is not None:
            self._stop_idling()
            self._idle = self._loop.call_later(self._idle_s, self._on_idle)
        changed, self._changed = self._changed, []
        for future in changed:
            if not future.done():
                future.set_result(None)

    def _stop_idling(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _handle(self, happening: Happening, error: BaseException | None = None) -> None:
        for instruction in self.state.handle(happening):
            match instruction:
                case Admit(request):
                    self._answer(request, 0)
                case Launch(request, stream):
                    self._answer(request, stream)
                case Resume(request):
                    self._answer(request, 0, error)

    def _answer(self, request: int, answer: int, error: BaseException | None = None) -> None:
        waiting = self._waiting.get(request)
        if waiting is None or waiting.future is None or waiting.future.done():
            return
        if error is None:
            waiting.future.set_result(answer)
        else:
            waiting.future.set_exception(error)
