"""Callers who ask at once for brief requests take turns on their own threads."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator

import numpy as np
import pytest

from asyncrt import DeadlineExceeded, DeviceCommandError, Model, Runtime
from asyncrt.devices.faults import Fault, Faults
from asyncrt.runtime.request.callers_turns import TURN_S, CallersTurns

from .test_direct import PLAIN, SOURCE, Lending, expected, given, ticking


async def ask(loaded: Model, caller: int, times: int) -> None:
    """Ask for one answer after the other, each with inputs of its own, and look at each."""
    for i in range(times):
        inputs = given(1000 * caller + i)
        answer = await loaded.infer(inputs)
        np.testing.assert_allclose(expected(inputs), answer["y"], rtol=1e-6)


@contextlib.asynccontextmanager
async def known(device: Lending) -> AsyncIterator[tuple[Runtime, Model]]:
    """A model of which one caller has had twenty answers."""
    async with Runtime(device, options=PLAIN) as rt:
        loaded = await rt.load(SOURCE)
        await ask(loaded, 0, 20)
        yield rt, loaded


@pytest.mark.asyncio
@pytest.mark.parametrize("callers", [2, 16])
async def test_callers_who_ask_at_once_from_the_start_run_on_their_own_threads(callers: int, users_path: None) -> None:
    """From when the plan has come often: one after the other they are answered sooner than from thread to thread."""
    device = Lending()
    async with Runtime(device, options=PLAIN) as rt:
        loaded = await rt.load(SOURCE)
        await asyncio.gather(*(ask(loaded, caller, 50) for caller in range(callers)))
        before = device.runs
        await asyncio.gather(*(ask(loaded, caller, 50) for caller in range(callers)))
        statistics = rt.statistics()

    assert device.runs == before + 50 * callers
    assert (statistics.requests, statistics.failed, statistics.memory.leases) == (100 * callers, 0, 0)


@pytest.mark.asyncio
async def test_callers_of_what_takes_longer_are_there_beside_each_other(users_path: None) -> None:
    """A request for which the event loop would be kept longer than on the general way waits for nobody."""
    device = Lending(seconds=1e-4)
    async with known(device) as (_, loaded):
        before = device.runs
        await asyncio.gather(*(ask(loaded, caller, 20) for caller in range(4)))

    assert before > 0
    assert device.runs <= before + 20


@pytest.mark.asyncio
async def test_callers_leave_the_event_loop_its_turns(users_path: None) -> None:
    """Another coroutine goes on at least as often as `TURN_S` and one request pass on the device."""
    device = Lending(seconds=1e-5)
    async with known(device) as (_, loaded), ticking() as ticks:
        began, runs = device.now, device.runs
        await asyncio.gather(*(ask(loaded, caller, 100) for caller in range(8)))
        turns = ticks()

    assert device.runs >= runs + 750
    assert turns >= (device.now - began) / TURN_S * 0.5


@pytest.mark.asyncio
async def test_brief_requests_do_not_wait_for_a_long_one(users_path: None) -> None:
    """While a request is there that is not known to be brief, they go beside it, and take turns again behind it."""
    device = Lending()
    async with known(device) as (_, loaded):
        before = device.runs
        other = asyncio.create_task(loaded.infer(given(1, rows=7)))  # a new plan
        await asyncio.sleep(0)
        await asyncio.gather(*(ask(loaded, caller, 1) for caller in range(3)))
        assert device.runs == before
        await other
        await asyncio.gather(*(ask(loaded, caller, 10) for caller in range(3)))

    assert device.runs > before + 20


@pytest.mark.asyncio
async def test_one_that_fails_is_the_failure_of_its_caller_alone(users_path: None) -> None:
    """The others have their turns, and their own answers."""
    device = Lending()
    async with known(device) as (rt, loaded):
        device.faults = Faults([Fault("launch")])
        outcomes = await asyncio.gather(*(ask(loaded, caller, 10) for caller in range(4)), return_exceptions=True)
        statistics = rt.statistics()

    assert [type(o) for o in outcomes if o is not None] == [DeviceCommandError]
    assert (statistics.failed, statistics.memory.leases, statistics.in_flight) == (1, 0, 0)


@pytest.mark.asyncio
async def test_who_is_cancelled_or_late_while_it_waits_keeps_nobody(users_path: None) -> None:
    """Its turn goes to the next, and nothing of it is launched."""
    device = Lending()
    async with known(device) as (rt, loaded):

        async def spend() -> int:
            rt.session.turns.begin()
            device.now += int(2 * TURN_S * 1e9)
            return device.runs

        spent = asyncio.create_task(spend())
        deadlines = (None, None, None, -1.0)
        asked = [asyncio.create_task(loaded.infer(given(n), deadline=d)) for n, d in enumerate(deadlines)]
        await asyncio.sleep(0)
        assert device.runs == spent.result()
        asked[0].cancel()
        outcomes = await asyncio.gather(*asked, return_exceptions=True)

    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert isinstance(outcomes[3], DeadlineExceeded)
    for n, outcome in enumerate(outcomes[1:3], 1):
        assert isinstance(outcome, dict)
        np.testing.assert_allclose(expected(given(n)), outcome["y"], rtol=1e-6)
    assert device.runs == spent.result() + 2


@pytest.mark.asyncio
async def test_turns_go_by_priority_then_deadline_then_order() -> None:
    """Whoever waits; and as many in one turn as it has time for."""
    now, order = 0, list[str]()

    async def wait(turns: CallersTurns, name: str, priority: int, until: float | None) -> None:
        await turns.wait(priority, until)
        order.append(name)

    async with Runtime("simulated", options=PLAIN) as rt:
        turns = CallersTurns(rt.session.dispatcher, asyncio.get_running_loop(), lambda: now)
        turns.begin()
        turns.took(TURN_S / 2)
        came = (("last", 1, 0.0), ("third", 0, None), ("fourth", 0, None), ("second", 0, 2.0), ("first", 0, 1.0))
        waiting = [asyncio.create_task(wait(turns, *each)) for each in came]
        steps = []
        while not all(task.done() for task in waiting):
            await asyncio.sleep(0)
            steps.append(len(order))
        free = turns.free

    assert order == ["first", "second", "third", "fourth", "last"]
    assert max(b - a for a, b in itertools.pairwise(steps)) == 2
    assert free
