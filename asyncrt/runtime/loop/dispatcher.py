"""Carries out what the scheduler decides, on the event loop.

The only place where the state machine, the timeline and the streams meet. All of it runs on the loop's thread, so there
are no locks.

A request may meet three failures that it did not cause. The command of another request fails, and the driver fails all
commands behind it. Or all memory is held by requests that wait for more. In both cases the request is told to run again
(`RunAgain`); it can, because nothing of it counts before it has ended. Or the device takes no commands any more: then
all requests that wait are told so.

If the scheduler, or this file, raises what it never should, a new scheduler takes its place, because others would wait
for ever for its instructions: the request that it raised for fails, and all others begin again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable, Iterable
from typing import Any

from asyncrt.devices.base import Launcher, Mark, Stream, mark_behind
from asyncrt.errors import (
    DeadlineExceeded,
    DeviceError,
    DeviceLostError,
    IterationLimitError,
    OutOfDeviceMemory,
    RuntimeClosedError,
)
from asyncrt.events import Event, Timeline
from asyncrt.runtime.watch.checked import Checks
from asyncrt.runtime.watch.traced import Tracer
from asyncrt.scheduler.happenings import Elapsed, Ended, Happening, Launched, Reached, Ready, Submitted
from asyncrt.scheduler.instructions import Admit, Expire, Instruction, LaunchChunk, Resume
from asyncrt.scheduler.state import SchedulerState

from .completion import Completions
from .crew import Crew, TellEnd
from .gaps import Gaps
from .gc_pauses import Collector
from .idle import Idle
from .marks import StreamMarks
from .overlapping import Overlapping
from .own_cores import OwnCores
from .pending_request import RUNS, PendingRequest, RunAgain
from .shortage import Shortage
from .submission import Submissions
from .turns import Turns, settle

_ITERATES_S = 5.0  # for which a node of a request may begin iterations while the runtime closes
_log = logging.getLogger("asyncrt")


class Dispatcher:
    """Between the requests' coroutines and the scheduler.

    Args:
        streams: In the order of their indices.
        make_state: Returns a scheduler that knows no request.
        timeline: Moved on as streams report.
        checks: Is told of what the host does; None where hazards are not checked.
        on_idle: Called when for *idle_s* seconds no request was known and no stream had anything to pass.
        idle_s: None never calls it.
        collector: Is told whether a request is there; None where Python collects when it likes.
        max_iterations: How often nodes of a request may go round.
        most: Requests that may be in flight.
        cores: How many the device has.
        open_crew: Returns threads for cores that have requests of their own; None where none may.
        open_launcher: Starts a thread that launches in place of the event loop's; see `LaunchesAside`.
    """

    def __init__(
        self,
        streams: list[Stream],
        make_state: Callable[[], SchedulerState],
        timeline: Timeline,
        *,
        checks: Checks | None = None,
        on_idle: Callable[[], object] = lambda: None,
        idle_s: float | None = None,
        collector: Collector | None = None,
        max_iterations: int,
        most: int = sys.maxsize,
        cores: int = 1,
        open_crew: Callable[[int, TellEnd], Crew] | None = None,
        open_launcher: Callable[[int], Launcher | None] | None = None,
    ) -> None:
        self.streams = streams
        self._make_state = make_state
        self.state = make_state()
        self.timeline = timeline
        self.checks = checks
        #: Is told of requests and plans while a trace is taken.
        self.tracer: Tracer | None = None
        self._loop = asyncio.get_running_loop()
        self.completions = Completions(self._loop, self._on_reached)
        self.marks = StreamMarks(streams, timeline, self.completions, self._put_mark)
        #: Turns of requests that go on, and of those that begin: a caller may end one and begin the next in one turn.
        self._turns, self._beginnings = Turns(self._loop), Turns(self._loop)
        #: The request whose coroutine asks now, and goes on in the same turn if the answer is there.
        self._asking: int | None = None
        #: The streams that threads enqueue to.
        self.submissions = Submissions()
        self._waiting: dict[int, PendingRequest] = {}
        self._short = Shortage(self._waiting)
        self._ended = 0
        #: The error by which the device was found to be lost.
        self._lost: BaseException | None = None
        #: Called when the device is lost, with an error for those who wait for other things.
        self.when_lost: set[Callable[[DeviceLostError], None]] = set()
        self._changed: list[asyncio.Future[None]] = []
        self._idle = Idle(self._loop, idle_s, on_idle)
        #: Between requests, for who works beside them.
        self.gaps = Gaps()
        #: Requests of which nothing else here knows.
        self.overlapping = Overlapping(
            len(streams), most, self._loop, open_launcher, self._may_overlap, self._stop_idling, self.tell
        )
        #: Nor of these.
        self.own_cores = OwnCores(
            cores, most, open_crew, self._loop, lambda: len(self._waiting) + len(self.overlapping),
            self._may_own_core, self._stop_idling, self.tell,
        )  # fmt: skip
        self._collector = collector
        self._max_iterations = max_iterations
        #: Since when no more requests are admitted, by `clock()`.
        self._closing: float | None = None
        #: Goes off at the next deadline.
        self._alarm: asyncio.Handle | None = None
        self._alarm_at = 0.0  # some loops' handles of what is due at once do not tell

    def __repr__(self) -> str:
        return f"<Dispatcher {len(self._waiting)} requests, {len(self.marks)} marks, {self.state!r}>"

    def close(self) -> None:
        """Listen no more."""
        self.overlapping.close()
        self.own_cores.close()
        self.completions.close()
        self.marks.close()

    @property
    def in_flight(self) -> int:
        """How many requests have not ended."""
        return len(self._waiting)

    @property
    def lost(self) -> bool:
        """Whether the device takes no commands any more."""
        return self._lost is not None

    @property
    def alone(self) -> bool:
        """Whether no request is known, all streams have passed all they were given, and nobody looks on."""
        return not self._waiting and self._quiet and not self.beside

    @property
    def beside(self) -> bool:
        """Whether requests are at work of which the scheduler does not know."""
        return bool(self.overlapping) or bool(self.own_cores)

    @property
    def begun_beside(self) -> list[asyncio.Future[Any]]:
        """What those are told by that use memory, be it that they were cancelled."""
        return [*self.overlapping.begun, *self.own_cores.begun]

    def _may_overlap(self) -> bool:
        """Whether that is so but for those that overlap."""
        return not self._waiting and self._quiet

    def _may_own_core(self) -> bool:
        """Whether nobody looks on, and nobody waits for memory, which those that come later would take."""
        return not self._looked_on and not self._short.refused

    @property
    def only_brief(self) -> bool:
        """Whether requests are there that are all brief, so that there will be none soon."""
        return bool(self._waiting) and not self._looked_on and all(w.brief for w in self._waiting.values())

    def is_brief(self, request: int) -> None:
        """Note that a request is so: it does no more than a plan whose launches are prepared."""
        self._waiting[request].brief = True

    def nothing_enqueued(self, request: int) -> bool:
        """Whether no stream has anything to pass and nobody waits for memory or looks on, whoever is there beside one
        request, which has begun."""
        return request in self._waiting and self._quiet and not (self._short.refused or self.submissions)

    def urgency(self, request: int) -> tuple[int, float | None]:
        """Return the priority of a request, and its deadline by the loop's clock."""
        waiting = self._waiting[request]
        return waiting.priority, waiting.deadline

    @property
    def _quiet(self) -> bool:
        return not (len(self.marks) or self._looked_on)

    @property
    def _looked_on(self) -> bool:
        """Whether somebody wants to hear of each request, or none is to begin any more."""
        return not (self.tracer is None and self.checks is None and self._closing is None and self._lost is None)

    def rest(self, *, on_loop: bool) -> None:
        """Note that there is nothing to do, but was just now.

        Args:
            on_loop: Whether this is the event loop's thread.
        """
        if not self._idle.touch():
            if on_loop:
                self._idle.begin()
            else:
                self._loop.call_soon_threadsafe(self._idle.begin)

    def check_lost(self) -> None:
        """Raise `DeviceLostError` if the device is lost."""
        if self._lost is not None:
            raise self._loss() from self._lost

    def _loss(self) -> DeviceLostError:
        error = DeviceLostError(
            "the device takes no commands any more",
            detail=str(self._lost),
            hint="close this runtime and open another one, on another device if it happens again",
        )
        error.__cause__ = self._lost
        return error

    def clock(self) -> float:
        """Return now in seconds, by the clock of deadlines; its zero is anywhere."""
        return self._loop.time()

    async def admit(self, request: int, priority: int = 0, deadline: float | None = None) -> None:
        """Return when the request may begin.

        Raises:
            DeadlineExceeded: It is *deadline* by the loop's clock. All that waits for anything raises it by then.
            RuntimeClosedError: No more are admitted.
        """
        if self._closing is not None:
            raise RuntimeClosedError("the runtime is closed")
        if self.overlapping:
            await self.overlapping.drained()
        self._stop_idling()
        self._waiting[request] = PendingRequest(priority, deadline)
        await self._ask(request, Submitted(request, priority, deadline))

    async def begin_again(self, request: int) -> None:
        """Return when a request that was told to run again may do so."""
        waiting = self._waiting[request]
        waiting.unknown, waiting.iterations = None, 0
        self._handle(Ended(request), tell=True)
        if waiting.yields:
            # The requests that it made room for go first, so that the oldest of them gets all the memory it asks for.
            waiting.yields, ended = False, self._ended
            while self._ended == ended:
                await self.progress()
                self.check_lost()
        await self._ask(request, Submitted(request, waiting.priority, waiting.deadline))

    async def place(self, request: int, work: int = 1) -> int:
        """Return the stream that the request's planned chunk goes to, when it is its turn.

        Args:
            work: How much the chunk is, about.
        """
        self._waiting[request].beside, self._waiting[request].failed = (), None
        return await self._ask(request, Ready(request, work), at_once=True)

    def check_deadline(self, request: int) -> None:
        """Raise `DeadlineExceeded` if it is too late to launch anything of the request."""
        deadline = self._waiting[request].deadline
        if deadline is not None and deadline <= self.clock():
            raise _late()

    def iterations_left(self, request: int) -> int:
        """Return how many iterations the nodes of a request may still begin."""
        return self._max_iterations - self._waiting[request].iterations

    async def iterates(self, request: int, times: int = 1) -> None:
        """Let others go on between two iterations of a node; raises if there is to be none.

        Args:
            times: How many there were since it was asked last.

        Raises:
            DeadlineExceeded: It is too late to launch anything of the request.
            IterationLimitError: There were as many as the options allow.
            RuntimeClosedError: The runtime has been closing for too long to wait for more of them.
        """
        waiting = self._waiting[request]
        waiting.iterations += times
        if waiting.iterations > self._max_iterations:
            raise IterationLimitError(
                f"the request's loops went round {waiting.iterations} times; RuntimeOptions.max_iterations is "
                f"{self._max_iterations}",
                hint="raise max_iterations, if the model is to be trusted and does end",
            )
        await asyncio.sleep(0)
        self.check_lost()
        self.check_deadline(request)
        if self._closing is not None and self.clock() >= self._closing + _ITERATES_S:
            raise RuntimeClosedError(f"the runtime has been closing for {_ITERATES_S:g} s, and the request iterates on")

    def begins(self, request: int, stream: int) -> None:
        """Note that the request's chunk begins to be enqueued on *stream*, whose next event is at its end."""
        waiting = self._waiting[request]
        waiting.hit, waiting.known = False, self.timeline.passed(stream)
        waiting.waits = self.marks.waits(stream)
        waiting.event = self.marks.next(stream)

    def launched(self, request: int, stream: int, keep: object = None) -> Event:
        """Note that the request's chunk was enqueued on *stream*; returns the event at its end.

        Args:
            keep: What the chunk uses: it is held until the event, even if the request ends before.
        """
        waiting = self._waiting[request]
        if waiting.event != self.marks.next(stream):
            self.begins(request, stream)
        event = self.marks.end(stream, keep)
        assert event == waiting.event, "while a chunk is enqueued nobody else marks its stream"
        waiting.future = self._loop.create_future()
        try:
            if waiting.unknown is None:
                self._carry_out(self.state.handle(Launched(request, event)))  # in time, however long enqueueing took
            else:
                self.state.abandoned(event)
                waiting.future.set_exception(waiting.unknown)
        except Exception as failure:
            self._start_over(failure, request)
        return event

    async def passed(self, request: int) -> None:
        """Return when the device has passed the request's launched chunk; raises what failed there.

        Raises:
            RunAgain: What failed may have been another's.
        """
        waiting = self._waiting[request]
        assert waiting.future is not None
        try:
            await waiting.future
            while self.timeline.pending(waiting.beside):  # reports of different streams come in any order
                await self.progress()
                self.check_lost()
            if waiting.failed is not None:
                raise waiting.failed
        except DeviceError as error:
            self.check_lost()
            # Reports of different streams come in any order: commands that are not known to be over may have failed.
            waiting.hit |= bool(self.timeline.pending(waiting.waits))
            if waiting.hit and waiting.runs < RUNS:
                waiting.runs += 1
                raise RunAgain from error
            raise
        waiting.future = None

    def abandon(self, stream: int, keep: object = None) -> Event:
        """Part of a chunk was enqueued on *stream* and no more will be; returns the event behind that part."""
        event = self.marks.end(stream, keep)
        try:
            self.state.abandoned(event)
        except Exception as failure:
            self._start_over(failure)
        return event

    def frugal(self, request: int) -> bool:
        """Whether memory is so short that the request should take no more than it needs."""
        return self._waiting[request].frugal

    def ask_device(self) -> None:
        """Something was refused, or may be: find out whether the device is lost, by one more mark on a stream.

        One that is busy, if there is one: only then does anybody wait for the device.
        """
        streams = [s for s in (*[event.stream for event in self.marks.pending], 0) if not self.submissions.busy(s)]
        if streams and not self.lost:  # a thread that enqueues to a busy one learns it by itself
            with contextlib.suppress(DeviceLostError):
                self.abandon(streams[0])

    # Of a chunk that is on several streams; see `asyncrt.runtime.execute.lanes`.

    def idle_beside(self, stream: int) -> list[int]:
        """Return the other streams that have nothing to pass and to which nobody enqueues."""
        return [s for s in self.state.idle_streams if s != stream and not self.submissions.busy(s)]

    def ends_beside(self, request: int, events: Iterable[Event]) -> None:
        """Note that parts of the request's chunk end at *events*, on other streams: it is not passed before them."""
        self._waiting[request].beside = tuple(events)

    async def memory(self, request: int, error: OutOfDeviceMemory) -> None:
        """Return when a launching request that was refused memory may try again.

        Raises:
            OutOfDeviceMemory: *error*, if nobody else could give any back.
            RunAgain: The request itself has to give some back, so that another can go on.
        """
        self.check_lost()
        self._short.refused[request] = error
        self._waiting[request].future = future = self._loop.create_future()
        try:
            self._resolve_shortage(request)
            await future
        finally:
            self._short.refused.pop(request, None)
        self.check_lost()

    def _resolve_shortage(self, request: int) -> None:
        if not self.marks and not self.beside:
            try:
                self._short.resolve(self.state.statistics())
            except Exception as failure:
                self._start_over(failure, request)

    def end(self, request: int) -> None:
        """The request is over; what it enqueued still runs out."""
        waiting = self._waiting.pop(request, None)
        if waiting is not None:
            self._ended += 1
            future = waiting.future
            if future is not None and not future.cancel() and not future.cancelled():
                future.exception()  # it came when nobody waited any more
            self._handle(Ended(request), tell=True)

    @property
    def busy(self) -> bool:
        """Whether a stream has something to pass that was enqueued."""
        return bool(len(self.marks)) or self.beside

    @property
    def settled(self) -> bool:
        """Whether it holds nothing: no mark, nothing that is kept until one is reached, no timer."""
        return not len(self.marks) and not self.marks.held and self._alarm is None

    async def progress(self) -> None:
        """Return when a stream has come further, or a request has ended."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._changed.append(future)
        await future

    async def drained(self) -> None:
        """Return when all requests have ended and every stream has passed all that was enqueued; none may follow.

        What is on a lost device is not waited for.
        """
        self._closing = self.clock()
        self.overlapping.drain()
        if self.marks:
            self.ask_device()
        while self._waiting or ((self.marks or self.own_cores or self.overlapping.held) and not self.lost):
            await self.progress()
        self._stop_idling()
        self._idle.close()

    async def _ask(self, request: int, happening: Happening, *, at_once: bool = False) -> int:
        """Tell the scheduler and return its answer.

        Args:
            at_once: Go on in the same turn of the loop if the answer is there; others may have to wait for theirs.
        """
        self.check_lost()
        waiting = self._waiting[request]
        if waiting.unknown is not None:
            raise waiting.unknown
        waiting.future = self._loop.create_future()
        self._asking = request if at_once else None
        self._handle(happening)
        self._asking = None
        if self._short.refused:
            self._resolve_shortage(request)  # it may have been the last that did not wait for memory, and waits now
        answer = await waiting.future
        waiting.future = None
        self.check_lost()
        return answer

    def _put_mark(self, stream: int) -> Mark:
        """Put a mark behind what is enqueued on *stream*; without one, nobody could know when it is passed."""
        self.check_lost()
        try:
            return mark_behind(self.streams[stream])
        except Exception as error:
            self._lose(error)
            self.check_lost()
            raise

    def _lose(self, error: BaseException) -> None:
        """The device is lost: tell everybody who waits."""
        self._lost = error
        self.marks.forget_inside()
        for waiting in self._waiting.values():
            if waiting.future is not None and not waiting.future.done():
                waiting.future.set_exception(self._loss())
        self.own_cores.lose(self._loss())
        for tell in list(self.when_lost):
            try:
                tell(self._loss())
            except Exception:  # others are to hear of it, too
                _log.exception("telling that the device is lost")
        self.tell()

    def _on_reached(self, event: Event, error: BaseException | None) -> None:
        try:
            self._reach(event, error)
        except Exception as failure:
            self._start_over(failure, reached=event)

    def _reach(self, event: Event, error: BaseException | None) -> None:
        error = self.marks.reach(event, error)
        if error is not None:
            for waiting in self._waiting.values():
                waiting.hit |= waiting.comes_after(event)
                if event in waiting.beside:
                    waiting.failed = error
        self.marks.release(event)
        self._handle(Reached(event), error, tell=True)

    def tell(self) -> None:
        """Wake up those who wait for progress."""
        changed, self._changed = self._changed, []
        for future in changed:
            if not future.done():
                future.set_result(None)
        if not self.marks and not self._waiting and not self.beside:
            self._idle.begin()
            if self.gaps.watched:
                self.gaps.end()
            if self._collector is not None:
                self._collector.quiet()
        if self._short.refused:
            self._short.try_again()

    def _stop_idling(self) -> None:
        self._idle.end()
        if self.gaps.watched:
            self.gaps.begin()
        if self._collector is not None:
            self._collector.busy()

    def _handle(self, happening: Happening, error: BaseException | None = None, *, tell: bool = False) -> None:
        try:
            if self.state.next_deadline is not None:
                self._elapse()
            self._carry_out(self.state.handle(happening), error)
            if self._alarm is not None or self.state.next_deadline is not None:
                self._set_alarm()
            if tell:
                self.tell()
        except Exception as failure:
            self._start_over(failure, getattr(happening, "request", None))

    def _start_over(self, failure: Exception, request: int | None = None, reached: Event | None = None) -> None:
        """The scheduler, or what carries it out, raised *failure*: let all begin again, but for *request*, which fails.

        Args:
            reached: What was to be noted as reached.
        """
        _log.error("the scheduler failed; all requests in flight begin again", exc_info=failure)
        try:
            if reached is not None:
                self.marks.forget_until(reached)
            self.state = self._make_state()
            for event in sorted(self.marks.pending):
                self.state.abandoned(event)
            for number, waiting in self._waiting.items():
                waiting.forgotten(failure, to_blame=number == request)
            self._short.refused.clear()
            self.tell()
            self._set_alarm()
        except Exception as again:
            self._lose(again)

    def _elapse(self) -> None:
        """Tell the scheduler what time it is, if that matters to anybody."""
        due, now = self.state.next_deadline, self.clock()
        if due is not None and due <= now:
            self._carry_out(self.state.handle(Elapsed(now)))

    def _set_alarm(self) -> None:
        due = self.state.next_deadline
        if self._alarm is not None and (due is None or due < self._alarm_at):
            self._alarm.cancel()
            self._alarm = None
        if self._alarm is None and due is not None:
            self._alarm, self._alarm_at = self._loop.call_at(due, self._on_alarm), due

    def _on_alarm(self) -> None:
        self._alarm = None
        try:
            self._elapse()
            self._set_alarm()
        except Exception as failure:
            self._start_over(failure)

    def _carry_out(self, instructions: list[Instruction], error: BaseException | None = None) -> None:
        for instruction in instructions:
            match instruction:
                case Admit(request):
                    self._answer(request, 0, turns=self._beginnings)
                case LaunchChunk(request, stream):
                    self._answer(request, stream)
                case Resume(request):
                    self._answer(request, 0, error)
                case Expire(request):
                    self._answer(request, 0, _late())

    def _answer(
        self, request: int, answer: int, error: BaseException | None = None, turns: Turns | None = None
    ) -> None:
        waiting = self._waiting.get(request)
        if waiting is None or waiting.future is None or waiting.future.done():
            return
        if request == self._asking:
            settle(waiting.future, answer, error)
        else:
            (turns or self._turns).go_on(waiting.future, answer, error)


def _late() -> DeadlineExceeded:
    return DeadlineExceeded(
        "the request's deadline passed before all of it was launched",
        hint="allow it more time, or send fewer requests at once",
    )
