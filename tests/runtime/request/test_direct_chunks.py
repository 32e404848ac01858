"""Chunks between which the host decides run on the loop's thread where nothing is enqueued beside: the same bits."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import onnx
import pytest

from asyncrt import DeadlineExceeded, DeviceCommandError, Runtime, RuntimeOptions
from asyncrt.devices.faults import Fault
from asyncrt.layout import Array
from asyncrt.runtime.request.callers_thread.usual import BRIEF_S

from ...builders import model, node
from ...paths import EXACT, on_path
from .test_control_flow import body, branch, f32
from .test_direct import Lending

PLAIN = RuntimeOptions(check_hazards=False, warm=False)
OFTEN = 10  # requests of one shape, after which its launches are prepared
TRIPS = 6


def found() -> onnx.ModelProto:
    """A model whose host waits for how many elements are positive; the second chunk reads what the first has left."""
    nodes = [
        "w = Mul(x, two)", "p = Greater(w, zero)", "places = NonZero(p)", "t = Transpose(places)",
        "positive = GatherND(w, t)", "y = Neg(positive)",
    ]  # fmt: skip
    constants = {"two": np.array(2, np.float32), "zero": np.array(0, np.float32)}
    return model([node(n) for n in nodes], ["x f32[k]"], ["y"], constants)


def choosing() -> onnx.ModelProto:
    """A loop whose body asks the device which branch to take."""
    choose = node(
        "w = If(big)",
        then_branch=branch("halved = Mul(v, half)", outputs="halved", constants={"half": np.float32(0.5)}),
        else_branch=branch("more = Add(v, one)", outputs="more", constants={"one": np.float32(1)}),
    )
    nodes = [node("m = ReduceMax(v)", keepdims=0), node("big = Greater(m, limit)"), choose, node("r = Neg(w)")]
    loop = node("y, rows = Loop(n,, x)", body=body([*nodes, node("c2 = Identity(c)")], ["v f32[k]"], "c2 w r"))
    return model([loop], ["x f32[k]", "n i64[]"], ["y", "rows"], {"limit": np.array(4, np.float32)})


def chosen(x: Array) -> Array:
    for _ in range(TRIPS):
        x = x * np.float32(0.5) if x.max() > 4 else x + np.float32(1)
    return x


async def several(loaded: Any, x: Array) -> None:
    """Ask for the same until its launches are prepared."""
    for _ in range(OFTEN):
        assert (await loaded.infer({"x": x}))["y"].tobytes() == (-2 * x[x > 0]).tobytes()


@pytest.mark.asyncio
async def test_brief_chunks_run_on_the_loops_thread(users_path: None) -> None:
    """From when their plans are known and their launches prepared; no memory stays behind."""
    x, device = f32(64), Lending()
    async with Runtime(device, options=PLAIN) as rt:
        loaded = await rt.load(found())
        await several(loaded, x)
        before = device.runs
        await several(loaded, x)
        statistics = rt.statistics()

    assert device.runs - before == 2 * OFTEN
    assert (statistics.requests, statistics.memory.leases, statistics.launches) == (2 * OFTEN, 0, device.launches)


@pytest.mark.asyncio
async def test_chunks_of_requests_that_come_at_once_take_turns_there(users_path: None) -> None:
    """None of them goes from thread to thread, once that is known to be sooner done."""
    device, pictures = Lending(), [f32(64, seed=seed) for seed in range(4)]
    async with Runtime(device, options=PLAIN) as rt:
        loaded = await rt.load(found())
        for x in pictures:
            await several(loaded, x)
        before = device.runs
        await asyncio.gather(*(several(loaded, x) for x in pictures))

        assert device.runs - before == 2 * OFTEN * len(pictures)
        assert rt.statistics().memory.leases == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("reason", ["long", "off", "watched"])
async def test_otherwise_they_go_the_general_way(users_path: None, reason: str) -> None:
    """Where the device takes long, the mechanism is off, or commands are checked."""
    x, device = f32(64), Lending(seconds=BRIEF_S * 40 if reason == "long" else 1e-6)
    without = frozenset({"direct"}) if reason == "off" else frozenset()
    options = RuntimeOptions(warm=False, check_hazards=reason == "watched", without=without)
    async with Runtime(device, options=options) as rt:
        loaded = await rt.load(found())
        await several(loaded, x)

        assert device.runs == 0


@pytest.mark.asyncio
async def test_a_body_that_asks_which_branch_to_take_runs_so(users_path: None) -> None:
    """Its pieces and its branches, in each iteration."""
    x, device = f32(64), Lending()
    request = {"x": x, "n": np.array(TRIPS, np.int64)}
    async with Runtime(device, options=PLAIN) as rt:
        loaded = await rt.load(choosing())
        for _ in range(OFTEN):
            assert (await loaded.infer(request))["y"].tobytes() == chosen(x).tobytes()
        before = device.runs
        assert (await loaded.infer(request))["y"].tobytes() == chosen(x).tobytes()

        assert device.runs - before >= 3 * TRIPS
        assert rt.statistics().memory.leases == 0


@pytest.mark.asyncio
async def test_a_command_that_fails_in_one_is_told(users_path: None) -> None:
    """It is that request's alone; those behind it are served, and its memory comes back."""
    x, device = f32(64), Lending(faults=[Fault("command", n=90)])
    async with Runtime(device, options=PLAIN) as rt:
        loaded = await rt.load(found())
        with pytest.raises(DeviceCommandError):
            await several(loaded, x)
        ran = device.runs
        await several(loaded, x)

        assert 0 < ran < device.runs
        assert rt.statistics().memory.leases == 0


@pytest.mark.asyncio
async def test_a_deadline_that_passed_between_two_ends_it(users_path: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is not begun."""
    x, device = f32(64), Lending()
    async with Runtime(device, options=PLAIN) as rt:
        loaded = await rt.load(found())
        await several(loaded, x)
        before = device.runs
        monkeypatch.setattr(rt.session.dispatcher, "clock", lambda: float(device.runs))
        with pytest.raises(DeadlineExceeded):
            await loaded.infer({"x": x}, deadline=0.5)

        assert device.runs == before + 1
        assert rt.statistics().memory.leases == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("mechanism", EXACT)
async def test_every_mechanism_leaves_the_bits_of_chunks(either_path: str, mechanism: Any) -> None:
    """One after the other, and at once."""
    requests = [{"x": f32(40 + n, seed=n)} for n in (0, 3, 17, 0, 3, 17)]
    async with Runtime(options=on_path(RuntimeOptions(warm=False, without=frozenset({"stand_in"})))) as rt:
        loaded = await rt.load(found())
        expected = [[a.tobytes() for a in (await loaded.infer(r)).values()] for r in requests * 4]
    async with Runtime(options=RuntimeOptions(warm=False, without=frozenset({mechanism, "stand_in"}))) as rt:
        loaded = await rt.load(found())
        alone = [[a.tobytes() for a in (await loaded.infer(r)).values()] for r in requests * 4]
        together = await asyncio.gather(*(loaded.infer(r) for r in requests * 4))

    assert expected == alone == [[a.tobytes() for a in t.values()] for t in together]
