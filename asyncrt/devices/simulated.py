"""A device on a virtual clock, for tests: seeded durations and completion order, poisoned memory.

Commands run the operators' references. A command reads its inputs when it starts and writes its outputs when it ends,
so that a missing wait between streams shows as a wrong result; fresh memory holds a pattern, so that a read of what
nobody wrote shows too. The clock moves only while somebody waits for a mark, by one completion per turn of the event
loop, and only through what the seed decided: a run repeats exactly.

Calls and commands fail where `Fault`s say so.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from asyncrt.errors import DeviceCommandError, OutOfDeviceMemory
from asyncrt.layout import Array

from .base import (
    Again,
    Allocation,
    DeviceInfo,
    Kernel,
    Mark,
    Prepared,
    PreparedLaunch,
    Reached,
    Record,
    Stream,
    Timing,
    Transfer,
    launch_each,
)
from .faults import Fault, Faults
from .host import run_reference

POISON = 0xA5


@attrs.define(eq=False)
class _SimulatedCommand:
    """A command: `start` is called when the stream comes to it, and returns a function to call at its end."""

    start: Callable[[], Callable[[], None]]
    duration: float
    number: int = 0
    waits: tuple[SimulatedMark, ...] = ()
    began: float | None = None

    def timing(self) -> tuple[int, int] | None:
        if self.began is None:
            return None
        return round(self.began * 1e9), round((self.began + self.duration) * 1e9)


@attrs.define(eq=False)
class SimulatedMark:
    """A place on a simulated stream."""

    reached: bool = False
    error: BaseException | None = None
    callbacks: list[Reached] = attrs.Factory(list)


class SimulatedPrepared:
    """Launches with their arguments set; like a driver's, they are bound to memory when they are enqueued."""

    long = False  # none of them takes any time

    def __init__(
        self,
        launches: Sequence[PreparedLaunch],
        memory: Sequence[Allocation],
        *,
        runs: bool = False,
        single: bool = False,
        begins: bool = False,
    ) -> None:
        self.busy, self.runs, self.single, self.begins = False, runs, single, begins
        self._launches = tuple(launches)
        self.bind(memory)

    def bind(self, memory: Sequence[Allocation]) -> None:
        self._bound = [
            (kernel, [memory[b] if isinstance(b, int) else b for b in buffers], record, grid, group, local)
            for kernel, buffers, record, grid, group, local in self._launches
        ]

    def become(self, launches: Sequence[PreparedLaunch], memory: Sequence[Allocation]) -> bool:
        self._launches = tuple(launches)
        self.bind(memory)
        return True

    def launch(self, stream: Stream, stop: bytearray | None = None) -> None:
        for launch in self._bound:
            if stop is not None and stop[0]:
                return
            stream.launch(*launch)


    def run(
        self,
        stream: Any,
        writes: Sequence[Transfer],
        reads: Sequence[Transfer],
        *,
        single: bool = False,
        stop: bytearray | None = None,
    ) -> None:
        """Carry all of it out; the clock runs meanwhile."""
        self.begin(stream, writes)
        self.end(stream, reads)

    def repeat(
        self, stream: Any, writes: Sequence[Transfer], reads: Sequence[Transfer], again: Again, *, single: bool = False
    ) -> int:
        """Carry all of it out, so many times, and move bytes between."""
        for times in range(again.most):
            self.run(stream, writes, reads, single=single)
            for move in again.moves:
                at, into = move.at + times * move.hop, move.into + times * move.step
                source, target = (memoryview(b).cast("B") for b in (move.source, move.target))
                target[into : into + move.nbytes] = source[at : at + move.nbytes]
            if bytes(again.going[:1]) == b"\0" or any(bytes(again.findings)):
                return times + 1
        return again.most

    def begin(self, stream: Any, writes: Sequence[Transfer]) -> None:
        """Enqueue the copies to the device and the launches."""
        try:
            for memory, offset, host in writes:
                stream.write(memory, offset, host)
            self.launch(stream)
        except BaseException:
            stream.finish()
            raise

    def end(self, stream: Any, reads: Sequence[Transfer]) -> None:
        """Enqueue the copies from the device, and carry all of it out."""
        try:
            for memory, offset, host in reads:
                stream.read(memory, offset, host)
        finally:
            stream.finish()


class SimulatedStream:
    """An in-order queue on the virtual clock."""

    native = 0  # there is no native code

    def __init__(self, device: SimulatedDevice, index: int) -> None:
        self.index = index
        self.commands: deque[_SimulatedCommand | SimulatedMark] = deque()
        self.busy = False
        self.error: BaseException | None = None
        #: What all commands up to a number fail with.
        self.fails: tuple[int, BaseException] | None = None
        self._count = 0
        self._last: _SimulatedCommand | None = None
        self._device = device

    def _enqueue(
        self, site: str, start: Callable[[], Callable[[], None]], *, waits: tuple[SimulatedMark, ...] = ()
    ) -> None:
        self._device.faults.call(site)
        self._count += 1
        self._last = _SimulatedCommand(start, self._device.duration(), self._count, waits)
        self.commands.append(self._last)

    def fail(self, error: BaseException) -> None:
        """A command failed: all up to the next mark do."""
        self.error = self.error or error
        if self._device.spreads:
            self.fails = self._count, self.error

    def launch(
        self,
        kernel: Kernel,
        buffers: Sequence[Allocation],
        record: Record,
        grid: tuple[int, ...],
        group: tuple[int, ...] | None,
        local: tuple[int, ...],
    ) -> None:
        self._enqueue("launch", lambda: run_reference(kernel, buffers, record))
        self._device.launches += 1

    def launch_all(self, launches: Sequence[PreparedLaunch], memory: Sequence[Allocation]) -> None:
        launch_each(self, launches, memory)

    def write(self, target: Allocation, offset: int, source: Array) -> None:
        def start() -> Callable[[], None]:
            data = source.reshape(-1).view(np.uint8).copy()
            return lambda: target.__setitem__(slice(offset, offset + data.size), data)

        self._enqueue("write", start)

    def read(self, source: Allocation, offset: int, target: Array) -> None:
        def start() -> Callable[[], None]:
            data = source[offset : offset + target.nbytes].copy()
            return lambda: target.reshape(-1).view(np.uint8).__setitem__(slice(None), data)

        self._enqueue("read", start)

    def room(self, nbytes: int) -> Array | None:
        return None

    def fill(self, target: Allocation, offset: int, nbytes: int, byte: int) -> None:
        self._enqueue("fill", lambda: lambda: target.__setitem__(slice(offset, offset + nbytes), byte))

    def wait_for(self, marks: Sequence[Mark]) -> None:
        self._enqueue("wait", lambda: lambda: None, waits=tuple(marks))  # type: ignore[arg-type]

    def mark(self) -> SimulatedMark:
        self._device.faults.call("mark")
        mark = SimulatedMark()
        self.commands.append(mark)
        return mark

    def when_reached(self, mark: Mark, callback: Reached) -> None:
        assert isinstance(mark, SimulatedMark)
        if mark.reached:
            callback(mark.error)
        else:
            mark.callbacks.append(callback)
            self._device.watch()

    def time_commands(self, on: bool) -> None:
        """All of them are, always: the clock decides it."""

    def timing(self) -> Timing:
        assert self._last is not None
        return self._last.timing

    def finish(self) -> None:
        """Let the clock run until all commands are done; raises what one of them failed with."""
        mark = SimulatedMark()
        self.commands.append(mark)
        while not mark.reached:
            if not self._device.step() and not mark.reached:
                raise RuntimeError("a simulated stream that hangs is waited for")
        if mark.error is not None:
            raise mark.error

    def close(self) -> None:
        while (self.commands or self.busy) and not self._device.hangs:
            if not self._device.step():
                raise RuntimeError("simulated stream waits for a mark that will never be reached")


class SimulatedDevice:
    """A device that exists on a virtual clock.

    Args:
        seed: Decides durations, and with them the order of completions across streams.
        memory: Bytes of device memory.
        faults: Which calls and commands fail.
        spreads: Whether a failed command makes others fail, as OpenCL permits: those enqueued behind it on its stream
            by then, also beyond the next mark, and those on other streams that wait for such a mark.
        joins: Whether prepared launches may be run by the thread that waits for them.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        memory: int = 1 << 30,
        faults: Sequence[Fault] = (),
        spreads: bool = False,
        joins: bool = False,
    ) -> None:
        self.builds_at_once = 1
        self.info = DeviceInfo(
            spec=f"simulated:{seed}" if seed else "simulated",
            name=f"simulated (seed {seed})",
            kind="simulated",
            compute_units=4,
            memory=memory,
            max_allocation=memory,
            features=frozenset({"fp64", "fp16"}),
            identity="simulated",
            takes_source=False,
        )
        self.now = 0.0
        self.faults = Faults(faults)
        self.spreads, self.joins = spreads, joins
        self.launches = 0
        self.allocated = 0
        self._random = random.Random(seed)
        self._streams: list[SimulatedStream] = []
        self._running: list[tuple[float, int, SimulatedStream, Callable[[], None]]] = []
        self._sequence = 0
        self._watched = 0
        self._pumping = False

    def __repr__(self) -> str:
        return f"<SimulatedDevice now={self.now:.6f} launches={self.launches} allocated={self.allocated}>"

    def duration(self) -> float:
        """Seconds that the next command takes, between 1 µs and 1 ms."""
        return float(10 ** self._random.uniform(-6, -3))

    def open_stream(self, pinned: bool = True, spin: bool | None = None, native: bool = True) -> SimulatedStream:
        stream = SimulatedStream(self, len(self._streams))
        self._streams.append(stream)
        return stream

    @property
    def hangs(self) -> bool:
        """Whether the device is lost in such a way that no command ends any more."""
        return self.faults.lost is not None and self.faults.lost.hangs

    def allocate(self, nbytes: int) -> Allocation:
        self.faults.call("allocate")
        if self.allocated + nbytes > self.info.memory:
            raise OutOfDeviceMemory(
                f"simulated: {nbytes} bytes asked, {self.allocated} of {self.info.memory} in use"
            )
        self.allocated += nbytes
        return np.full(nbytes, POISON, np.uint8)

    def adopt(self, pages: Array) -> Allocation:
        raise NotImplementedError("a simulated device has memory of its own")

    def release(self, allocation: Allocation) -> None:
        self.allocated -= allocation.size
        allocation[:] = POISON ^ 0xFF  # whoever still reads it reads something else

    def build(self, sources: Sequence[Any], binary: bytes | None) -> tuple[Mapping[Any, Kernel], bytes | None]:
        self.faults.call("build")
        return {s: s for s in sources}, None

    def prepare(
        self, launches: Sequence[PreparedLaunch], memory: Sequence[Allocation], native: bool = True
    ) -> Prepared | None:
        return SimulatedPrepared(launches, memory, runs=self.joins)

    def clock(self) -> int:
        return round(self.now * 1e9)

    def pack(self, offsets: Sequence[int], ints: Sequence[int]) -> Record:
        return tuple(offsets)

    def close(self) -> None:
        for stream in self._streams:
            stream.close()
        self._streams = []

    # The clock.

    def step(self) -> bool:
        """Start what can start, then let the next command end. False if nothing is running."""
        if self.hangs:
            return False
        self._start_ready()
        if not self._running:
            return False
        self.now, _, stream, finish = heapq.heappop(self._running)
        try:
            finish()
        except Exception as error:
            stream.fail(error)
        stream.busy = False
        self._start_ready()
        return True

    def _start_ready(self) -> None:
        progress = True
        while progress:
            progress = False
            for stream in self._streams:
                while stream.commands and not stream.busy and self._start(stream):
                    progress = True

    def _start(self, stream: SimulatedStream) -> bool:
        head = stream.commands[0]
        if isinstance(head, SimulatedMark):
            stream.commands.popleft()
            head.reached = True
            if stream.error is not None:
                kind = OutOfDeviceMemory if isinstance(stream.error, MemoryError) else DeviceCommandError
                head.error = kind("a command failed on the simulated device", detail=repr(stream.error))
                head.error.__cause__ = stream.error
                stream.error = None
            callbacks, head.callbacks = head.callbacks, []
            self._watched -= len(callbacks)
            for callback in callbacks:
                callback(head.error)
            return True
        if not all(m.reached for m in head.waits):
            return False
        stream.commands.popleft()
        finish: Callable[[], None] = lambda: None  # noqa: E731
        if stream.fails is not None and head.number <= stream.fails[0]:
            stream.error = stream.error or stream.fails[1]
        elif (error := self._failure(head)) is not None:
            stream.fail(error)
        elif stream.error is None:
            try:
                finish = head.start()
            except Exception as failure:
                stream.fail(failure)
        stream.busy = True
        head.began = self.now
        self._sequence += 1
        heapq.heappush(self._running, (self.now + head.duration, self._sequence, stream, finish))
        return True

    def _failure(self, command: _SimulatedCommand) -> BaseException | None:
        """Return the error that a command fails with because of another command; None if it does not."""
        if self.faults.lost is not None:
            return self.faults.lost.error("injected: the device was lost while the command was pending")
        failed = [m.error for m in command.waits if m.error is not None] if self.spreads else []
        return failed[0] if failed else self.faults.command()

    def watch(self) -> None:
        """Somebody waits for one more mark: let the clock run, one completion per turn of the event loop."""
        self._watched += 1
        self._pump()

    def _pump(self) -> None:
        if not self._pumping:
            self._pumping = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._pumping = False
        if self.step() and self._watched:
            self._pump()
