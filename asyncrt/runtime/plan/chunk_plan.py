"""What was decided for one chunk at one set of shapes: launches, offsets, transfers, skips. Data, bound to no request.

A plan names its memory by part: the arena of a chunk by its number, a constant by its `Stored` key. Whoever carries it
out supplies the arenas. The same plan serves every request of the same signature, at the same time if need be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import attrs

from asyncrt.graph.ir import Program, ProgramNode
from asyncrt.kernels.call import Call
from asyncrt.kernels.decide import Decision, Fused, Run
from asyncrt.kernels.impl import Launch
from asyncrt.kernels.indices import FINDING, Indices, noted
from asyncrt.kernels.resident.weights import Packing, Stored
from asyncrt.layout import Array, Layout, Shape, row_major
from asyncrt.memory.view import View
from asyncrt.scheduler.lanes import Lanes


class Kept(NamedTuple):
    """The memory of a tensor that a sequence keeps between its steps: as the step found it, or new in this step."""

    slot: int
    new: bool = False


BufferName: TypeAlias = int | Stored | Kept
"""The arena of that chunk, a constant, or what a sequence keeps."""


Pack: TypeAlias = Callable[[list[int], tuple[int, ...]], Any]
"""A device's packing of a launch's offsets and sizes into its argument record."""


class Home(NamedTuple):
    """Where a value's bytes lie: in which buffer, how many bytes from its start."""

    buffer: BufferName
    offset: int


class Origin(NamedTuple):
    """What a step was made from; `accesses.touches` finds in it which bytes the step reads and writes.

    Attributes:
        call: The node at its shapes, or the copy that is part of it.
        scratch: Bytes of each scratch buffer.
        launch: Which launch of it this is.
        offsets: Of each buffer, in bytes.
        written: How each of its outputs lies, where not all are dense.
    """

    call: Call
    scratch: tuple[int, ...]
    launch: Launch
    offsets: tuple[int, ...]
    written: tuple[View, ...] = ()


class KeptTensor(NamedTuple):
    """A tensor that a sequence keeps: what one step gives as an output, the next takes as an input.

    Attributes:
        input, output: Value ids.
        layout: What there is; an empty tensor lies nowhere.
        capacity: The shape that there is room for, in row-major order; at least the layout's on every axis.
        new: Bytes of the memory that this step has to allocate for it; 0 if it stays where it is.
        done: Whether this step has come past where the output is made.
    """

    input: int
    output: int
    layout: Layout
    capacity: Shape
    new: int = 0
    done: bool = False

    @property
    def view(self) -> View:
        """How the tensor lies in its memory."""
        return View(self.layout.shape, row_major(self.capacity))


class PlanStep(NamedTuple):
    """One kernel launch, ready but for its memory; `ints` and `varying` are its `Launch`'s, and in its record.

    Its origin is kept only where hazards are checked.
    """

    node: int
    kernel: Any
    buffers: tuple[BufferName, ...]
    record: Any
    grid: tuple[int, ...]
    group: tuple[int, ...] | None
    local: tuple[int, ...]
    origin: Origin | None = None
    ints: tuple[int, ...] = ()
    varying: tuple[int, ...] = ()


class Upload(NamedTuple):
    """A graph input's bytes go to *offset* of the chunk's arena; *staged* ones travel together.

    Attributes:
        array: A large value that a node on the host made, which goes there instead of an input.
    """

    value: int
    offset: int
    nbytes: int
    staged: bool
    array: Array | None = None


class Fetch(NamedTuple):
    """How the host gets a value.

    Attributes:
        value: Its id.
        layout: Its layout.
        home: Read it from the device; None if the host has it.
        source: Else the graph input whose bytes it is, from `offset` on; None if it is `array`.
        offset: Bytes.
        array: Else its value.
        together: Whether it comes in the plan's block.
    """

    value: int
    layout: Layout
    home: Home | None = None
    source: int | None = None
    offset: int = 0
    array: Array | None = None
    together: bool = False


_FINDING_NBYTES = FINDING.nbytes


class Looked(NamedTuple):
    """What a launch looks at: indices of a node, which is named."""

    node: str
    indices: Indices


class ReadBlock(NamedTuple):
    """Bytes of the chunk's arena that the host reads in one transfer: findings, if there are any, and results.

    Attributes:
        looked: Whose the findings are (see `kernels/indices.py`), in order from the beginning.
    """

    offset: int
    nbytes: int
    looked: tuple[Looked, ...]

    @property
    def findings(self) -> int:
        """How many bytes of it are findings."""
        return _FINDING_NBYTES * len(self.looked)

    def check(self, read: Array) -> None:
        """Raise `IndexOutOfRange` if there is a finding in what was *read*; of several, for the first node's."""
        nbytes = self.findings
        if not read[:nbytes].tobytes().strip(b"\0"):
            return
        findings = read[:nbytes].view(FINDING.dtype.numpy).reshape(-1, *FINDING.shape)
        for (node, indices), finding in zip(self.looked, findings, strict=True):
            found = noted(finding)
            if found is not None:
                raise indices.refused(node, *found)


class OnLane(NamedTuple):
    """On which of how many lanes the launches of a node are, the first being 1.

    Attributes:
        why: Why they would gain nothing by running beside others, if there are others and it was asked.
    """

    lane: int = 1
    lanes: int = 1
    why: str = ""


class NodeRecord(NamedTuple):
    """What became of a node, for `explain()`.

    Attributes:
        how: Names the implementation, or says how the host did it.
        note: Why it was not fused with others, if that could have been.
        call: There if the node was run, to find out why it was not skipped, if somebody asks.
        inner: The subgraph that ran last in the node, if one did, and what became of its nodes.
    """

    node: ProgramNode
    decision: Decision | Fused | None
    outputs: tuple[Layout, ...]
    how: str = ""
    call: Call | None = None
    inner: tuple[Program, Records] | None = None
    note: str = ""
    lane: OnLane = OnLane()

    def not_fused(self, why: str) -> NodeRecord:
        """Return the record with that note, unless the node is fused with fewer nodes, or says itself why not."""
        alone = not self.note and not isinstance(self.decision, Fused) and self.call is not None
        return self._replace(note=f"not fused: {why}") if alone else self


def run_records(node: ProgramNode, call: Call, run: Run, how: str) -> list[NodeRecord]:
    """Return what became of a node that was run, or of the nodes that it stands for."""
    if not node.parts:
        return [NodeRecord(node, run, call.outputs, how, call)]
    *others, last = node.parts
    records = [NodeRecord(n, Fused(last.name), c.outputs, how) for n, c in zip(others, call.parts, strict=False)]
    why = f"does the work of {', '.join(n.name for n in others)}"
    return [*records, NodeRecord(last, Run(why), call.outputs, how)]


@attrs.frozen(eq=False)
class Deferred:
    """Records that are made if somebody asks for them.

    Attributes:
        held: How many records it has until then.
    """

    make: Callable[[], tuple[NodeRecord, ...]]
    held: int = 0


Records: TypeAlias = list[NodeRecord | Deferred]
"""What became of the nodes of an inference, in their order."""


def flat(records: Iterable[NodeRecord | Deferred]) -> Iterator[NodeRecord]:
    """Return all records, those made too that were deferred."""
    for record in records:
        if isinstance(record, Deferred):
            yield from record.make()
        else:
            yield record


@attrs.frozen(eq=False)
class State:
    """What is known after a chunk, by value id: the plan of the next chunk starts from it.

    Attributes:
        layouts, values, homes: As far as they are known.
        kept: What a sequence keeps, by slot; nothing in a request of its own.
        views: The strides of values that lie in what is kept, where they are not dense.
    """

    layouts: tuple[Layout | None, ...]
    values: tuple[Array | None, ...]
    homes: tuple[Home | None, ...]
    kept: tuple[KeptTensor, ...] = ()
    views: Mapping[int, View] = {}

    def advanced(self, shapes: Mapping[int, Layout], known: Mapping[int, Array]) -> State:
        """Return this state with layouts and values that have come since."""
        if not shapes and not known:
            return self
        layouts, values = list(self.layouts), list(self.values)
        for id, layout in shapes.items():
            layouts[id] = layout
        for id, array in known.items():
            values[id] = array
        return attrs.evolve(self, layouts=tuple(layouts), values=tuple(values))


def start_state(
    program: Program, layouts: list[Layout], value_inputs: dict[int, Array], kept: tuple[KeptTensor, ...] = ()
) -> State:
    """Return what is known before the first chunk.

    Args:
        layouts: Of the program's inputs, in their order.
        value_inputs: Contents of the inputs that decide shapes or skips, by value id.
        kept: What a sequence has kept, by slot.
    """
    known: list[Layout | None] = [None] * len(program.values)
    values: list[Array | None] = [None] * len(program.values)
    for value in program.values:
        if value.constant is not None:
            dtype = value.layout.dtype
            assert dtype is not None
            known[value.id], values[value.id] = Layout(dtype, value.constant.shape), value.constant
    for id, layout in zip(program.inputs, layouts, strict=True):
        known[id] = layout
    for id, array in value_inputs.items():
        values[id] = array
    homes: list[Home | None] = [None] * len(program.values)
    views: dict[int, View] = {}
    for slot, tensor in enumerate(kept):
        if tensor.layout.count:
            homes[tensor.input] = Home(Kept(slot), 0)
            if not tensor.view.is_dense:
                views[tensor.input] = tensor.view
    return State(tuple(known), tuple(values), tuple(homes), kept, views)


@attrs.frozen(eq=False)
class ChunkPlan:
    """A chunk's plan.

    Attributes:
        chunk: The chunk's number.
        arena_nbytes: Size of its arena; 0 if it needs none.
        staging: Bytes of host values that go to the arena in one transfer, with room for the staged uploads.
        staging_offset: Where.
        uploads: Graph inputs that kernels read, and large host values.
        steps: Launches, in order.
        packings: Constants that the steps read.
        fetches: What the host gets when the chunk is done: values for the next chunk, or the outputs.
        records: What became of each node.
        skipped: How many were skipped.
        after: What the next chunk's plan starts from.
        lanes: On which lanes the steps are where they are spread over several streams; None: on one.
        block: What of its arena the host reads in one transfer.
        shared: How many of its steps another plan has as well.
    """

    chunk: int
    arena_nbytes: int
    staging: bytes
    staging_offset: int
    uploads: tuple[Upload, ...]
    steps: tuple[PlanStep, ...]
    packings: tuple[Packing, ...]
    fetches: tuple[Fetch, ...]
    records: tuple[NodeRecord, ...] | Deferred
    skipped: int
    after: State
    lanes: Lanes | None = None
    block: ReadBlock | None = None
    shared: int = 0

    def known_records(self) -> tuple[NodeRecord, ...]:
        """Return the records, made now if they were deferred."""
        return self.records.make() if isinstance(self.records, Deferred) else self.records

    @property
    def needs_device(self) -> bool:
        """Whether there is anything to enqueue; uploads alone are for a later chunk."""
        return bool(self.steps or self.uploads or self.staging) or any(f.home is not None for f in self.fetches)

    @property
    def kernels(self) -> tuple[Any, ...]:
        """The sources of the kernels it launches."""
        return tuple(dict.fromkeys({id(s.kernel): s.kernel for s in self.steps}.values()))  # to hash one takes long
