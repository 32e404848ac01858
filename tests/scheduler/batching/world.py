"""A device that runs batches on a virtual clock, and callers: what surrounds `BatchingState`."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import attrs
import numpy as np

from asyncrt.scheduler.batching import BatchingState, BatchOptions, Form
from asyncrt.scheduler.batching.happenings import Arrived, Began, Closing, Failed, Finished, Happening, Left, Ticked
from asyncrt.scheduler.batching.instructions import Drop, Launch, Reject, WakeAt


def text(length: int) -> Form:
    """The form of a sequence of so many tokens."""
    return Form((), (length,), ((1, (0,)),))


def about(tokens: int) -> float:
    """Seconds that a batch takes: 3 ms, and 4 µs for each token."""
    return 0.003 + 4e-6 * tokens


class Caller(NamedTuple):
    """A request that comes at a time; it gives up `patience` seconds later."""

    at: float
    form: Form
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
        gap: Seconds that the host needs before the device has a batch.
        fails: Whether a batch with these members fails.
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
    ) -> None:
        self.state = BatchingState(streams, options)
        self.now = 0.0
        self.told: list[Told] = []
        self.launches: list[Launch] = []
        #: The members of each batch when it began.
        self.begun: dict[int, tuple[int, ...]] = {}
        self.busy_s = 0.0
        self._seconds, self._gap, self._fails, self._check = seconds, gap, fails, check
        self._streams = [0.0] * streams
        self._events: list[tuple[float, int, str, int]] = []
        self._order = itertools.count()
        self._wake: float | None = None

    def run(self, callers: Iterable[Caller], *, closes: bool = True) -> list[Told]:
        for number, caller in enumerate(callers):
            self.told.append(Told(caller))
            self._at(caller.at, "arrive", number)
            if caller.patience < math.inf:
                self._at(caller.at + caller.patience, "leave", number)
        while self._events:
            self.now, _, what, number = heapq.heappop(self._events)
            getattr(self, f"_{what}")(number)
        if closes:
            self._tell(Closing(self.now))
            while self._events:
                self.now, _, what, number = heapq.heappop(self._events)
                getattr(self, f"_{what}")(number)
            assert self.state.idle, self.state
        return self.told

    def _at(self, when: float, what: str, number: int = 0) -> None:
        heapq.heappush(self._events, (when, next(self._order), what, number))

    def _tell(self, happening: Happening) -> None:
        given = self.state.handle(happening)
        if self._check:
            self.state.check()
        for instruction in given:
            match instruction:
                case Launch():
                    self.launches.append(instruction)
                    self._begin(instruction)
                case Reject(number, why, retry_after_s):
                    told = self.told[number]
                    assert told.answered is None
                    assert not told.refused
                    told.refused, told.retry_after_s = why, retry_after_s
                case Drop():
                    pass  # it is on the device already
                case WakeAt(at):
                    self._wake = at
                    if at is not None:
                        self._at(max(at, self.now), "tick")

    def _begin(self, launch: Launch) -> None:
        members = self.state.members(launch.batch)
        self.begun[launch.batch] = members
        rows = sum(self.told[m].caller.rows for m in members)
        form = self.told[members[0]].caller.form.padded_to(launch.sizes)
        for m in members:
            assert self.told[m].caller.form.exact == form.exact
            assert all(a <= b for a, b in zip(self.told[m].caller.form.sizes, launch.sizes, strict=True))
        stream = min(range(len(self._streams)), key=lambda s: self._streams[s])
        duration = self._seconds(rows * form.per_row)
        start = max(self.now + self._gap, self._streams[stream])
        self._streams[stream] = start + duration
        self.busy_s += duration
        self._at(self.now, "began", launch.batch)
        self._at(start + duration, "finish", launch.batch)

    def _began(self, batch: int) -> None:
        if self.state.members(batch):
            self._tell(Began(self.now, batch))

    def _finish(self, batch: int) -> None:
        members = self.state.members(batch)
        if members and self._fails(self.begun[batch]) and len(self.begun[batch]) > 1:
            self._tell(Failed(self.now, batch))
            return
        for m in members:
            assert self.told[m].answered is None
            self.told[m].answered, self.told[m].batch = self.now, batch
        self._tell(Finished(self.now, batch))

    def _arrive(self, number: int) -> None:
        c = self.told[number].caller
        due = c.at + c.deadline
        self._tell(Arrived(self.now, number, c.form, c.rows, c.nbytes, c.priority, due, due < math.inf))

    def _leave(self, number: int) -> None:
        told = self.told[number]
        if told.answered is None and not told.refused:
            told.left = self.now
            self._tell(Left(self.now, number))

    def _tick(self, number: int) -> None:
        if self._wake is not None and self._wake <= self.now:
            self._wake = None
            self._tell(Ticked(self.now))


def lengths(count: int, seed: int = 0, longest: int = 512) -> list[int]:
    """Log-normal, 8 to *longest*, median about 74."""
    drawn = np.random.default_rng(seed).lognormal(4.3, 0.8, count)
    return [int(x) for x in np.clip(drawn, 8, longest)]


def poisson(rate: float, forms: Iterable[Form], seed: int = 0, **known: float) -> list[Caller]:
    """Callers that come independently, *rate* a second."""
    random = np.random.default_rng(seed)
    at, callers = 0.0, []
    for form in forms:
        at += float(random.exponential(1 / rate))
        callers.append(Caller(at, form, **known))  # type: ignore[arg-type]
    return callers
