"""A Loop that goes on for ever hurts nobody: it looks at its deadline, can be cancelled, and others go on beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import attrs
import numpy as np
import pytest
import pytest_asyncio

from asyncrt import DeadlineExceeded, IterationLimitError, Model, Runtime, RuntimeClosedError, RuntimeOptions
from asyncrt.layout import Array
from asyncrt.runtime.loop.pending_request import RunAgain

from ...builders import model, node
from .test_control_flow import body

FOREVER = np.array(1 << 60, np.int64)
X = np.ones(2, np.float32)
BODIES = {
    "computes nothing": (["c2 = Identity(c)", "w = Identity(u)", "t = Identity(v)"], "c2 w t"),
    "has no node": ([], "c u v"),
    "computes": (["c2 = Identity(c)", "w = Neg(v)", "t = Neg(u)"], "c2 w t"),
}


def loop(kind: str, trips: Array | None = None) -> Any:
    """A Loop of `n` trips, or of so many that are constant; what it carries changes places, so that it is carried."""
    nodes, outputs = BODIES[kind]
    made = node("y = Loop(n,, x, x)", body=body(nodes, ["v f32[2]", "u f32[2]"], outputs))
    inputs = ["x f32[2]"] if trips is not None else ["n i64[]", "x f32[2]"]
    return model([made], inputs, ["y"], {} if trips is None else {"n": trips})


def nested() -> Any:
    """A Loop in a Loop, of which the inner one goes on for ever."""
    inner = node("w = Loop(n,, v, v)", body=body(["c3 = Identity(c)"], ["q f32[2]", "r f32[2]"], "c3 r q"))
    made = node("y = Loop(n,, x)", body=body([inner, "c2 = Identity(c)"], ["v f32[2]"], "c2 w"))
    return model([made], ["n i64[]", "x f32[2]"], ["y"])


@attrs.define
class Clock:
    """Each look at it takes a millisecond."""

    now: float = 100.0

    def __call__(self) -> float:
        self.now += 1e-3
        return self.now


@pytest_asyncio.fixture(params=(None, "host", "simulated"), ids=lambda d: d or "opencl")
async def rt(request: pytest.FixtureRequest) -> AsyncIterator[Runtime]:
    """A runtime of which nothing may be left behind."""
    async with asyncio.timeout(60):
        async with Runtime(request.param, options=RuntimeOptions(max_in_flight=4)) as runtime:
            yield runtime
    statistics = runtime.statistics()
    assert (statistics.in_flight, statistics.memory.leases, statistics.memory.active) == (0, 0, 0)


async def load(rt: Runtime, kind: str) -> Model:
    return await rt.load(nested() if kind == "nested" else loop(kind))


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", [*BODIES, "nested"])
async def test_a_deadline_ends_it_between_two_trips(rt: Runtime, kind: str) -> None:
    """No trip begins after it: of a millisecond each, there are no more than fit."""
    loaded = await load(rt, kind)
    rt.session.dispatcher.clock = clock = Clock()  # type: ignore[method-assign]
    begun = clock.now

    with pytest.raises(DeadlineExceeded):
        await loaded.infer({"n": FOREVER, "x": X}, deadline=0.1)

    assert clock.now - begun < 0.2
    np.testing.assert_array_equal(X, (await loaded.infer({"n": np.array(2), "x": X}, deadline=3600))["y"])


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", [*BODIES, "nested"])
async def test_others_go_on_beside_it_and_it_can_be_cancelled(rt: Runtime, kind: str) -> None:
    """The loop turns at least once a trip; who is cancelled is so in the next."""
    loaded = await load(rt, kind)
    trips = 0
    iterates = rt.session.dispatcher.iterates

    async def counted(request: int, times: int = 1) -> None:
        nonlocal trips
        trips += times
        await iterates(request, times)

    rt.session.dispatcher.iterates = counted  # type: ignore[method-assign]
    endless = asyncio.create_task(loaded.infer({"n": FOREVER, "x": X}))
    for _ in range(20):
        np.testing.assert_array_equal(X, (await loaded.infer({"n": np.array(2), "x": X}))["y"])
    assert not endless.done()
    assert trips > 40

    before = trips
    endless.cancel()
    with pytest.raises(asyncio.CancelledError):
        await endless

    assert trips - before <= 1


@pytest.mark.asyncio
async def test_closing_does_not_wait_for_it_for_ever(rt: Runtime) -> None:
    """It may go on for a few seconds, for others end by themselves; then it is told why it does not."""
    loaded = await load(rt, "computes nothing")
    rt.session.dispatcher.clock = clock = Clock()  # type: ignore[method-assign]
    endless = asyncio.create_task(loaded.infer({"n": FOREVER, "x": X}))
    ends = asyncio.create_task(loaded.infer({"n": np.array(50), "x": X}))
    await asyncio.sleep(0)
    begun = clock.now

    await rt.close()

    assert clock.now - begun < 10
    np.testing.assert_array_equal(X, (await ends)["y"])
    with pytest.raises(RuntimeClosedError, match="closing for 5 s"):
        await endless


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", BODIES)
async def test_loading_runs_none_of_it(rt: Runtime, kind: str) -> None:
    """However constant the number of trips is."""
    loaded = await rt.load(loop(kind, FOREVER))

    with pytest.raises(DeadlineExceeded):
        await loaded.infer({"x": X}, deadline=0.01)


@pytest.mark.asyncio
@pytest.mark.parametrize(("kind", "most", "more"), [*((k, 5, 6) for k in BODIES), ("nested", 1, 2)])
async def test_there_may_be_so_many_iterations_and_no_more(kind: str, most: int, more: int) -> None:
    """Those of a loop in a loop count, too: of two times two there are six; and each request counts by itself."""
    async with Runtime("host", options=RuntimeOptions(max_iterations=5)) as rt:
        loaded = await load(rt, kind)
        expected = -X if kind == "computes" else X  # five negations
        for _ in range(3):
            np.testing.assert_array_equal(expected, (await loaded.infer({"n": np.array(most), "x": X}))["y"])

            with pytest.raises(IterationLimitError, match=r"went round 6 times; RuntimeOptions\.max_iterations is 5"):
                await loaded.infer({"n": np.array(more), "x": X})


@pytest.mark.asyncio
async def test_iterations_that_count_for_nothing_are_not_counted() -> None:
    """A request that others made begin again has all of them."""
    async with Runtime("host", options=RuntimeOptions(max_iterations=5)) as rt:
        loaded = await load(rt, "computes")
        iterates, hit = rt.session.dispatcher.iterates, [3]

        async def hit_once(request: int, times: int = 1) -> None:
            await iterates(request, times)
            hit[0] -= 1
            if hit[0] == 0:
                raise RunAgain

        rt.session.dispatcher.iterates = hit_once  # type: ignore[method-assign]

        np.testing.assert_array_equal(-X, (await loaded.infer({"n": np.array(5), "x": X}))["y"])
        assert hit == [-5]
