"""How fast is a model in asyncrt and in its peers, one request at a time, for one shape after the other?"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np

import asyncrt

from . import measure as m
from . import peers

Cases: TypeAlias = Sequence[tuple[m.Row, m.Inputs]]
"""What each case is called, and its inputs."""


async def compare(name: str, settings: m.Settings, model: Path | bytes, cases: Cases) -> m.Report:
    """Return the report of the benchmark *name*: a row for each case."""
    return await compare_each(name, settings, [(model, cases)])


async def compare_each(
    name: str, settings: m.Settings, models: Sequence[tuple[Path | bytes, Cases]], *, near: float = m.NEAR
) -> m.Report:
    """Return the report of the benchmark *name*, of several models one after the other: a row for each case.

    Args:
        near: How far apart results may be, as a part of the largest.
    """
    rows: list[m.Row] = []
    measured: list[dict[str, list[float]]] = []
    notes: dict[str, None] = {}
    largest = 0.0
    for model, cases in models:
        others = peers.load(model)
        notes |= dict.fromkeys(others.notes)
        with tempfile.TemporaryDirectory() as folder:
            async with asyncrt.Runtime(settings.device, options=asyncrt.RuntimeOptions(cache_dir=Path(folder))) as rt:
                loaded = await rt.load(model)
                for case, inputs in cases:
                    called = ", ".join(f"{heading} {cell}" for heading, cell in case.items())
                    ours = await loaded.infer(inputs)
                    await m.settle(loaded, inputs, rt)
                    largest = max(largest, others.check(called, inputs, list(ours.values()), near))
                    turns = {peers.OURS: m.awaited(partial(loaded.infer, inputs), settings.block_s)}
                    measured.append(await m.interleave(turns | others.blocks(inputs, settings.block_s), settings))
                    rows.append(case | row(measured[-1]))
                    m.progress(f"{called}: {', '.join(map(m.show, row(measured[-1]).values()))}")
                info = rt.info
    return m.Report(
        name=name,
        command=f"python -m benchmarks.{name}{settings.flags}",
        environment=m.environment(info),
        rows=rows,
        summary=means(measured),
        notes=[
            "Over a peer: its median latency over asyncrt's; above 1, asyncrt is faster.",
            *([f"Outputs differ by {largest:.1e} at most."] if len(measured[0]) > 1 else []),
            *notes,
        ],
    )


def row(samples: Mapping[str, m.Samples]) -> m.Row:
    """Return cells for samples of seconds: each one's median, then how many times faster asyncrt is."""
    cells: m.Row = {f"{name} ms": float(np.median(seconds)) * 1e3 for name, seconds in samples.items()}
    ours = samples[peers.OURS]
    cells |= {f"over {name}": m.Ratio.of(seconds, ours) for name, seconds in samples.items() if name != peers.OURS}
    return cells


def means(cases: Sequence[Mapping[str, m.Samples]]) -> m.Row:
    """Return the geometric means of how many times faster asyncrt is, over cases with the same peers."""
    pairs = {name: [(case[name], case[peers.OURS]) for case in cases] for name in cases[0] if name != peers.OURS}
    return {f"times as fast as {name} (geometric mean)": m.Ratio.geometric_mean(p) for name, p in pairs.items()}
