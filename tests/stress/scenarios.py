"""A few requests at once on a simulated device, small enough to be run thousands of times; and what must hold after.

Of the two chunks of a request the second needs a value that the first computes. Memory is so short that requests wait
for it and take over blocks that another stream is not done with, and constants are brought by the requests themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import attrs
import numpy as np
import onnx

from asyncrt import Model, Runtime, RuntimeOptions
from asyncrt.devices.simulated import SimulatedDevice
from asyncrt.events import Event
from asyncrt.layout import Array

from ..builders import i64, model, node
from ..paths import on_path, prepared_soon

_T = TypeVar("_T")

TIGHT = RuntimeOptions(warm=False, memory_limit=5 << 12, without={"preallocate"}, max_in_flight=3)
ROOMY = RuntimeOptions(warm=False)
SPREAD = attrs.evolve(ROOMY, branches=True, max_in_flight=1)
"""Each request has all streams, so that its branches are on several."""


@functools.cache
def two_chunks() -> bytes:
    """``y = [tanh(x) w repeated as often as x's largest element says]``, ``z`` what the first chunk has."""
    nodes = [
        node("t = Tanh(x)"),
        node("p = MatMul(t, w)"),
        node("m = ReduceMax(x)", keepdims=0),
        node("k = Cast(m)", to=onnx.TensorProto.INT64),
        node("r = Range(zero, k, one)"),
        node("f = Cast(r)", to=onnx.TensorProto.FLOAT),
        node("c = Unsqueeze(f, axes)"),
        node("q = Unsqueeze(p, front)"),
        node("d = Unsqueeze(c, axes)"),
        node("y = Add(q, d)"),
        node("z = Transpose(p)", perm=[1, 0]),
    ]
    constants: dict[str, Array] = {
        "w": np.random.default_rng(1).standard_normal((6, 6)).astype(np.float32),
        "zero": np.array(0, np.int64), "one": np.array(1, np.int64), "axes": i64(1), "front": i64(0),
    }  # fmt: skip
    data: bytes = model(nodes, ["x f32[n,6]"], ["y", "z"], constants).SerializeToString()
    return data


@functools.cache
def given(index: int) -> Array:
    """The input of a request: few rows or many, and 2 to 5 repetitions."""
    rows = (1, 60, 7, 90)[index % 4]
    x = np.random.default_rng(index + 1).uniform(-1, 1, (rows, 6)).astype(np.float32)
    x[0, 0] = 2 + index % 4 + 0.5
    return x


@functools.cache
def expected(index: int) -> dict[str, bytes]:
    """What a request gives when nothing goes wrong, alone on one stream."""

    async def alone() -> dict[str, bytes]:
        async with Runtime(SimulatedDevice(), streams=1, options=ROOMY) as rt:
            return as_bytes(await (await rt.load(two_chunks())).infer({"x": given(index)}))

    return run(alone())


def as_bytes(outputs: dict[str, Array]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in outputs.items()}


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine on a loop of its own, in a thread if one is running here."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(main)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, main).result()


@contextlib.contextmanager
def nothing_unseen() -> Iterator[None]:
    """While this lasts, the loop may not report anything that nobody handled: lost exceptions, lost tasks."""
    loop = asyncio.get_running_loop()
    reported: list[dict[str, Any]] = []
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: reported.append(context))
    try:
        yield
    finally:
        loop.set_exception_handler(before)
    assert reported == []


async def settled(turns: int = 50) -> None:
    """Let the loop turn until no task but this one is left; fails if one stays."""
    for _ in range(turns):
        if len(asyncio.all_tasks()) == 1:
            return
        await asyncio.sleep(0)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    raise AssertionError(f"tasks are left: {left}")


def assert_clean(rt: Runtime, device: SimulatedDevice) -> None:
    """Nothing is left of a runtime that was closed."""
    statistics = rt.statistics()
    memory = statistics.memory
    assert (statistics.in_flight, memory.leases, memory.active, memory.held) == (0, 0, 0, 0), statistics
    assert statistics.kernels.pending == 0
    assert statistics.weights.nbytes == 0, statistics.weights
    assert device.allocated == 0, device
    scheduler = statistics.scheduler
    assert (scheduler.waiting, scheduler.preparing, scheduler.ready, scheduler.launching, scheduler.running) == (0,) * 5
    if device.faults.lost is None:
        assert set(scheduler.depths) == {0}, scheduler
        assert not rt.session.dispatcher.busy
        assert rt.checks is None or rt.checks.checker.in_flight == 0
    rt.session.dispatcher.state.check()


@attrs.define(eq=False)
class Outcome:
    """What became of the requests at once, and of those before and after them; errors in the place of outputs.

    Attributes:
        prepared: How many chunks had their launches prepared.
    """

    together: Sequence[dict[str, bytes] | BaseException]
    after: Sequence[dict[str, bytes] | BaseException]
    before: Sequence[dict[str, bytes] | BaseException] = ()
    prepared: int = 0

    @property
    def errors(self) -> list[Exception]:
        """Of those who were not cancelled."""
        return [o for o in (*self.before, *self.together, *self.after) if isinstance(o, Exception)]


@contextlib.asynccontextmanager
async def opened(device: SimulatedDevice, options: RuntimeOptions, streams: int = 3) -> AsyncIterator[Runtime]:
    """A runtime of which nothing may be left, whatever happens meanwhile; nothing may take long."""
    rt = Runtime(device, streams=streams, options=on_path(options))
    with nothing_unseen(), prepared_soon():
        async with asyncio.timeout(10):
            await rt.open()
            try:
                yield rt
            finally:
                await rt.close()
                await settled()
        assert_clean(rt, device)


async def outcome_of(
    loaded: Model, index: int, deadline: float | None = None
) -> dict[str, bytes] | BaseException:
    try:
        return as_bytes(await loaded.infer({"x": given(index)}, deadline=deadline))
    except Exception as error:
        return error


def cancel_when_launched(rt: Runtime, which: Callable[[int], bool]) -> None:
    """Cancel the callers of those launches, counted from 1: their memory is given to others, who wait on the device."""
    launched, count = rt.session.dispatcher.launched, itertools.count(1)

    def launch(request: int, stream: int, keep: object = None) -> Event:
        event = launched(request, stream, keep)
        task = asyncio.current_task()
        assert task is not None
        if which(next(count)):
            task.cancel()
        return event

    rt.session.dispatcher.launched = launch  # type: ignore[method-assign]


async def several(
    rt: Runtime, count: int = 6, *, first: bool = False, deadlines: Sequence[float | None] = ()
) -> Outcome:
    """Load, run *count* requests at once, then two more, one after the other.

    Args:
        first: Run one before all, which brings what the others share.
        deadlines: Of those at once, by the device's clock; those beyond have none.
    """
    try:
        loaded = await rt.load(two_chunks())
    except Exception as error:
        return Outcome([error], [])
    before = [await outcome_of(loaded, -1)] if first else []
    until = dict(enumerate(deadlines))
    if until:
        device = rt.device
        rt.session.dispatcher.clock = lambda: device.clock() * 1e-9  # type: ignore[method-assign]
    together = await asyncio.gather(
        *(outcome_of(loaded, i, until.get(i)) for i in range(count)), return_exceptions=True
    )
    after = [await asyncio.gather(outcome_of(loaded, count + i), return_exceptions=True) for i in range(2)]
    return Outcome(together, [outcome for (outcome,) in after], before, rt.statistics().presets.replays)
