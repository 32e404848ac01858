"""Exporter-made models with dynamic shapes against ONNX Runtime, and against ourselves with each mechanism off."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import asyncrt
from asyncrt import RuntimeOptions
from asyncrt.devices.opencl.submit import native_submitter
from asyncrt.graph.reading import mapped
from asyncrt.kernels.resident import weights
from asyncrt.layout import Array
from asyncrt.runtime.statistics import RuntimeStatistics

from ..paths import CHECKED, Change, changes
from ..zoo import BY_RECIPE, ZooModel, assert_equal, some, zoo
from .request.test_next_plan import slow as slow  # a fixture

MODELS = [pytest.param(m, id=m.name) for m in zoo()]
NAMES = [m.name for m in zoo()]
pytestmark = pytest.mark.usefixtures("shared_programs")
DECODER = next(m for m in zoo() if m.name == "gpt2_kv_dynamo20")


@pytest.mark.asyncio
@pytest.mark.parametrize("model", MODELS)
async def test_every_case_equals_onnx_runtime_alone_and_eight_at_a_time(model: ZooModel, either_path: str) -> None:
    """One loaded model runs all its cases, forth and back with other inputs, then eight at once: all are right.

    Outputs are compared only after everything ran, so that memory handed out twice would show. Each plan is used four
    times, the last three with its launches prepared. Models are warmed in turns, on one path each.
    """
    warm = model.name in some(NAMES, 2, int(either_path == CHECKED))
    order = [(c, 0) for c in range(model.cases)] + [(c, 1) for c in reversed(range(model.cases))]
    given = [model.inputs(case, salt) for case, salt in order]
    before = [{k: v.copy() for k, v in g.items()} for g in given]

    async with asyncrt.Runtime(options=RuntimeOptions(warm=warm)) as rt:
        loaded = await rt.load(model.path)
        alone = [await loaded.infer(g) for g in given]
        together: list[dict[str, Array]] = []
        for start in range(0, len(given), 8):
            together += await asyncio.gather(*(loaded.infer(g) for g in given[start : start + 8]))
        statistics = rt.statistics()

    for g, b, a, t, (case, _) in zip(given, before, alone, together, order, strict=True):
        expected = model.expected(g)
        assert_equal(expected, a, model, f"case {case} alone")
        assert_equal(expected, t, model, f"case {case} with others")
        assert all(np.array_equal(g[k], b[k]) for k in b), "an input was changed"
    assert statistics.memory.leases == 0
    assert statistics.memory.active == 0
    assert statistics.presets.replays >= statistics.plans
    assert statistics.by_recipe > 0 or not warm or model.name not in BY_RECIPE


@pytest.fixture
def everything_in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even the smallest tensors stay in the model's file, and the smallest constants get one of their own."""
    monkeypatch.setattr(mapped, "LEAST", 1)
    monkeypatch.setattr(weights, "_PAGED", 1)


@pytest.mark.asyncio
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.usefixtures("users_path", "everything_in_files")
async def test_each_mechanism_gives_the_same_bytes_as_without(model: ZooModel) -> None:
    """Results with skips, views, replay, the pool, several streams and so on are bit for bit those without.

    On the path of users, where launches are prepared and enqueued by native code; counters say so, and that each is off
    where it is off. Each mechanism is switched off for every sixth model, and as many have one stream; every other
    one is warmed with all mechanisms on.
    """
    given = [model.inputs(c) for c in (*range(model.cases), *range(model.cases))]

    async def run(options: RuntimeOptions, streams: int) -> tuple[list[dict[str, Array]], RuntimeStatistics]:
        async with asyncrt.Runtime(streams=streams, options=options) as rt:
            loaded = await rt.load(model.path)
            together = list(await asyncio.gather(*(loaded.infer(g) for g in given)))
            # Where all begin at once, no plan may be ready for its second use: one more comes after all.
            assert_same(together[-1:], [await loaded.infer(given[-1])], "after the others")
            return together, rt.statistics()

    expected, on = await run(RuntimeOptions(warm=model.name in some(NAMES, 2)), 2)
    assert min(on.replays, on.presets.replays) > 0
    assert (on.native > 0) == (native_submitter() is not None)
    one_stream = Change("one stream", RuntimeOptions(warm=False), streams=1)
    for change in some([*changes(), one_stream], 6, NAMES.index(model.name) % 6):
        got, off = await run(change.options, change.streams)
        assert change.uses(off) == 0, change.name
        assert_same(expected, got, change.name)


@pytest.mark.asyncio
@pytest.mark.usefixtures("users_path", "everything_in_files", "slow")
async def test_each_mechanism_gives_a_decoder_the_same_bytes_as_without() -> None:
    """Steps of a sequence whose state stays on the device, some of them planned before they come."""
    lengths = [3, *[1] * 5, 40, *[1] * 5]

    async def run(options: RuntimeOptions, streams: int) -> tuple[list[dict[str, Array]], RuntimeStatistics]:
        async with asyncrt.Runtime(streams=streams, options=options) as rt:
            loaded = await rt.load(DECODER.path)
            got = []
            for _ in range(3):
                async with loaded.sequence() as sequence:
                    past = 0
                    for length in lengths:
                        got.append(await sequence.infer(step(past, length)))
                        past += length
            return got, rt.statistics()

    expected, on = await run(RuntimeOptions(), 2)
    assert min(on.replays, on.presets.replays, on.by_recipe, on.foreseen) > 0
    for change in changes():
        got, off = await run(change.options, change.streams)
        assert change.uses(off) == 0, change.name
        assert_same(expected, got, change.name)


def step(past: int, length: int) -> dict[str, Array]:
    """Return what a step of so many tokens takes, behind as many as are kept."""
    inputs = DECODER.inputs_of({"batch": 1, "seq": length, "past": past, "total": past + length})
    return {name: array for name, array in inputs.items() if not name.startswith("past_key_values")}


def assert_same(expected: list[dict[str, Array]], got: list[dict[str, Array]], what: str) -> None:
    for number, (e, g) in enumerate(zip(expected, got, strict=True)):
        assert {k: (a.shape, a.tobytes()) for k, a in e.items()} == {k: (a.shape, a.tobytes()) for k, a in g.items()}, (
            what, number,
        )  # fmt: skip
