"""Launches with their arguments set beforehand: the same results, bounded in number, and gone with their plans."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from asyncrt import DeviceCommandError, OutOfDeviceMemory, Runtime, RuntimeOptions
from asyncrt.devices.base import Allocation, Prepared, PreparedLaunch, Stream
from asyncrt.devices.opencl import device as opencl
from asyncrt.devices.opencl import submit as opencl_submit
from asyncrt.devices.opencl.gate import GAINS, Gate
from asyncrt.devices.simulated import SimulatedDevice, SimulatedPrepared, SimulatedStream
from asyncrt.layout import Array
from asyncrt.runtime.execute import prepared_launches as preset
from asyncrt.runtime.execute.prepared_launches import PresetStatistics
from asyncrt.runtime.model import Model
from asyncrt.runtime.request.callers_thread import direct, usual
from benchmarks import networks

from ...builders import i64, model, node
from ...paths import off
from ...zoo import ZooModel, some, zoo

WEIGHTS = np.random.default_rng(0).standard_normal((16, 24)).astype(np.float32)
SOURCE = model(
    [node("t = Transpose(x)", perm=[0, 2, 1]), node("m = MatMul(t, w)"), node("s = Softmax(m)"), node("y = Neg(s)")],
    ["x f32[a,16,b]"], ["y"], {"w": WEIGHTS},
)  # fmt: skip
DEVICES = [pytest.param(None, id="opencl"), pytest.param("simulated", id="simulated")]


def options(without: Iterable[str] = (), **changes: Any) -> RuntimeOptions:
    return RuntimeOptions(**{"warm": False, "without": {"fuse", *without}, **changes})


@pytest_asyncio.fixture(params=DEVICES)
async def rt(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Runtime]:
    """A runtime that presets from the first replay on, and gives all of its memory back."""
    monkeypatch.setattr(preset, "OFTEN", 1)
    async with Runtime(request.param, streams=2, options=options()) as runtime:
        yield runtime
    memory = runtime.statistics().memory
    assert (memory.leases, memory.active, memory.held) == (0, 0, 0)


def given(size: int, seed: int = 0) -> dict[str, Array]:
    return {"x": np.random.default_rng(seed).standard_normal((2, 16, size)).astype(np.float32)}


def same(expected: dict[str, Array], got: dict[str, Array]) -> bool:
    return {k: (v.shape, v.tobytes()) for k, v in expected.items()} == {
        k: (v.shape, v.tobytes()) for k, v in got.items()
    }


async def without(source: Any, inputs: Sequence[dict[str, Array]], device: str | None) -> list[dict[str, Array]]:
    """What each gives where nothing is preset."""
    async with Runtime(device, options=options(without={"prepared_launches"})) as rt:
        loaded = await rt.load(source)
        return [await loaded.infer(i) for i in inputs]


def native_calls(submit: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let the loop in C be there, and return where it notes how many launches it has enqueued at a time."""
    used: list[int] = []
    functions = opencl_submit.loaded_functions()
    assert functions is not None

    def noting(enqueue: int, queue: int, launches: bytes, stop: bytearray | None) -> tuple[int, int]:
        done: tuple[int, int] = submit.submit(enqueue, queue, launches, stop)
        used.append(done[0])
        return done

    others = {name: getattr(submit, name) for name in ("bind", "launch", "copy_and_launch", "repeat")}
    module = SimpleNamespace(submit=noting, **others)
    addresses = [ctypes.cast(f, ctypes.c_void_p).value or 0 for f in functions]
    monkeypatch.setattr(opencl, "native_submitter", lambda: opencl_submit.NativeSubmitter(module, *addresses))
    return used


@pytest.mark.asyncio
async def test_a_plan_is_enqueued_in_one_call(submit: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """All launches of it, and every time that it is replayed with its arguments set."""
    monkeypatch.setattr(preset, "OFTEN", 1)
    used = native_calls(submit, monkeypatch)
    async with Runtime(options=options()) as rt:
        loaded = await rt.load(SOURCE)
        launches = await launches_of(rt, loaded, given(5))
        for _ in range(3):
            await loaded.infer(given(5))

        assert used == [launches] * 3 == [launches] * rt.statistics().presets.replays


async def launches_of(rt: Runtime, loaded: Model, inputs: dict[str, Array]) -> int:
    """How many launches a request is."""
    before = rt.statistics().launches
    await loaded.infer(inputs)
    return rt.statistics().launches - before


@pytest.mark.asyncio
async def test_a_plan_is_preset_once_it_was_replayed_often() -> None:
    """Not before, because it costs more than it saves in a few replays; from then on each replay only enqueues."""
    device = SimulatedDevice()
    async with Runtime(device, options=options()) as rt:
        loaded = await rt.load(SOURCE)
        launches = await launches_of(rt, loaded, given(5))
        for _ in range(preset.OFTEN - 1):
            await loaded.infer(given(5))
        before = rt.statistics().presets
        await loaded.infer(given(5))
        await loaded.infer(given(5))
        after = rt.statistics().presets

    assert before == PresetStatistics(launches=0, replays=0, rebound=0)
    assert after == PresetStatistics(launches=launches, replays=2, rebound=0)
    assert device.launches == rt.statistics().launches == launches * (preset.OFTEN + 2)


@pytest.mark.asyncio
async def test_other_inputs_on_the_same_memory_give_their_own_results(rt: Runtime) -> None:
    """What is set beforehand is where to read and write, and nothing of a request."""
    inputs = [given(5, seed) for seed in range(6)]
    loaded = await rt.load(SOURCE)

    got = [await loaded.infer(i) for i in inputs]
    statistics = rt.statistics()

    for expected, outputs in zip(await without(SOURCE, inputs, rt.info.spec), got, strict=True):
        assert same(expected, outputs)
    assert statistics.presets.replays == 5
    assert statistics.presets.rebound == 0
    assert statistics.memory.allocated == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("name", [pytest.param(m, id=m.name) for m in some(zoo(), 4, 1)])
@pytest.mark.usefixtures("shared_programs")
async def test_exported_models_give_the_same_bytes(
    name: ZooModel, submit: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone and eight at once: enqueued by the loop in C, by the one in Python, and without anything preset."""
    monkeypatch.setattr(preset, "OFTEN", 1)
    used = native_calls(submit, monkeypatch)
    inputs = [name.inputs(case, salt) for salt in range(2) for case in range(name.cases)]
    found: list[list[dict[str, Array]]] = []
    for on, native in ((False, False), (True, False), (True, True)):
        switched = off(prepared_launches=on, native_submit=native)
        async with Runtime(streams=2, options=RuntimeOptions(warm=False, without=switched)) as rt:
            loaded = await rt.load(name.path)
            results = [await loaded.infer(i) for i in inputs * 2]
            for start in range(0, len(inputs), 8):
                results += await asyncio.gather(*(loaded.infer(i) for i in inputs[start : start + 8]))
            found.append(results)
            statistics = rt.statistics()
            assert (statistics.presets.replays > 0) == (on and statistics.launches > 0)
            assert bool(used) == (native and statistics.launches > 0)

    for expected, *others in zip(*found, strict=True):
        assert all(same(expected, got) for got in others)


@pytest.mark.asyncio
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("streams", [2, 4])
async def test_requests_at_once_do_not_see_each_other(
    device: str | None, streams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """32 at once, of three signatures, over and over: each has its own memory, and kernels are set for it in turn."""
    monkeypatch.setattr(preset, "OFTEN", 1)
    monkeypatch.setattr(preset, "_SETS", 2)  # fewer than there are requests at once
    inputs = [given((5, 9, 4)[i % 3], i) for i in range(32)]
    expected = await without(SOURCE, inputs, device)
    async with Runtime(device, streams=streams, options=options()) as rt:
        loaded = await rt.load(SOURCE)
        for _ in range(5):
            got = await asyncio.gather(*(loaded.infer(i) for i in inputs))
            assert all(map(same, expected, got))
        statistics = rt.statistics().presets

    # A real device may be done with one request before the next one needs memory, which then is the same.
    assert statistics.rebound > 0 or device != "simulated"
    assert statistics.replays > 32


@pytest.mark.asyncio
async def test_signatures_in_turn_keep_their_memory(rt: Runtime) -> None:
    """The arena of a larger one serves the smaller, so nothing is allocated or bound anew."""
    loaded = await rt.load(SOURCE)
    for size in (9, 5, 8, 5, 9, 8):
        await loaded.infer(given(size))
    before = rt.statistics()
    for size in (5, 9, 8) * 5:
        await loaded.infer(given(size))
    after = rt.statistics()

    assert before.memory.allocated == after.memory.allocated
    assert after.presets == PresetStatistics(before.presets.launches, before.presets.replays + 15, 0)


@pytest.mark.asyncio
@pytest.mark.parametrize("device", DEVICES)
async def test_new_memory_for_each_request_is_bound_anew(device: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a pool no request has the memory of one before it, whatever address it gets."""
    monkeypatch.setattr(preset, "OFTEN", 1)
    monkeypatch.setattr(preset, "_SETS", 2)
    inputs = [given(5, seed) for seed in range(12)]
    async with Runtime(device, options=options(without={"pool"})) as rt:
        loaded = await rt.load(SOURCE)
        got = [await loaded.infer(i) for i in inputs]
        statistics = rt.statistics().presets

    assert all(map(same, await without(SOURCE, inputs, device), got))
    assert (statistics.replays, statistics.rebound) == (11, 9)


@pytest.mark.asyncio
async def test_memory_that_was_given_back_is_not_taken_for_what_follows(rt: Runtime) -> None:
    """After the pool has released its blocks, others come, at the same addresses perhaps: they are other memory."""
    inputs = [given(5, seed) for seed in range(8)]
    loaded = await rt.load(SOURCE)
    got = []
    for i in inputs:
        got.append(await loaded.infer(i))
        rt.session.pool.trim()

    assert all(map(same, await without(SOURCE, inputs, rt.info.spec), got))
    assert rt.statistics().memory.allocated == 8


@pytest.mark.asyncio
async def test_a_cancelled_request_disturbs_nobody(rt: Runtime) -> None:
    """At whatever point: its kernels may be in flight while others set theirs."""
    inputs = [given(5 + i % 3, i) for i in range(12)]
    loaded = await rt.load(SOURCE)
    expected = [await loaded.infer(i) for i in inputs]

    for steps in range(10):
        tasks = [asyncio.ensure_future(loaded.infer(i)) for i in inputs]
        for _ in range(steps):
            await asyncio.sleep(0)
        for task in tasks[::3]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)

        for number, (e, r) in enumerate(zip(expected, results, strict=True)):
            assert isinstance(r, asyncio.CancelledError) if not isinstance(r, dict) else same(e, r)
            assert isinstance(r, dict) or number % 3 == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("device", DEVICES)
async def test_a_plan_may_go_while_it_is_in_flight(device: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One plan is kept, and requests of several signatures run at once; what has gone is given back."""
    monkeypatch.setattr(preset, "OFTEN", 0)
    monkeypatch.setattr(preset, "LAUNCH_NBYTES", 16)  # room for the launches of more plans than are kept
    inputs = [given(3 + i % 4, i) for i in range(24)]
    expected = await without(SOURCE, inputs, device)
    async with Runtime(device, streams=2, options=options(plan_bytes=1 << 13)) as rt:
        loaded = await rt.load(SOURCE)
        launches = await launches_of(rt, loaded, inputs[0])
        for _ in range(3):
            got = await asyncio.gather(*(loaded.infer(i) for i in inputs))
            assert all(map(same, expected, got))
        await loaded.infer(inputs[0])
        kept = rt.statistics().presets.launches

    assert kept == launches
    assert rt.statistics().presets.launches == 0


@pytest.mark.asyncio
async def test_where_room_is_short_a_plan_binds_what_it_has_or_takes_what_others_can_spare(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beyond half of the room it has another set only while all of its own are busy; others keep one."""
    monkeypatch.setattr(preset, "OFTEN", 1)
    async with Runtime("simulated", options=options()) as probe:
        launches = await launches_of(probe, await probe.load(SOURCE), given(5))
    made: list[Prepared] = []

    class Noting(SimulatedDevice):
        def prepare(
            self, launches: Sequence[PreparedLaunch], memory: Sequence[Allocation], native: bool = True
        ) -> Prepared | None:
            made.append(SimulatedPrepared(launches, memory))
            return made[-1]

    room = 4 * launches * preset.LAUNCH_NBYTES
    kept: list[tuple[int, int]] = []
    async with Runtime(Noting(), options=options(plan_bytes=room, without={"pool", "direct"})) as rt:
        loaded = await rt.load(SOURCE)
        for size, times in ((5, 8), (6, 8), (6, 1), (6, 1), (5, 1)):
            for _ in range(times):  # each time in other memory
                await loaded.infer(given(size))
            for prepared in made[2:]:  # those of the second plan
                prepared.busy = True
            kept.append((len(made), rt.statistics().presets.launches // launches))

    assert kept == [(2, 2), (3, 3), (4, 4), (5, 4), (5, 4)]


@pytest.mark.asyncio
@pytest.mark.parametrize("device", DEVICES)
async def test_no_more_are_kept_than_wanted(device: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for two plans: the one unused longest makes way for a third, and has to come often again to be back."""
    monkeypatch.setattr(preset, "OFTEN", 2)
    probe = Runtime(device, options=options())
    async with probe:
        launches = await launches_of(probe, await probe.load(SOURCE), given(5))
    seen: dict[int, list[bool]] = {5: [], 6: [], 7: []}
    async with Runtime(device, options=options(plan_bytes=(2 * launches + 1) * preset.LAUNCH_NBYTES)) as rt:
        loaded = await rt.load(SOURCE)
        for size in (5, 5, 5, 6, 6, 6, 5, 7, 7, 7, 5, 6, 6, 6, 5):
            before = rt.statistics().presets.replays
            await loaded.infer(given(size))
            seen[size].append(rt.statistics().presets.replays > before)
            assert rt.statistics().presets.launches <= 2 * launches

    assert seen == {
        5: [False, False, True, True, True, True],
        6: [False, False, True, False, False, True],
        7: [False, False, True],
    }


@pytest.mark.asyncio
async def test_a_plan_that_is_larger_than_the_bound_is_never_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    """And pushes nobody out."""
    monkeypatch.setattr(preset, "OFTEN", 0)
    small = model([node("y = Neg(x)")], ["x f32[n]"], ["y"])
    async with Runtime("simulated", options=options(plan_bytes=preset.LAUNCH_NBYTES)) as rt:
        first, large = await rt.load(small), await rt.load(SOURCE)
        await first.infer({"x": np.ones(3, np.float32)})
        for _ in range(4):
            await large.infer(given(5))
        await first.infer({"x": np.ones(3, np.float32)})

        assert rt.statistics().presets == PresetStatistics(launches=1, replays=2, rebound=0)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("device", "switched"), [("host", ()), ("simulated", ("prepared_launches",)), ("simulated", ("replay",))]
)
async def test_nothing_is_preset_where_it_is_off(device: str, switched: tuple[str, ...]) -> None:
    """Nor on a device that gains nothing by it."""
    async with Runtime(device, options=options(without=switched)) as rt:
        loaded = await rt.load(SOURCE)
        for _ in range(2 * preset.OFTEN + 3):
            await loaded.infer(given(5))

        assert rt.statistics().presets == PresetStatistics(0, 0, 0)


@pytest.mark.asyncio
async def test_state_that_stays_on_the_device_is_bound_where_it_is(rt: Runtime) -> None:
    """Sequences through the same lengths use the same plans, each with memory of its own for what it keeps."""
    nodes = [node("present.a = Concat(past.a, x)", axis=1), node("y = CumSum(present.a, one)")]
    source = model(nodes, ["x f32[n,m]", "past.a f32[n,past]"], ["y", "present.a"], {"one": np.array(1, np.int64)})
    loaded = await rt.load(source)
    steps = [[np.full((2, 1 + i % 2), s + i, np.float32) for i in range(6)] for s in range(4)]

    async def run(rows: list[Array]) -> list[Array]:
        async with loaded.sequence({"past.a": "present.a"}) as sequence:
            return [(await sequence.infer({"x": x}))["y"] for x in rows]

    alone = [await run(rows) for rows in steps]
    together = await asyncio.gather(*map(run, steps))

    for rows, one, other in zip(steps, alone, together, strict=True):
        for i, y in enumerate(one):
            np.testing.assert_array_equal(np.cumsum(np.concatenate(rows[: i + 1], 1), 1), y)
            np.testing.assert_array_equal(y, other[i])
    assert rt.statistics().presets.replays > 20


@pytest.mark.asyncio
async def test_a_shape_computed_on_the_device_reads_an_earlier_arena(rt: Runtime) -> None:
    """A plan of a later chunk is bound to the memory of all the chunks that it reads."""
    nodes = [
        node("m = ReduceMax(x)", keepdims=0), node("n = Cast(m)", to=7), node("r = Range(zero, n, one)"),
        node("k = Neg(x)"), node("d = Add(k, k)"), node("t = Tile(d, three)"), node("f = Cast(r)", to=1),
        node("y = ReduceSum(t)", keepdims=0), node("z = Add(f, y)"),
    ]  # fmt: skip
    constants = {"zero": np.array(0, np.int64), "one": np.array(1, np.int64), "three": i64(3)}
    source = model(nodes, ["x f32[a]"], ["z"], constants)
    inputs = [{"x": np.array([3 + i % 2, 1, 0.5 * i], np.float32)} for i in range(16)]
    expected = await without(source, inputs, rt.info.spec)
    loaded = await rt.load(source)

    for _ in range(3):
        got = await asyncio.gather(*(loaded.infer(i) for i in inputs))

        assert all(map(same, expected, got))
    assert rt.statistics().presets.replays > 16


@pytest.mark.asyncio
async def test_specialised_kernels_are_preset_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that is bound to other kernels is another one: its launches are prepared anew, those of before go."""
    monkeypatch.setattr(preset, "OFTEN", 1)
    async with Runtime(options=options(specialise=True, without={"views"})) as rt:
        loaded = await rt.load(SOURCE)
        specialiser = rt.session.specialiser
        assert specialiser is not None
        first = await loaded.infer(given(5))
        launches = await launches_of(rt, loaded, given(5))
        specialiser.generation += 1  # others have come
        unset = rt.statistics().presets.replays
        again = [await loaded.infer(given(5)) for _ in range(3)]
        statistics = rt.statistics().presets

    assert statistics.launches == launches
    assert statistics.replays == unset + 2
    assert all(same(first, outputs) for outputs in again)


@pytest.mark.asyncio
async def test_a_trace_sees_each_launch(rt: Runtime, tmp_path: Path) -> None:
    """While it is taken launches are enqueued one by one; afterwards as before."""
    loaded = await rt.load(SOURCE)
    first, *_ = [await loaded.infer(given(5)) for _ in range(3)]
    before = rt.statistics().presets
    async with rt.trace(tmp_path / "trace.json"):
        traced = await loaded.infer(given(5))
        during = rt.statistics().presets
    after = await loaded.infer(given(5))

    text = (tmp_path / "trace.json").read_text()
    assert '"Softmax' in text
    assert before == during
    assert rt.statistics().presets.replays == before.replays + 1
    assert same(first, traced)
    assert same(first, after)


class Refusing(SimulatedDevice):
    """A device whose driver refuses a launch, a launch's preparation or its binding, when it is told to."""

    def __init__(self) -> None:
        super().__init__(4)
        self.fails = ""
        self.countdown = 0

    def open_stream(self, pinned: bool = True, spin: bool | None = None, native: bool = True) -> SimulatedStream:
        stream, device = super().open_stream(), self
        launch = stream.launch

        def launch_or_refuse(*arguments: Any) -> None:
            if device.fails == "launch":
                device.countdown -= 1
                if device.countdown == 0:
                    raise DeviceCommandError("the driver refused a launch")
            launch(*arguments)

        stream.launch = launch_or_refuse  # type: ignore[method-assign]
        return stream

    def prepare(
        self, launches: Sequence[PreparedLaunch], memory: Sequence[Allocation], native: bool = True
    ) -> Prepared | None:
        if self.fails == "prepare":
            raise OutOfDeviceMemory("the driver has no more kernel objects")
        prepared = super().prepare(launches, memory, native)
        assert prepared is not None
        return _Refusing(prepared, self)


class _Refusing:
    long = busy = begins = False

    def __init__(self, prepared: Prepared, device: Refusing) -> None:
        self._prepared, self._device = prepared, device

    def bind(self, memory: Sequence[Allocation]) -> None:
        if self._device.fails == "bind":
            raise DeviceCommandError("the driver refused an argument")
        self._prepared.bind(memory)

    def launch(self, stream: Stream, stop: bytearray | None = None) -> None:
        self._prepared.launch(stream, stop)


@pytest.mark.asyncio
async def test_a_launch_that_is_refused_in_the_middle_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request fails; its memory is used again only behind what was enqueued of it, and others are served."""
    monkeypatch.setattr(preset, "OFTEN", 1)
    device = Refusing()
    async with Runtime(device, streams=2, options=options()) as rt:
        loaded = await rt.load(SOURCE)
        launches = await launches_of(rt, loaded, given(5))
        expected = await loaded.infer(given(5))
        for refused in range(1, launches + 1):
            device.fails, device.countdown = "launch", refused
            results = await asyncio.gather(*(loaded.infer(given(5)) for _ in range(6)), return_exceptions=True)
            device.fails = ""

            failed = [r for r in results if not isinstance(r, dict)]
            assert len(failed) == 1
            assert isinstance(failed[0], DeviceCommandError)
            assert all(same(expected, r) for r in results if isinstance(r, dict))
        assert rt.statistics().memory.leases == 0
        assert rt.statistics().presets.replays >= 6 * launches


@pytest.mark.asyncio
@pytest.mark.parametrize("fails", ["prepare", "bind"])
async def test_a_driver_that_refuses_to_preset_is_not_asked_for_it(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are served without it; when it does again what was refused, so are later ones."""
    monkeypatch.setattr(preset, "OFTEN", 1)
    monkeypatch.setattr(preset, "_SETS", 1)
    device = Refusing()
    async with Runtime(device, streams=2, options=options()) as rt:
        loaded = await rt.load(SOURCE)
        expected = await loaded.infer(given(5))
        await loaded.infer(given(5))
        if fails == "prepare":
            rt.session.presets = None
            loaded.network.enqueuer.presets = preset.Presets(device, 100 * preset.LAUNCH_NBYTES)
        device.fails = fails
        refused = [r for _ in range(3) for r in await asyncio.gather(*(loaded.infer(given(5)) for _ in range(4)))]
        device.fails = ""
        served = [r for _ in range(3) for r in await asyncio.gather(*(loaded.infer(given(5)) for _ in range(4)))]

        presets = loaded.network.enqueuer.presets
        assert presets is not None
        assert presets.statistics().replays > 0
    assert all(same(expected, r) for r in refused + served)


@pytest.mark.asyncio
@pytest.mark.parametrize("hold", [True, False])
async def test_tiny_launches_give_the_same_bytes_held_or_not(hold: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of 40, one after the other and eight at once, on two streams, with the driver's gate and without."""
    monkeypatch.setattr(preset, "OFTEN", 1)
    held: list[bool] = []
    really = opencl.find_gate

    def find_gate(platform: str, kind: str, context: int) -> Gate | None:
        gate = really(platform, kind, context) if hold else None
        held.append(gate is not None)
        return gate

    monkeypatch.setattr(opencl, "find_gate", find_gate)
    names = ["x", *(f"v{i}" for i in range(39)), "y"]
    chain = [node(f"{b} = {'Neg' if i % 2 else 'Exp'}({a})") for i, (a, b) in enumerate(itertools.pairwise(names))]
    source, inputs = model(chain, ["x f32[n,3]"], ["y"]), [{"x": given(4, i)["x"][0, :5, :3]} for i in range(8)]
    expected = await without(source, inputs, None)

    async with Runtime(streams=2, options=options()) as rt:
        known = (rt.info.platform, rt.info.kind) in GAINS
        loaded = await rt.load(source)
        found = [await loaded.infer(i) for i in inputs] + await asyncio.gather(*(loaded.infer(i) for i in inputs))

    assert held[-1] == (hold and known)
    assert all(same(a, b) for a, b in zip(expected * 2, found, strict=True))


@pytest.mark.asyncio
@pytest.mark.parametrize("begins", [False, True])
async def test_the_lengths_of_a_sequence_have_one_set_of_launches(
    begins: bool, users_path: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each length takes it over from the one before, on whichever way it goes, and gives the bits that it gave without;
    the next is planned while the device is at work, where it works by itself."""
    made = opencl.OpenCLPrepared
    monkeypatch.setattr(opencl, "OpenCLPrepared", lambda *a, lends, **k: made(*a, lends=not begins, **k))
    steps = [networks.next_token(length) for length in range(200)]
    network = networks.decoder(2, 32, 2, 60)

    async def decode(loaded: Model) -> list[bytes]:
        async with loaded.sequence() as sequence:
            return [(await sequence.infer(inputs))["logits"].tobytes() for inputs in steps]

    async with Runtime(streams=1, options=RuntimeOptions(warm=False, without={"prepared_launches"})) as rt:
        expected = await decode(await rt.load(network))
    async with Runtime(streams=1, options=RuntimeOptions(warm=False, without={"one_launch"})) as rt:
        loaded = await rt.load(network)
        for _ in range(2):
            assert await decode(loaded) == expected
        other, beside = await asyncio.gather(decode(loaded), decode(loaded))
        found = rt.statistics()
    assert other == beside == expected
    assert found.presets.rebound > 2 * len(steps) // 3
    assert found.presets.launches < len(steps) * found.launches / found.requests / 4
    assert found.memory.leases == 0


@pytest.mark.asyncio
async def test_launches_become_those_of_the_next_step_while_the_device_is_at_work(
    users_path: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it works by itself, and lengths are known: nothing of that is left to do when the step comes."""
    made, did = opencl.OpenCLPrepared, list[str]()
    monkeypatch.setattr(opencl, "OpenCLPrepared", lambda *a, lends, **k: made(*a, lends=False, **k))
    for module, limit in ((usual, "BRIEF_S"), (direct, "TRIAL_S")):
        monkeypatch.setattr(module, limit, 10.0)  # however slow a machine is

    def note(name: str, letter: str) -> None:
        kept = getattr(made, name)

        def noted(*given: Any) -> Any:
            did.append(letter)
            return kept(*given)

        monkeypatch.setattr(made, name, noted)

    for name, letter in (("begin", "("), ("become", "x"), ("end", ")")):
        note(name, letter)
    steps = [networks.next_token(length) for length in range(40)]

    async with Runtime(streams=1, options=RuntimeOptions(warm=False, without={"one_launch"})) as rt:
        loaded = await rt.load(networks.decoder(2, 32, 2, 60))
        for _ in range(3):
            did.clear()
            async with loaded.sequence() as sequence:
                for inputs in steps:
                    await sequence.infer(inputs)

    assert "".join(did).count("(x)") >= len(steps) - 5
