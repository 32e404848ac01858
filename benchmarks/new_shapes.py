"""What does a shape cost that was never seen before?

A stream of lengths, each new, and the same lengths once more: planning a shape takes time, but no kernel should be
built for it; those that were are counted.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import attrs
import numpy as np

import asyncrt

from . import command, models, peers
from . import measure as m

LENGTHS = tuple(range(2, 242, 2))  # 120 of them; loading plans none of them


async def bench(
    settings: m.Settings, model: Path, lengths: Sequence[int] | None = None, rounds: int | None = None
) -> m.Report:
    """Measure a first and a second pass over *lengths*."""
    order = np.random.default_rng(0).permutation(lengths or (LENGTHS[1::4] if settings.quick else LENGTHS)).tolist()
    requests = [models.tokens(1, length) for length in order]
    rounds = rounds or (3 if settings.quick else 10)
    passes: dict[str, Passes] = {peers.OURS: Passes()}
    kernels = 0
    with tempfile.TemporaryDirectory() as folder:
        options = asyncrt.RuntimeOptions(cache_dir=Path(folder))
        for _ in range(rounds):  # a shape is new once only: each round loads the model anew, with the kernels on disk
            async with asyncrt.Runtime(settings.device, options=options) as rt:
                loaded = await rt.load(model)
                before = rt.statistics()
                await loaded.infer(models.tokens(1, 1))
                await passes[peers.OURS].measure(loaded.infer, requests)
                after = rt.statistics()
                kernels += after.kernels_built + after.kernels_from_disk
                kernels -= before.kernels_built + before.kernels_from_disk
                ours = list((await loaded.infer(requests[0])).values())
                info = rt.info
            others = peers.load(model)
            for name, run in others.runs.items():

                async def infer(inputs: m.Inputs, run: peers.Run = run) -> object:
                    return run(inputs)

                await infer(models.tokens(1, 1))
                await passes.setdefault(name, Passes()).measure(infer, requests)
            others.check(f"length {order[0]}", requests[0], ours)
    mine = passes[peers.OURS]
    faster = {name: m.Ratio.of(p.first, mine.first) for name, p in passes.items() if p is not mine}
    return m.Report(
        name="new_shapes",
        command=f"python -m benchmarks.new_shapes{settings.flags}",
        environment=m.environment(info),
        rows=[
            {
                "runtime": name,
                "first ms": float(np.median(p.first)) * 1e3,
                "second ms": float(np.median(p.second)) * 1e3,
                "cost of a new shape": m.Ratio.of(p.first, p.second),
                "asyncrt's first pass against it": faster.get(name),
            }
            for name, p in passes.items()
        ],
        summary={
            **{f"first pass, times as fast as {name}": ratio for name, ratio in faster.items()},
            "kernels built or read during the first passes": kernels,
        },
        notes=[
            f"{len(requests)} lengths in random order, {rounds} rounds, each with the model loaded anew. "
            "Cost of a new shape: the first pass's time over the second's; 1 is no cost.",
            "Against it: its time over asyncrt's; above 1, asyncrt is faster.",
            *others.notes,
        ],
    )


@attrs.define(eq=False)
class Passes:
    """Seconds per request of the first and the second pass of each round."""

    first: list[float] = attrs.field(factory=list)
    second: list[float] = attrs.field(factory=list)

    async def measure(self, infer: Callable[[m.Inputs], Awaitable[object]], requests: Sequence[m.Inputs]) -> None:
        """Run the requests twice."""
        for passes in (self.first, self.second):
            start = time.perf_counter()
            for request in requests:
                await infer(request)
            passes.append((time.perf_counter() - start) / len(requests))


if __name__ == "__main__":
    command.run(bench)
