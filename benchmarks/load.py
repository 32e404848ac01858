"""How long does a process take to its first answer, and how much of that does the folder of kernels save?

Each is a fresh process, and its time begins before its first import: with an empty folder, with the folder that other
models have left, and with the folder that the model itself has left. The files are in the system's cache each time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
import numpy as np

import asyncrt

from . import command, models, wheels
from . import measure as m
from .peers import ONNX_RUNTIME, present
from .trained import MODELS, value

TRAINED = ("ch_PP-OCRv4_det_infer.onnx", "ch_PP-OCRv4_rec_infer.onnx", "model.onnx")
"""Of `trained.MODELS`: a text detector, a text recogniser, and what tells the kinds of files."""
SCRIPT = Path(__file__).with_name("first_answer.py")

EMPTY, OTHERS, KEPT, PEER = "empty folder s", "others' kernels s", "its own kernels s", "ONNX Runtime s"


@attrs.frozen
class Case:
    """A model, and what it is asked first."""

    name: str
    file: Path
    inputs: Path


async def bench(
    settings: m.Settings, model: Path, rounds: int | None = None, trained: Sequence[str] = TRAINED
) -> m.Report:
    """Measure MiniLM, a small model, and *trained* ones that packages ship, *rounds* times each."""
    rounds = rounds or (3 if settings.quick else 7)
    notes: list[str] = []
    with tempfile.TemporaryDirectory() as work:
        cases = list(_cases(model, trained, Path(work), notes))
        rows = [_row(case, cases, Path(work), settings.device, rounds) for case in cases]
    async with asyncrt.Runtime(settings.device) as rt:
        info = rt.info
    return m.Report(
        name="load",
        command=f"python -m benchmarks.load{settings.flags}",
        environment=m.environment(info),
        rows=rows,
        notes=[
            f"Medians of {rounds} processes each, from before the first import to the first answer, which may be "
            "NumPy's while kernels are built.",
            *notes,
        ],
    )


def _cases(model: Path, files: Sequence[str], work: Path, notes: list[str]) -> Iterator[Case]:
    """Yield the cases, with their files in a folder; a wheel that is not to be had becomes a note."""
    tokens = models.tokens(1, 16)
    for name, file in {"MiniLM": model, "small BERT": models.SMALL}.items():
        yield Case(name, file, _saved(work / f"{name}.npz", tokens))
    known = {trained.file: trained for trained in reversed(MODELS)}  # of equal names the first
    for name in files:
        trained = known[name]
        try:
            data = wheels.read(wheels.fetch(trained.package), trained.file)
        except m.BenchmarkError as error:
            notes.append(f"Left out: {error}.")
            continue
        file = work / f"{trained.package.partition('==')[0]} {name}"
        file.write_bytes(data)
        inputs = {name: value(text) for name, text in trained.requests[0].items()}
        yield Case(file.stem, file, _saved(file.with_suffix(".npz"), inputs))


def _saved(file: Path, inputs: m.Inputs) -> Path:
    np.savez(file, **inputs)  # type: ignore[arg-type]  # names of inputs are not those of its own arguments
    return file


def _row(case: Case, cases: Sequence[Case], work: Path, device: str | None, rounds: int) -> m.Row:
    """Measure one case; the states of the folder take turns."""
    others = work / f"{case.name} others"
    for other in cases:
        if other is not case:
            _first("asyncrt", other.file, other.inputs, others, device or "")
    found: dict[str, list[float]] = {EMPTY: [], OTHERS: [], KEPT: [], PEER: []}
    built = again = 0
    for number in range(rounds):
        own, copy = work / f"{case.name} {number}", work / f"{case.name} others {number}"
        first = _first("asyncrt", case.file, case.inputs, own, device or "")
        found[EMPTY].append(first["answer"])
        copy.mkdir()
        subprocess.run(["cp", "-r", f"{others}/.", str(copy)], check=False)  # nothing is there if there is one case
        found[OTHERS].append(_first("asyncrt", case.file, case.inputs, copy, device or "")["answer"])
        second = _first("asyncrt", case.file, case.inputs, own, device or "")
        found[KEPT].append(second["answer"])
        built, again = int(first["built"]), int(second["built"])
        if ONNX_RUNTIME in present([ONNX_RUNTIME])[0]:
            found[PEER].append(_first("onnxruntime", case.file, case.inputs)["answer"])
    row: m.Row = {"model": case.name, "kernels": built, "built again": again}
    row |= {state: float(np.median(seconds)) if seconds else None for state, seconds in found.items()}
    row["the last over its own kernels"] = m.Ratio.of(found[PEER], found[KEPT]) if found[PEER] else None
    m.progress(", ".join(map(m.show, row.values())))
    return row


def _first(*arguments: object) -> dict[str, float]:
    """Return what a fresh process says of its first answer.

    Raises:
        BenchmarkError: It failed.
    """
    environment = {**os.environ, "ASYNCRT_WITHOUT": "", "PYTHONPATH": os.pathsep.join([str(m.ROOT), *sys.path[1:]])}
    line = [sys.executable, str(SCRIPT), *map(str, arguments)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise m.BenchmarkError(f"{' '.join(line)} ended with {done.returncode}:\n{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    command.run(bench)
