"""Traces: what ran when, on the device's own clock; and nothing of them is left when they end."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from asyncrt import AsyncrtError, Runtime, RuntimeOptions
from asyncrt.devices.simulated import SimulatedDevice, SimulatedStream
from asyncrt.layout import Array
from asyncrt.trace import Trace, Track

from ...builders import model, node
from .test_checked import TIGHT, cancel_every_third, together
from .test_checked import network as two_chunks

DEVICES = pytest.mark.parametrize("device", ["simulated", "host", None], ids=lambda d: d or "opencl")


def network() -> onnx.ModelProto:
    """Two chunks; the second Transpose is a no-op for one column."""
    nodes = [
        node("a = Tanh(x)"),
        node("turned = Transpose(a)", perm=[1, 0]),
        node("places = NonZero(a)"),
        node("found = Cast(places)", to=1),
        node("y = Softmax(found)"),
        node("z = Exp(turned)"),
    ]
    return model(nodes, ["x f32[n,m]"], ["y", "z"])


def column(rows: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((rows, 1)).astype(np.float32)


async def traced(device: str | SimulatedDevice | None, path: Path, *, requests: int = 4) -> list[dict[str, Any]]:
    """The events of a trace of requests at once, without the names of tracks."""
    async with Runtime(device, streams=2, options=RuntimeOptions(warm=False)) as rt:
        loaded = await rt.load(network())
        async with rt.trace(path):
            await asyncio.gather(*(loaded.infer({"x": column(10, i)}) for i in range(requests)))
    return read(path)


def read(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    return [{**e, "track": tracks[e["tid"]]} for e in events if e["ph"] != "M"]


def slices(events: list[dict[str, Any]], category: str) -> list[dict[str, Any]]:
    return [e for e in events if e["ph"] == "X" and e["cat"] == category]


@pytest.mark.asyncio
@DEVICES
async def test_a_trace_shows_each_command_of_each_request(device: str | None, tmp_path: Path) -> None:
    """Kernels by their nodes' names, transfers, planning, enqueueing, and an arrow through each request."""
    events = await traced(device, tmp_path / "trace.json")

    kernels = slices(events, "kernel")
    assert set(Counter(k["name"] for k in kernels).values()) == {4}
    assert {"Tanh_0", "Softmax_4", "Exp_5"} <= {k["name"] for k in kernels}
    assert len(set(Counter(k["args"]["request"] for k in kernels).values())) == 1
    assert {e["name"] for e in slices(events, "transfer")} == {"write", "read"}
    assert len(slices(events, "enqueue")) == 8
    assert len(slices(events, "plan")) >= 2
    flows = [e for e in events if e.get("cat") == "flow"]
    for _, points in itertools.groupby(sorted(flows, key=lambda e: e["id"]), key=lambda e: e["id"]):
        assert [e["ph"] for e in points] == ["s", "t", "t", "f"]
    assert len([e for e in events if e["ph"] in "be"]) == 8


@pytest.mark.asyncio
@DEVICES
async def test_commands_of_a_stream_come_one_after_the_other(device: str | None, tmp_path: Path) -> None:
    """Within the time of their request, which the host measures: the two clocks are one."""
    events = await traced(device, tmp_path / "trace.json")
    requests = {(e["id"], e["ph"]): e["ts"] for e in events if e["ph"] in "be"}
    slack = 200.0  # µs, of the two clocks' alignment

    for stream in ("stream 0", "stream 1"):
        mine = [e for e in events if e["ph"] == "X" and e["track"] == stream]
        assert mine
        for before, after in itertools.pairwise(sorted(mine, key=lambda e: e["ts"])):
            assert before["ts"] + before["dur"] <= after["ts"] + 0.01
        for e in mine:
            assert e["dur"] >= 0
            if "request" in e["args"]:
                number = e["args"]["request"]
                assert requests[number, "b"] - slack <= e["ts"]
                assert e["ts"] + e["dur"] <= requests[number, "e"] + slack


@pytest.mark.asyncio
async def test_skipped_nodes_are_instants_that_name_what_they_are(tmp_path: Path) -> None:
    """Where they would have run: at the beginning of the next node that did."""
    events = await traced("simulated", tmp_path / "trace.json", requests=1)

    (skipped,) = (e for e in events if e["ph"] == "i")
    (following,) = (e for e in events if e["name"] == "Exp_5")
    assert skipped["name"] == "Transpose_1 skipped"
    assert skipped["args"]["alias of"] == "a"
    assert skipped["args"]["why"] == "only unit axes move"
    assert skipped["ts"] == following["ts"]


@pytest.mark.asyncio
async def test_waits_name_the_streams_that_are_waited_for(tmp_path: Path) -> None:
    """A block of a cancelled request is taken over by another stream: its wait is there, and ends with that stream.

    Unless another wait implies it: then there is none.
    """
    async with Runtime(SimulatedDevice(3), streams=3, options=TIGHT) as rt:
        cancel_every_third(rt)
        loaded = await rt.load(two_chunks())
        async with rt.trace(tmp_path / "trace.json"):
            await together(loaded, 40)
        expected = rt.statistics().memory.reused_with_wait
    events = read(tmp_path / "trace.json")

    waits = slices(events, "wait")
    assert 0 < len(waits) <= expected
    for wait in waits:
        (number,) = wait["args"]["for streams"]
        assert wait["track"] != f"stream {number}"
        ends = [e["ts"] + e["dur"] for e in events if e["ph"] == "X" and e["track"] == f"stream {number}"]
        assert any(end <= wait["ts"] + 0.001 for end in ends)


@pytest.mark.asyncio
async def test_a_trace_of_the_simulated_device_repeats_exactly(tmp_path: Path) -> None:
    """Its times are the virtual clock's, also those of the host; request numbers apart, which go on."""
    runs = []
    for name in ("one", "two"):
        events = await traced(SimulatedDevice(5), tmp_path / name)
        runs.append([(e["ph"], e.get("cat"), e["ts"], e.get("dur"), e["track"]) for e in events])

    assert runs[0] == runs[1]


@pytest.mark.asyncio
async def test_memory_is_a_counter(tmp_path: Path) -> None:
    """From nothing to what four requests hold, to what is kept for the next."""
    events = await traced("simulated", tmp_path / "trace.json")

    samples = [e["args"] for e in sorted((e for e in events if e["ph"] == "C"), key=lambda e: e["ts"])]
    assert samples[0] == {"leased": 0, "held": 0}
    assert max(s["leased"] for s in samples) > 0
    assert samples[-1]["leased"] == 0
    assert samples[-1]["held"] > 0


@pytest.mark.asyncio
async def test_constants_and_builds_are_in_a_trace_that_a_model_is_loaded_in(tmp_path: Path) -> None:
    """Uploads have a track of their own, and each build shows on its thread."""
    weights = np.ones((4, 4), np.float32)
    options = RuntimeOptions(warm=False, without={"disk_cache"})
    async with Runtime(None, streams=1, options=options) as rt, rt.trace(tmp_path / "trace.json"):
        loaded = await rt.load(model([node("y = MatMul(x, w)")], ["x f32[n,4]"], ["y"], {"w": weights}))
        await loaded.infer({"x": np.ones((2, 4), np.float32)})
    events = read(tmp_path / "trace.json")

    uploads = [e for e in events if e["ph"] == "X" and e["track"] == "constants"]
    builds = [e for e in events if e.get("cat") == "build"]
    assert [u["name"] for u in uploads] == ["write"]
    assert [b["name"] for b in builds] == ["build 1 kernels"]
    assert builds[0]["dur"] > 0
    assert builds[0]["track"].startswith("builds on asyncrt-build")


@pytest.mark.asyncio
@DEVICES
async def test_a_trace_may_begin_and_end_while_requests_are_on_their_way(device: str | None, tmp_path: Path) -> None:
    """The streams go on in their order through both changes: results are the same bytes throughout."""
    given = [column(2000, i) for i in range(40)]
    async with Runtime(device, streams=2, options=RuntimeOptions(warm=False)) as rt:
        loaded = await rt.load(network())
        alone = [await loaded.infer({"x": x}) for x in given]
        tasks = [asyncio.ensure_future(loaded.infer({"x": x})) for x in given]
        for i in range(3):
            await tasks[4 * i]
            async with rt.trace(tmp_path / f"{i}.json"):
                await tasks[4 * i + 2]
        together = await asyncio.gather(*tasks)

    for one, other in zip(alone, together, strict=True):
        assert one["y"].tobytes() == other["y"].tobytes()
        assert one["z"].tobytes() == other["z"].tobytes()


@pytest.mark.asyncio
async def test_nothing_of_a_trace_is_left_when_it_ends(tmp_path: Path) -> None:
    """Also when what is traced fails, and then nothing is written: the executor has the device's own streams again."""
    async with Runtime("simulated", options=RuntimeOptions(warm=False, check_hazards=False)) as rt:
        loaded = await rt.load(network())
        async with rt.trace(tmp_path / "trace.json"):
            during = {type(s).__name__ for s in rt.session.dispatcher.streams}
            await loaded.infer({"x": column(3)})
        with pytest.raises(ZeroDivisionError):
            async with rt.trace(tmp_path / "failed.json"):
                raise ZeroDivisionError
        await loaded.infer({"x": column(3)})

        assert during == {"TracedStream"}
        assert {type(s) for s in rt.session.dispatcher.streams} == {SimulatedStream}
        assert type(rt.session.uploads.stream) is SimulatedStream
        assert rt.session.dispatcher.tracer is None
        assert not (tmp_path / "failed.json").exists()


@pytest.mark.asyncio
@DEVICES
async def test_a_runtime_that_is_closed_in_a_trace_ends_it(device: str | None, tmp_path: Path) -> None:
    """Nobody waits for streams that are gone, and what had been done is written."""
    rt = Runtime(device, options=RuntimeOptions(warm=False))
    await rt.open()
    loaded = await rt.load(network())
    async with rt.trace(tmp_path / "trace.json"):
        await loaded.infer({"x": column(3)})
        await rt.close()

    assert "Tanh_0" in [e["name"] for e in read(tmp_path / "trace.json")]


@pytest.mark.asyncio
async def test_one_trace_is_taken_at_a_time(tmp_path: Path) -> None:
    """The second is refused, and the first goes on."""
    async with Runtime("simulated", options=RuntimeOptions(warm=False)) as rt:
        loaded = await rt.load(network())
        async with rt.trace(tmp_path / "trace.json"):
            with pytest.raises(AsyncrtError, match="a trace of this runtime is being taken"):
                await loaded.profile({"x": column(3)})
            await loaded.infer({"x": column(3)})

    assert "Tanh_0" in (tmp_path / "trace.json").read_text()


@pytest.mark.asyncio
@DEVICES
async def test_a_profile_is_an_explanation_with_times(device: str | None) -> None:
    """Of the nodes that launched kernels in this request alone, though others run at the same time."""
    async with Runtime(device, streams=2, options=RuntimeOptions(warm=False)) as rt:
        loaded = await rt.load(network())
        plain = await loaded.infer({"x": column(5)}) and loaded.explain()
        others = [asyncio.ensure_future(loaded.infer({"x": column(5, i)})) for i in range(3)]
        profiled = await loaded.profile({"x": column(5)})
        await asyncio.gather(*others)

    assert plain.device_us is None
    assert "device µs" not in str(plain)
    assert [n.decision for n in plain] == [n.decision for n in profiled]
    assert [n.device_us is not None for n in profiled] == [n.decision == "ran" for n in profiled]
    assert profiled.device_us == sum(n.device_us or 0 for n in profiled)
    assert "device µs" in str(profiled)
    assert "µs on the device" in profiled.summary()


@pytest.mark.asyncio
async def test_a_profile_counts_each_execution_of_a_subgraph(tmp_path: Path) -> None:
    """A node inside a loop takes what all its turns take together, by the trace of the same requests."""
    text = """<ir_version: 8, opset_import: ["" : 18]>
    twice (int64 count, float[n] x) => (float[n] y) {
        go = Constant <value = bool {1}> ()
        y = Loop (count, go, x) <body = inner (int64 i, bool on, float[n] before) => (bool more, float[n] after) {
            more = Identity (on)
            after = Neg (before)
        }>
    }"""
    times = []
    async with Runtime(SimulatedDevice(2), streams=1, options=RuntimeOptions(warm=False)) as rt:
        loaded = await rt.load(onnx.parser.parse_model(text))
        for count in (1, 6):
            start = rt.device.clock()
            explanation = await loaded.profile({"count": np.int64(count), "x": np.ones(4, np.float32)})
            (inner,) = (n for n in explanation if n.operator == "Neg")
            assert inner.device_us is not None
            times.append(inner.device_us)
            assert inner.device_us * 1000 <= rt.device.clock() - start
        launches = rt.statistics().launches

    assert launches == 7
    assert times[1] > times[0]


@pytest.mark.asyncio
async def test_the_page_colours_nodes_by_time_where_it_was_measured() -> None:
    """A second mode with a button of its own; without times there is no such button, and no such class."""
    async with Runtime("simulated", options=RuntimeOptions(warm=False)) as rt:
        loaded = await rt.load(network())
        await loaded.infer({"x": column(5)})
        plain, profiled = loaded.explain().to_html(), await loaded.profile({"x": column(5)})
        timed = profiled.to_html()

    assert 'id="heat"' in timed
    assert timed.count('class="node ran heat') == profiled.counts["ran"] > 2
    assert timed.count('heat8"') == 1  # the longest
    assert 'id="heat"' not in plain
    assert "node ran heat" not in plain


def test_an_arrow_needs_two_ends() -> None:
    """One point makes none; of several the first is the start, and the last the end, whatever order they come in."""
    trace, track = Trace(1000), Track("p", "t")
    trace.flow("one", 1, [(2000, track)])
    before = len(trace)
    trace.flow("three", 2, [(9000, track), (5000, track), (7000, track)])

    assert before == 0
    events = [e for e in json.loads(trace.to_json())["traceEvents"] if e["ph"] != "M"]
    assert [(e["ph"], e["ts"]) for e in events] == [("s", 4.0), ("t", 6.0), ("f", 8.0)]
