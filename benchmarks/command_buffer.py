"""How fast is a recorded command buffer (`cl_khr_command_buffer`)? For comparison: asyncrt uses none.

Through ctypes, because pyopencl has no calls for it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, cast

from asyncrt.devices.base import Device
from asyncrt.devices.opencl.arguments import loader

from .capture import Launched
from .measure import BenchmarkError

_POINTER = ctypes.c_void_p
_FLAGS, _SIMULTANEOUS_USE = 0x1293, 1  # CL_COMMAND_BUFFER_FLAGS_KHR, CL_COMMAND_BUFFER_SIMULTANEOUS_USE_KHR


class CommandBuffer:
    """The launches of an inference, recorded on a queue of their own. Their memory must be kept."""

    def __init__(self, device: Device, launches: Sequence[Launched]) -> None:
        import pyopencl  # only now: asyncrt looks for drivers before

        if "command_buffer" not in device.info.features:
            raise BenchmarkError(f"{device.info.platform} has no command buffers")
        library = loader()
        if library is None:
            raise BenchmarkError("the OpenCL loader is not called directly here")
        opencl = cast(Any, device)
        find = library["clGetExtensionFunctionAddressForPlatform"]
        find.restype, find.argtypes = _POINTER, [_POINTER, ctypes.c_char_p]
        platform = opencl.cl_device.platform.int_ptr

        def function(name: bytes, result: Any, *arguments: Any) -> Any:
            address = find(platform, name)
            if address is None:
                raise BenchmarkError(f"the driver has no {name.decode()}")
            return ctypes.CFUNCTYPE(result, *arguments)(address)

        uint, pointer = ctypes.c_uint, _POINTER
        create = function(b"clCreateCommandBufferKHR", pointer, uint, pointer, pointer, pointer)
        record = function(
            b"clCommandNDRangeKernelKHR", ctypes.c_int, pointer, pointer, pointer, pointer, uint, pointer, pointer,
            pointer, uint, pointer, pointer, pointer,
        )  # fmt: skip
        finalize = function(b"clFinalizeCommandBufferKHR", ctypes.c_int, pointer)
        self._enqueue = function(
            b"clEnqueueCommandBufferKHR", ctypes.c_int, uint, pointer, pointer, uint, pointer, pointer
        )
        self._queue = pyopencl.CommandQueue(opencl.context, opencl.cl_device)
        queues = (_POINTER * 1)(self._queue.int_ptr)
        # As a plan is: a request may be enqueued before the one before it is done.
        properties = (ctypes.c_uint64 * 3)(_FLAGS, _SIMULTANEOUS_USE, 0)
        status = ctypes.c_int()
        self._buffer = create(1, queues, properties, ctypes.addressof(status))
        _check("creating a command buffer", status.value)
        self._kernels: list[Any] = []
        for launch in launches:
            own = launch.kernel.clone()
            own.set_args(*launch.buffers, launch.record, *map(pyopencl.LocalMemory, launch.local))
            self._kernels.append(own)
            grid = (ctypes.c_size_t * len(launch.grid))(*launch.grid)
            group = None if launch.group is None else (ctypes.c_size_t * len(launch.group))(*launch.group)
            answer = record(
                self._buffer, None, None, own.int_ptr, len(launch.grid), None, grid, group, 0, None, None, None
            )
            _check("recording a launch", answer)
        _check("finalizing a command buffer", finalize(self._buffer))
        self._release = function(b"clReleaseCommandBufferKHR", ctypes.c_int, pointer)

    def call(self) -> None:
        """Enqueue it, and wait for it."""
        _check("enqueueing a command buffer", self._enqueue(0, None, self._buffer, 0, None, None))
        self._queue.finish()

    def close(self) -> None:
        """Give it back."""
        _check("releasing a command buffer", self._release(self._buffer))


def _check(doing: str, status: int) -> None:
    if status:
        raise BenchmarkError(f"the driver refused {doing}: status {status}")
