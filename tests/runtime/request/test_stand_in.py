"""What requests get while kernels that they need are being built, by a driver that takes as long as the test says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import asyncrt
from asyncrt import Runtime, RuntimeOptions
from asyncrt.devices.find import open_device
from asyncrt.devices.host import HostDevice, HostStream
from asyncrt.errors import DeadlineExceeded, IndexOutOfRange, KernelBuildError, ModelFormatError, RuntimeClosedError
from asyncrt.kernels.resident.kernel_cache import Expected
from asyncrt.runtime.model import Model
from asyncrt.runtime.request import network, stand_in
from asyncrt.runtime.request.missing_kernels import PATIENCE_S, SHORT_S, StandIn, Wait, choose

from ...builders import model, node
from ...tiny_models import make

X = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
both = pytest.mark.usefixtures("either_path")


@pytest.fixture(autouse=True)
def standing_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """As users run it, NumPy may answer; here it may for as long as the test takes."""
    monkeypatch.setenv("ASYNCRT_WITHOUT", "")
    monkeypatch.setattr(stand_in, "ENOUGH", 1 << 30)
    monkeypatch.setattr(stand_in, "ENOUGH_S", float("inf"))
    monkeypatch.setattr(stand_in, "FINISH_S", 0.0)


class Driver:
    """A driver's compiler, which builds nothing until it may."""

    def __init__(self) -> None:
        self.may = threading.Event()
        #: Raised by every build.
        self.error: Exception | None = None
        self.device = open_device(None)
        self._build = self.device.build
        self.device.build = self.build  # type: ignore[method-assign]

    def build(self, sources: Sequence[Any], binary: bytes | None) -> tuple[Mapping[Any, Any], bytes | None]:
        assert self.may.wait(30)
        if self.error is not None:
            raise self.error
        return self._build(sources, binary)


@pytest.fixture
def driver() -> Iterator[Driver]:
    found = Driver()
    yield found
    found.may.set()


@pytest.fixture
def slow_numpy(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """NumPy does nothing before this is set."""
    may = threading.Event()

    class Stream(HostStream):
        def launch(self, *given: Any) -> None:
            self._enqueue(lambda: self.check(may.wait(60)))
            super().launch(*given)

        @staticmethod
        def check(came: bool) -> None:
            assert came

    class Slow(HostDevice):
        def open_stream(self, pinned: bool = True, spin: bool | None = None, native: bool = True) -> HostStream:
            stream = Stream(len(self._streams))
            self._streams.append(stream)
            return stream

    monkeypatch.setattr(stand_in, "HostDevice", Slow)
    yield may
    may.set()


@pytest.fixture
def numpys() -> Callable[[], list[str]]:
    """Return the names of NumPy's threads; those of other tests' devices, which were there before, do not count."""
    before = {*threading.enumerate()}
    return lambda: [t.name for t in threading.enumerate() if t not in before and t.name.startswith("asyncrt-host")]


async def until(condition: Callable[[], bool]) -> None:
    """Return when it holds."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0)


async def turns(count: int) -> None:
    """Let the loop turn so often: what needs nothing else is done then."""
    for _ in range(count):
        await asyncio.sleep(0)


def softmax() -> onnx.ModelProto:
    nodes = [("Tanh", ["x"], ["t"]), ("Softmax", ["t"], ["s"]), ("Add", ["s", "x"], ["y"])]
    return make([helper.make_node(*n) for n in nodes], {"x": "float n 8"}, ["y"])


def wanted(x: Any) -> Any:
    e = np.exp(np.tanh(x))
    return e / e.sum(-1, keepdims=True) + x


def options(folder: Path, **changes: Any) -> RuntimeOptions:
    return RuntimeOptions(cache_dir=folder, **{"load_patience_s": 0.0, **changes})


@both
@pytest.mark.asyncio
async def test_a_request_is_answered_while_its_kernels_are_built(driver: Driver, tmp_path: Path) -> None:
    """By NumPy, and it is told so; once the kernels are there the device answers, and NumPy's threads are gone."""
    async with Runtime(driver.device, options=options(tmp_path)) as rt:
        loaded = await rt.load(softmax())
        first = await loaded.infer({"x": X})
        meanwhile, told = rt.statistics(), loaded.explain()
        driver.may.set()
        await loaded.ready()
        second = await loaded.infer({"x": X})
        after = rt.statistics()

        np.testing.assert_allclose(first["y"], wanted(X), rtol=1e-5)
        np.testing.assert_allclose(second["y"], wanted(X), rtol=1e-5)
        assert (meanwhile.stood_in, meanwhile.requests, meanwhile.launches, meanwhile.kernels_built) == (1, 1, 0, 0)
        assert all("answered by NumPy" in n.why and "not there yet" in n.why for n in told if n.decision == "ran")
        assert (after.stood_in, after.requests) == (1, 2)
        assert after.launches > 0
        assert after.in_flight == after.failed == 0


@both
@pytest.mark.asyncio
async def test_after_the_first_answers_requests_wait_for_kernels(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But those with a deadline, which may pass before: they are answered as the first one is."""
    monkeypatch.setattr(stand_in, "ENOUGH", 1)
    monkeypatch.setattr(network, "PATIENCE_S", 1e6)  # however slow a machine is
    async with Runtime(driver.device, options=options(tmp_path)) as rt:
        loaded = await rt.load(softmax())
        first = await loaded.infer({"x": X})
        waits = asyncio.create_task(loaded.infer({"x": X}))
        soon = await loaded.infer({"x": X}, deadline=60.0)
        before = rt.statistics()
        pending = not waits.done()
        driver.may.set()
        third = await waits
        after = rt.statistics()

    assert pending
    assert before.stood_in == after.stood_in == 2
    assert after.launches > 0
    for out in (first, soon, third):
        np.testing.assert_allclose(out["y"], wanted(X), rtol=1e-5)


@both
@pytest.mark.asyncio
async def test_where_kernels_do_not_come_for_long_numpy_goes_on(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits has patience; then NumPy answers this one and some more, before the next one waits."""
    monkeypatch.setattr(stand_in, "ENOUGH", 2)
    monkeypatch.setattr(network, "PATIENCE_S", 0.01)
    async with Runtime(driver.device, options=options(tmp_path)) as rt:
        loaded = await rt.load(softmax())
        found = [await loaded.infer({"x": X}) for _ in range(5)]
        answered = rt.statistics().stood_in
        monkeypatch.setattr(network, "PATIENCE_S", 1e6)
        found.append(await loaded.infer({"x": X}))  # of the two after the third that has waited
        waits = asyncio.create_task(loaded.infer({"x": X}))
        await turns(50)
        pending = not waits.done()
        driver.may.set()
        found.append(await waits)

        assert pending
        assert answered == 5
        assert rt.statistics().stood_in == 6
        for out in found:
            np.testing.assert_allclose(out["y"], wanted(X), rtol=1e-5)


@pytest.mark.asyncio
async def test_nothing_is_left_of_numpy_when_no_kernel_is_missing(
    driver: Driver, numpys: Callable[[], list[str]], tmp_path: Path
) -> None:
    """Its thread ends, and a shape with other kernels brings another."""
    async with Runtime(driver.device, options=options(tmp_path)) as rt:
        loaded = await rt.load(softmax())
        await loaded.infer({"x": X})
        during = numpys()
        driver.may.set()
        await loaded.ready()
        await until(lambda: not numpys())

        assert during == ["asyncrt-host-0", "asyncrt-host-1"]
        assert rt.statistics().stood_in == 1


@both
@pytest.mark.asyncio
async def test_who_waits_for_numpy_goes_to_the_device_when_the_kernels_are_there(
    driver: Driver, slow_numpy: threading.Event, tmp_path: Path
) -> None:
    """Also who has begun: what NumPy has not done by then nobody wants, and it is not done."""
    async with Runtime(driver.device, options=options(tmp_path)) as rt:
        loaded = await rt.load(softmax())
        asked = [asyncio.create_task(loaded.infer({"x": X})) for _ in range(3)]
        await until(lambda: rt.statistics().in_flight == 3 and not rt.session.dispatcher.in_flight)
        driver.may.set()
        outputs = [await request for request in asked]
        await turns(20)
        left = rt.statistics().in_flight
        slow_numpy.set()

        assert left == 0
        for y in outputs:
            np.testing.assert_allclose(y["y"], wanted(X), rtol=1e-5)
        assert rt.statistics().stood_in == 0


@both
@pytest.mark.asyncio
async def test_where_numpy_takes_long_kernels_are_waited_for_as_well(
    driver: Driver, slow_numpy: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their builds do not give way any more, so that they come first if they can."""
    hurried = asyncio.Queue[bool]()
    monkeypatch.setattr(stand_in, "ENOUGH_S", 0.01)
    monkeypatch.setattr(driver.device, "build_gently", lambda: True)
    monkeypatch.setattr(driver.device, "hurry_builds", hurried.put_nowait)
    async with Runtime(driver.device, options=options(tmp_path)) as rt:
        loaded = await rt.load(softmax())
        async with asyncio.timeout(60):
            request = asyncio.create_task(loaded.infer({"x": X}))
            said = await hurried.get()
            driver.may.set()
            y = await request

        assert said
        assert not hurried.get_nowait()
        assert rt.statistics().stood_in == 0
        np.testing.assert_allclose(y["y"], wanted(X), rtol=1e-5)
        slow_numpy.set()


@both
@pytest.mark.asyncio
async def test_who_is_cancelled_leaves_numpy_at_once(
    driver: Driver, slow_numpy: threading.Event, tmp_path: Path
) -> None:
    """And the next is answered."""
    async with Runtime(driver.device, options=options(tmp_path)) as rt:
        loaded = await rt.load(softmax())
        request = asyncio.create_task(loaded.infer({"x": X}))
        await until(lambda: rt.statistics().in_flight == 1 and not rt.session.dispatcher.in_flight)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        await turns(20)
        left = rt.statistics().in_flight
        slow_numpy.set()
        y = await loaded.infer({"x": X})

        assert left == 0
        np.testing.assert_allclose(y["y"], wanted(X), rtol=1e-5)
        assert (rt.statistics().stood_in, rt.statistics().in_flight) == (1, 0)
        driver.may.set()  # or closing waits for what is built


@pytest.mark.asyncio
async def test_who_waits_for_numpy_too_long_is_told(
    driver: Driver, slow_numpy: threading.Event, tmp_path: Path
) -> None:
    """A deadline counts wherever the request waits."""
    async with Runtime(driver.device, options=options(tmp_path)) as rt:
        loaded = await rt.load(softmax())
        first = asyncio.create_task(loaded.infer({"x": X}))
        await until(lambda: rt.statistics().in_flight == 1 and not rt.session.dispatcher.in_flight)
        with pytest.raises(DeadlineExceeded):
            await loaded.infer({"x": X}, deadline=0.01)
        slow_numpy.set()
        await first

        assert rt.statistics().stood_in == 1
        driver.may.set()


@both
@pytest.mark.asyncio
async def test_an_index_out_of_range_is_the_same_error(driver: Driver, tmp_path: Path) -> None:
    """It says which index, whoever has looked."""
    gather = model([node("t = Tanh(x)"), node("y = Gather(t, i)")], ["x f32[n,8]", "i i64[k]"], ["y"])
    wrong = {"x": X, "i": np.array([0, 7], np.int64)}
    async with Runtime(driver.device, options=options(tmp_path)) as rt:
        loaded = await rt.load(gather)
        with pytest.raises(IndexOutOfRange) as by_numpy:
            await loaded.infer(wrong)
        driver.may.set()
        await loaded.ready()
        with pytest.raises(IndexOutOfRange) as by_device:
            await loaded.infer(wrong)

        assert by_numpy.value.message == by_device.value.message


@pytest.mark.asyncio
async def test_a_step_of_a_sequence_waits_for_its_kernels(driver: Driver, tmp_path: Path) -> None:
    """Its state is on the device; so does a profile, which is to tell of the device."""
    nodes = [node("present = Add(past, x)"), node("y = Tanh(present)")]
    summed = model(nodes, ["x f32[n,8]", "past f32[n,8]"], ["y", "present"])
    async with Runtime(driver.device, options=options(tmp_path)) as rt:
        loaded = await rt.load(summed)
        async with loaded.sequence({"past": "present"}) as sequence:
            step = asyncio.create_task(sequence.infer({"x": X, "past": X}))
            timed = asyncio.create_task(loaded.profile({"x": X, "past": X}))
            done, _ = await asyncio.wait((step, timed), timeout=0.05)
            driver.may.set()
            y = await step
            await timed

        assert done == set()
        np.testing.assert_allclose(y["y"], np.tanh(X + X), rtol=1e-5)
        assert rt.statistics().stood_in == 0


@pytest.mark.asyncio
async def test_a_branch_that_is_taken_is_answered_as_a_whole(driver: Driver, tmp_path: Path) -> None:
    """What an If needs is known when its condition is; nothing of the request counts before."""
    then = onnx.parser.parse_graph("then () => (float[n, 8] a) { a = Tanh (x) }")
    other = onnx.parser.parse_graph("other () => (float[n, 8] b) { b = Sigmoid (x) }")
    branch = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    conditional = make([branch], {"c": "bool", "x": "float n 8"}, ["y"])
    async with Runtime(driver.device, options=options(tmp_path)) as rt:
        loaded = await rt.load(conditional)
        y = await loaded.infer({"c": np.array(True), "x": X})
        stood_in = rt.statistics().stood_in
        driver.may.set()
        z = await loaded.infer({"c": np.array(True), "x": X})

        np.testing.assert_allclose(y["y"], np.tanh(X), rtol=1e-6)
        np.testing.assert_allclose(z["y"], np.tanh(X), rtol=1e-6)
        assert stood_in == 1


@pytest.mark.asyncio
async def test_a_kernel_that_the_driver_refuses_is_told(driver: Driver, tmp_path: Path) -> None:
    """To those that wait for all kernels; requests that NumPy answers need none of them."""
    driver.error = KernelBuildError("no")
    async with Runtime(driver.device, options=options(tmp_path)) as rt:
        loaded = await rt.load(softmax())
        waiting = asyncio.create_task(loaded.ready())
        y = await loaded.infer({"x": X})
        driver.may.set()
        with pytest.raises(KernelBuildError):
            await waiting

        np.testing.assert_allclose(y["y"], wanted(X), rtol=1e-5)


@pytest.mark.asyncio
async def test_a_runtime_that_is_closed_meanwhile_answers_who_is_there(
    driver: Driver, numpys: Callable[[], list[str]], tmp_path: Path
) -> None:
    """What NumPy has begun runs out; who waits for kernels is told."""
    rt = Runtime(driver.device, options=options(tmp_path))
    await rt.open()
    loaded = await rt.load(softmax())
    waiting = asyncio.create_task(loaded.ready())
    request = asyncio.create_task(loaded.infer({"x": X}))
    await until(lambda: rt.statistics().in_flight == 1 and not rt.session.dispatcher.in_flight)
    closing = asyncio.create_task(rt.close())
    y = await request
    driver.may.set()
    await closing
    with pytest.raises(RuntimeClosedError):
        await waiting

    np.testing.assert_allclose(y["y"], wanted(X), rtol=1e-5)
    assert not numpys()


@pytest.mark.asyncio
async def test_short_processes_get_kernels_in_the_end(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where NumPy answered, closing lets one kernel come at least; the next process finds it."""
    monkeypatch.setattr(stand_in, "FINISH_S", 30.0)
    rt = Runtime(driver.device, options=options(tmp_path, warm=False))
    await rt.open()
    await (await rt.load(softmax())).infer({"x": X})
    closing = asyncio.create_task(rt.close())
    await asyncio.sleep(0)
    driver.may.set()
    await closing

    async with Runtime(options=options(tmp_path, warm=False)) as another:
        loaded = await another.load(softmax())
        await loaded.ready([{"x": X.shape}])
        assert another.statistics().kernels.from_disk >= 1


@pytest.mark.asyncio
async def test_a_model_that_is_unloaded_meanwhile_answers_who_is_there(
    driver: Driver, slow_numpy: threading.Event, tmp_path: Path
) -> None:
    """Those whom NumPy was to answer go to the device if that comes first, and then the model is gone."""
    async with Runtime(driver.device, options=options(tmp_path)) as rt:
        loaded = await rt.load(softmax())
        request = asyncio.create_task(loaded.infer({"x": X}))
        await until(lambda: rt.statistics().in_flight == 1 and not rt.session.dispatcher.in_flight)
        unloading = asyncio.create_task(rt.unload(loaded))
        await asyncio.sleep(0)
        driver.may.set()
        y = await request
        slow_numpy.set()
        await unloading
        with pytest.raises(RuntimeClosedError):
            await loaded.infer({"x": X})

        np.testing.assert_allclose(y["y"], wanted(X), rtol=1e-5)
        assert rt.statistics().weights.nbytes == 0


@pytest.mark.asyncio
async def test_without_the_mechanism_everything_waits(driver: Driver, tmp_path: Path) -> None:
    """Loading builds all that is likely, as it says."""
    async with Runtime(driver.device, options=options(tmp_path, without={"stand_in"})) as rt:
        loading = asyncio.create_task(rt.load(softmax()))
        done, _ = await asyncio.wait((loading,), timeout=0.05)
        driver.may.set()
        loaded: Model = await loading
        pending = rt.statistics().kernels.pending
        await loaded.infer({"x": X})

        assert done == set()
        assert pending == 0
        assert rt.statistics().stood_in == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("cut_short", [False, True])
async def test_a_file_that_is_written_to_while_numpy_reads_it_is_an_error(
    cut_short: bool, driver: Driver, tmp_path: Path
) -> None:
    """As it is where the device gets a constant: no result of other weights than the model's, and the process lives."""
    file = tmp_path / "model.onnx"
    w = np.random.default_rng(1).standard_normal((8, 4096)).astype(np.float32)
    nodes = [node("t = Tanh(x)"), node("y = MatMul(t, w)")]
    onnx.save(model(nodes, ["x f32[n,8]"], ["y"], {"w": w}), file)
    async with Runtime(driver.device, options=options(tmp_path / "kernels", without={"fuse"})) as rt:
        loaded = await rt.load(file)
        y = await loaded.infer({"x": X})
        with file.open("r+b") as f:
            f.truncate(100) if cut_short else f.write(b"\x08")
        with pytest.raises(ModelFormatError):
            await loaded.infer({"x": X})
        driver.may.set()

        np.testing.assert_allclose(y["y"], np.tanh(X) @ w, rtol=1e-4, atol=1e-5)


@pytest.mark.asyncio
async def test_ready_takes_shapes_and_tells_how_far_it_is(driver: Driver, tmp_path: Path) -> None:
    """The kernels of those shapes are there when it returns, and progress ends with all of them."""
    told: list[asyncrt.Progress] = []
    driver.may.set()
    async with Runtime(driver.device, options=options(tmp_path)) as rt:
        loaded = await rt.load(softmax(), progress=told.append)
        await loaded.ready([{"x": (3, 8)}, {"x": (1, 8)}])
        y = await loaded.infer({"x": X})
        await loaded.ready()
        with pytest.raises(asyncrt.InputError):
            await loaded.ready([{"x": (3, 9)}])
        with pytest.raises(asyncrt.InputError):
            await loaded.ready([{"x": "wide"}])

        np.testing.assert_allclose(y["y"], wanted(X), rtol=1e-5)
        assert rt.statistics().stood_in == 0
        assert not told[-1].planning
        assert told[-1].built == told[-1].wanted > 0
        assert [p.built for p in told] == sorted(p.built for p in told)


@pytest.mark.asyncio
async def test_ready_takes_a_scalar_whose_value_decides_a_shape(driver: Driver, tmp_path: Path) -> None:
    """A scalar stays one where its value is supposed, so what makes it a vector of one element makes no matrix."""
    nodes = [node("e = Unsqueeze(k, axes)"), node("s = Slice(x, start, e, axes)"), node("y = Softmax(s)")]
    constants = {"axes": np.array([0]), "start": np.array([0])}
    driver.may.set()
    async with Runtime(driver.device, options=options(tmp_path)) as rt:
        loaded = await rt.load(model(nodes, ["x f32[n,8]", "k i64[]"], ["y"], constants))
        await loaded.ready([{"x": (3, 8), "k": ()}])
        y = await loaded.infer({"x": X, "k": np.array(2)})

        np.testing.assert_allclose(y["y"], np.exp(X[:2]) / np.exp(X[:2]).sum(-1, keepdims=True), rtol=1e-5)


@pytest.mark.asyncio
async def test_who_watches_does_not_hold_up_the_kernels(driver: Driver, tmp_path: Path) -> None:
    """What is no function is refused at once; one that fails later is told no more, and all kernels come."""
    told: list[asyncrt.Progress] = []

    def fails(progress: asyncrt.Progress) -> None:
        told.append(progress)
        if len(told) == 2:
            raise ValueError("the terminal is gone")

    async with Runtime(driver.device, options=options(tmp_path)) as rt:
        with pytest.raises(asyncrt.ArgumentError, match="progress must be a function"):
            await rt.load(softmax(), progress=object())  # type: ignore[arg-type]
        loaded = await rt.load(softmax(), progress=fails)
        with pytest.raises(asyncrt.ArgumentError, match="progress must be a function"):
            await loaded.ready(progress=7)  # type: ignore[arg-type]
        driver.may.set()
        await loaded.ready()

        y = await loaded.infer({"x": X})

    np.testing.assert_allclose(y["y"], wanted(X), rtol=1e-5)
    assert len(told) == 2


def test_an_empty_folder_takes_no_compiler_before_the_first_answer(tmp_path: Path) -> None:
    """On a real device, for a caller without an event loop: then all is built, and the results are the same."""
    w = np.random.default_rng(1).standard_normal((16, 3, 3, 3)).astype(np.float32)
    nodes = [node("c = Conv(x, w)", pads=[1, 1, 1, 1]), node("t = Relu(c)"), node("y = GlobalAveragePool(t)")]
    picture = model(nodes, ["x f32[n,3,h,v]"], ["y"], {"w": w})
    x = np.random.default_rng(2).standard_normal((1, 3, 20, 30)).astype(np.float32)
    with asyncrt.load_sync(picture, options=options(tmp_path)) as loaded:
        first = loaded.infer_sync({"x": x})
        loaded.ready()
        loaded.ready([{"x": x.shape}])
        second = loaded.infer_sync({"x": x})

        np.testing.assert_allclose(first["y"], second["y"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("expected", "nbytes", "choice"),
    [
        (Expected(10, 0, 0, 0.0), 1, Wait),
        (Expected(10, 9, 9, 5.0), 1, StandIn),
        (Expected(10, 9, 9, SHORT_S), 1, Wait),
        (Expected(900, 900, 0, 3.0), 1, Wait),
        (Expected(10, 9, 9, 5.0), 250, StandIn),
        (Expected(10, 9, 9, 5.0), 251, Wait),
    ],
)
def test_a_choice_depends_on_kernels_and_memory_alone(
    expected: Expected, nbytes: int, choice: type[Wait | StandIn]
) -> None:
    """It waits for what comes soon or lies on disk, or once NumPy has answered enough, for a while, and for what NumPy
    has no memory for."""
    chosen = choose(expected, nbytes, limit=1000)

    assert isinstance(chosen, choice)
    assert chosen.why
    if isinstance(chosen, Wait) and nbytes == 1 and expected.missing:
        assert chosen.at_most_s is not None
    if isinstance(chosen, StandIn):
        patient = choose(expected, nbytes, limit=1000, patience_s=PATIENCE_S)
        assert isinstance(patient, Wait)
        assert patient.at_most_s == PATIENCE_S
