"""What every device must do, whatever it is made of; a new one is added to `DEVICES`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from asyncrt.devices.base import Device, Mark, PreparedLaunch, Stream
from asyncrt.devices.find import open_device
from asyncrt.devices.opencl.device import OpenCLDevice
from asyncrt.errors import DeviceCommandError, OutOfDeviceMemory
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.impl import KernelSource, ReferenceKernel
from asyncrt.layout import DATA_TYPES, INT32, Array, DataType, Layout
from asyncrt.memory.paged import page_out, pages_of

GPU_LIKE = "opencl as on a GPU"
DEVICES = ["host", "simulated", None, GPU_LIKE]


@pytest.fixture(params=DEVICES, ids=lambda spec: spec or "opencl")
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    device = open_device(None if request.param == GPU_LIKE else request.param)
    if request.param == GPU_LIKE:  # what a CPU device has no need to do
        assert isinstance(device, OpenCLDevice)
        device.pins_transfers = device.late_events = device.spins = True
    yield device
    device.close()


async def passed(stream: Stream) -> None:
    """Wait until *stream* has passed all that was enqueued."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[BaseException | None] = loop.create_future()
    stream.when_reached(stream.mark(), lambda error: loop.call_soon_threadsafe(future.set_result, error) and None)
    error = await asyncio.wait_for(future, 30)
    if error is not None:
        raise error


def random_bytes(count: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, count).astype(np.uint8)


@pytest.mark.asyncio
@pytest.mark.parametrize("nbytes", [0, 1, 3, 255, 4097, 3_000_003])
async def test_bytes_come_back_from_where_they_went(nbytes: int, device: Device) -> None:
    """At any offset, and nothing beside them is touched."""
    stream = device.open_stream()
    memory = device.allocate(nbytes + 1000)
    before = random_bytes(nbytes + 1000, 1)
    for offset in (0, 1, 3, 256, 999):
        data = random_bytes(nbytes, offset)
        found, around = np.zeros(nbytes, np.uint8), np.zeros(nbytes + 1000, np.uint8)
        stream.write(memory, 0, before)
        stream.write(memory, offset, data)
        stream.read(memory, offset, found)
        stream.read(memory, 0, around)
        await passed(stream)

        expected = before.copy()
        expected[offset : offset + nbytes] = data
        assert data.tobytes() == found.tobytes()
        assert expected.tobytes() == around.tobytes()
    device.release(memory)


@pytest.mark.asyncio
@pytest.mark.parametrize("dtype", DATA_TYPES, ids=repr)
async def test_every_dtype_travels(dtype: DataType, device: Device) -> None:
    """Of any rank, 0 too; the source may be read-only."""
    stream = device.open_stream()
    memory = device.allocate(4096)
    for shape in ((), (1,), (5, 7), (2, 3, 1, 5)):
        source = random_bytes(dtype.itemsize * int(np.prod(shape, dtype=int)), 3).view(dtype.numpy).reshape(shape)
        source.flags.writeable = False
        target = np.zeros(shape, dtype.numpy)
        stream.write(memory, 3, source)
        stream.read(memory, 3, target)
        await passed(stream)

        assert source.tobytes() == target.tobytes()


@pytest.mark.asyncio
@pytest.mark.parametrize("byte", [0, 0xA5, 0xFF])
async def test_a_fill_sets_the_bytes_it_was_told(byte: int, device: Device) -> None:
    """At any offset and of any size, none too."""
    stream = device.open_stream()
    memory = device.allocate(1000)
    expected = random_bytes(1000)
    stream.write(memory, 0, expected.copy())
    for offset, nbytes in ((0, 1), (3, 7), (100, 256), (999, 1), (500, 0)):
        stream.fill(memory, offset, nbytes, byte)
        expected[offset : offset + nbytes] = byte
    found = np.zeros(1000, np.uint8)
    stream.read(memory, 0, found)
    await passed(stream)

    assert expected.tobytes() == found.tobytes()


def plus_one(device: Device, count: int) -> KernelSource | ReferenceKernel:
    """Return a kernel that writes x + 1 to y, for the kind of device."""
    if device.info.takes_source:
        body = "const int i = (int)get_global_id(0); if (i < n) y[i] = x[i] + 1;"
        return kernel("plus_one", (("x", INT32, "r"), ("y", INT32, "w")), ("n",), body)
    layout = Layout(INT32, (count,))
    return ReferenceKernel("plus_one", lambda inputs: [inputs[0] + 1], (layout,), (layout,))  # type: ignore[operator]


@pytest.mark.asyncio
async def test_commands_run_in_the_order_they_were_enqueued(device: Device) -> None:
    """A hundred kernels, each reading what the one before it wrote, at offsets into one block."""
    stream = device.open_stream()
    memory = device.allocate(2 * 4000 + 8)
    source = plus_one(device, 1000)
    built = device.build([source], None)[0][source]
    start, found = np.arange(1000, dtype=np.int32), np.zeros(1000, np.int32)
    stream.write(memory, 4, start)
    places = [4, 4004]
    for _ in range(100):
        stream.launch(built, [memory, memory], device.pack(places, (1000,)), (1000,), None, ())
        places.reverse()
    stream.read(memory, 4, found)
    await passed(stream)

    assert (start + 100).tolist() == found.tolist()


@pytest.mark.asyncio
@pytest.mark.parametrize("native", [True, False])
async def test_launches_may_be_enqueued_at_once(native: bool, device: Device) -> None:
    """In their order, with numbers for the memory of some: from the beginning, or from the end."""
    stream = device.open_stream(native=native)
    memory, constant = device.allocate(8000), device.allocate(4000)
    source = plus_one(device, 1000)
    built = device.build([source], None)[0][source]
    start, found = np.arange(1000, dtype=np.int32), np.zeros(1000, np.int32)
    stream.write(constant, 0, start)
    there: PreparedLaunch = (built, (constant, 1), device.pack([0, 0], (1000,)), (1000,), None, ())
    on: PreparedLaunch = (built, (-1, 1), device.pack([0, 4000], (1000,)), (1000,), None, ())
    back: PreparedLaunch = (built, (1, -1), device.pack([4000, 0], (1000,)), (1000,), None, ())
    stream.launch_all((there, on, back, on), [constant, memory])
    stream.read(memory, 4000, found)
    await passed(stream)

    assert (start + 4).tolist() == found.tolist()


@pytest.mark.asyncio
async def test_prepared_launches_do_what_launches_do(device: Device) -> None:
    """In order, each time with the memory they are bound to then, whatever they are bound to before they have run."""
    streams = [device.open_stream() for _ in range(2)]
    source = plus_one(device, 1000)
    built = device.build([source], None)[0][source]
    fixed, *others = (device.allocate(8000) for _ in range(4))
    launches: list[PreparedLaunch] = [
        (built, buffers, device.pack(places, (1000,)), (1000,), None, ())
        for buffers, places in (((0, fixed), (0, 4000)), ((fixed, -1), (4000, 0)), ((-1, -1), (0, 4000)))
    ]
    prepared = device.prepare(launches, [others[0], None, others[1]])
    if prepared is None:
        assert not device.info.takes_source  # it does not say what it cannot do
        return
    found = [np.zeros(1000, np.int32) for _ in range(12)]
    stream = streams[0]
    for turn, target in enumerate(found):
        first, last = others[turn % 3], others[(turn + 1 + turn // 3) % 3]
        stream.write(first, 0, np.arange(turn, turn + 1000, dtype=np.int32))
        prepared.bind([first, None, last])
        prepared.launch(stream)
        stream.read(last, 4000, target)
    streams[1].wait_for([streams[0].mark()])
    prepared.launch(streams[1])
    again = np.zeros(1000, np.int32)
    streams[1].read(others[(11 + 1 + 11 // 3) % 3], 4000, again)
    prepared.bind([others[0], None, others[1]])
    streams[1].fill(others[0], 0, 4000, 0)
    prepared.launch(streams[1])
    streams[1].time_commands(True)  # which may be another queue, behind the same commands
    timed = np.zeros(1000, np.int32)
    streams[1].read(others[1], 4000, timed)
    await asyncio.gather(*map(passed, streams))

    assert [list(range(turn + 3, turn + 1003)) for turn in range(12)] == [f.tolist() for f in found]
    assert list(range(14, 1014)) == again.tolist()
    assert timed.tolist() == [3] * 1000


@pytest.mark.asyncio
async def test_a_stream_waits_for_another(device: Device) -> None:
    """Two streams take turns on the same bytes, each waiting for the other's mark."""
    streams = [device.open_stream() for _ in range(2)]
    memory = device.allocate(8)
    source = plus_one(device, 1)
    built = device.build([source], None)[0][source]
    streams[0].write(memory, 0, np.zeros(2, np.int32))
    for turn in range(60):
        first, second = streams[turn % 2], streams[1 - turn % 2]
        places = [0, 4] if turn % 2 == 0 else [4, 0]
        first.launch(built, [memory, memory], device.pack(places, (1,)), (1,), None, ())
        second.wait_for([first.mark()])
    streams[0].wait_for([])
    found = np.zeros(1, np.int32)
    streams[0].read(memory, 0, found)
    await asyncio.gather(*map(passed, streams))

    assert found.tolist() == [60]


@pytest.mark.asyncio
async def test_marks_are_reached_in_order_and_reported_once(device: Device) -> None:
    """Each after the commands before it; a mark of an empty stream, or right behind another, is reached too."""
    stream = device.open_stream()
    memory = device.allocate(1 << 16)
    found: list[Array] = []
    reports: list[tuple[int, int, BaseException | None]] = []
    marks: list[Mark] = [stream.mark(), stream.mark()]
    for value in range(1, 20):
        stream.fill(memory, 0, 1 << 16, value)
        found.append(np.zeros(1 << 16, np.uint8))
        stream.read(memory, 0, found[-1])
        marks.append(stream.mark())

    def report(number: int) -> Callable[[BaseException | None], None]:
        return lambda error: reports.append((number, int(found[number - 2][-1]) if number > 1 else 0, error))

    for number, mark in enumerate(marks):
        stream.when_reached(mark, report(number))
    await passed(stream)

    assert [(0, 0, None), (1, 0, None), *((n + 1, n, None) for n in range(1, 20))] == reports


@pytest.mark.asyncio
async def test_a_mark_that_was_reached_before_is_reported(device: Device) -> None:
    """Who asks late gets an answer too."""
    stream = device.open_stream()
    memory = device.allocate(16)
    stream.fill(memory, 0, 16, 1)
    mark = stream.mark()
    await passed(stream)
    reports: list[BaseException | None] = []
    stream.when_reached(mark, reports.append)
    await passed(stream)

    assert reports == [None]


@pytest.mark.asyncio
async def test_streams_are_numbered_in_the_order_they_were_opened(device: Device) -> None:
    """From 0 on; each can be used."""
    streams = [device.open_stream() for _ in range(3)]
    await asyncio.gather(*map(passed, streams))

    assert [s.index for s in streams] == [0, 1, 2]


def test_more_memory_than_there_is_is_refused(device: Device) -> None:
    """The error says how much was asked."""
    asked = 1 << 60

    with pytest.raises(OutOfDeviceMemory, match=str(asked)):
        device.allocate(asked)


@pytest.mark.asyncio
async def test_memory_can_be_given_back_and_asked_for_again(device: Device) -> None:
    """Any number of times, and none of it is little enough to be refused."""
    stream = device.open_stream()
    found = np.zeros(1 << 20, np.uint8)
    for turn in range(20):
        memory, nothing = device.allocate(1 << 20), device.allocate(0)
        stream.fill(memory, 0, 1 << 20, turn)
        stream.read(memory, 0, found)
        await passed(stream)
        device.release(memory)
        device.release(nothing)

        assert (found == turn).all()


@pytest.mark.asyncio
async def test_kernels_read_adopted_pages_where_they_lie(device: Device, tmp_path: Path) -> None:
    """A device of the host's memory takes bytes that nobody may write to, and leaves them as they are."""
    data = np.arange(2000, dtype=np.int32)
    paged = page_out([data], tmp_path)
    pages = None if paged is None else pages_of(paged[0])
    assert pages is not None
    if not device.info.shares_memory:
        pytest.skip("its memory is its own")
    stream, memory, found = device.open_stream(), device.adopt(pages), np.zeros(1000, np.int32)
    target = device.allocate(4000)
    source = copying(device)
    kernels, _ = device.build([source], None)

    stream.launch(kernels[source], [memory, target], device.pack([4000, 0], []), (1000,), None, ())
    stream.read(target, 0, found)
    await passed(stream)
    device.release(memory)

    assert found.tolist() == list(range(1000, 2000))
    assert pages[: data.nbytes].tobytes() == data.tobytes()


def copying(device: Device) -> KernelSource | ReferenceKernel:
    """A kernel that copies a thousand ints."""
    if device.info.takes_source:
        body = "int i = get_global_id(0); y[i] = x[i];"
        return kernel("copying", (("x", INT32, "r"), ("y", INT32, "w")), (), body)
    layout = Layout(INT32, (1000,))
    return ReferenceKernel("copying", lambda arrays: [arrays[0]], (layout,), (layout,))


@pytest.mark.asyncio
async def test_closing_runs_out_what_is_enqueued(device: Device) -> None:
    """And may be done again; the device's streams are closed with it."""
    stream = device.open_stream()
    memory = device.allocate(1 << 20)
    found = np.zeros(1 << 20, np.uint8)
    reports: list[BaseException | None] = []
    stream.fill(memory, 0, 1 << 20, 7)
    stream.read(memory, 0, found)
    stream.when_reached(stream.mark(), reports.append)
    device.close()
    device.close()

    assert reports == [None]
    assert (found == 7).all()


def test_it_says_what_it_is(device: Device) -> None:
    """The facts that planning and the caches ask for."""
    info = device.info

    assert info.spec
    assert info.name
    assert info.identity
    assert info.kind in ("gpu", "cpu", "accelerator", "host", "simulated")
    assert 0 < info.max_allocation <= info.memory
    assert info.compute_units >= 1
    assert info.max_group >= 1
    known = {"fp64", "fp16", "command_buffer", "mma", "wgmma", "persistent", "local_thread", "threads", "sched_yield"}
    assert info.features <= known
    assert info.is_cpu == (info.kind in ("cpu", "host", "simulated"))


@pytest.mark.asyncio
@pytest.mark.parametrize("spec", ["host", "simulated"])
async def test_a_failed_command_is_reported_at_the_next_mark(spec: str) -> None:
    """With its cause; what was enqueued behind it up to that mark does not run, and after it all is well again."""
    device = open_device(spec)
    stream = device.open_stream()
    memory = device.allocate(4)
    layout = Layout(INT32, (1,))

    def fails(inputs: object) -> list[Array]:
        raise ZeroDivisionError("of no use")

    broken = ReferenceKernel("broken", fails, (), (layout,))
    reports: list[BaseException | None] = []
    found = np.zeros(1, np.int32)
    stream.fill(memory, 0, 4, 1)
    stream.launch(broken, [memory], device.pack((0,), ()), (1,), None, ())
    stream.fill(memory, 0, 4, 2)
    stream.when_reached(stream.mark(), reports.append)
    stream.when_reached(stream.mark(), reports.append)
    stream.read(memory, 0, found)
    await passed(stream)
    device.close()

    failure, nothing = reports
    assert isinstance(failure, DeviceCommandError)
    assert isinstance(failure.__cause__, ZeroDivisionError)
    assert "of no use" in failure.detail
    assert nothing is None
    assert found.tolist() == [0x01010101]


def test_bfloat16_is_known_to_numpy() -> None:
    """Every dtype that travels has a NumPy dtype of its own."""
    assert len(DATA_TYPES) == len({t.numpy for t in DATA_TYPES})
    assert np.dtype(ml_dtypes.bfloat16) in {t.numpy for t in DATA_TYPES}


@pytest.mark.asyncio
async def test_commands_are_timed_while_that_is_wanted(device: Device) -> None:
    """In their order, by the device's clock, and between what the host saw before and after; results are as always."""
    stream, other = device.open_stream(), device.open_stream()
    memory = device.allocate(4096)
    data, found = random_bytes(4096), np.zeros(4096, np.uint8)
    stream.write(memory, 0, random_bytes(4096, 7))
    begin = device.clock()
    stream.time_commands(True)
    stream.write(memory, 0, data)
    timings = [stream.timing()]
    stream.wait_for([other.mark()])
    timings.append(stream.timing())
    stream.read(memory, 0, found)
    timings.append(stream.timing())
    await passed(other)
    await passed(stream)
    end = device.clock()
    stream.time_commands(False)
    again = np.zeros(4096, np.uint8)
    stream.read(memory, 0, again)
    await passed(stream)

    written, waited, read = (timing() for timing in timings)
    times = [t for t in (written, waited, read) if t is not None]
    slack = 200_000  # ns, of the two clocks' alignment
    assert written is not None
    assert read is not None  # a wait is no command of the device's; not every driver times it
    assert all(start <= stop for start, stop in times)
    assert [start for start, _ in times] == sorted(start for start, _ in times)
    assert begin - slack <= times[0][0] <= times[-1][1] <= end + slack
    np.testing.assert_array_equal(data, found)
    np.testing.assert_array_equal(data, again)
