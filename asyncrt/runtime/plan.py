"""What was decided for one chunk at one set of shapes: launches, offsets, transfers, skips. Data, bound to no request.

A plan names its memory by part: the arena of a chunk by its number, a constant by its `Stored` key. Whoever carries it
out supplies the arenas. The same plan serves every request of the same signature, at the same time if need be.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import attrs

from asyncrt.graph.node import ProgramNode
from asyncrt.graph.program import Program
from asyncrt.kernels.operator import Call, Decision
from asyncrt.kernels.weights import Packing, Stored
from asyncrt.layout import Array, Layout

BufferName: TypeAlias = int | Stored
"""The arena of that chunk, or a constant."""


class Home(NamedTuple):
    """Where a value's bytes lie: in which buffer, how many bytes from its start."""

    buffer: BufferName
    offset: int


class Step(NamedTuple):
    """One kernel launch, ready but for its memory; `ints` and `varying` are its `Launch`'s, and in its record."""

    node: int
    kernel: Any
    buffers: tuple[BufferName, ...]
    record: Any
    grid: tuple[int, ...]
    group: tuple[int, ...] | None
    local: tuple[int, ...]
    ints: tuple[int, ...] = ()
    varying: tuple[int, ...] = ()


class Upload(NamedTuple):
    """A graph input's bytes go to *offset* of the chunk's arena; *staged* ones travel together."""

    value: int
    offset: int
    nbytes: int
    staged: bool


class Fetch(NamedTuple):
    """How the host gets a value.

    Attributes:
        value: Its id.
        layout: Its layout.
        home: Read it from the device; None if the host has it.
        source: Else the graph input whose bytes it is, from `offset` on; None if it is `array`.
        offset: Bytes.
        array: Else its value.
    """

    value: int
    layout: Layout
    home: Home | None = None
    source: int | None = None
    offset: int = 0
    array: Array | None = None


class NodeRecord(NamedTuple):
    """What became of a node, for `explain()`.

    Attributes:
        how: Names the implementation, or says how the host did it.
        call: There if the node was run, to find out why it was not skipped, if somebody asks.
        inner: The subgraph that ran last in the node, if one did, and what became of its nodes.
    """

    node: ProgramNode
    decision: Decision | None
    outputs: tuple[Layout, ...]
    how: str = ""
    call: Call | None = None
    inner: tuple[Program, list[NodeRecord]] | None = None


@attrs.frozen(eq=False)
class State:
    """What is known after a chunk, by value id: the plan of the next chunk starts from it."""

    layouts: tuple[Layout | None, ...]
    values: tuple[Array | None, ...]
    homes: tuple[Home | None, ...]


@attrs.frozen(eq=False)
class ChunkPlan:
    """A chunk's plan.

    Attributes:
        chunk: The chunk's number.
        arena_nbytes: Size of its arena; 0 if it needs none.
        staging: Bytes of host values that go to the arena in one transfer, with room for the staged uploads.
        staging_offset: Where.
        uploads: Graph inputs that kernels read.
        steps: Launches, in order.
        packings: Constants that the steps read.
        fetches: What the host gets when the chunk is done: values for the next chunk, or the outputs.
        records: What became of each node.
        after: What the next chunk's plan starts from.
    """

    chunk: int
    arena_nbytes: int
    staging: bytes
    staging_offset: int
    uploads: tuple[Upload, ...]
    steps: tuple[Step, ...]
    packings: tuple[Packing, ...]
    fetches: tuple[Fetch, ...]
    records: tuple[NodeRecord, ...]
    after: State

    @property
    def needs_device(self) -> bool:
        """Whether there is anything to enqueue; uploads alone are for a later chunk."""
        return bool(self.steps or self.uploads or self.staging) or any(f.home is not None for f in self.fetches)

    @property
    def kernels(self) -> tuple[Any, ...]:
        """The sources of the kernels it launches."""
        return tuple(dict.fromkeys(s.kernel for s in self.steps))
