"""How soon does a cancelled caller go on, and do the others answer as many requests meanwhile?

Some callers keep the device busy with batches, each its next request when its last is answered. One more comes again
and again, and is cancelled at some time until its answer would have come: while it waits for a batch, while its batch
runs, or while it runs by itself. Measured is the time from `task.cancel()` until the task has ended.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import attrs
import numpy as np

import asyncrt

from . import command, models
from . import measure as m

CALLERS = 8
LENGTHS = (128, 96, 112, 64)
WAITS, IN_A_BATCH, ALONE = "waits for a batch", "is in a batch that runs", "runs by itself"
LEAST = 3  # callers cancelled in a turn


@attrs.frozen
class Cancelled:
    """Of those who were cancelled in one situation: how long each took to end, and how long our thread worked then."""

    seconds: list[float] = attrs.Factory(list)
    worked_s: list[float] = attrs.Factory(list)


@attrs.define
class Load:
    """Callers of one model.

    Attributes:
        latency_s: Of a request, about.
        found: What became of those who were cancelled.
    """

    model: asyncrt.Model
    batched: asyncrt.Batched
    requests: Sequence[m.Inputs]
    callers: int
    seconds: float
    latency_s: float
    found: dict[str, Cancelled]
    _random: np.random.Generator = attrs.Factory(lambda: np.random.default_rng(0))

    async def turn(self, cancelling: bool) -> float:
        """Let the callers work, beside one more who is cancelled or not; returns their requests per second."""
        done = 0
        over = False
        begin = time.perf_counter()

        async def caller(requests: Sequence[m.Inputs]) -> None:
            nonlocal done
            for request in itertools.cycle(requests):
                await self.batched.infer(request)
                done += 1
                if over:
                    return

        async with asyncio.TaskGroup() as group:
            for number in range(self.callers):
                group.create_task(caller([*self.requests[number:], *self.requests[:number]]))
            if cancelling:
                await self._cancel(lambda: time.perf_counter() - begin < self.seconds)
            else:
                await asyncio.sleep(self.seconds)
            over = True
        return done / (time.perf_counter() - begin)

    async def _cancel(self, go_on: Callable[[], bool]) -> None:
        cancelled = 0
        while cancelled < LEAST or go_on():
            request = self.requests[cancelled % len(self.requests)]
            alone = cancelled % 3 == 2
            task = asyncio.create_task(self.model.infer(request) if alone else self.batched.infer(request))
            await asyncio.sleep(self._random.uniform(0, self.latency_s) if cancelled % 2 else 0)
            if task.done():
                continue
            left = self.batched.statistics().left
            start, worked = time.perf_counter(), time.thread_time()
            task.cancel()
            await asyncio.wait((task,))
            seconds, worked = time.perf_counter() - start, time.thread_time() - worked
            if task.cancelled():
                waited = self.batched.statistics().left > left
                found = self.found[ALONE if alone else WAITS if waited else IN_A_BATCH]
                found.seconds.append(seconds)
                found.worked_s.append(worked)
                cancelled += 1


async def bench(
    settings: m.Settings, model: Path, lengths: Sequence[int] = LENGTHS, callers: int = CALLERS
) -> m.Report:
    """Measure requests of these lengths."""
    found = {kind: Cancelled() for kind in (WAITS, IN_A_BATCH, ALONE)}
    requests = [models.tokens(1, length) for length in lengths]
    with tempfile.TemporaryDirectory() as folder:
        options = asyncrt.RuntimeOptions(cache_dir=Path(folder))
        async with (
            asyncrt.Runtime(settings.device, options=options) as rt,
            (loaded := await rt.load(model)).batched() as batched,
        ):
            rate = await m.closed_loop(batched.infer, requests * callers, callers)
            load = Load(loaded, batched, requests, callers, 50 * settings.block_s, callers / rate, found)
            rates = await m.interleave(
                {"none": partial(load.turn, False), "cancelled": partial(load.turn, True)}, settings
            )
            info = rt.info
    return m.Report(
        name="cancelling",
        command=f"python -m benchmarks.cancelling{settings.flags}",
        environment=m.environment(info),
        rows=[
            {
                "the caller": kind,
                "cancelled": len(of.seconds),
                "until it ended, median ms": float(np.median(of.seconds)) * 1e3,
                "p99 ms": float(np.percentile(of.seconds, 99)) * 1e3,
                "longest ms": max(of.seconds) * 1e3,
                "longest work ms": max(of.worked_s) * 1e3,
            }
            for kind, of in found.items()
            if of.seconds
        ],
        summary={"the others' rate beside one who is cancelled": m.Ratio.of(rates["cancelled"], rates["none"])},
        notes=[
            f"{callers} callers at once, texts of {', '.join(map(str, lengths))} tokens.",
            "Longest work is the loop's own time in such a wait, in which other processes do not count.",
        ],
    )


if __name__ == "__main__":
    command.run(bench)
