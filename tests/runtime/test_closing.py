"""Closing ends all that waits: each has its result or is told, and closing itself returns."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from asyncrt import Runtime, RuntimeClosedError, RuntimeOptions
from asyncrt.devices.simulated import SimulatedDevice

from .. import virtual_loop
from ..builders import model, node
from ..stress.scenarios import ROOMY, assert_clean, nothing_unseen, settled

X = np.ones(3, np.float32)
Results = list[Any]


def summed() -> Any:
    """Each step adds to what the one before gave."""
    return model([node("y = Add(x, past)"), node("present = Identity(y)")], ["x f32[n]", "past f32[n]"],
                 ["y", "present"])  # fmt: skip


def assert_told(outcomes: Results, steps: list[float]) -> None:
    """Those that were answered have what is theirs; all others know that the runtime was closed."""
    for outcome, value in zip(outcomes, steps, strict=True):
        if isinstance(outcome, dict):
            np.testing.assert_array_equal(value * X, outcome["y"])
        else:
            assert isinstance(outcome, RuntimeClosedError), outcome


@pytest.mark.asyncio
@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13])
@pytest.mark.parametrize("kind", ["a sequence", "a group", "several groups"])
async def test_steps_that_wait_are_told(kind: str, turns: int) -> None:
    """However far the first of them has come."""
    device = SimulatedDevice(turns)
    rt = Runtime(device, streams=2, options=ROOMY)
    with nothing_unseen():
        async with asyncio.timeout(10):
            await rt.open()
            loaded = await rt.load(summed())
            group = loaded.sequences(max_batch=2)
            one = loaded.sequence() if kind == "a sequence" else group.sequence()
            others = [group.sequence() for _ in range(6)] if kind == "several groups" else []
            waiting = [asyncio.ensure_future(one.infer({"x": X})) for _ in range(5)]
            waiting += [asyncio.ensure_future(other.infer({"x": X})) for other in others]
            for _ in range(turns):
                await asyncio.sleep(0)

            await rt.close()
            outcomes: Results = await asyncio.gather(*waiting, return_exceptions=True)
            for sequence in (one, *others):
                await sequence.close()
            await group.close()
            await settled()

    assert_told(outcomes, [1, 2, 3, 4, 5] + [1] * len(others))
    assert any(isinstance(outcome, RuntimeClosedError) for outcome in outcomes)
    assert_clean(rt, device)


@pytest.mark.parametrize("turns", range(0, 40, 3))
def test_batched_requests_that_wait_are_told(turns: int) -> None:
    """Those that wait for company as well as those that wait for a batch before theirs."""

    async def main() -> None:
        device = SimulatedDevice(turns)
        rt = Runtime(device, streams=1, options=ROOMY)
        await rt.open()
        loaded = await rt.load(model([node("y = Neg(x)")], ["x f32[n,3]"], ["y"]))
        batched = loaded.batched(max_batch=2, max_delay=1.0)
        await batched.open()
        waiting = [asyncio.ensure_future(batched.infer({"x": -i * X[None]})) for i in range(7)]
        for _ in range(turns):
            await asyncio.sleep(0)

        await rt.close()  # outside of the scope: while a thread closes the device, this clock goes to its end
        async with asyncio.timeout(100):
            await batched.close()
            outcomes: Results = await asyncio.gather(*waiting, return_exceptions=True)

        assert_told([{"y": o["y"][0]} if isinstance(o, dict) else o for o in outcomes], list(range(7)))
        assert_clean(rt, device)

    virtual_loop.run(main())


@pytest.mark.asyncio
@pytest.mark.parametrize("device", ["host", "simulated", None])
@pytest.mark.parametrize("turns", range(0, 60, 4))
async def test_no_task_of_a_model_that_is_being_loaded_is_left(device: str | None, turns: int) -> None:
    """Whatever of its constants and kernels is on its way: a loop that ends then has nothing to destroy."""
    weights = {name: np.full((3, 3), i, np.float32) for i, name in enumerate("abcdef")}
    chain = [node(f"{y} = MatMul({x}, {w})") for x, y, w in zip("xopqrs", "opqrsy", weights, strict=True)]
    rt = Runtime(device)
    with nothing_unseen():
        await rt.open()
        loading = asyncio.create_task(rt.load(model(chain, ["x f32[n,3]"], ["y"], weights)))
        for _ in range(turns):
            await asyncio.sleep(0)

        async with asyncio.timeout(30):
            await rt.close()
            (outcome,) = await asyncio.gather(loading, return_exceptions=True)

    assert isinstance(outcome, RuntimeClosedError) or not isinstance(outcome, BaseException)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.asyncio
async def test_nobody_is_admitted_any_more() -> None:
    """Not even who was let in at the door before."""
    async with Runtime("simulated", options=RuntimeOptions(max_in_flight=1)) as rt:
        loaded = await rt.load(model([node("y = Neg(x)")], ["x f32[n]"], ["y"]))
        network, dispatcher = loaded.network, rt.session.dispatcher
        arrays = network.checked.check({"x": X})

    with pytest.raises(RuntimeClosedError):
        await network.infer(arrays)

    assert dispatcher.in_flight == 0
