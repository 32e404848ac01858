"""How much memory does a process need for requests of a thousand shapes?

Each runtime has a process of its own, which answers the same requests to MiniLM, of random shapes, one after the other.
Measured is what the system counts as resident in that process (`VmRSS`, and its peak, `VmHWM`, begun anew when the
model is loaded), less what was resident when the runtime's modules had been imported. Weights count, and so does what
an open device takes, which is the OpenCL driver; the last column leaves that out. Kernels are on disk, as in every
start but the first.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

import asyncrt
from asyncrt.devices.opencl import drivers

from . import command, models, peers, process
from . import measure as m

SHAPES, QUICK_SHAPES = 1000, 50
BATCHES = 8
TOKENS, QUICK_TOKENS = 256, 64
_STATUS = Path("/proc/self/status")


async def bench(
    settings: m.Settings, model: Path, many: int | None = None, tokens: int | None = None, rounds: int | None = None
) -> m.Report:
    """Measure *many* requests of up to *tokens* tokens, *rounds* times in each runtime."""
    check_system()
    many = many or (QUICK_SHAPES if settings.quick else SHAPES)
    tokens = tokens or (QUICK_TOKENS if settings.quick else TOKENS)
    rounds = rounds or (1 if settings.quick else 3)
    there, notes = peers.present([peers.ONNX_RUNTIME, peers.OPENVINO])
    found: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        process.fresh(ours, model, many, tokens, folder, settings.device)  # builds the kernels
        for _ in range(rounds):
            figures = process.fresh(ours, model, many, tokens, folder, settings.device)
            found.setdefault(peers.OURS, []).append(figures)
            for peer in there:
                found.setdefault(peer.name, []).append(process.fresh(theirs, peer.name, model, many, tokens))
    async with asyncrt.Runtime(settings.device) as rt:
        info = rt.info
    peaks = {name: [figures["peak"] for figures in each] for name, each in found.items()}
    behind = {name: [figures["peak"] - figures["opened"] for figures in each] for name, each in found.items()}
    return m.Report(
        name="memory",
        command=f"python -m benchmarks.memory{settings.flags}",
        environment=m.environment(info),
        rows=[
            {
                "runtime": name,
                **{f"{heading} MB": median(each, heading) for heading in ("opened", "loaded", "peak", "at the end")},
                "asyncrt's peak over its": None if name == peers.OURS else m.Ratio.of(peaks[peers.OURS], peaks[name]),
                "without the driver": None if name == peers.OURS else m.Ratio.of(behind[peers.OURS], behind[name]),
            }
            for name, each in found.items()
        ],
        summary={
            f"peak of memory{what} over {peer.name}'s": m.Ratio.of(of[peers.OURS], of[peer.name])
            for peer in there
            for what, of in (("", peaks), (", without the driver,", behind))
        },
        notes=[
            f"{many} requests of 1 to {BATCHES} texts of 1 to {tokens} tokens, {rounds} processes for each runtime. "
            "Opened: with the device open and no model yet; loaded: with the model, before the first request. "
            "Ratios below 1: asyncrt takes less.",
            *notes,
        ],
    )


def check_system() -> None:
    """Raise `BenchmarkError` where the system does not tell what is measured."""
    if not _STATUS.exists():
        raise m.BenchmarkError("the peak of a process's memory is read from /proc, which only Linux has")


def trace(many: int, tokens: int) -> list[m.Inputs]:
    """Return the requests; small batches come more often than large ones, as the logarithm goes."""
    random = np.random.default_rng(0)
    batches = (int((BATCHES + 1) ** random.random()) for _ in range(many))
    return [models.tokens(batch, int(random.integers(1, tokens + 1))) for batch in batches]


def median(each: Sequence[Mapping[str, float]], heading: str) -> float:
    """Return the median of one of the figures."""
    return float(np.median([figures[heading] for figures in each]))


# --- in the processes -------------------------------------------------------------------------------------------------


async def ours(file: str, many: int, tokens: int, folder: str, device: str | None) -> dict[str, float]:
    """Measure asyncrt, here and now; returns megabytes."""
    drivers.prepare()  # before pyopencl is there
    importlib.import_module("pyopencl")
    requests = trace(many, tokens)
    imported = resident("VmRSS")
    async with asyncrt.Runtime(device, options=asyncrt.RuntimeOptions(cache_dir=Path(folder))) as rt:
        opened = resident("VmRSS")
        model = await rt.load(Path(file))
        loaded = resident("VmRSS")
        begin_peak()
        for request in requests:
            await model.infer(request)
        return less(imported, opened, loaded)


async def theirs(name: str, file: str, many: int, tokens: int) -> dict[str, float]:
    """Measure a peer, here and now; returns megabytes."""
    (peer,) = (p for p in (peers.ONNX_RUNTIME, peers.OPENVINO) if p.name == name)
    importlib.import_module(peer.package)
    requests = trace(many, tokens)
    imported = resident("VmRSS")
    run = peer.load(Path(file), m.cores())
    loaded = resident("VmRSS")
    begin_peak()
    for request in requests:
        run(request)
    return less(imported, imported, loaded)


def less(imported: float, opened: float, loaded: float) -> dict[str, float]:
    """Return the figures of a process that has answered everything, less what it had before the runtime did a thing."""
    figures = {"opened": opened, "loaded": loaded, "peak": resident("VmHWM"), "at the end": resident("VmRSS")}
    return {heading: value - imported for heading, value in figures.items()}


def resident(field: str) -> float:
    """Return a figure of this process's memory, in megabytes."""
    lines = (line.split() for line in _STATUS.read_text().splitlines())
    return next(int(words[1]) * 1024 / 1e6 for words in lines if words[0] == f"{field}:")


def begin_peak() -> None:
    """Forget the peak so far: what loading took for a moment is not what requests take."""
    Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    command.run(bench)
