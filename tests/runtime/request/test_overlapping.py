"""Brief requests of callers who ask at once are at work beside each other, where the device works by itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import attrs
import numpy as np
import pytest

from asyncrt import DeviceCommandError, Model, Runtime, RuntimeClosedError, RuntimeOptions
from asyncrt.devices.base import Allocation, Prepared, PreparedLaunch, Transfer
from asyncrt.devices.faults import Fault, Faults
from asyncrt.devices.opencl import device as opencl
from asyncrt.devices.opencl.launcher import native_launcher
from asyncrt.devices.opencl.prepared import OpenCLPrepared
from asyncrt.devices.opencl.submit import native_submitter
from asyncrt.devices.simulated import SimulatedDevice, SimulatedPrepared
from asyncrt.events import Event
from asyncrt.runtime.loop.dispatcher import Dispatcher
from asyncrt.runtime.loop.overlapping import End, Overlapping
from asyncrt.runtime.request.callers_thread.direct import Direct

from .test_callers_turns import ask
from .test_direct import PLAIN, SOURCE, expected, given, ticking

STREAMS = 3


class Working(SimulatedDevice):
    """A device that works by itself, and knows how many requests were at work at once."""

    def __init__(self) -> None:
        super().__init__(joins=True)
        self.at_work, self.most = 0, 0
        #: How many were begun; and whether one was since somebody asked.
        self.begun, self.works = 0, asyncio.Event()
        #: Whether a request is there that its caller's thread waits for: it is not at work beside others.
        self.alone = False

    def duration(self) -> float:
        return 2e-5

    def prepare(
        self, launches: Sequence[PreparedLaunch], memory: Sequence[Allocation], native: bool = True
    ) -> Prepared | None:
        return Noted(self, launches, memory)


class Noted(SimulatedPrepared):
    """Launches that tell their device when they begin and end."""

    def __init__(self, device: Working, launches: Sequence[PreparedLaunch], memory: Sequence[Allocation]) -> None:
        super().__init__(launches, memory, runs=True, begins=True)
        self._device = device

    def run(
        self, stream: Any, writes: Sequence[Transfer], reads: Sequence[Transfer], *, single: bool = False
    ) -> None:
        super().begin(stream, writes)  # alone
        super().end(stream, reads)

    def begin(self, stream: Any, writes: Sequence[Transfer]) -> None:
        super().begin(stream, writes)
        if self._device.alone:
            return
        self._device.at_work += 1
        self._device.begun += 1
        self._device.works.set()
        self._device.most = max(self._device.most, self._device.at_work)

    def end(self, stream: Any, reads: Sequence[Transfer]) -> None:
        self._device.at_work -= not self._device.alone
        super().end(stream, reads)


@contextlib.asynccontextmanager
async def known(device: Working) -> AsyncIterator[tuple[Runtime, Model]]:
    """A model whose plan has come often, from callers who ask at once."""
    finish = Direct._finish  # noqa: SLF001

    def alone(self: Direct, *given: Any) -> Any:
        device.alone = True
        try:
            return finish(self, *given)
        finally:
            device.alone = False

    with mock.patch.object(Direct, "_finish", alone):
        async with Runtime(device, streams=STREAMS, options=PLAIN) as rt:
            loaded = await rt.load(SOURCE)
            await asyncio.gather(*(ask(loaded, caller, 30) for caller in range(4)))
            device.most = 0
            device.works.clear()
            yield rt, loaded


@pytest.mark.asyncio
@pytest.mark.parametrize("callers", [2, 16])
async def test_callers_who_ask_at_once_have_a_stream_each(callers: int, users_path: None) -> None:
    """As many as there are streams are at work at once, and each gets its own answers."""
    device = Working()
    async with known(device) as (rt, loaded):
        await asyncio.gather(*(ask(loaded, caller, 50) for caller in range(callers)))
        statistics = rt.statistics()

    assert device.most == min(callers, STREAMS)
    assert (statistics.requests, statistics.failed, statistics.memory.leases) == (120 + 50 * callers, 0, 0)
    assert statistics.in_flight == device.at_work == 0


@pytest.mark.asyncio
async def test_those_of_several_devices_are_at_work_on_the_streams_of_each(users_path: None) -> None:
    """Each device has its share of them, and each caller its own answers."""
    devices = [Working(), Working()]
    for number, device in enumerate(devices):
        device.info = attrs.evolve(device.info, spec=f"working:{number}")
    async with Runtime(devices, streams=STREAMS, options=PLAIN) as rt:
        loaded = await rt.load(SOURCE)
        await asyncio.gather(*(ask(loaded, caller, 60) for caller in range(8)))
        begun = [device.begun for device in devices]
        await asyncio.gather(*(ask(loaded, caller, 50) for caller in range(16)))
        statistics = rt.statistics()

    shares = [device.begun - before for device, before in zip(devices, begun, strict=True)]
    assert sum(shares) >= 0.9 * 16 * 50
    assert min(shares) >= 0.3 * sum(shares)
    assert [device.most for device in devices] == [STREAMS, STREAMS]
    assert (statistics.requests, statistics.failed, statistics.memory.leases) == (8 * 60 + 16 * 50, 0, 0)
    assert statistics.in_flight == sum(device.at_work for device in devices) == 0


@pytest.mark.asyncio
async def test_the_event_loop_has_its_turns(users_path: None) -> None:
    """Another coroutine goes on behind each request that ends."""
    device = Working()
    async with known(device) as (_, loaded), ticking() as ticks:
        begun = device.begun
        await asyncio.gather(*(ask(loaded, caller, 50) for caller in range(8)))
        turns = ticks()

    assert turns >= (device.begun - begun) * 0.9


@pytest.mark.asyncio
async def test_they_have_ended_before_a_request_goes_the_general_way(
    users_path: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the scheduler, which knows nothing of them, orders it against nobody; those that wait go beside it."""
    device, beside = Working(), list[int]()
    launched = Dispatcher.launched

    def noted(self: Dispatcher, request: int, stream: int, keep: object = None) -> Event:
        beside.append(device.at_work)
        return launched(self, request, stream, keep)

    async with known(device) as (rt, loaded):
        monkeypatch.setattr(Dispatcher, "launched", noted)

        async def others() -> None:
            for rows in range(5, 25):  # new plans
                inputs = given(rows, rows=rows)
                np.testing.assert_allclose(expected(inputs), (await loaded.infer(inputs))["y"], rtol=1e-6)

        await asyncio.gather(*(ask(loaded, caller, 50) for caller in range(5)), others())
        statistics = rt.statistics()

    assert len(beside) >= 20
    assert set(beside) == {0}
    assert device.most > 0
    assert (statistics.failed, statistics.memory.leases) == (0, 0)


@pytest.mark.asyncio
@pytest.mark.parametrize("site", ["launch", "write", "read", "command"])
async def test_one_that_fails_is_the_failure_of_its_caller_alone(site: str, users_path: None) -> None:
    """The others have their own answers, and the memory is free again."""
    device = Working()
    async with known(device) as (rt, loaded):
        device.faults = Faults([Fault(site, 7)])
        outcomes = await asyncio.gather(*(ask(loaded, caller, 10) for caller in range(4)), return_exceptions=True)
        await asyncio.gather(*(ask(loaded, caller, 3) for caller in range(4)))
        statistics = rt.statistics()

    assert [type(o) for o in outcomes if o is not None] == [DeviceCommandError]
    assert (statistics.failed, statistics.memory.leases, statistics.in_flight) == (1, 0, 0)


@pytest.mark.asyncio
async def test_who_is_cancelled_leaves_its_memory_until_the_device_is_done(users_path: None) -> None:
    """Those beside it get what they asked for, bit for bit; and who had not begun never does."""
    device = Working()
    async with known(device) as (rt, loaded):
        begun = device.begun
        asked = [asyncio.create_task(loaded.infer(given(n))) for n in range(8 * STREAMS)]
        await device.works.wait()
        assert rt.statistics().memory.leases == device.at_work
        there = [task for task in asked if not task.done()]
        left = [there[0], there[1], there[-1]]
        for task in left:
            task.cancel()
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        statistics = rt.statistics()

    assert len(there) > STREAMS
    assert [task.cancelled() for task in asked] == [task in left for task in asked]
    for n, outcome in enumerate(outcomes):
        if isinstance(outcome, dict):
            np.testing.assert_allclose(expected(given(n)), outcome["y"], rtol=1e-6)
    assert device.begun - begun == len(there) - 1
    assert (statistics.memory.leases, statistics.in_flight) == (0, 0)


@pytest.mark.asyncio
@pytest.mark.parametrize("close", ["runtime", "model"])
async def test_what_closes_waits_for_those_at_work(close: str, users_path: None) -> None:
    """They are answered, those that wait for them to end as well, and those that wait for a stream are answered or
    told."""
    device = Working()
    async with known(device) as (rt, loaded):
        asked = [asyncio.create_task(loaded.infer(given(n))) for n in range(8 * STREAMS)]
        await device.works.wait()
        general = asyncio.create_task(loaded.infer(given(1, rows=17)))  # it waits until the others have ended
        await asyncio.sleep(0)
        assert rt.session.dispatcher.overlapping.held
        await (rt.close() if close == "runtime" else rt.unload(loaded))
        assert device.at_work == 0
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        np.testing.assert_allclose(expected(given(1, rows=17)), (await general)["y"], rtol=1e-6)

    answered = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, dict)]
    assert len(answered) >= STREAMS
    assert {type(o) for o in outcomes} <= {dict, RuntimeClosedError}


@pytest.mark.asyncio
async def test_a_trace_has_none_of_them_at_its_beginning(users_path: None, tmp_path: Path) -> None:
    """From then on all go the general way, where each launch is seen."""
    device = Working()
    async with known(device) as (rt, loaded):
        asked = [asyncio.create_task(ask(loaded, caller, 20)) for caller in range(4)]
        await device.works.wait()
        async with rt.trace(tmp_path / "trace.json"):
            begun = device.begun
            await asyncio.gather(*asked)
            assert (device.begun, device.at_work) == (begun, 0)


@pytest.mark.asyncio
async def test_no_more_are_at_work_than_may_be_in_flight(users_path: None) -> None:
    """`max_in_flight` holds on this way as well."""
    device = Working()
    options = RuntimeOptions(check_hazards=False, warm=False, max_in_flight=1)
    async with Runtime(device, streams=STREAMS, options=options) as rt:
        loaded = await rt.load(SOURCE)
        await asyncio.gather(*(ask(loaded, caller, 50) for caller in range(4)))

    assert device.most <= 1


@pytest.mark.asyncio
async def test_streams_go_by_priority_then_deadline_then_order() -> None:
    """Whoever waits for one; who is cancelled while it waits takes none."""
    order, told = list[str](), list[str]()
    overlapping = Overlapping(
        1, 9, asyncio.get_running_loop(), None, lambda: True, lambda: told.append("begun"), lambda: told.append("ended")
    )

    async def run(name: str, priority: int, until: float | None) -> None:
        def begin(stream: int) -> End:
            order.append(name)
            return lambda: name

        assert await overlapping.run(begin, priority, until) == name

    wanted = [("first", 9, None), ("c", 1, None), ("d", 1, None), ("b", 1, 5.0), ("cancelled", 0, None), ("a", 0, None)]
    asked = [asyncio.create_task(run(*each)) for each in wanted]
    await asyncio.sleep(0)
    asked[4].cancel()
    await asyncio.gather(*asked, return_exceptions=True)

    assert order == ["first", "a", "b", "c", "d"]
    assert told.count("ended") == len(order)
    assert len(overlapping) == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("aside", [True, False], ids=["a thread in C", "the loop's thread"])
async def test_a_real_device_gives_the_same_bits(
    aside: bool, users_path: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen callers of two sizes, some of whom leave early: as one after the other, whichever way each goes."""
    if native_submitter() is None:
        pytest.skip("only native code begins what the device does by itself")
    made, streams = OpenCLPrepared, set[int]()
    monkeypatch.setattr(opencl, "OpenCLPrepared", lambda *a, lends, **k: made(*a, lends=False, **k))
    opened = native_launcher if aside else lambda file: None
    monkeypatch.setattr(opencl.OpenCLDevice, "open_launcher", lambda self, file: opened(file))
    monkeypatch.setattr("asyncrt.runtime.request.callers_thread.direct.OVERLAP_S", 1.0)
    for name in ("begin", "hand_over"):
        monkeypatch.setattr(made, name, noting(getattr(made, name), streams))
    async with Runtime(streams=STREAMS, options=RuntimeOptions(check_hazards=False)) as rt:
        loaded = await rt.load(SOURCE)
        await loaded.ready()
        each = [(n, rows) for n in range(16) for rows in (3, 9)]
        alone = {(n, rows): (await loaded.infer(given(n, rows=rows)))["y"].tobytes() for n, rows in each}

        async def caller(n: int) -> None:
            for i in range(40):
                rows = 3 if (n + i) % 2 else 9
                if (n + i) % 11 == 0:
                    left = asyncio.create_task(loaded.infer(given(n, rows=rows)))
                    await asyncio.sleep(0)
                    left.cancel()
                    await asyncio.wait((left,))
                assert (await loaded.infer(given(n, rows=rows)))["y"].tobytes() == alone[n, rows]

        async def others() -> None:
            for rows in range(10, 22):  # new plans, which go the general way
                inputs = given(rows, rows=rows)
                np.testing.assert_allclose(expected(inputs), (await loaded.infer(inputs))["y"], rtol=1e-6)
                await asyncio.sleep(0)

        await asyncio.gather(*map(caller, range(16)))
        streams.clear()
        await asyncio.gather(*map(caller, range(16)), others())
        assert (rt.session.dispatcher.overlapping.launcher is not None) == aside
        statistics = rt.statistics()

    assert len(streams) > 1
    assert (statistics.failed, statistics.memory.leases, statistics.in_flight) == (0, 0, 0)


def noting(method: Any, streams: set[int]) -> Any:
    """Return a method of launches that notes the streams which they are begun on."""

    def noted(self: Any, *arguments: Any) -> Any:
        streams.update(a.index for a in arguments if isinstance(a, opencl.OpenCLStream))
        return method(self, *arguments)

    return noted


@pytest.mark.asyncio
async def test_a_caller_by_itself_has_the_whole_device(users_path: None) -> None:
    """Also one that asks again at once, and again: its turn of the loop ends, and it goes on in the next. Once two ask,
    both are at work."""
    device = Working()
    async with known(device) as (_, loaded):
        begun = device.begun
        await ask(loaded, 0, 100)
        alone = device.begun - begun
        device.most = 0
        await asyncio.gather(ask(loaded, 0, 100), ask(loaded, 1, 100))

    assert alone <= 3
    assert device.most == 2
    assert device.begun - begun > 150
