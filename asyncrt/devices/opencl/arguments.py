"""Setting kernel arguments straight through the OpenCL loader that pyopencl has loaded.

pyopencl takes about 7 µs to set the four arguments of a launch, which is more than the launch itself; `clSetKernelArg`
through ctypes takes 2. Where the loader cannot be found, or `ASYNCRT_NATIVE_ARGUMENTS=0` is set, pyopencl does it.
Nothing else changes: the same calls are made with the same values.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeAlias

from asyncrt.errors import DeviceCommandError, DeviceError, OutOfDeviceMemory

SetArguments: TypeAlias = Callable[[int, Sequence[Any], bytes, Sequence[int]], int]
"""``(kernel, buffers, record, local sizes) -> status``; each buffer has a `handle`."""

MEMORY_ERRORS = frozenset({-4, -5, -6, -61})
"""CL_MEM_OBJECT_ALLOCATION_FAILURE, CL_OUT_OF_RESOURCES, CL_OUT_OF_HOST_MEMORY, CL_INVALID_BUFFER_SIZE."""


class Handle(NamedTuple):
    """A driver's object as `clSetKernelArg` wants it: the address of a variable that holds it."""

    variable: ctypes.c_void_p
    address: int


def handle_of(pointer: int) -> Handle:
    """Return the handle of the object at *pointer*; it is valid as long as the handle is kept."""
    variable = ctypes.c_void_p(pointer)
    return Handle(variable, ctypes.addressof(variable))


def refused(what: str, status: int) -> DeviceError:
    """Return the error that says that the driver answered *status* to *what*."""
    if status in MEMORY_ERRORS:
        return OutOfDeviceMemory(f"the device has no memory left while {what}", detail=f"status {status}")
    return DeviceCommandError(f"the driver refused {what}", detail=f"status {status}")


def raise_refused(error: Exception, doing: str) -> NoReturn:
    """Raise what says that pyopencl raised *error* for *doing* something."""
    if isinstance(error, MemoryError) or getattr(error, "code", None) in MEMORY_ERRORS:
        raise OutOfDeviceMemory(f"the device has no memory left while {doing}", detail=str(error)) from error
    raise DeviceCommandError(f"the driver refused {doing}", detail=str(error)) from error


@functools.cache
def loader() -> ctypes.PyDLL | None:
    """Return the OpenCL loader, or None where pyopencl is to make the calls."""
    path = None if os.environ.get("ASYNCRT_NATIVE_ARGUMENTS") == "0" else _loaded()
    if path is None:
        return None
    try:
        # PyDLL keeps the GIL, which costs less than giving it up for a fraction of a microsecond.
        return ctypes.PyDLL(str(path))
    except OSError:
        return None


@functools.cache
def argument_setter() -> SetArguments | None:
    """Return a function that sets all arguments of a kernel, or None to leave it to pyopencl."""
    library = loader()
    if library is None:
        return None
    try:
        set_address, set_bytes = library["clSetKernelArg"], library["clSetKernelArg"]
    except AttributeError:
        return None
    set_address.argtypes = [ctypes.c_void_p, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p]
    set_bytes.argtypes = [ctypes.c_void_p, ctypes.c_uint, ctypes.c_size_t, ctypes.c_char_p]
    set_address.restype = set_bytes.restype = ctypes.c_int
    size = ctypes.sizeof(ctypes.c_void_p)

    def set_arguments(kernel: int, buffers: Sequence[Any], record: bytes, local: Sequence[int]) -> int:
        index, status = 0, 0
        for buffer in buffers:
            status = set_address(kernel, index, size, buffer.handle[1]) or status
            index += 1
        status = set_bytes(kernel, index, len(record), record) or status
        for nbytes in local:
            index += 1
            status = set_address(kernel, index, nbytes, None) or status
        return status

    return set_arguments


def _loaded() -> Path | None:
    """The OpenCL loader that this process has loaded. Any will do: it finds the driver through the object itself."""
    try:
        with open("/proc/self/maps") as maps:
            loaded = {line.split(maxsplit=5)[-1].strip() for line in maps if "libOpenCL" in line}
    except OSError:
        return None
    return min((Path(p) for p in loaded), default=None)
