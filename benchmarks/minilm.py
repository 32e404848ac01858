"""How long does a sentence embedding take, beside ONNX Runtime with the same cores?

all-MiniLM-L6-v2 in float32, one request at a time, shapes known from earlier requests.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import typer

import asyncrt

from . import measure as m
from . import models

SIZES = [(1, 8), (1, 16), (1, 32), (1, 64), (1, 128), (1, 256), (8, 32), (8, 128)]
QUICK = [(1, 8), (1, 32), (1, 128), (8, 32)]


async def bench(settings: m.Settings, model: Path, sizes: Sequence[tuple[int, int]] | None = None) -> m.Report:
    """Measure *sizes*: (batch, tokens)."""
    theirs = m.onnx_runtime(model, m.cores())
    rows: list[m.Row] = []
    pairs: list[tuple[list[float], list[float]]] = []
    largest = 0.0
    with tempfile.TemporaryDirectory() as folder:
        async with asyncrt.Runtime(settings.device, options=asyncrt.RuntimeOptions(cache_dir=Path(folder))) as rt:
            loaded = await rt.load(model)
            for batch, length in sizes or (QUICK if settings.quick else SIZES):
                inputs = models.tokens(batch, length)
                ours = await loaded.infer(inputs)
                largest = max(largest, m.check_equal(f"{batch}x{length}", ours.values(), theirs(inputs)))
                peers = {
                    "asyncrt": m.awaited(partial(loaded.infer, inputs), settings.block_s),
                    "onnxruntime": m.called(partial(theirs, inputs), settings.block_s),
                }
                samples = await m.interleave(peers, settings)
                pair = samples["onnxruntime"], samples["asyncrt"]
                pairs.append(pair)
                rows.append(
                    {
                        "batch": batch,
                        "tokens": length,
                        "asyncrt ms": float(np.median(samples["asyncrt"])) * 1e3,
                        "ONNX Runtime ms": float(np.median(samples["onnxruntime"])) * 1e3,
                        "speed-up": m.Ratio.of(*pair),
                    }
                )
                m.progress(f"{batch}x{length}: {rows[-1]['speed-up']}")
            return m.Report(
                name="minilm",
                command=f"python -m benchmarks.minilm{settings.flags}",
                environment=m.environment(rt.info),
                rows=rows,
                summary={"geometric mean of the speed-ups": m.Ratio.geometric_mean(pairs)},
                notes=[
                    "Speed-up: ONNX Runtime's median latency over asyncrt's; above 1, asyncrt is faster.",
                    f"The outputs of the two differ by {largest:.1e} at most.",
                ],
            )


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
