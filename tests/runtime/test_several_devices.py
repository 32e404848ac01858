"""Models on several devices: one runtime, a copy of each model on every device, each request where it ends first."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import attrs
import numpy as np
import pytest

import asyncrt
from asyncrt.devices.faults import Fault
from asyncrt.devices.opencl.find import find_devices
from asyncrt.devices.simulated import SimulatedDevice
from asyncrt.runtime.model import Model
from asyncrt.runtime.request.replicas import Replicas

from ..builders import model, node

X = np.arange(12, dtype=np.float32).reshape(3, 4)
WEIGHTS = np.arange(16, dtype=np.float32).reshape(4, 4)
PRODUCT = model([node("y = MatMul(x, w)")], ["x f32[n,4]"], ["y"], {"w": WEIGHTS})
STATE = {"past": "present"}
BEST = find_devices()[0][0]
"""The device of whoever names none; twice, it is two contexts."""


class Even(SimulatedDevice):
    """A device whose commands all take equally long."""

    def __init__(self, name: str, seconds: float, faults: Sequence[Fault] = (), memory: int = 1 << 30) -> None:
        super().__init__(faults=faults, memory=memory)
        self.info = attrs.evolve(self.info, spec=name, identity=str(seconds))
        self._seconds = seconds

    def duration(self) -> float:
        return self._seconds


def replicas(loaded: Model) -> Replicas:
    """What a model is on several devices."""
    assert isinstance(loaded.network, Replicas)
    return loaded.network


def requests(rt: asyncrt.Runtime) -> dict[str, int]:
    """How many requests each device has had."""
    return {name: s.requests for name, s in rt.statistics().devices.items()}


async def infer_each(loaded: Model, many: int) -> None:
    """Run different requests at once, and check the answers."""
    answers = await asyncio.gather(*(loaded.infer({"x": X + i}) for i in range(many)))
    for i, outputs in enumerate(answers):
        np.testing.assert_array_equal((X + i) @ WEIGHTS, outputs["y"])


@pytest.mark.asyncio
@pytest.mark.parametrize("device", ["simulated,simulated:2", [BEST, BEST], [BEST, "host"]])
async def test_answers_are_the_same_wherever_requests_go(device: str | list[str]) -> None:
    """Two contexts of a driver, devices that differ, and virtual ones; each has the weights, and counts for itself."""
    async with asyncrt.Runtime(device) as rt:
        loaded = await rt.load(PRODUCT)
        await infer_each(loaded, 8)

        s = rt.statistics()
        assert s.requests == 8
        assert all(each.requests > 0 for each in s.devices.values())
        assert s.launches == sum(each.launches for each in s.devices.values())
        assert len(s.scheduler.depths) == rt.streams == sum(len(d.scheduler.depths) for d in s.devices.values())
        assert all(each.weights.entries == 1 for each in s.devices.values())

        await rt.unload(loaded)
        assert rt.statistics().weights_nbytes == 0
        with pytest.raises(asyncrt.RuntimeClosedError, match="was unloaded"):
            await loaded.infer({"x": X})
        with pytest.raises(asyncrt.ArgumentError, match="loaded and not unloaded since"):
            await rt.unload(loaded)


@pytest.mark.asyncio
async def test_devices_that_are_alike_read_a_model_and_build_its_kernels_once(tmp_path: Path) -> None:
    """They share what is compiled of the file, and each finds what the other has built."""
    options = asyncrt.RuntimeOptions(cache_dir=tmp_path)
    async with asyncrt.Runtime([BEST, BEST], options=options) as rt:
        loaded = await rt.load(PRODUCT)
        await infer_each(loaded, 8)

        first, second = replicas(loaded).replicas
        assert first.program is second.program
        (built, found), (also_built, also_found) = (
            (each.kernels.built, each.kernels.from_disk) for each in rt.statistics().devices.values()
        )
        assert built + also_built > 0
        assert (found, also_found) == (also_built, built)


@pytest.mark.asyncio
async def test_faster_devices_get_more() -> None:
    """Once it was seen what requests take, all devices end at about the same time, as late as must be."""
    fast, slow = Even("fast", 10e-6), Even("slow", 50e-6)
    async with asyncrt.Runtime([slow, fast], streams=1) as rt:
        loaded = await rt.load(PRODUCT)
        await infer_each(loaded, 8)
        begun = slow.now, fast.now

        await infer_each(loaded, 60)

        took = slow.now - begun[0], fast.now - begun[1]
        at_best = 60 / (1 / (3 * 10e-6) + 1 / (3 * 50e-6))  # three commands each
        assert at_best <= max(took) <= 1.15 * at_best
        assert "it was to end on " in loaded.explain().where


@pytest.mark.asyncio
async def test_one_request_after_the_other_stays_where_plans_are() -> None:
    """Of devices that are alike and have nothing to do, the first has seen most."""
    async with asyncrt.Runtime("simulated,simulated:2") as rt:
        loaded = await rt.load(PRODUCT)
        for _ in range(5):
            await infer_each(loaded, 1)

        assert requests(rt) == {"simulated": 5, "simulated:2": 0}


@pytest.mark.asyncio
async def test_what_is_cancelled_or_late_is_no_backlog() -> None:
    """Whatever ends a request, its device is as free as before, and others go on."""
    async with asyncrt.Runtime("simulated,simulated:2", options=asyncrt.RuntimeOptions(max_in_flight=1)) as rt:
        loaded = await rt.load(PRODUCT)
        tasks = [asyncio.create_task(loaded.infer({"x": X + i})) for i in range(8)]
        late = asyncio.create_task(loaded.infer({"x": X}, deadline=0))
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()

        answers = await asyncio.gather(*tasks, return_exceptions=True)

        with pytest.raises(asyncrt.DeadlineExceeded):
            await late
        for i, answer in enumerate(answers):
            if i % 2:
                assert isinstance(answer, dict)
                np.testing.assert_array_equal((X + i) @ WEIGHTS, answer["y"])
            else:
                assert isinstance(answer, asyncio.CancelledError)
        assert [len(r.backlog) for r in replicas(loaded).replicas] == [0, 0]
        assert rt.statistics().in_flight == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("hangs", [False, True])
async def test_a_lost_device_fails_what_it_held_and_others_go_on(hangs: bool) -> None:
    """With the error of a device that is lost; later requests, sequences, models and traces are the other's."""
    lost, there = Even("lost", 1e-5, [Fault("device", 40, hangs=hangs)]), Even("there", 1e-5)
    async with asyncrt.Runtime([lost, there]) as rt:
        loaded = await rt.load(PRODUCT)
        answers = await asyncio.gather(*(loaded.infer({"x": X + i}) for i in range(40)), return_exceptions=True)

        failed = [a for a in answers if isinstance(a, BaseException)]
        assert 0 < len(failed) < 40
        assert all(isinstance(e, asyncrt.DeviceLostError) for e in failed)
        for i, answer in enumerate(answers):
            if isinstance(answer, dict):
                np.testing.assert_array_equal((X + i) @ WEIGHTS, answer["y"])

        before = requests(rt)
        await infer_each(loaded, 6)
        assert requests(rt) == {"lost": before["lost"], "there": before["there"] + 6}
        again = await rt.load(PRODUCT)
        await infer_each(again, 2)
        async with loaded.batched() as batched:
            np.testing.assert_array_equal(X @ WEIGHTS, (await batched.infer({"x": X}))["y"])
        await rt.unload(loaded)


@pytest.mark.asyncio
async def test_a_runtime_without_a_device_says_so() -> None:
    """When the last one is lost, requests and models are refused as with one device."""
    devices = [Even(name, 1e-5, [Fault("device", 30)]) for name in ("a", "b")]
    async with asyncrt.Runtime(devices) as rt:
        loaded = await rt.load(PRODUCT)
        await asyncio.gather(*(loaded.infer({"x": X}) for _ in range(60)), return_exceptions=True)

        assert rt.lost
        with pytest.raises(asyncrt.DeviceLostError):
            await loaded.infer({"x": X})
        with pytest.raises(asyncrt.DeviceLostError):
            await rt.load(PRODUCT)


@pytest.mark.asyncio
async def test_a_model_that_does_not_fit_one_device_is_on_none() -> None:
    """Loading fails with that device's error, and gives the others' memory back."""
    async with asyncrt.Runtime([Even("large", 1e-5), Even("small", 1e-5, memory=8)]) as rt:
        with pytest.raises(asyncrt.OutOfDeviceMemory):
            await rt.load(PRODUCT)

        assert rt.statistics().weights_nbytes == 0


@pytest.mark.asyncio
async def test_limits_of_memory_are_each_devices() -> None:
    """Two devices hold twice as much; a request that is too large for one is too large."""
    options = asyncrt.RuntimeOptions(memory_limit=4096)
    async with asyncrt.Runtime("simulated,simulated:2", options=options) as rt:
        loaded = await rt.load(PRODUCT)
        await infer_each(loaded, 30)
        assert rt.statistics().memory.limit == 2 * 4096

        with pytest.raises(asyncrt.OutOfDeviceMemory):
            await loaded.infer({"x": np.zeros((1000, 4), np.float32)})


@pytest.mark.asyncio
@pytest.mark.parametrize("device", ["simulated,simulated:2", [BEST, BEST]])
async def test_a_sequence_stays_where_its_state_is(device: str | list[str]) -> None:
    """Each begins where fewest are; its steps go nowhere else, and the answers are those of one device."""
    seen = model([node("present = Add(past, x)"), node("y = Neg(present)")],
                 ["past f32[n]", "x f32[n]"], ["present", "y"])  # fmt: skip
    x = np.ones(2, np.float32)
    async with asyncrt.Runtime(device) as rt:
        loaded = await rt.load(seen)
        sequences = [loaded.sequence(STATE) for _ in range(4)]
        assert [len(r.sequences) for r in replicas(loaded).replicas] == [2, 2]

        for by, sequence in enumerate(sequences):
            await sequence.infer({"past": 0 * x, "x": by * x})
        answers = await asyncio.gather(*(s.infer({"x": by * x}) for by, s in enumerate(sequences)))

        for by, outputs in enumerate(answers):
            np.testing.assert_array_equal(-2 * by * x, outputs["y"])
        assert set(requests(rt).values()) == {4}
        for sequence in sequences[::2]:
            await sequence.close()
        assert [len(r.sequences) for r in replicas(loaded).replicas] == [0, 2]
        begun = loaded.sequence(STATE)
        assert [len(r.sequences) for r in replicas(loaded).replicas] == [1, 2]
        for sequence in (*sequences, begun):
            await sequence.close()
        assert rt.statistics().memory.leases == 0


@pytest.mark.asyncio
async def test_groups_of_sequences_run_together_on_each_device() -> None:
    """Steps that wait on one device are one inference there."""
    seen = model([node("present = Add(past, x)"), node("y = Neg(present)")],
                 ["past f32[b,n]", "x f32[b,n]"], ["present", "y"])  # fmt: skip
    x = np.ones((1, 2), np.float32)
    async with asyncrt.Runtime("simulated,simulated:2") as rt:
        loaded = await rt.load(seen)
        async with loaded.sequences(STATE) as group:
            sequences = [group.sequence() for _ in range(8)]
            for _ in range(3):
                await asyncio.gather(*(s.infer({"x": by * x}) for by, s in enumerate(sequences)))
            answers = await asyncio.gather(*(s.infer({"x": by * x}) for by, s in enumerate(sequences)))

            for by, outputs in enumerate(answers):
                np.testing.assert_array_equal(-4 * by * x, outputs["y"])
            s = group.statistics()
            assert s.steps == 32
            assert s.inferences < 32
            assert group.sharing is not None
            assert all(n > 0 for n in requests(rt).values())
        assert rt.statistics().memory.leases == 0


@pytest.mark.asyncio
async def test_batches_go_where_they_end_first() -> None:
    """Requests of many callers are put together once, and their batches spread over the devices."""
    async with asyncrt.Runtime("simulated,simulated:2") as rt:
        loaded = await rt.load(PRODUCT)
        async with loaded.batched(max_batch=12) as batched:
            before = requests(rt)
            answers = await asyncio.gather(*(batched.infer({"x": X + i}) for i in range(40)))

            for i, outputs in enumerate(answers):
                np.testing.assert_array_equal((X + i) @ WEIGHTS, outputs["y"])
            assert all(n > before[name] for name, n in requests(rt).items())
            assert batched.statistics().executions < 40


@pytest.mark.asyncio
async def test_a_trace_shows_the_lanes_of_each_device(tmp_path: Path) -> None:
    """And the memory of each; devices of the same name are told apart."""
    async with asyncrt.Runtime(["simulated", "simulated"], streams=1) as rt:
        loaded = await rt.load(PRODUCT)
        async with rt.trace(tmp_path / "trace.json"):
            await infer_each(loaded, 4)
        timed = await loaded.profile({"x": X})

    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    kernels = {names[e["pid"]] for e in events if e.get("cat") == "kernel"}
    assert kernels == {"device simulated", "device simulated#2"}
    assert {e["name"] for e in events if e["ph"] == "C"} == {
        f"memory of intermediates on simulated{n}" for n in ("", "#2")
    }
    assert timed.device_us is not None
    assert timed.where == "simulated"
    assert json.loads(timed.to_json())["where"] == "simulated"


@pytest.mark.asyncio
async def test_kernels_of_all_devices_are_waited_for() -> None:
    """`ready()` brings what shapes need to each of them, and tells how far all of them are."""
    told: list[asyncrt.Progress] = []
    async with asyncrt.Runtime([BEST, BEST]) as rt:
        loaded = await rt.load(PRODUCT, progress=told.append)
        await loaded.ready()
        await loaded.ready([{"x": (100, 4)}], progress=told.append)
        planned = [s.plans for s in rt.statistics().devices.values()]
        await infer_each(loaded, 2)

        assert not told[-1].planning
        assert told[-1].built == told[-1].wanted
        assert len(set(planned)) == 1


def test_threads_share_several_devices() -> None:
    """Without an event loop of one's own it is the same runtime."""
    with asyncrt.load_sync(PRODUCT, ["simulated", "simulated:2"]) as loaded:
        futures = [loaded.submit({"x": X + i}) for i in range(6)]

        for i, future in enumerate(futures):
            np.testing.assert_array_equal((X + i) @ WEIGHTS, future.result()["y"])
        np.testing.assert_array_equal(X @ WEIGHTS, loaded.infer_sync({"x": X})["y"])
        assert loaded.explain().where.startswith("simulated")


@pytest.mark.parametrize("device", [[], [None], ["cpu", 3], 3])
def test_what_names_no_devices_is_refused(device: object) -> None:
    """Before anything is opened."""
    with pytest.raises(asyncrt.ArgumentError, match="device must"):
        asyncrt.Runtime(device)  # type: ignore[arg-type]
