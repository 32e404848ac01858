"""A model that is unloaded gives everything back, and disturbs nobody."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

import asyncrt
from asyncrt.devices.simulated import SimulatedDevice
from asyncrt.runtime import one_device

from ..builders import model, node

X = np.arange(12, dtype=np.float32).reshape(3, 4)
WEIGHTS = np.arange(16, dtype=np.float32).reshape(4, 4)
PRODUCT = model([node("y = MatMul(x, w)")], ["x f32[n,4]"], ["y"], {"w": WEIGHTS})
NEGATIVE = model([node("y = Neg(x)")], ["x f32[n,4]"], ["y"])


@pytest.mark.asyncio
@pytest.mark.parametrize("device", ["host", "simulated"])
async def test_an_unloaded_model_gives_its_constants_back_and_refuses_requests(device: str) -> None:
    """Other models of the runtime go on, and the same file can be loaded again."""
    async with asyncrt.Runtime(device) as rt:
        going, other = await rt.load(PRODUCT), await rt.load(NEGATIVE)
        await going.infer({"x": X})
        held = rt.statistics().weights_nbytes

        await rt.unload(going)

        assert held >= WEIGHTS.nbytes
        assert rt.statistics().weights_nbytes == 0
        with pytest.raises(asyncrt.RuntimeClosedError, match="was unloaded"):
            await going.infer({"x": X})
        np.testing.assert_array_equal(-X, (await other.infer({"x": X}))["y"])
        again = await rt.load(PRODUCT)
        np.testing.assert_array_equal(X @ WEIGHTS, (await again.infer({"x": X}))["y"])


@pytest.mark.asyncio
async def test_requests_under_way_end_before_their_model_does() -> None:
    """Those that have begun, and those that wait for their turn, get their answers."""
    async with asyncrt.Runtime(SimulatedDevice(seed=3), options=asyncrt.RuntimeOptions(max_in_flight=2)) as rt:
        going = await rt.load(PRODUCT)
        requests = [asyncio.create_task(going.infer({"x": X + i})) for i in range(6)]
        while rt.statistics().launches == 0:  # noqa: ASYNC110
            await asyncio.sleep(0)  # a turn of the loop
        requests[0].cancel()

        await rt.unload(going)

        answers = await asyncio.gather(*requests[1:])
        for i, outputs in enumerate(answers, 1):
            np.testing.assert_array_equal((X + i) @ WEIGHTS, outputs["y"])
        assert rt.statistics().weights_nbytes == 0
        assert rt.statistics().in_flight == 0


@pytest.mark.asyncio
async def test_a_model_is_unloaded_once_and_by_its_own_runtime() -> None:
    """What is no model of this runtime is an argument's error, and nothing happens."""
    async with asyncrt.Runtime("host") as rt, asyncrt.Runtime("host") as elsewhere:
        mine, foreign = await rt.load(NEGATIVE), await elsewhere.load(NEGATIVE)
        await rt.unload(mine)

        for wrong in (mine, foreign, "negative"):
            with pytest.raises(asyncrt.ArgumentError, match="loaded and not unloaded since"):
                await rt.unload(wrong)  # type: ignore[arg-type]
        np.testing.assert_array_equal(-X, (await foreign.infer({"x": X}))["y"])


@pytest.mark.asyncio
@pytest.mark.parametrize("ends", ["unload", "close"])
async def test_freed_memory_is_given_back_however_small_the_model(ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small models add up; the event loop does not wait for it."""
    threads: list[int] = []
    monkeypatch.setattr(one_device, "give_back_freed", lambda: threads.append(threading.get_ident()))
    async with asyncrt.Runtime("simulated") as rt:
        loaded = await rt.load(NEGATIVE)
        assert not threads
        if ends == "unload":
            await rt.unload(loaded)
            assert len(threads) == 1

    assert len(threads) == (2 if ends == "unload" else 1)
    assert threading.get_ident() not in threads
