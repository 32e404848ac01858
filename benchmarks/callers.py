"""How many requests a second do eight callers at once get, each text of another length?

asyncrt answers them on an event loop. ONNX Runtime answers them from threads, in the two ways that suggest themselves:
a thread for each caller, with all cores for each request; and a thread for each core, with one core for each request.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import typer

import asyncrt

from . import measure as m
from . import models

CALLERS = 8
SHORTEST, LONGEST = 8, 200


async def bench(
    settings: m.Settings, model: Path, count: int | None = None, longest: int = LONGEST, callers: int = CALLERS
) -> m.Report:
    """Measure *count* requests of up to *longest* tokens."""
    count = count or (32 if settings.quick else 128)
    lengths = np.random.default_rng(0).integers(SHORTEST, longest + 1, count).tolist()
    requests = [models.tokens(1, length) for length in lengths]
    names = {
        "asyncrt": "asyncrt, asyncio",
        "wide": f"ONNX Runtime, {callers} threads, {m.cores()} cores each",
        "narrow": f"ONNX Runtime, {m.cores()} threads, 1 core each",
    }
    wide, narrow = m.onnx_runtime(model, m.cores()), m.onnx_runtime(model, 1)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(callers) as threads:
        async with asyncrt.Runtime(settings.device, options=asyncrt.RuntimeOptions(cache_dir=Path(folder))) as rt:
            loaded = await rt.load(model)
            m.check_equal("one request", (await loaded.infer(requests[0])).values(), wide(requests[0]))

            async def ours() -> float:
                return await m.closed_loop(loaded.infer, requests, callers)

            async def theirs_wide() -> float:
                return threaded(threads, wide, requests, callers)

            async def theirs_narrow() -> float:
                return threaded(threads, narrow, requests, m.cores())

            samples = await m.interleave({"asyncrt": ours, "wide": theirs_wide, "narrow": theirs_narrow}, settings)
            info = rt.info
    best = max(("wide", "narrow"), key=lambda name: float(np.median(samples[name])))
    return m.Report(
        name="callers",
        command=f"python -m benchmarks.callers{settings.flags}",
        environment=m.environment(info),
        rows=[
            {
                "runtime": names[name],
                "requests/s": float(np.median(rates)),
                "asyncrt against it": None if name == "asyncrt" else m.Ratio.of(samples["asyncrt"], rates),
            }
            for name, rates in samples.items()
        ],
        summary={"asyncrt's rate over the better of the others": m.Ratio.of(samples["asyncrt"], samples[best])},
        notes=[f"{callers} callers, the same {count} texts of {SHORTEST} to {longest} tokens in each turn."],
    )


def threaded(
    threads: ThreadPoolExecutor, run: Callable[[m.Inputs], object], requests: Sequence[m.Inputs], workers: int
) -> float:
    """Let *workers* threads answer the requests, each taking the next when it is free; returns requests per second."""
    waiting = iter(requests)  # `next` of a list's iterator is atomic

    def work() -> None:
        for request in waiting:
            run(request)

    start = time.perf_counter()
    for future in [threads.submit(work) for _ in range(workers)]:
        future.result()
    return len(requests) / (time.perf_counter() - start)


def main(
    model: m.ModelFile = None, device: m.Device = None, quick: m.Quick = False, threads: m.Threads = 2,
    json_file: m.JsonFile = None,
) -> None:  # fmt: skip
    m.execute(
        lambda settings: bench(settings, models.minilm(model)),
        quick=quick, device=device, threads=threads, json_file=json_file,
    )  # fmt: skip


main.__doc__ = __doc__

if __name__ == "__main__":
    typer.run(main)
