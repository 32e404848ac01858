"""Requests on cores of their own give what they give alone, whatever happens to their neighbours."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from typing import Any

import attrs
import numpy as np
import pytest

from asyncrt import DeviceCommandError, IndexOutOfRange, Model, Runtime, RuntimeClosedError, RuntimeOptions
from asyncrt.devices.opencl.device import OpenCLDevice
from asyncrt.devices.opencl.launcher import OpenCLPosted
from asyncrt.devices.opencl.submit import native_submitter
from asyncrt.layout import Array
from asyncrt.runtime.loop import own_cores
from asyncrt.runtime.request.callers_thread import direct, usual
from asyncrt.runtime.request.callers_thread.own_core_work import OwnCoreWork

from ...builders import model, node

# The stand-in would answer the first requests, so that plans come less often.
PLAIN = RuntimeOptions(check_hazards=False, warm=False, without={"stand_in"})
RNG = np.random.default_rng(0)
TABLE, WEIGHTS = (RNG.standard_normal(shape).astype(np.float32) for shape in ((50, 64), (64, 64)))
SOURCE = model(
    [node("e = Gather(table, i)"), node("m = MatMul(e, w)"), node("s = Softmax(m)"), node("y = Neg(s)")],
    ["i i64[b,n]"], ["y"], {"table": TABLE, "w": WEIGHTS},
)  # fmt: skip


class Noted:
    """The requests that threads carry out.

    Attributes:
        threads: The thread of each.
        fails: Raised by the next one, once.
        hold: What each waits for before it begins.
    """

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.fails: Exception | None = None
        self.hold = threading.Event()
        self.hold.set()


@pytest.fixture(params=["python"])
def noted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, users_path: None) -> Noted:
    """Let no request run on its caller's thread, and two be enough, on a machine of any number of cores.

    Requests are carried out by threads of Python's, or natively, where none can be held before it begins.
    """
    notes, carry_out, hand_over = Noted(), OwnCoreWork.carry_out, OwnCoreWork.hand_over

    def begins() -> Exception | None:
        notes.threads.append(threading.current_thread().name)
        assert notes.hold.wait(60)
        failure, notes.fails = notes.fails, None
        return failure

    def noting(work: OwnCoreWork, stream: Any) -> None:
        failure = begins()
        if failure is not None:
            raise failure
        carry_out(work, stream)

    def handing(work: OwnCoreWork, launcher: Any) -> Any:
        failure, posted = begins(), hand_over(work, launcher)
        if failure is not None:
            failing[posted] = failure
        return posted

    def check(posted: OpenCLPosted) -> None:
        passed(posted)
        if posted in failing:
            raise failing.pop(posted)

    failing, passed = dict[OpenCLPosted, Exception](), OpenCLPosted.check
    monkeypatch.setattr(OpenCLPosted, "check", check)
    monkeypatch.setattr(OwnCoreWork, "carry_out", noting)
    monkeypatch.setattr(OwnCoreWork, "hand_over", handing)
    if request.param == "python":
        monkeypatch.setattr(OpenCLDevice, "open_launcher", lambda self, file, own=(): None)
    monkeypatch.setattr(direct, "BESIDE_S", 0.0)
    monkeypatch.setattr(usual, "BESIDE_S", 0.0)
    monkeypatch.setattr(direct, "may_keep_s", lambda launches, launch_s: 0.0)
    monkeypatch.setattr(own_cores, "_PART", 0.0)
    if native_submitter() is None:
        pytest.skip("the extension was not built")
    return notes


either = pytest.mark.parametrize("noted", ["python", "native"], indirect=True)


def given(seed: int, words: int = 5) -> dict[str, Array]:
    return {"i": np.random.default_rng(seed).integers(0, 50, (2, words))}


@contextlib.asynccontextmanager
async def known(options: RuntimeOptions = PLAIN) -> AsyncIterator[tuple[Runtime, Model]]:
    """A model whose plans have come often, on a device that has cores to give."""
    async with Runtime(options=options) as rt:
        info = rt.info
        if "local_thread" not in info.features or info.compute_units < 2:
            pytest.skip(f"{info.name} has no cores that a thread can have to itself")
        loaded = await rt.load(SOURCE)
        await often(loaded)
        yield rt, loaded
        memory = rt.statistics().memory
        assert (memory.leases, memory.active) == (0, 0)


async def often(loaded: Model) -> None:
    for _ in range(3):
        await asyncio.gather(*(loaded.infer(given(seed, 3 + seed % 3)) for seed in range(15)))


@pytest.mark.asyncio
@either
async def test_each_of_many_requests_has_a_core_and_the_bits_that_it_has_alone(noted: Noted) -> None:
    """Of several shapes at once; the counts go on as for any request."""
    inputs = [given(seed, 3 + seed % 3) for seed in range(24)]
    async with known() as (rt, loaded), known(attrs.evolve(PLAIN, without=PLAIN.without | {"own_cores"})) as (_, other):
        before, noted.threads = rt.statistics(), []
        together = await asyncio.gather(*map(loaded.infer, inputs))
        after, threads = rt.statistics(), list(noted.threads)
        alone = [await other.infer(i) for i in inputs]

    assert [a["y"].tobytes() for a in alone] == [t["y"].tobytes() for t in together]
    assert len(threads) >= 20
    natively = {threading.main_thread().name}  # there the event loop gives them to the threads
    assert {t.rstrip("0123456789") for t in threads} in (natively, {"asyncrt-core-"})
    assert after.requests - before.requests == 24
    assert after.failed == 0


@pytest.mark.asyncio
async def test_without_the_mechanism_or_with_streams_counted_out_none_has_one(noted: Noted) -> None:
    """Who says how many queues there are to be gets no others."""
    async with known(attrs.evolve(PLAIN, without=PLAIN.without | {"own_cores"})):
        pass
    async with Runtime(streams=2, options=PLAIN) as rt:
        await often(await rt.load(SOURCE))

    assert noted.threads == []


@pytest.mark.asyncio
@either
async def test_a_request_that_fails_leaves_its_neighbours_exact(noted: Noted) -> None:
    """Its command on the device, or an index that is out of range: it is told, the others have their bits."""
    inputs = [given(seed) for seed in range(12)]
    inputs[4] = {"i": np.full((2, 5), 77)}
    async with known() as (rt, loaded):
        wanted = [None if n == 4 else (await loaded.infer(i))["y"].tobytes() for n, i in enumerate(inputs)]
        noted.threads = []
        noted.fails = DeviceCommandError("the driver refused a launch")
        results = await asyncio.gather(*map(loaded.infer, inputs), return_exceptions=True)
        failed = rt.statistics().failed

    refused = [n for n, r in enumerate(results) if isinstance(r, DeviceCommandError)]
    assert isinstance(results[4], IndexOutOfRange)
    assert len(refused) == 1
    assert failed == 2
    assert len(noted.threads) >= 8
    for number, result in enumerate(results):
        if isinstance(result, dict):
            assert result["y"].tobytes() == wanted[number]


@pytest.mark.asyncio
@pytest.mark.parametrize("noted", ["native"], indirect=True)
async def test_threads_without_python_leave_neighbours_of_cancelled_ones_exact(noted: Noted) -> None:
    """At whatever point they are cancelled, and beside requests of new shapes; a model is unloaded in the middle."""
    inputs = [given(seed) for seed in range(16)]
    async with known() as (rt, loaded):
        wanted = [(await loaded.infer(i))["y"].tobytes() for i in inputs]
        for turns in range(12):
            tasks = [asyncio.ensure_future(loaded.infer(i)) for i in inputs]
            others = [asyncio.ensure_future(loaded.infer(given(n, 20 + turns))) for n in range(2)]
            for _ in range(turns % 6):
                await asyncio.sleep(0)
            for task in tasks[turns % 3 :: 3]:
                task.cancel()
            for number, result in enumerate(await asyncio.gather(*tasks, return_exceptions=True)):
                if isinstance(result, dict):
                    assert result["y"].tobytes() == wanted[number]
                else:
                    assert isinstance(result, asyncio.CancelledError)
            await asyncio.gather(*others)
        last = [asyncio.ensure_future(loaded.infer(i)) for i in inputs]
        await asyncio.sleep(0)
        await rt.unload(loaded)
        answers = await asyncio.gather(*last)

    assert [a["y"].tobytes() for a in answers] == wanted
    assert len(noted.threads) >= 100


@pytest.mark.asyncio
async def test_cancelled_ones_give_their_memory_back_and_leave_neighbours_exact(noted: Noted) -> None:
    """At whatever point; a model that is unloaded meanwhile waits until no thread uses anything of it."""
    inputs = [given(seed) for seed in range(16)]
    async with known() as (rt, loaded):
        wanted = [(await loaded.infer(i))["y"].tobytes() for i in inputs]
        for turns in range(6):
            tasks = [asyncio.ensure_future(loaded.infer(i)) for i in inputs]
            for _ in range(turns):
                await asyncio.sleep(0)
            for task in tasks[::3]:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            for number, result in enumerate(results):
                if isinstance(result, dict):
                    assert result["y"].tobytes() == wanted[number]
                else:
                    assert isinstance(result, asyncio.CancelledError)
                    assert number % 3 == 0
        noted.hold.clear()
        tasks = [asyncio.ensure_future(loaded.infer(i)) for i in inputs]
        for _ in range(5):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        unloading = asyncio.ensure_future(rt.unload(loaded))
        for _ in range(20):
            await asyncio.sleep(0)
        unloaded = unloading.done()
        noted.hold.set()
        await unloading
        cancelled = rt.statistics().cancelled

    assert not unloaded
    assert cancelled >= 16


@pytest.mark.asyncio
@either
async def test_a_runtime_that_is_closed_answers_those_that_are_there(noted: Noted) -> None:
    """Those at work and those that wait for a core; later ones are refused."""
    async with Runtime(options=PLAIN) as rt:
        if "local_thread" not in rt.info.features or rt.info.compute_units < 2:
            pytest.skip("no cores to give")
        loaded = await rt.load(SOURCE)
        await often(loaded)
        wanted = (await loaded.infer(given(1)))["y"].tobytes()
        tasks = [asyncio.ensure_future(loaded.infer(given(1))) for _ in range(12)]
        for _ in range(3):
            await asyncio.sleep(0)
        closing = asyncio.ensure_future(rt.close())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeClosedError):
            await loaded.infer(given(1))
        await closing
        results = await asyncio.gather(*tasks)

    assert [r["y"].tobytes() for r in results] == [wanted] * 12


@pytest.mark.asyncio
@either
async def test_who_looks_on_sees_all_requests(noted: Noted) -> None:
    """While a trace is taken none has a core of its own: a trace tells of the streams of the runtime."""
    async with known() as (rt, loaded):
        noted.threads = []
        async with rt.traced():
            await asyncio.gather(*(loaded.infer(given(seed)) for seed in range(8)))
            traced = list(noted.threads)
        await asyncio.gather(*(loaded.infer(given(seed)) for seed in range(8)))

    assert traced == []
    assert noted.threads


@pytest.mark.asyncio
async def test_who_finds_no_memory_waits_until_they_give_theirs_back(noted: Noted) -> None:
    """A request on the general way, while all memory there may be is in use on cores: it is refused none, and those
    that come later take none before it."""
    async with known() as (rt, loaded):
        other = given(99, 40)
        wanted = (await loaded.infer(other))["y"].tobytes()
        rt.session.pool.trim()
        noted.hold.clear()
        tasks = [asyncio.ensure_future(loaded.infer(given(seed))) for seed in range(2 * rt.info.compute_units)]
        await asyncio.sleep(0)
        while rt.session.dispatcher.in_flight:  # noqa: ASYNC110  # what was first went the general way
            await asyncio.sleep(0)
        rt.session.pool.limit = rt.statistics().memory.active
        late = asyncio.ensure_future(loaded.infer(other))
        for _ in range(200):
            await asyncio.sleep(0)
        waited = not late.done()
        later = asyncio.ensure_future(loaded.infer(given(1)))
        await asyncio.sleep(0)
        generally = rt.session.dispatcher.in_flight
        rt.session.pool.limit *= 16
        noted.hold.set()
        await asyncio.gather(*tasks, later)
        answer = (await late)["y"].tobytes()

    assert waited
    assert generally == 2
    assert answer == wanted
