"""What a runtime says of itself: records of counts, and the same in its `repr`."""

from __future__ import annotations

import asyncio

import attrs
import numpy as np
import pytest

from asyncrt import Runtime, RuntimeOptions
from asyncrt.devices.simulated import SimulatedDevice
from asyncrt.kernels.resident.kernel_cache import CacheStatistics
from asyncrt.kernels.resident.weights import WeightsStatistics
from asyncrt.scheduler.state import SchedulerStatistics

from ..builders import model, node


def network() -> bytes:
    w = np.ones((8, 8), np.float32)
    nodes = [node("a = MatMul(x, w)"), node("t = Transpose(a)", perm=[1, 0]), node("y = Neg(t)")]
    return model(nodes, ["x f32[n,8]"], ["y"], {"w": w}).SerializeToString()


@pytest.mark.asyncio
async def test_statistics_count_what_was_done_and_what_is_held() -> None:
    """Two signatures, five requests; one Transpose of one row is skipped each time."""
    file, device = network(), SimulatedDevice()
    async with Runtime(device, options=RuntimeOptions(warm=False)) as rt:
        loaded = await rt.load(file)
        for rows in (1, 1, 1, 4, 4):
            await loaded.infer({"x": np.ones((rows, 8), np.float32)})
        s = rt.statistics()

    assert (s.requests, s.in_flight, s.cancelled, s.failed) == (5, 0, 0, 0)
    assert (s.plans, s.plans_kept, s.replays) == (2, 2, 3)
    assert s.launches == device.launches > 0
    assert s.skipped == 3
    assert s.weights == WeightsStatistics(entries=1, nbytes=256, packed=0, shared=0, evictions=0)
    assert s.weights_nbytes == 256
    assert s.memory.reused + s.memory.allocated == 5
    assert isinstance(s.kernels, CacheStatistics)
    assert s.scheduler == SchedulerStatistics(0, 0, 0, 0, 0, 0, (0, 0))
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        s.requests = 0  # type: ignore[misc]


@pytest.mark.asyncio
async def test_the_scheduler_says_how_many_requests_are_where() -> None:
    """Two of five may hold memory: they run, and the others wait; `repr` says the same."""
    file = network()
    options = RuntimeOptions(warm=False, max_in_flight=2)
    async with Runtime(SimulatedDevice(1), streams=2, options=options) as rt:
        loaded = await rt.load(file)
        await loaded.infer({"x": np.ones((4, 8), np.float32)})
        tasks = [asyncio.ensure_future(loaded.infer({"x": np.ones((4, 8), np.float32)})) for _ in range(5)]
        for _ in range(100):
            await asyncio.sleep(0)
            if rt.statistics().scheduler.running == 2:
                break
        s, shown = rt.statistics(), repr(rt)
        await asyncio.gather(*tasks)

    assert s.scheduler == SchedulerStatistics(3, 0, 0, 0, 2, 0, (1, 1))
    assert s.in_flight == 5
    assert "2 admitted, 3 waiting, 0 ready, 2 running; stream depths [1, 1]" in shown
    assert "6 requests" in shown
    assert "reused=" in shown
    assert "kernels" in shown
