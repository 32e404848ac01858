"""How many requests a second do eight callers at once get, each text of another length?

asyncrt answers them on an event loop, each by itself, or put together (`Model.batched()`). ONNX Runtime answers them
from threads, in the two ways that suggest themselves: a thread for each caller, with all cores for each request; and a
thread for each core, with one core for each request. OpenVINO answers them from a queue of its own, set up for
throughput. And one caller by itself, whom batches cannot help: how much longer does it wait with them?
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np

import asyncrt

from . import command, models, peers
from . import measure as m

CALLERS = 8
BATCHED = "asyncrt, batched"
SHORTEST, LONGEST = 8, 200
ALONE = 8  # words of the one caller's text

Turn: TypeAlias = Callable[[], Awaitable[float]]
"""Lets a runtime answer all requests; returns requests per second."""


async def bench(
    settings: m.Settings,
    model: Path,
    count: int | None = None,
    longest: int = LONGEST,
    callers: int = CALLERS,
    pairs: int | None = None,
) -> m.Report:
    """Measure *count* requests of up to *longest* tokens, and *pairs* of a caller by itself."""
    count = count or (32 if settings.quick else 128)
    pairs = pairs or (200 if settings.quick else 2000)
    lengths = np.random.default_rng(0).integers(SHORTEST, longest + 1, count).tolist()
    requests = [models.tokens(1, length) for length in lengths]
    there, notes = peers.present([peers.ONNX_RUNTIME, peers.OPENVINO])
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(callers) as threads:
        options = asyncrt.RuntimeOptions(cache_dir=Path(folder))
        async with (
            asyncrt.Runtime(settings.device, options=options) as rt,
            (loaded := await rt.load(model)).batched() as batched,
        ):
            turns: dict[str, Turn] = {
                peers.OURS: partial(m.closed_loop, loaded.infer, requests, callers),
                BATCHED: partial(m.closed_loop, batched.infer, requests, callers),
            }
            together = await asyncio.gather(*map(batched.infer, requests))
            for request, answer in zip(requests, together, strict=True):
                m.check_equal("batched", answer.values(), (await loaded.infer(request)).values())
            ours = list(together[0].values())
            turns |= turns_of_peers(there, model, requests, ours, callers, threads)
            samples = await m.interleave(turns, settings)
            alone = {"MiniLM": await one_caller(loaded.infer, batched.infer, pairs)}
            async with (small := await rt.load(models.SMALL)).batched() as small_batched:
                alone["a BERT of two small layers"] = await one_caller(small.infer, small_batched.infer, pairs)
            info = rt.info
    load = f"{callers} callers, the same {count} texts of {SHORTEST} to {longest} tokens in each turn."
    environment = m.environment(info)
    return report(f"python -m benchmarks.callers{settings.flags}", environment, samples, alone, there, [load, *notes])


def turns_of_peers(
    there: Sequence[peers.Peer],
    model: Path,
    requests: Sequence[m.Inputs],
    ours: Sequence[m.Array],
    callers: int,
    threads: ThreadPoolExecutor,
) -> dict[str, Turn]:
    """Return a turn for each way to run a peer that is there; what it answers first is compared with *ours*."""
    turns: dict[str, Turn] = {}
    if peers.ONNX_RUNTIME in there:
        wide, narrow = (peers.load_onnx_runtime(model, cores) for cores in (m.cores(), 1))
        m.check_equal("one request", ours, wide(requests[0]))
        name = f"ONNX Runtime, {callers} threads, {m.cores()} cores each"
        turns[name] = partial(threaded, threads, wide, requests, callers)
        name = f"ONNX Runtime, {m.cores()} threads, 1 core each"
        turns[name] = partial(threaded, threads, narrow, requests, m.cores())
    if peers.OPENVINO in there:
        queue = peers.OpenVinoQueue(model, m.cores(), callers)
        m.check_equal("one request", ours, queue.run(requests[:1])[0])
        turns[f"OpenVINO, {callers} requests in its queue"] = partial(queued, queue, requests)
    return turns


def report(
    command_line: str,
    environment: dict[str, str],
    samples: dict[str, list[float]],
    alone: dict[str, tuple[list[float], list[float]]],
    there: Sequence[peers.Peer],
    notes: list[str],
) -> m.Report:
    """Compare the rates of all turns with asyncrt's, and a caller by itself with and without batches."""
    rates = samples[peers.OURS]
    each = "; ".join(
        f"{name} {np.median(direct) * 1e3:.3f} ms without, {np.median(batches) * 1e3:.3f} ms with"
        for name, (direct, batches) in alone.items()
    )
    pairs = len(next(iter(alone.values()))[0])
    one = f"One caller sends {pairs} pairs of texts of {ALONE} tokens, one with batches and one without: {each}."
    return m.Report(
        name="callers",
        command=command_line,
        environment=environment,
        rows=[
            {
                "runtime": name,
                "requests/s": float(np.median(theirs)),
                "asyncrt against it": None if name == peers.OURS else m.Ratio.of(rates, theirs),
            }
            for name, theirs in samples.items()
        ],
        summary={
            **{f"rate over {peer.name}'s": m.Ratio.of(rates, best(samples, peer.name)) for peer in there},
            "rate with batches over that without": m.Ratio.of(samples[BATCHED], rates),
            **{
                f"one caller of {name}: time with batches over that without": m.Ratio.of(batches, direct)
                for name, (direct, batches) in alone.items()
            },
        },
        notes=[notes[0], one, *notes[1:]],
    )


async def one_caller(
    direct: Callable[[m.Inputs], Awaitable[object]], batched: Callable[[m.Inputs], Awaitable[object]], pairs: int
) -> tuple[list[float], list[float]]:
    """Return the seconds of each request of a caller who sends one after the other, directly and batched in turns."""
    request = models.tokens(1, ALONE)
    taken: tuple[list[float], list[float]] = ([], [])
    ways = list(zip((direct, batched), taken, strict=True))
    for number in range(pairs):
        for infer, seconds in ways if number % 2 else reversed(ways):
            start = time.perf_counter()
            await infer(request)
            seconds.append(time.perf_counter() - start)
    return taken


def best(samples: dict[str, list[float]], peer: str) -> list[float]:
    """Return the rates of the better way of those in which a peer was run."""
    return max((rates for name, rates in samples.items() if name.startswith(peer)), key=np.median)


async def threaded(
    threads: ThreadPoolExecutor, run: peers.Run, requests: Sequence[m.Inputs], workers: int
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


async def queued(queue: peers.OpenVinoQueue, requests: Sequence[m.Inputs]) -> float:
    """Let OpenVINO's queue answer the requests; returns requests per second."""
    start = time.perf_counter()
    queue.run(requests)
    return len(requests) / (time.perf_counter() - start)


if __name__ == "__main__":
    command.run(bench)
