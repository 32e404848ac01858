"""How long does a sentence embedding take, beside others with the same cores?

all-MiniLM-L6-v2 in float32, one request at a time, shapes known from earlier requests.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import asyncrt

from . import command, models, peers
from . import measure as m

SIZES = [(1, 8), (1, 16), (1, 32), (1, 64), (1, 128), (1, 256), (8, 32), (8, 128)]
QUICK = [(1, 8), (1, 32), (1, 128), (8, 32)]


async def bench(settings: m.Settings, model: Path, sizes: Sequence[tuple[int, int]] | None = None) -> m.Report:
    """Measure *sizes*: (batch, tokens)."""
    others = peers.load(model)
    rows: list[m.Row] = []
    cases: list[dict[str, list[float]]] = []
    largest = 0.0
    with tempfile.TemporaryDirectory() as folder:
        async with asyncrt.Runtime(settings.device, options=asyncrt.RuntimeOptions(cache_dir=Path(folder))) as rt:
            loaded = await rt.load(model)
            for batch, length in sizes or (QUICK if settings.quick else SIZES):
                inputs = models.tokens(batch, length)
                ours = await loaded.infer(inputs)
                largest = max(largest, others.check(f"{batch}x{length}", inputs, list(ours.values())))
                turns = {peers.OURS: m.awaited(partial(loaded.infer, inputs), settings.block_s)}
                cases.append(await m.interleave(turns | others.blocks(inputs, settings.block_s), settings))
                rows.append({"batch": batch, "tokens": length, **peers.milliseconds(cases[-1])})
                m.progress(f"{batch}x{length}: {', '.join(map(m.show, rows[-1].values()))}")
            info = rt.info
    return m.Report(
        name="minilm",
        command=f"python -m benchmarks.minilm{settings.flags}",
        environment=m.environment(info),
        rows=rows,
        summary=peers.means(cases),
        notes=[
            "Over a peer: its median latency over asyncrt's; above 1, asyncrt is faster.",
            f"Outputs differ by {largest:.1e} at most.",
            *others.notes,
        ],
    )


if __name__ == "__main__":
    command.run(bench)
