"""OpenCL through pyopencl: contexts, in-order queues, programs and the driver's errors. Its only importer.

`drivers.prepare()` must run before pyopencl is first used, which is why nothing else imports it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import attrs
import numpy as np

from asyncrt.devices.base import (
    Allocation,
    Binaries,
    Kernel,
    Launcher,
    Mark,
    Prepared,
    PreparedLaunch,
    Reached,
    Record,
    Timing,
    launch_each,
)
from asyncrt.devices.huge_pages import give_back, grown, huge_pages, touch
from asyncrt.errors import DeviceCommandError, DeviceError, KernelBuildError, OutOfDeviceMemory
from asyncrt.layout import Array

from . import dot_product as opencl_dot
from . import drivers
from .ahead import load_all
from .arguments import argument_setter, handle_of, raise_refused, refused
from .compiling.compilers import find_compilers
from .compiling.one_thread import compiling_thread
from .copies import find_copies
from .gate import find_gate
from .info import Probe, cores, describe
from .launcher import PATIENCE_NS, native_launcher
from .nvidia import own_instructions
from .nvidia.persistent import LANES, Addresses, local_space
from .pinned import PinnedBlock, PinnedMemory, PinnedTransfers
from .prepared import JOINS, LONG_CPU, LONG_GPU, OpenCLPrepared, preset_calls
from .record import pack_record
from .submit import native_submitter, python_submitter
from .target import compiled_for, registers_of, usual_target
from .waiter import Waiter

#: Whether nobody else in this process has used OpenCL by now, as far as one can tell.
FIRST = "pyopencl" not in sys.modules
drivers.prepare()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import pyopencl as cl

_log = logging.getLogger(__name__)

_Result = TypeVar("_Result")

# Nothing that changes results: no fast-math. Warnings are of no use to users of the runtime.
_OPTIONS = b"-cl-std=CL1.2 -w"
# pyopencl's own `Program.build` keeps a cache beside ours, and warns about logs through a filter that no two threads
# can set safely; the class below it does neither.
_FUNCTIONS = cl._cl  # pyright: ignore[reportPrivateImportUsage]
_Program = _FUNCTIONS._Program


class _Loaded:
    """A program that others may find as long as somebody holds it: pyopencl's own cannot be referred to weakly."""

    __slots__ = ("__weakref__", "int_ptr", "program")

    def __init__(self, program: Any) -> None:
        self.program, self.int_ptr = program, program.int_ptr


_THREAD_LOCAL = 1 << 31  # CL_QUEUE_THREAD_LOCAL_EXEC_ENABLE_INTEL, of cl_intel_exec_by_local_thread
# Seconds between two looks at an event, where waiting for it would take a core that others need.
_LOOK_S = 50e-6


class OpenCLMark:
    """The driver's event of the last command before this place, and what must live until it is reached."""

    __slots__ = ("event", "keep", "land", "spin")

    def __init__(
        self, event: cl.Event, keep: list[Any], land: Callable[[bool], None] | None = None, spin: bool = True
    ) -> None:
        self.event, self.keep, self.land, self.spin = event, keep, land, spin

    def forget(self, failed: bool) -> None:
        """Release what had to live until the mark was reached, and copy what was read unless that failed."""
        self.keep = []
        land, self.land = self.land, None  # once, however many wait
        if land is not None:
            land(failed)

    def wait(self) -> None:
        """Block until the mark is reached; raises `DeviceCommandError` if a command before it failed."""
        failed = True
        try:
            while not self.spin and self.event.command_execution_status > cl.command_execution_status.COMPLETE:
                time.sleep(_LOOK_S)
            self.event.wait()
            # NVIDIA's driver raises nothing for an event that was set to have failed.
            if (status := self.event.command_execution_status) < cl.command_execution_status.COMPLETE:
                raise DeviceCommandError("the driver refused running commands", detail=f"status {status}")
            failed = False
        except cl.Error as error:
            raise_refused(error, "running commands")
        finally:
            # Transfer events wait in their destructor with the GIL held: they may die only after they are reached.
            self.forget(failed)


class OpenCLStream:
    """An in-order command queue."""

    def __init__(
        self, device: OpenCLDevice, index: int, pinned: PinnedMemory | None, spin: bool | None, native: bool = True
    ) -> None:
        self.index, self.native = index, 0
        self._spin, self._device = spin, device
        self._queue = device.open_queue()
        self._copies = device.copies
        #: What is added to the device's times to give the host's, while commands are timed.
        self._ahead: int | None = None
        self._waiter = Waiter(f"asyncrt-{device.info.spec}-{index}")
        self._set_arguments = argument_setter()
        self._submitter = native_submitter() if native else None
        #: What the thread that enqueues on it carries out by itself, while nothing is on the other one.
        self._single: cl.CommandQueue | None = None
        self._last: cl.Event | None = None
        self._transfers: list[Any] = []
        self._pinned = None if pinned is None else PinnedTransfers(pinned)
        self._write_from = contextlib.nullcontext if self._pinned is None else self._pinned.write
        self._read_to = contextlib.nullcontext if self._pinned is None else self._pinned.read

    def launch(
        self,
        kernel: Kernel,
        buffers: Sequence[Allocation],
        record: Record,
        grid: tuple[int, ...],
        group: tuple[int, ...] | None,
        local: tuple[int, ...],
    ) -> None:
        try:
            if self._set_arguments is None:
                kernel.set_args(*buffers, record, *(cl.LocalMemory(n) for n in local))
            elif status := self._set_arguments(kernel.pointer, buffers, record, local):
                raise refused(f"setting an argument of {kernel.function_name}", status)
            self._last = cl.enqueue_nd_range_kernel(self._queue, kernel, grid, group)
        except (cl.Error, MemoryError) as error:
            raise_refused(error, f"kernel {kernel.function_name} over {grid}")

    def launch_all(self, launches: Sequence[PreparedLaunch], memory: Sequence[Allocation]) -> None:
        if self._submitter is None:
            launch_each(self, launches, memory)
        else:
            self.native += 1
            self._submitter.launch(self.queue_address(), launches, memory)

    def queue_address(self) -> int:
        """Return the address of the driver's queue, for launches without events; a marker is put behind them."""
        self._last = None
        return int(self._queue.int_ptr)

    def single_queue_address(self) -> int:
        """Return the address of a queue whose commands are carried out by the thread that enqueues them, at once."""
        if self._single is None:
            try:
                self._single = self._device.open_queue(single=True)
            except (cl.Error, MemoryError) as error:
                raise_refused(error, "opening a queue")
        return int(self._single.int_ptr)

    def write(self, target: Allocation, offset: int, source: Array) -> None:
        if not source.nbytes:
            return  # OpenCL refuses copies of no bytes
        try:
            # As bytes, because pyopencl knows no bool and no bfloat16 buffers.
            data = source.reshape(-1).view(np.uint8)
            with self._write_from(data) as data:
                self._last = self._copies.write(self._queue, target, offset, data)
        except (cl.Error, MemoryError) as error:
            raise_refused(error, f"a write of {source.nbytes} bytes")
        self._transfers.append(self._last)

    def read(self, source: Allocation, offset: int, target: Array) -> None:
        if not target.nbytes:
            return
        try:
            data = target.reshape(-1).view(np.uint8)
            with self._read_to(data) as data:
                self._last = self._copies.read(self._queue, source, offset, data)
        except (cl.Error, MemoryError) as error:
            raise_refused(error, f"a read of {target.nbytes} bytes")
        self._transfers.append(self._last)

    def room(self, nbytes: int) -> Array | None:
        return None if self._pinned is None else self._pinned.lend(nbytes)

    def fill(self, target: Allocation, offset: int, nbytes: int, byte: int) -> None:
        if not nbytes:
            return
        try:
            self._last = cl.enqueue_fill_buffer(self._queue, target, np.uint8(byte), offset, nbytes)  # pyright: ignore[reportArgumentType]
        except (cl.Error, MemoryError) as error:
            raise_refused(error, f"a fill of {nbytes} bytes")

    def wait_for(self, marks: Sequence[Mark]) -> None:
        if not marks:
            return
        try:
            self._last = cl.enqueue_barrier(self._queue, [m.event for m in marks])  # type: ignore[attr-defined]
        except (cl.Error, MemoryError) as error:
            raise_refused(error, "a wait for another stream")

    def mark(self) -> OpenCLMark:
        try:
            if self._device.late_events and not (self._transfers and self._last is self._transfers[-1]):
                self._last = self._device.copy_nothing(self._queue)
            last = self._newest()
            # Another queue, or a host thread, may wait for it: the command must have been submitted by then
            # (OpenCL API specification, appendix A).
            self._queue.flush()
        except (cl.Error, MemoryError) as error:
            raise_refused(error, "a flush")
        keep, self._transfers = self._transfers, []
        land = None if self._pinned is None else functools.partial(self._pinned.land, self._pinned.enqueued)
        return OpenCLMark(last, keep, land, self._device.may_spin if self._spin is None else self._spin)

    def _newest(self) -> cl.Event:
        """Return the event of the command enqueued last, which is a marker if that has none."""
        if self._last is None:
            self._last = cl.enqueue_marker(self._queue)
        return self._last

    def when_reached(self, mark: Mark, callback: Reached) -> None:
        assert isinstance(mark, OpenCLMark)
        self._waiter.watch(mark.wait, callback)

    def time_commands(self, on: bool) -> None:
        try:
            queue = self._device.open_queue(timed=on)
            self._ahead = _ahead(queue) if on else None
            last = self._newest()
            self._queue.flush()
            self._last = cl.enqueue_barrier(queue, [last])
        except (cl.Error, MemoryError) as error:
            raise_refused(error, "opening a queue")
        self._queue = queue

    def timing(self) -> Timing:
        event, ahead = self._last, self._ahead
        assert event is not None
        assert ahead is not None, "commands are not timed"

        def times() -> tuple[int, int] | None:
            try:
                profile = event.profile
                # NVIDIA's driver writes no times of markers and barriers: those of an older command would be read.
                return (profile.start + ahead, profile.end + ahead) if profile.queued else None
            except cl.Error:
                return None  # it failed, or the driver cannot say

        return times

    def close(self) -> None:
        self._waiter.close()
        try:
            self._queue.finish()
            if self._pinned is not None:
                self._pinned.land(self._pinned.enqueued)
        except cl.Error as error:
            raise_refused(error, "finishing")
        finally:
            self._transfers, self._last = [], None


def _ahead(queue: cl.CommandQueue) -> int:
    """Return how far the host's clock is ahead of the device's, in nanoseconds. Blocks for about a millisecond.

    A command runs between the host's enqueueing it and the end of the host's wait, which gives bounds; the narrowest of
    several are used. The driver's own `clGetDeviceAndHostTimer` is missing before OpenCL 2.1 and fails on PoCL.
    """
    low, high = -(1 << 63), 1 << 63
    byte = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, 1)
    for _ in range(20):
        before = time.perf_counter_ns()
        event = cl.enqueue_copy(queue, byte, b"\0", is_blocking=False)  # markers have no times on some drivers
        event.wait()
        after = time.perf_counter_ns()
        low, high = max(low, before - event.profile.start), min(high, after - event.profile.end)
    return (low + high) // 2


class OpenCLDevice:
    """One OpenCL device with a context of its own."""

    def __init__(self, device: cl.Device, spec: str) -> None:
        self.cl_device = device
        self.info = describe(device, spec)
        try:
            self.context = cl.Context([device])
        except cl.Error as error:
            raise DeviceError(f"{spec} ({self.info.name}): its driver gives no context", detail=str(error)) from error
        self._streams: list[OpenCLStream] = []
        #: Whether there is anything to gain by it: what computes in the host's memory copies as the host does.
        self.pins_transfers = not device.host_unified_memory
        self.pinned = PinnedMemory(self._pin)
        self._mapping: cl.CommandQueue | None = None
        nvidia = "nvidia" in self.info.platform.lower()
        #: Whether events of kernels, fills and markers come late, for the host and for queues that wait for them: with
        #: NVIDIA's driver, when all other queues have passed what they had been given by then. Those of copies do not.
        self.late_events = nvidia
        self._scratch: cl.Buffer | None = None
        #: Whether the driver keeps a core busy while a thread waits, and whether there are cores enough for that.
        self.spins = nvidia
        self.may_spin = True
        self._options = _OPTIONS + (b" -D ASYNCRT_CPU" if self.info.is_cpu else b"")
        self._dots = opencl_dot.Dots(possible=self.info.is_cpu)
        self.copies = find_copies(self.info.platform, self.info.kind, _FUNCTIONS)
        self._identity = self.info.identity
        self._programs: WeakValueDictionary[bytes, _Loaded] = WeakValueDictionary()
        #: What the driver compiles for, once that was seen; it is part of the identity from then on.
        self._target: str | None = None
        self.compilers = find_compilers(self.info.platform, self.info.kind, spec, self.info.name)
        self.builds_at_once = self.compilers.at_once if self.compilers else 2
        #: Whether there are queues whose commands the thread that enqueues them carries out by itself.
        self.single = "local_thread" in self.info.features
        self.gate = find_gate(self.info.platform, self.info.kind, self.context.int_ptr)
        self._addresses: Addresses | None = None
        self.ptx = "mma" in self.info.features
        self.lanes, self.space = (LANES, local_space(self.info.local_memory)) if self.ptx else (1, 0)

    def __repr__(self) -> str:
        return f"<OpenCLDevice {self.info.spec} {self.info.name!r} {len(self._streams)} streams>"

    def open_stream(self, pinned: bool = True, spin: bool | None = None, native: bool = True) -> OpenCLStream:
        memory = self.pinned if pinned and self.pins_transfers else None
        stream = OpenCLStream(self, len(self._streams), memory, spin, native)
        self._streams.append(stream)
        # One stream is for constants, which are uploaded seldom, so the event loop gets its core.
        self.may_spin = not self.spins or len(self._streams) <= cores()
        return stream

    def open_queue(self, *, timed: bool = False, single: bool = False) -> cl.CommandQueue:
        """Return an in-order queue.

        Args:
            timed: The driver notes the times of its commands, which slows it down.
            single: The thread that enqueues a command carries it out by itself, if `single`.
        """
        timing = cl.command_queue_properties.PROFILING_ENABLE if timed else 0
        properties: Any = timing | (_THREAD_LOCAL if single else 0)
        return cl.CommandQueue(self.context, self.cl_device, properties)

    def _pin(self, nbytes: int) -> PinnedBlock | None:
        """Return memory that the driver knows to be pinned: a buffer on the host, mapped as long as it is used."""
        try:
            if self._mapping is None:
                self._mapping = self.open_queue()  # of its own: mapping waits for what is before it
            queue = self._mapping
            buffer = cl.Buffer(self.context, cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR, nbytes)
            flags = cl.map_flags.READ | cl.map_flags.WRITE
            array, _ = cl.enqueue_map_buffer(queue, buffer, flags, 0, (nbytes,), np.uint8)  # pyright: ignore[reportArgumentType]
        except (cl.Error, MemoryError):
            return None  # transfers work without

        def release() -> None:
            array.base.release(queue).wait()  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
            buffer.release()

        return PinnedBlock(array, release)

    def copy_nothing(self, queue: cl.CommandQueue) -> cl.Event:
        """Enqueue a copy that nobody reads, for its event."""
        if self._scratch is None:
            self._scratch = cl.Buffer(self.context, cl.mem_flags.READ_WRITE, 8)
        event: cl.Event = cl.enqueue_copy(queue, self._scratch, self._scratch, byte_count=4, dst_offset=4)
        return event

    def allocate(self, nbytes: int) -> Allocation:
        if nbytes > self.info.max_allocation:
            raise OutOfDeviceMemory(
                f"{self.info.spec}: {nbytes} bytes in one allocation; its driver allows {self.info.max_allocation}"
            )
        memory = huge_pages(nbytes) if self.info.is_cpu and self.info.shares_memory else None
        return self._buffer(cl.mem_flags.READ_WRITE, max(nbytes, 1)) if memory is None else self._owned(memory)

    def grow(self, allocation: Allocation | None, nbytes: int) -> Allocation | None:
        if not self.info.is_cpu or not self.info.shares_memory or nbytes > self.info.max_allocation:
            return None
        before: Array | None = getattr(allocation, "own", None)
        memory = None if before is None else grown(before, nbytes)
        moves = memory is None
        memory = huge_pages(nbytes, grows=True) if memory is None else memory
        if memory is None:
            return None
        buffer = self._owned(memory)
        if allocation is not None:
            allocation.release()
        if before is not None and moves:
            give_back(before)
        return buffer

    def touch(self, allocation: Allocation) -> None:
        if (memory := getattr(allocation, "own", None)) is not None:
            touch(memory)

    def _owned(self, memory: Array) -> Allocation:
        buffer = self._buffer(cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR, memory.nbytes, memory)
        buffer.own = memory  # pyright: ignore[reportAttributeAccessIssue]
        return buffer

    def adopt(self, pages: Array) -> Allocation:
        return self._buffer(cl.mem_flags.READ_ONLY | cl.mem_flags.USE_HOST_PTR, pages.nbytes, pages)

    def _buffer(self, flags: int, nbytes: int, pages: Array | None = None) -> Allocation:
        try:
            buffer = cl.Buffer(self.context, flags, nbytes, pages)
            buffer.handle, buffer.pages = handle_of(buffer.int_ptr), pages  # pyright: ignore[reportAttributeAccessIssue]
            return buffer
        except (cl.Error, MemoryError) as error:
            raise OutOfDeviceMemory(
                f"{self.info.spec}: the driver did not allocate {nbytes} bytes", detail=str(error)
            ) from error

    def _looks(self) -> Addresses:
        if self._addresses is None:
            self._addresses = Addresses(cl, self.context, self.cl_device)
        return self._addresses

    def find_by(self, kernel: Kernel) -> None:
        self._looks().finder = kernel

    def addresses(self, allocations: Sequence[Allocation]) -> Sequence[int]:
        try:
            return self._looks().of(allocations)
        except (cl.Error, MemoryError) as error:
            raise_refused(error, "asking for addresses")

    def read_now(self, allocation: Allocation, nbytes: int) -> bytes:
        try:
            return self._looks().read(allocation, nbytes)
        except (cl.Error, MemoryError) as error:
            raise_refused(error, f"a read of {nbytes} bytes")

    def holding(self, data: bytes) -> Allocation:
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        return self._buffer(flags, len(data), np.frombuffer(data, np.uint8))

    def on_host(self, allocation: Allocation, nbytes: int) -> Array | None:
        if not self.info.shares_memory:
            return None
        if self._mapping is None:
            self._mapping = self.open_queue()
        try:
            # It is unmapped when nobody has the array any more. Kernels may read what is mapped for reading.
            flags = cl.map_flags.READ
            seen: Array
            seen, _ = cl.enqueue_map_buffer(self._mapping, allocation, flags, 0, (nbytes,), np.uint8)  # pyright: ignore[reportArgumentType]
        except cl.Error as error:
            raise_refused(error, f"mapping {nbytes} bytes")
        return seen

    def release(self, allocation: Allocation) -> None:
        allocation.release()
        if (memory := getattr(allocation, "own", None)) is not None:
            give_back(memory)

    def build(self, sources: Sequence[Any], binary: bytes | None) -> tuple[Mapping[Any, Kernel], bytes | None]:
        if self._target is None:
            self.probe()
        # A program compiled for another target would make the driver compile for that target from here on.
        fits = binary is not None and compiled_for(binary) == self._target
        loaded = self._loaded_once(binary, sources[0].name) if binary is not None and fits else None
        program, kept = None if loaded is None else loaded.program, None
        if program is None:
            # The prelude is guarded, so texts of several kernels make one program.
            text = "\n".join(s.text for s in sources)
            kept = self._compiled_beside(text)
            program = None if kept is None else self._load(kept, sources[0].name)
            if program is None:
                program = self.compile(text)
                own: bytes = program.get_info(cl.program_info.BINARIES)[0]
                if compiled_for(own) != self._target:
                    self._steered()
                kept = own
        try:
            kernels = {s: cl.Kernel(program, s.name) for s in sources}
        except cl.Error as error:
            if binary is not None:
                return self.build(sources, None)  # the binary held other kernels than it should
            raise KernelBuildError(
                f"{self.info.spec}: a kernel is missing in its program", detail=str(error)
            ) from error
        for kernel in kernels.values():
            kernel.pointer, kernel.built_of = kernel.int_ptr, loaded or program  # pyright: ignore[reportAttributeAccessIssue]
        return kernels, kept

    def build_gently(self) -> bool:
        if self.compilers is None:
            return False
        self.compilers.gives_way = True
        return True

    def hurry_builds(self, hurries: bool) -> None:
        if self.compilers is not None:
            self.compilers.hurry(hurries)

    def pause_builds(self, paused: bool) -> None:
        if self.compilers is not None:
            self.compilers.pause(paused)

    def load_ahead(self, programs: Sequence[tuple[bytes, str]]) -> Sequence[Any]:
        if load_all() is None or self._target is None:
            return ()
        fitting = {hashlib.sha256(b).digest(): (b, name) for b, name in programs if compiled_for(b) == self._target}
        held = {digest: there for digest in fitting if (there := self._programs.get(digest)) is not None}
        missing = [digest for digest in fitting if digest not in held]
        loaded = self._load_all([fitting[digest] for digest in missing])
        for digest, program in zip(missing, loaded, strict=True):
            if program is not None:
                held[digest] = self._programs.setdefault(digest, _Loaded(program))
        return list(held.values())

    def _compiled_beside(self, text: str) -> bytes | None:
        """Return the binary of a text that another process has compiled, if one does."""
        if self.compilers is None or own_instructions.MARK in text:
            return None
        binary = self.compilers.compile(self._options + self._dots.options(text, self._try), text)
        return None if binary is None or compiled_for(binary) != self._target else binary

    def _loaded_once(self, binary: bytes, name: str) -> _Loaded | None:
        """Return the program of a binary, the one that other kernels of it have if there are some."""
        digest = hashlib.sha256(binary).digest()
        loaded = self._programs.get(digest)
        if loaded is None and (program := self._load(binary, name)) is not None:
            loaded = self._programs[digest] = _Loaded(program)
        return loaded

    def _load(self, binary: bytes, name: str | None = None) -> Any:
        """Return the program of a binary; None if it is damaged, or of another driver.

        Args:
            name: Of one of its kernels, by which other threads go on meanwhile.
        """
        if name is not None and load_all() is not None:
            return self._load_all([(binary, name)])[0]

        def load() -> Any:
            program = _Program(self.context, [self.cl_device], [binary])
            program._build(self._options, [self.cl_device])
            return program

        try:
            return self._call(load, brief=True)
        except Exception:
            return None

    def _load_all(self, programs: Sequence[tuple[bytes, str]]) -> list[Any]:
        """Return the programs of binaries, each with the name of one of its kernels; None for what is refused."""
        loads = load_all()
        if loads is None or not programs:
            return [None] * len(programs)
        context, device = self.context.int_ptr, self.cl_device.int_ptr
        found = self._call(lambda: loads(context, device, self._options, programs), brief=True)
        return [_Program.from_int_ptr(address, retain=False) if address else None for address in found]

    def _call(self, work: Callable[[], _Result], brief: bool = False) -> _Result:
        """Call the driver's compiler, on the thread that it wants to be called on; it is *brief* to load a program."""
        thread = compiling_thread(self.info.platform, self.info.kind)
        return work() if thread is None else thread.call(work, brief=brief)

    def compile(self, text: str) -> Any:
        """Return pyopencl's program of an OpenCL C text.

        Raises:
            KernelBuildError: The driver refused it; with its log.
        """
        program = _Program(self.context, text)
        options = self._options + self._dots.options(text, self._try)
        try:
            self._call(lambda: program._build(options, [self.cl_device]))
        except cl.Error as error:
            log = f"{error}\n{program.get_build_info(self.cl_device, cl.program_build_info.LOG)}"
            hint = ""
            if "unknown target CPU" in log:
                hint = "this driver's compiler is older than the processor; install asyncrt[cpu] or a newer PoCL"
            raise KernelBuildError(
                f"{self.info.spec} ({self.info.name}): its driver does not build a kernel", detail=log[:4000], hint=hint
            ) from error
        return self._own(program) if own_instructions.MARK in text else program

    def _own(self, program: Any) -> Any:
        """Return the program with what only this processor has."""
        binary = own_instructions.revealed(program.get_info(cl.program_info.BINARIES)[0])
        own = None if binary is None else self._load(binary)
        if own is None:
            raise KernelBuildError(f"{self.info.spec} ({self.info.name}): its driver refuses its own instructions")
        return own

    def prepare(
        self, launches: Sequence[PreparedLaunch], memory: Sequence[Allocation], native: bool = True
    ) -> Prepared | None:
        calls = preset_calls()
        submitter = (native_submitter() if native else None) or python_submitter()
        if calls is None or submitter is None:
            return None
        long = LONG_CPU if self.info.is_cpu else LONG_GPU
        joins = (self.info.platform, self.info.kind) in JOINS
        return OpenCLPrepared(
            calls, submitter, launches, memory, long, self.gate, joins=joins, single=self.single, lends=self.info.is_cpu
        )  # fmt: skip

    def open_launcher(self, file: int, own: Sequence[Any] = ()) -> Launcher | None:
        if own:
            return native_launcher(file, [stream.single_queue_address() for stream in own]) if self.single else None
        if (self.info.platform, self.info.kind) not in JOINS:
            return None
        return native_launcher(file, patience_ns=0 if self.info.is_cpu else PATIENCE_NS)

    def probe(self, kept: Binaries | None = None) -> None:
        """Build and run a two-line kernel, and see what the driver compiles for.

        Blocks; raises `KernelBuildError` or `DeviceCommandError`. What this driver has built before is *kept*, because
        a compiler takes 120 MB as soon as it is used.
        """
        probe, key = Probe(), f"{self._identity}|{self._options!r}|{Probe()}"
        binary = None if kept is None else kept.get(key)
        program = None if binary is None else self._load(binary)
        fresh = program is None
        if program is None:
            program = self.compile(probe.text)
        built: bytes = program.get_info(cl.program_info.BINARIES)[0]
        target = compiled_for(built)
        before = "" if binary is None else compiled_for(binary)
        usual = usual_target(self._identity, before or target)
        if target != usual:
            self._steered()
        elif fresh and kept is not None and (FIRST or not target):
            kept.put(key, built)  # by what is certain to be its driver's own choice
        try:
            result = self._run(cl.Kernel(program, probe.name), np.zeros(16, np.float32))
        except cl.Error as error:
            raise DeviceCommandError(f"{self.info.spec}: a two-line kernel does not run", detail=str(error)) from error
        if not (result == 1).all():
            raise DeviceCommandError(f"{self.info.spec}: a two-line kernel gives wrong results")
        registers = registers_of(target, self.cl_device.native_vector_width_float, platform.machine())
        features = self.info.features if self._takes_own(kept) else self.info.features - {"wgmma"}
        identity = f"{self._identity}|{target}"
        self.info = attrs.evolve(self.info, identity=identity, registers=registers, features=features)
        self._target = target

    def _takes_own(self, kept: Binaries | None) -> bool:
        """Return whether the driver builds kernels with instructions that only this processor has. Blocks."""
        if "wgmma" not in self.info.features:
            return False
        trial = own_instructions.Trial(self.info.local_memory // 4)
        key = f"{self._identity}|{self._options!r}|{trial}"
        binary = None if kept is None else kept.get(key)
        loaded = None if binary is None else self._load(binary)
        try:
            program = loaded or self.compile(trial.text)
            cl.Kernel(program, trial.name)
        except (cl.Error, KernelBuildError):
            return False  # other kernels do the same
        if loaded is None and kept is not None:
            kept.put(key, program.get_info(cl.program_info.BINARIES)[0])
        return True

    def _steered(self) -> None:
        _log.warning(
            "%s %s compiles for another processor than it did, and what it compiles may be many times slower: another "
            "part of this process gave its driver a program compiled for less; open a runtime before that",
            self.info.spec, self.info.name,
        )  # fmt: skip

    def _try(self, text: str, name: str, array: Array) -> Array:
        """Let the kernel of a text, built for this alone, change *array*, and return it."""
        return self._run(cl.Kernel(self.compile(text), name), array)

    def _run(self, kernel: cl.Kernel, array: Array) -> Array:
        """Let 16 work-items change *array*, and return it. Blocks."""
        queue = cl.CommandQueue(self.context, self.cl_device)
        buffer = cl.Buffer(self.context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=array)
        kernel.set_args(buffer)
        cl.enqueue_nd_range_kernel(queue, kernel, (16,), None)
        cl.enqueue_copy(queue, array, buffer)
        return array

    def clock(self) -> int:
        return time.perf_counter_ns()

    pack = staticmethod(pack_record)

    def close(self) -> None:
        streams, self._streams, self._addresses = self._streams, [], None
        with contextlib.ExitStack() as closing:  # a stream that fails must not leave the others open
            closing.callback(self.pinned.close)
            if self.compilers is not None:
                closing.callback(self.compilers.close)
            for stream in reversed(streams):
                closing.callback(stream.close)


def every_device() -> Iterator[tuple[str, cl.Device]]:
    """Yield ``(spec, device)`` of every OpenCL device, as the drivers list them."""
    try:
        drivers = cl.get_platforms()
    except cl.Error:
        return  # the loader found no driver
    for p, driver in enumerate(drivers):
        with contextlib.suppress(cl.Error):
            for d, device in enumerate(driver.get_devices()):
                yield f"opencl:{p}:{d}", device
