"""What do more command queues give to requests that have nothing to do with one another?

Eight callers at once, the same requests with 1, 2 and 4 streams. With one, the device does one request after the other;
with more, requests run side by side. That gives something where a kernel does not fill the device by itself, and where
it takes longer than the host takes to enqueue it.
"""

from __future__ import annotations

import tempfile
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import numpy as np
import onnx

import asyncrt

from . import command, models
from . import measure as m

STREAMS = (1, 2, 4)
CALLERS = 8
ROWS, WIDTH, INNER, LAYERS = 32, 384, 1536, 6
NARROW, BERT = "narrow layers", "small BERT"


async def bench(settings: m.Settings, count: int | None = None) -> m.Report:
    """Measure *count* requests in a turn."""
    each = range(count or (40 if settings.quick else 200))
    cases: dict[str, tuple[onnx.ModelProto | Path, list[m.Inputs]]] = {
        NARROW: (narrow(), [rows(seed) for seed in each]),
        BERT: (models.SMALL, [models.tokens(1, ROWS, seed) for seed in each]),
    }
    samples: dict[str, dict[int, list[float]]] = {}
    for name, (model, requests) in cases.items():
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            peers: dict[str, m.Block] = {}
            for streams in STREAMS:
                runtime = asyncrt.Runtime(
                    settings.device, streams=streams, options=asyncrt.RuntimeOptions(cache_dir=folder)
                )
                rt = await stack.enter_async_context(runtime)
                loaded = await rt.load(model)
                peers[str(streams)] = partial(m.closed_loop, loaded.infer, requests, CALLERS)
            found = await m.interleave(peers, settings)
            samples[name] = {int(streams): rates for streams, rates in found.items()}
            info = rt.info
    return m.Report(
        name="streams",
        command=f"python -m benchmarks.streams{settings.flags}",
        environment=m.environment(info),
        rows=[
            {
                "model": name,
                "streams": streams,
                "requests/s": float(np.median(rates)),
                "against one stream": m.Ratio.of(rates, found[STREAMS[0]]),
            }
            for name, found in samples.items()
            for streams, rates in found.items()
        ],
        notes=[
            f"{CALLERS} callers.",
            f"The {NARROW}: {2 * LAYERS} products of {ROWS} rows with {WIDTH} × {INNER} and {INNER} × {WIDTH},"
            " the sizes of MiniLM; on a GPU of 132 processors one keeps 24 of them busy, or 6, for about 100 µs.",
            f"The {BERT}: two layers of width 32, {ROWS} tokens. Its kernels take less time than enqueueing them, so"
            " that the host is the limit, however many streams there are.",
        ],
    )


def narrow() -> onnx.ModelProto:
    """Return a model whose products are too small for a large device."""
    random = np.random.default_rng(0)
    chain = models.Chain()
    constants = {
        name: (random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        for name, shape in (("up", (WIDTH, INNER)), ("down", (INNER, WIDTH)))
    }
    for _ in range(LAYERS):
        chain.add("MatMul", "up")
        chain.add("Relu")
        chain.add("MatMul", "down")
    return models.model(chain.nodes, ["rows", WIDTH], constants, chain.value)


def rows(seed: int) -> m.Inputs:
    """Return a request to `narrow`."""
    return {"x": np.random.default_rng(seed).standard_normal((ROWS, WIDTH)).astype(np.float32)}


if __name__ == "__main__":
    command.run(bench)
