"""Which request may begin, and which chunk goes to which stream when.

Everything that decides this is in this file or in the policy it was given. It does no I/O, does not wait, knows neither
devices nor bytes, and never looks at the clock: the same happenings give the same instructions.

`transitions.py` has the states of a request and which may follow which. It is *waiting* until it is admitted (at most
`max_in_flight` are), then *preparing* its next chunk, *ready* when the chunk is planned, *launching* from the
`LaunchChunk` instruction until `Launched`, and *running* until the chunk's event is reached; then it prepares the next.
`Ended` may come in any state; for a request that is not known (any more) it changes nothing. A stream's depth counts
what was launched there and has not been reached yet. That includes chunks of ended requests: the device still has to
pass them.

Only `Elapsed` tells the time. A request whose deadline has passed gets no `LaunchChunk` any more: it is *expired* as
soon as it waits for something here, and from then on can only end. What is on a stream by then still runs.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter, deque
from typing import assert_never

import attrs

from asyncrt.events import Event

from .happenings import Elapsed, Ended, Happening, InvalidHappening, Launched, Reached, Ready, Submitted
from .instructions import Admit, Expire, Instruction, LaunchChunk, Resume
from .policies import Policy, StreamView
from .queue import RequestQueue
from .transitions import MAY_BECOME, State


@attrs.frozen
class SchedulerStatistics:
    """How many requests are in which state.

    Attributes:
        waiting: To be admitted.
        preparing: Admitted, and planning their next chunk or about to end.
        ready: Planned, and waiting for a stream.
        launching: Being enqueued.
        running: Passed to the device.
        expired: Past their deadline, and about to end.
        depths: Chunks on each stream that it has not passed, those of ended requests too.
    """

    waiting: int
    preparing: int
    ready: int
    launching: int
    running: int
    expired: int
    depths: tuple[int, ...]


@attrs.define(eq=False)
class _Request:
    number: int
    priority: int
    deadline: float | None
    state: State = "waiting"
    admitted: bool = False
    work: int = 0
    stream: int | None = None
    event: Event | None = None

    def become(self, state: State) -> None:
        assert state in MAY_BECOME[self.state], (self.state, state)
        self.state = state


class SchedulerState:
    """All requests in flight.

    Args:
        streams: How many streams there are.
        policy: Chooses among the ready.
        max_in_flight: Requests admitted at once.
        story_length: Happenings remembered for `story()`.
    """

    def __init__(self, streams: int, policy: Policy, *, max_in_flight: int = 64, story_length: int = 4096) -> None:
        self.max_in_flight = max_in_flight
        self._policy = policy
        self._requests: dict[int, _Request] = {}
        self._waiting = RequestQueue()
        self._admitted = 0
        #: Deadlines that have not come of requests that have not ended, the earliest first.
        self._deadlines: list[tuple[float, int]] = []
        self._now = -math.inf
        #: How many requests the policy has.
        self._ready = 0
        #: Per stream the events launched there and not reached, oldest first.
        self._in_flight: list[deque[Event]] = [deque() for _ in range(streams)]
        #: `LaunchChunk` instructions given and not yet answered by Launched or Ended.
        self._launching = [0] * streams
        #: Per stream the newest stamp it was told of.
        self._newest = [0] * streams
        self._by_event: dict[Event, int] = {}
        #: How much work each event ends, and how much each stream has in all, what is being launched included.
        self._work_of: dict[Event, int] = {}
        self._work = [0] * streams
        self._log: deque[Happening | Instruction] = deque(maxlen=story_length)

    def __repr__(self) -> str:
        s = self.statistics()
        return (
            f"<SchedulerState {self._admitted} admitted, {s.waiting} waiting, "
            f"{s.ready} ready, {s.running} running; stream depths {list(s.depths)}>"
        )

    def statistics(self) -> SchedulerStatistics:
        """Return how many requests are in which state."""
        count = Counter(r.state for r in self._requests.values())
        depths = tuple(self._depth(s) for s in range(len(self._in_flight)))
        return SchedulerStatistics(
            count["waiting"], count["preparing"], count["ready"], count["launching"], count["running"],
            count["expired"], depths,
        )  # fmt: skip

    @property
    def next_deadline(self) -> float | None:
        """When the next deadline is: `Elapsed` has to come then, before anything else that may give instructions."""
        return self._deadlines[0][0] if self._deadlines else None

    @property
    def idle_streams(self) -> list[int]:
        """The streams that have nothing in flight, and to which nothing is being launched."""
        return [s for s in range(len(self._in_flight)) if not self._depth(s)]

    @property
    def requests(self) -> dict[int, tuple[State, Event | None]]:
        """The state of each request that is known, and the event of its chunk where one is running."""
        return {number: (r.state, r.event) for number, r in self._requests.items()}

    @property
    def waiting(self) -> list[int]:
        """The requests to be admitted, in the order in which they would be."""
        return list(self._waiting)

    @property
    def idle(self) -> bool:
        """Whether no request is known and no stream has anything in flight."""
        return not self._requests and not any(self._in_flight)

    def handle(self, happening: Happening) -> list[Instruction]:
        """Take note of *happening* and return what is to be done now, in order.

        Raises:
            InvalidHappening: It cannot be; nothing has changed.
        """
        given: list[Instruction] = []
        match happening:
            case Submitted(number, priority, deadline):
                if number in self._requests:
                    raise self._invalid(happening, number, "it was submitted before")
                request = self._requests[number] = _Request(number, priority, deadline)
                self._waiting.push(number, priority, deadline)
                if self._late(request):
                    self._expire(request, given)
                elif deadline is not None:
                    bisect.insort(self._deadlines, (deadline, number))
            case Ready(number, work):
                request = self._expect(happening, number, "preparing")
                request.become("ready")
                request.work = work
                self._ready += 1
                self._policy.push(number, request.priority, request.stream, request.deadline, work)
                if self._late(request):
                    self._expire(request, given)
            case Launched(number, event):
                request = self._expect(happening, number, "launching")
                if self._late(request):
                    raise self._invalid(happening, number, "its deadline had passed")
                if event.stream != request.stream:
                    raise self._invalid(happening, number, f"it was to be launched on stream {request.stream}")
                self._enqueued(happening, number, event)
                self._launching[event.stream] -= 1
                self._work_of[event] = request.work
                request.become("running")
                request.event = event
                self._by_event[event] = number
            case Reached(event):
                if not (0 <= event.stream < len(self._newest) and event.stamp <= self._newest[event.stream]):
                    raise InvalidHappening(f"{happening!r}: nothing was launched there; {self!r}")
                self._reach(event, given)
            case Ended(number):
                self._end(number)
            case Elapsed(now):
                self._now = max(self._now, now)
                while self._deadlines and self._deadlines[0][0] <= self._now:
                    self._expire(self._requests[self._deadlines.pop(0)[1]], given)
            case _:
                assert_never(happening)
        self._log.append(happening)
        self._admit(given)
        self._launch(given)
        self._log.extend(given)
        return given

    def abandoned(self, event: Event) -> None:
        """Part of a chunk was enqueued and no more will be: the device still has to pass *event*, for nobody."""
        self._enqueued("abandoned", None, event)

    def story(self, request: int) -> list[str]:
        """Return what is remembered of a request, ended or not: its happenings and instructions, in order."""
        return [repr(e) for e in self._log if getattr(e, "request", None) == request]

    def check(self) -> None:
        """Raise AssertionError unless the state is consistent. For tests: after every happening it must hold."""
        admitted = [r for r in self._requests.values() if r.admitted]
        assert self._admitted == len(admitted) <= self.max_in_flight, self
        assert all(r.admitted == (r.state != "waiting") for r in self._requests.values() if r.state != "expired"), self
        assert self._ready == sum(r.state == "ready" for r in admitted), self
        for stream, launching in enumerate(self._launching):
            mine = [r for r in admitted if r.state == "launching" and r.stream == stream]
            assert launching == len(mine), (self, stream)
            work = sum(r.work for r in mine) + sum(w for e, w in self._work_of.items() if e.stream == stream)
            assert self._work[stream] == work, (self, stream)
            events = list(self._in_flight[stream])
            assert events == sorted(events), (self, stream)
        for event, number in self._by_event.items():
            assert self._requests[number].event == event, (self, event)
            assert self._requests[number].state == "running", (self, event)
            assert event in self._in_flight[event.stream], (self, event)
        waiting = {r.number for r in self._requests.values() if r.state == "waiting"}
        assert waiting == set(self._waiting), self
        known = self._requests.values()
        ahead = [(r.deadline, r.number) for r in known if r.deadline is not None and not self._late(r)]
        assert sorted(ahead) == self._deadlines, self
        assert not any(r.state in ("waiting", "ready") and self._late(r) for r in self._requests.values()), self
        assert len(self._by_event) == sum(r.state == "running" for r in admitted), self
        assert not waiting or self._admitted == self.max_in_flight, self

    def _expect(self, happening: Happening, number: int, state: State) -> _Request:
        request = self._requests.get(number)
        if request is None or request.state != state:
            found = "unknown" if request is None else request.state
            raise self._invalid(happening, number, f"it is {found}, not {state}")
        return request

    def _invalid(self, happening: object, number: int | None, why: str) -> InvalidHappening:
        story = "" if number is None else f"; its story: {self.story(number)}"
        return InvalidHappening(f"{happening!r}: {why}{story}")

    def _enqueued(self, happening: object, number: int | None, event: Event) -> None:
        if not 0 <= event.stream < len(self._newest):
            raise self._invalid(happening, number, f"there is no stream {event.stream}")
        newest = self._newest[event.stream]
        if event.stamp <= newest:
            raise self._invalid(happening, number, f"stream {event.stream} came to stamp {newest} before")
        self._newest[event.stream] = event.stamp
        self._in_flight[event.stream].append(event)

    def _reach(self, event: Event, given: list[Instruction]) -> None:
        in_flight = self._in_flight[event.stream]
        while in_flight and in_flight[0].stamp <= event.stamp:
            passed = in_flight.popleft()
            self._work[event.stream] -= self._work_of.pop(passed, 0)
            number = self._by_event.pop(passed, None)
            if number is not None:
                request = self._requests[number]
                request.become("preparing")
                request.event = None
                given.append(Resume(number, passed))

    def _late(self, request: _Request) -> bool:
        return request.deadline is not None and request.deadline <= self._now

    def _expire(self, request: _Request, given: list[Instruction]) -> None:
        """The request's deadline has passed: if it waits for anything here, it is to end."""
        match request.state:
            case "waiting":
                self._waiting.discard(request.number)
            case "ready":
                self._ready -= 1
                self._policy.discard(request.number)
            case "launching":
                # It may wait for memory, or not have looked yet; until it has ended the place on the stream is its own.
                given.append(Expire(request.number))
                return
            case _:
                return
        request.become("expired")
        given.append(Expire(request.number))

    def _end(self, number: int) -> None:
        request = self._requests.pop(number, None)
        if request is None:
            return
        was = request.state
        request.become("ended")
        if request.deadline is not None and not self._late(request):
            del self._deadlines[bisect.bisect_left(self._deadlines, (request.deadline, number))]
        self._admitted -= request.admitted
        if was == "waiting":
            self._waiting.discard(number)
        if was == "ready":
            self._ready -= 1
            self._policy.discard(number)
        if was == "launching" and request.stream is not None:
            self._launching[request.stream] -= 1
            self._work[request.stream] -= request.work
        if request.event is not None:
            del self._by_event[request.event]

    def _admit(self, given: list[Instruction]) -> None:
        while self._admitted < self.max_in_flight and self._waiting:
            number = next(iter(self._waiting))
            self._waiting.take(number)
            request = self._requests[number]
            request.become("preparing")
            request.admitted = True
            self._admitted += 1
            given.append(Admit(number))

    def _launch(self, given: list[Instruction]) -> None:
        while self._ready:
            views = [StreamView(s, self._depth(s), work) for s, work in enumerate(self._work)]
            choice = self._policy.pop(views)
            if choice is None:
                return
            number, stream = choice
            self._ready -= 1
            request = self._requests[number]
            request.become("launching")
            request.stream = stream
            self._launching[stream] += 1
            self._work[stream] += request.work
            given.append(LaunchChunk(number, stream))

    def _depth(self, stream: int) -> int:
        return len(self._in_flight[stream]) + self._launching[stream]
