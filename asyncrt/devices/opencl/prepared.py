"""Launches whose arguments are set beforehand: to enqueue each takes one call of `clEnqueueNDRangeKernel`.

A kernel object keeps its arguments until they are set again, and a launch uses those that it has when it is enqueued
(OpenCL API specification, `clSetKernelArg`). So each launch gets a kernel object of its own, and its arguments may be
set for other memory while the device is still busy with the launch before.

Kernel objects are made through ctypes, because pyopencl takes 45 µs for one; `submit.py` enqueues the launches,
without the event that pyopencl gives to each, which on an H200 is 1.6 µs of 6.2.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from asyncrt.devices.base import Again, Allocation, PreparedLaunch, Transfer

from .arguments import SetArguments, argument_setter, loader, refused
from .drivers import INTEL_CPU, NVIDIA_GPU
from .gate import Gate, are_tiny
from .submit import Arguments, DriverCall, Post, Submitter

# Launches that take a driver more than a millisecond: 1 µs each on Intel's runtime, 4 on an H200. A thread costs some
# tenths of one, so it is not worth it for fewer.
LONG_CPU, LONG_GPU = 1024, 256
JOINS = frozenset({INTEL_CPU, NVIDIA_GPU})
"""Platforms and kinds of devices for which no other thread has to wake up: one that waits does the work, or looks for
its end without sleeping."""


class _Calls(NamedTuple):
    """The loader's functions for kernel objects."""

    create: Callable[[int, bytes, Any], int | None]
    set_arguments: SetArguments
    release: Callable[[int], int]


@functools.cache
def preset_calls() -> _Calls | None:
    """Return what it takes to preset arguments, or None where pyopencl is to make the calls."""
    library, set_arguments = loader(), argument_setter()
    if library is None or set_arguments is None:
        return None
    try:
        create, release = library["clCreateKernel"], library["clReleaseKernel"]
    except AttributeError:
        return None
    create.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    create.restype = ctypes.c_void_p
    release.argtypes = [ctypes.c_void_p]
    release.restype = ctypes.c_int
    return _Calls(create, set_arguments, release)


class OpenCLPrepared:
    """Launches with their arguments set.

    Args:
        calls: The loader's.
        submitter: Enqueues them, and sets arguments to other memory.
        launches: In order. Their kernels stay as they are.
        memory: What buffers that are numbers stand for.
        long: How many launches take so long that a thread should enqueue them.
        gate: Keeps the device from beginning on tiny ones before all are enqueued; None lets it.
        joins: Whether a thread that waits for the device depends on no other thread (`JOINS`).
        single: Whether streams have a queue whose commands the thread that enqueues them carries out by itself.
        lends: Whether the device computes on the threads that wait for it.

    Raises:
        DeviceError: The driver refuses a kernel object or an argument.
    """

    def __init__(
        self,
        calls: _Calls,
        submitter: Submitter,
        launches: Sequence[PreparedLaunch],
        memory: Sequence[Allocation],
        long: int = LONG_CPU,
        gate: Gate | None = None,
        *,
        joins: bool = False,
        single: bool = False,
        lends: bool = True,
    ) -> None:
        self.runs = submitter.runs and joins
        self.single = self.runs and single
        self.begins = self.runs and not lends
        self.long = submitter.releases_gil and len(launches) >= long
        self.busy = False
        self._native = submitter.releases_gil
        # Those of a long plan begin at once: the device would have nothing to do for a millisecond.
        self._gate = gate if are_tiny(launches) and not self.long else None
        self._launches, self._set_records = list(launches), submitter.set_records
        self._kernels = kernels = list[int]()
        weakref.finalize(self, _release, calls, kernels)
        #: By number of a buffer, the memory that it stands for now.
        self._memory: dict[int, Allocation] = {}
        places: dict[int, list[tuple[int, int]]] = {}
        own_calls = []
        for kernel, buffers, record, grid, group, local in launches:
            own = _new(calls, kernel)
            kernels.append(own)
            for index, buffer in enumerate(buffers):
                if isinstance(buffer, int):
                    self._memory[buffer] = memory[buffer]
                    places.setdefault(buffer, []).append((own, index))
            bound = [memory[b] if isinstance(b, int) else b for b in buffers]
            if status := calls.set_arguments(own, bound, record, local):
                raise refused(f"setting an argument of {kernel.function_name}", status)
            own_calls.append(DriverCall(own, grid, group))
        self._arguments: dict[int, Arguments] = {number: submitter.arguments(p) for number, p in places.items()}
        self._calls = submitter.calls(own_calls)

    def __repr__(self) -> str:
        return f"<OpenCLPrepared {len(self._launches)} launches>"

    def bind(self, memory: Sequence[Allocation]) -> None:
        """Let the numbers stand for other memory. What was enqueued before keeps what it has."""
        for number, arguments in self._arguments.items():
            buffer = memory[number]
            if buffer is not self._memory.get(number):
                self._memory.pop(number, None)  # if it fails half-way, the next `bind` has to set all of them
                if status := arguments.bind(buffer.handle.address):
                    raise refused("setting a buffer", status)
                self._memory[number] = buffer

    def become(self, launches: Sequence[PreparedLaunch], memory: Sequence[Allocation]) -> bool:
        """Be other launches of the same kernels, and bind them; see `Prepared`.

        Raises:
            DeviceError: The driver refuses an argument.
        """
        own, mine = self._kernels, self._launches
        records: list[tuple[int, int, bytes]] = []
        others = [place for place, pair in enumerate(zip(launches, mine, strict=True)) if pair[0] is not pair[1]]
        for place in others:
            (kernel, buffers, record, _, _, local), old = launches[place], mine[place]
            if kernel is not old[0] or buffers != old[1] or local != old[5]:
                return False
            if record != old[2]:
                records.append((own[place], len(buffers), record))
        if status := self._set_records(records):
            raise refused("setting the sizes of a launch", status)
        for place in others:
            _, _, _, grid, group, _ = launches[place]
            if (grid, group) != mine[place][3:5]:
                self._calls.change(place, DriverCall(own[place], grid, group))
            mine[place] = launches[place]
        self.bind(memory)
        return True

    def launch(self, stream: Any, stop: bytearray | None = None) -> None:
        """Enqueue the launches on an `OpenCLStream`.

        Raises:
            DeviceError: The driver refuses one. Those before it are enqueued, and those after it are not.
        """
        queue, gate = stream.queue_address(), self._gate
        stream.native += self._native
        if gate is None:
            done, status = self._calls.submit(queue, stop)
        else:
            event = gate.shut(queue)
            try:
                done, status = self._calls.submit(queue, stop)
            finally:
                refusal = 0 if event is None else gate.open(event)
            if refusal:
                raise refused("opening a gate", refusal)
        if status:
            raise refused(self._what(done), status)

    def run(
        self,
        stream: Any,
        writes: Sequence[Transfer],
        reads: Sequence[Transfer],
        *,
        single: bool = False,
        stop: bytearray | None = None,
    ) -> None:
        """Copy to the device, launch on an `OpenCLStream`, copy from it, and return when all of it is done.

        Args:
            single: On the stream's own queue for that, whose commands this thread carries out by itself.
            stop: A byte; once it is not 0, no more is launched, and nothing read.

        Raises:
            DeviceError: The driver refuses a command, or one failed. What was enqueued before it is done.
        """
        stream.native += 1
        queue = stream.single_queue_address() if single else stream.queue_address()
        self.check(self._calls.run(queue, writes, reads, stop=stop), len(writes))

    def repeat(
        self, stream: Any, writes: Sequence[Transfer], reads: Sequence[Transfer], again: Again, *, single: bool = False
    ) -> int:
        """Do what `run()` does, so many times; returns how often.

        Raises:
            DeviceError: As `run()` does.
        """
        queue = stream.single_queue_address() if single else stream.queue_address()
        outcome = self._calls.repeat(queue, writes, reads, again)
        assert outcome is not None, "these launches cannot be run"
        times, done, status = outcome
        stream.native += times
        self.check((done, status), len(writes))
        return times

    def begin(self, stream: Any, writes: Sequence[Transfer]) -> None:
        """Copy to the device and launch, and return at once.

        Raises:
            DeviceError: The driver refuses a command.
        """
        stream.native += 1
        self.check(self._calls.run(stream.queue_address(), writes, (), waits=False), len(writes))

    def end(self, stream: Any, reads: Sequence[Transfer]) -> None:
        """Copy from an `OpenCLStream`, and return when all that was begun is done.

        Raises:
            DeviceError: As `run()` does.
        """
        outcome = self._calls.run(stream.queue_address(), (), reads, launches=False)
        self.check(outcome, -len(self._launches) - 1)

    def hand_over(
        self,
        post: Post,
        stream: Any,
        writes: Sequence[Transfer],
        reads: Sequence[Transfer],
        stop: bytearray | None = None,
    ) -> int:
        """Let another thread do what `run()` does, and return what *post* does; `check()` is for its outcome.

        Args:
            post: Gives it to that thread.
            stream: None where the thread has a queue of its own.
        """
        if stream is None:
            return self._calls.hand_over(post, 0, writes, reads, stop)
        stream.native += 1
        return self._calls.hand_over(post, stream.queue_address(), writes, reads, stop)

    def check(self, outcome: tuple[int, int] | None, copied: int) -> None:
        """Raise what the driver answered, if it refused a command.

        Args:
            outcome: How many commands it took, and what it answered to the next one, or 0.
            copied: How many copies come before the launches.

        Raises:
            DeviceError: It refused one.
        """
        assert outcome is not None, "these launches cannot be run"
        done, status = outcome
        if status:
            place = done - copied
            launched = 0 <= place < len(self._launches)
            raise refused(self._what(place) if launched else "a copy, or running commands", status)

    def _what(self, place: int) -> str:
        kernel, _, _, grid, _, _ = self._launches[place]
        return f"kernel {kernel.function_name} over {grid}"


def _new(calls: _Calls, kernel: Any) -> int:
    """Return another object of a kernel."""
    status = ctypes.c_int()
    own = calls.create(kernel.built_of.int_ptr, kernel.function_name.encode(), ctypes.addressof(status))
    if own is None:
        raise refused(f"making another object of kernel {kernel.function_name}", status.value)
    return own


def _release(calls: _Calls, kernels: list[int]) -> None:
    """Give kernel objects back; the driver keeps those that are in flight until they are not."""
    for kernel in kernels:
        calls.release(kernel)
