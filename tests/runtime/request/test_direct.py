"""Brief requests that nobody else is in the way of run on their callers' threads, and give what others give."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

import asyncrt
from asyncrt import DeadlineExceeded, DeviceCommandError, IndexOutOfRange, Runtime, RuntimeOptions
from asyncrt.devices.base import Allocation, Prepared, PreparedLaunch, Transfer
from asyncrt.devices.faults import Fault, Faults
from asyncrt.devices.opencl.drivers import INTEL_CPU
from asyncrt.devices.opencl.submit import native_submitter
from asyncrt.devices.simulated import SimulatedDevice, SimulatedPrepared
from asyncrt.layout import Array
from asyncrt.runtime.request.callers_thread.usual import BRIEF_S, LAUNCH_S, Usual, choose_way, may_keep_s, own_part
from asyncrt.runtime.request.callers_turns import TURN_S
from asyncrt.runtime.request.next_plan import Foresight

from ...builders import model, node
from ..sequences.test_sequence import attention, floats

SOURCE = model([node("s = Softmax(x)"), node("y = Neg(s)")], ["x f32[a,4]"], ["y"])
PLAIN = RuntimeOptions(check_hazards=False, warm=False)


class Lending(SimulatedDevice):
    """A device that lends its work to who waits, counts how often, and takes as long for each command as it is told."""

    def __init__(self, seconds: float = 1e-6, faults: Sequence[Fault] = (), single_s: float | None = None) -> None:
        super().__init__(faults=faults, joins=True)
        self.seconds, self.runs = seconds, 0
        #: Seconds that a command takes by itself if one thread does it; None if it cannot; and how often one did.
        self.single_s, self.singles, self.single = single_s, 0, False

    def duration(self) -> float:
        return self.seconds if not self.single or self.single_s is None else self.single_s

    def prepare(
        self, launches: Sequence[PreparedLaunch], memory: Sequence[Allocation], native: bool = True
    ) -> Prepared | None:
        return Counted(self, launches, memory)


class Counted(SimulatedPrepared):
    """Launches whose runs are counted, those too that are begun and ended."""

    def __init__(self, device: Lending, launches: Sequence[PreparedLaunch], memory: Sequence[Allocation]) -> None:
        super().__init__(launches, memory, runs=True, single=device.single_s is not None)
        self._device = device

    def run(
        self, stream: Any, writes: Sequence[Transfer], reads: Sequence[Transfer], *, single: bool = False
    ) -> None:
        self._device.runs += 1
        self._device.singles += single
        self._device.single = single
        try:
            super().run(stream, writes, reads)
        finally:
            self._device.single = False

    def begin(self, stream: Any, writes: Sequence[Transfer]) -> None:
        self._device.runs += self.begins
        super().begin(stream, writes)


@contextlib.asynccontextmanager
async def ticking() -> AsyncIterator[Callable[[], int]]:
    """Give what says how often another coroutine has gone on since this began."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    ticker = asyncio.create_task(tick())
    yield lambda: ticks
    ticker.cancel()


def given(seed: int = 0, rows: int = 3) -> dict[str, Array]:
    return {"x": np.random.default_rng(seed).standard_normal((rows, 4)).astype(np.float32)}


def expected(inputs: dict[str, Array]) -> Array:
    e = np.exp(inputs["x"] - inputs["x"].max(-1, keepdims=True))
    return np.asarray(-e / e.sum(-1, keepdims=True))


@pytest.mark.parametrize(
    ("situation", "way"),
    [
        ({"usual_s": BRIEF_S / 2, "alone": True}, (True, "brief")),
        ({"usual_s": BRIEF_S / 2, "alone": False}, (False, "others")),
        ({"usual_s": BRIEF_S / 2, "alone": True, "late": True}, (False, "deadline")),
        ({"usual_s": BRIEF_S * 2, "alone": True}, (False, "too long")),
        ({"usual_s": None, "alone": True}, (False, "measured")),
    ],
)
def test_which_way_a_request_goes(situation: dict[str, Any], way: tuple[bool, str]) -> None:
    """One function decides, and says why."""
    direct, why = choose_way(**situation)

    assert direct == way[0]
    assert way[1] in why


@pytest.mark.parametrize(("kind", "direct"), [("cpu", False), ("gpu", True)])
def test_what_launches_would_keep_the_thread_for_counts_too(kind: str, direct: bool) -> None:
    """Fifty launches take a GPU's driver as long as waiting for them; a processor's takes them sooner."""
    assert choose_way(1.5 * BRIEF_S, alone=True, most_s=may_keep_s(50, LAUNCH_S[kind])).direct == direct


@pytest.mark.parametrize(("general_s", "tried"), [(100e-6, True), (600e-6, True), (900e-6, False), (3e-3, False)])
def test_what_takes_long_is_not_tried_on_the_callers_thread(general_s: float, tried: bool) -> None:
    """A request that was measured on the general way only keeps no event loop for milliseconds to find out."""
    assert choose_way(own_part(general_s), alone=True).direct == tried


@pytest.mark.asyncio
async def test_a_brief_request_runs_on_its_callers_thread(users_path: None) -> None:
    """From when its plan is known and its launches are prepared; the counts go on as before."""
    device = Lending()
    async with Runtime(device, options=PLAIN) as rt:
        loaded = await rt.load(SOURCE)
        for seed in range(10):
            np.testing.assert_allclose(expected(given(seed)), (await loaded.infer(given(seed)))["y"], rtol=1e-6)
        statistics = rt.statistics()

    assert device.runs == 9
    assert (statistics.requests, statistics.replays, statistics.launches) == (10, 9, device.launches)
    assert (statistics.memory.leases, statistics.scheduler.depths) == (0, (0, 0))
    assert loaded.explain().counts["ran"] + loaded.explain().counts["fused"] == 2


@pytest.mark.asyncio
async def test_results_are_those_of_the_general_way_and_belong_to_the_caller(users_path: None) -> None:
    """Bit for bit, on a real device; later requests change none of them, and inputs stay as they are."""
    inputs = [given(seed, rows) for seed, rows in enumerate((3, 1, 3, 500, 3, 1, 3, 500))]
    async with Runtime(options=PLAIN) as rt, Runtime(options=RuntimeOptions(without={"direct"}, warm=False)) as other:
        loaded, general = await rt.load(SOURCE), await other.load(SOURCE)
        for _ in range(3):
            got = [(await loaded.infer(i))["y"] for i in inputs]
            wanted = [(await general.infer(i))["y"] for i in inputs]

    assert [w.tobytes() for w in wanted] == [g.tobytes() for g in got]
    assert all(g.flags.writeable for g in got)
    assert all((i["x"] == given(seed, len(i["x"]))["x"]).all() for seed, i in enumerate(inputs))


@pytest.mark.asyncio
async def test_what_takes_long_goes_the_general_way(users_path: None) -> None:
    """The event loop is not kept; if it becomes brief, the caller's thread is used after a while."""
    device = Lending(seconds=1e-3)
    async with Runtime(device, options=PLAIN) as rt:
        loaded = await rt.load(SOURCE)
        for _ in range(10):
            await loaded.infer(given())
        assert device.runs == 0

        device.seconds = 1e-6
        for _ in range(500):
            await loaded.infer(given())

    assert device.runs > 100


@pytest.mark.asyncio
async def test_a_device_that_becomes_slow_is_not_waited_for_again(users_path: None) -> None:
    """After a few times."""
    device = Lending()
    async with Runtime(device, options=PLAIN) as rt:
        loaded = await rt.load(SOURCE)
        for _ in range(5):
            await loaded.infer(given())
        device.seconds, before = 1e-3, device.runs
        for _ in range(30):
            await loaded.infer(given())

    assert before < device.runs <= before + 3


@pytest.mark.asyncio
@pytest.mark.parametrize(("together", "single", "alone"), [(8e-6, 5e-6, True), (5e-6, 8e-6, False)])
async def test_one_thread_does_what_it_does_sooner(
    together: float, single: float, *, alone: bool, users_path: None
) -> None:
    """Both ways are tried; the better one is taken, and the other one is tried again now and then."""
    device = Lending(seconds=together, single_s=single)
    async with Runtime(device, options=PLAIN) as rt:
        loaded = await rt.load(SOURCE)
        for seed in range(200):
            np.testing.assert_allclose(expected(given(seed)), (await loaded.infer(given(seed)))["y"], rtol=1e-6)
        better = device.singles if alone else device.runs - device.singles
        assert device.runs > 190
        assert better > 180

        device.seconds, device.single_s = single, together
        device.runs = device.singles = 0
        for _ in range(2000):
            await loaded.infer(given())

    better = device.runs - device.singles if alone else device.singles
    assert better > 500


def test_the_first_time_by_itself_is_no_measure_of_a_thread() -> None:
    """It may have to make what the next ones find, such as a queue of its own; a way that is slow is known by the
    third."""
    sooner, later = Usual(together=50e-6), Usual(together=50e-6)

    for seconds in (500e-6, 30e-6, 31e-6):
        assert sooner.prefers_single
        sooner.took(seconds, single=True)
    for seconds in (500e-6, 90e-6, 91e-6):
        later.took(seconds, single=True)

    assert sooner.prefers_single
    assert not later.prefers_single


def test_what_was_in_the_way_of_one_request_says_nothing_about_its_plan() -> None:
    """A single slow one changes little, and nothing of how callers who ask at once go; several in a row do."""
    usual = Usual(together=50e-6)
    for _ in range(5):
        usual.took(60e-6, single=True)

    usual.took(8e-3, single=True)
    assert usual.gains_beside
    assert usual.seconds < 100e-6

    for _ in range(3):
        usual.took(8e-3, single=True)
        usual.took(8e-3, single=False)
    assert not usual.gains_beside


def test_a_plan_that_becomes_slow_by_degrees_is_known_as_slow_beside_others() -> None:
    """The least of what it took is forgotten within some hundred requests."""
    usual = Usual(together=50e-6)
    for _ in range(5):
        usual.took(60e-6, single=True)
    for _ in range(200):
        usual.took(300e-6, single=True)
        usual.took(300e-6, single=False)

    assert not usual.gains_beside
    usual.beside = 500e-6  # the general way takes even longer
    assert usual.gains_beside


@pytest.mark.asyncio
async def test_with_others_there_a_request_takes_its_place_among_them(users_path: None) -> None:
    """While one is on its way, those that come are admitted and placed as ever."""
    device = Lending()
    async with Runtime(device, options=PLAIN) as rt:
        loaded = await rt.load(SOURCE)
        for _ in range(5):
            await loaded.infer(given())
        before = device.runs

        other = asyncio.create_task(loaded.infer(given(1, rows=7)))  # a new plan
        await asyncio.sleep(0)
        beside = await loaded.infer(given(2))

        assert device.runs == before
        np.testing.assert_allclose(expected(given(2)), beside["y"], rtol=1e-6)
        np.testing.assert_allclose(expected(given(1, 7)), (await other)["y"], rtol=1e-6)


@pytest.mark.asyncio
async def test_a_stream_of_brief_requests_leaves_the_event_loop_its_turns(users_path: None) -> None:
    """Another coroutine goes on at least as often as `TURN_S` passes on the device."""
    device = Lending(seconds=2e-5)
    async with Runtime(device, options=PLAIN) as rt:
        loaded = await rt.load(SOURCE)
        for _ in range(5):
            await loaded.infer(given())
        async with ticking() as ticks:
            began, runs = device.now, device.runs
            for _ in range(300):
                await loaded.infer(given())
            turns = ticks()

    assert device.runs > runs + 250
    assert turns >= (device.now - began) / TURN_S * 0.8


@pytest.mark.asyncio
async def test_a_request_whose_deadline_has_passed_launches_nothing(users_path: None) -> None:
    """And one in time runs as others do."""
    device = Lending()
    async with Runtime(device, options=PLAIN) as rt:
        loaded = await rt.load(SOURCE)
        for _ in range(5):
            await loaded.infer(given(), deadline=10)
        before = device.launches, device.runs

        with pytest.raises(DeadlineExceeded):
            await loaded.infer(given(), deadline=0)

        assert (device.launches, device.runs) == before
        assert device.runs > 0


@pytest.mark.asyncio
@pytest.mark.parametrize("site", ["write", "launch", "read"])
async def test_a_refused_command_is_the_requests_own_error(site: str, users_path: None) -> None:
    """Nothing of it stays on the stream, its memory comes back, and the next request is right."""
    device = Lending()
    async with Runtime(device, options=PLAIN) as rt:
        loaded = await rt.load(SOURCE)
        for _ in range(5):
            await loaded.infer(given())
        before = device.runs
        device.faults = Faults([Fault(site)])
        with pytest.raises(DeviceCommandError):
            await loaded.infer(given())
        assert device.runs == before + 1
        after = await loaded.infer(given(1))
        statistics = rt.statistics()

    np.testing.assert_allclose(expected(given(1)), after["y"], rtol=1e-6)
    assert (statistics.failed, statistics.memory.leases) == (1, 0)


@pytest.mark.asyncio
@pytest.mark.parametrize("site", ["write", "launch"])
async def test_what_was_enqueued_before_a_refusal_is_waited_for(site: str, users_path: None) -> None:
    """Where the device works by itself, its memory is another request's only behind that."""
    ended: list[int] = []

    class Begun(Counted):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.begins = True

        def end(self, stream: Any, reads: Sequence[Transfer]) -> None:
            ended.append(len(reads))
            super().end(stream, reads)

    class Working(Lending):
        def prepare(
            self, launches: Sequence[PreparedLaunch], memory: Sequence[Allocation], native: bool = True
        ) -> Prepared | None:
            return Begun(self, launches, memory)

    device = Working()
    async with Runtime(device, options=PLAIN) as rt:
        loaded = await rt.load(SOURCE)
        for _ in range(5):
            await loaded.infer(given())
        device.faults = Faults([Fault(site)])
        ended.clear()
        with pytest.raises(DeviceCommandError):
            await loaded.infer(given())
        assert ended == [0]
        after = await loaded.infer(given(1))

    np.testing.assert_allclose(expected(given(1)), after["y"], rtol=1e-6)


@pytest.mark.asyncio
async def test_an_index_out_of_range_is_told_its_caller_alone(users_path: None) -> None:
    """As on the general way."""
    source = model([node("y = Gather(x, i)")], ["x f32[a]", "i i64[b]"], ["y"])
    x = np.arange(5, dtype=np.float32)
    async with Runtime(options=PLAIN) as rt:
        loaded = await rt.load(source)
        for _ in range(5):
            assert (await loaded.infer({"x": x, "i": np.array([4, 0])}))["y"].tolist() == [4, 0]
        for wrong in (5, -6):
            with pytest.raises(IndexOutOfRange):
                await loaded.infer({"x": x, "i": np.array([wrong, 0])})
        assert (await loaded.infer({"x": x, "i": np.array([3, 1])}))["y"].tolist() == [3, 1]


@pytest.mark.asyncio
async def test_values_without_buffers_of_their_own_are_copied_as_bytes(users_path: None) -> None:
    """bfloat16 is no dtype of NumPy's; empty and scalar inputs are inputs, too."""
    source = model([node("y = Add(x, x)"), node("z = Not(b)")], ["x bf16[a,3]", "b bool[]"], ["y", "z"])
    async with Runtime(options=PLAIN) as rt:
        loaded = await rt.load(source)
        for rows in (2, 2, 2, 2, 0, 0, 0, 0):
            x = np.full((rows, 3), 1.5, ml_dtypes.bfloat16)
            got = await loaded.infer({"x": x, "b": np.array(True)})
            assert (got["y"].dtype, got["y"].tolist(), got["z"].tolist()) == (x.dtype, [[3.0] * 3] * rows, False)


@pytest.mark.skipif(native_submitter() is None, reason="the extension was not built")
def test_threads_that_wait_run_their_requests_themselves(users_path: None) -> None:
    """`infer_sync()` of any number of threads, with larger requests between them: each gets its own answer."""
    wrong: list[int] = []

    def call(number: int) -> None:
        for i in range(60):
            inputs = given(number * 1000 + i, rows=2000 if i % 7 == number else 3)
            if not np.allclose(expected(inputs), sync.infer_sync(inputs)["y"], rtol=1e-5):
                wrong.append(i)

    with asyncrt.load_sync(SOURCE, options=PLAIN) as sync:
        threads = [threading.Thread(target=call, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        background = sync._background  # noqa: SLF001
        alone = sync._model.infer_here(given())  # noqa: SLF001
        info = background.runtime.info
        statistics = background.runtime.statistics()

    assert wrong == []
    assert statistics.requests == 240 + (alone is not None)
    if (info.platform, info.kind) == INTEL_CPU:
        assert statistics.memory.leases == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("begins", [False, True])
async def test_what_is_planned_meanwhile_is_no_part_of_what_a_step_takes(
    begins: bool, users_path: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps whose next one is planned beside them stay on their caller's thread, as long as they are brief themselves:
    those behind them are guessed to take as long."""
    device = Planning(begins)
    planned = list[Any]()

    def guess_now(self: Foresight, *given: Any) -> None:
        device.now += 10 * BRIEF_S
        planned.append(given)

    monkeypatch.setattr(Foresight, "guess_now", guess_now)
    async with Runtime(device, options=PLAIN) as rt:
        loaded = await rt.load(attention())
        for _ in range(12):
            async with loaded.sequence() as sequence:
                for length in (3, 1, 1, 1):
                    await sequence.infer({"x": floats(1, length, 6, seed=0)})
        before = device.runs, len(planned)
        async with loaded.sequence() as sequence:
            for length in (3, 1, 1, 1):
                await sequence.infer({"x": floats(1, length, 6, seed=0)})

    assert device.runs == before[0] + 4
    assert len(planned) == before[1] + 4


@pytest.mark.asyncio
async def test_steps_that_have_only_gone_the_general_way_are_guessed_by_those_that_have_not(users_path: None) -> None:
    """Handing them from thread to thread takes longer than they do: one step on its caller's thread says so for all
    that follow it, whatever lengths have been so far."""
    async with Runtime(options=RuntimeOptions(warm=False)) as rt:
        loaded = await rt.load(appending())
        direct = loaded.network.direct
        if direct is None:
            pytest.skip("no request runs on its caller's thread here")

        async def text() -> None:
            async with loaded.sequence() as sequence:
                for length in (3, *[1] * 40):
                    await sequence.infer({"x": floats(1, length, 6, seed=0)})

        for _ in range(4):
            await text()
        usual = direct._usual  # noqa: SLF001
        presets = rt.sessions[0].presets
        assert presets is not None
        known = [bound for bound in usual if presets.shares(bound)]
        assert len(known) > 20
        for bound in [bound for bound in known if not usual[bound].guessed][8:]:
            usual[bound] = Usual(together=1.0)
        await text()

    assert sum(usual[bound].guessed for bound in known) <= len(known) // 4


def appending(others: int = 8) -> onnx.ModelProto:
    """A model that appends to what it keeps, and multiplies by so many matrices, whatever the length of that is."""
    nodes = [node("present.key = Concat(past_key_values.key, x)", axis=1), node("a0 = MatMul(x, w)")]
    nodes += [node(f"a{i + 1} = MatMul(a{i}, w)") for i in range(others)]
    nodes += [node("all = ReduceSum(present.key, axis)"), node(f"y = Add(all, a{others})")]
    constants = {"w": floats(6, 6, seed=1), "axis": np.array([1])}
    past = "past_key_values.key f32[batch,past,6]"
    return model(nodes, ["x f32[batch,seq,6]", past], ["y", "present.key"], constants)


class Planning(Lending):
    """A device that counts requests on their callers' threads, and may work by itself meanwhile."""

    def __init__(self, begins: bool) -> None:
        super().__init__()
        self.begins = begins

    def prepare(
        self, launches: Sequence[PreparedLaunch], memory: Sequence[Allocation], native: bool = True
    ) -> Prepared | None:
        prepared = Counted(self, launches, memory)
        prepared.begins = self.begins
        return prepared


@pytest.mark.asyncio
async def test_a_lone_caller_of_batches_runs_on_its_own_thread(users_path: None) -> None:
    """From when its plan is known; each of its requests is a batch, of which nothing is left behind."""
    device = Lending()
    async with Runtime(device, options=PLAIN) as rt, (await rt.load(SOURCE)).batched() as batched:
        for seed in range(10):
            await batched.infer(given(seed))
        before = device.runs
        for seed in range(10):
            np.testing.assert_allclose(expected(given(seed)), (await batched.infer(given(seed)))["y"], rtol=1e-6)
        statistics = batched.statistics()

    assert device.runs == before + 10
    assert (statistics.requests, statistics.executions, statistics.members) == (20, 20, 20)
    assert (statistics.waiting, statistics.in_flight, statistics.failed) == (0, 0, 0)


@pytest.mark.asyncio
async def test_callers_of_batches_who_ask_at_once_are_put_together(users_path: None) -> None:
    """Where that takes longer than a moment: at most the first of them runs on its own thread."""
    device = Lending(seconds=1e-4)
    runtime = Runtime(device, streams=1, options=PLAIN)
    async with runtime as rt, (await rt.load(SOURCE)).batched(max_delay=10.0) as batched:
        for seed in range(20):
            await batched.infer(given(seed))
        before, known = device.runs, batched.statistics().executions
        answers = await asyncio.gather(*(batched.infer(given(seed)) for seed in range(16)))
        executions = batched.statistics().executions - known

    for seed, answer in enumerate(answers):
        np.testing.assert_allclose(expected(given(seed)), answer["y"], rtol=1e-6)
    assert device.runs <= before + 1
    assert executions <= 4


@pytest.mark.asyncio
async def test_callers_of_batches_take_turns_where_requests_are_brief(users_path: None) -> None:
    """From when the plan has come often: one after the other they are answered sooner than together."""
    device = Lending()
    runtime = Runtime(device, streams=1, options=PLAIN)
    async with runtime as rt, (await rt.load(SOURCE)).batched(max_delay=10.0) as batched:
        for seed in range(20):
            await batched.infer(given(seed))
        before = device.runs
        answers = await asyncio.gather(*(batched.infer(given(seed)) for seed in range(16)))
        statistics = batched.statistics()

    for seed, answer in enumerate(answers):
        np.testing.assert_allclose(expected(given(seed)), answer["y"], rtol=1e-6)
    assert device.runs == before + 16
    assert (statistics.requests, statistics.waiting, statistics.in_flight, statistics.failed) == (36, 0, 0, 0)


@pytest.mark.asyncio
async def test_a_lone_request_of_batches_that_fails_on_its_thread_is_over(users_path: None) -> None:
    """Its caller gets the error, and the next request goes as before."""
    device = Lending()
    async with Runtime(device, options=PLAIN) as rt, (await rt.load(SOURCE)).batched() as batched:
        for seed in range(10):
            await batched.infer(given(seed))
        device.faults = Faults([Fault("launch")])
        with pytest.raises(DeviceCommandError):
            await batched.infer(given())
        answer = await batched.infer(given(1))
        statistics = batched.statistics()

    np.testing.assert_allclose(expected(given(1)), answer["y"], rtol=1e-6)
    assert (statistics.waiting, statistics.in_flight) == (0, 0)
