"""Checking the order of commands switches nothing off: what is checked is what users run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import asyncrt.debug
from asyncrt import HazardError, Runtime, RuntimeOptions
from asyncrt.devices.opencl.submit import native_submitter
from asyncrt.memory.hazards import Enqueued
from asyncrt.runtime.plan import recipe as recipes
from asyncrt.runtime.plan.chunk_plan import ChunkPlan
from asyncrt.runtime.statistics import RuntimeStatistics

from ...builders import model, node
from ...paths import prepared_soon
from ..request.test_next_plan import slow as slow  # a fixture
from ..sequences.test_sequence import attention, floats

LENGTHS = (3, *[1] * 6, 40, *[1] * 12)


async def decoded(*, check_hazards: bool) -> tuple[list[bytes], RuntimeStatistics]:
    """What a decoder gives that goes through the same lengths three times, and what was counted."""
    options = RuntimeOptions(warm=False, check_hazards=check_hazards)
    async with Runtime(streams=2, options=options) as rt:
        loaded = await rt.load(attention())
        found = []
        for _ in range(3):
            async with loaded.sequence() as sequence:
                for i, length in enumerate(LENGTHS):
                    found.append((await sequence.infer({"x": floats(1, length, 6, seed=i)}))["y"].tobytes())
        return found, rt.statistics()


@pytest.mark.asyncio
@pytest.mark.usefixtures("slow")
async def test_what_is_checked_goes_the_way_of_what_is_not() -> None:
    """As many plans by recipe, guesses taken, prepared launches and calls of native code, and the same bytes."""
    with prepared_soon():
        (expected, users), (got, checked) = await decoded(check_hazards=False), await decoded(check_hazards=True)

    def way(s: RuntimeStatistics) -> tuple[int, ...]:
        return s.plans, s.by_recipe, s.foreseen, s.replays, s.presets.replays, s.native, s.launches, s.skipped

    assert expected == got
    assert way(users) == way(checked)
    assert min(users.by_recipe, users.foreseen, users.presets.replays) > 0
    assert (users.native > 0) == (native_submitter() is not None)


async def commands(device: str | None, **changes: Any) -> tuple[list[tuple[str | None, str]], RuntimeStatistics]:
    """The node and the kind of each command of a few equal requests, as the checker is told of them."""
    options = RuntimeOptions(warm=False, check_hazards=True, **changes)
    async with Runtime(device, streams=1, options=options) as rt:
        loaded = await rt.load(attention())
        past = {f"past_key_values.{n}": floats(1, 2, 5, 4) for n in ("key", "value")}
        await loaded.infer({"x": floats(1, 2, 6), **past})
        with asyncrt.debug.recording(rt) as log:
            for _ in range(4):
                await loaded.infer({"x": floats(1, 2, 6), **past})
        return [(e.label.node, e.label.what) for e in log if isinstance(e, Enqueued)], rt.statistics()


@pytest.mark.asyncio
@pytest.mark.parametrize("device", ["simulated", None], ids=lambda d: d or "opencl")
async def test_the_checker_is_told_of_each_launch_that_is_prepared(device: str | None) -> None:
    """Of the same commands in the same order as where each is enqueued by itself."""
    with prepared_soon():
        told, prepared = await commands(device)
        expected, alone = await commands(device, without={"prepared_launches", "native_submit"})

    assert (prepared.presets.replays, alone.presets.replays) == (4, 0)
    assert expected == told
    assert sum(node is not None for node, _ in told) == 4 * prepared.launches // 5


@pytest.mark.asyncio
@pytest.mark.parametrize("checked", [True, False])
async def test_a_recipe_that_becomes_wrong_when_it_is_trusted_is_found(
    checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing is checked nobody would know: each plan by recipe is compared with planning from the start."""
    true = recipes.Recipe.plan

    def wrong(self: recipes.Recipe, *arguments: Any) -> ChunkPlan | None:
        plan = true(self, *arguments)
        if plan is None or not self.trusted:
            return plan
        return recipes.attrs.evolve(plan, arena_nbytes=plan.arena_nbytes + 64)  # which does no harm

    monkeypatch.setattr(recipes.Recipe, "plan", wrong)
    raised: Sequence[HazardError] = []
    async with Runtime(options=RuntimeOptions(warm=False, check_hazards=checked)) as rt:
        loaded = await rt.load(model([node("a = Exp(x)"), node("y = Softmax(a)")], ["x f32[n,6]"], ["y"]))
        for count in range(9, 20):
            try:
                out = await loaded.infer({"x": floats(count, 6)})
            except HazardError as error:
                raised = [*raised, error]
            else:
                assert np.isfinite(out["y"]).all()
        by_recipe = rt.statistics().by_recipe

    assert bool(raised) == checked
    assert (by_recipe > 0) != checked
    assert all("a plan by recipe" in error.message for error in raised)
