"""A device that runs batches on a virtual clock, and callers: what surrounds `BatchingState`."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

import attrs
import numpy as np

from asyncrt.scheduler.batching import BatchingState, BatchOptions, BatchShape
from asyncrt.scheduler.batching.happenings import (
    Arrived,
    BatchFinished,
    Began,
    Closing,
    Failed,
    Happening,
    Left,
    Ticked,
)
from asyncrt.scheduler.batching.instructions import Drop, LaunchBatch, Reject, WakeAt


def text(length: int) -> BatchShape:
    """The form of a sequence of so many tokens."""
    return BatchShape((), (length,), ((1, (0,)),))


def about(tokens: int) -> float:
    """Seconds that a batch takes: 3 ms, and 4 µs for each token."""
    return 0.003 + 4e-6 * tokens


class Caller(NamedTuple):
    """A request that comes at a time; it gives up `patience` seconds later."""

    at: float
    form: BatchShape
    rows: int = 1
    priority: int = 0
    deadline: float = math.inf
    patience: float = math.inf
    nbytes: int = 0


@attrs.define
class Told:
    """What became of a request: when it was answered, or why it was refused; with the batch it was in."""

    caller: Caller
    answered: float | None = None
    refused: str = ""
    retry_after_s: float = 0.0
    left: float | None = None
    batch: int | None = None

    @property
    def latency(self) -> float:
        assert self.answered is not None
        return self.answered - self.caller.at

    @property
    def good(self) -> bool:
        return self.answered is not None and self.latency <= self.caller.deadline


class World:
    """Runs callers to their ends.

    Args:
        seconds: How long a batch of so much work takes on the device.
        gap: Seconds that the host needs from a launch until it has put the batch together.
        fails: Whether a batch of these members fails.
        check: Whether the state is checked after each happening.
        at_once: How a request begins that is launched by itself when it comes: None after the gap as any other, else
            in the same moment, with one call ("one") or two ("two").
    """

    def __init__(
        self,
        options: BatchOptions,
        *,
        streams: int = 1,
        seconds: Callable[[int], float] = about,
        gap: float = 0.0003,
        fails: Callable[[tuple[int, ...]], bool] = lambda members: False,
        check: bool = True,
        at_once: Literal["one", "two"] | None = None,
    ) -> None:
        self.state = BatchingState(streams, options)
        self.now = 0.0
        self.told: list[Told] = []
        self.launches: list[LaunchBatch] = []
        #: The members of each batch when it began.
        self.begun: dict[int, tuple[int, ...]] = {}
        self.busy_s = 0.0
        self._seconds, self._gap, self._fails, self._check = seconds, gap, fails, check
        self._at_once = at_once
        self._streams = [0.0] * streams
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._ticks = 0

    def run(self, callers: Iterable[Caller]) -> list[Told]:
        """Return what became of each; nobody is left waiting, and nothing in flight."""
        for number, caller in enumerate(callers):
            self.told.append(Told(caller))
            self._at(caller.at, lambda n=number: self._arrive(n))  # type: ignore[misc]
            if caller.patience < math.inf:
                self._at(caller.at + caller.patience, lambda n=number: self._leave(n))  # type: ignore[misc]
        self._go()
        self.tell(Closing(self.now))
        self._go()
        assert self.state.idle, self.state
        return self.told

    def _go(self) -> None:
        while self._events:
            self.now, _, what = heapq.heappop(self._events)
            what()

    def _at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), what))

    def tell(self, happening: Happening) -> None:
        """Let something happen, and do what is asked for."""
        given = self.state.handle(happening)
        if self._check:
            self.state.check()
        for instruction in given:
            match instruction:
                case LaunchBatch():
                    self.launches.append(instruction)
                    self._at(self.now + self._gap, lambda launch=instruction: self._begin(launch))  # type: ignore[misc]
                case Reject(number, why, retry_after_s):
                    told = self.told[number]
                    assert told.answered is None
                    assert not told.refused
                    told.refused, told.retry_after_s = why, retry_after_s
                case Drop():
                    pass  # if it is on the device already, it goes on for nobody
                case WakeAt(at):
                    self._ticks += 1
                    if at is not None:
                        self._at(at, lambda tick=self._ticks: self._tick(tick))  # type: ignore[misc]

    def _begin(self, launch: LaunchBatch) -> None:
        members = self.state.members(launch.batch)
        if not members:
            self.tell(BatchFinished(self.now, launch.batch, False))
            return
        callers = [self.told[m].caller for m in members]
        assert set(members) <= set(launch.requests)
        for caller in callers:
            assert caller.form.exact == callers[0].form.exact
            assert all(own <= size for own, size in zip(caller.form.sizes, launch.sizes, strict=True))
        for member in members:
            assert self.told[member].left is None  # whoever left before this is no work
        self.tell(Began(self.now, launch.batch))
        self._run(launch.batch, members, launch.sizes)

    def _run(self, batch: int, members: tuple[int, ...], sizes: tuple[int, ...]) -> None:
        self.begun[batch] = members
        callers = [self.told[m].caller for m in members]
        stream = min(range(len(self._streams)), key=lambda s: self._streams[s])
        work = sum(c.rows for c in callers) * callers[0].form.padded_to(sizes).per_row
        duration = self._seconds(work)
        self._streams[stream] = max(self.now, self._streams[stream]) + duration
        self.busy_s += duration
        self._at(self._streams[stream], lambda: self._finish(batch))

    def _finish(self, batch: int) -> None:
        if self._fails(self.begun[batch]):
            if len(self.begun[batch]) > 1:
                self.tell(Failed(self.now, batch))
                return
            for member in self.state.members(batch):
                self.told[member].refused = "failed"
            self.tell(BatchFinished(self.now, batch, False))
            return
        for member in self.state.members(batch):
            told = self.told[member]
            assert (told.answered, told.left, told.refused) == (None, None, "")
            told.answered, told.batch = self.now, batch
        self.tell(BatchFinished(self.now, batch))

    def _arrive(self, number: int) -> None:
        c = self.told[number].caller
        due = c.at + c.deadline
        arrived = Arrived(self.now, number, c.form, c.rows, c.nbytes, c.priority, due, due < math.inf)
        idle = self.state.statistics().in_flight < self.state.streams
        if self._at_once is None or not idle or self.state.options.mode == "buckets":
            self.tell(arrived)
            return
        if self._at_once == "one":
            batch = self.state.begin_at_once(arrived)
            assert batch is not None
        else:
            (launch,) = self.state.handle(arrived)
            assert isinstance(launch, LaunchBatch)
            batch = launch.batch
            self.tell(Began(self.now, batch))
        if self._check:
            self.state.check()
        self._run(batch, (number,), c.form.sizes)

    def _leave(self, number: int) -> None:
        told = self.told[number]
        if told.answered is None and not told.refused:
            told.left = self.now
            self.tell(Left(self.now, number))

    def _tick(self, tick: int) -> None:
        if tick == self._ticks:
            self.tell(Ticked(self.now))


def lengths(count: int, seed: int = 0, longest: int = 512) -> list[int]:
    """Log-normal, 8 to *longest*, median about 74."""
    drawn = np.random.default_rng(seed).lognormal(4.3, 0.8, count)
    return [int(x) for x in np.clip(drawn, 8, longest)]


def poisson(rate: float, forms: Iterable[BatchShape], seed: int = 0, deadline: float = math.inf) -> list[Caller]:
    """Callers that come independently, *rate* a second."""
    random = np.random.default_rng(seed)
    at, callers = 0.0, []
    for form in forms:
        at += float(random.exponential(1 / rate))
        callers.append(Caller(at, form, deadline=deadline))
    return callers
