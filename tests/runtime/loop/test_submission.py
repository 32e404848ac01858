"""A long plan is enqueued by a thread: the loop goes on, the order stays, and whatever interrupts it leaves nothing."""

from __future__ import annotations

import asyncio
import ctypes
import queue
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from asyncrt import DeviceCommandError, Runtime, RuntimeOptions
from asyncrt.devices.base import Allocation, PreparedLaunch, Stream
from asyncrt.devices.faults import Fault, Faults
from asyncrt.devices.opencl import device as opencl
from asyncrt.devices.opencl import prepared as opencl_preset
from asyncrt.devices.opencl import submit as opencl_submit
from asyncrt.devices.simulated import SimulatedDevice, SimulatedPrepared
from asyncrt.layout import Array
from asyncrt.runtime.execute import prepared_launches as preset
from asyncrt.runtime.execute.device_copies import DeviceCopies
from asyncrt.runtime.model import Model

from ...builders import model, node

WEIGHTS = np.random.default_rng(0).standard_normal((16, 24)).astype(np.float32)
LONG = model(
    [node("t = Transpose(x)", perm=[0, 2, 1]), node("m = MatMul(t, w)"), node("s = Softmax(m)"), node("y = Neg(s)")],
    ["x f32[a,16,b]"], ["y"], {"w": WEIGHTS},
)  # fmt: skip
SHORT = model([node("y = Neg(x)")], ["x f32[n]"], ["y"])


class SlowDevice(SimulatedDevice):
    """A device whose driver takes launches of long plans one by one, when it is allowed to."""

    def __init__(self) -> None:
        super().__init__(4)
        self.allowed = threading.Semaphore(0)
        #: The threads that began to enqueue, by name.
        self.begun = queue.SimpleQueue[str]()
        #: Puts something in for each launch that was taken.
        self.taken = queue.SimpleQueue[None]()
        self.refuses = False

    def prepare(
        self, launches: Sequence[PreparedLaunch], memory: Sequence[Allocation], native: bool = True
    ) -> SimulatedPrepared:
        return _SlowPrepared(self, launches, memory)

    async def entered(self) -> str:
        """Return the thread that has begun to enqueue."""
        return await asyncio.to_thread(self.begun.get)

    def allow(self, launches: int = 1000) -> None:
        """Let the driver take so many more."""
        self.allowed.release(launches)

    async def take(self, launches: int) -> None:
        """Return when the driver has taken so many more."""
        self.allow(launches)
        for _ in range(launches):
            await asyncio.to_thread(self.taken.get)


class _SlowPrepared(SimulatedPrepared):
    def __init__(self, device: SlowDevice, launches: Sequence[PreparedLaunch], memory: Sequence[Allocation]) -> None:
        self._device = device
        super().__init__(launches, memory)
        self.long = len(launches) > 1

    def bind(self, memory: Sequence[Allocation]) -> None:
        assert not self.__dict__.get("busy"), "a thread enqueues these launches"
        super().bind(memory)

    def launch(self, stream: Stream, stop: bytearray | None = None) -> None:
        if not self.long:
            return super().launch(stream)
        assert stop is not None
        self._device.begun.put(threading.current_thread().name)
        for launch in self._bound:
            self._device.allowed.acquire()
            if stop[0]:
                return None
            if self._device.refuses:
                raise DeviceCommandError("the driver refused a launch")
            stream.launch(*launch)
            self._device.taken.put(None)
        return None


def given(size: int, seed: int = 0) -> dict[str, Array]:
    return {"x": np.random.default_rng(seed).standard_normal((2, 16, size)).astype(np.float32)}


def expected(inputs: dict[str, Array]) -> Array:
    """What LONG gives, calculated here."""
    m = inputs["x"].transpose(0, 2, 1).astype(np.float64) @ WEIGHTS
    e = np.exp(m - m.max(-1, keepdims=True))
    result: Array = -e / e.sum(-1, keepdims=True)
    return result


def right(inputs: dict[str, Array], outputs: dict[str, Array]) -> None:
    np.testing.assert_allclose(outputs["y"], expected(inputs), rtol=1e-4, atol=1e-6)


async def turns(count: int = 50) -> None:
    """Let everything that can go on do so."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> SlowDevice:
    monkeypatch.setattr(preset, "OFTEN", 1)
    return SlowDevice()


@pytest_asyncio.fixture
async def rt(device: SlowDevice) -> AsyncIterator[Runtime]:
    """A runtime with one stream, which gives all of its memory back."""
    async with Runtime(device, streams=1, options=options()) as runtime:
        yield runtime
        device.allow()
    memory = runtime.statistics().memory
    assert (memory.leases, memory.active, memory.held) == (0, 0, 0)


def options() -> RuntimeOptions:
    return RuntimeOptions(warm=False, check_hazards=False, without={"fuse"})


async def loaded(rt: Runtime) -> Model:
    """The long model, after a request: the next one is enqueued by a thread."""
    result = await rt.load(LONG)
    await result.infer(given(5))
    return result


@pytest.mark.asyncio
async def test_the_loop_goes_on_while_a_long_plan_is_enqueued(rt: Runtime, device: SlowDevice) -> None:
    """Whatever the driver does; the answer is what it always is."""
    long, before = await loaded(rt), device.launches
    request = asyncio.ensure_future(long.infer(given(5, 1)))
    thread = await device.entered()

    await device.take(2)
    done, launched = request.done(), device.launches
    device.allow()

    assert launched == before + 2
    assert thread == "asyncrt-submit-0"
    assert not done
    right(given(5, 1), await request)


@pytest.mark.asyncio
async def test_nobody_else_enqueues_on_that_stream_meanwhile(rt: Runtime, device: SlowDevice) -> None:
    """A short request waits its turn, and so does another long one; each has its own answer."""
    long, short = await loaded(rt), await rt.load(SHORT)
    await short.infer({"x": np.ones(3, np.float32)})
    first = asyncio.ensure_future(long.infer(given(5, 1)))
    await device.entered()
    behind = short.infer({"x": np.full(3, 2, np.float32)}), long.infer(given(5, 2))
    others = [asyncio.ensure_future(request) for request in behind]
    before = device.launches

    await turns()
    launched, done = device.launches, [f.done() for f in (first, *others)]
    device.allow()

    assert launched == before
    assert done == [False] * 3
    right(given(5, 1), await first)
    assert (await others[0])["y"].tolist() == [-2] * 3
    right(given(5, 2), await others[1])


@pytest.mark.asyncio
async def test_nor_does_who_copies_what_sequences_keep(rt: Runtime, device: SlowDevice) -> None:
    """New memory is filled and copied to behind the long plan, not between two of its launches."""
    long = await loaded(rt)
    request = asyncio.ensure_future(long.infer(given(5, 1)))
    await device.entered()
    moves = DeviceCopies(rt.session.tools)
    moves.allocate(64, zeroed=True)
    before = device.faults.calls["fill"]
    copying = asyncio.ensure_future(long.network.move(moves))

    await turns()
    filled, done = device.faults.calls["fill"], copying.done()
    device.allow()

    assert filled == before
    assert not done
    right(given(5, 1), await request)
    (lease,), after = await copying
    assert device.faults.calls["fill"] == before + 1
    lease.drop(after=after)


@pytest.mark.asyncio
async def test_other_streams_go_on(device: SlowDevice) -> None:
    """A short request there is answered before the long one is even enqueued."""
    async with Runtime(device, streams=2, options=options()) as rt:
        long, short = await loaded(rt), await rt.load(SHORT)
        first = asyncio.ensure_future(long.infer(given(5, 1)))
        await device.entered()

        answers = [await short.infer({"x": np.full(3, n, np.float32)}) for n in range(4)]
        done = first.done()
        device.allow()

        assert [a["y"].tolist() for a in answers] == [[-n] * 3 for n in range(4)]
        assert not done
        right(given(5, 1), await first)


@pytest.mark.asyncio
async def test_a_request_that_is_cancelled_meanwhile_stops_its_thread(rt: Runtime, device: SlowDevice) -> None:
    """Once the driver has taken what it was given; what was enqueued runs out, and its memory is used behind it."""
    long, before = await loaded(rt), device.launches
    request = asyncio.ensure_future(long.infer(given(5, 1)))
    await device.entered()
    await device.take(1)

    request.cancel()
    await turns()
    request.cancel()  # who is impatient changes nothing
    await turns()
    still = request.done()
    device.allow()
    with pytest.raises(asyncio.CancelledError):
        await request

    assert not still
    assert device.launches == before + 1
    right(given(5, 2), await long.infer(given(5, 2)))
    assert rt.statistics().cancelled == 1


@pytest.mark.asyncio
async def test_a_request_that_waits_its_turn_may_be_cancelled(rt: Runtime, device: SlowDevice) -> None:
    """At once: nothing of it is enqueued."""
    long = await loaded(rt)
    first = asyncio.ensure_future(long.infer(given(5, 1)))
    await device.entered()
    second = asyncio.ensure_future(long.infer(given(5, 2)))
    await turns()

    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    done = first.done()
    device.allow()

    assert not done
    right(given(5, 1), await first)


@pytest.mark.asyncio
async def test_a_refused_launch_is_the_requests_own_error(rt: Runtime, device: SlowDevice) -> None:
    """As where no thread is in between; others are served, of those that wait their turn as well."""
    long = await loaded(rt)
    device.refuses = True
    first = asyncio.ensure_future(long.infer(given(5, 1)))
    await device.entered()
    second = asyncio.ensure_future(long.infer(given(5, 2)))
    await turns()
    device.allow(1)

    with pytest.raises(DeviceCommandError, match="refused a launch"):
        await first
    device.refuses = False
    device.allow()

    right(given(5, 2), await second)
    right(given(5, 3), await long.infer(given(5, 3)))


@pytest.mark.asyncio
async def test_a_failure_before_it_that_is_told_meanwhile_is_not_its_own(rt: Runtime, device: SlowDevice) -> None:
    """The driver lets the copy fail that the request has enqueued already, so it runs again; the other one failed."""
    long, short = await loaded(rt), await rt.load(SHORT)
    await short.infer({"x": np.ones(3, np.float32)})
    device.spreads, device.faults = True, Faults([Fault("command", 2)])
    culprit = asyncio.ensure_future(short.infer({"x": np.ones(3, np.float32)}))
    request = asyncio.ensure_future(long.infer(given(5, 1)))
    await device.entered()

    with pytest.raises(DeviceCommandError, match="command 2 failed"):
        await culprit
    device.allow()

    right(given(5, 1), await request)
    assert rt.statistics().failed == 1


@pytest.mark.asyncio
async def test_what_a_thread_enqueues_is_not_bound_to_other_memory(
    device: SlowDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is one set of launches, and a request on another stream that has other memory: it does without."""
    monkeypatch.setattr(preset, "_SETS", 1)
    async with Runtime(device, streams=2, options=options()) as rt:
        long = await loaded(rt)
        first = asyncio.ensure_future(long.infer(given(5, 1)))
        await device.entered()

        second = await long.infer(given(5, 2))
        done = first.done()
        device.allow()

        assert not done
        right(given(5, 2), second)
        right(given(5, 1), await first)


@pytest.mark.asyncio
async def test_a_trace_begins_between_chunks(rt: Runtime, device: SlowDevice, tmp_path: Path) -> None:
    """It exchanges the streams, so it waits until no thread is about to enqueue more to the old ones."""
    long = await loaded(rt)
    first = asyncio.ensure_future(long.infer(given(5, 1)))
    await device.entered()
    tracing: list[str] = []

    async def trace() -> None:
        async with rt.trace(tmp_path / "trace.json"):
            tracing.append("begun")
            right(given(5, 2), await long.infer(given(5, 2)))

    traced = asyncio.ensure_future(trace())
    await turns()
    before = list(tracing)
    device.allow()
    await traced

    assert before == []
    assert tracing == ["begun"]
    right(given(5, 1), await first)
    assert '"Softmax' in (tmp_path / "trace.json").read_text()


@pytest.mark.asyncio
async def test_a_runtime_that_is_closed_waits_for_its_threads(device: SlowDevice) -> None:
    """The request has its answer, and all memory comes back."""
    rt = Runtime(device, streams=1, options=options())
    await rt.open()
    long = await loaded(rt)
    first = asyncio.ensure_future(long.infer(given(5, 1)))
    await device.entered()
    closing = asyncio.ensure_future(rt.close())
    await turns()

    closed = closing.done()
    device.allow()
    await closing

    assert not closed
    right(given(5, 1), await first)
    assert rt.statistics().memory.leases == 0
    assert device.allocated == 0


@pytest.fixture
def native(submit: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Let a real driver's plans be long, and return what counts the threads that enqueued one."""
    functions = opencl_submit.loaded_functions()
    assert functions is not None
    addresses = [ctypes.cast(f, ctypes.c_void_p).value or 0 for f in functions]
    threads: list[str] = []

    class Noting(opencl_preset.OpenCLPrepared):
        def launch(self, stream: Any, stop: bytearray | None = None) -> None:
            threads.append(threading.current_thread().name)
            super().launch(stream, stop)

    monkeypatch.setattr(opencl, "native_submitter", lambda: opencl_submit.NativeSubmitter(submit, *addresses))
    monkeypatch.setattr(opencl, "OpenCLPrepared", Noting)
    monkeypatch.setattr(opencl, "LONG_CPU", 2)
    monkeypatch.setattr(opencl, "LONG_GPU", 2)
    monkeypatch.setattr(preset, "OFTEN", 1)
    return lambda: len([t for t in threads if t.startswith("asyncrt-submit")])


@pytest.mark.asyncio
@pytest.mark.parametrize("streams", [1, 3])
async def test_many_at_once_on_a_real_device(streams: int, native: Callable[[], int]) -> None:
    """Of three signatures, over and over, some cancelled at whatever point: each has the bytes it has alone."""
    inputs = [given((5, 9, 4)[i % 3], i) for i in range(24)]
    async with Runtime(streams=streams, options=RuntimeOptions(without={"prepared_launches", "fuse"})) as rt:
        alone = await rt.load(LONG)
        wanted = [(await alone.infer(i))["y"].tobytes() for i in inputs]
    async with Runtime(streams=streams, options=options()) as rt:
        long = await rt.load(LONG)
        for steps in range(12):
            tasks = [asyncio.ensure_future(long.infer(i)) for i in inputs]
            await turns(steps)
            for task in tasks[::5]:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            for number, result in enumerate(results):
                if isinstance(result, dict):
                    assert result["y"].tobytes() == wanted[number]
                else:
                    assert isinstance(result, asyncio.CancelledError)
                    assert number % 5 == 0
        statistics = rt.statistics()

    assert native() > 0
    assert statistics.failed == 0
    assert statistics.memory.leases == 0
