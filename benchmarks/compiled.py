"""What does it cost to compile for each shape, instead of planning?

MiniLM in asyncrt and in tinygrad, on the same OpenCL device. tinygrad runs no dynamic shapes: for each it compiles
kernels and records them, which is measured apart; asyncrt has its kernels when the model is loaded, and plans.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

import asyncrt
from asyncrt.devices.base import Device
from asyncrt.devices.find import open_device

from . import command, models, peers
from . import measure as m

LENGTHS = (8, 32, 128)
QUICK = (32,)


async def bench(settings: m.Settings, model: Path, lengths: Sequence[int] | None = None) -> m.Report:
    """Measure texts of *lengths* tokens."""
    device = open_device(settings.device)
    if not device.info.takes_source:
        raise m.BenchmarkError("tinygrad needs an OpenCL device; leave --device out, or use 'cpu' or 'gpu'")
    problem = tinygrad_problem(device)
    rows: list[m.Row] = []
    cases: list[tuple[m.Samples, m.Samples]] = []
    with tempfile.TemporaryDirectory() as folder:
        options = asyncrt.RuntimeOptions(cache_dir=Path(folder))
        async with asyncrt.Runtime(device, options=options) as rt:
            loaded = await rt.load(model)
            await loaded.infer(models.tokens(1, 1))
            for length in lengths or (QUICK if settings.quick else LENGTHS):
                inputs = models.tokens(1, length)
                start = time.perf_counter()
                ours = list((await loaded.infer(inputs)).values())
                row: m.Row = {"tokens": length, "asyncrt, first s": time.perf_counter() - start}
                turns = {peers.OURS: m.awaited(partial(loaded.infer, inputs), settings.block_s)}
                if not problem:
                    tiny = peers.Tinygrad(model, device)
                    start = time.perf_counter()
                    theirs = tiny(inputs)
                    row["tinygrad, first s"] = time.perf_counter() - start
                    m.check_equal(f"{length} tokens", ours, theirs)
                    tiny(inputs)  # records
                    row["tinygrad, until it replays s"] = time.perf_counter() - start
                    m.check_equal(f"{length} tokens, replayed", ours, tiny(inputs))
                    turns["tinygrad"] = m.called(partial(tiny, inputs), settings.block_s)
                samples = await m.interleave(turns, settings)
                row |= {f"{name}, known ms": float(np.median(seconds)) * 1e3 for name, seconds in samples.items()}
                if not problem:
                    cases.append((samples["tinygrad"], samples[peers.OURS]))
                    row["over tinygrad"] = m.Ratio.of(*cases[-1])
                rows.append(row)
                m.progress(f"{length} tokens: {row.get('over tinygrad', '')}")
            info = rt.info
    return m.Report(
        name="compiled",
        command=f"python -m benchmarks.compiled{settings.flags}",
        environment=m.environment(info),
        rows=rows,
        summary={"times as fast as tinygrad (geometric mean)": m.Ratio.geometric_mean(cases)} if cases else {},
        notes=[
            "First: one request of a shape that is new, kernels compiled included, measured once.",
            problem
            or "Over tinygrad: its median latency over asyncrt's; it has not searched for faster kernels (BEAM).",
        ],
    )


def tinygrad_problem(device: Device) -> str:
    """Return why tinygrad cannot be measured on a device, as a sentence; empty if it can."""
    if not peers.installed("tinygrad"):
        return "tinygrad is left out: it is not installed (`pip install 'tinygrad<0.14'`)."
    try:
        peers.Tinygrad(models.SMALL, device)(models.tokens(1, 2))
    except Exception as error:  # 0.14 looks for clang, others may fail otherwise
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return f"tinygrad is left out: it does not run here ({reason}); try `pip install 'tinygrad<0.14'`."
    return ""


if __name__ == "__main__":
    command.run(bench)
