"""How fast is a model in asyncrt and in its peers, one request at a time, for one shape after the other?"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

import asyncrt

from . import measure as m
from . import peers


async def compare(
    name: str, settings: m.Settings, model: Path | bytes, cases: Sequence[tuple[m.Row, m.Inputs]]
) -> m.Report:
    """Return the report of the benchmark *name*: a row for each case, which is what it is called and its inputs."""
    others = peers.load(model)
    rows: list[m.Row] = []
    measured: list[dict[str, list[float]]] = []
    largest = 0.0
    with tempfile.TemporaryDirectory() as folder:
        async with asyncrt.Runtime(settings.device, options=asyncrt.RuntimeOptions(cache_dir=Path(folder))) as rt:
            loaded = await rt.load(model)
            for case, inputs in cases:
                called = ", ".join(f"{heading} {cell}" for heading, cell in case.items())
                ours = await loaded.infer(inputs)
                largest = max(largest, others.check(called, inputs, list(ours.values())))
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
            *([f"Outputs differ by {largest:.1e} at most."] if others.runs else []),
            *others.notes,
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
