"""Which request may begin, and which chunk goes to which stream when.

Everything that decides this is in this file or in the policy it was given. It does no I/O, does not wait, knows neither
devices nor bytes, and never looks at the clock: the same happenings give the same instructions.

A request is *waiting* until it is admitted (at most `max_in_flight` are), then *preparing* its next chunk, *ready* when
the chunk is planned, *launching* from the `Launch` instruction until `Launched`, and *running* until the chunk's event
is reached; then it prepares the next. `Ended` may come in any state, and of a request that is not known (any more) it
says nothing new. A stream's depth counts what was launched there and has not been reached, of ended requests too: the
device still has to pass it.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from typing import assert_never

import attrs

from asyncrt.events import Event

from .happenings import Ended, Happening, Launched, Reached, Ready, Submitted
from .instructions import Admit, Instruction, Launch, Resume
from .policies import Policy, StreamView


class InvalidHappening(Exception):
    """The scheduler was told something that cannot be; the message has the request's story."""


@attrs.frozen
class SchedulerStatistics:
    """How many requests are in which state.

    Attributes:
        waiting: To be admitted.
        preparing: Admitted, and planning their next chunk or about to end.
        ready: Planned, and waiting for a stream.
        launching: Being enqueued.
        running: Passed to the device.
        depths: Chunks on each stream that it has not passed, those of ended requests too.
    """

    waiting: int
    preparing: int
    ready: int
    launching: int
    running: int
    depths: tuple[int, ...]


@attrs.define(eq=False)
class _Request:
    number: int
    priority: int
    #: One of waiting, preparing, ready, launching, running, ended.
    state: str = "waiting"
    stream: int | None = None
    event: Event | None = None


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
        #: A heap of (priority, order, request), with some that have ended since: at most as many as still wait.
        self._waiting: list[tuple[int, int, _Request]] = []
        self._stale = 0
        self._order = 0
        self._admitted = 0
        #: How many requests the policy has.
        self._ready = 0
        #: Per stream the events launched there and not reached, oldest first.
        self._in_flight: list[deque[Event]] = [deque() for _ in range(streams)]
        #: Launch instructions given and not yet answered by Launched or Ended.
        self._launching = [0] * streams
        #: Per stream the newest stamp it was told of.
        self._newest = [0] * streams
        self._by_event: dict[Event, int] = {}
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
            count["waiting"], count["preparing"], count["ready"], count["launching"], count["running"], depths
        )

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
            case Submitted(number, priority):
                if number in self._requests:
                    raise self._invalid(happening, number, "it was submitted before")
                request = self._requests[number] = _Request(number, priority)
                self._order += 1
                heapq.heappush(self._waiting, (priority, self._order, request))
            case Ready(number):
                request = self._expect(happening, number, "preparing")
                request.state = "ready"
                self._ready += 1
                self._policy.push(number, request.priority, request.stream)
            case Launched(number, event):
                request = self._expect(happening, number, "launching")
                if event.stream != request.stream:
                    raise self._invalid(happening, number, f"it was to be launched on stream {request.stream}")
                self._enqueued(happening, number, event)
                self._launching[event.stream] -= 1
                request.state, request.event = "running", event
                self._by_event[event] = number
            case Reached(event):
                if not (0 <= event.stream < len(self._newest) and event.stamp <= self._newest[event.stream]):
                    raise InvalidHappening(f"{happening!r}: nothing was launched there; {self!r}")
                self._reach(event, given)
            case Ended(number):
                self._end(number)
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
        admitted = [r for r in self._requests.values() if r.state != "waiting"]
        assert self._admitted == len(admitted) <= self.max_in_flight, self
        assert self._ready == sum(r.state == "ready" for r in admitted), self
        for stream, launching in enumerate(self._launching):
            mine = [r for r in admitted if r.state == "launching" and r.stream == stream]
            assert launching == len(mine), (self, stream)
            events = list(self._in_flight[stream])
            assert events == sorted(events), (self, stream)
        for event, number in self._by_event.items():
            assert self._requests[number].event == event, (self, event)
            assert self._requests[number].state == "running", (self, event)
            assert event in self._in_flight[event.stream], (self, event)
        waiting = sum(r.state == "waiting" for r in self._requests.values())
        assert waiting == sum(r.state == "waiting" for _, _, r in self._waiting), self
        assert len(self._waiting) - waiting == self._stale <= waiting, self
        assert len(self._by_event) == sum(r.state == "running" for r in admitted), self
        assert not waiting or self._admitted == self.max_in_flight, self

    def _expect(self, happening: Happening, number: int, state: str) -> _Request:
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
            number = self._by_event.pop(passed, None)
            if number is not None:
                request = self._requests[number]
                request.state, request.event = "preparing", None
                given.append(Resume(number, passed))

    def _end(self, number: int) -> None:
        request = self._requests.pop(number, None)
        if request is None:
            return
        was, request.state = request.state, "ended"
        if was == "waiting":
            self._stale += 1
            return
        self._admitted -= 1
        if was == "ready":
            self._ready -= 1
            self._policy.discard(number)
        if was == "launching" and request.stream is not None:
            self._launching[request.stream] -= 1
        if request.event is not None:
            del self._by_event[request.event]

    def _admit(self, given: list[Instruction]) -> None:
        while self._admitted < self.max_in_flight and self._waiting:
            _, _, request = heapq.heappop(self._waiting)
            if request.state == "ended":
                self._stale -= 1
                continue
            request.state = "preparing"
            self._admitted += 1
            given.append(Admit(request.number))
        # Taking one out of the middle costs as much as there are, so it is done for many at once.
        if 2 * self._stale > len(self._waiting):
            self._waiting = [w for w in self._waiting if w[2].state == "waiting"]
            heapq.heapify(self._waiting)
            self._stale = 0

    def _launch(self, given: list[Instruction]) -> None:
        while self._ready:
            views = [StreamView(s, self._depth(s)) for s in range(len(self._in_flight))]
            choice = self._policy.pop(views)
            if choice is None:
                return
            number, stream = choice
            self._ready -= 1
            request = self._requests[number]
            request.state, request.stream = "launching", stream
            self._launching[stream] += 1
            given.append(Launch(number, stream))

    def _depth(self, stream: int) -> int:
        return len(self._in_flight[stream]) + self._launching[stream]
