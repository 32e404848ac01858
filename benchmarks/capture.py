"""Which kernels does an inference launch, and how fast are they without asyncrt around them?

A device that notes every launch, and two ways to repeat the launches with nothing but pyopencl.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import asyncrt
from asyncrt.devices.base import Allocation, Device, PreparedLaunch, launch_each
from asyncrt.devices.find import open_device

from .measure import BenchmarkError, Inputs


class Launched(NamedTuple):
    """A launch, as `asyncrt.devices.base.Stream.launch()` takes it."""

    kernel: Any
    buffers: Sequence[Any]
    record: Any
    grid: tuple[int, ...]
    group: tuple[int, ...] | None
    local: tuple[int, ...]


class Capturing:
    """A device that notes what its streams launch; everything else is the device's own."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.launches: list[Launched] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.device, name)

    def open_stream(self, pinned: bool = True, spin: bool | None = None, native: bool = True) -> Any:
        """Return a stream of the device's that notes its launches."""
        return _CapturingStream(self.device.open_stream(pinned, spin, native), self.launches)


class _CapturingStream:
    def __init__(self, stream: Any, launches: list[Launched]) -> None:
        self._stream, self._launches = stream, launches

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def launch(self, *launch: Any) -> None:
        self._launches.append(Launched(*launch))
        self._stream.launch(*launch)

    def launch_all(self, launches: Sequence[PreparedLaunch], memory: Sequence[Allocation]) -> None:
        launch_each(cast(Any, self), launches, memory)


def open_capturing(spec: str | None) -> Capturing:
    """Open an OpenCL device that notes its launches.

    Raises:
        BenchmarkError: *spec* names no OpenCL device.
    """
    device = open_device(spec)
    if not device.info.takes_source:
        raise BenchmarkError(f"device {spec!r} launches no OpenCL kernels; leave --device out, or use 'cpu' or 'gpu'")
    return Capturing(device)


class Captured:
    """The launches of an inference, to be repeated on a queue of their own.

    Their memory is the runtime's: this may be used while the runtime is open and nothing else runs on it.
    """

    def __init__(self, device: Device, launches: Sequence[Launched]) -> None:
        # Only now: asyncrt looks for drivers before it lets pyopencl load the OpenCL loader.
        import pyopencl

        self._cl = pyopencl
        opencl = cast(Any, device)  # an OpenCLDevice: `open_capturing` saw to that
        self._queue = pyopencl.CommandQueue(opencl.context, opencl.cl_device)
        self.launches = tuple(launches)
        #: A kernel object for each launch: its arguments are set here, once and for all.
        self._preset: list[tuple[Any, tuple[int, ...], tuple[int, ...] | None]] = []
        self._arguments: list[tuple[Any, ...]] = []
        for launch in launches:
            own = launch.kernel.clone()
            arguments = (*launch.buffers, launch.record, *map(pyopencl.LocalMemory, launch.local))
            own.set_args(*arguments)
            self._arguments.append(arguments)
            self._preset.append((own, launch.grid, launch.group))

    def call(self) -> None:
        """Call each kernel with its arguments, as pyopencl's own examples do, and wait for the last."""
        queue = self._queue
        for (kernel, grid, group), arguments in zip(self._preset, self._arguments, strict=True):
            kernel(queue, grid, group, *arguments)
        queue.finish()

    def enqueue(self, times: int = 1) -> None:
        """Enqueue the kernels, whose arguments were set before, and wait for the last; all of it *times* times."""
        queue, enqueue = self._queue, self._cl.enqueue_nd_range_kernel
        for _ in range(times):
            for kernel, grid, group in self._preset:
                enqueue(queue, kernel, grid, group)
        queue.finish()


async def capture(device: Capturing, model: asyncrt.Model, inputs: Inputs) -> Captured:
    """Run *model*, on a runtime on *device* that plans each inference anew, and return what it launched."""
    await model.infer(inputs)
    device.launches.clear()
    await model.infer(inputs)
    if not device.launches:
        raise BenchmarkError("the inference launched no kernel that its device saw")
    return Captured(device.device, device.launches)
