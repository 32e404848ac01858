"""A runtime's commands, told to a `HazardChecker` as they are enqueued.

The device, its streams, and the timeline by which the host learns how far they have come are wrapped. Each chunk is
announced before it is enqueued; a launch that was not announced counts as writing all of its buffers. An unordered
command raises `HazardError` and is not enqueued. Where `check_hazards` is off nothing is wrapped.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import attrs
import numpy as np

from asyncrt.devices.base import Allocation, Device, Kernel, Mark, PreparedLaunch, Reached, Record, Stream
from asyncrt.errors import HazardError
from asyncrt.events import Event, Timeline
from asyncrt.layout import Array
from asyncrt.loops import tell_loop
from asyncrt.memory.hazards import (
    WHOLE,
    ByteAccess,
    Enqueued,
    Entry,
    Hazard,
    HazardChecker,
    HostFinished,
    Marked,
    Region,
    Released,
    Seen,
    Touched,
    Waited,
)
from asyncrt.runtime.plan.accesses import Touch, touches
from asyncrt.runtime.plan.chunk_plan import ChunkPlan

from .watched import WatchedDevice, WatchedStream, one_by_one

_KEPT = 100  # hazards of a report


class Label(NamedTuple):
    """Which command: of which request and node, and what it does; parts that it has none of are None."""

    request: int | None
    node: str | None
    what: str

    def __str__(self) -> str:
        node = None if self.node is None else f"'{self.node}'"
        request = None if self.request is None else f"request {self.request}"
        return ", ".join(filter(None, (request, node, self.what)))


@attrs.frozen(eq=False)
class DeviceMemory:
    """One allocation, from `allocate` to `release`: another one at the same address is another object."""

    number: int
    nbytes: int

    def __str__(self) -> str:
        return f"allocation {self.number} ({self.nbytes} bytes)"


@attrs.frozen(eq=False)
class HostMemory:
    """The memory of an array on the host."""

    nbytes: int

    def __str__(self) -> str:
        return f"an array on the host ({self.nbytes} bytes)"


class Checks:
    """The checker of one runtime, and which memory is which.

    Args:
        streams: How many streams are numbered, the one for constants counted.
    """

    def __init__(self, streams: int) -> None:
        self.checker = HazardChecker(streams)
        self.hazards: list[Hazard] = []
        self._allocations: dict[int, tuple[Allocation, DeviceMemory]] = {}
        self._allocated = 0
        self._arrays: dict[int, tuple[weakref.ref[Array], HostMemory]] = {}
        self._logs: list[list[Entry]] = []

    def __repr__(self) -> str:
        return f"<Checks {len(self.hazards)} hazards, {self.checker!r}>"

    def tell(self, entry: Entry) -> None:
        """Take note of *entry*.

        Raises:
            HazardError: It is unordered; nothing of it has happened yet.
        """
        for log in self._logs:
            log.append(entry)
        found = self.checker.take(entry)
        if found:
            self.hazards += found[: _KEPT - len(self.hazards)]
            raise HazardError(
                f"unordered: {found[0].second} and {found[0].first}",
                detail="\n".join(map(str, found)),
                hint="this is a bug of asyncrt or of a policy, device or operator added to it; docs/hazards.md",
            )

    @contextlib.contextmanager
    def recording(self) -> Iterator[list[Entry]]:
        """Keep all entries in the list that this gives, until it is left."""
        log: list[Entry] = []
        self._logs.append(log)
        try:
            yield log
        finally:
            self._logs = [other for other in self._logs if other is not log]

    # Memory.

    def allocated(self, allocation: Allocation, nbytes: int) -> None:
        self._allocated += 1
        # The allocation is kept, so that no other can have its address before it is released.
        self._allocations[id(allocation)] = allocation, DeviceMemory(self._allocated, nbytes)

    def released(self, allocation: Allocation) -> None:
        _, memory = self._allocations.pop(id(allocation))
        self.tell(Released(Label(None, None, "its release"), memory))

    def on_device(self, allocation: Allocation, region: Region, *, write: bool) -> ByteAccess:
        """Return the access to a part of an allocation."""
        return ByteAccess(self._allocations[id(allocation)][1], region, write)

    def on_host(self, array: Array, *, write: bool) -> ByteAccess:
        """Return the access to all of an array, which is contiguous."""
        root = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        found = self._arrays.get(id(root))
        if found is None or found[0]() is not root:
            if len(self._arrays) >= 4096:
                self._arrays = {i: entry for i, entry in self._arrays.items() if entry[0]() is not None}
            found = self._arrays[id(root)] = weakref.ref(root), HostMemory(root.nbytes)
        return ByteAccess(found[1], Region(array.ctypes.data - root.ctypes.data, array.nbytes), write)

    # The host.

    def looks_at(self, request: int, arrays: Iterable[Array]) -> None:
        """Note that the host reads what a request's commands have written to *arrays*."""
        accesses = tuple(self.on_host(a, write=False) for a in arrays)
        self.tell(Touched(Label(request, None, "reading its results"), accesses))

    def gives_back(self, request: int, arrays: Iterable[Array]) -> None:
        """The request has ended, so its caller may write to its inputs; another request that takes them may not end."""
        accesses = tuple(self.on_host(a, write=True) for a in arrays)
        self.tell(Touched(Label(request, None, "its caller, who may change its inputs"), accesses, request))

    def finish(self) -> None:
        """Note that the device was closed, so that all commands are over."""
        self.tell(HostFinished())


class CheckedTimeline(Timeline):
    """A timeline that says what the host has seen."""

    def __init__(self, streams: int, checks: Checks) -> None:
        super().__init__(streams)
        self._checks = checks

    def advance(self, event: Event) -> None:
        super().advance(event)
        self._checks.tell(Seen(event))


class CheckedMark(NamedTuple):
    """A device's mark, and the event that it is."""

    mark: Mark
    event: Event


class CheckedStream(WatchedStream):
    """A stream that says what is enqueued on it.

    Args:
        stream: Carries the commands.
        number: Its number for the checker, which is the stream of its events.
        loop: If given, the host has seen a mark as soon as the loop hears of it; otherwise the timeline says when.
    """

    def __init__(
        self, stream: Stream, number: int, checks: Checks, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        super().__init__(stream)
        self._number = number
        self._checks = checks
        self._loop = loop
        self._stamp = 0

    def begin(self, plan: ChunkPlan, arenas: Sequence[Allocation]) -> None:
        """Note that the chunk takes its arena: all of its last users must come before, whatever bytes they used."""
        arena = arenas[plan.chunk]
        if arena is not None:
            self._tell("taking its arena", self._checks.on_device(arena, Region(0, plan.arena_nbytes), write=True))

    def _tell(self, what: str, *accesses: ByteAccess, node: str | None = None) -> None:
        self._checks.tell(Enqueued(self._number, Label(self.request, node, what), accesses))

    def launch(
        self,
        kernel: Kernel,
        buffers: Sequence[Allocation],
        record: Record,
        grid: tuple[int, ...],
        group: tuple[int, ...] | None,
        local: tuple[int, ...],
    ) -> None:
        self._tell_launch(kernel, buffers)
        self.stream.launch(kernel, buffers, record, grid, group, local)

    @property
    def one_by_one(self) -> bool:
        return one_by_one(self.stream)

    def announce(self, launches: Sequence[PreparedLaunch], memory: Sequence[Allocation]) -> Stream:
        for kernel, buffers, *_ in launches:
            self._tell_launch(kernel, [memory[b] if isinstance(b, int) else b for b in buffers])
        return super().announce(launches, memory)

    def _tell_launch(self, kernel: Kernel, buffers: Sequence[Allocation]) -> None:
        found = self.next_step()
        if found is None:
            name, node = repr(kernel), None
            touched = self.next_touches() or (Touch(WHOLE, write=True),) * len(buffers)
        else:
            step, node = found
            name, touched = step.kernel.name, touches(step)
        accesses = [self._checks.on_device(b, t.region, write=t.write) for b, t in zip(buffers, touched, strict=True)]
        self._tell(f"kernel {name}", *accesses, node=node)

    def write(self, target: Allocation, offset: int, source: Array) -> None:
        checks = self._checks
        self._tell(
            "a write",
            checks.on_host(source, write=False),
            checks.on_device(target, Region(offset, source.nbytes), write=True),
        )
        self.stream.write(target, offset, source)

    def read(self, source: Allocation, offset: int, target: Array) -> None:
        checks = self._checks
        self._tell(
            "a read",
            checks.on_device(source, Region(offset, target.nbytes), write=False),
            checks.on_host(target, write=True),
        )
        self.stream.read(source, offset, target)

    def fill(self, target: Allocation, offset: int, nbytes: int, byte: int) -> None:
        self._tell("a fill", self._checks.on_device(target, Region(offset, nbytes), write=True))
        self.stream.fill(target, offset, nbytes, byte)

    def wait_for(self, marks: Sequence[Mark]) -> None:
        inner: list[Mark] = []
        for mark in marks:
            assert isinstance(mark, CheckedMark)
            self._checks.tell(Waited(self._number, mark.event))
            inner.append(mark.mark)
        self.stream.wait_for(inner)

    def mark(self) -> CheckedMark:
        mark = self.stream.mark()
        self._stamp += 1
        event = Event(self._number, self._stamp)
        self._checks.tell(Marked(event))
        return CheckedMark(mark, event)

    def when_reached(self, mark: Mark, callback: Reached) -> None:
        assert isinstance(mark, CheckedMark)
        loop, event = self._loop, mark.event

        def reached(error: BaseException | None) -> None:
            if loop is not None:
                tell_loop(loop, self._checks.tell, Seen(event))
            callback(error)

        self.stream.when_reached(mark.mark, reached)


class CheckedDevice(WatchedDevice):
    """A device that says what is allocated and released."""

    def __init__(self, device: Device, checks: Checks) -> None:
        super().__init__(device)
        self._checks = checks

    def allocate(self, nbytes: int) -> Allocation:
        allocation = super().allocate(nbytes)
        self._checks.allocated(allocation, nbytes)
        return allocation

    def adopt(self, pages: Array) -> Allocation:
        allocation = super().adopt(pages)
        self._checks.allocated(allocation, pages.nbytes)
        return allocation

    def release(self, allocation: Allocation) -> None:
        self._checks.released(allocation)
        super().release(allocation)

    def grow(self, allocation: Allocation | None, nbytes: int) -> Allocation | None:
        larger = super().grow(allocation, nbytes)
        if larger is not None:
            if allocation is not None:
                self._checks.released(allocation)
            self._checks.allocated(larger, nbytes)
        return larger
