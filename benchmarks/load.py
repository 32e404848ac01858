"""How long does a process take to its first answer, and how much of that does the folder of kernels save?

Each load is a fresh process: first with an empty folder, so that the driver builds every kernel, then with the folder
that the first one left. The files themselves are in the system's cache both times.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import asyncrt

from . import command, models, process
from . import measure as m


async def bench(settings: m.Settings, model: Path, rounds: int | None = None) -> m.Report:
    """Measure MiniLM and a small model, *rounds* times each."""
    rounds = rounds or (2 if settings.quick else 10)
    rows: list[m.Row] = []
    for name, file in {"MiniLM": model, "small BERT": models.SMALL}.items():
        first: list[Times] = []
        second: list[Times] = []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as folder:
                first.append(process.fresh(once, file, folder, settings.device))
                second.append(process.fresh(once, file, folder, settings.device))
        rows.append(
            {
                "model": name,
                "kernels": int(first[0]["built"]),
                "built again": int(second[0]["built"]),
                "first load s": median(first, "load"),
                "second load s": median(second, "load"),
                "second over first": m.Ratio.of([t["load"] for t in second], [t["load"] for t in first]),
                "first answer s": median(first, "answer"),
                "with kernels kept s": median(second, "answer"),
            }
        )
        m.progress(f"{name}: {rows[-1]['second over first']}")
    async with asyncrt.Runtime(settings.device) as rt:
        info = rt.info
    return m.Report(
        name="load",
        command=f"python -m benchmarks.load{settings.flags}",
        environment=m.environment(info),
        rows=rows,
        notes=[
            f"Medians of {rounds} processes each. Load: `Runtime.load()`. First answer: from opening the device to the "
            "end of the first inference; importing Python modules is left out of both."
        ],
    )


Times = dict[str, float]
"""What a process reports: seconds of `load`, seconds to the first `answer`, and kernels `built`."""


async def once(file: str, folder: str, device: str | None) -> Times:
    """Load and run a model, here and now, as users do: the first answer may be NumPy's."""
    os.environ["ASYNCRT_WITHOUT"] = ""
    start = time.perf_counter()
    async with asyncrt.Runtime(device, options=asyncrt.RuntimeOptions(cache_dir=Path(folder))) as rt:
        opened = time.perf_counter()
        model = await rt.load(file)
        loaded = time.perf_counter()
        await model.infer(models.tokens(1, 16))
        answered = time.perf_counter()
        await model.ready()
        built = float(rt.statistics().kernels_built)
    return {"load": loaded - opened, "answer": answered - start, "built": built}


def median(times: Sequence[Times], what: str) -> float:
    """Return the median of one of the figures."""
    return float(np.median([t[what] for t in times]))


if __name__ == "__main__":
    command.run(bench)
