"""Two requests of two chunks on two streams: every order in which it can happen, one by one."""

from __future__ import annotations

import copy
from typing import NamedTuple

import pytest

from asyncrt.events import Event
from asyncrt.scheduler.happenings import Elapsed, Ended, Happening, Launched, Reached, Ready, Submitted
from asyncrt.scheduler.instructions import Admit, Expire, LaunchChunk, Resume
from asyncrt.scheduler.policies import make_policy, policy_names
from asyncrt.scheduler.state import SchedulerState

STREAMS = 2
GOES_ON = ("prepare", "end")  # the request comes to its end by itself


class Request(NamedTuple):
    """What a request does next: submit, wait, prepare, launch (on `stream`), run, end, or nothing more (gone)."""

    doing: str = "submit"
    chunks: int = 2
    stream: int = -1


class World(NamedTuple):
    """All that is outside the scheduler."""

    requests: tuple[Request, ...]
    stamps: tuple[int, ...] = (0,) * STREAMS
    reached: tuple[int, ...] = (0,) * STREAMS
    late: bool = False


class Explorer:
    """Goes every way from every state, each once. The scheduler's own state is told by its `repr` and its story."""

    def __init__(self, policy: str, max_in_flight: int, *, cancel: bool, deadline: float | None) -> None:
        self.start = SchedulerState(STREAMS, make_policy(policy), max_in_flight=max_in_flight)
        self.cancel = cancel
        self.deadline = deadline  # of request 0; the other has none
        self.seen: set[object] = set()
        self.ends = 0

    def explore(self) -> None:
        todo = [(self.start, World((Request(), Request())))]
        while todo:
            state, world = todo.pop()
            key = (world, self.inside(state))
            if key in self.seen:
                continue
            self.seen.add(key)
            ways = self.ways(world)
            if not any(not isinstance(w, Ended) or world.requests[w.request].doing in GOES_ON for w in ways):
                assert all(r.doing == "gone" for r in world.requests), (state, world)
            if not ways:
                self.ends += 1
                assert state.idle, (state, world)
            for happening in ways:
                after = copy.deepcopy(state)
                todo.append((after, self.take(after, world, happening)))

    @staticmethod
    def inside(state: SchedulerState) -> object:
        return repr(state), tuple(sorted((number, now) for number, (now, _) in state.requests.items()))

    def ways(self, world: World) -> list[Happening]:
        """Everything that can happen next."""
        ways: list[Happening] = []
        for number, request in enumerate(world.requests):
            match request.doing:
                case "submit":
                    ways.append(Submitted(number, 0, None if number else self.deadline))
                case "prepare":
                    ways.append(Ready(number) if request.chunks else Ended(number))
                case "end":
                    ways.append(Ended(number))
                case "launch":
                    ways.append(Launched(number, Event(request.stream, world.stamps[request.stream] + 1)))
            if self.cancel and request.doing not in ("submit", "gone") and Ended(number) not in ways:
                ways.append(Ended(number))
        for stream in range(STREAMS):
            ways += [Reached(Event(stream, s)) for s in range(world.reached[stream] + 1, world.stamps[stream] + 1)]
        if self.deadline is not None and not world.late:
            ways.append(Elapsed(self.deadline))
        return ways

    def take(self, state: SchedulerState, world: World, happening: Happening) -> World:
        requests, stamps, reached = list(world.requests), list(world.stamps), list(world.reached)
        match happening:
            case Submitted(number):
                requests[number] = requests[number]._replace(doing="wait")
            case Ready(number):
                requests[number] = requests[number]._replace(doing="wait")
            case Launched(number, event):
                requests[number] = requests[number]._replace(doing="run")
                stamps[event.stream] = event.stamp
            case Reached(event):
                reached[event.stream] = event.stamp
            case Ended(number):
                requests[number] = Request("gone", 0)
            case Elapsed():
                world = world._replace(late=True)
        given = state.handle(happening)
        state.check()
        for instruction in given:
            request = requests[instruction.request]
            match instruction:
                case Admit():
                    assert request.doing == "wait"
                    requests[instruction.request] = request._replace(doing="prepare")
                case LaunchChunk(_, stream):
                    assert request.doing == "wait"
                    assert not world.late or instruction.request or self.deadline is None
                    requests[instruction.request] = request._replace(doing="launch", stream=stream)
                case Resume(_, event):
                    assert request.doing == "run"
                    assert reached[event.stream] >= event.stamp
                    requests[instruction.request] = Request("prepare", request.chunks - 1)
                case Expire(number):
                    assert world.late
                    assert number == 0
                    assert request.doing in ("wait", "launch")
                    requests[0] = request._replace(doing="end")
        return World(tuple(requests), tuple(stamps), tuple(reached), world.late)


@pytest.mark.parametrize("policy", policy_names())
@pytest.mark.parametrize("max_in_flight", [1, 2])
@pytest.mark.parametrize("cancel", [False, True])
@pytest.mark.parametrize("deadline", [None, 1.0])
def test_every_way_ends_with_nothing_left(
    policy: str, max_in_flight: int, cancel: bool, deadline: float | None
) -> None:
    """No way leads to a state from which a request cannot go on, with and without cancelled callers and a deadline."""
    explorer = Explorer(policy, max_in_flight, cancel=cancel, deadline=deadline)

    explorer.explore()

    assert explorer.ends > 0
    assert len(explorer.seen) > (30 if max_in_flight == 1 else 100)
