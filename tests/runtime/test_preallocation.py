"""Memory over many requests: growth is met in advance, results never know, and an idle runtime holds nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from asyncrt import Runtime, RuntimeOptions
from asyncrt.devices.base import Allocation, GrowsMemory
from asyncrt.devices.simulated import SimulatedDevice
from asyncrt.memory.pool import PoolStatistics
from asyncrt.runtime.model import Model

from ..builders import model, node
from ..paths import off


def growing() -> onnx.ModelProto:
    """y is what x and past say together; its arena grows with the rows of past, as a decoder's does with its cache."""
    nodes = [node("all = Concat(past, x)", axis=0), node("t = Tanh(all)"), node("y = Neg(t)")]
    return model(nodes, ["past f32[p,w]", "x f32[1,w]"], ["y"])


async def step(loaded: Model, rows: int, width: int = 256) -> bytes:
    given = np.random.default_rng(rows).standard_normal((rows + 1, width)).astype(np.float32)
    return (await loaded.infer({"past": given[:-1], "x": given[-1:]}))["y"].tobytes()


async def decode(device: str | SimulatedDevice | None, width: int = 256, **options: object) -> PoolStatistics:
    async with Runtime(device, streams=1, options=RuntimeOptions(warm=False, **options)) as rt:  # type: ignore[arg-type]
        loaded = await rt.load(growing())
        for rows in range(1, 101):
            await step(loaded, rows, width)
        return rt.statistics().memory


@pytest.mark.asyncio
@pytest.mark.parametrize(("width", "with_it", "without"), [(256, 10, 36), (8192, 20, 36)], ids=["small", "large"])
async def test_a_hundred_steps_of_growth_need_few_new_blocks(width: int, with_it: int, without: int) -> None:
    """Small steps: a block for every ten of them. Large ones: a tenth more. Without it, one for each block size."""
    ahead = await decode("simulated", width)
    exact = await decode("simulated", width, without={"preallocate"})

    assert ahead.allocated <= with_it
    assert exact.allocated >= without
    assert ahead.held <= exact.held * 5 // 4  # what became too small is gone either way


@pytest.mark.asyncio
async def test_equal_sizes_are_no_growth() -> None:
    """However many requests of one size there are, also at once, their blocks are as large as without preallocation."""
    held = []
    for preallocate in (True, False):
        async with Runtime("simulated", options=RuntimeOptions(warm=False, without=off(preallocate=preallocate))) as rt:
            loaded = await rt.load(growing())
            for _ in range(3):
                await asyncio.gather(*(step(loaded, 40) for _ in range(10)))
            held.append((rt.statistics().memory.held, rt.statistics().memory.allocated))

    assert held[0] == held[1]
    assert held[0][1] > 1


@pytest.mark.asyncio
@pytest.mark.parametrize("device", ["simulated", "host", None], ids=lambda d: d or "opencl")
async def test_results_are_the_same_bytes_with_and_without(device: str | None) -> None:
    """Growing, shrinking, jumping, one after the other and at once."""
    rows = [1, 2, 3, 4, 5, 60, 61, 62, 7, 6, 5, 90, 91, 92, 93, 1]
    results = []
    for preallocate in (True, False):
        options = RuntimeOptions(warm=False, without=off(preallocate=preallocate))
        async with Runtime(device, streams=2, options=options) as rt:
            loaded = await rt.load(growing())
            alone = [await step(loaded, r) for r in rows]
            together = await asyncio.gather(*(step(loaded, r) for r in rows))
            results.append((alone, together))

    assert results[0] == results[1]
    assert results[0][0] == results[0][1]


class HighWater(SimulatedDevice):
    """A device that remembers the most that was ever allocated."""

    most = 0

    def allocate(self, nbytes: int) -> Allocation:
        block = super().allocate(nbytes)
        self.most = max(self.most, self.allocated)
        return block


@pytest.mark.asyncio
async def test_the_limit_holds_and_refuses_nobody_for_the_sake_of_later() -> None:
    """Where only what is needed now fits, that is allocated: the last steps need all of the limit."""
    one_at_a_time, device = HighWater(), HighWater()
    await decode(one_at_a_time, without={"pool"})
    limit = one_at_a_time.most

    statistics = await decode(device, memory_limit=limit)

    assert device.most == limit
    assert statistics.allocated < 36


async def until(condition: Callable[[], object]) -> None:
    """Let the loop turn until it holds."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to that")


#: No timers but those of memory.
ALONE: Any = {"warm": False}

class Timers:
    """The timers that are set, which do not run by themselves, and the time that they go by.

    Attributes:
        waiting: In how many seconds each was to run.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._made: list[tuple[float, Callable[[], object], asyncio.TimerHandle]] = []

    @property
    def waiting(self) -> list[float]:
        return [delay for delay, _, handle in self._made if not handle.cancelled()]

    def note(self, delay: float, callback: Callable[[], object], handle: asyncio.TimerHandle) -> None:
        self._made.append((delay, callback, handle))

    def run(self, seconds: float) -> None:
        """Let so many seconds pass, and then the only timer run."""
        self.now += seconds
        (timer,) = [t for t in self._made if not t[2].cancelled()]
        timer[2].cancel()
        timer[1]()


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> Timers:
    """Those of the loop."""
    timers, call_later = Timers(), asyncio.BaseEventLoop.call_later

    def note(loop: asyncio.BaseEventLoop, delay: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        handle = call_later(loop, 3600.0, callback)
        timers.note(delay, callback, handle)
        return handle

    monkeypatch.setattr(asyncio.BaseEventLoop, "call_later", note)
    monkeypatch.setattr(asyncio.BaseEventLoop, "time", lambda loop: timers.now)
    return timers


@pytest.mark.asyncio
async def test_an_idle_runtime_gives_its_memory_back(timers: Timers) -> None:
    """The time begins with the end of the last request, starts anew with each, and ends with `close()`."""
    device = SimulatedDevice()
    async with Runtime(device, options=RuntimeOptions(idle_release_s=2.5, **ALONE)) as rt:
        loaded = await rt.load(growing())
        assert timers.waiting == []

        first = await step(loaded, 8)
        held, waiting = device.allocated, timers.waiting
        timers.run(2.5)

        assert (held > 0, waiting, device.allocated, timers.waiting) == (True, [2.5], 0, [])
        assert rt.statistics().memory.held == 0

        assert await step(loaded, 8) == first
        timers.now += 2
        assert await step(loaded, 8) == first
        timers.run(1)

        assert (device.allocated, timers.waiting) == (held, [1.5])

        timers.run(1.5)

        assert (device.allocated, timers.waiting) == (0, [])

        await step(loaded, 8)
        assert timers.waiting == [2.5]
    assert timers.waiting == []


@pytest.mark.asyncio
async def test_a_runtime_with_a_request_is_not_idle_however_long_it_takes(timers: Timers) -> None:
    """A timer that runs meanwhile says nothing; the time begins with the end of the request."""
    device = SimulatedDevice()
    async with Runtime(device, options=RuntimeOptions(idle_release_s=2.5, **ALONE)) as rt:
        loaded = await rt.load(growing())
        await step(loaded, 8)
        held = device.allocated
        task = asyncio.ensure_future(step(loaded, 8))
        await until(lambda: rt.statistics().in_flight)

        timers.run(3)
        meanwhile = timers.waiting
        await task

        assert meanwhile == []
        assert (device.allocated, timers.waiting) == (held, [2.5])


@pytest.mark.asyncio
async def test_a_cancelled_request_makes_nothing_idle_before_its_stream_has_passed(timers: Timers) -> None:
    """What it enqueued still uses its memory: the time begins when the stream has come to the end of it."""
    device = SimulatedDevice()
    async with Runtime(device, options=RuntimeOptions(**ALONE)) as rt:
        loaded = await rt.load(growing())
        task = asyncio.ensure_future(step(loaded, 8))
        await until(lambda: device.launches)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        early = timers.waiting
        await until(lambda: timers.waiting)
        timers.run(30)

        assert early == []
        assert rt.statistics().cancelled == 1
        assert rt.statistics().memory.held == 0


@pytest.mark.asyncio
async def test_memory_is_kept_where_no_time_is_given(timers: Timers) -> None:
    """`idle_release_s=None` sets no timer."""
    async with Runtime("simulated", options=RuntimeOptions(idle_release_s=None, **ALONE)) as rt:
        loaded = await rt.load(growing())
        await step(loaded, 8)

        assert timers.waiting == []
        assert rt.statistics().memory.held > 0


@pytest.mark.asyncio
async def test_no_time_at_all_gives_memory_back_in_the_next_turn() -> None:
    """With the loop's own timers: 0 seconds are 0 seconds."""
    async with Runtime("simulated", options=RuntimeOptions(warm=False, idle_release_s=0)) as rt:
        loaded = await rt.load(growing())
        await step(loaded, 8)
        await until(lambda: not rt.statistics().memory.held)

        assert rt.statistics().memory.allocated == 1


@pytest.mark.parametrize("seconds", [-1.0, float("inf"), float("nan")])
def test_idle_time_is_a_number_of_seconds(seconds: float) -> None:
    """Anything else is refused with the option's name."""
    with pytest.raises(ValueError, match=r"idle_release_s must be a number from 0 to 1000000000, got "):
        RuntimeOptions(idle_release_s=seconds)


@pytest.mark.asyncio
@pytest.mark.parametrize("checked", [True, False])
async def test_on_a_cpu_the_block_of_requests_that_come_alone_grows(
    checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was in use of it stays so, and results are what they were; also where all is checked."""
    options = {"warm": False, "check_hazards": checked}
    grown: list[int] = []
    async with Runtime(streams=1, options=RuntimeOptions(**options, without={"preallocate"})) as rt:
        device: Any = rt.session.device
        if not (isinstance(device, GrowsMemory) and rt.info.is_cpu and rt.info.shares_memory):
            pytest.skip("its memory does not grow")
        grow = device.grow

        def noted(allocation: Allocation | None, nbytes: int) -> Allocation | None:
            larger: Allocation | None = grow(allocation, nbytes)
            if allocation is not None and larger is not None:
                grown.append(nbytes)
            return larger

        monkeypatch.setattr(device, "grow", noted)
        loaded = await rt.load(growing())
        got = [await step(loaded, rows, 4096) for rows in (200, 300, 400, 250)]
        held = rt.statistics().memory.held
    async with Runtime(streams=1, options=RuntimeOptions(**options, without={"pool"})) as rt:
        loaded = await rt.load(growing())
        expected = [await step(loaded, rows, 4096) for rows in (200, 300, 400, 250)]

    assert got == expected
    assert len(grown) == 2
    assert held == grown[-1]


@pytest.mark.asyncio
async def test_who_is_ready_has_memory_that_the_system_need_not_find(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the shapes that are named, or for likely ones: no request of theirs takes a new block."""
    touched: list[Allocation] = []
    async with Runtime(streams=1, options=RuntimeOptions(without={"preallocate"})) as rt:
        device: Any = rt.session.device
        if not (isinstance(device, GrowsMemory) and rt.info.is_cpu and rt.info.shares_memory):
            pytest.skip("its memory does not grow")
        monkeypatch.setattr(device, "touch", touched.append)
        loaded = await rt.load(growing())
        assert not touched
        await loaded.ready()
        likely = rt.statistics().memory
        await step(loaded, 8, 8)
        small = rt.statistics().memory
        await loaded.ready([{"past": (n, 4096), "x": (1, 4096)} for n in (400, 200)])
        named = rt.statistics().memory
        await step(loaded, 400, 4096)
        after = rt.statistics().memory

    assert likely.allocated == small.allocated == 1
    assert named.held > likely.held
    assert (after.allocated, after.held) == (named.allocated, named.held)
    assert len(touched) == 3
