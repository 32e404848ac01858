"""Requests that hold memory and want more of it, where there is not enough for all: each is served in the end."""

from __future__ import annotations

import asyncio

import attrs
import pytest

from asyncrt import OutOfDeviceMemory, RuntimeOptions
from asyncrt.devices.simulated import SimulatedDevice

from ..scenarios import TIGHT, as_bytes, expected, given, opened, outcome_of, two_chunks

ENOUGH = 9 << 11  # for the largest request of `given`, and for hardly another one's first chunk


@pytest.mark.asyncio
@pytest.mark.parametrize("limit", [ENOUGH, ENOUGH + 2048, ENOUGH + 4096])
@pytest.mark.parametrize(("count", "streams", "max_in_flight"), [(6, 2, 2), (8, 3, 8), (30, 1, 30)])
async def test_requests_that_hold_what_others_need_are_all_served(
    limit: int, count: int, streams: int, max_in_flight: int
) -> None:
    """Every first chunk leaves memory held while its request wants more: the youngest give up what they have.

    With thirty on one stream, those that wait for memory have all the places on it, and those that hold memory none.
    """
    options = attrs.evolve(TIGHT, memory_limit=limit, max_in_flight=max_in_flight)
    for seed in range(3):
        async with opened(SimulatedDevice(seed), options, streams) as rt:
            loaded = await rt.load(two_chunks())
            got = await asyncio.gather(*(outcome_of(loaded, i) for i in range(count)))

        assert [expected(i) for i in range(count)] == got


@pytest.mark.asyncio
async def test_what_fits_for_nobody_fails_alone() -> None:
    """Of requests at once, those that would not fit even alone are refused, and all the others succeed."""
    options = attrs.evolve(TIGHT, memory_limit=ENOUGH - 4096, max_in_flight=8)
    async with opened(SimulatedDevice(1), options) as rt:
        loaded = await rt.load(two_chunks())
        got = await asyncio.gather(*(outcome_of(loaded, i) for i in range(12)))

    for index, outcome in enumerate(got):
        if index % 4 == 3:
            assert isinstance(outcome, OutOfDeviceMemory)
        else:
            assert expected(index) == outcome


@pytest.mark.asyncio
async def test_a_request_that_waits_for_memory_may_be_cancelled() -> None:
    """Cancelled while it waits, or after it gave way: the others go on, and it leaves nothing."""
    options = attrs.evolve(TIGHT, memory_limit=ENOUGH, max_in_flight=6)
    for turns in range(4, 40, 3):
        async with opened(SimulatedDevice(2), options, 2) as rt:
            loaded = await rt.load(two_chunks())
            tasks = [asyncio.create_task(outcome_of(loaded, i)) for i in range(6)]
            for _ in range(turns):
                await asyncio.sleep(0)
            for task in tasks[1::2]:
                task.cancel()
            got = await asyncio.gather(*tasks, return_exceptions=True)

        for index, outcome in enumerate(got):
            assert outcome == expected(index) or (index % 2 and isinstance(outcome, asyncio.CancelledError)), turns


@pytest.mark.asyncio
async def test_the_least_important_gives_way() -> None:
    """Of two that hold what the other needs, the one with the higher number of priority begins again."""
    options = RuntimeOptions(warm=False, without={"preallocate"}, memory_limit=ENOUGH, max_in_flight=2)
    for priorities in ((0, 5), (5, 0)):
        order: list[int] = []
        async with opened(SimulatedDevice(0), options, 2) as rt:
            loaded = await rt.load(two_chunks())

            async def request(index: int, priority: int) -> None:
                got = await loaded.infer({"x": given(3)}, priority=priority)  # noqa: B023
                assert expected(3) == as_bytes(got)
                order.append(index)  # noqa: B023

            await asyncio.gather(*(request(i, p) for i, p in enumerate(priorities)))

        assert order == sorted(range(2), key=priorities.__getitem__)
