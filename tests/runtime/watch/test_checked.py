"""Runtimes whose order is checked: those that keep it are left alone, and every wait that is forgotten is found."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest

import asyncrt.debug
from asyncrt import AsyncrtError, HazardError, Runtime, RuntimeOptions
from asyncrt.devices.base import Mark
from asyncrt.devices.simulated import SimulatedDevice, SimulatedStream
from asyncrt.events import Event, Timeline
from asyncrt.layout import Array
from asyncrt.memory.hazards import Enqueued, Entry, Seen, Waited, check, overlap
from asyncrt.memory.pool import Acquired, MemoryPool
from asyncrt.runtime.loop.dispatcher import Dispatcher
from asyncrt.runtime.model import Model
from asyncrt.runtime.watch.watched import WatchedStream

from ...builders import model, node
from ...memory.orders import brute_force

ROWS = 200


def network() -> onnx.ModelProto:
    """Two chunks: how many elements of x are not zero decides the shape of what comes after."""
    nodes = [
        node("a = Tanh(x)"),
        node("t = Transpose(a)", perm=[1, 0]),
        node("b = MatMul(x, w)"),
        node("places = NonZero(b)"),
        node("p = Transpose(places)", perm=[1, 0]),
        node("found = GatherND(b, p)"),
        node("y = Neg(found)"),
        node("z = Neg(t)"),
    ]
    return model(nodes, ["x f32[n,m]"], ["y", "z"], {"w": np.eye(16, dtype=np.float32)})


def given(seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal((ROWS + seed % 3, 16)).astype(np.float32)


def cancel_every_third(rt: Runtime) -> None:
    """From now on every third chunk's request is cancelled when the chunk has been enqueued.

    What a cancelled request has enqueued still runs, and the next one takes over its block.
    """
    launched, count = rt.session.dispatcher.launched, itertools.count(1)

    def launch(request: int, stream: int, keep: object) -> Event:
        event = launched(request, stream, keep)
        task = asyncio.current_task()
        if next(count) % 3 == 0 and task is not None:
            task.cancel()
        return event

    rt.session.dispatcher.launched = launch  # type: ignore[method-assign]


async def together(loaded: Model, count: int) -> list[Exception]:
    """Requests at once; returns what they raised other than that they were cancelled."""
    arrays = [given(i) for i in range(count)]
    outcomes = await asyncio.gather(*(loaded.infer({"x": x}) for x in arrays), return_exceptions=True)
    for x, out in zip(arrays, outcomes, strict=True):
        if not isinstance(out, BaseException):
            np.testing.assert_allclose(-x.reshape(-1), out["y"], rtol=1e-6)
            np.testing.assert_allclose(-np.tanh(x).T, out["z"], rtol=1e-5, atol=1e-6)
    return [out for out in outcomes if isinstance(out, Exception)]


#: So little memory that requests take over blocks that other streams are not done with.
TIGHT = RuntimeOptions(warm=False, check_hazards=True, memory_limit=6 << 16, without={"preallocate"}, max_in_flight=2)


async def passed(rt: Runtime) -> None:
    """Return when the streams have passed what cancelled requests have enqueued."""
    while rt.session.dispatcher.busy:
        await rt.session.dispatcher.progress()


async def record(device: str | SimulatedDevice | None, count: int = 12) -> list[Entry]:
    async with Runtime(device, streams=3, options=TIGHT) as rt:
        cancel_every_third(rt)
        with asyncrt.debug.recording(rt) as log:
            assert await together(await rt.load(network()), count) == []
            await passed(rt)
        report = asyncrt.debug.check(rt)

        assert report.commands == sum(isinstance(e, Enqueued) for e in log)
        assert (report.in_flight, report.hazards) == (0, ())
    return log


@pytest.mark.asyncio
@pytest.mark.parametrize("device", ["simulated", "host", None], ids=lambda d: d or "opencl")
async def test_a_runtime_that_keeps_order_is_left_alone(device: str | None) -> None:
    """Requests at once on three streams, in memory for few; by the checker, and by a search for paths."""
    log = await record(device)

    assert check(log) == []
    assert brute_force(log, overlap) == set()


@pytest.mark.asyncio
async def test_each_wait_and_each_thing_seen_is_missed_where_nothing_else_implies_it() -> None:
    """Taken out of a record one at a time: what is reported is what a search for paths finds, and it is something."""
    log = await record(SimulatedDevice(3))
    outcomes: dict[type, set[bool]] = {Waited: set(), Seen: set()}
    for place, entry in enumerate(log):
        if isinstance(entry, Waited | Seen):
            without = [*log[:place], *log[place + 1 :]]
            missed = bool(check(without))
            outcomes[type(entry)].add(missed)

            assert bool(brute_force(without, overlap)) == missed, entry

    assert outcomes == {Waited: {True}, Seen: {True, False}}


class DropsAWait(WatchedStream):
    """Passes everything on but one wait."""

    def __init__(self, stream: WatchedStream, number: int, counter: list[int]) -> None:
        super().__init__(stream)
        self.number, self.counter = number, counter

    def wait_for(self, marks: Sequence[Mark]) -> None:
        kept = []
        for mark in marks:
            if self.counter[0] != self.number:
                kept.append(mark)
            self.counter[0] += 1
        if kept:
            super().wait_for(kept)


async def run_without(number: int) -> tuple[int, HazardError | None]:
    """Run without the wait of that number; returns how many there were, and what was raised."""
    counter = [0]
    async with Runtime(SimulatedDevice(3), streams=3, options=TIGHT) as rt:
        cancel_every_third(rt)
        loaded = await rt.load(network())
        streams = rt.session.dispatcher.streams
        for i, stream in enumerate(streams):
            assert isinstance(stream, WatchedStream)
            streams[i] = DropsAWait(stream, number, counter)
        errors = await together(loaded, 40)
    assert all(isinstance(e, HazardError) for e in errors)
    return counter[0], errors[0] if errors else None  # type: ignore[return-value]


@pytest.mark.asyncio
async def test_a_wait_that_a_stream_drops_is_raised_before_the_command_that_needs_it() -> None:
    """Each in turn, while it happens. Both requests are named, and the block that they share."""
    count, error = await run_without(-1)
    raised = [(await run_without(n))[1] for n in range(count)]

    assert error is None
    assert count >= 3
    for e in raised:
        assert e is not None
        assert "taking its arena" in e.message
        assert e.message.count("request ") == 2
        assert "does not wait for command" in e.detail


@pytest.mark.asyncio
async def test_a_pool_that_forgets_who_uses_a_block_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the bytes that both use would not meet: a block that is given out belongs to one."""
    acquire = MemoryPool.acquire

    def forgetful(pool: MemoryPool, nbytes: int, stream: int, **how: Any) -> Acquired:
        return acquire(pool, nbytes, stream, **how)._replace(waits=())

    monkeypatch.setattr(MemoryPool, "acquire", forgetful)
    async with Runtime(SimulatedDevice(3), streams=3, options=TIGHT) as rt:
        cancel_every_third(rt)
        errors = await together(await rt.load(network()), 12)

        assert {type(e) for e in errors} == {HazardError}
        assert "taking its arena" in str(errors[0])
        assert asyncrt.debug.check(rt).hazards


@pytest.mark.asyncio
async def test_results_that_are_handed_out_before_they_have_arrived_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The array that a read fills is looked at while the read is on its way."""

    async def at_once(dispatcher: Dispatcher, request: int) -> None:
        pass

    async with Runtime("simulated", options=TIGHT) as rt:
        loaded = await rt.load(network())
        monkeypatch.setattr(Dispatcher, "passed", at_once)
        with pytest.raises(HazardError, match="reading its results"):
            await loaded.infer({"x": given(0)})


@pytest.mark.asyncio
async def test_memory_that_is_released_while_it_is_used_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timeline that says too early that a stream has passed makes the pool give a block back too early."""
    async with Runtime("simulated", streams=1, options=TIGHT) as rt:
        loaded = await rt.load(network())
        task = asyncio.ensure_future(loaded.infer({"x": given(0)}))
        for _ in range(1000):
            await asyncio.sleep(0)
            if rt.session.dispatcher.busy:
                break
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        with monkeypatch.context() as patch:
            patch.setattr(Timeline, "reached", lambda self, event: True)
            with pytest.raises(HazardError, match="its release"):
                rt.session.pool.trim()


@pytest.mark.asyncio
async def test_nothing_of_it_is_there_where_it_is_off() -> None:
    """The device's own streams are used, nobody is told anything, and there is no report."""
    async with Runtime("simulated", options=RuntimeOptions(warm=False, check_hazards=False)) as rt:
        assert await together(await rt.load(network()), 4) == []
        assert {type(s) for s in rt.session.dispatcher.streams} == {SimulatedStream}
        assert type(rt.session.dispatcher.timeline) is Timeline
        with pytest.raises(AsyncrtError, match="hazards of this runtime are not checked"):
            asyncrt.debug.check(rt)


def test_the_environment_decides_where_the_options_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where neither does, nothing is checked."""
    monkeypatch.setenv("ASYNCRT_CHECK_HAZARDS", "1")
    asked = [RuntimeOptions().check_hazards, RuntimeOptions(check_hazards=False).check_hazards]
    monkeypatch.setenv("ASYNCRT_CHECK_HAZARDS", "0")
    asked += [RuntimeOptions().check_hazards, RuntimeOptions(check_hazards=True).check_hazards]

    monkeypatch.delenv("ASYNCRT_CHECK_HAZARDS")
    asked.append(RuntimeOptions().check_hazards)

    assert asked == [True, False, False, True, False]


@pytest.mark.asyncio
async def test_a_long_run_remembers_what_is_in_flight_alone() -> None:
    """After hundreds of requests nothing is kept of those that are over."""
    async with Runtime("simulated", streams=3, options=TIGHT) as rt:
        cancel_every_third(rt)
        loaded = await rt.load(network())
        for _ in range(20):
            assert await together(loaded, 12) == []
            await passed(rt)

            assert asyncrt.debug.check(rt).in_flight == 0
        checker = rt.checks.checker if rt.checks else None

        assert checker is not None
        assert checker.memories == 0
        assert checker.marks <= 1  # the last upload of a constant may be one
