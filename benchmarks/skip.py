"""What does a skipped node cost, and what does skipping save?

First a graph with nodes that do nothing at the sizes at hand, beside the same graph with those nodes deleted by hand:
the kernels launched must be the same, and so should the time. Then a graph on large tensors of whose nodes every other
one can be skipped, with skipping on and off.
"""

from __future__ import annotations

import tempfile
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import onnx

import asyncrt

from . import command, models
from . import measure as m

STEPS = (0, 24, 60)  # no-op nodes in the first graph, which has as many nodes that work as the largest
CHANNELS, ROWS = 64, 8
LARGE_ROWS, LARGE_CHANNELS = 1024, 512  # 2 MB in float32
LARGE_STEPS = 24
QUICK, QUICK_LARGE = (0, 24), (256, 128)

_SETTLE_S = 0.005  # all peers are asyncrt: there are no threads of others that spin
_FAR = 1 << 40  # the end of a slice: whether it keeps everything depends on the size at hand

NO_OPS = ("Transpose", "Slice", "Expand", "Identity", "Reshape", "Transpose")
"""In this order, round after round: the second transposition moves back the axis that the first moved."""

OTHER_NO_OPS = ("Transpose", "Resize", "Pad", "Expand", "Slice", "Transpose")
"""With one that costs more than a copy where it is not skipped, as a U-Net has it for sizes that need no resizing."""


@attrs.define
class Peer:
    """A model loaded into a runtime of its own."""

    runtime: asyncrt.Runtime
    model: asyncrt.Model

    async def count(self, inputs: m.Inputs) -> tuple[int, int, m.Array]:
        """Run once; returns how many kernels it launched, how many nodes it skipped, and the output."""
        before = self.runtime.statistics()
        (output,) = (await self.model.infer(inputs)).values()
        after = self.runtime.statistics()
        return after.launches - before.launches, after.skipped - before.skipped, output


@attrs.define
class Bench:
    """Loads graphs, and compares them two at a time.

    Attributes:
        settings: How to measure.
        stack: Closes the runtimes.
        folder: Where kernels are kept.
        rows: What was found.
    """

    settings: m.Settings
    stack: AsyncExitStack
    folder: Path
    rows: list[m.Row] = attrs.Factory(list)

    async def load(self, model: onnx.ModelProto, *without: str) -> Peer:
        """Load a model into a runtime of its own."""
        options = asyncrt.RuntimeOptions(without=without, cache_dir=self.folder)
        runtime = await self.stack.enter_async_context(asyncrt.Runtime(self.settings.device, options=options))
        return Peer(runtime, await runtime.load(model))

    async def compare(self, case: str, one: Peer, other: Peer, inputs: m.Inputs) -> tuple[int, m.Ratio]:
        """Return how many launches *one* has more than *other*, and how much longer the other takes."""
        launches, skipped, output = await one.count(inputs)
        others, _, expected = await other.count(inputs)
        m.check_equal(case, [output], [expected], tolerance=0.0)
        peers = {
            name: m.awaited(partial(peer.model.infer, inputs), self.settings.block_s)
            for name, peer in (("one", one), ("other", other))
        }
        samples = await m.interleave(peers, self.settings)
        self.rows.append({
            "graph": case,
            "skipped": skipped,
            "launches": launches,
            "launches beside it": others,
            "ms": float(np.median(samples["one"])) * 1e3,
            "ms beside it": float(np.median(samples["other"])) * 1e3,
            "time over the other's": m.Ratio.of(samples["one"], samples["other"]),
        })  # fmt: skip
        m.progress(case)
        return launches - others, m.Ratio.of(samples["other"], samples["one"])


async def bench(
    settings: m.Settings, steps: tuple[int, ...] | None = None, large: tuple[int, int] | None = None
) -> m.Report:
    """Measure graphs with as many no-op nodes as *steps*, whole rounds of `NO_OPS`, and one on tensors of *large*."""
    settings = attrs.evolve(settings, settle_s=min(settings.settle_s, _SETTLE_S))
    steps = steps or (QUICK if settings.quick else STEPS)
    large = large or (QUICK_LARGE if settings.quick else (LARGE_ROWS, LARGE_CHANNELS))
    async with AsyncExitStack() as stack:
        graphs = Bench(settings, stack, Path(stack.enter_context(tempfile.TemporaryDirectory())))
        x = random(1, ROWS, CHANNELS)
        costs: list[int] = []
        for without in ((), ("fuse",)):
            plain = await graphs.load(graph(max(steps), 0, CHANNELS), *without)
            for count in steps:
                peer = plain if count == 0 else await graphs.load(graph(max(steps), count, CHANNELS), *without)
                case = f"{count} no-ops, and none; fusion {'off' if without else 'on'}"
                more, _ = await graphs.compare(case, peer, plain, {"x": x})
                costs.append(more)
        gains: list[m.Ratio] = []
        size = f"{4 * large[0] * large[1] / 1e6:.1f} MB tensors, half of the nodes no-ops; skipping on, and off"
        for case, kinds in ((size, NO_OPS), (f"{size}; a Resize among them", OTHER_NO_OPS)):
            halves = graph(LARGE_STEPS, LARGE_STEPS, large[1], kinds)
            on, off = await graphs.load(halves, "fuse"), await graphs.load(halves, "fuse", "skip")
            _, gain = await graphs.compare(case, on, off, {"x": random(1, *large)})
            gains.append(gain)
        info = plain.runtime.info
    return m.Report(
        name="skip",
        command=f"python -m benchmarks.skip{settings.flags}",
        environment=m.environment(info),
        rows=graphs.rows,
        summary={
            "launches that a graph with no-ops has more than one without": max(costs),
            "speed-up by skipping on large tensors": gains[0],
            "speed-up by skipping on large tensors, with a Resize among them": gains[1],
        },
        notes=list(READ),
    )


READ = (
    "The no-ops: transpositions that move a unit axis, slices that keep all, expansions to the same shape, "
    "identities, and reshapes to the same shape. Outputs are equal to the last bit.",
    "With fusion on, the nodes between which no-ops stand are one kernel, as they are without no-ops. It is "
    "off in the row of large tensors, so that skipping alone is what makes the difference.",
    "What is not skipped is copied as fast as memory allows, which takes less time than a node that works; so "
    "where half of the nodes are copies, skipping them cannot quite halve the time. Others cost more.",
    "The rows without no-ops compare a graph with itself: how far from 1 noise alone goes.",
)
"""How to read the table."""


def random(*shape: int) -> m.Array:
    """Return an input."""
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def graph(working: int, no_ops: int, channels: int, kinds: tuple[str, ...] = NO_OPS) -> onnx.ModelProto:
    """Return a chain of *working* nodes with *no_ops* of *kinds* spread among them, which do nothing for a batch of
    one."""
    constants: dict[str, m.Array] = {
        "bias": np.random.default_rng(1).standard_normal(channels, np.float32),
        "start": np.array([0], np.int64),
        "end": np.array([_FAR], np.int64),
        "axis": np.array([2], np.int64),
        "one": np.array([1, 1, 1], np.int64),
        "same": np.array([0, 0, -1], np.int64),
        "pads": np.zeros(6, np.int64),
        "scales": np.ones(3, np.float32),
    }
    inputs = {
        "Slice": ("start", "end", "axis"), "Expand": ("one",), "Reshape": ("same",), "Pad": ("pads",),
        "Resize": ("", "scales"),
    }  # fmt: skip
    attributes: dict[str, dict[str, Any]] = {"Transpose": {"perm": [1, 0, 2]}, "Resize": {"mode": "linear"}}
    chain = models.Chain()
    placed = 0
    for step in range(working):
        chain.add("Add" if step % 2 else "Mul", "bias")
        while placed * working < (step + 1) * no_ops and placed < no_ops:
            operator = kinds[placed % len(kinds)]
            chain.add(operator, *inputs.get(operator, ()), **attributes.get(operator, {}))
            placed += 1
    return models.model(chain.nodes, ["batch", "rows", "channels"], constants, chain.value)


if __name__ == "__main__":
    command.run(bench)
