"""What a device answers: the whole contract of a backend.

A device allocates, builds kernels and opens streams. A stream is in order: a command starts when the one before it is
done. Nothing here blocks except where it says so; whatever blocks is called off the event loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import attrs

from asyncrt.layout import Array

Allocation: TypeAlias = Any
"""Device memory; opaque to everything above the device."""

Kernel: TypeAlias = Any
"""A built kernel; opaque to everything above the device."""

Record: TypeAlias = Any
"""A launch's packed arguments; opaque to everything above the device."""

PreparedLaunch: TypeAlias = tuple[
    Kernel, Sequence[Allocation | int], Record, tuple[int, ...], tuple[int, ...] | None, tuple[int, ...]
]
"""What `Stream.launch` takes; a buffer may be a number instead, which stands for memory that is said later."""

Reached: TypeAlias = Callable[[BaseException | None], None]
"""Called once when a mark was reached, with the error of a failed command. May be called on any thread."""


Timing: TypeAlias = Callable[[], tuple[int, int] | None]
"""When a command began and ended, by the device's `clock`; asked once it was passed. None if the device cannot say."""


class Binaries(Protocol):
    """Where what was built is kept, by what it was built of."""

    def get(self, key: str) -> bytes | None:
        """Return what was put under *key*, or None."""
        ...

    def put(self, key: str, body: bytes) -> None:
        """Keep *body* under *key*."""
        ...


class Registers(NamedTuple):
    """The vector registers of a processor, as far as kernels for CPUs are written for them.

    Attributes:
        floats: float32 elements of one register.
        number: How many registers there are.
    """

    floats: int
    number: int

    @property
    def capacity(self) -> int:
        """float32 elements of all registers together."""
        return self.floats * self.number


AVX512 = Registers(16, 32)


@attrs.frozen(kw_only=True)
class DeviceInfo:
    """What is known of a device.

    Attributes:
        spec: How to name it to `Runtime(device=...)`.
        name: As the driver says.
        kind: "gpu", "cpu", "accelerator", "host" or "simulated".
        platform: The driver's name.
        driver: The driver's version.
        compute_units: Cores, or multiprocessors.
        memory: Bytes of device memory.
        max_allocation: Largest single allocation, in bytes.
        max_group: Largest work-group.
        local_memory: Bytes of local memory that it may have.
        features: Any of "fp64", "fp16", "command_buffer", "mma" (PTX of tensor cores), "wgmma" (that of
            Hopper's), "persistent" (`FoldsLaunches`), "local_thread" (`Prepared.single`), "threads" (work-groups are
            threads of this process, which may wait for each other), "sched_yield" (kernels may call it).
        registers: Of one of its cores; only kernels for CPUs ask for them.
        identity: Everything a compiled kernel depends on.
        shares_memory: Whether it computes in the host's memory, and so can use data where it lies; see `Device.adopt`.
        adopts_arrays: Whether that may be any arrays, not only whole pages; then no constant takes memory of its own.
        takes_source: Whether it builds OpenCL C; otherwise it runs operators' references.
    """

    spec: str
    name: str
    kind: str
    platform: str = ""
    driver: str = ""
    compute_units: int = 1
    memory: int = 1 << 30
    max_allocation: int = 1 << 30
    max_group: int = 1
    local_memory: int = 1 << 15
    features: frozenset[str] = frozenset()
    registers: Registers = AVX512
    identity: str = ""
    takes_source: bool = True
    shares_memory: bool = False
    adopts_arrays: bool = False

    @property
    def is_cpu(self) -> bool:
        return self.kind in ("cpu", "host", "simulated")


@runtime_checkable
class SeenByHost(Protocol):
    """A device of which the host may look at memory where it lies."""

    def on_host(self, allocation: Allocation, nbytes: int) -> Array | None:
        """Return the first bytes of an allocation, to be read only; None if the host cannot see them.

        What was enqueued on it must be over. Whoever has the array holds the allocation.
        """
        ...


class Mark(Protocol):
    """A place on a stream that can be waited for."""


class Stream(Protocol):
    """An in-order queue of commands.

    Attributes:
        index: Its number on the device.
        native: How often native code has enqueued launches on it.
    """

    index: int

    @property
    def native(self) -> int: ...

    def launch(
        self,
        kernel: Kernel,
        buffers: Sequence[Allocation],
        record: Record,
        grid: tuple[int, ...],
        group: tuple[int, ...] | None,
        local: tuple[int, ...],
    ) -> None:
        """Enqueue a kernel."""
        ...

    def launch_all(self, launches: Sequence[PreparedLaunch], memory: Sequence[Allocation]) -> None:
        """Enqueue kernels, in order; a number among their buffers stands for the memory at that index.

        If it raises, as `launch` does, those before the one that failed are enqueued.
        """
        ...

    def write(self, target: Allocation, offset: int, source: Array) -> None:
        """Enqueue a copy of *source*, contiguous, to *offset* bytes into *target*; *source* must not change before."""
        ...

    def read(self, source: Allocation, offset: int, target: Array) -> None:
        """Enqueue a copy from *offset* bytes into *source* to *target*, contiguous and writable.

        It is there once a mark behind it was waited for.
        """
        ...

    def room(self, nbytes: int) -> Array | None:
        """Return so many bytes for a result where reads land sooner than elsewhere, if there is such memory left."""
        ...

    def fill(self, target: Allocation, offset: int, nbytes: int, byte: int) -> None:
        """Enqueue setting *nbytes* bytes to *byte*."""
        ...

    def wait_for(self, marks: Sequence[Mark]) -> None:
        """Let what is enqueued after this start only when *marks*, which are of other streams, are reached."""
        ...

    def mark(self) -> Mark:
        """Return the place behind everything enqueued so far, and see to it that the device starts on it."""
        ...

    def when_reached(self, mark: Mark, callback: Reached) -> None:
        """Call *callback* once *mark* of this stream is reached. Marks are watched in the order they were made."""
        ...

    def time_commands(self, on: bool) -> None:
        """Switch the timing of the commands enqueued from here on; their order stays the same. May block briefly."""
        ...

    def timing(self) -> Timing:
        """Return when the command enqueued last runs; only while commands are timed."""
        ...

    def close(self) -> None:
        """Wait until all commands are done. Blocks."""
        ...


class Transfer(NamedTuple):
    """Bytes to copy between the host and the device; there is at least one.

    Attributes:
        memory: On the device.
        offset: Where in it.
        host: Contiguous; it must not change, or be looked at, before it is copied.
    """

    memory: Allocation
    offset: int
    host: Array


class Move(NamedTuple):
    """Bytes that go from one place on the host to another, each time that something is repeated.

    Attributes:
        source, target: Buffers.
        at, into: Where the bytes are in them the first time.
        hop, step: How much further on they are each next time.
        nbytes: How many there are.
    """

    source: Any
    at: int
    hop: int
    target: Any
    into: int
    step: int
    nbytes: int


class Again(NamedTuple):
    """How often something is repeated, and what happens between two times.

    Attributes:
        moves: In order, behind each time.
        most: How often, at most.
        going: It ends when the first byte of it is 0; without one it does not.
        findings: It ends when one of these bytes is not 0.
    """

    moves: Sequence[Move]
    most: int
    going: Any
    findings: Any


class Prepared(Protocol):
    """Launches made ready beforehand, for memory that may change from one time to the next.

    Attributes:
        runs: Whether there is `run()`, and the thread that calls it does the device's work.
        begins: Whether the device works while that thread does something else, between `begin()` and `end()`.
        single: Whether it can do so alone, with no other thread of the device.
        long: Whether `launch()` takes so long that a thread should call it; it gives up the GIL then.
        busy: Whether a thread calls it; `bind()` must not be called until that ends. Set by who started the thread.
    """

    runs: bool
    begins: bool
    single: bool
    long: bool
    busy: bool

    def bind(self, memory: Sequence[Allocation]) -> None:
        """Let each number that is a buffer stand for the memory at its index; negative ones count from the end.

        What was enqueued before keeps the memory that it has. If this fails, it must succeed before the next launch.
        """
        ...

    def become(self, launches: Sequence[PreparedLaunch], memory: Sequence[Allocation]) -> bool:
        """Be other launches of the same kernels, of which those that are the same objects stay, and bind them.

        Returns:
            Whether that was possible; if not, these must not be used any more.
        """
        ...

    def launch(self, stream: Stream, stop: bytearray | None = None) -> None:
        """Enqueue the launches, in order, on a stream of the device that prepared them.

        If it raises, as `Stream.launch` does, those before the one that failed are enqueued.

        Args:
            stop: A byte; no more are enqueued once it is not 0. Only for those that are *long*.
        """
        ...

    def run(
        self,
        stream: Stream,
        writes: Sequence[Transfer],
        reads: Sequence[Transfer],
        *,
        single: bool = False,
        stop: bytearray | None = None,
    ) -> None:
        """Copy to the device, launch, copy from it, and return when all of it is done. Only where it *runs*.

        It gives up the GIL. If it raises, what was enqueued is done by then.

        Args:
            stream: Nothing may be on its way there.
            single: Let the calling thread do all of it. Only where it can.
            stop: A byte; once it is not 0, no more is launched, and nothing read.
        """
        ...

    def repeat(
        self,
        stream: Stream,
        writes: Sequence[Transfer],
        reads: Sequence[Transfer],
        again: Again,
        *,
        single: bool = False,
    ) -> int:
        """Do what `run()` does several times, each time with what was moved behind the time before.

        Returns:
            How often it was done: at least once.
        """
        ...

    def begin(self, stream: Stream, writes: Sequence[Transfer]) -> None:
        """Copy to the device and launch, as `run()` does, and return before it is done. Only where it *begins*.

        `end()` follows, whatever comes between. If this raises, what was enqueued is done by then.
        """
        ...

    def end(self, stream: Stream, reads: Sequence[Transfer]) -> None:
        """Copy from the device, and return when all that was begun is done; raises as `run()` does."""
        ...


class Device(Protocol):
    """One device and its memory.

    Attributes:
        info: What is known of it.
        builds_at_once: How many programs are soonest built at the same time.
    """

    info: DeviceInfo
    builds_at_once: int

    def open_stream(self, pinned: bool = True, spin: bool | None = None, native: bool = True) -> Stream:
        """Return a new stream.

        Args:
            pinned: Carry transfers out through pinned memory, on a device that gains by it.
            spin: Whether the driver may keep a core busy while a thread waits for a mark, on a device whose driver
                does; None allows it where there are cores enough.
            native: Enqueue the launches of plans by native code, on a device that has some.
        """
        ...

    def allocate(self, nbytes: int) -> Allocation:
        """Return *nbytes* bytes of device memory; raises `OutOfDeviceMemory`."""
        ...

    def adopt(self, pages: Array) -> Allocation:
        """Return *pages* as an allocation, not copied, for kernels that only read it; only where `shares_memory`.

        Args:
            pages: Bytes of host memory, whole pages unless it `adopts_arrays`; nobody may change them before the
                allocation is released.
        """
        ...

    def release(self, allocation: Allocation) -> None:
        """Give an allocation back, once no command uses it."""
        ...

    def build(self, sources: Sequence[Any], binary: bytes | None) -> tuple[Mapping[Any, Kernel], bytes | None]:
        """Build *sources* as one program. Blocks.

        Args:
            sources: `KernelSource`s, or `ReferenceKernel`s for a device that takes no source.
            binary: What an earlier build of the same sources returned, or None. A binary that the driver refuses is
                ignored.

        Returns:
            The kernel of each source, and a binary to keep (None if there is nothing to keep).

        Raises:
            KernelBuildError: With the driver's log.
        """
        ...

    def prepare(
        self, launches: Sequence[PreparedLaunch], memory: Sequence[Allocation], native: bool = True
    ) -> Prepared | None:
        """Make launches ready, bound to *memory*; None if this device gains nothing by it.

        Args:
            native: Enqueue them by native code, on a device that has some; False makes the same calls from Python.
        """
        ...

    def clock(self) -> int:
        """Return now in nanoseconds, by the clock of timings; its zero is anywhere."""
        ...

    def pack(self, offsets: Sequence[int], ints: Sequence[int]) -> Record:
        """Return a launch's arguments: each buffer's offset in bytes, and the sizes."""
        ...

    def close(self) -> None:
        """Close all streams. Blocks until their commands are done."""
        ...


@runtime_checkable
class GrowsMemory(Protocol):
    """A device that can make memory larger, and gains by it."""

    def grow(self, allocation: Allocation | None, nbytes: int) -> Allocation | None:
        """Return an allocation of *nbytes* bytes which takes the place of a smaller one that no command uses.

        Args:
            allocation: Is released, and what was in it is anything; None makes a new one, which can grow.

        Returns:
            None if that cannot be; then nothing was released.

        Raises:
            OutOfDeviceMemory: The driver refuses; then nothing was released.
        """
        ...

    def touch(self, allocation: Allocation) -> None:
        """Have the system find now what it would find when a command uses this memory first; what is in it stays.

        May be called on any thread, and blocks; an allocation that was released meanwhile is no mistake.
        """
        ...


@runtime_checkable
class LoadsAhead(Protocol):
    """A device that gains by knowing early which programs will be wanted."""

    def load_ahead(self, programs: Sequence[tuple[bytes, str]]) -> Sequence[Any]:
        """Load programs of earlier builds, of each its binary and the name of one of its kernels. Blocks.

        Other threads go on meanwhile, and programs that the driver refuses are left out. Returns what has to be held
        for `Device.build()` to find them.
        """
        ...


@runtime_checkable
class FoldsLaunches(Protocol):
    """A device on which one kernel may carry out many launches, where its features have "persistent".

    Attributes:
        space: Bytes of local memory for the arrays of one group's steps.
        lanes: Work-items that go in step: parts of a group that meet are multiples of so many.
        ptx: Whether all groups are there at once and meet by PTX; otherwise they have one work-item, and wait for none
            that has not begun.
    """

    space: int
    lanes: int
    ptx: bool

    def find_by(self, kernel: Kernel) -> None:
        """Find addresses by a kernel from now on: it writes where its first buffer begins into its second one, as a
        long at the place that is its one size."""
        ...

    def addresses(self, allocations: Sequence[Allocation]) -> Sequence[int]:
        """Return where allocations begin in the device's memory; each stays there until it is released. Blocks; only
        after `find_by()`."""
        ...

    def holding(self, data: bytes) -> Allocation:
        """Return new memory that holds *data*. Blocks; raises `OutOfDeviceMemory`."""
        ...

    def read_now(self, allocation: Allocation, nbytes: int) -> bytes:
        """Return the first bytes of an allocation, whatever runs meanwhile. Blocks."""
        ...


class Posted(Protocol):
    """What a launcher was given.

    Attributes:
        seconds: What it took, once it was collected.
    """

    seconds: float

    def check(self) -> None:
        """Raise what it failed with, once it was collected."""
        ...


class Launcher(Protocol):
    """Threads that carry out prepared launches, while the event loop's goes on with Python.

    One for all streams begins them in the order in which they were posted, on each stream one at a time, and ends first
    what it began first. Those with a stream each carry out one after the other. All of this is called on one thread.
    """

    def post(
        self,
        prepared: Prepared,
        stream: Stream | None,
        writes: Sequence[Transfer],
        reads: Sequence[Transfer],
        stop: bytearray | None = None,
    ) -> Posted:
        """Let a thread do what `Prepared.run()` does.

        Until it was collected the launches stay bound to their memory, and what is copied is not changed.

        Args:
            stream: None where each thread has its own.
        """
        ...

    def collect(self) -> Sequence[Posted]:
        """Return those that have ended since this was called last, in the order in which they have."""
        ...

    def wait(self) -> None:
        """Return when all have ended that were posted. Blocks."""
        ...

    def close(self) -> None:
        """End the threads when that is so. Blocks."""
        ...


@runtime_checkable
class LaunchesAside(Protocol):
    """A device on which such threads may carry out launches."""

    def open_launcher(self, file: int, own: Sequence[Stream] = ()) -> Launcher | None:
        """Start them; None where the device gains nothing by it, or there can be none.

        Args:
            file: An eventfd, to which they write when something can be collected.
            own: A stream for each, whose commands it carries out by itself; none for one thread for all streams.
        """
        ...


@runtime_checkable
class BuildsGently(Protocol):
    """A device that may be told to let requests go before builds."""

    def build_gently(self) -> bool:
        """Let builds take the processor's time that requests leave, where processes of their own do them.

        Returns whether these do. A thread of this process that has a low priority may hold what requests wait for: the
        interpreter, or a driver's lock.
        """
        ...

    def hurry_builds(self, hurries: bool) -> None:
        """Let builds take their share, because somebody waits for them; or only what others leave again."""
        ...

    def pause_builds(self, paused: bool) -> None:
        """Let builds that processes of their own do rest, or go on again. Any thread may ask."""
        ...


def launch_each(stream: Stream, launches: Sequence[PreparedLaunch], memory: Sequence[Allocation]) -> None:
    """Do what `Stream.launch_all` does, one after the other."""
    launch = stream.launch
    for kernel, buffers, record, grid, group, local in launches:
        launch(kernel, [memory[b] if b.__class__ is int else b for b in buffers], record, grid, group, local)


def mark_behind(stream: Stream, tries: int = 3) -> Mark:
    """Mark *stream*; if the device refuses, try again, because without a mark nobody knows when the commands are over.

    Raises:
        Exception: The last refusal; the device then counts as lost.
    """
    for _ in range(tries - 1):
        with contextlib.suppress(Exception):
            return stream.mark()
    return stream.mark()


@attrs.frozen
class DeviceReport:
    """One line of `asyncrt devices`: a device or driver, whether it can be used, and why not."""

    spec: str
    name: str
    kind: str
    platform: str
    usable: bool
    note: str = ""
    hint: str = ""
