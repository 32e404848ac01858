"""Streams and devices that pass every command on, and know what it is for: the base of checks and traces.

A chunk's launches are enqueued in the order of its plan's steps, so it is enough to say once which chunk follows: then
it is known which node and request each launch belongs to. Launches of no plan are announced with the bytes that they
touch. Where nobody watches, the device's own streams are used.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from asyncrt.devices.base import (
    Allocation,
    Device,
    DeviceInfo,
    GrowsMemory,
    Kernel,
    Mark,
    Prepared,
    PreparedLaunch,
    Reached,
    Record,
    Stream,
    Timing,
    launch_each,
)
from asyncrt.graph.ir import Program
from asyncrt.layout import Array
from asyncrt.runtime.plan.accesses import Touch
from asyncrt.runtime.plan.chunk_plan import ChunkPlan, PlanStep


class WatchedStream:
    """Passes everything on; those who watch override what they want to see.

    Attributes:
        stream: Carries the commands.
        request: Whose commands are being enqueued; None where nobody said.
        program: Of that chunk.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.index = stream.index
        self.request: int | None = None
        self.program: Program | None = None
        self._steps: Iterator[PlanStep] = iter(())
        self._touches: Iterator[tuple[Touch, ...]] = iter(())

    def chunk(
        self,
        request: int,
        program: Program,
        plan: ChunkPlan,
        arenas: Sequence[Allocation],
        steps: Sequence[PlanStep] | None = None,
    ) -> AbstractContextManager[None]:
        """While this lasts the commands of a chunk are enqueued, and no others.

        Args:
            steps: Those that are enqueued here; None: all of the plan's.
        """
        below = self.stream
        inner = below.chunk(request, program, plan, arenas, steps) if isinstance(below, WatchedStream) else None
        here = plan.steps if steps is None else steps
        return self._enqueueing(request, program, here, lambda: self.begin(plan, arenas), inner)

    def beside(self, own: WatchedStream, steps: Sequence[PlanStep]) -> AbstractContextManager[None]:
        """While this lasts those steps of a chunk are enqueued here, and no other commands.

        Args:
            own: The chunk's own stream, to which it has been told; watched in the same way as this one.
        """
        below, other = self.stream, own.stream
        inner = None
        if isinstance(below, WatchedStream) and isinstance(other, WatchedStream):
            inner = below.beside(other, steps)
        return self._enqueueing(own.request, own.program, steps, lambda: self.join(own), inner)

    @contextlib.contextmanager
    def _enqueueing(
        self,
        request: int | None,
        program: Program | None,
        steps: Sequence[PlanStep],
        begin: Callable[[], None],
        inner: AbstractContextManager[None] | None,
    ) -> Iterator[None]:
        """While this lasts those steps are enqueued here; *inner* says so to the stream below, if that is watched."""
        self.request, self.program, self._steps = request, program, iter(steps)
        try:
            begin()
            with inner or contextlib.nullcontext():
                yield
        finally:
            self.end()
            self.request, self.program, self._steps = None, None, iter(())

    def join(self, own: WatchedStream) -> None:
        """Note that part of the chunk that began on *own* is enqueued here from now on."""

    @contextlib.contextmanager
    def launches(self, request: int, touches: Sequence[tuple[Touch, ...]]) -> Iterator[None]:
        """While this lasts launches of no plan are enqueued: what each does with its buffers, in argument order."""
        self.request, self._touches = request, iter(touches)
        try:
            if isinstance(self.stream, WatchedStream):
                with self.stream.launches(request, touches):
                    yield
            else:
                yield
        finally:
            self.request, self._touches = None, iter(())

    def begin(self, plan: ChunkPlan, arenas: Sequence[Allocation]) -> None:
        """Note that a chunk is enqueued from now on; its arena is the one of its number."""

    def end(self) -> None:
        """Note that no more of the chunk will be enqueued."""

    def next_step(self) -> tuple[PlanStep, str] | None:
        """Return the step that is launched now, and its node's name; None for a launch that is of no plan."""
        step = next(self._steps, None)
        return None if step is None or self.program is None else (step, self.program.nodes[step.node].name)

    def next_touches(self) -> tuple[Touch, ...] | None:
        """Return what the launch of no plan that comes now touches; None where nobody said."""
        return next(self._touches, None)

    def launch(
        self,
        kernel: Kernel,
        buffers: Sequence[Allocation],
        record: Record,
        grid: tuple[int, ...],
        group: tuple[int, ...] | None,
        local: tuple[int, ...],
    ) -> None:
        self.stream.launch(kernel, buffers, record, grid, group, local)

    @property
    def one_by_one(self) -> bool:
        """Whether it has to see each launch when it is enqueued; otherwise `announce` tells it of all beforehand."""
        return True

    def announce(self, launches: Sequence[PreparedLaunch], memory: Sequence[Allocation]) -> Stream:
        """Tell of launches that follow, a number among their buffers standing for the memory at that index; returns
        the stream to enqueue them on, which is the device's."""
        return announced(self.stream, launches, memory)

    @property
    def native(self) -> int:
        return self.stream.native

    def launch_all(self, launches: Sequence[PreparedLaunch], memory: Sequence[Allocation]) -> None:
        if self.one_by_one:
            launch_each(self, launches, memory)
        else:
            self.announce(launches, memory).launch_all(launches, memory)

    def write(self, target: Allocation, offset: int, source: Array) -> None:
        self.stream.write(target, offset, source)

    def read(self, source: Allocation, offset: int, target: Array) -> None:
        self.stream.read(source, offset, target)

    def room(self, nbytes: int) -> Array | None:
        return self.stream.room(nbytes)

    def fill(self, target: Allocation, offset: int, nbytes: int, byte: int) -> None:
        self.stream.fill(target, offset, nbytes, byte)

    def wait_for(self, marks: Sequence[Mark]) -> None:
        self.stream.wait_for(marks)

    def mark(self) -> Mark:
        return self.stream.mark()

    def when_reached(self, mark: Mark, callback: Reached) -> None:
        self.stream.when_reached(mark, callback)

    def time_commands(self, on: bool) -> None:
        self.stream.time_commands(on)

    def timing(self) -> Timing:
        return self.stream.timing()

    def close(self) -> None:
        self.stream.close()


_UNWATCHED = contextlib.nullcontext()


def watching(
    streams: Sequence[Stream],
    number: int,
    of_lanes: Sequence[int] | None,
    request: int,
    program: Program,
    plan: ChunkPlan,
    arenas: Sequence[Allocation],
) -> AbstractContextManager[None]:
    """While this lasts a chunk is enqueued, and whoever watches the streams knows which command is for what.

    Args:
        number: Of the chunk's own stream.
        of_lanes: The stream of each lane of the plan; None if all of the chunk is enqueued on its own.
    """
    own = streams[number]
    if not isinstance(own, WatchedStream):
        return _UNWATCHED
    if of_lanes is None:
        return own.chunk(request, program, plan, arenas)
    return _watching_several(streams, of_lanes, own, request, program, plan, arenas)


@contextlib.contextmanager
def _watching_several(
    streams: Sequence[Stream],
    of_lanes: Sequence[int],
    own: WatchedStream,
    request: int,
    program: Program,
    plan: ChunkPlan,
    arenas: Sequence[Allocation],
) -> Iterator[None]:
    """Say which steps follow on each of the streams."""
    assert plan.lanes is not None
    steps: dict[int, list[PlanStep]] = {number: [] for number in of_lanes}
    for step, lane in zip(plan.steps, plan.lanes.of_steps(), strict=True):
        steps[of_lanes[lane]].append(step)
    with contextlib.ExitStack() as stack:
        stack.enter_context(own.chunk(request, program, plan, arenas, steps.pop(of_lanes[0])))
        for number in sorted(steps):
            beside = streams[number]
            assert isinstance(beside, WatchedStream)
            stack.enter_context(beside.beside(own, steps[number]))
        yield


def one_by_one(stream: Stream) -> bool:
    """Whether somebody watches a stream who has to see each launch when it is enqueued."""
    return isinstance(stream, WatchedStream) and stream.one_by_one


def announced(stream: Stream, launches: Sequence[PreparedLaunch], memory: Sequence[Allocation]) -> Stream:
    """Tell who watches a stream, if somebody does, of launches that follow; returns the stream to enqueue them on."""
    return stream.announce(launches, memory) if isinstance(stream, WatchedStream) else stream


class WatchedDevice:
    """Passes every call on. `on_build` is called after each build with the number of kernels, whether the binary was
    used, and the times at which the build began and ended. Streams are wrapped where they are opened.
    """

    def __init__(self, device: Device) -> None:
        self.info: DeviceInfo = device.info
        self.builds_at_once: int = device.builds_at_once
        self.device = device
        self.on_build: Callable[[int, bool, int, int], None] | None = None

    def open_stream(self, pinned: bool = True, spin: bool | None = None, native: bool = True) -> Stream:
        return self.device.open_stream(pinned, spin, native)

    def allocate(self, nbytes: int) -> Allocation:
        return self.device.allocate(nbytes)

    def adopt(self, pages: Array) -> Allocation:
        return self.device.adopt(pages)

    def release(self, allocation: Allocation) -> None:
        self.device.release(allocation)

    def grow(self, allocation: Allocation | None, nbytes: int) -> Allocation | None:
        return self.device.grow(allocation, nbytes) if isinstance(self.device, GrowsMemory) else None

    def touch(self, allocation: Allocation) -> None:
        if isinstance(self.device, GrowsMemory):
            self.device.touch(allocation)

    def build(self, sources: Sequence[Any], binary: bytes | None) -> tuple[Mapping[Any, Kernel], bytes | None]:
        begin = self.device.clock()
        kernels, kept = self.device.build(sources, binary)
        if self.on_build is not None:
            self.on_build(len(sources), kept is None and binary is not None, begin, self.device.clock())
        return kernels, kept

    def prepare(
        self, launches: Sequence[PreparedLaunch], memory: Sequence[Allocation], native: bool = True
    ) -> Prepared | None:
        return self.device.prepare(launches, memory, native)

    def clock(self) -> int:
        return self.device.clock()

    def pack(self, offsets: Sequence[int], ints: Sequence[int]) -> Record:
        return self.device.pack(offsets, ints)

    def close(self) -> None:
        self.device.close()
