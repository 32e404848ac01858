"""The scheduler under every order of happenings that a random runtime makes of them."""

from __future__ import annotations

import math
import random
from collections import defaultdict

import attrs
import pytest

from asyncrt.events import Event
from asyncrt.scheduler.happenings import Elapsed, Ended, Happening, Launched, Reached, Ready, Submitted
from asyncrt.scheduler.instructions import Admit, Expire, Instruction, LaunchChunk, Resume
from asyncrt.scheduler.policies import make_policy, policy_names
from asyncrt.scheduler.policies.fifo import DEPTH
from asyncrt.scheduler.queue import PATIENCE
from asyncrt.scheduler.state import SchedulerState, _Request
from asyncrt.scheduler.transitions import MAY_BECOME, State


@attrs.define
class Client:
    """A request as the runtime sees it."""

    number: int
    priority: int
    chunks: int
    order: int
    deadline: float = math.inf
    doing: str = "waiting"  # waiting, preparing, ready, launching, running, expired
    admitted: bool = False
    late: bool = False
    became_ready: int = 0
    stream: int = -1
    streams: list[int] = attrs.Factory(list)


class Walk:
    """A runtime that does what it is told, in a random order, and knows what may be asked of it."""

    def __init__(self, policy: str, seed: int) -> None:
        self.chance = random.Random(seed)
        self.policy = policy
        self.max_in_flight = self.chance.randrange(1, 14)
        self.streams = self.chance.randrange(1, 4)
        self.state = SchedulerState(self.streams, make_policy(policy), max_in_flight=self.max_in_flight)
        self.stamps = [0] * self.streams
        self.unreached: list[list[Event]] = [[] for _ in range(self.streams)]
        self.clients: dict[int, Client] = {}
        self.ended: set[int] = set()
        self.order = self.readied = 0
        self.now = 0.0
        self.passed = 0  # how many were admitted since before the oldest that waits
        self.history: list[tuple[Happening, list[Instruction]]] = []
        self.tell(Elapsed(self.now))

    def tell(self, happening: Happening) -> None:
        given = self.state.handle(happening)
        self.history.append((happening, given))
        for instruction in given:
            self.obey(instruction)
        self.state.check()
        admitted = sum(c.admitted for c in self.clients.values())
        assert admitted <= self.max_in_flight
        assert admitted == self.max_in_flight or all(c.doing != "waiting" for c in self.clients.values())
        for stream in range(self.streams):
            launching = sum(c.doing == "launching" and c.stream == stream for c in self.clients.values())
            assert launching + len(self.unreached[stream]) <= DEPTH
        self.nothing_is_held_back_for_no_reason()

    def nothing_is_held_back_for_no_reason(self) -> None:
        """Who is ready waits only if the streams it may go to are full."""
        depths = [len(events) for events in self.unreached]
        for client in self.clients.values():
            depths[client.stream] += client.doing == "launching"
        free = {s for s, depth in enumerate(depths) if depth < DEPTH}
        for client in self.clients.values():
            if client.doing == "ready":
                assert not free

    def obey(self, instruction: Instruction) -> None:
        client = self.clients[instruction.request]  # nothing is ever asked of a request that has ended
        match instruction:
            case Admit():
                assert client.doing == "waiting"
                others = [c for c in self.clients.values() if c.doing == "waiting"]
                first = min(others, key=lambda c: (c.priority, c.deadline, c.order))
                assert client is (min(others, key=lambda c: c.order) if self.passed == PATIENCE else first)
                self.leaves(client, passed=1)
                client.doing, client.admitted = "preparing", True
            case LaunchChunk(_, stream):
                assert client.doing == "ready"
                assert client.deadline > self.now
                ready = [c for c in self.clients.values() if c.doing == "ready"]
                for other in ready:
                    urgent = (client.priority, client.deadline) <= (other.priority, other.deadline)
                    assert urgent or client is min(ready, key=lambda c: c.became_ready)
                client.doing, client.stream = "launching", stream
                client.streams.append(stream)
            case Resume(_, event):
                assert client.doing == "running"
                assert event.stream == client.stream
                client.doing, client.chunks = "preparing", client.chunks - 1
            case Expire():
                assert client.deadline <= self.now
                assert client.doing in ("waiting", "ready", "launching")
                assert not client.late
                client.late = True
                if client.doing != "launching":
                    self.leaves(client, passed=0)
                    client.doing = "expired"

    def leaves(self, client: Client, *, passed: int) -> None:
        """A client that waits does so no more."""
        if client.doing == "waiting":
            oldest = min(c.order for c in self.clients.values() if c.doing == "waiting")
            self.passed = 0 if client.order == oldest else self.passed + passed

    def launched(self, client: Client) -> Event:
        self.stamps[client.stream] += 1
        event = Event(client.stream, self.stamps[client.stream])
        self.unreached[client.stream].append(event)
        return event

    def end(self, number: int) -> None:
        self.leaves(self.clients[number], passed=0)
        del self.clients[number]
        self.ended.add(number)
        self.tell(Ended(number))

    def step(self, *, submit: bool) -> None:
        moves = ["reach"] * any(self.unreached)
        moves += ["submit"] * submit
        actors = [c for c in self.clients.values() if c.doing in ("preparing", "launching", "expired")]
        moves += ["act"] * (2 * bool(actors))
        if self.clients and self.chance.random() < 0.08:
            moves.append("cancel")
        if self.chance.random() < 0.2:
            moves.append("elapse")
        match self.chance.choice(moves):
            case "submit":
                self.order += 1
                client = self.clients[self.order] = Client(
                    self.order, self.chance.choice((0, 0, 0, -1, 5)), self.chance.randrange(1, 4), self.order
                )
                if self.chance.random() < 0.3:
                    client.deadline = self.now + self.chance.randrange(10)
                deadline = None if client.deadline == math.inf else client.deadline
                self.tell(Submitted(self.order, client.priority, deadline))
            case "act":
                self.act(self.chance.choice(actors))
            case "reach":
                stream = self.chance.choice([s for s in range(self.streams) if self.unreached[s]])
                count = self.chance.randrange(1, len(self.unreached[stream]) + 1)
                event = self.unreached[stream][count - 1]
                del self.unreached[stream][:count]
                self.tell(Reached(event))
            case "cancel":
                self.end(self.chance.choice(list(self.clients)))
            case "elapse":
                self.now += self.chance.choice((0.5, 1, 2))
                self.tell(Elapsed(self.now))

    def act(self, client: Client) -> None:
        if client.late:
            self.end(client.number)
        elif client.doing == "launching":
            if self.chance.random() < 0.1:  # enqueueing fails half-way
                event = self.launched(client)
                self.state.abandoned(event)
                self.end(client.number)
            else:
                client.doing = "running"
                self.tell(Launched(client.number, self.launched(client)))
        elif client.chunks:
            self.readied += 1
            client.doing, client.became_ready = "ready", self.readied
            self.tell(Ready(client.number, self.chance.choice((1, 1, 2, 50))))
        else:
            self.end(client.number)

    def run(self, length: int = 400) -> None:
        for _ in range(length):
            self.step(submit=True)
        steps = 0
        while self.clients or any(self.unreached):
            self.step(submit=False)
            steps += 1
            assert steps < 100_000, self.state
        assert self.state.idle
        assert self.state.next_deadline is None
        assert self.ended == set(range(1, self.order + 1))


@pytest.mark.parametrize("policy", policy_names())
@pytest.mark.parametrize("seed", range(25))
def test_every_request_ends(policy: str, seed: int) -> None:
    """Whatever the order: limits hold after every happening, none is passed over, and none is left behind."""
    walk = Walk(policy, seed)

    walk.run()

    assert walk.order > 50


def test_what_may_become_of_a_request_is_what_becomes_of_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """No state follows another but by the table, and nothing is in the table that never happens."""
    seen: set[tuple[State, State]] = set()
    become = _Request.become

    def noting(request: _Request, state: State) -> None:
        seen.add((request.state, state))
        become(request, state)

    monkeypatch.setattr(_Request, "become", noting)
    for policy in policy_names():
        for seed in range(10):
            Walk(policy, seed).run()
    full = SchedulerState(1, make_policy("fifo"))
    for request in range(DEPTH + 1):
        full.handle(Submitted(request))
        full.handle(Ready(request))
    full.handle(Ended(DEPTH))  # for which there was no place on the stream

    assert {(before, after) for before, several in MAY_BECOME.items() for after in several} == seen
    with pytest.raises(AssertionError):
        _Request(1, 0, None).become("running")


@pytest.mark.parametrize("policy", policy_names())
def test_the_same_happenings_give_the_same_instructions(policy: str) -> None:
    """Nothing but what it was told decides."""
    first, second = Walk(policy, 7), Walk(policy, 7)
    first.run()
    second.run()

    assert first.history == second.history


@pytest.mark.parametrize("policy", policy_names())
def test_work_spreads_over_the_streams(policy: str) -> None:
    """Requests that come together use all streams alike."""
    state = SchedulerState(4, make_policy(policy), max_in_flight=16)
    used: dict[int, int] = defaultdict(int)
    for request in range(16):
        state.handle(Submitted(request))
        for instruction in state.handle(Ready(request)):
            assert isinstance(instruction, LaunchChunk)
            used[instruction.stream] += 1

    assert dict.fromkeys(range(4), 4) == used
