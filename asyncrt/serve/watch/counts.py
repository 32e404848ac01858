"""What has been served: for each model how many requests, how long their stages took, and how they ended.

The protocol's statistics and the metrics are both made of this.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Iterator
from contextlib import contextmanager

import attrs

from asyncrt.serve.errors import Situation, situation_of

#: Upper bounds of the histogram of latencies, in seconds.
BOUNDS = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075,
    0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0,
)  # fmt: skip
STAGES = ("decode", "run", "encode", "total")


@attrs.define
class Durations:
    """How often something took how long."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int) -> None:
        """Note one more."""
        self.count += 1
        self.ns += ns


@attrs.define
class Histogram(Durations):
    """Durations, and how many are up to each of `BOUNDS`; the last counts those above."""

    buckets: list[int] = attrs.Factory(lambda: [0] * (len(BOUNDS) + 1))

    def add(self, ns: int) -> None:
        """Note one more."""
        self.count += 1
        self.ns += ns
        self.buckets[bisect.bisect_left(BOUNDS, ns / 1e9)] += 1


@attrs.define(eq=False)
class Counts:
    """What one version of a model has done.

    Attributes:
        stages: Of requests that were answered: parsing, running with all waiting, formatting, and all of it.
        queue: How long requests of batched models waited for their batch to run, which is part of "run".
        failed: Of requests that were not.
        outcomes: How requests ended, by the name of the situation; "OK" is none.
        rows: Of the answered requests' inputs.
        last_ms: When the last one came, since 1970.
    """

    stages: dict[str, Histogram] = attrs.Factory(lambda: {stage: Histogram() for stage in STAGES})
    queue: Histogram = attrs.Factory(Histogram)
    failed: Durations = attrs.Factory(Durations)
    outcomes: dict[str, int] = attrs.Factory(dict)
    rows: int = 0
    last_ms: int = 0

    def ended(self, outcome: str) -> None:
        """Note how a request ended."""
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1


@attrs.define(eq=False)
class Clock:
    """Times the stages of one request, from its arrival on.

    Attributes:
        batch: How many rows it has.
    """

    begin: int = attrs.Factory(time.perf_counter_ns)
    stages: dict[str, int] = attrs.Factory(dict)
    batch: int = 1

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time what is done while this lasts."""
        begin = time.perf_counter_ns()
        try:
            yield
        finally:
            self.stages[name] = self.stages.get(name, 0) + time.perf_counter_ns() - begin

    def answered(self, counts: Counts) -> int:
        """Note that the request has its answer; returns how long that took."""
        total = time.perf_counter_ns() - self.begin
        for name, ns in self.stages.items():
            counts.stages[name].add(ns)
        counts.stages["total"].add(total)
        counts.rows += self.batch
        counts.last_ms = time.time_ns() // 1_000_000
        counts.ended("OK")
        return total

    def failed(self, counts: Counts, error: BaseException) -> int:
        """Note that the request ended with an error; returns how long that took."""
        total = time.perf_counter_ns() - self.begin
        counts.failed.add(total)
        counts.last_ms = time.time_ns() // 1_000_000
        counts.ended((situation_of(error) if isinstance(error, Exception) else Situation.CANCELLED).name)
        return total
