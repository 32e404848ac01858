"""Deadlines: what is launched in time counts, what is late is not launched, and nobody else is disturbed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import attrs
import numpy as np
import onnx
import pytest
import pytest_asyncio

from asyncrt import DeadlineExceeded, Runtime, RuntimeOptions, load_sync
from asyncrt.devices.simulated import SimulatedDevice

from ...builders import model, node

ONE_AT_A_TIME = RuntimeOptions(max_in_flight=1)
X = np.ones((3, 4), np.float32)


def network() -> onnx.ModelProto:
    return model([node("t = Tanh(x)"), node("y = Neg(t)")], ["x f32[n,m]"], ["y"])


def two_chunks() -> onnx.ModelProto:
    """The shape of the result is computed on the device."""
    nodes = [node("t = Tanh(x)"), node("p = NonZero(t)"), node("y = Neg(p)")]
    return model(nodes, ["x f32[n,m]"], ["y"])


@attrs.define
class Clock:
    """Stands still unless it is told."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@pytest_asyncio.fixture(params=(None, "host", "simulated"), ids=lambda d: d or "opencl")
async def rt(request: pytest.FixtureRequest) -> AsyncIterator[Runtime]:
    """A runtime in which one request runs at a time, and of which nothing may be left behind."""
    async with Runtime(request.param, options=ONE_AT_A_TIME) as runtime:
        yield runtime
        runtime.session.dispatcher.state.check()
        assert runtime.session.dispatcher.settled
    statistics = runtime.statistics()
    assert (statistics.in_flight, statistics.memory.leases, statistics.memory.active) == (0, 0, 0)


@pytest.mark.asyncio
async def test_a_request_that_is_late_from_the_start_launches_nothing(rt: Runtime) -> None:
    """It is told so, with a builtin's class as well; the next one runs."""
    loaded = await rt.load(network())

    for deadline in (0, -1.0):
        with pytest.raises(DeadlineExceeded, match="before all of it was launched") as caught:
            await loaded.infer({"x": X}, deadline=deadline)
        assert isinstance(caught.value, TimeoutError)
    assert rt.statistics().launches == 0
    assert (await loaded.infer({"x": X}, deadline=60))["y"].shape == X.shape


@pytest.mark.asyncio
async def test_a_deadline_wakes_a_request_that_waits(rt: Runtime) -> None:
    """Nothing else has to happen for it; who waits without one waits on."""
    loaded = await rt.load(network())
    await rt.session.dispatcher.admit(0)
    patient = asyncio.create_task(loaded.infer({"x": X}))
    later = asyncio.create_task(loaded.infer({"x": X}, deadline=3600))

    with pytest.raises(DeadlineExceeded):
        await loaded.infer({"x": X}, deadline=0.001)

    assert rt.statistics().launches == 0
    rt.session.dispatcher.end(0)
    assert (await later)["y"].tobytes() == (await patient)["y"].tobytes()


@pytest.mark.asyncio
async def test_what_waits_when_time_has_passed_is_not_launched(rt: Runtime) -> None:
    """Whatever happens first, the loop's timer or its turn: of two that wait one is late by then."""
    loaded = await rt.load(network())
    await loaded.infer({"x": X})
    launches = rt.statistics().launches
    clock = rt.session.dispatcher.clock = Clock()  # type: ignore[method-assign]
    await rt.session.dispatcher.admit(0)
    late = asyncio.create_task(loaded.infer({"x": X}, deadline=1.0))
    in_time = asyncio.create_task(loaded.infer({"x": X}, deadline=2.0))
    await asyncio.sleep(0)
    clock.now += 1.0

    rt.session.dispatcher.end(0)

    with pytest.raises(DeadlineExceeded):
        await late
    assert (await in_time)["y"].shape == X.shape
    assert rt.statistics().launches == 2 * launches


@pytest.mark.asyncio
async def test_what_was_launched_in_time_counts(rt: Runtime) -> None:
    """However long the device takes for it; an error would throw away what has been done."""
    loaded = await rt.load(network())
    clock = rt.session.dispatcher.clock = Clock()  # type: ignore[method-assign]
    launched = rt.session.dispatcher.launched

    def launch(*arguments: object) -> object:
        clock.now += 5.0
        return launched(*arguments)  # type: ignore[arg-type]

    rt.session.dispatcher.launched = launch  # type: ignore[method-assign,assignment]

    assert (await loaded.infer({"x": X}, deadline=1.0))["y"].shape == X.shape


@pytest.mark.asyncio
async def test_a_chunk_after_the_deadline_is_not_launched(rt: Runtime) -> None:
    """A request of two: the first was in time, the second would not be."""
    loaded = await rt.load(two_chunks())
    await loaded.infer({"x": X})
    launches = rt.statistics().launches
    clock = rt.session.dispatcher.clock = Clock()  # type: ignore[method-assign]
    passed = rt.session.dispatcher.passed

    async def wait(request: int) -> None:
        await passed(request)
        clock.now += 5.0

    rt.session.dispatcher.passed = wait  # type: ignore[method-assign]

    with pytest.raises(DeadlineExceeded):
        await loaded.infer({"x": X}, deadline=1.0)

    assert launches < rt.statistics().launches < 2 * launches


@pytest.mark.asyncio
async def test_a_request_that_gets_its_memory_too_late_launches_nothing(rt: Runtime) -> None:
    """It had its turn in time, and then waited for memory."""
    loaded = await rt.load(network())
    clock = rt.session.dispatcher.clock = Clock()  # type: ignore[method-assign]
    acquire = rt.session.pool.acquire

    def slow(*arguments: Any, **named: Any) -> Any:
        clock.now += 5.0
        return acquire(*arguments, **named)

    rt.session.pool.acquire = slow  # type: ignore[method-assign]

    with pytest.raises(DeadlineExceeded):
        await loaded.infer({"x": X}, deadline=1.0)

    assert rt.statistics().launches == 0


@pytest.mark.asyncio
async def test_the_tighter_deadline_goes_first() -> None:
    """Among requests of one priority; those without go last."""
    async with Runtime(SimulatedDevice(), options=ONE_AT_A_TIME) as rt:
        loaded = await rt.load(network())
        done: list[str] = []

        async def request(name: str, priority: int, deadline: float | None) -> None:
            await loaded.infer({"x": X}, priority=priority, deadline=deadline)
            done.append(name)

        await rt.session.dispatcher.admit(0)
        async with asyncio.TaskGroup() as group:
            for name, priority, deadline in (
                ("whenever", 0, None), ("soon", 0, 200.0), ("at once", 0, 100.0), ("urgent", -1, None),
            ):  # fmt: skip
                group.create_task(request(name, priority, deadline))
            await asyncio.sleep(0)
            rt.session.dispatcher.end(0)

        assert done == ["urgent", "at once", "soon", "whenever"]


@pytest.mark.asyncio
async def test_a_deadline_that_is_no_number_is_refused() -> None:
    """Nothing could be compared with it."""
    async with Runtime("host") as rt:
        loaded = await rt.load(network())

        with pytest.raises(ValueError, match="got nan"):
            await loaded.infer({"x": X}, deadline=float("nan"))


def test_threads_have_deadlines_too() -> None:
    """`infer_sync` takes what `infer` takes."""
    with load_sync(network(), "host") as loaded:
        with pytest.raises(DeadlineExceeded):
            loaded.infer_sync({"x": X}, deadline=0)
        assert loaded.infer_sync({"x": X}, deadline=60)["y"].shape == X.shape
