"""The reference device: operators' NumPy references on worker threads, in order like any stream.

It takes no OpenCL C and needs no driver. It is slow and right: what other devices are compared with.
"""

from __future__ import annotations

import functools
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from asyncrt.errors import DeviceCommandError, OutOfDeviceMemory
from asyncrt.layout import Array, Layout

from .base import (
    Allocation,
    DeviceInfo,
    Kernel,
    Mark,
    Prepared,
    PreparedLaunch,
    Reached,
    Record,
    Timing,
    launch_each,
)


def tensor(memory: Array, offset: int, layout: Layout) -> Array:
    """Return the tensor of *layout* that lies *offset* bytes into *memory*; a view, not a copy."""
    return memory[offset : offset + layout.nbytes].view(layout.dtype.numpy).reshape(layout.shape)


def run_reference(kernel: Kernel, buffers: Sequence[Array], offsets: Sequence[int]) -> Callable[[], None]:
    """Run a `ReferenceKernel`. Reads its inputs now; the returned function writes its outputs."""
    places = list(zip(buffers, offsets, strict=True))
    read = iter(places)
    inputs = [None if i is None else tensor(*next(read), i).copy() for i in kernel.inputs]
    results = kernel.run(inputs)

    def write() -> None:
        for (memory, offset), layout, result in zip(read, kernel.outputs, results, strict=True):
            tensor(memory, offset, layout)[...] = result.reshape(layout.shape)

    return write


class HostMark:
    """A place on a host stream."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.error: BaseException | None = None


class _Timed:
    """A command that notes when it runs."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action: Callable[[], None] | None = action
        self._times: tuple[int, int] | None = None

    def __call__(self) -> None:
        action, self._action = self._action, None
        assert action is not None
        begin = time.perf_counter_ns()
        action()
        self._times = begin, time.perf_counter_ns()

    def timing(self) -> tuple[int, int] | None:
        return self._times


class HostStream:
    """A thread that runs commands in the order they came. After a failed command it fails all up to the next mark."""

    native = 0  # there is no native code

    def __init__(self, index: int) -> None:
        self.index = index
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        #: How many commands were enqueued, and up to which of them nobody wants what they do.
        self._enqueued = self._unwanted = 0
        self._error: BaseException | None = None
        #: The command enqueued last, while commands are timed.
        self._times: _Timed | None = None
        self._thread = threading.Thread(target=self._run, name=f"asyncrt-host-{index}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (command := self._commands.get()) is not None:
            command()
            del command

    def _enqueue(self, action: Callable[[], None]) -> None:
        if self._times is not None:
            action = self._times = _Timed(action)

        self._enqueued = number = self._enqueued + 1

        def command() -> None:
            if self._error is None and number > self._unwanted:
                try:
                    action()
                except Exception as error:
                    self._error = error

        self._commands.put(command)

    def drop(self) -> None:
        """Nobody wants what the commands enqueued so far do: those that have not begun will do nothing."""
        self._unwanted = self._enqueued

    def launch(
        self,
        kernel: Kernel,
        buffers: Sequence[Allocation],
        record: Record,
        grid: tuple[int, ...],
        group: tuple[int, ...] | None,
        local: tuple[int, ...],
    ) -> None:
        self._enqueue(lambda: run_reference(kernel, buffers, record)())

    def launch_all(self, launches: Sequence[PreparedLaunch], memory: Sequence[Allocation]) -> None:
        launch_each(self, launches, memory)

    def write(self, target: Allocation, offset: int, source: Array) -> None:
        def action() -> None:
            target[offset : offset + source.nbytes] = source.reshape(-1).view(np.uint8)

        self._enqueue(action)

    def read(self, source: Allocation, offset: int, target: Array) -> None:
        def action() -> None:
            target.reshape(-1).view(np.uint8)[...] = source[offset : offset + target.nbytes]

        self._enqueue(action)

    def room(self, nbytes: int) -> Array | None:
        return None

    def fill(self, target: Allocation, offset: int, nbytes: int, byte: int) -> None:
        def action() -> None:
            target[offset : offset + nbytes] = byte

        self._enqueue(action)

    def wait_for(self, marks: Sequence[Mark]) -> None:
        wait: Callable[[], None] = functools.partial(_wait, marks)
        if self._times is not None:
            wait = self._times = _Timed(wait)
        self._commands.put(wait)  # also after a failed command, unlike the others

    def mark(self) -> HostMark:
        mark = HostMark()

        def command() -> None:
            mark.error, self._error = self._error, None
            mark.done.set()

        self._commands.put(command)
        return mark

    def when_reached(self, mark: Mark, callback: Reached) -> None:
        assert isinstance(mark, HostMark)

        def command() -> None:
            error = mark.error
            if error is not None:
                kind = OutOfDeviceMemory if isinstance(error, MemoryError) else DeviceCommandError
                failure = kind("a command failed on the host device", detail=repr(error))
                failure.__cause__ = error
                error = failure
            callback(error)

        self._commands.put(command)

    def time_commands(self, on: bool) -> None:
        self._times = _Timed(lambda: None) if on else None

    def timing(self) -> Timing:
        assert self._times is not None, "commands are not timed"
        return self._times.timing

    def close(self) -> None:
        self._commands.put(None)
        self._thread.join()


class HostDevice:
    """NumPy as a device.

    Args:
        adopts_arrays: Constants are read where they lie; whoever wants that sees to it that they stay as they are.
    """

    def __init__(self, spec: str = "host", *, adopts_arrays: bool = False) -> None:
        self.builds_at_once = 1
        self.info = DeviceInfo(
            spec=spec,
            name="NumPy",
            kind="host",
            compute_units=os.cpu_count() or 1,
            memory=physical_memory(),
            max_allocation=physical_memory(),
            features=frozenset({"fp64", "fp16"}),
            identity="numpy",
            takes_source=False,
            shares_memory=True,
            adopts_arrays=adopts_arrays,
        )
        self._streams: list[HostStream] = []

    def open_stream(self, pinned: bool = True, spin: bool | None = None, native: bool = True) -> HostStream:
        stream = HostStream(len(self._streams))
        self._streams.append(stream)
        return stream

    def allocate(self, nbytes: int) -> Allocation:
        try:
            return np.empty(nbytes, np.uint8)
        except MemoryError as error:
            raise OutOfDeviceMemory(f"host: NumPy did not allocate {nbytes} bytes") from error

    def adopt(self, pages: Array) -> Allocation:
        return pages

    def on_host(self, allocation: Allocation, nbytes: int) -> Array | None:
        seen: Array = allocation[:nbytes]
        return seen

    def release(self, allocation: Allocation) -> None:
        pass

    def drop(self) -> None:
        """Nobody wants what the commands do that are enqueued by now; see `HostStream.drop`."""
        for stream in self._streams:
            stream.drop()

    def build(self, sources: Sequence[Any], binary: bytes | None) -> tuple[Mapping[Any, Kernel], bytes | None]:
        return {s: s for s in sources}, None

    def prepare(
        self, launches: Sequence[PreparedLaunch], memory: Sequence[Allocation], native: bool = True
    ) -> Prepared | None:
        return None

    def clock(self) -> int:
        return time.perf_counter_ns()

    def pack(self, offsets: Sequence[int], ints: Sequence[int]) -> Record:
        return tuple(offsets)

    def close(self) -> None:
        streams, self._streams = self._streams, []
        for stream in streams:
            stream.close()


def _wait(marks: Sequence[Mark]) -> None:
    for mark in marks:
        assert isinstance(mark, HostMark)
        mark.done.wait()


def physical_memory() -> int:
    """Return the bytes of memory that this machine has."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 4 << 30
