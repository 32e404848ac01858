"""Brief iterations of a loop run on the thread that iterates, and give what others give."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import onnx
import pytest

from asyncrt import DeadlineExceeded, DeviceCommandError, IndexOutOfRange, Runtime, RuntimeOptions
from asyncrt.devices.faults import Fault
from asyncrt.layout import Array
from asyncrt.runtime.request.callers_thread.usual import BRIEF_S
from asyncrt.runtime.request.callers_turns import TURN_S

from ...builders import model, node
from ...paths import EXACT, on_path
from .test_control_flow import body, f32, gathering, graph
from .test_direct import Lending, ticking

PLAIN = RuntimeOptions(check_hazards=False, warm=False)
TRIPS = 12


def halving() -> onnx.ModelProto:
    """A loop of as many trips as a request says, whose condition the device computes."""
    nodes = ["w = Mul(v, half)", "m = ReduceMax(w)", "c2 = Greater(m, least)", "r = Neg(w)"]
    made = [node(n, keepdims=0) if "Reduce" in n else node(n) for n in nodes]
    loop = node("y, rows = Loop(n,, x)", body=body(made, ["v f32[k]"], "c2 w r"))
    constants = {"half": np.array(0.5, np.float32), "least": np.array(0, np.float32)}
    return model([loop], ["x f32[k]", "n i64[]"], ["y", "rows"], constants)


def given(trips: int = TRIPS) -> dict[str, Any]:
    return {"x": np.arange(1, 5, dtype=np.float32), "n": np.array(trips, np.int64)}


def right(out: dict[str, Array], trips: int = TRIPS) -> bool:
    return bool((out["y"] == given()["x"] / 2**trips).all()) and len(out["rows"]) == trips


@pytest.mark.asyncio
async def test_brief_iterations_run_on_the_thread_that_iterates(users_path: None) -> None:
    """From when the body's plan is known and its launches are prepared; a request counts once."""
    device = Lending()
    async with Runtime(device, options=PLAIN) as rt:
        loaded = await rt.load(halving())
        assert right(await loaded.infer(given()))
        first = device.runs
        assert right(await loaded.infer(given()))
        statistics = rt.statistics()

    assert (first, device.runs) == (TRIPS - 1, 2 * TRIPS - 1)
    assert (statistics.requests, statistics.memory.leases, statistics.launches) == (2, 0, device.launches)


@pytest.mark.asyncio
async def test_requests_that_iterate_at_once_take_turns_on_the_loops_thread(users_path: None) -> None:
    """Between two parts of one nothing of it is on the device: others need not go from thread to thread beside it. Each
    gets its own results, and whoever else is on the event loop has turns between them."""
    device, trips = Lending(), (12, 60, 25, 40)
    async with Runtime(device, options=PLAIN) as rt:
        loaded = await rt.load(halving())
        for _ in range(2):
            assert right(await loaded.infer(given()))
        before = device.runs
        async with ticking() as ticks:
            results = await asyncio.gather(*(loaded.infer(given(n)) for n in trips))
            turns = ticks()

        assert all(map(right, results, trips))
        assert device.runs - before == sum(trips)
        assert turns > len(trips)
        assert rt.statistics().memory.leases == 0


@pytest.mark.asyncio
async def test_beside_what_is_enqueued_they_go_the_general_way(users_path: None) -> None:
    """Who waits for an iteration on the loop's thread would wait for another request's commands, too."""
    device = Lending()
    async with Runtime(device, options=PLAIN) as rt:
        loaded, other = await rt.load(halving()), await rt.load(model([node("y = Neg(x)")], ["x f32[k]"], ["y"]))
        for _ in range(2):
            await loaded.infer(given())
        device.seconds = 1.0
        await other.infer({"x": given()["x"]})  # now it is known to take so long
        runs = device.runs
        beside = asyncio.create_task(other.infer({"x": given()["x"]}))
        marks = other.network.session.dispatcher.marks
        for _ in range(100):
            if not len(marks):
                await asyncio.sleep(0)
        assert len(marks)
        device.seconds = 1e-6
        result = await loaded.infer(given())

        assert right(result)
        assert device.runs - runs < TRIPS  # those behind it may run so
        assert ((await beside)["y"] == -given()["x"]).all()


@pytest.mark.asyncio
@pytest.mark.parametrize("reason", ["long", "off", "watched"])
async def test_otherwise_they_go_the_general_way(users_path: None, reason: str) -> None:
    """Where the device takes long, the mechanism is off, or commands are checked."""
    device = Lending(seconds=BRIEF_S * 40 if reason == "long" else 1e-6)
    without = frozenset({"direct"}) if reason == "off" else frozenset()
    options = RuntimeOptions(warm=False, check_hazards=reason == "watched", without=without)
    async with Runtime(device, options=options) as rt:
        loaded = await rt.load(halving())
        results = [await loaded.infer(given()) for _ in range(2)]

    assert all(map(right, results))
    assert device.runs == 0


@pytest.mark.asyncio
async def test_others_have_their_turn_between_iterations(users_path: None) -> None:
    """A task of the same event loop waits for no longer than for brief requests, and can end the loop."""
    device = Lending()
    async with Runtime(device, options=PLAIN) as rt:
        loaded = await rt.load(halving())
        await loaded.infer(given())
        endless = asyncio.create_task(loaded.infer(given(1 << 60)))
        longest = 0.0
        while device.runs < 100:
            before = device.now
            await asyncio.sleep(0)
            longest = max(longest, device.now - before)
        endless.cancel()
        with pytest.raises(asyncio.CancelledError):
            await endless
        with pytest.raises(DeadlineExceeded):
            await loaded.infer({"x": np.full(4, np.inf, np.float32), "n": np.array(1 << 60)}, deadline=0.02)

        assert 0 < longest <= 1.2 * TURN_S
        assert right(await loaded.infer(given()))
        assert rt.statistics().memory.leases == 0


@pytest.mark.asyncio
async def test_a_command_that_fails_in_one_is_told(users_path: None) -> None:
    """With the name of the node; the requests behind it are served."""
    faults = [Fault("command", n=60)]
    device = Lending(faults=faults)
    async with Runtime(device, options=PLAIN) as rt:
        loaded = await rt.load(halving())

        with pytest.raises(DeviceCommandError, match="in 'Loop_0'"):
            await loaded.infer(given(100))
        assert right(await loaded.infer(given()))
        assert device.runs > TRIPS
        assert rt.statistics().memory.leases == 0


@pytest.mark.asyncio
async def test_an_index_out_of_range_ends_it(users_path: None) -> None:
    """In a late iteration, when what is indexed lies on the device."""
    x = f32(40, 300)
    device = Lending()
    async with Runtime(device, options=PLAIN) as rt:
        loaded = await rt.load(gathering())
        for _ in range(2):
            await loaded.infer({"x": x, "n": np.array(40, np.int64)})
            with pytest.raises(IndexOutOfRange, match="body/Gather_1"):
                await loaded.infer({"x": x, "n": np.array(41, np.int64)})

        assert device.runs > 100
        assert rt.statistics().memory.leases == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("mechanism", EXACT)
async def test_every_mechanism_leaves_the_bits_of_a_loop(either_path: str, mechanism: Any) -> None:
    """Of a Loop with a large tensor from outside, and of a Scan, one after the other and at once."""
    each = graph([node("t2 = Add(t, e)"), node("o = Tanh(t2)")], ["t f32[m]", "e f32[m]"], ["t2", "o"])
    scan = node("last, all = Scan(y, rows)", body=each, num_scan_inputs=1)
    source = gathering()
    source.graph.node.append(scan)
    for name in ("last", "all"):
        source.graph.output.append(onnx.ValueInfoProto(name=name))
    requests = [{"x": f32(24, 300, seed=n), "n": np.array(n, np.int64)} for n in (24, 3, 17)]

    async with Runtime(options=on_path(RuntimeOptions(warm=False, without=frozenset({"stand_in"})))) as rt:
        loaded = await rt.load(source)
        expected = [[a.tobytes() for a in (await loaded.infer(r)).values()] for r in requests]
    async with Runtime(options=RuntimeOptions(warm=False, without=frozenset({mechanism, "stand_in"}))) as rt:
        loaded = await rt.load(source)
        alone = [[a.tobytes() for a in (await loaded.infer(r)).values()] for r in requests]
        together = await asyncio.gather(*(loaded.infer(r) for r in requests))

    assert expected == alone == [[a.tobytes() for a in t.values()] for t in together]
