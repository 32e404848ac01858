"""What does a shape cost that was never seen before, and what do ten thousand of them leave behind?

First a stream of lengths, each new, beside the same lengths once more: planning a shape takes time, but no kernel
should be built for it; those that were are counted. With ``--many N`` then N requests of random shapes: memory, plans
and objects must not grow.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated

import attrs
import numpy as np
import typer

import asyncrt
from asyncrt.runtime.plan import ChunkPlan

from . import measure as m
from . import models

LENGTHS = tuple(range(2, 242, 2))  # 120 of them; loading plans none of them
_READINGS = 50
_FEWEST = 10
_BATCHES, _TOKENS = 64, 64  # of the random requests: 4096 shapes, of which a model keeps 256 plans


async def bench(
    settings: m.Settings,
    model: Path,
    many: int = 0,
    lengths: Sequence[int] | None = None,
    rounds: int | None = None,
) -> m.Report:
    """Measure a first and a second pass over *lengths*, then *many* random shapes."""
    order = np.random.default_rng(0).permutation(lengths or (LENGTHS[1::4] if settings.quick else LENGTHS)).tolist()
    requests = [models.tokens(1, length) for length in order]
    rounds = rounds or (3 if settings.quick else 10)
    with tempfile.TemporaryDirectory() as folder:
        options = asyncrt.RuntimeOptions(cache_dir=Path(folder))
        ours, theirs = Passes(), Passes()
        kernels = 0
        for _ in range(rounds):  # a shape is new once only: each round loads the model anew, with the kernels on disk
            async with asyncrt.Runtime(settings.device, options=options) as rt:
                loaded = await rt.load(model)
                before = rt.statistics()
                await loaded.infer(models.tokens(1, 1))
                await ours.measure(loaded.infer, requests)
                after = rt.statistics()
                kernels += after.kernels_built + after.kernels_from_disk
                kernels -= before.kernels_built + before.kernels_from_disk
                info = rt.info
            run = m.onnx_runtime(model, m.cores())

            async def infer(inputs: m.Inputs, run: Callable[[m.Inputs], object] = run) -> object:
                return run(inputs)

            await infer(models.tokens(1, 1))
            await theirs.measure(infer, requests)
        rows = [ours.row("asyncrt"), theirs.row("ONNX Runtime")]
        summary: m.Row = {"kernels built or read during the first passes": kernels}
        notes = [
            f"{len(requests)} lengths in random order, {rounds} rounds, each with the model loaded anew. "
            "Cost of a new shape: the first pass's time over the second's; 1 is no cost.",
        ]
        if many:
            growth = await random_shapes(settings, options, many)
            for heading, g in growth.items():
                values = f"{m.show(g.loaded)} when loaded, {m.show(g.half)} half-way, {m.show(g.end)} at the end"
                summary[f"{heading}, {many} random shapes"] = f"{values}; {g.slope:+.3f} per 1000 requests"
            notes.append("The slope is a straight line's through the last half of the requests.")
    return m.Report(
        name="new_shapes",
        command=f"python -m benchmarks.new_shapes{f' --many {many}' if many else ''}{settings.flags}",
        environment=m.environment(info),
        rows=rows,
        summary=summary,
        notes=notes,
    )


@attrs.define
class Passes:
    """Seconds of the first and the second pass of each round."""

    first: list[float] = attrs.field(factory=list)
    second: list[float] = attrs.field(factory=list)

    async def measure(self, infer: Callable[[m.Inputs], Awaitable[object]], requests: Sequence[m.Inputs]) -> None:
        """Run the requests twice."""
        for passes in (self.first, self.second):
            start = time.perf_counter()
            for request in requests:
                await infer(request)
            passes.append((time.perf_counter() - start) / len(requests))

    def row(self, name: str) -> m.Row:
        """Return a row of the table."""
        return {
            "runtime": name,
            "first ms": float(np.median(self.first)) * 1e3,
            "second ms": float(np.median(self.second)) * 1e3,
            "cost of a new shape": m.Ratio.of(self.first, self.second),
        }


@attrs.frozen
class Growth:
    """A figure when the model was loaded, half-way and at the end, and its slope per 1000 requests from half-way on."""

    loaded: float
    half: float
    end: float
    slope: float


async def random_shapes(settings: m.Settings, options: asyncrt.RuntimeOptions, many: int) -> dict[str, Growth]:
    """Run random shapes; return what could grow, by heading.

    The model is a small one, for what is left behind does not depend on how much is multiplied.
    """
    random = np.random.default_rng(0)
    async with asyncrt.Runtime(settings.device, options=options) as rt:
        loaded = await rt.load(models.SMALL)
        places, readings = [0], [read(rt)]
        for done in range(1, many + 1):
            # Small batches more often than large ones, as the logarithm goes.
            batch = int(_BATCHES ** random.random())
            await loaded.infer(models.tokens(batch, int(random.integers(1, _TOKENS + 1))))
            if done % (many // _READINGS or 1) == 0:
                readings.append(read(rt))
                places.append(done)
    half = len(places) // 2
    result: dict[str, Growth] = {}
    for heading in readings[0]:
        values = [reading[heading] for reading in readings]
        slope = 1000 * float(np.polyfit(places[half:], values[half:], 1)[0])
        result[heading] = Growth(values[0], values[half], values[-1], slope)
    return result


def read(rt: asyncrt.Runtime) -> dict[str, float]:
    """Return what could grow."""
    gc.collect()
    statistics = rt.statistics()
    objects = gc.get_objects()
    return {
        "resident MB": resident() / 1e6,
        "device memory for intermediates MB": (statistics.memory.active + statistics.memory.held) / 1e6,
        "kernels": float(statistics.kernels_built + statistics.kernels_from_disk),
        "plans kept": float(sum(isinstance(o, ChunkPlan) for o in objects)),
        "live objects": float(len(objects)),
    }


def resident() -> int:
    """Return the bytes of memory that this process holds; the most it ever held, where that is all the system tells."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


def main(
    many: Annotated[int, typer.Option(min=0, help="Random shapes to run afterwards, to see what grows.")] = 0,
    model: m.ModelFile = None, device: m.Device = None, quick: m.Quick = False, threads: m.Threads = 2,
    json_file: m.JsonFile = None,
) -> None:  # fmt: skip
    if 0 < many < _FEWEST:
        raise typer.BadParameter(f"--many {many}: a slope needs {_FEWEST} requests at least")
    m.execute(
        lambda settings: bench(settings, models.minilm(model), many),
        quick=quick, device=device, threads=threads, json_file=json_file,
    )  # fmt: skip


main.__doc__ = __doc__

if __name__ == "__main__":
    typer.run(main)
