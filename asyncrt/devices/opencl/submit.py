"""How are a plan's launches enqueued: by a loop in C, or by one in Python?

The loop in C (`_submit.c`) gives up the GIL once for all launches of a plan, and takes less time for each than a call
through ctypes does. Where it was not built, or is not wanted, the loop in Python makes the same calls in the same
order. Where arguments are not set beforehand, C sets them and enqueues each launch; without it `OpenCLStream.launch`
is called for each launch.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import operator
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from asyncrt.devices.base import Again, Allocation, PreparedLaunch, Transfer

from .arguments import loader, refused

_POINTER = ctypes.sizeof(ctypes.c_void_p)
LAYOUT = "PNN3N3N PN"
"""What a launch's record and an argument's hold: `launch_t` and `argument_t` in `_submit.c`."""
CALLS = 3
"""How what it takes has changed: `CALLS` there."""
_LAUNCH, _ARGUMENT = (struct.Struct(f"@{layout}") for layout in LAYOUT.split())


class DriverCall(NamedTuple):
    """A launch of a kernel object whose arguments are set; the driver chooses the work-group where that is None."""

    kernel: int
    grid: tuple[int, ...]
    group: tuple[int, ...] | None


Post: TypeAlias = Callable[
    [tuple[int, ...], int, tuple[Transfer, ...], bytearray, tuple[Transfer, ...], bytearray | None], int
]
"""Hands launches and the copies around them to a thread, and returns which work that is. It takes the driver's
functions, a queue, what there is to do, and a byte that stops it."""


class Arguments(Protocol):
    """All arguments, of any launches, that are to be one memory object."""

    def bind(self, variable: int) -> int:
        """Set all of them to what the variable at that address holds; returns the driver's refusal, or 0."""
        ...


class Calls(Protocol):
    """Launches in their order."""

    def change(self, place: int, call: DriverCall) -> None:
        """Let the launch at a place be another."""
        ...

    def submit(self, queue: int, stop: bytearray | None = None) -> tuple[int, int]:
        """Enqueue them until one is refused; returns how many were enqueued, and the refusal, or 0.

        Args:
            stop: A byte; a submitter that releases the GIL ends early, too, once it is not 0.
        """
        ...

    def run(
        self,
        queue: int,
        writes: Sequence[Transfer],
        reads: Sequence[Transfer],
        *,
        launches: bool = True,
        waits: bool = True,
        stop: bytearray | None = None,
    ) -> tuple[int, int] | None:
        """Carry them out between copies to the device and from it; returns as `submit()` does, when all is done.

        None where only native code could, which there is not.

        Args:
            launches: Whether they are enqueued; else only the copies are.
            waits: Whether to wait; else the device may begin, and nothing is to be read.
            stop: A byte; once it is not 0, no more is launched, and nothing read.
        """
        ...

    def repeat(
        self, queue: int, writes: Sequence[Transfer], reads: Sequence[Transfer], again: Again
    ) -> tuple[int, int, int] | None:
        """Do what `run()` does several times; returns how often it was done, and what that returns of the last time."""
        ...

    def hand_over(
        self, post: Post, queue: int, writes: Sequence[Transfer], reads: Sequence[Transfer], stop: bytearray | None
    ) -> int:
        """Let a thread of native code do what `run()` does; only where it would not return None."""
        ...


class Submitter(Protocol):
    """Makes `Arguments` and `Calls` by one of the two loops.

    Attributes:
        releases_gil: Whether other threads run while launches are enqueued.
        runs: Whether its calls can be run to their end.
    """

    releases_gil: bool
    runs: bool

    def arguments(self, places: Sequence[tuple[int, int]]) -> Arguments:
        """Return arguments, each by its kernel object and its index."""
        ...

    def set_records(self, records: list[tuple[int, int, bytes]]) -> int:
        """Set arguments, each by its kernel object and its index, to bytes; returns the driver's refusal, or 0."""
        ...

    def calls(self, calls: Sequence[DriverCall]) -> Calls:
        """Return launches."""
        ...


class PythonSubmitter:
    """Calls the loader through ctypes."""

    releases_gil = runs = False

    def __init__(self, set_argument: Callable[[int, int, int, Any], int], enqueue: Callable[..., int]) -> None:
        self._set_argument = set_argument
        self._enqueue = enqueue

    def set_records(self, records: list[tuple[int, int, bytes]]) -> int:
        for kernel, index, record in records:
            if status := self._set_argument(kernel, index, len(record), record):
                return status
        return 0

    def arguments(self, places: Sequence[tuple[int, int]]) -> Arguments:
        return _PythonArguments(self._set_argument, tuple(places))

    def calls(self, calls: Sequence[DriverCall]) -> Calls:
        return _PythonCalls(self._enqueue, calls)


class _PythonArguments:
    def __init__(self, set_argument: Callable[[int, int, int, int], int], places: tuple[tuple[int, int], ...]) -> None:
        self._set_argument = set_argument
        self._places = places

    def bind(self, variable: int) -> int:
        for kernel, index in self._places:
            if status := self._set_argument(kernel, index, _POINTER, variable):
                return status
        return 0


class _PythonCalls:
    def __init__(self, enqueue: Callable[..., int], calls: Sequence[DriverCall]) -> None:
        self._enqueue = enqueue
        #: All go to the queue in this variable.
        self._queue = ctypes.c_void_p()
        self._calls = [self._call(call) for call in calls]

    def _call(self, c: DriverCall) -> tuple[Any, ...]:
        """Return ctypes objects already, which saves converting them at each call."""
        return self._queue, ctypes.c_void_p(c.kernel), len(c.grid), None, _sizes(c.grid), _sizes(c.group), 0, None, None

    def change(self, place: int, call: DriverCall) -> None:
        self._calls[place] = self._call(call)

    def submit(self, queue: int, stop: bytearray | None = None) -> tuple[int, int]:
        self._queue.value = queue
        calls = iter(self._calls)
        for status in filter(None, itertools.starmap(self._enqueue, calls)):
            return len(self._calls) - operator.length_hint(calls) - 1, status
        return len(self._calls), 0

    def run(
        self,
        queue: int,
        writes: Sequence[Transfer],
        reads: Sequence[Transfer],
        *,
        launches: bool = True,
        waits: bool = True,
        stop: bytearray | None = None,
    ) -> tuple[int, int] | None:
        return None

    def repeat(
        self, queue: int, writes: Sequence[Transfer], reads: Sequence[Transfer], again: Again
    ) -> tuple[int, int, int] | None:
        return None

    def hand_over(
        self, post: Post, queue: int, writes: Sequence[Transfer], reads: Sequence[Transfer], stop: bytearray | None
    ) -> int:
        raise NotImplementedError("only native code hands launches over")


def _sizes(sizes: tuple[int, ...] | None) -> ctypes.Array[ctypes.c_size_t] | None:
    return None if sizes is None else (ctypes.c_size_t * len(sizes))(*sizes)


class NativeSubmitter:
    """Calls the functions at two addresses from C.

    Args:
        module: The extension.
        set_argument: The address of `clSetKernelArg`.
        enqueue: That of `clEnqueueNDRangeKernel`.
        copies: Those of `clEnqueueWriteBufferRect`, `clEnqueueReadBufferRect`, `clFinish` and `clFlush`.
    """

    releases_gil = True

    def __init__(self, module: Any, set_argument: int, enqueue: int, *copies: int) -> None:
        self._module = module
        self._copies, self.runs = copies, len(copies) == 4
        self._set_argument = set_argument
        self._enqueue = enqueue

    def arguments(self, places: Sequence[tuple[int, int]]) -> Arguments:
        table = b"".join(_ARGUMENT.pack(kernel, index) for kernel, index in places)
        return _NativeArguments(self._module.bind, self._set_argument, table)

    def set_records(self, records: list[tuple[int, int, bytes]]) -> int:
        return self._module.set_records(self._set_argument, records)  # type: ignore[no-any-return]

    def calls(self, calls: Sequence[DriverCall]) -> Calls:
        table = bytearray().join(map(_launch, calls))
        m = self._module
        return _NativeCalls(m.submit, m.copy_and_launch, m.repeat, self._enqueue, self._copies, table)

    def launch(self, queue: int, launches: Sequence[PreparedLaunch], memory: Sequence[Allocation]) -> None:
        """Set the arguments of each launch and enqueue it, on the queue at an address.

        Raises:
            DeviceError: The driver refuses one. Those before it are enqueued, and those after it are not.
        """
        launches = tuple(launches)
        done, status, argument = self._module.launch(self._set_argument, self._enqueue, queue, launches, memory)
        if status:
            kernel, _, _, grid, _, _ = launches[done]
            what = f"setting an argument of {kernel.function_name}"
            raise refused(what if argument else f"kernel {kernel.function_name} over {grid}", status)


class _NativeArguments(NamedTuple):
    function: Callable[[int, bytes, int], int]
    set_argument: int
    table: bytes

    def bind(self, variable: int) -> int:
        return self.function(self.set_argument, self.table, variable)


class _NativeCalls(NamedTuple):
    function: Callable[[int, int, bytearray, bytearray | None], tuple[int, int]]
    runs: Callable[..., tuple[int, int]]
    repeats: Callable[..., tuple[int, int, int]]
    enqueue: int
    copies: tuple[int, ...]
    table: bytearray

    def change(self, place: int, call: DriverCall) -> None:
        self.table[place * _LAUNCH.size : (place + 1) * _LAUNCH.size] = _launch(call)

    def submit(self, queue: int, stop: bytearray | None = None) -> tuple[int, int]:
        return self.function(self.enqueue, queue, self.table, stop)

    def run(
        self,
        queue: int,
        writes: Sequence[Transfer],
        reads: Sequence[Transfer],
        *,
        launches: bool = True,
        waits: bool = True,
        stop: bytearray | None = None,
    ) -> tuple[int, int] | None:
        table = self.table if launches else b""
        return self.runs((self.enqueue, *self.copies), queue, tuple(writes), table, tuple(reads), waits, stop)

    def repeat(
        self, queue: int, writes: Sequence[Transfer], reads: Sequence[Transfer], again: Again
    ) -> tuple[int, int, int] | None:
        functions, moves = (self.enqueue, *self.copies), tuple(again.moves)
        return self.repeats(
            functions, queue, tuple(writes), self.table, tuple(reads), moves, again.most, again.going, again.findings
        )

    def hand_over(
        self, post: Post, queue: int, writes: Sequence[Transfer], reads: Sequence[Transfer], stop: bytearray | None
    ) -> int:
        return post((self.enqueue, *self.copies), queue, tuple(writes), self.table, tuple(reads), stop)


def _launch(call: DriverCall) -> bytes:
    rest = (0,) * (3 - len(call.grid))
    group = (0, 0, 0) if call.group is None else (*call.group, *rest)
    return _LAUNCH.pack(call.kernel, len(call.grid), call.group is not None, *call.grid, *rest, *group)


class _Functions(NamedTuple):
    set_argument: Any
    enqueue: Any
    write: Any
    read: Any
    finish: Any
    flush: Any


def loaded_functions() -> _Functions | None:
    """Return the loader's functions; None where it is not to be called directly."""
    library = loader()
    if library is None:
        return None
    try:
        set_argument, enqueue = library["clSetKernelArg"], library["clEnqueueNDRangeKernel"]
        copies = library["clEnqueueWriteBufferRect"], library["clEnqueueReadBufferRect"]
        ends = library["clFinish"], library["clFlush"]
    except AttributeError:
        return None
    set_argument.argtypes = [ctypes.c_void_p, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p]
    set_argument.restype = enqueue.restype = ctypes.c_int
    return _Functions(set_argument, enqueue, *copies, *ends)


def python_submitter() -> Submitter | None:
    """Return the loop in Python; None where the loader is not to be called directly."""
    functions = loaded_functions()
    return None if functions is None else PythonSubmitter(functions.set_argument, functions.enqueue)


def native_submitter() -> NativeSubmitter | None:
    """Return the loop in C; None where it was not built, or the loader is not to be called directly."""
    addresses = _addresses()
    if addresses is None or why_not_built():
        return None
    from . import _submit

    return NativeSubmitter(_submit, *addresses)


@functools.cache
def _addresses() -> tuple[int, ...] | None:
    """Return where the loader's functions are; None where it is not to be called directly."""
    functions = loaded_functions()
    return None if functions is None else tuple([ctypes.cast(f, ctypes.c_void_p).value or 0 for f in functions])


@functools.cache
def why_not_built() -> str:
    """Return why there is no loop in C; empty if there is one."""
    try:
        from . import _submit
    except ImportError:
        return "asyncrt.devices.opencl._submit was not built; install asyncrt again with a C compiler at hand"
    if _submit.LAYOUT != LAYOUT or getattr(_submit, "CALLS", 1) != CALLS:
        return "asyncrt.devices.opencl._submit was built of another version; install asyncrt again"
    return ""
