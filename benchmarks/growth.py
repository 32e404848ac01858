"""What do thousands of random shapes leave behind?

Memory, plans and objects must not grow with the number of shapes. The model is a small one, for what is left behind
does not depend on how much is multiplied.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
import tempfile
from pathlib import Path

import attrs
import numpy as np

import asyncrt
from asyncrt.runtime.plan.chunk_plan import ChunkPlan

from . import command, models
from . import measure as m

READINGS = 50
BATCHES, TOKENS = 64, 64  # 4096 shapes, of which a model keeps 256 plans


async def bench(settings: m.Settings, many: int | None = None) -> m.Report:
    """Run *many* random shapes, ten at least: a slope needs as many."""
    many = many or (1000 if settings.quick else 10_000)
    with tempfile.TemporaryDirectory() as folder:
        options = asyncrt.RuntimeOptions(cache_dir=Path(folder))
        async with asyncrt.Runtime(settings.device, options=options) as rt:
            found = await random_shapes(rt, many)
            info = rt.info
    return m.Report(
        name="growth",
        command=f"python -m benchmarks.growth{settings.flags}",
        environment=m.environment(info),
        rows=[
            {
                "what": what,
                "when loaded": growth.loaded,
                "half-way": growth.half,
                "at the end": growth.end,
                "per 1000 requests": f"{growth.slope:+.3f}",
            }
            for what, growth in found.items()
        ],
        notes=[
            f"{many} requests to a BERT of two small layers, 1 to {BATCHES} texts of 1 to {TOKENS} tokens. "
            "Per 1000 requests: the slope of a straight line through the last half of them.",
        ],
    )


@attrs.frozen
class Growth:
    """A figure when the model was loaded, half-way and at the end, and its slope per 1000 requests from half-way on."""

    loaded: float
    half: float
    end: float
    slope: float


async def random_shapes(rt: asyncrt.Runtime, many: int) -> dict[str, Growth]:
    """Run random shapes; return what could grow, by heading."""
    random = np.random.default_rng(0)
    loaded = await rt.load(models.SMALL)
    places, readings = [0], [read(rt)]
    for done in range(1, many + 1):
        # Small batches more often than large ones, as the logarithm goes.
        batch = int(BATCHES ** random.random())
        await loaded.infer(models.tokens(batch, int(random.integers(1, TOKENS + 1))))
        if done % (many // READINGS or 1) == 0:
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
    gc.unfreeze()  # what a rest has frozen is neither collected nor counted
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


if __name__ == "__main__":
    command.run(bench)
