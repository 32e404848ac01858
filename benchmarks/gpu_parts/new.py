"""What does a length cost that was never seen? How fast is it then beside a CUDA graph, which is recorded for it?"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import numpy as np

import asyncrt

from .. import measure as m
from .. import models, networks
from .bench import TOLERANCES, Bench
from .bert import COST, FULL_NETWORK, SMALL_NETWORK
from .findings import MS, OURS, Aim, Finding

LENGTHS = (5, 7, 11, 13, 19, 23, 29, 37, 43, 53, 67, 83, 101, 131, 163, 203, 251, 311, 389, 487)
SMALL = (5, 7, 11)
EVERY = 5
"""Each length of so many is measured beside a CUDA graph, too."""

_KNOWN = 20  # requests of a length once it is known
_WARM = 16  # a length that comes before


async def measure(bench: Bench) -> AsyncIterator[Finding]:
    """Measure `LENGTHS` in an order of chance: the first request of each, and those behind it."""
    lengths = np.random.default_rng(0).permutation(bench.pick(LENGTHS, SMALL)).tolist()
    async with bench.runtime() as rt:
        for dtype, tolerance in TOLERANCES.items():
            network = networks.encoder(dtype, *bench.pick(FULL_NETWORK, SMALL_NETWORK))
            loaded = await bench.load(rt, f"BERT in {dtype.__name__}, for new lengths", network)
            firsts, costs = await _costs(loaded, lengths)
            for what, cost, aim in (("median", float(np.median(costs)), None), ("worst", max(costs), COST)):
                case = f"{dtype.__name__} {what} of {len(lengths)}: first - known"
                yield Finding(part="new", case=case, unit=MS, samples={OURS: [cost]}, aim=aim)
            module = None if bench.torch is None else bench.torch.Encoder(network)
            for length in sorted(lengths)[::EVERY]:
                case, inputs = f"{dtype.__name__} 1 x {length}, then known", models.tokens(1, length)
                for finding in await bench.compare("new", case, loaded, module, inputs, tolerance, Aim(1.0)):
                    yield finding.after(firsts[length])


async def _costs(loaded: asyncrt.Model, lengths: list[int]) -> tuple[dict[int, float], list[float]]:
    """Return the seconds of the first request of each length, and how much longer than known ones it took."""
    for _ in range(_KNOWN):
        await loaded.infer(models.tokens(1, _WARM))
    firsts: dict[int, float] = {}
    costs: list[float] = []
    for length in lengths:
        inputs = models.tokens(1, length)
        taken = [await _seconds(loaded, inputs) for _ in range(1 + _KNOWN)]
        firsts[length] = taken[0]
        costs.append(max(0.0, taken[0] - float(np.median(taken[1:]))))
    return firsts, costs


async def _seconds(loaded: asyncrt.Model, inputs: m.Inputs) -> float:
    start = time.perf_counter()
    await loaded.infer(inputs)
    return time.perf_counter() - start
