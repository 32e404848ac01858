"""A device whose streams share it, as they share the cores of a CPU; and callers who wait for their answers."""

from __future__ import annotations

import attrs

from asyncrt.scheduler.batching.happenings import BatchFinished, Began
from asyncrt.scheduler.batching.instructions import LaunchBatch

from .world import Caller, Told, World, text


@attrs.define
class _Running:
    batch: int
    left_s: float


class SharedWorld(World):
    """What runs at the same time slows each other down; a caller sends its next request when it has its answer."""

    def callers(self, number: int, lengths: list[int]) -> None:
        """Let so many callers send requests of these lengths until there are no more."""
        self._lengths = iter(lengths)
        self._running: list[list[_Running]] = [[] for _ in self._streams]
        self._last, self._turn = 0.0, 0
        for _ in range(number):
            self._at(0.0, self._next_request)
        self.run([])

    def _next_request(self) -> None:
        length = next(self._lengths, None)
        if length is not None:
            self.told.append(Told(Caller(self.now, text(length))))
            self._arrive(len(self.told) - 1)

    def _begin(self, launch: LaunchBatch) -> None:
        members = self.state.members(launch.batch)
        self.begun[launch.batch] = members
        self.tell(Began(self.now, launch.batch))
        self._pass_time()
        seconds = self._seconds(len(members) * self.told[members[0]].caller.form.padded_to(launch.sizes).per_row)
        self.busy_s += seconds
        min(self._running, key=len).append(_Running(launch.batch, seconds))
        self._expect_next()

    def _pass_time(self) -> None:
        heads = [stream[0] for stream in self._running if stream]
        for running in heads:
            running.left_s -= (self.now - self._last) / len(heads)
        self._last = self.now

    def _expect_next(self) -> None:
        """Whoever has least left on its stream ends next, unless another begins before."""
        self._turn += 1
        turn, busy = self._turn, [stream for stream in self._running if stream]
        if busy:
            first = min(busy, key=lambda stream: stream[0].left_s)
            self._at(self.now + max(first[0].left_s, 0.0) * len(busy), lambda: self._end(turn, first))

    def _end(self, turn: int, stream: list[_Running]) -> None:
        if turn != self._turn:
            return
        self._pass_time()
        batch = stream.pop(0).batch
        self._expect_next()
        members = self.state.members(batch)
        for member in members:
            self.told[member].answered = self.now
        self.tell(BatchFinished(self.now, batch))
        for _ in members:
            self._at(self.now, self._next_request)
