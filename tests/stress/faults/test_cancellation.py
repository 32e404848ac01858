"""Every public coroutine is cancelled at each of its awaits: once, and again while it cleans up."""

from __future__ import annotations

import asyncio
import functools
import itertools
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from asyncrt import Model, Runtime, RuntimeOptions, Sequence
from asyncrt.devices.simulated import SimulatedDevice
from asyncrt.layout import Array

from ...builders import model, node
from ...paths import AS_USERS_RUN_IT, on_path
from ..scenarios import (
    ROOMY,
    SPREAD,
    TIGHT,
    as_bytes,
    assert_clean,
    expected,
    given,
    nothing_unseen,
    opened,
    outcome_of,
    settled,
    two_chunks,
)

AGAIN = [0, 1, 2]
"""How often it is cancelled again, at each await that follows."""


@types.coroutine
def _driven(coroutine: Coroutine[Any, Any, Any], at: range, met: list[int]) -> Generator[Any, Any, Any]:
    """Await *coroutine*; the task is cancelled at those of its awaits that suspend it and are *at*, counted from 1."""
    task = asyncio.current_task()
    assert task is not None
    thrown: BaseException | None = None
    while True:
        try:
            waits_for = coroutine.send(None) if thrown is None else coroutine.throw(thrown)
        except StopIteration as ended:
            return ended.value
        met[0] += 1
        if met[0] in at:
            asyncio.get_running_loop().call_soon(task.cancel)
        try:
            yield waits_for
            thrown = None
        except BaseException as error:
            thrown = error


async def cancelled_at(coroutine: Coroutine[Any, Any, Any], first: int, again: int) -> tuple[int, Any]:
    """Run *coroutine* in a task and cancel it there; returns how many awaits suspended it, and what came of it."""
    met = [0]

    async def drive() -> Any:
        return await _driven(coroutine, range(first, first + again + 1), met)

    outcomes = await asyncio.gather(drive(), return_exceptions=True)
    return met[0], outcomes[0]


async def at_each(scenario: Callable[[int], Awaitable[tuple[int, Any]]]) -> int:
    """Let *scenario* cancel at its first await, its second, ...; returns at how many it was cancelled."""
    for first in itertools.count(1):
        met, outcome = await scenario(first)
        if met < first:
            assert not isinstance(outcome, BaseException), outcome
            return first - 1
        assert not isinstance(outcome, Exception), outcome  # CancelledError is none
    raise AssertionError


@pytest.mark.asyncio
@pytest.mark.parametrize("again", AGAIN)
@pytest.mark.parametrize("spec", ["simulated", "host", None], ids=lambda d: d or "opencl")
@pytest.mark.parametrize("options", [TIGHT, SPREAD], ids=["tight", "spread"])
async def test_an_inference(
    spec: str | None, options: RuntimeOptions, again: int, either_path: str, request: pytest.FixtureRequest
) -> None:
    """Beside others on the same model, whose results stay exact; then one more succeeds, and nothing is left.

    Where it is checked they are planned; as users run it, each has run before, and its launches are prepared. Programs
    are loaded for each runtime where the first request meets that, and is cancelled once. A chunk that nobody is beside
    any more runs on the loop's thread, where no cancellation meets it, so that is tried without this as well.
    """
    known = either_path == AS_USERS_RUN_IT
    if known or again:
        request.getfixturevalue("shared_programs")
    streams = 2
    async with Runtime(spec, streams=streams, options=ROOMY) as rt:
        loaded = await rt.load(two_chunks())
        truth = [as_bytes(await loaded.infer({"x": given(i)})) for i in range(4)]

    async def scenario(direct: bool, first: int) -> tuple[int, Any]:
        own = options if direct else attrs.evolve(options, without=options.without | {"direct"})
        with nothing_unseen():
            async with Runtime(spec, streams=streams, options=on_path(own)) as rt:
                loaded = await rt.load(two_chunks())
                for i in range(4) if known else ():
                    assert truth[i] == await outcome_of(loaded, i)
                others = [asyncio.create_task(outcome_of(loaded, i)) for i in (1, 2)]
                found = await cancelled_at(loaded.infer({"x": given(0)}), first, again)
                assert [truth[1], truth[2]] == await asyncio.gather(*others)
                assert truth[3] == await outcome_of(loaded, 3)
                assert (rt.statistics().presets.replays > 0) == (known and spec != "host")
            await settled(1000)
        statistics = rt.statistics()
        assert (statistics.in_flight, statistics.memory.leases, statistics.weights.nbytes) == (0, 0, 0)
        return found

    assert await at_each(functools.partial(scenario, False)) >= (3 if known else 4)
    if known:
        assert await at_each(functools.partial(scenario, True)) >= 1


@pytest.mark.asyncio
@pytest.mark.parametrize("again", AGAIN)
@pytest.mark.parametrize("warm", [False, True])
async def test_loading(warm: bool, again: int) -> None:
    """Beside requests of another model; the model can be loaded afterwards, and its memory is not there twice."""

    async def scenario(first: int) -> tuple[int, Any]:
        async with opened(SimulatedDevice(first), RuntimeOptions(warm=warm)) as rt:
            loaded = await rt.load(two_chunks())
            others = [asyncio.create_task(outcome_of(loaded, i)) for i in range(2)]
            found = await cancelled_at(rt.load(two_chunks()), first, again)
            assert [expected(0), expected(1)] == await asyncio.gather(*others)
            assert expected(2) == await outcome_of(await rt.load(two_chunks()), 2)
        return found

    assert await at_each(scenario) >= (2 if warm else 1)


@pytest.mark.asyncio
@pytest.mark.parametrize("again", AGAIN)
async def test_opening(again: int) -> None:
    """What was not opened can be thrown away; another one opens."""

    async def scenario(first: int) -> tuple[int, Any]:
        rt = Runtime("simulated", options=ROOMY)
        with nothing_unseen():
            found = await cancelled_at(rt.open(), first, again)
            await rt.close()
            await settled(1000)
        async with Runtime("simulated", options=ROOMY) as other:
            assert expected(0) == await outcome_of(await other.load(two_chunks()), 0)
        return found

    assert await at_each(scenario) >= 2


@pytest.mark.asyncio
@pytest.mark.parametrize("again", AGAIN)
@pytest.mark.parametrize("how", ["cancelled requests", "requests", "a trace"])
async def test_closing(again: int, how: str, tmp_path: Path) -> None:
    """While requests are in flight, or what cancelled ones have enqueued: everything is given back all the same."""

    async def scenario(first: int) -> tuple[int, Any]:
        device = SimulatedDevice(first)
        rt = Runtime(device, streams=2, options=ROOMY)
        with nothing_unseen():
            await rt.open()
            loaded = await rt.load(two_chunks())
            tasks = [asyncio.create_task(outcome_of(loaded, i)) for i in range(3)]
            for _ in range(100):
                await asyncio.sleep(0)
                if rt.session.dispatcher.busy:
                    break
            assert rt.session.dispatcher.busy
            if how == "cancelled requests":
                for task in tasks:
                    task.cancel()
            if how == "a trace":
                async with rt.trace(tmp_path / "trace.json"):
                    found = await cancelled_at(rt.close(), first, again)
            else:
                found = await cancelled_at(rt.close(), first, again)
            assert "closed" in repr(rt)
            assert_clean(rt, device)
            results = await asyncio.gather(*tasks, return_exceptions=True)
            await settled()
        if how != "cancelled requests":
            assert [expected(i) for i in range(3)] == results
        return found

    assert await at_each(scenario) >= 1


def decoder() -> Any:
    """``total`` grows by ``x`` in each step, and ``y`` is its sum along the rows."""
    nodes = [node("total = Concat(past, x)", axis=0), node("y = ReduceSum(total)", keepdims=0)]
    return model(nodes, ["x f32[n,4]", "past f32[p,4]"], ["y", "total"])


def rows(index: int) -> Array:
    return np.random.default_rng(index).standard_normal((index + 1, 4)).astype(np.float32)


async def steps_of(sequence: Sequence, count: int) -> list[bytes]:
    return [(await sequence.infer({"x": rows(i)}))["y"].tobytes() for i in range(count)]


async def truth_of(count: int) -> list[bytes]:
    async with Runtime(SimulatedDevice(), options=ROOMY) as rt, (await rt.load(decoder())).sequence(STATE) as sequence:
        return await steps_of(sequence, count)


STATE = {"past": "total"}


@pytest.mark.asyncio
@pytest.mark.parametrize("again", AGAIN)
async def test_a_step_of_a_sequence(again: int) -> None:
    """The state stays what it was, and the step can be tried again; another sequence's steps are exact."""
    truth = await truth_of(4)

    async def scenario(first: int) -> tuple[int, Any]:
        async with opened(SimulatedDevice(first), ROOMY) as rt:
            loaded: Model = await rt.load(decoder())
            async with loaded.sequence(STATE) as sequence, loaded.sequence(STATE) as other:
                before = await steps_of(sequence, 2)
                beside = asyncio.create_task(steps_of(other, 4))
                met, outcome = await cancelled_at(sequence.infer({"x": rows(2)}), first, again)
                got = (await sequence.infer({"x": rows(2)}) if isinstance(outcome, BaseException) else outcome)["y"]
                after = (await sequence.infer({"x": rows(3)}))["y"]
                assert truth == [*before, got.tobytes(), after.tobytes()]
                assert truth == await beside
        return met, outcome

    assert await at_each(scenario) >= 1


@pytest.mark.asyncio
@pytest.mark.parametrize("again", AGAIN)
async def test_closing_a_sequence(again: int) -> None:
    """While a step is under way and another one waits for it: the memory comes back when the step is over."""
    truth = await truth_of(3)

    async def scenario(first: int) -> tuple[int, Any]:
        async with opened(SimulatedDevice(first), ROOMY) as rt:
            loaded = await rt.load(decoder())
            sequence = loaded.sequence(STATE)
            assert truth[:2] == await steps_of(sequence, 2)
            step = asyncio.create_task(sequence.infer({"x": rows(2)}))
            waits = asyncio.create_task(sequence.infer({"x": rows(3)}))
            await asyncio.sleep(0)
            found = await cancelled_at(sequence.close(), first, again)
            results = await asyncio.gather(step, waits, return_exceptions=True)
            assert isinstance(results[0], dict)
            assert truth[2] == results[0]["y"].tobytes()
            assert "closed" in str(results[1])
            assert (sequence.nbytes, rt.statistics().memory.leases) == (0, 0)
        return found

    assert await at_each(scenario) >= 1


@pytest.mark.asyncio
@pytest.mark.parametrize("again", AGAIN)
async def test_a_trace(again: int, tmp_path: Path) -> None:
    """Cancelled while it is taken, ended or written, the streams are what they were, and another one can be taken."""

    async def scenario(first: int) -> tuple[int, Any]:
        async with opened(SimulatedDevice(first), ROOMY) as rt:
            loaded = await rt.load(two_chunks())
            before = list(rt.session.dispatcher.streams)
            beside = asyncio.create_task(outcome_of(loaded, 1))

            async def traced() -> None:
                async with rt.trace(tmp_path / "trace.json"):
                    await loaded.infer({"x": given(0)})

            found = await cancelled_at(traced(), first, again)
            assert before == rt.session.dispatcher.streams
            assert expected(1) == await beside
            async with rt.trace(tmp_path / "other.json"):
                assert expected(2) == await outcome_of(loaded, 2)
            assert (await loaded.profile({"x": given(0)})).counts["ran"] > 0
        return found

    assert await at_each(scenario) >= 4


@pytest.mark.asyncio
async def test_time_runs_out_in_a_group() -> None:
    """`asyncio.timeout` and `TaskGroup` end requests in the middle; those outside are exact, and nothing is left."""
    for turns in range(1, 30, 2):
        async with opened(SimulatedDevice(turns), TIGHT) as rt:
            loaded = await rt.load(two_chunks())
            outside = asyncio.create_task(outcome_of(loaded, 2))

            async def fails(turns: int) -> None:
                for _ in range(turns):
                    await asyncio.sleep(0)
                raise ZeroDivisionError

            async def group_of(loaded: Model, turns: int) -> None:
                async with asyncio.TaskGroup() as group:
                    group.create_task(outcome_of(loaded, 0))
                    group.create_task(outcome_of(loaded, 1))
                    group.create_task(fails(turns))

            with pytest.raises(ExceptionGroup) as caught:
                await group_of(loaded, turns)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await loaded.infer({"x": given(3)})

            assert caught.group_contains(ZeroDivisionError)
            assert expected(2) == await outside
