"""Branches of one inference on several streams: the same bytes, in order, and for everybody else one chunk."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import onnx
import pytest

import asyncrt.debug
from asyncrt import DeviceCommandError, HazardError, Runtime, RuntimeOptions
from asyncrt.devices.base import Device, DeviceInfo, Mark, Stream
from asyncrt.devices.faults import Fault
from asyncrt.devices.find import open_device
from asyncrt.devices.host import HostDevice
from asyncrt.devices.opencl.device import OpenCLDevice
from asyncrt.devices.simulated import SimulatedDevice
from asyncrt.events import Event
from asyncrt.layout import Array
from asyncrt.memory.hazards import Entry, Waited, check
from asyncrt.runtime.execute import prepared_launches as preset
from asyncrt.runtime.loop.completion import Completions
from asyncrt.runtime.model import Model
from asyncrt.runtime.plan.chunk_plan import ChunkPlan
from asyncrt.runtime.plan.parallel_lanes import Branches, Cost, branches_of, cost_of
from asyncrt.runtime.watch.watched import WatchedStream

from ...builders import model, node
from ...stress.scenarios import run
from ..watch.test_checked import DropsAWait
from ..watch.test_traced import read, slices

WIDTH = 8
DEVICES = pytest.mark.parametrize("device", ["simulated", "host", None], ids=lambda d: d or "opencl")


@functools.cache
def network(blocks: int = 2) -> bytes:
    """Blocks of four chains of one to four nodes that meet: in sums, and in a Concat whose inputs are in place."""
    nodes: list[onnx.NodeProto] = []
    x = "x"
    for block in range(blocks):
        ends = []
        for chain in range(4):
            name = x
            for step in range(chain + 1):
                made = f"b{block}_{chain}_{step}"
                kind = f"MatMul({name}, w{chain % 2})" if step % 2 == 0 else f"Tanh({name})"
                nodes.append(node(f"{made} = {kind}"))
                name = made
            ends.append(name)
        if block % 2:
            nodes += [
                node(f"all{block} = Concat({', '.join(ends)})", axis=0),
                node(f"mean{block} = ReduceMean(all{block})", keepdims=1),
                node(f"x{block} = Add(mean{block}, {ends[3]})"),
            ]
        else:
            nodes.append(node(f"x{block} = Sum({', '.join(ends)})"))
        x = f"x{block}"
    nodes += [node(f"y = Neg({x})"), node(f"side = Exp({ends[1]})")]
    random = np.random.default_rng(0)
    weights = {f"w{i}": random.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 3 for i in range(2)}
    data: bytes = model(nodes, [f"x f32[n,{WIDTH}]"], ["y", "side"], weights).SerializeToString()
    return data


def given(seed: int) -> dict[str, Array]:
    return {"x": np.random.default_rng(seed).standard_normal((2 + seed % 3, WIDTH)).astype(np.float32)}


def options(without: Iterable[str] = (), **changes: Any) -> RuntimeOptions:
    return RuntimeOptions(**{"warm": False, "branches": True, "without": {"fuse", *without}, **changes})


def as_bytes(outputs: dict[str, Array]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in outputs.items()}


def plans_of(loaded: Model) -> list[ChunkPlan]:
    return list(loaded.network.plans)


async def each(loaded: Model, count: int = 6) -> list[dict[str, bytes]]:
    """Requests one after the other."""
    return [as_bytes(await loaded.infer(given(i))) for i in range(count)]


@contextlib.asynccontextmanager
async def spreading(device: Device | str | None, streams: int = 4, **changes: Any) -> AsyncIterator[Runtime]:
    """A runtime that gives back all of its memory."""
    async with Runtime(device, streams=streams, options=options(**changes)) as rt:
        yield rt
    memory = rt.statistics().memory
    assert (memory.leases, memory.active, memory.held) == (0, 0, 0)


@functools.cache
def truth(device: str | None, count: int = 6) -> list[dict[str, bytes]]:
    """What requests give on one stream."""

    async def alone() -> list[dict[str, bytes]]:
        async with Runtime(device, streams=1, options=options(branches=False)) as rt:
            return await each(await rt.load(network()), count)

    return run(alone())


# --- Results ----------------------------------------------------------------------------------------------------------


@DEVICES
@pytest.mark.parametrize("without", [(), ("replay",), ("pool",), ("skip",)], ids=str)
def test_results_are_those_of_one_stream(device: str | None, without: tuple[str, ...]) -> None:
    """Bit for bit, one after the other and at once; and the order of all commands is checked."""
    expected = truth(device)

    async def spread() -> None:
        async with spreading(device, without=without) as rt:
            loaded = await rt.load(network())
            assert expected == await each(loaded)
            together = await asyncio.gather(*(loaded.infer(given(i)) for i in range(6)))
            assert expected == [as_bytes(out) for out in together]
            assert expected == await each(loaded)
            assert loaded.explain().lanes == 4
            assert asyncrt.debug.check(rt).hazards == ()

    asyncio.run(spread())


@pytest.mark.asyncio
@pytest.mark.parametrize("streams", [1, 2, 3, 4, 6])
async def test_there_are_no_more_lanes_than_streams(streams: int) -> None:
    """One stream has none; and results stay what they are."""
    async with spreading(SimulatedDevice(5), streams) as rt:
        loaded = await rt.load(network())
        first = as_bytes(await loaded.infer(given(0)))

        assert truth("simulated")[0] == first
        assert {None if streams == 1 else min(streams, 4)} == {p.lanes and p.lanes.width for p in plans_of(loaded)}


@pytest.mark.asyncio
@pytest.mark.parametrize("busy", [1, 2, 3])
async def test_lanes_take_only_streams_that_have_nothing_to_do(busy: int, tmp_path: Path) -> None:
    """Where others have requests on some, lanes share the rest; where all are taken, the chunk is on one."""
    async with spreading(SimulatedDevice(5)) as rt:
        loaded = await rt.load(network())
        await loaded.infer(given(0))
        before = [rt.session.dispatcher.abandon(stream) for stream in range(1, 1 + busy)]
        async with rt.trace(tmp_path / "trace.json"):
            got = as_bytes(await loaded.infer(given(0)))
        used = {k["track"] for k in slices(read(tmp_path / "trace.json"), "kernel")}

        assert truth("simulated")[0] == got
        assert {e.stream for e in before} == set(range(1, 1 + busy))
        assert {"stream 0", *(f"stream {n}" for n in range(1 + busy, 4))} == used


@pytest.mark.asyncio
@DEVICES
async def test_a_trace_shows_commands_where_they_ran(device: str | None, tmp_path: Path) -> None:
    """Each step on its lane's stream, with its node's name and its request; and the waits between them."""
    async with spreading(device) as rt:
        loaded = await rt.load(network())
        async with rt.trace(tmp_path / "trace.json"):
            await loaded.infer(given(0))
        explained = {n.node: n.lane for n in loaded.explain() if n.decision == "ran"}
    events = read(tmp_path / "trace.json")
    kernels = slices(events, "kernel")

    assert {"stream 0", "stream 1", "stream 2", "stream 3"} == {k["track"] for k in kernels}
    for kernel in kernels:
        assert f"stream {explained[kernel['name']] - 1}" == kernel["track"]
    assert len({k["args"]["request"] for k in kernels}) == 1
    assert {"stream 0"} == {t["track"] for t in slices(events, "transfer")} - {"constants"}
    if device == "simulated":
        assert {"stream 0", "stream 1", "stream 2", "stream 3"} == {w["track"] for w in slices(events, "wait")}


@pytest.mark.asyncio
async def test_branches_overlap() -> None:
    """On a device where every command takes its time, a request is over sooner."""
    took = []
    for branches in (False, True):
        device = SimulatedDevice(4)
        async with spreading(device, branches=branches) as rt:
            loaded = await rt.load(network(8))
            await loaded.infer(given(0))
            begun = device.now
            for i in range(10):
                await loaded.infer(given(i))
            took.append(device.now - begun)

    assert took[1] < 0.85 * took[0]  # every mark's wait takes its time there, too


# --- Order ------------------------------------------------------------------------------------------------------------


async def logged(device: Device) -> list[Entry]:
    async with spreading(device, check_hazards=True) as rt:
        loaded = await rt.load(network())
        with asyncrt.debug.recording(rt) as log:
            for i in range(3):
                await loaded.infer(given(i))
    return log


@pytest.mark.asyncio
@pytest.mark.parametrize("seed", range(3))
async def test_each_wait_taken_out_of_a_record_is_missed(seed: int) -> None:
    """No wait between lanes is implied by others: without it, two commands on the same bytes have no order."""
    log = await logged(SimulatedDevice(seed))
    waits = [place for place, entry in enumerate(log) if isinstance(entry, Waited)]

    assert check(log) == []
    assert len(waits) >= 30
    for place in waits:
        assert check([*log[:place], *log[place + 1 :]]), log[place]


async def run_without(number: int) -> tuple[int, list[BaseException]]:
    """Run without the wait of that number; returns how many there were, and what was raised."""
    counter = [0]
    async with Runtime(SimulatedDevice(3), streams=4, options=options(check_hazards=True)) as rt:
        loaded = await rt.load(network())
        streams = rt.session.dispatcher.streams
        for i, stream in enumerate(streams):
            assert isinstance(stream, WatchedStream)
            streams[i] = DropsAWait(stream, number, counter)
        errors = [e for e in [await error_of(loaded, i) for i in range(2)] if e is not None]
    return counter[0], errors


async def error_of(loaded: Model, index: int) -> BaseException | None:
    try:
        assert truth("simulated")[index] == as_bytes(await loaded.infer(given(index)))
    except Exception as error:
        return error
    return None


@pytest.mark.asyncio
async def test_a_wait_that_a_stream_drops_is_raised_before_the_command_that_needs_it() -> None:
    """Each in turn, while it happens; the other request is as right as ever."""
    count, none = await run_without(-1)
    raised = [(await run_without(n))[1] for n in range(count)]

    assert none == []
    assert count >= 20
    for errors in raised:
        assert [HazardError] == [type(e) for e in errors]


@pytest.mark.asyncio
async def test_one_stream_in_the_order_of_the_steps_is_right_too() -> None:
    """What lies where is planned for several lanes, and holds for one: by the checker, where no stream is idle."""
    async with spreading("simulated", check_hazards=True) as rt:
        rt.session.dispatcher.idle_beside = lambda stream: []  # type: ignore[method-assign]
        loaded = await rt.load(network())
        with asyncrt.debug.recording(rt) as log:
            got = await each(loaded)

        assert truth("simulated") == got
        assert not any(isinstance(e, Waited) for e in log)
        assert all(p.lanes for p in plans_of(loaded))


# --- What goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_command_that_fails_on_any_stream_fails_its_request_alone() -> None:
    """Also on a device that says so at the next mark of that stream, and nowhere else."""
    met = 0
    for n in itertools.count(1):
        device = SimulatedDevice(1, faults=[Fault("command", n)])
        async with spreading(device) as rt:
            loaded = await rt.load(network())
            errors = [await error_of(loaded, i) for i in range(3)]
        if device.faults.calls["command"] < n:
            break
        told = [e for e in errors if e is not None]
        assert len(told) <= 1, n
        assert all(isinstance(e, DeviceCommandError) and "injected" in e.detail for e in told)
        met += len(told)

    assert met > 60


@pytest.mark.asyncio
@pytest.mark.parametrize("site", ["launch", "wait", "mark", "write", "read"])
async def test_a_chunk_that_is_enqueued_in_part_keeps_its_memory_until_all_streams_have_passed_it(site: str) -> None:
    """Each call fails in turn; requests that take the memory over come after what was enqueued, on every stream."""
    failed = 0
    for n in itertools.count(1):
        device = SimulatedDevice(n % 5, faults=[Fault(site, n)])
        async with spreading(device, memory_limit=1 << 14, without={"preallocate"}) as rt:
            loaded = await rt.load(network())
            errors = [*await asyncio.gather(*(error_of(loaded, i) for i in range(5))), await error_of(loaded, 5)]
            assert asyncrt.debug.check(rt).hazards == ()
        if device.faults.calls[site] < n:
            break
        assert errors.count(None) >= 5, (n, errors)
        failed += errors.count(None) == 5

    assert failed >= (0 if site == "mark" else 5)


@pytest.mark.asyncio
async def test_the_memory_of_a_cancelled_request_is_free_when_all_its_streams_have_passed() -> None:
    """Cancelled as soon as it is launched; the next one takes over its block, and everything is in order."""
    async with spreading(SimulatedDevice(2), memory_limit=1 << 14, without={"preallocate"}) as rt:
        loaded = await rt.load(network())
        launched, cancelled = rt.session.dispatcher.launched, []

        def launch(request: int, stream: int, keep: object = None) -> Event:
            event = launched(request, stream, keep)
            task = asyncio.current_task()
            if request % 2 and task is not None:
                cancelled.append(request)
                task.cancel()
            return event

        rt.session.dispatcher.launched = launch  # type: ignore[method-assign]
        outcomes = await asyncio.gather(*(loaded.infer(given(i % 6)) for i in range(24)), return_exceptions=True)

        assert len(cancelled) == 12
        for i, out in enumerate(outcomes):
            if isinstance(out, dict):
                assert truth("simulated")[i % 6] == as_bytes(out)
            else:
                assert isinstance(out, asyncio.CancelledError)
        assert asyncrt.debug.check(rt).hazards == ()


@pytest.mark.asyncio
async def test_a_request_is_over_when_all_its_streams_have_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports of different streams come in any order: here those of the others come last."""
    late: list[tuple[Stream, Mark, Event]] = []
    async with spreading("simulated") as rt:
        loaded = await rt.load(network())
        await loaded.infer(given(0))
        watch = Completions.watch

        def held(completions: Completions, stream: Stream, mark: Mark, event: Event) -> None:
            if stream.index:
                late.append((stream, mark, event))
            else:
                watch(completions, stream, mark, event)

        with monkeypatch.context() as patched:
            patched.setattr(Completions, "watch", held)
            task = asyncio.ensure_future(loaded.infer(given(0)))
            for _ in range(1000):
                await asyncio.sleep(0)
        early, ends, running = task.done(), len(late), rt.statistics().scheduler.running
        for each_late in late:
            watch(rt.session.dispatcher.completions, *each_late)

        assert (ends, running) == (3, 0)
        assert not early
        assert truth("simulated")[0] == as_bytes(await task)


@pytest.mark.asyncio
async def test_a_request_for_which_lanes_take_too_much_memory_goes_without() -> None:
    """Tensors of branches share fewer bytes: where only one lane fits, one lane it is."""
    x = {"x": np.random.default_rng(0).standard_normal((200, WIDTH)).astype(np.float32)}
    async with spreading("simulated") as rt:
        loaded = await rt.load(network())
        expected = as_bytes(await loaded.infer(x))
        (needed,) = (p.arena_nbytes for p in plans_of(loaded))
    async with spreading("simulated", memory_limit=needed - 1) as rt:
        loaded = await rt.load(network())
        got = [as_bytes(await loaded.infer(x)) for _ in range(2)]
        lanes = loaded.explain().lanes

    assert [expected, expected] == got
    assert lanes == 1


# --- Replay -----------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize("device", ["simulated", None], ids=lambda d: d or "opencl")
@pytest.mark.parametrize("sets", [16, 1])
async def test_launches_that_are_set_beforehand_go_to_their_lanes(
    device: str | None, sets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On several streams, and on one where no other is idle; with memory that changes between them.

    Where a plan may have one set of launches, one for several streams goes for one for a single stream, and back.
    """
    monkeypatch.setattr(preset, "OFTEN", 1)
    monkeypatch.setattr(preset, "_SETS", sets)
    async with spreading(device, check_hazards=False) as rt:
        loaded = await rt.load(network())
        for _ in range(3):
            assert truth(device) == await each(loaded)
        together = await asyncio.gather(*(loaded.infer(given(i % 6)) for i in range(30)))

        assert [truth(device)[i % 6] for i in range(30)] == [as_bytes(out) for out in together]
        assert truth(device) == await each(loaded)
        statistics = rt.statistics().presets
        assert statistics.replays > 20
        assert statistics.launches <= sets * sum(len(p.steps) for p in plans_of(loaded))


class Discrete(OpenCLDevice):
    """A device whose events of kernels come late, and whose transfers are pinned, as those of GPUs are."""

    def __init__(self, device: Any, spec: str) -> None:
        super().__init__(device, spec)
        self.late_events = self.pins_transfers = True


@pytest.mark.asyncio
@pytest.mark.parametrize("traced", [False, True])
async def test_devices_with_memory_of_their_own_wait_for_copies_and_land_what_they_read(
    traced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Marks in the middle of a chunk are copies of nothing there, and what is read lands when its own mark comes."""
    monkeypatch.setattr(preset, "OFTEN", 1)
    best = open_device(None)
    assert isinstance(best, OpenCLDevice)
    async with spreading(Discrete(best.cl_device, best.info.spec), check_hazards=False) as rt:
        loaded = await rt.load(network())
        async with rt.trace(tmp_path / "trace.json") if traced else contextlib.AsyncExitStack():
            got = [await each(loaded) for _ in range(3)]
    best.close()

    assert [truth(None)] * 3 == got


@pytest.mark.asyncio
async def test_a_plan_by_recipe_has_the_lanes_of_one_that_was_walked() -> None:
    """At sizes that were never seen; and the same results as without recipes."""
    sizes = [5, 9, 17, 20, 33, 47, 64, 99]

    async def results(**changes: Any) -> tuple[list[dict[str, bytes]], list[ChunkPlan], int]:
        async with spreading(None, check_hazards=False, **changes) as rt:
            if not rt.info.is_cpu:
                pytest.skip("kernels change with the number of rows, and recipes with them")
            loaded = await rt.load(network())
            xs = [np.random.default_rng(n).standard_normal((n, WIDTH)).astype(np.float32) for n in sizes]
            got = [as_bytes(await loaded.infer({"x": x})) for x in xs]
            return got, plans_of(loaded), loaded.network.plans.by_recipe

    by_recipe, recipes, count = await results()
    walked, walks, none = await results(without={"recipes"})

    assert (count > 2, none) == (True, 0)
    assert walked == by_recipe
    for recipe, walk in zip(recipes, walks, strict=True):
        assert recipe.lanes is not None
        assert (recipe.lanes, recipe.arena_nbytes, recipe.uploads) == (walk.lanes, walk.arena_nbytes, walk.uploads)
        assert [s.record for s in recipe.steps] == [s.record for s in walk.steps]


# --- The decision -----------------------------------------------------------------------------------------------------


def test_a_launch_gains_where_it_leaves_half_of_the_device_idle_for_long_enough() -> None:
    """By its work-groups and by what each of them moves; and it says why not."""
    branches = Branches(4, 100)

    assert branches.against(Cost(24, 24 << 16)) == ""
    assert "fills the device: 144 work-groups for 100 compute units" in branches.against(Cost(144, 1 << 30))
    assert "too short to run beside others: 1 work-groups read 4096 bytes" in branches.against(Cost(1, 4096))
    assert Branches(4).against(Cost(1000, 1)) == ""


def test_work_groups_are_counted_by_the_group_or_as_a_driver_would_choose_them() -> None:
    """Those that are not full count, too."""
    assert cost_of((100, 30), (16, 8), 7) == Cost(7 * 4, 7)
    assert cost_of((1000,), None, 7) == Cost(4, 7)


@pytest.mark.parametrize(
    ("wanted", "kind", "streams", "expected"),
    [
        (None, "gpu", 4, Branches(4, 132)),
        (None, "gpu", 1, None),
        (None, "cpu", 4, None),
        (None, "host", 4, None),
        (None, "simulated", 4, None),
        (None, "accelerator", 4, None),
        (True, "cpu", 3, Branches(3)),
        (True, "gpu", 4, Branches(4)),
        (True, "gpu", 1, None),
        (False, "gpu", 4, None),
    ],
)
def test_branches_run_side_by_side_where_that_was_asked_or_on_gpus(
    wanted: bool | None, kind: str, streams: int, expected: Branches | None
) -> None:
    """On one stream never, and on CPUs, where every kernel has all cores, only if asked."""
    info = DeviceInfo(spec=kind, name="", kind=kind, compute_units=132)

    assert expected == branches_of(wanted, info, streams)


class Large(HostDevice):
    """NumPy, called a GPU of many processors: launches of one work-group leave nearly all of it idle."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.info = attrs.evolve(self.info, kind="gpu", compute_units=units)


def wide(width: int) -> bytes:
    """Two chains of products with constants of *width* columns, which meet."""
    nodes = [
        node("a = MatMul(x, w)"), node("b = MatMul(a, w)"), node("c = MatMul(x, w)"), node("d = MatMul(c, w)"),
        node("y = Add(b, d)"),
    ]  # fmt: skip
    w = np.eye(width, dtype=np.float32)
    data: bytes = model(nodes, [f"x f32[n,{width}]"], ["y"], {"w": w}).SerializeToString()
    return data


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("width", "units", "lanes", "why"),
    [
        (256, 100, 2, ""),
        (256, 1, 1, "fills the device"),
        (16, 100, 1, "too short"),
    ],
)
async def test_by_default_the_sizes_of_a_request_decide(width: int, units: int, lanes: int, why: str) -> None:
    """What the device has room for is spread; what fills it, or is over too soon, is not, and explain() says so."""
    async with spreading(Large(units), branches=None) as rt:
        loaded = await rt.load(wide(width))
        x = np.random.default_rng(0).standard_normal((4, width)).astype(np.float32)
        out = await loaded.infer({"x": x})
        explained = loaded.explain()

    np.testing.assert_array_equal(x + x, out["y"])
    assert (lanes, lanes > 1) == (explained.lanes, f"; {lanes} lanes" in explained.summary())
    assert ("lane 2 of 2" in str(explained)) == (lanes == 2)
    assert all(why in n.why for n in explained if n.operator == "MatMul")
