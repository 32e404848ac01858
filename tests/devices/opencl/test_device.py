"""What only OpenCL devices do: build, keep binaries, and say what the driver said."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pyopencl as cl
import pytest

from asyncrt.devices.opencl import (
    arguments as opencl_arguments,
)
from asyncrt.devices.opencl import (
    device as opencl,
)
from asyncrt.devices.opencl import (
    find as opencl_find,
)
from asyncrt.devices.opencl import (
    prepared as opencl_preset,
)
from asyncrt.devices.opencl import (
    submit as opencl_submit,
)
from asyncrt.devices.opencl.device import OpenCLDevice
from asyncrt.devices.opencl.submit import NativeSubmitter, PythonSubmitter, Submitter
from asyncrt.errors import DeviceCommandError, KernelBuildError, NoDeviceError, OutOfDeviceMemory
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.impl import KernelSource
from asyncrt.layout import FLOAT32


class Loop:
    """One of the two loops that enqueue prepared launches; what sets their arguments may be exchanged."""

    _SET = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p)

    def __init__(self, module: Any) -> None:
        self._module = module
        functions = opencl_submit.loaded_functions()
        assert functions is not None
        self.set_argument, self._enqueue, *_ = functions

    def submitter(self) -> Submitter:
        if self._module is None:
            return PythonSubmitter(self.set_argument, self._enqueue)
        self._kept = set_argument = self._SET(self.set_argument)
        addresses = (ctypes.cast(f, ctypes.c_void_p).value or 0 for f in (set_argument, self._enqueue))
        return NativeSubmitter(self._module, *addresses)


@pytest.fixture(params=["C", "Python"])
def loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Loop:
    """The loop that prepared launches are enqueued by."""
    loop = Loop(request.getfixturevalue("submit") if request.param == "C" else None)
    monkeypatch.setattr(opencl, "native_submitter", loop.submitter)
    return loop


def some(name: str, body: str = "x[get_global_id(0)] += n;") -> KernelSource:
    return kernel(name, (("x", FLOAT32, "rw"),), ("n",), body)


def test_a_broken_kernel_says_what_the_compiler_said(device: OpenCLDevice) -> None:
    """The device is named, and the log is the detail."""
    with pytest.raises(KernelBuildError) as caught:
        device.build([some("fine"), some("broken", "no_such_thing(x);")], None)

    assert device.info.spec in caught.value.message
    assert "no_such_thing" in caught.value.detail


def test_a_build_after_a_broken_one_is_fine(device: OpenCLDevice) -> None:
    """Nothing is left behind."""
    with pytest.raises(KernelBuildError):
        device.build([some("broken", "no_such_thing(x);")], None)

    kernels, binary = device.build([some("fine")], None)

    assert [some("fine")] == list(kernels)
    assert binary


def test_a_binary_is_built_once(device: OpenCLDevice) -> None:
    """From its binary a program has the same kernels, and there is nothing new to keep."""
    sources = [some("one"), some("two")]
    _, binary = device.build(sources, None)
    kernels, again = device.build(sources, binary)

    assert again is None
    assert sources == list(kernels)
    assert [s.name for s in sources] == [kernels[s].function_name for s in sources]


@pytest.mark.parametrize("damage", ["empty", "another program"])
def test_a_binary_that_is_of_no_use_is_ignored(damage: str, device: OpenCLDevice) -> None:
    """The kernels are built from source, and there is a new binary to keep.

    A driver may crash on a binary that was cut short (Intel's does), so it must never see one: the store's digest
    sees to that, and tests/kernels/resident/test_store.py to the digest.
    """
    sources = [some("one")]
    _, binary = device.build(sources, None)
    _, other = device.build([some("two")], None)
    assert binary is not None
    bad = {"empty": b"", "another program": other}[damage]

    kernels, again = device.build(sources, bad)

    assert again
    assert sources == list(kernels)


def test_a_launch_that_the_driver_refuses_names_the_kernel(device: OpenCLDevice) -> None:
    """Here a work-group is larger than the device allows."""
    stream = device.open_stream()
    source = some("large")
    built = device.build([source], None)[0][source]
    size = device.info.max_group * 2

    with pytest.raises(DeviceCommandError, match=source.name):
        stream.launch(built, [device.allocate(64)], device.pack((0,), (1,)), (size,), (size,), ())


def test_a_copy_beyond_the_block_is_refused(device: OpenCLDevice) -> None:
    """When it is enqueued, not when it runs."""
    stream = device.open_stream()

    with pytest.raises(DeviceCommandError, match="a fill of 128 bytes"):
        stream.fill(device.allocate(64), 0, 128, 0)


def test_errors_of_memory_are_errors_of_memory() -> None:
    """Whatever the driver calls them, and whoever raises them."""

    class Failure(Exception):
        code = cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE

    for error in (Failure("no more"), MemoryError("no more")):
        with pytest.raises(OutOfDeviceMemory, match="while a test"):
            opencl_arguments.raise_refused(error, "a test")
    with pytest.raises(DeviceCommandError, match="refused a test"):
        opencl_arguments.raise_refused(ValueError("something else"), "a test")


def test_a_device_that_does_not_work_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one is taken; if none is left, the error has every reason."""
    (spec, found), *_ = opencl_find.find_devices()
    monkeypatch.setattr(opencl_find, "find_devices", lambda: ((f"{spec}:broken", found), (spec, found)))
    probe = OpenCLDevice.probe

    def fails(self: OpenCLDevice, kept: Any = None) -> None:
        if self.info.spec.endswith("broken"):
            raise KernelBuildError("its compiler is older than the processor")
        probe(self)

    monkeypatch.setattr(OpenCLDevice, "probe", fails)
    device = opencl_find.open_opencl(None, None)
    device.close()
    reports = opencl_find.report_devices()

    assert spec == device.info.spec
    assert [r.usable for r in reports] == [False, True]
    assert "older than the processor" in reports[0].note


class Kept(dict[str, bytes]):
    """Binaries in memory."""

    def put(self, key: str, body: bytes) -> None:
        self[key] = body


@pytest.mark.parametrize("damaged", [False, True])
def test_a_device_is_tried_without_its_compiler_where_that_has_built_the_kernel(
    damaged: bool, device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler is used once for each driver, and again only where the driver does not take what it built."""
    kept, compiled = Kept(), []
    compile_ = OpenCLDevice.compile

    def count(self: OpenCLDevice, text: str) -> Any:
        compiled.append(text)
        return compile_(self, text)

    monkeypatch.setattr(OpenCLDevice, "compile", count)
    device.probe(kept)
    first = dict(kept)
    if damaged:
        kept.update(dict.fromkeys(kept, b"nothing that a driver takes"))

    device.probe(kept)

    assert len(compiled) == len(first) * (1 + damaged)
    assert kept.keys() == first.keys()
    assert b"nothing that a driver takes" not in kept.values()


def test_closing_one_stream_badly_closes_the_others(device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes out after all are closed."""
    closed: list[int] = []
    for stream in [device.open_stream() for _ in range(3)]:

        def close(index: int = stream.index, really: Any = stream.close) -> None:
            really()
            closed.append(index)
            if index == 1:
                raise DeviceCommandError("the driver refused finishing")

        monkeypatch.setattr(stream, "close", close)

    with pytest.raises(DeviceCommandError):
        device.close()
    assert closed == [0, 1, 2]


def test_a_device_that_fails_the_probe_is_never_chosen_silently(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The next best device is opened, and a warning names the one that did not work; if none works, an error does."""
    found = opencl_find.find_devices()
    (best, device), probe = found[0], OpenCLDevice.probe
    monkeypatch.setattr(opencl_find, "find_devices", lambda: (("opencl:9:0", device), (best, device)))

    def fail(self: OpenCLDevice, kept: Any = None) -> None:
        if self.info.spec == "opencl:9:0":
            raise KernelBuildError("its driver does not build a kernel", hint="install another")
        probe(self)

    monkeypatch.setattr(OpenCLDevice, "probe", fail)

    opened = opencl_find.open_opencl(None, None)
    opened.close()

    assert opened.info.spec == best
    assert "opencl:9:0" in caplog.text
    assert "does not build a kernel" in caplog.text
    with pytest.raises(NoDeviceError, match="does not build a kernel"):
        opencl_find.open_opencl(None, None, exact="opencl:9:0")


@pytest.mark.parametrize("native", [True, False])
def test_arguments_arrive_whichever_way_they_are_set(
    native: bool, device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the loader or through pyopencl: buffers, offsets, sizes and local memory are what was given."""
    monkeypatch.setattr(opencl, "argument_setter", opencl_arguments.argument_setter if native else lambda: None)
    body = "scratch[0] = x[0] * n + m; barrier(CLK_LOCAL_MEM_FENCE); y[0] = scratch[0];"
    source = kernel(
        "arguments", (("x", FLOAT32, "r"), ("y", FLOAT32, "w")), ("n", "m"), body, local=(("scratch", "float"),)
    )
    kernels, _ = device.build([source], None)
    stream, x, y = device.open_stream(), device.allocate(64), device.allocate(64)
    stream.write(x, 8, np.array([5], np.float32))

    stream.launch(kernels[source], [x, y], device.pack([8, 16], [3, 4]), (1,), (1,), (16,))
    got = np.empty(1, np.float32)
    stream.read(y, 16, got)
    stream.mark().wait()

    assert got[0] == 19


@pytest.mark.parametrize("native", [True, False])
def test_launches_of_a_plan_are_enqueued_whichever_way(
    native: bool, device: OpenCLDevice, submit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the loop in C, if it is wanted, or one by one; a number's memory is the request's, from either end."""
    loop = Loop(submit)  # its functions are called as long as the submitter is used
    submitter = loop.submitter()
    assert isinstance(submitter, NativeSubmitter)
    calls: list[int] = []
    launch = submitter.launch
    monkeypatch.setattr(submitter, "launch", lambda *given: calls.append(len(given[1])) or launch(*given))
    monkeypatch.setattr(opencl, "native_submitter", lambda: submitter)
    body = "scratch[0] = x[0] * n + m; barrier(CLK_LOCAL_MEM_FENCE); y[0] = scratch[0];"
    source = kernel(
        "arguments", (("x", FLOAT32, "r"), ("y", FLOAT32, "w")), ("n", "m"), body, local=(("scratch", "float"),)
    )
    built = device.build([source], None)[0][source]
    stream, x, y = device.open_stream(native=native), device.allocate(64), device.allocate(64)
    stream.write(x, 8, np.array([5], np.float32))
    record = device.pack([8, 16], [3, 4])

    stream.launch_all(
        ((built, (0, -1), record, (1,), (1,), (16,)), (built, (y, 0), device.pack([16, 8], [2, 1]), (1,), None, (16,))),
        [x, device.allocate(64), y],
    )
    got, back = np.empty(1, np.float32), np.empty(1, np.float32)
    stream.read(y, 16, got)
    stream.read(x, 8, back)
    stream.mark().wait()

    assert (got[0], back[0]) == (19, 39)
    assert calls == [2] * native


def test_where_events_of_kernels_come_late_marks_are_events_of_copies(device: OpenCLDevice) -> None:
    """Behind kernels and fills a copy is put for it; a read or a write is its own, and is there when it is reached."""
    device.late_events = True
    source = some("add")
    built = device.build([source], None)[0][source]
    stream, memory = device.open_stream(), device.allocate(64)
    found = np.zeros(1, np.float32)
    marks = []
    stream.fill(memory, 0, 64, 0)
    marks.append(stream.mark())
    stream.launch(built, [memory], device.pack((0,), (3,)), (1,), None, ())
    marks.append(stream.mark())
    stream.wait_for([marks[0]])
    marks.append(stream.mark())
    stream.read(memory, 0, found)
    marks.append(stream.mark())
    stream.write(memory, 0, found)
    marks.append(stream.mark())

    for mark in marks:
        mark.wait()

    kinds = cl.command_type
    copies = [kinds.COPY_BUFFER] * 3
    assert [*copies, kinds.READ_BUFFER, kinds.WRITE_BUFFER] == [mark.event.command_type for mark in marks]
    assert found.tolist() == [3.0]


def test_a_driver_that_spins_does_so_only_where_there_are_cores_for_it(
    device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for each stream that is waited for, and one for the event loop; and where it is asked to, or not to."""
    monkeypatch.setattr(opencl, "cores", lambda: 3)
    device.spins = True
    asked = [device.open_stream(spin=spin) for spin in (True, False)]
    first = device.open_stream()
    enough = first.mark().spin
    last = device.open_stream()
    memory, found = device.allocate(64), np.zeros(1, np.float32)
    last.write(memory, 0, np.array([7], np.float32))
    last.read(memory, 0, found)
    mark = last.mark()
    mark.wait()

    assert [s.mark().spin for s in asked] == [True, False]
    assert (enough, first.mark().spin, mark.spin) == (True, False, False)
    assert found.tolist() == [7.0]


@pytest.mark.parametrize("spin", [True, False])
def test_marks_tell_of_failures_however_they_are_waited_for(spin: bool, device: OpenCLDevice) -> None:
    """A command that failed is over, and its error is raised."""
    event = cl.UserEvent(device.context)
    mark = opencl.OpenCLMark(event, [], spin=spin)
    event.set_status(-5)

    with pytest.raises(DeviceCommandError, match="running commands"):
        mark.wait()


def slow() -> KernelSource:
    """A kernel that makes x[0] twice n, and is at it long enough for others to come too early."""
    return some("slow", "for (int i = 0; i < 10000000; i++) x[0] = x[0] * 0.5f + n;")


def test_a_prepared_launch_that_the_driver_refuses_names_the_kernel(device: OpenCLDevice, loop: Loop) -> None:
    """Those before it are enqueued, and the mark is behind them; nothing that follows is."""
    stream, memory, other = device.open_stream(), device.allocate(64), device.open_queue()
    first, large = slow(), some("large")
    kernels, _ = device.build([first, large], None)
    size, record = device.info.max_group * 2, device.pack((0,), (1,))
    prepared = device.prepare(
        [
            (kernels[first], (0,), record, (1,), None, ()),
            (kernels[large], (0,), record, (size,), (size,), ()),
            (kernels[first], (0,), record, (1,), None, ()),
        ],
        [memory],
    )
    assert prepared is not None
    stream.fill(memory, 0, 4, 0)
    stream.mark().wait()

    with pytest.raises(DeviceCommandError, match=f"{large.name} over"):
        prepared.launch(stream)
    stream.mark().wait()
    found = np.zeros(1, np.float32)
    cl.enqueue_copy(other, found, memory)  # which waits for nothing

    assert found.tolist() == [2.0]


def test_timed_commands_are_behind_prepared_launches(device: OpenCLDevice, loop: Loop) -> None:
    """They go to another queue, which has to wait for what has no event of its own."""
    stream, memory, source = device.open_stream(), device.allocate(64), slow()
    kernels, _ = device.build([source], None)
    prepared = device.prepare([(kernels[source], (0,), device.pack((0,), (1,)), (1,), None, ())], [memory])
    assert prepared is not None
    stream.fill(memory, 0, 4, 0)

    prepared.launch(stream)
    stream.time_commands(True)
    found = np.zeros(1, np.float32)
    stream.read(memory, 0, found)
    stream.mark().wait()

    assert found.tolist() == [2.0]


def test_a_binding_that_failed_half_way_is_not_taken_for_done(device: OpenCLDevice, loop: Loop) -> None:
    """The memory that was bound before is set again, too, by whoever binds it next."""
    source = some("one")
    built = device.build([source], None)[0][source]
    statuses: list[int] = []
    really = loop.set_argument

    def set_argument(*arguments: int) -> int:
        return (statuses.pop() if statuses else 0) or really(*arguments)

    loop.set_argument = set_argument
    stream, old, new = device.open_stream(), device.allocate(64), device.allocate(64)
    prepared = device.prepare([(built, (0,), device.pack((0,), (1,)), (1,), None, ())] * 2, [old])
    assert prepared is not None
    for memory in (old, new):
        stream.fill(memory, 0, 64, 0)
    statuses[:] = [-38, 0]  # the second is refused

    with pytest.raises(DeviceCommandError, match="setting a buffer"):
        prepared.bind([new])
    prepared.bind([old])
    prepared.launch(stream)
    found = np.zeros(2, np.float32)
    stream.read(old, 0, found[:1])
    stream.read(new, 0, found[1:])
    stream.mark().wait()

    assert found.tolist() == [2.0, 0.0]


def test_kernel_objects_go_with_what_was_prepared(device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is given back once, also where preparing failed half-way."""
    source = some("one")
    built = device.build([source], None)[0][source]
    calls = opencl_preset.preset_calls()
    assert calls is not None
    released: list[int] = []

    def release(kernel: int) -> int:
        released.append(kernel)
        return calls.release(kernel)

    monkeypatch.setattr(opencl, "preset_calls", lambda: calls._replace(release=release))
    launch = (built, (0,), device.pack((0,), (1,)), (1,), None, ())
    prepared = device.prepare([launch] * 3, [device.allocate(64)])
    before = list(released)
    del prepared
    after = len(released)
    with pytest.raises(DeviceCommandError, match=f"setting an argument of {source.name}"):
        device.prepare([launch, (*launch[:5], (16,))], [device.allocate(64)])  # it takes no local memory

    assert before == []
    assert after == 3
    assert len(released) == 3 + 2


def test_the_loop_in_c_is_taken_unless_it_is_not_wanted(
    device: OpenCLDevice, submit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether there is one depends on the installation, and whether it is used on an option."""
    native = Loop(submit).submitter()
    made: list[Submitter | None] = []
    monkeypatch.setattr(opencl, "native_submitter", lambda: native)
    monkeypatch.setattr(opencl, "OpenCLPrepared", lambda calls, submitter, *_, **__: made.append(submitter))

    device.prepare([], [], native=True)
    device.prepare([], [], native=False)
    monkeypatch.setattr(opencl, "native_submitter", lambda: None)
    device.prepare([], [], native=True)

    assert made[0] is native
    assert [type(s) for s in made[1:]] == [PythonSubmitter] * 2


def test_nothing_is_prepared_where_pyopencl_makes_the_calls(
    device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is a variable for that, in case a loader is not what it seems."""
    monkeypatch.setenv("ASYNCRT_NATIVE_ARGUMENTS", "0")
    for function in (opencl_arguments.loader, opencl_arguments.argument_setter, opencl_preset.preset_calls):
        function.cache_clear()

    try:
        assert device.prepare([], []) is None
    finally:
        monkeypatch.undo()
        for function in (opencl_arguments.loader, opencl_arguments.argument_setter, opencl_preset.preset_calls):
            function.cache_clear()
    assert device.prepare([], []) is not None


@pytest.mark.parametrize("first", [1 << 12, 1 << 22])
def test_memory_of_a_cpu_grows_in_huge_pages_whatever_it_was_before(first: int, device: OpenCLDevice) -> None:
    """Commands use all of it, and what it took the place of is the system's again."""
    if not (device.info.is_cpu and device.info.shares_memory):
        assert device.grow(None, 1 << 22) is None
        return
    stream, memory, ends = device.open_stream(), device.allocate(first), []
    for nbytes in (1 << 23, 1 << 24, 1 << 27):
        memory = device.grow(memory, nbytes)
        assert memory is not None
        found = np.zeros(2, np.uint8)
        for place, at in enumerate((0, nbytes - 4)):
            stream.fill(memory, at, 4, 7)
            stream.read(memory, at, found[place : place + 1])
        stream.mark().wait()
        ends += found.tolist()
    device.release(memory)

    assert ends == [7] * 6
