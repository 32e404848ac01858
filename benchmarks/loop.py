"""How long does everything else on the event loop wait for us?

Sixty-four callers at once on four streams, each its next request when its last is answered, while a clock on the same
loop ticks every millisecond: how late a tick comes is how long the loop did not get to it. Seen before are four shapes,
new is one that nobody asked for yet in every request. Where this process has the cores to itself, it is our doing; the
longest piece of work without others is told beside it, in the thread's own time.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import attrs
import numpy as np

import asyncrt

from . import command, models
from . import measure as m

CALLERS, STREAMS = 64, 4
KINDS = ("seen before", "new")
TICK_S = 0.001
LONGEST = 64  # words that the model takes


class Ticker:
    """Ticks on the loop, and notes how late each tick is, and how long the loop's thread worked between two."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.late_s: list[float] = []
        self.worked_s: list[float] = []
        self._begin()

    def _begin(self) -> None:
        self._due, self._worked = self._loop.time() + TICK_S, time.thread_time()
        self._handle = self._loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        self.late_s.append(max(0.0, self._loop.time() - self._due))
        self.worked_s.append(time.thread_time() - self._worked)
        self._begin()

    def stop(self) -> None:
        """Tick no more."""
        self._handle.cancel()


def new_shapes(lengths: int) -> Iterator[m.Inputs]:
    """Requests of shapes that none before had, as long as there are any; then the same again."""
    shapes = [(batch, length) for batch in range(1, 65) for length in range(1, lengths + 1)]
    return itertools.cycle(models.tokens(batch, length) for batch, length in shapes)


async def loaded(
    requests: Iterator[m.Inputs], model: asyncrt.Model, callers: int, seconds: float
) -> tuple[Ticker, float]:
    """Let callers send requests for so many seconds, at least one each; returns the ticker, and requests a second."""
    done = 0
    ticker = Ticker()
    begin = time.perf_counter()

    async def caller() -> None:
        nonlocal done
        while True:
            await model.infer(next(requests))
            done += 1
            if time.perf_counter() - begin >= seconds:
                return

    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(caller())
    await asyncio.sleep(2 * TICK_S)  # it has ticked once at least
    ticker.stop()
    return ticker, done / (time.perf_counter() - begin)


@attrs.define
class _Found:
    """What the turns of one kind of request found."""

    rates: list[float] = attrs.Factory(list)
    late_s: list[float] = attrs.Factory(list)
    worked_s: list[float] = attrs.Factory(list)


async def bench(settings: m.Settings, callers: int = CALLERS, lengths: int = LONGEST) -> m.Report:
    """Measure requests of up to *lengths* words."""
    found: dict[tuple[str, bool], _Found] = {}
    with tempfile.TemporaryDirectory() as folder:
        # One runtime after the other: what is compared holds for the whole process.
        for _, kind, idle in itertools.product(range(max(2, settings.blocks // 3)), KINDS, (False, True)):
            options = asyncrt.RuntimeOptions(cache_dir=Path(folder), collect_when_idle=idle)
            async with asyncrt.Runtime(settings.device, streams=STREAMS, options=options) as rt:
                model = await rt.load(models.SMALL)
                seen = [models.tokens(1, length) for length in range(1, lengths + 1, max(1, lengths // 4))]
                for request in seen * 10:
                    await model.infer(request)
                requests = new_shapes(lengths) if kind == "new" else itertools.cycle(seen)
                ticker, rate = await loaded(requests, model, callers, 10 * settings.block_s)
                info = rt.info
            of = found.setdefault((kind, idle), _Found())
            of.rates.append(rate)
            of.late_s += ticker.late_s
            of.worked_s += ticker.worked_s
    return m.Report(
        name="loop",
        command=f"python -m benchmarks.loop{settings.flags}",
        environment=m.environment(info),
        rows=[
            {
                "shapes": kind,
                "collect_when_idle": "on" if idle else "off",
                "late, median ms": float(np.median(of.late_s)) * 1e3,
                "p99 ms": float(np.percentile(of.late_s, 99)) * 1e3,
                "longest ms": max(of.late_s) * 1e3,
                "longest work ms": max(of.worked_s) * 1e3,
                "requests/s": float(np.median(of.rates)),
                "against off": m.Ratio.of(of.rates, found[kind, False].rates),
            }
            for (kind, idle), of in found.items()
        ],
        notes=[
            f"{callers} callers, {STREAMS} streams, a BERT of two small layers, a tick every {TICK_S * 1e3:g} ms.",
            "Longest work is the thread's own time between two ticks, in which other processes do not count.",
        ],
    )


if __name__ == "__main__":
    command.run(bench)
