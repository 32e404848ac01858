"""How long does a process take to its first answer, and how much of that does the folder of kernels save?

Each load is a fresh process: first with an empty folder, so that the driver builds every kernel, then with the folder
that the first one left. The files themselves are in the system's cache both times.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

import asyncrt

from . import measure as m
from . import models


async def bench(settings: m.Settings, files: Mapping[str, Path], rounds: int | None = None) -> m.Report:
    """Measure the models in *files*, by name."""
    rounds = rounds or (2 if settings.quick else 10)
    rows: list[m.Row] = []
    for name, file in files.items():
        first: list[Times] = []
        second: list[Times] = []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as folder:
                first.append(in_fresh_process(file, Path(folder), settings.device))
                second.append(in_fresh_process(file, Path(folder), settings.device))
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


def in_fresh_process(file: Path, folder: Path, device: str | None) -> Times:
    """Load and run a model in a process of its own, with kernels kept in *folder*."""
    command = [sys.executable, "-m", "benchmarks.load", "--once", str(file), "--folder", str(folder)]
    command += ["--device", device] if device else []
    done = subprocess.run(command, cwd=m.ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise m.BenchmarkError(f"a process that loads {file.name} ended with {done.returncode}:\n{done.stderr}")
    times: Times = json.loads(done.stdout)
    return times


async def once(file: Path, folder: Path, device: str | None) -> Times:
    """Load and run a model, here and now."""
    start = time.perf_counter()
    async with asyncrt.Runtime(device, options=asyncrt.RuntimeOptions(cache_dir=folder)) as rt:
        opened = time.perf_counter()
        model = await rt.load(file)
        loaded = time.perf_counter()
        await model.infer(models.tokens(1, 16))
        answered = time.perf_counter()
        built = float(rt.statistics().kernels_built)
    return {"load": loaded - opened, "answer": answered - start, "built": built}


def median(times: Sequence[Times], what: str) -> float:
    """Return the median of one of the figures."""
    return float(np.median([t[what] for t in times]))


def main(
    model: m.ModelFile = None, device: m.Device = None, quick: m.Quick = False, threads: m.Threads = 2,
    json_file: m.JsonFile = None,
    only: Annotated[Path | None, typer.Option("--once", hidden=True)] = None,
    folder: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:  # fmt: skip
    if only is not None and folder is not None:  # one of the fresh processes
        typer.echo(json.dumps(asyncio.run(once(only, folder, device))))
        return
    m.execute(
        lambda settings: bench(settings, {"MiniLM": models.minilm(model), "small BERT": models.SMALL}),
        quick=quick, device=device, threads=threads, json_file=json_file,
    )  # fmt: skip


main.__doc__ = __doc__

if __name__ == "__main__":
    typer.run(main)
