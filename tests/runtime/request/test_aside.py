"""A request that nobody is beside, and that is too long for its caller's thread, is done by one without Python."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
import pytest

from asyncrt import DeadlineExceeded, DeviceCommandError, Model, Runtime, RuntimeOptions
from asyncrt.devices.base import Prepared, Stream, Transfer
from asyncrt.devices.faults import Fault, Faults
from asyncrt.devices.opencl.drivers import INTEL_CPU
from asyncrt.devices.opencl.launcher import OpenCLLauncher
from asyncrt.layout import Array
from asyncrt.runtime.request.callers_thread.usual import ASIDE_S, BRIEF_S
from asyncrt.runtime.request.network import Network

from ...builders import model, node
from .test_callers_turns import ask
from .test_direct import PLAIN, SOURCE, Lending, expected, given, ticking

LAUNCHES = 2  # of `SOURCE`
pytestmark = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="threads tell the loop by an eventfd")


class Handed:
    """What was handed to the thread, and what has become of it."""

    def __init__(self, prepared: Any, stream: Any, writes: Sequence[Transfer], reads: Sequence[Transfer]) -> None:
        self._work = prepared, stream, writes, reads
        self._error: Exception | None = None
        self.seconds = 0.0

    def carry_out(self, device: Lending) -> None:
        prepared, stream, writes, reads = self._work
        began = device.now
        try:
            prepared.run(stream, writes, reads)
        except DeviceCommandError as error:
            self._error = error
        self.seconds = device.now - began

    def check(self) -> None:
        if self._error is not None:
            raise self._error


class Launching(Lending):
    """A device with a thread, which here is the event loop's in a later turn; it may be stopped."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.handed, self.stopped, self.closed = 0, False, False
        self._file = -1
        self._posted, self._ended = list[Handed](), list[Handed]()

    def open_launcher(self, file: int, own: Sequence[Stream] = ()) -> Launching | None:
        self._file = file
        return None if own else self

    def post(
        self,
        prepared: Prepared,
        stream: Stream | None,
        writes: Sequence[Transfer],
        reads: Sequence[Transfer],
        stop: bytearray | None = None,
    ) -> Handed:
        self.handed += 1
        handed = Handed(prepared, stream, writes, reads)
        self._posted.append(handed)
        if not self.stopped:
            asyncio.get_running_loop().call_soon(self.go_on)
        return handed

    def go_on(self) -> None:
        """Carry out what was handed over."""
        self.stopped = False
        for handed in self._posted:
            handed.carry_out(self)
            self._ended.append(handed)
        self._posted.clear()
        if self._ended:
            os.eventfd_write(self._file, 1)

    def collect(self) -> Sequence[Handed]:
        ended, self._ended = self._ended, []
        return ended

    def wait(self) -> None:
        self.go_on()

    def close(self) -> None:
        self.closed = True


@contextlib.asynccontextmanager
async def known(device: Launching) -> AsyncIterator[tuple[Runtime, Model]]:
    """A model of which one caller has had twenty answers."""
    async with Runtime(device, options=PLAIN) as rt:
        loaded = await rt.load(SOURCE)
        await ask(loaded, 0, 20)
        device.handed = 0
        yield rt, loaded


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("seconds", "handed"), [(BRIEF_S / 100, 0), (BRIEF_S, 30), (ASIDE_S, 0)], ids=["brief", "some ms", "long"]
)
async def test_what_takes_some_milliseconds_is_handed_over(seconds: float, handed: int, users_path: None) -> None:
    """Not what is brief, which its caller's thread does, and not what others would have to wait for long."""
    device = Launching(seconds)
    async with known(device) as (rt, loaded):
        async with ticking() as ticks:
            await ask(loaded, 1, 30)
            turns = ticks()
        statistics = rt.statistics()

    assert device.handed == handed
    assert turns >= handed
    assert (statistics.requests, statistics.launches) == (50, 50 * LAUNCHES)
    assert (statistics.failed, statistics.memory.leases, statistics.in_flight) == (0, 0, 0)
    assert device.closed


@pytest.mark.asyncio
async def test_who_comes_meanwhile_goes_on_behind_its_end(users_path: None) -> None:
    """The scheduler knows nothing of the one that is there, and orders nobody against it."""
    device = Launching(BRIEF_S)
    async with known(device) as (rt, loaded):
        device.stopped = True
        first = asyncio.create_task(loaded.infer(given(1)))
        await asyncio.sleep(0)
        others = [asyncio.create_task(loaded.infer(given(n, rows=n))) for n in range(2, 6)]
        for _ in range(20):
            await asyncio.sleep(0)
        assert rt.statistics().in_flight >= 1
        assert not first.done()
        assert not any(task.done() for task in others)
        device.go_on()
        np.testing.assert_allclose(expected(given(1)), (await first)["y"], rtol=1e-6)
        for n, task in enumerate(others, 2):
            np.testing.assert_allclose(expected(given(n, rows=n)), (await task)["y"], rtol=1e-6)
        assert rt.statistics().memory.leases == 0


@pytest.mark.asyncio
async def test_a_batch_goes_that_way_too(users_path: None) -> None:
    """And each of its members has its own rows."""
    device = Launching(BRIEF_S)
    async with known(device) as (_, loaded), loaded.batched(samples=[given(1), given(2, rows=2)]) as batched:
        for n in range(20):
            answer = await batched.infer(given(n))
            np.testing.assert_allclose(expected(given(n)), answer["y"], rtol=1e-6)

    assert device.handed >= 10


@pytest.mark.asyncio
@pytest.mark.parametrize("close", ["runtime", "model"])
async def test_who_is_cancelled_leaves_its_memory_until_the_thread_is_done(
    close: str, users_path: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the model nor the runtime gives anything back before."""
    device, at_work, closed = Launching(BRIEF_S), list[int](), Network.close

    def noted(self: Network) -> None:
        at_work.append(len(self.session.dispatcher.overlapping))
        closed(self)

    monkeypatch.setattr(Network, "close", noted)
    async with known(device) as (rt, loaded):
        device.stopped = True
        left = asyncio.create_task(loaded.infer(given(1)))
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.wait((left,))
        assert left.cancelled()
        assert rt.statistics().memory.leases == 1
        closing = asyncio.create_task(rt.close() if close == "runtime" else rt.unload(loaded))
        for _ in range(20):
            await asyncio.sleep(0)
        device.go_on()
        await closing
        statistics = rt.statistics()

    assert device.handed == 1
    assert set(at_work) == {0}
    assert (statistics.memory.leases, statistics.in_flight, statistics.cancelled) == (0, 0, 1)


@pytest.mark.asyncio
async def test_one_that_fails_is_its_callers_failure(users_path: None) -> None:
    """And the next one is answered."""
    device = Launching(BRIEF_S)
    async with known(device) as (rt, loaded):
        device.faults = Faults([Fault("command", 2)])
        with pytest.raises(DeviceCommandError):
            await loaded.infer(given(1))
        await ask(loaded, 1, 5)
        statistics = rt.statistics()

    assert device.handed >= 5
    assert (statistics.failed, statistics.memory.leases, statistics.in_flight) == (1, 0, 0)


@pytest.mark.asyncio
async def test_what_is_too_late_is_not_handed_over(users_path: None) -> None:
    """It goes the general way, which says so."""
    device = Launching(BRIEF_S)
    async with known(device) as (_, loaded):
        with pytest.raises(DeadlineExceeded):
            await loaded.infer(given(1), deadline=0.0)

    assert device.handed == 0


@pytest.mark.asyncio
async def test_on_a_real_device_the_bits_are_those_of_the_general_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes in turns, and who leaves early, disturb nobody."""
    posted, post = 0, OpenCLLauncher.post

    def counted(self: OpenCLLauncher, *work: Any) -> Any:
        nonlocal posted
        posted += 1
        return post(self, *work)

    monkeypatch.setattr(OpenCLLauncher, "post", counted)
    weights = np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32)
    source = model(
        [node("h = MatMul(x, w)"), node("t = Tanh(h)"), node("y = MatMul(t, w)")], ["x f32[a,512]"], ["y"],
        constants={"w": weights},
    )  # fmt: skip

    def rows(n: int) -> dict[str, Array]:
        return {"x": np.random.default_rng(n).standard_normal((256 + 64 * (n % 2), 512)).astype(np.float32)}

    answers: dict[str, list[bytes]] = {}
    for way in ("general", "aside"):
        options = RuntimeOptions(check_hazards=False, without={"direct"} if way == "general" else set())
        async with Runtime(options=options) as rt:
            loaded = await rt.load(source)
            await loaded.ready()
            for n in range(24):
                await loaded.infer(rows(n))
            before = posted
            answers[way] = []
            for n in range(30):
                if n % 5 == 0:
                    left = asyncio.create_task(loaded.infer(rows(n)))
                    await asyncio.sleep(0)
                    left.cancel()
                    await asyncio.wait((left,))
                answers[way].append((await loaded.infer(rows(n)))["y"].tobytes())
            statistics = rt.statistics()
            info = rt.session.device.info
        assert (statistics.failed, statistics.memory.leases, statistics.in_flight) == (0, 0, 0)
        if way == "general":
            assert posted == before
        elif (info.platform, info.kind) == INTEL_CPU:
            assert posted > before

    assert answers["aside"] == answers["general"]
