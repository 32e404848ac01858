"""What a runtime does while a trace is taken: commands with the device's own times, and what the host does for them.

The streams are wrapped and their commands timed while the trace lasts. Before and after it the device's own streams are
used, which make no event for a command.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs

from asyncrt.devices.base import Allocation, Device, Kernel, Mark, Record, Stream, Timing, mark_behind
from asyncrt.errors import DeviceLostError
from asyncrt.graph.ir import Program
from asyncrt.kernels.decide import Empty, Fused, Run, Skip
from asyncrt.layout import Array
from asyncrt.loops import settle_later
from asyncrt.memory.pool import PoolStatistics
from asyncrt.runtime.plan.chunk_plan import ChunkPlan
from asyncrt.trace import Trace, Track

from .watched import WatchedStream

_HOST = "host"
_MEMORY = "memory of intermediates"
_ENQUEUEING = Track(_HOST, "enqueueing")


@attrs.define(eq=False)
class _TracedCommand:
    """A command. *node* is the number of its node in the chunk's program, if it is a kernel's."""

    stream: int
    name: str
    category: str
    arguments: dict[str, Any]
    timing: Timing
    node: int | None = None


@attrs.define(eq=False)
class _Chunk:
    """A chunk that was enqueued, from *begin* to *end* on the host; *stream* is its own, others may have part of it."""

    request: int
    program: Program
    plan: ChunkPlan
    stream: int
    begin: int
    end: int = 0
    commands: list[_TracedCommand] = attrs.Factory(list)


class Tracer:
    """Collects what happens; `trace()` puts it on tracks when the streams have passed all of it.

    Args:
        device: Whose clock times are told by.
        memory: Gives the pool's numbers.
        name: What the device is called.
    """

    def __init__(self, device: Device, memory: Callable[[], PoolStatistics], name: str) -> None:
        self._name = name
        self._memory = memory
        self.clock = device.clock
        self.begin = self.clock()
        self._names: dict[int, str] = {}
        self._chunks: list[_Chunk] = []
        #: What belongs to no chunk: waits, and uploads of constants.
        self._others: list[_TracedCommand] = []
        self._spans: list[tuple[Track, str, int, int, str, dict[str, Any]]] = []
        self._requests: dict[int, tuple[int, int | None]] = {}
        self._samples: list[tuple[int, PoolStatistics]] = []
        #: Which stream a mark is of; the marks are kept so that no other is taken for one of them.
        self.marks: dict[int, tuple[Mark, int]] = {}
        self.sample()

    def __repr__(self) -> str:
        return f"<Tracer {len(self._chunks)} chunks, {len(self._requests)} requests>"

    # What happens.

    def stream(self, stream: Stream, number: int, name: str) -> TracedStream:
        """Return a stream that tells of what is enqueued on *stream*, whose commands are timed from here on."""
        self._names[number] = name
        stream.time_commands(True)
        return TracedStream(stream, number, self)

    def chunk(self, request: int, program: Program, plan: ChunkPlan, stream: int) -> _Chunk:
        chunk = _Chunk(request, program, plan, stream, self.clock())
        self._chunks.append(chunk)
        self.sample()
        return chunk

    def command(self, chunk: _Chunk | None, command: _TracedCommand) -> None:
        (self._others if chunk is None else chunk.commands).append(command)

    def sample(self) -> None:
        """Note what the pool holds now."""
        self._samples.append((self.clock(), self._memory()))

    @contextlib.contextmanager
    def request(self, request: int) -> Iterator[None]:
        """While it lasts, a request is known to the runtime."""
        self._requests[request] = self.clock(), None
        try:
            yield
        finally:
            self._requests[request] = self._requests[request][0], self.clock()
            self.sample()

    @contextlib.contextmanager
    def planning(self, request: int, chunk: int) -> Iterator[None]:
        """While it lasts, a chunk is planned."""
        begin = self.clock()
        try:
            yield
        finally:
            arguments = {"request": request, "chunk": chunk}
            self._spans.append((Track(_HOST, "planning"), "plan", begin, self.clock(), "plan", arguments))

    def built(self, kernels: int, from_binary: bool, begin: int, end: int) -> None:
        """A program of that many kernels was built, on the thread that calls this."""
        name = f"{'load' if from_binary else 'build'} {kernels} kernels"
        track = Track(_HOST, f"builds on {threading.current_thread().name}")
        self._spans.append((track, name, begin, end, "build", {"kernels": kernels}))

    # What became of it. Asked when the streams have passed everything.

    def node_times(self, request: int) -> dict[tuple[Program, int], int]:
        """Return for each node of a request that launched kernels how many nanoseconds they took, in all.

        A node whose timings the device cannot tell is left out.
        """
        times: dict[tuple[Program, int], int] = {}
        for chunk in self._chunks:
            for command in chunk.commands if chunk.request == request else ():
                interval = command.timing()
                if command.node is not None and interval is not None:
                    key = chunk.program, command.node
                    times[key] = times.get(key, 0) + interval[1] - interval[0]
        return times

    def trace(self) -> Trace:
        """Return the trace."""
        return together([self])

    def show(self, trace: Trace, memory: str) -> None:
        """Draw everything; *memory* is what the pool's numbers are called."""
        tracks = {n: Track(f"device {self._name}", name) for n, name in sorted(self._names.items())}
        for track in tracks.values():
            trace.track(track)
        flows: dict[int, list[tuple[int, Track]]] = {}
        for command in self._others:
            _show(trace, tracks[command.stream], command)
        for chunk in self._chunks:
            points = flows.setdefault(chunk.request, [])
            arguments = {"request": chunk.request, "chunk": chunk.plan.chunk, "commands": len(chunk.commands)}
            trace.slice(_ENQUEUEING, f"request {chunk.request}", chunk.begin, chunk.end, "enqueue", arguments)
            points.append((chunk.begin, _ENQUEUEING))
            shown: dict[int, int] = {}
            for c in chunk.commands:
                interval = _show(trace, tracks[c.stream], c, chunk.request)
                if interval is not None:
                    shown.setdefault(c.stream, interval[0])
            points += [(begin, tracks[stream]) for stream, begin in shown.items()]
            _show_skipped(trace, tracks[chunk.stream], chunk)
        for request, points in flows.items():
            trace.flow(f"request {request}", request, points)
        now = self.clock()
        for request, (begin, end) in self._requests.items():
            trace.span(Track(_HOST, "requests"), f"request {request}", request, begin, now if end is None else end)
        for track, name, begin, end, category, arguments in self._spans:
            trace.slice(track, name, begin, end, category, arguments)
        for time, s in self._samples:
            trace.counter(_HOST, memory, time, {"leased": s.active, "held": s.held})

    @property
    def name(self) -> str:
        """What the device is called."""
        return self._name


def together(tracers: Sequence[Tracer]) -> Trace:
    """Return what several devices did at the same time as one trace; lanes are those of each."""
    trace = Trace(min(tracer.begin for tracer in tracers))
    for tracer in tracers:
        tracer.show(trace, _MEMORY if len(tracers) == 1 else f"{_MEMORY} on {tracer.name}")
    return trace


def _show(trace: Trace, track: Track, command: _TracedCommand, request: int | None = None) -> tuple[int, int] | None:
    """Draw a command; returns when it ran, or None if the device cannot say."""
    interval = command.timing()
    if interval is not None:
        arguments = command.arguments if request is None else {"request": request, **command.arguments}
        trace.slice(track, command.name, *interval, command.category, arguments)
    return interval


def _show_skipped(trace: Trace, track: Track, chunk: _Chunk) -> None:
    """Draw each skipped node where it would have run: before the next node that did, or at the end."""
    begins: dict[int, int] = {}
    time: int | None = None
    for command in chunk.commands:
        interval = command.timing()
        if interval is not None:
            time = interval[1]
            if command.node is not None:
                begins.setdefault(command.node, interval[0])
    for record in reversed(chunk.plan.known_records()):
        node, decision = record.node, record.decision
        if decision is None or isinstance(decision, Run | Empty | Fused):
            time = begins.get(node.id, time)
        elif time is not None:
            source = node.inputs[decision.sources[0]]
            assert source is not None
            word = "skipped" if isinstance(decision, Skip) else "is a view"
            arguments = {
                "request": chunk.request,
                "operator": node.operator.name,
                "alias of": chunk.program.values[source].name,
                "offset": decision.offsets[0],
                "why": decision.why,
            }
            trace.instant(track, f"{node.name} {word}", time, "skipped", arguments)


class TracedStream(WatchedStream):
    """A stream whose commands are timed, and told to a tracer with what they are for."""

    def __init__(self, stream: Stream, number: int, tracer: Tracer) -> None:
        super().__init__(stream)
        self._number = number
        self._tracer = tracer
        self.traced_chunk: _Chunk | None = None

    def begin(self, plan: ChunkPlan, arenas: Sequence[Allocation]) -> None:
        assert self.request is not None
        assert self.program is not None
        self.traced_chunk = self._tracer.chunk(self.request, self.program, plan, self._number)

    def join(self, own: WatchedStream) -> None:
        assert isinstance(own, TracedStream)
        self.traced_chunk = own.traced_chunk

    def end(self) -> None:
        if self.traced_chunk is not None:
            self.traced_chunk.end = self._tracer.clock()
            self.traced_chunk = None

    def _tell(self, name: str, category: str, arguments: dict[str, Any], node: int | None = None) -> None:
        command = _TracedCommand(self._number, name, category, arguments, self.stream.timing(), node)
        self._tracer.command(self.traced_chunk, command)

    def launch(
        self,
        kernel: Kernel,
        buffers: Sequence[Allocation],
        record: Record,
        grid: tuple[int, ...],
        group: tuple[int, ...] | None,
        local: tuple[int, ...],
    ) -> None:
        found = self.next_step()
        super().launch(kernel, buffers, record, grid, group, local)
        if found is None:
            self._tell("kernel", "kernel", {"grid": grid})
        else:
            step, name = found
            self._tell(name, "kernel", {"kernel": step.kernel.name, "grid": grid, "group": group}, step.node)

    def write(self, target: Allocation, offset: int, source: Array) -> None:
        super().write(target, offset, source)
        self._transfer("write", source.nbytes)

    def read(self, source: Allocation, offset: int, target: Array) -> None:
        super().read(source, offset, target)
        self._transfer("read", target.nbytes)

    def fill(self, target: Allocation, offset: int, nbytes: int, byte: int) -> None:
        super().fill(target, offset, nbytes, byte)
        self._transfer("fill", nbytes)

    def _transfer(self, what: str, nbytes: int) -> None:
        if nbytes:  # a device need not enqueue anything for no bytes
            self._tell(what, "transfer", {"bytes": nbytes})

    def wait_for(self, marks: Sequence[Mark]) -> None:
        super().wait_for(marks)
        if marks:
            known = [self._tracer.marks.get(id(m)) for m in marks]
            streams = sorted({number for _, number in filter(None, known)})
            self._tell("wait", "wait", {"for streams": streams, "marks": len(marks)})

    def mark(self) -> Mark:
        mark = super().mark()
        self._tracer.marks[id(mark)] = mark, self._number
        return mark

    async def passed(self, when_lost: set[Callable[[DeviceLostError], None]]) -> None:
        """Return when the stream has passed everything enqueued so far; failures are somebody else's to report.

        Args:
            when_lost: Whoever is in it is called if the device is lost meanwhile.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def reached(error: BaseException | None) -> None:
            settle_later(future, None, None)

        when_lost.add(reached)
        try:
            with contextlib.suppress(Exception):
                self.stream.when_reached(mark_behind(self.stream), reached)
                await future
        finally:
            when_lost.discard(reached)
