"""What do more command queues give to requests that have nothing to do with one another?

A small model, eight callers at once, the same requests with 1, 2 and 4 streams. With one, the device does one request
after the other; with more, one request's kernels fill the gaps of another's.
"""

from __future__ import annotations

import tempfile
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import numpy as np

import asyncrt

from . import command, models
from . import measure as m

STREAMS = (1, 2, 4)
CALLERS = 8
BATCH, LENGTH = 1, 32


async def bench(settings: m.Settings, count: int | None = None) -> m.Report:
    """Measure *count* requests in a turn."""
    requests = [models.tokens(BATCH, LENGTH, seed) for seed in range(count or (40 if settings.quick else 200))]
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        peers: dict[str, m.Block] = {}
        for streams in STREAMS:
            runtime = asyncrt.Runtime(
                settings.device, streams=streams, options=asyncrt.RuntimeOptions(cache_dir=folder)
            )
            rt = await stack.enter_async_context(runtime)
            loaded = await rt.load(models.SMALL)
            peers[str(streams)] = partial(m.closed_loop, loaded.infer, requests, CALLERS)
        samples = await m.interleave(peers, settings)
        info = rt.info
    return m.Report(
        name="streams",
        command=f"python -m benchmarks.streams{settings.flags}",
        environment=m.environment(info),
        rows=[
            {
                "streams": int(name),
                "requests/s": float(np.median(rates)),
                "against one stream": m.Ratio.of(rates, samples[str(STREAMS[0])]),
            }
            for name, rates in samples.items()
        ],
        notes=[f"{CALLERS} callers, a BERT of two small layers, {BATCH} text of {LENGTH} tokens in each request."],
    )


if __name__ == "__main__":
    command.run(bench)
