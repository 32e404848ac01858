"""The event loop's turns: requests share them, planning gives them up, and equal plans are made once."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest

from asyncrt import Runtime, RuntimeOptions
from asyncrt.devices.simulated import SimulatedDevice
from asyncrt.runtime.loop.turns import Turns

from ...builders import model, node


def chain(length: int) -> onnx.ModelProto:
    """x → Tanh, Tanh, ..."""
    names = ["x", *(f"v{i}" for i in range(length))]
    return model([node(f"{b} = Tanh({a})") for a, b in itertools.pairwise(names)], ["x f32[n]"], [names[-1]])


class Counted:
    """Counts the turns of the loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.number = 0
        self._count()

    def _count(self) -> None:
        self.number += 1
        self._handle = self._loop.call_soon(self._count)

    def stop(self) -> None:
        self._handle.cancel()


@pytest.fixture
def turns() -> Iterator[list[Counted]]:
    """The counters that a test makes; they stop with it."""
    made: list[Counted] = []
    yield made
    for counted in made:
        counted.stop()


@pytest.mark.asyncio
async def test_one_goes_on_in_each_turn(turns: list[Counted]) -> None:
    """In the order in which that was asked for, with results and errors; who has been cancelled takes no turn."""
    loop = asyncio.get_running_loop()
    counted, shared = Counted(), Turns(loop)
    turns.append(counted)
    futures = [loop.create_future() for _ in range(4)]
    went: dict[int, int] = {}
    for number, future in enumerate(futures):
        future.add_done_callback(lambda _, number=number: went.setdefault(number, counted.number))
        shared.go_on(future, number, ValueError() if number == 3 else None)

    futures[1].cancel()
    results = await asyncio.gather(*futures, return_exceptions=True)

    first = went[0]
    assert {0: first, 1: first, 2: first + 1, 3: first + 2} == went
    assert (results[0], results[2]) == (0, 2)
    assert isinstance(results[3], ValueError)


@pytest.mark.asyncio
async def test_requests_at_once_do_not_share_a_turn(turns: list[Counted]) -> None:
    """Of thirty-two that come together, or whose chunks end together, two at most are enqueued in a turn."""
    async with Runtime(SimulatedDevice(), streams=4) as rt:
        loaded = await rt.load(chain(3))
        await loaded.infer({"x": np.ones(3, np.float32)})
        counted = Counted()
        turns.append(counted)
        launched: Counter[int] = Counter()
        inner = rt.session.dispatcher.launched

        def launch(*arguments: Any) -> Any:
            launched[counted.number] += 1
            return inner(*arguments)

        rt.session.dispatcher.launched = launch  # type: ignore[method-assign]
        await asyncio.gather(*(loaded.infer({"x": np.ones(3, np.float32)}) for _ in range(32)))

    assert launched.total() == 32
    assert max(launched.values()) <= 2


@pytest.mark.asyncio
@pytest.mark.parametrize("spec", ["simulated", None], ids=lambda d: d or "opencl")
async def test_planning_lets_the_loop_turn(turns: list[Counted], spec: str | None) -> None:
    """A plan of many nodes takes many turns; the same shape once more takes as many as a short one."""
    async with Runtime(spec, options=RuntimeOptions(without={"fuse"})) as rt:
        loaded = await rt.load(chain(80))
        counted = Counted()
        turns.append(counted)
        seen: list[int] = []
        place = rt.session.dispatcher.place

        async def placed(*arguments: int) -> int:
            seen.append(counted.number)
            return await place(*arguments)

        rt.session.dispatcher.place = placed  # type: ignore[method-assign]
        for rows in (3, 3):
            before = counted.number
            await loaded.infer({"x": np.ones(rows, np.float32)})
            seen[-1] -= before

    assert seen[0] >= 10
    assert seen[1] <= 3


@pytest.mark.asyncio
@pytest.mark.parametrize("spec", ["simulated", "host", None], ids=lambda d: d or "opencl")
async def test_equal_requests_at_once_are_planned_once(spec: str | None) -> None:
    """One of them plans and the others wait for it; where it is cancelled meanwhile, the next one plans."""
    async with Runtime(spec, options=RuntimeOptions(warm=False, without={"fuse"})) as rt:
        loaded = await rt.load(chain(20))
        x = np.linspace(-1, 1, 5, dtype=np.float32)

        tasks = [asyncio.create_task(loaded.infer({"x": x})) for _ in range(8)]
        for _ in range(2):
            await asyncio.sleep(0)
        tasks[0].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        statistics = rt.statistics()

    expected = x
    for _ in range(20):
        expected = np.tanh(expected)
    assert isinstance(results[0], asyncio.CancelledError)
    for result in results[1:]:
        assert isinstance(result, dict)
        np.testing.assert_allclose(expected, result["v19"], rtol=1e-5)
    assert (statistics.plans, statistics.plans_kept) == (2, 1)

