"""A stream between the executor and the device's own, which knows what each command is for.

The executor enqueues a chunk in one go and its launches in the order of its plan's steps, so saying once which chunk
follows says which node and request each launch belongs to. Where nobody watches, the device's streams are used as they
are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from asyncrt.devices.base import Allocation, Kernel, Mark, Reached, Record, Stream
from asyncrt.graph.program import Program
from asyncrt.layout import Array

from .plan import ChunkPlan, Step


class WatchedStream:
    """Passes everything on; those who watch override what they want to see.

    Attributes:
        stream: Carries the commands.
        request: Whose chunk is being enqueued; None between chunks.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.index = stream.index
        self.request: int | None = None
        self._program: Program | None = None
        self._steps: Iterator[Step] = iter(())

    @contextlib.contextmanager
    def chunk(
        self, request: int, program: Program, plan: ChunkPlan, arenas: Sequence[Allocation]
    ) -> Iterator[None]:
        """While this lasts the commands of a chunk are enqueued, and no others."""
        self.request, self._program, self._steps = request, program, iter(plan.steps)
        try:
            self.begin(plan, arenas)
            if isinstance(self.stream, WatchedStream):
                with self.stream.chunk(request, program, plan, arenas):
                    yield
            else:
                yield
        finally:
            self.request, self._program, self._steps = None, None, iter(())

    def begin(self, plan: ChunkPlan, arenas: Sequence[Allocation]) -> None:
        """A chunk begins; its arena is the one of its number."""

    def next_step(self) -> tuple[Step, str] | None:
        """Return the step that is launched now, and its node's name; None for a launch that is of no plan."""
        step = next(self._steps, None)
        return None if step is None or self._program is None else (step, self._program.nodes[step.node].name)

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

    def write(self, target: Allocation, offset: int, source: Array) -> None:
        self.stream.write(target, offset, source)

    def read(self, source: Allocation, offset: int, target: Array) -> None:
        self.stream.read(source, offset, target)

    def fill(self, target: Allocation, offset: int, nbytes: int, byte: int) -> None:
        self.stream.fill(target, offset, nbytes, byte)

    def wait_for(self, marks: Sequence[Mark]) -> None:
        self.stream.wait_for(marks)

    def mark(self) -> Mark:
        return self.stream.mark()

    def when_reached(self, mark: Mark, callback: Reached) -> None:
        self.stream.when_reached(mark, callback)

    def close(self) -> None:
        self.stream.close()
