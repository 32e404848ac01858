"""One random model under every mechanism on and off, one stream and several, alone and many at once: the same bytes.

And the same values as `onnx.reference` has, where that has any: it is wrong or raises on some empty tensors.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import attrs
import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from asyncrt import Runtime, RuntimeOptions, RuntimeStatistics
from asyncrt.devices.base import Allocation, Device
from asyncrt.devices.simulated import SimulatedDevice
from asyncrt.layout import Array
from asyncrt.runtime.plan.chunk_plan import ChunkPlan
from asyncrt.runtime.watch.watched import WatchedStream, one_by_one

from ..paths import EXACT, on_path, prepared_soon
from .graphs import Model, draw_model

Outputs = dict[str, Array]

PLAIN = RuntimeOptions(without={*EXACT, "fuse"}, warm=False)


@attrs.frozen
class Way:
    """How a model is run.

    Attributes:
        options: Of the runtime.
        streams: How many.
        at_once: How many requests at a time.
        poisons: Whether each arena is filled with a pattern before its chunk uses it.
    """

    name: str
    options: RuntimeOptions
    streams: int = 2
    at_once: int = 32
    poisons: bool = False


ALL = RuntimeOptions(warm=False, without={"fuse"})
FIRST = Way("nothing on, one after the other", PLAIN, streams=1, at_once=1)
WAYS = (
    Way("everything on", ALL),
    Way("everything on, one after the other", ALL, streams=1, at_once=1),
    Way("everything on, poisoned", ALL, streams=4, poisons=True),
    Way("branches side by side", attrs.evolve(ALL, branches=True), streams=4, at_once=1, poisons=True),
    Way("branches, no skips, two at once", attrs.evolve(ALL, branches=True, without={"fuse", "skip"}), 3, at_once=2),
)
OFF = tuple(
    Way(f"without {name}", attrs.evolve(ALL, without={"fuse", name}), streams=2 + i % 3, poisons=i % 2 == 0)
    for i, name in enumerate(EXACT)
)
ON_OPENCL = (
    Way("everything on, warm", attrs.evolve(ALL, warm=True)),  # which makes recipes, too
    *(WAYS[0], attrs.evolve(WAYS[2], streams=2), WAYS[3]),
)
SOME = {False: 5, True: 2}
"""How many of `OFF` each model is run in, on a simulated device and by OpenCL."""


class Poisoning(WatchedStream):
    """Fills the arena of each chunk with a pattern before anything of it is enqueued."""

    @property
    def one_by_one(self) -> bool:
        return one_by_one(self.stream)

    def begin(self, plan: ChunkPlan, arenas: Sequence[Allocation]) -> None:
        if arenas[plan.chunk] is not None:
            self.stream.fill(arenas[plan.chunk], 0, plan.arena_nbytes, 0xA5)


async def results(
    way: Way,
    proto: onnx.ModelProto,
    given: Sequence[Outputs],
    device: str | Device | None,
    seen: list[RuntimeStatistics] | None = None,
) -> list[Outputs]:
    """Run all of *given*, and leave nothing behind; launches are prepared where a shape comes again.

    Args:
        seen: Gets what the runtime counted.
    """
    with prepared_soon():
        return await _results(way, proto, given, device, [] if seen is None else seen)


async def _results(
    way: Way,
    proto: onnx.ModelProto,
    given: Sequence[Outputs],
    device: str | Device | None,
    seen: list[RuntimeStatistics],
) -> list[Outputs]:
    options = on_path(way.options)
    if way.poisons:  # a stream that is watched sees chunks, and a direct request enqueues none
        options = attrs.evolve(options, without={*options.without, "direct"})
    async with Runtime(device, streams=way.streams, options=options) as rt:
        if way.poisons:
            streams = rt.session.dispatcher.streams
            streams[:] = [Poisoning(s) for s in streams]
        loaded = await rt.load(proto)
        got: list[Outputs] = []
        for start in range(0, len(given), way.at_once):
            got += await asyncio.gather(*(loaded.infer(g) for g in given[start : start + way.at_once]))
        seen.append(rt.statistics())
    statistics = rt.statistics()
    assert (statistics.in_flight, statistics.memory.leases, statistics.memory.held) == (0, 0, 0), way.name
    return got


@attrs.frozen
class Compared:
    """What was compared.

    Attributes:
        model: The one drawn.
        requests: Runs of it, in all ways.
        referenced: Requests that were compared with the reference.
        seen: What each way's runtime counted.
    """

    model: Model
    requests: int
    referenced: int
    seen: Sequence[RuntimeStatistics] = attrs.field(repr=False)


def compare(seed: int, *, opencl: bool = False) -> Compared:
    """Draw a model and inputs and compare; whatever is wrong is raised, with the seed."""
    chance = random.Random(seed)
    try:
        return asyncio.run(_compare(draw_model(chance), chance, opencl=opencl))
    except Exception as error:
        error.add_note(f"seed {seed}: python -m tests.stress --graph {seed}{' --opencl' if opencl else ''}")
        raise


async def _compare(model: Model, chance: random.Random, *, opencl: bool) -> Compared:
    drawn = [model.inputs(chance) for _ in range(4)]
    given = [*drawn, *reversed(drawn), *drawn]  # each shape comes back after others: run, skip, run
    before = [{k: v.copy() for k, v in g.items()} for g in drawn]

    def device() -> Device | None:
        return None if opencl else SimulatedDevice(chance.randrange(1 << 30))

    seen: list[RuntimeStatistics] = []
    first = await results(FIRST, model.proto, given, device())
    ways = [*(ON_OPENCL if opencl else WAYS), *chance.sample(OFF, SOME[opencl])]
    for way in ways:
        got = await results(way, model.proto, given, device(), seen)
        for index, (a, b) in enumerate(zip(first, got, strict=True)):
            for name in a:
                _assert_same(a[name], b[name], f"{way.name}, request {index}, {name}")
    if opencl:
        fused = await results(Way("fused", attrs.evolve(ALL, without=())), model.proto, given, None)
        for index, (a, b) in enumerate(zip(first, fused, strict=True)):
            for name in a:
                _assert_close(a[name], b[name], model.tolerance, f"fused, request {index}, {name}")
    for g, b in zip(drawn, before, strict=True):
        assert all(np.array_equal(g[k], b[k]) for k in b), "an input was changed"
    referenced = sum(_agrees_with_reference(model, g, out) for g, out in zip(drawn, first, strict=False))
    return Compared(model, len(given) * (len(ways) + 1 + opencl), referenced, seen)


def _agrees_with_reference(model: Model, given: Outputs, got: Outputs) -> bool:
    """Compare with the reference; False where it has no result."""
    names = [o.name for o in model.proto.graph.output]
    try:
        with np.errstate(all="ignore"):
            truth = ReferenceEvaluator(model.proto).run(names, given)
    except (ValueError, IndexError, RuntimeError):
        return False
    for name, expected in zip(names, truth, strict=True):
        _assert_close(np.asarray(expected), got[name], model.tolerance, f"the reference, {name}")
    return True


def _assert_same(expected: Array, got: Array, where: str) -> None:
    assert (expected.dtype, expected.shape) == (got.dtype, got.shape), where
    assert expected.tobytes() == got.tobytes(), where


def _assert_close(expected: Array, got: Array, tolerance: float, where: str) -> None:
    assert (expected.dtype, expected.shape) == (got.dtype, got.shape), where
    if expected.dtype.kind != "f":
        assert (expected == got).all(), where
    elif expected.size:
        largest = float(np.max(np.abs(expected), initial=1.0))
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance * largest, err_msg=where)
