"""What do more command queues give: to requests that have nothing to do with one another, and to branches of one?

Eight callers at once, the same requests with 1, 2 and 4 streams. With one, the device does one request after the other;
with more, requests run side by side. Then one caller with a network of branches, which wait for each other on one
stream, and run side by side on four (`RuntimeOptions.branches`); and eight callers with it, who keep all streams busy
without that. It gives something where a kernel does not fill the device by itself, and where it takes longer than
the host takes to enqueue it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import attrs
import numpy as np
import onnx

import asyncrt

from . import command, models
from . import measure as m

CALLERS = 8
ROWS, WIDTH, INNER, LAYERS = 32, 384, 1536, 6
BLOCKS, STARTS = 3, ("Relu", "Tanh", "Sigmoid", "Neg")
NARROW, BERT, BRANCHES = "narrow layers", "small BERT", "branches"


class Way(NamedTuple):
    """How a model runs: on how many streams, and whether its branches run side by side."""

    streams: int
    branches: bool | None = None


WORDS: Mapping[bool | None, str] = {None: "by default", False: "off", True: "on"}
REQUESTS = tuple(map(Way, (1, 2, 4)))
ONE = (Way(1), Way(4, False), Way(4), Way(4, True))


@attrs.frozen
class Case:
    """A model, what is asked of it, by how many callers, and in which ways; the first is what the others are compared
    with."""

    model: onnx.ModelProto | Path
    requests: Sequence[m.Inputs]
    callers: int
    ways: Sequence[Way]


async def bench(settings: m.Settings, count: int | None = None, blocks: int = BLOCKS) -> m.Report:
    """Measure *count* requests in a turn, and so many blocks of branches."""
    each = range(count or (40 if settings.quick else 200))
    inputs = [rows(seed) for seed in each]
    cases = {
        NARROW: Case(narrow(), inputs, CALLERS, REQUESTS),
        BERT: Case(models.SMALL, [models.tokens(1, ROWS, seed) for seed in each], CALLERS, REQUESTS),
        BRANCHES: Case(branches(blocks), inputs, 1, ONE),
        f"{BRANCHES}, {CALLERS} callers": Case(branches(blocks), inputs, CALLERS, ONE),
    }
    report_rows: list[m.Row] = []
    for name, case in cases.items():
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            peers: dict[str, m.Block] = {}
            loaded: dict[str, asyncrt.Model] = {}
            for way in case.ways:
                options = asyncrt.RuntimeOptions(cache_dir=folder, branches=way.branches)
                rt = await stack.enter_async_context(
                    asyncrt.Runtime(settings.device, streams=way.streams, options=options)
                )
                model = loaded[str(way)] = await rt.load(case.model)
                peers[str(way)] = partial(m.closed_loop, model.infer, case.requests, case.callers)
            found = await m.interleave(peers, settings)
            report_rows += [
                {
                    "model": name,
                    "streams": way.streams,
                    "branches": WORDS[way.branches],
                    "lanes": loaded[str(way)].explain().lanes,
                    "requests/s": float(np.median(found[str(way)])),
                    "against one stream": m.Ratio.of(found[str(way)], found[str(case.ways[0])]),
                }
                for way in case.ways
            ]
            info = rt.info
    return m.Report(
        name="streams",
        command=f"python -m benchmarks.streams{settings.flags}",
        environment=m.environment(info),
        rows=report_rows,
        notes=[
            f"{CALLERS} callers, or one with the {BRANCHES}.",
            f"The {NARROW}: {2 * LAYERS} products of {ROWS} rows with {WIDTH} × {INNER} and {INNER} × {WIDTH},"
            " the sizes of MiniLM; on a GPU of 132 processors one keeps 24 of them busy, or 6, for about 100 µs.",
            f"The {BERT}: two layers of width 32, {ROWS} tokens. Its kernels take less time than enqueueing them, so"
            " that the host is the limit, however many streams there are.",
            f"The {BRANCHES}: {blocks} blocks of {len(STARTS)} chains that meet in a sum, each of two such products;"
            " in how many lanes they run is in the column of that name.",
        ],
    )


def narrow() -> onnx.ModelProto:
    """Return a model whose products are too small for a large device."""
    random = np.random.default_rng(0)
    chain = models.Chain()
    constants = {
        name: (random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        for name, shape in (("up", (WIDTH, INNER)), ("down", (INNER, WIDTH)))
    }
    for _ in range(LAYERS):
        chain.add("MatMul", "up")
        chain.add("Relu")
        chain.add("MatMul", "down")
    return models.model(chain.nodes, ["rows", WIDTH], constants, chain.value)


def branches(blocks: int = BLOCKS) -> onnx.ModelProto:
    """Return a model of blocks of chains of such products, each begun by another function, so that they stay apart."""
    g = models.Graph()
    up, down = (g.weights(a, b, deviation=a**-0.5) for a, b in ((WIDTH, INNER), (INNER, WIDTH)))
    x = "x"
    for _ in range(blocks):
        ends = [g.add("MatMul", g.add("Relu", g.add("MatMul", g.add(start, x), up)), down) for start in STARTS]
        x = g.add("Sum", *ends)
    return g.model([models.value("x", "rows", WIDTH)], [models.value(x, "rows", WIDTH)])


def rows(seed: int) -> m.Inputs:
    """Return a request to `narrow` and `branches`."""
    return {"x": np.random.default_rng(seed).standard_normal((ROWS, WIDTH)).astype(np.float32)}


if __name__ == "__main__":
    command.run(bench)
