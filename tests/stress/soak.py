"""Does anything grow? Very many requests of very many shapes, some cancelled, on one runtime.

    python -m tests.stress.soak --requests 200000 --shapes 5000 --cancels 10000

Objects are counted exactly: when the runtime is closed, none may be left. The memory of the process is measured each
time that nothing is in flight, and what it grows by is estimated from all pairs of those measurements but the first
ones, with an upper bound from samples of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import attrs
import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from asyncrt import Runtime, RuntimeOptions
from asyncrt.devices.find import open_device
from asyncrt.layout import Array

from ..builders import i64, model, node

AT_ONCE = 32
MEASURED = 40
"""Measurements of a run; the first third do not count, because caches fill."""

CHECKED = 50
"""One in so many results is compared with NumPy."""


@attrs.frozen
class Soaked:
    """What a run did, and what it left.

    Attributes:
        requests, cancelled: How many, and how many of them were cancelled.
        shapes: Different ones.
        seconds: How long it took.
        left: What is left after closing, by name; all zero if nothing is.
        grows: Bytes of the process for each request: the estimate, and its upper bound (95 %).
        resident: Bytes of the process, at each measurement.
    """

    requests: int
    cancelled: int
    shapes: int
    seconds: float
    left: dict[str, int]
    grows: tuple[float, float]
    resident: list[int]


def network() -> Any:
    """Views, skips, a product, and a second chunk whose shape the first computes."""
    nodes = [
        node("a = Transpose(x)", perm=[1, 0]),
        node("b = Tanh(a)"),
        node("s = Slice(b, zero, one)"),
        node("c = Concat(s, b)", axis=0),
        node("m = ReduceMax(x)", keepdims=0),
        node("k = Cast(m)", to=7),
        node("r = Range(start, k, step)"),
        node("y = Transpose(c)", perm=[1, 0]),
        node("z = Neg(r)"),
    ]
    constants = {"zero": i64(0), "one": i64(1), "start": np.array(0, np.int64), "step": np.array(1, np.int64)}
    return model(nodes, ["x f32[n,m]"], ["y", "z"], constants)


def given(shape: int, seed: int) -> Array:
    """The input of that shape, by its number: up to 100 rows."""
    x = np.random.default_rng(seed).uniform(-1, 1, (1 + shape % 100, 1 + shape // 100)).astype(np.float32)
    x[0, 0] = seed % 4
    return x


def check(x: Array, out: dict[str, Array]) -> None:
    """Compare with NumPy."""
    tanh = np.tanh(x)
    np.testing.assert_allclose(out["y"], np.concatenate([tanh[:, :1], tanh], 1), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(out["z"], -np.arange(int(x.max())))


def resident() -> int:
    """Bytes of this process in memory, after what can be given back was."""
    gc.unfreeze()  # what a rest has frozen is not collected
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # another C library than GNU's
        ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def growth(points: list[tuple[int, int]], seed: int = 0) -> tuple[float, float]:
    """Return the slope of *points* after Theil and Sen (the median of all pairs'), and its upper bound (95 %)."""

    def slope(chosen: list[tuple[int, int]]) -> float:
        slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a in chosen for b in chosen if b[0] > a[0]]
        return float(np.median(slopes)) if slopes else 0.0

    chance = random.Random(seed)
    samples = sorted(slope([chance.choice(points) for _ in points]) for _ in range(400))
    return slope(points), samples[int(0.95 * len(samples))]


class Counting:
    """Counts the allocations of a device that were not released."""

    def __init__(self, device: Any) -> None:
        self.count = 0
        allocate, release = device.allocate, device.release

        def counted(nbytes: int) -> Any:
            allocation = allocate(nbytes)
            self.count += 1
            return allocation

        def discounted(allocation: Any) -> None:
            release(allocation)
            self.count -= 1

        device.allocate, device.release = counted, discounted


async def soak(
    requests: int,
    shapes: int,
    cancels: int,
    *,
    device: str | None = None,
    seed: int = 0,
    progress: Callable[[int], object] = lambda done: None,
) -> Soaked:
    """Run and return what came of it; a wrong result is raised."""
    chance = random.Random(seed)
    before = {*threading.enumerate()}
    opened = open_device(device)
    counting = Counting(opened)
    threads = threading.active_count()
    points: list[tuple[int, int]] = []
    cancelled = done = 0
    begun = time.monotonic()
    async with Runtime(opened, streams=2, options=RuntimeOptions(idle_release_s=None)) as rt:
        loaded = await rt.load(network())

        async def one(number: int) -> None:
            x = given(chance.randrange(shapes), number)
            out = await loaded.infer({"x": x})
            if number % CHECKED == 0:
                check(x, out)

        step = max(1, requests // MEASURED)
        for start in range(0, requests, AT_ONCE):
            tasks = [asyncio.create_task(one(n)) for n in range(start, min(start + AT_ONCE, requests))]
            ends = [t for t in tasks if chance.random() < cancels / requests]
            if ends:
                for _ in range(chance.randrange(12)):
                    await asyncio.sleep(0)
                for task in ends:
                    task.cancel()
            cancelled += await ended(tasks)
            done += len(tasks)
            progress(done)
            if done // step > len(points):
                while rt.session.dispatcher.busy:
                    await rt.session.dispatcher.progress()
                points.append((done, resident()))
    left = left_in(rt, counting, before)
    assert threading.active_count() >= threads
    counted = points[len(points) // 3 :]
    grows = growth(counted) if len(counted) > 2 else (0.0, 0.0)
    return Soaked(requests, cancelled, shapes, time.monotonic() - begun, left, grows, [rss for _, rss in points])


async def ended(tasks: list[asyncio.Task[None]]) -> int:
    """Wait for *tasks* and return how many were cancelled; any other error is raised."""
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
            raise outcome
    return sum(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)


def left_in(rt: Runtime, counting: Counting, before: set[threading.Thread]) -> dict[str, int]:
    """Return what is left of a runtime that is closed, by name; *before* are threads that were there before it."""
    statistics = rt.statistics()
    return {
        "allocations": counting.count,
        "leases": statistics.memory.leases,
        "bytes leased": statistics.memory.active,
        "bytes held": statistics.memory.held,
        "bytes of constants": statistics.weights.nbytes,
        "requests": statistics.in_flight,
        "marks": len(rt.session.dispatcher.marks),
        "things kept for marks": rt.session.dispatcher.marks.held,
        "builds": statistics.kernels.pending,
        "tasks": len(asyncio.all_tasks()) - 1,
        "threads of streams": sum(t.name.startswith("asyncrt-") for t in {*threading.enumerate()} - before),
    }


def show(soaked: Soaked, console: Console) -> None:
    """Print it."""
    slope, bound = soaked.grows
    table = Table("", "", title="soak", show_header=False)
    table.add_row("requests", f"{soaked.requests:,}, {soaked.cancelled:,} cancelled, {soaked.shapes:,} shapes")
    table.add_row("time", f"{soaked.seconds:.0f} s, {soaked.requests / soaked.seconds:,.0f} requests a second")
    much = [f"{bytes_each * 1e5 / 2**20:.2f} MiB" for bytes_each in (slope, bound)]
    table.add_row("growth", f"{much[0]} for 100,000 requests, at most {much[1]} (95 %)")
    if soaked.resident:
        table.add_row("memory", f"{soaked.resident[0] >> 20} MiB at first, {soaked.resident[-1] >> 20} MiB at last")
    left = {name: count for name, count in soaked.left.items() if count}
    table.add_row("left at close", str(left) if left else "nothing")
    console.print(table)


def main(
    requests: Annotated[int, typer.Option(help="How many.")] = 200_000,
    shapes: Annotated[int, typer.Option(help="Different ones.")] = 5_000,
    cancels: Annotated[int, typer.Option(help="About how many are cancelled.")] = 10_000,
    device: Annotated[str | None, typer.Option(help="Where; the best one found.")] = None,
    seed: int = 0,
) -> None:
    """Soak, and print what grew and what is left."""
    console = Console()
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("soak", total=requests)
        soaked = asyncio.run(
            soak(requests, shapes, cancels, device=device, seed=seed, progress=lambda n: bar.update(task, completed=n))
        )
    show(soaked, console)
    sys.exit(any(soaked.left.values()))


if __name__ == "__main__":
    typer.run(main)
