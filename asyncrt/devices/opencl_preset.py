"""Launches whose kernels have their arguments already: what is left of each is one call of `clEnqueueNDRangeKernel`.

Arguments stay a kernel object's until they are set again, and a launch takes them as they are when it is enqueued
(OpenCL API specification, `clSetKernelArg`). So each launch gets a kernel object of its own, and its arguments may be
set for other memory while the device is still busy with the launch before.

The calls go through ctypes, because pyopencl takes 45 µs to make a kernel object, and gives every launch an event,
which on an H200 is 1.6 µs of 6.2.
Tried: `cl_khr_command_buffer` enqueues everything in one call, which takes as long, on Intel's runtime and on PoCL.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .base import Allocation, PreparedLaunch
from .opencl_arguments import SetArguments, argument_setter, loader, refused

_POINTER = ctypes.sizeof(ctypes.c_void_p)


class _Calls(NamedTuple):
    """The loader's functions; arguments of `enqueue` are ctypes objects already, which saves converting them."""

    create: Callable[[int, bytes, Any], int | None]
    set_arguments: SetArguments
    set_argument: Callable[[int, int, int, int], int]
    enqueue: Callable[..., int]
    release: Callable[[int], int]


@functools.cache
def preset_calls() -> _Calls | None:
    """Return what it takes to preset arguments, or None where pyopencl is to make the calls."""
    library, set_arguments = loader(), argument_setter()
    if library is None or set_arguments is None:
        return None
    try:
        create, set_argument = library["clCreateKernel"], library["clSetKernelArg"]
        enqueue, release = library["clEnqueueNDRangeKernel"], library["clReleaseKernel"]
    except AttributeError:
        return None
    create.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    create.restype = ctypes.c_void_p
    set_argument.argtypes = [ctypes.c_void_p, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p]
    release.argtypes = [ctypes.c_void_p]
    set_argument.restype = enqueue.restype = release.restype = ctypes.c_int
    return _Calls(create, set_arguments, set_argument, enqueue, release)


class OpenCLPrepared:
    """Launches with their arguments set.

    Args:
        calls: The loader's.
        launches: In order. Their kernels stay as they are.
        memory: What buffers that are numbers stand for.

    Raises:
        DeviceError: The driver refuses a kernel object or an argument.
    """

    def __init__(self, calls: _Calls, launches: Sequence[PreparedLaunch], memory: Sequence[Allocation]) -> None:
        self._calls = calls
        self._what = [(kernel.function_name, grid) for kernel, _, _, grid, _, _ in launches]
        self._kernels: list[int] = []
        weakref.finalize(self, _release, calls, self._kernels)
        #: All launches go to the queue in this variable.
        self._queue = ctypes.c_void_p()
        self._launches: list[tuple[Any, ...]] = []
        #: By number, what it stands for, and which arguments of which kernels that is.
        self._memory: dict[int, Allocation] = {}
        self._arguments: dict[int, list[tuple[int, int]]] = {}
        for kernel, buffers, record, grid, group, local in launches:
            own = self._new(kernel)
            for index, buffer in enumerate(buffers):
                if isinstance(buffer, int):
                    self._memory[buffer] = memory[buffer]
                    self._arguments.setdefault(buffer, []).append((own, index))
            bound = [memory[b] if isinstance(b, int) else b for b in buffers]
            if status := calls.set_arguments(own, bound, record, local):
                raise refused(f"setting an argument of {kernel.function_name}", status)
            sizes = _sizes(grid), None if group is None else _sizes(group)
            self._launches.append((self._queue, ctypes.c_void_p(own), len(grid), None, *sizes, 0, None, None))

    def __repr__(self) -> str:
        return f"<OpenCLPrepared {len(self._launches)} launches>"

    def _new(self, kernel: Any) -> int:
        """Return another object of a kernel."""
        status = ctypes.c_int()
        own = self._calls.create(kernel.built_of.int_ptr, kernel.function_name.encode(), ctypes.addressof(status))
        if own is None:
            raise refused(f"making another object of kernel {kernel.function_name}", status.value)
        self._kernels.append(own)
        return own

    def bind(self, memory: Sequence[Allocation]) -> None:
        """Let the numbers stand for other memory. What was enqueued before keeps what it has."""
        set_argument = self._calls.set_argument
        for number, arguments in self._arguments.items():
            buffer = memory[number]
            if buffer is not self._memory.get(number):
                self._memory.pop(number, None)  # should it fail half-way, nothing says that any of it is set
                address = buffer.handle.address
                for kernel, index in arguments:
                    if status := set_argument(kernel, index, _POINTER, address):
                        raise refused("setting a buffer", status)
                self._memory[number] = buffer

    def launch(self, stream: Any) -> None:
        """Enqueue the launches on an `OpenCLStream`.

        Raises:
            DeviceError: The driver refuses one. Those before it are enqueued, and those after it are not.
        """
        self._queue.value = stream.queue_address()
        launches = iter(self._launches)
        for status in filter(None, itertools.starmap(self._calls.enqueue, launches)):
            kernel, grid = self._what[len(self._what) - operator.length_hint(launches) - 1]
            raise refused(f"kernel {kernel} over {grid}", status)


def _sizes(sizes: tuple[int, ...]) -> ctypes.Array[ctypes.c_size_t]:
    return (ctypes.c_size_t * len(sizes))(*sizes)


def _release(calls: _Calls, kernels: list[int]) -> None:
    """Give kernel objects back; the driver keeps those that are in flight until they are not."""
    for kernel in kernels:
        calls.release(kernel)
