"""The pool on the simulated device: whoever holds a lease finds its own bytes, whatever the streams' speeds.

Each user of a block writes its number to all of it and reads it back, as one inference does with its arena. The device
runs streams at seeded speeds, so that a write by the next user before the last reader has read is seen by that reader.
"""

from __future__ import annotations

import random

import attrs
import numpy as np
import pytest

from asyncrt.devices.simulated import SimulatedDevice, SimulatedMark, SimulatedStream
from asyncrt.errors import OutOfDeviceMemory
from asyncrt.events import Event, Timeline
from asyncrt.layout import Array
from asyncrt.memory.buffer import Lease
from asyncrt.memory.pool import MemoryPool

SEEDS = range(60)
STREAMS = 3


@attrs.define(eq=False)
class User:
    """Who holds a lease, what it wrote, and the events that its commands ended at."""

    number: int
    stream: int
    lease: Lease
    events: list[Event]
    read: Array | None = None


class Walk:
    """A random sequence of leases, commands, drops and completions."""

    def __init__(self, seed: int, *, forget_waits: bool, reuse: bool) -> None:
        self.chance = random.Random(seed)
        self.device = SimulatedDevice(seed)
        self.streams: list[SimulatedStream] = [self.device.open_stream() for _ in range(STREAMS)]
        self.timeline = Timeline(STREAMS)
        self.pool = MemoryPool(self.device, self.timeline, 24 << 10, reuse=reuse)
        self.forget_waits = forget_waits
        self.marks: dict[Event, SimulatedMark] = {}
        self.stamps = [0] * STREAMS
        self.users: list[User] = []
        self.readers: list[tuple[int, Array]] = []
        self.number = 0
        self.refused = 0

    def mark(self, stream: int) -> Event:
        self.stamps[stream] += 1
        event = Event(stream, self.stamps[stream])
        self.marks[event] = self.streams[stream].mark()
        return event

    def begin(self) -> None:
        """Lease a block and write to it; some give up between the two."""
        stream, room = self.chance.randrange(STREAMS), self.chance.choice((0, 0, 10_000))
        try:
            lease, waits = self.pool.acquire(
                self.chance.choice((100, 4096, 5000, 9000)),
                stream,
                room=lambda: room,
                brief=self.chance.random() < 0.5,
            )
        except OutOfDeviceMemory:
            self.refused += 1
            return
        if self.chance.random() < 0.15:
            lease.drop()
            return
        if waits and not self.forget_waits:
            self.streams[stream].wait_for([self.marks[e] for e in waits])
        self.number += 1
        self.streams[stream].fill(lease.allocation, 0, lease.buffer.nbytes, self.number % 251)
        self.users.append(User(self.number, stream, lease, [self.mark(stream)]))

    def read(self) -> None:
        """Read a block again, on its stream or on another one behind the write."""
        user = self.chance.choice(self.users)
        stream = self.chance.randrange(STREAMS)
        if stream != user.stream:
            self.streams[stream].wait_for([self.marks[user.events[0]]])
        target = np.zeros(user.lease.buffer.nbytes, np.uint8)
        self.streams[stream].read(user.lease.allocation, 0, target)
        user.events.append(self.mark(stream))
        self.readers.append((user.number % 251, target))

    def end(self) -> None:
        """Drop a lease, after the events of its commands, which may lie in the future."""
        user = self.users.pop(self.chance.randrange(len(self.users)))
        if self.chance.random() < 0.3:
            user.lease.hold().drop(after=user.events[:1])
        user.lease.drop(after=user.events)

    def advance(self) -> None:
        """Let some commands end, and tell the timeline of some of the marks they passed."""
        for _ in range(self.chance.randrange(4)):
            self.device.step()
        for event, mark in self.marks.items():
            if mark.reached and self.chance.random() < 0.5:
                self.timeline.advance(event)

    def run(self, length: int = 150) -> list[str]:
        """Return what readers found that was not theirs."""
        for _ in range(length):
            chosen = self.chance.random()
            if chosen < 0.35 or not self.users:
                self.begin()
            elif chosen < 0.6:
                self.read()
            elif chosen < 0.85:
                self.end()
            else:
                self.advance()
            statistics = self.pool.statistics()
            assert statistics.active == sum(u.lease.buffer.nbytes for u in self.users)
            assert statistics.leases == len(self.users)
            assert statistics.active + statistics.held == self.device.allocated <= statistics.limit
        while self.users:
            self.end()
        self.device.close()
        self.pool.close()
        assert self.device.allocated == 0
        return [f"{number}: found {set(found.tolist())}" for number, found in self.readers if (found != number).any()]


@pytest.mark.parametrize("reuse", [True, False])
def test_every_reader_finds_its_own_bytes(reuse: bool) -> None:
    """No block is written again before its last reader has read, on whatever stream that was."""
    waited = refused = 0
    for seed in SEEDS:
        walk = Walk(seed, forget_waits=False, reuse=reuse)
        assert walk.run() == [], seed
        waited += walk.pool.statistics().reused_with_wait
        refused += walk.refused

    assert waited > 100  # otherwise nothing was tried
    assert refused > 100


def test_the_model_sees_a_pool_that_forgets_waits() -> None:
    """The same walks find overwritten bytes as soon as nobody waits for other streams."""
    seen = [seed for seed in SEEDS if Walk(seed, forget_waits=True, reuse=True).run()]

    assert len(seen) > len(SEEDS) / 2


def test_the_model_sees_a_lease_that_forgets_who_was_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same walks find overwritten bytes if who gives up without waiting frees the block."""
    begin = Lease.__init__

    def forgetful(self: Lease, *args: object) -> None:
        begin(self, *args)  # type: ignore[arg-type]
        self._after = ()

    monkeypatch.setattr(Lease, "__init__", forgetful)

    seen = [seed for seed in SEEDS if Walk(seed, forget_waits=False, reuse=True).run()]

    assert seen
