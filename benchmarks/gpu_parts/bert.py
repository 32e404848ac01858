"""How long does a sentence embedding take, and how exact is it?

A BERT of the size of MiniLM, random weights. Errors of float16 are differences from PyTorch's float32.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import numpy as np

from .. import measure as m
from .. import models, networks
from .bench import TOLERANCES, Bench
from .findings import DIFFERENCE, EAGER, MS, OURS, Aim, Finding

SIZES = [(1, 8), (1, 16), (1, 64), (1, 256), (8, 128), (32, 128), (64, 256)]
SMALL = [(1, 3), (2, 4)]
FULL_NETWORK = (networks.ENCODER_LAYERS, networks.ENCODER_HIDDEN, networks.ENCODER_WORDS)
SMALL_NETWORK = (1, 64, 256)
"""Layers, width, and words that are known."""

COST = Aim(0.5, of="figure", at_most=True)
"""Milliseconds that a shape may cost when it is first seen."""

_LARGE = 8 * 128  # words up to which a request is to be as fast as a CUDA graph


async def measure(bench: Bench) -> AsyncIterator[Finding]:
    """Measure `SIZES`: (batch, tokens)."""
    exact: dict[str, m.Array] = {}
    async with bench.runtime() as rt:
        for dtype, tolerance in TOLERANCES.items():
            network = networks.encoder(dtype, *bench.pick(FULL_NETWORK, SMALL_NETWORK))
            loaded = await bench.load(rt, f"BERT in {dtype.__name__}", network)
            module = None if bench.torch is None else bench.torch.Encoder(network)
            costs: list[float] = []
            differences: dict[str, list[m.Array]] = {OURS: [], EAGER: []}
            for batch, length in bench.pick(SIZES, SMALL):
                inputs, case = models.tokens(batch, length), f"{batch} x {length}"
                aim = Aim(1.0 if batch * length <= _LARGE else 0.91)
                name = f"{dtype.__name__} {case}"
                found = await bench.compare("bert", name, loaded, module, inputs, tolerance, aim)
                costs.append(found[0].cost_of_first)
                for finding in found:
                    yield finding
                if bench.torch is None:
                    continue
                theirs = bench.torch.eager(module)(inputs)
                if dtype == np.float32:
                    exact[case] = theirs
                    continue
                mine = (await loaded.infer(inputs))["hidden"]
                for name, result in {OURS: mine, EAGER: theirs}.items():
                    differences[name].append(np.subtract(result, exact[case], dtype=np.float32).ravel())
            case = f"{dtype.__name__} worst of {len(costs)}: first - known"
            yield Finding(part="bert", case=case, unit=MS, samples={OURS: [max(costs)]}, aim=COST)
            for finding in _errors(dtype, differences):
                yield finding


def _errors(dtype: type[np.floating[Any]], differences: dict[str, list[m.Array]]) -> list[Finding]:
    """Return how far results of all sizes are from exact ones: by the largest difference, and by their mean square."""
    if not differences[OURS]:
        return []
    joined = {name: np.concatenate(found) for name, found in differences.items()}
    measures = {
        "largest error": {name: float(np.abs(found).max()) for name, found in joined.items()},
        "root mean square of errors": {name: float(np.sqrt(np.mean(found**2))) for name, found in joined.items()},
    }
    return [
        Finding(
            part="bert", case=f"{dtype.__name__} {what}", unit=DIFFERENCE, against=EAGER, aim=Aim(1.0),
            samples={name: [figure] for name, figure in figures.items()},
        )
        for what, figures in measures.items()
    ]  # fmt: skip
