"""A model while it is compiled, and compiled: values, nodes, the graphs inside nodes, and the program that is run.

Loading makes a `Graph` and changes it, pass after pass. What comes out is a `Program`: immutable, and shared by all
inferences.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import attrs

from asyncrt.kernels.call import Attributes
from asyncrt.kernels.decide import SkipMode
from asyncrt.kernels.operator import Operator
from asyncrt.layout import Array, DataType, PartialLayout

from .symbolic import SymbolicValues

FOREVER = 1 << 30
"""The id of a last reader that comes after all nodes."""


class Placement(enum.Enum):
    """Where a node runs."""

    DEVICE = "device"
    HOST = "host"


@attrs.define(eq=False)
class Value:
    """A tensor of the program, by its number.

    Attributes:
        id: Its number.
        name: Its name in the model.
        layout: What is known of it before a request.
        producer: Id of the node that makes it; None for inputs and constants.
        constant: Its value, if it is the same in every request.
        partial: Its value as far as loading knows it: an array of dtype object that may hold symbolic dims, or the
            constant. Only small integer tensors have one.
        readers: Ids of the nodes that take it as an input.
    """

    id: int
    name: str
    layout: PartialLayout
    producer: int | None = None
    constant: Array | None = None
    partial: Array | None = None
    readers: tuple[int, ...] = ()


class Guard(NamedTuple):
    """What must hold for a node of a branch to be part of a request.

    Attributes:
        condition: The id of a value of one element, which the host knows when it plans the node.
        wanted: What it has to be.
        node: The name of the If that the branch is of.
    """

    condition: int
    wanted: bool
    node: str


@attrs.define(eq=False)
class ProgramNode:
    """An operator at its place in a program.

    Attributes:
        id: Its number, in the model's order.
        name: Its name in the model, or one made of its operator and number.
        operator: What it does.
        attributes: With the defaults of its ONNX schema.
        inputs: Value ids; None where an optional input is absent.
        outputs: Value ids.
        output_types: dtype of each output.
        place: Whether it runs on the device or on the host.
        skip_mode: What loading can tell about skipping it.
        skip_note: Why, for `explain()`.
        chunk: Which chunk it belongs to.
        captures: Ids of the values that its subgraphs take from outside.
        subgraphs: What an If, a Loop or a Scan holds; such a node is carried out by the network.
        parts: For a node that stands for several (see `passes/fuse.py`): these, in order, unchanged. Its number and
            output are the last one's, so that what is known of how long values live holds either way.
        build: Makes its operator, of those of the parts, the wiring in `attributes`, and the parts' attributes.
        apart: What is carried out where shapes forbid that: the parts, or nodes that stand for some of them.
        guards: Of the branches that it is in, the outermost first; a request that one of them keeps out of a branch
            knows nothing of the nodes there, nor of what they make.
    """

    id: int
    name: str
    operator: Operator
    attributes: Attributes
    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]
    output_types: tuple[DataType, ...]
    place: Placement = Placement.DEVICE
    skip_mode: SkipMode = SkipMode.NEVER
    skip_note: str = ""
    chunk: int = 0
    captures: tuple[int, ...] = ()
    subgraphs: tuple[Subgraph, ...] = ()
    parts: tuple[ProgramNode, ...] = ()
    build: Callable[..., Operator] | None = None
    apart: tuple[ProgramNode, ...] = ()
    guards: tuple[Guard, ...] = ()

    @property
    def uses(self) -> tuple[int, ...]:
        """The ids of all values that the node takes, each once."""
        return tuple(dict.fromkeys([v for v in self.inputs if v is not None] + list(self.captures)))

    @property
    def conditions(self) -> tuple[int, ...]:
        """The ids of the values that decide whether it is part of a request."""
        return tuple([guard.condition for guard in self.guards])

    @property
    def host_reads(self) -> tuple[int, ...]:
        """The ids of the values that the host must know before it can go past the node."""
        if self.place is Placement.DEVICE:
            return (*self.conditions, *self.get_shape_infer_dependencies())
        return self.conditions if self.operator.evaluate is not None else (*self.conditions, *self.uses)

    def get_shape_infer_dependencies(self) -> tuple[int, ...]:
        """Return the ids of the values (not just shapes) that the output shapes need."""
        wanted = self.operator.shape_infer_dependencies
        return tuple(v for i, v in enumerate(self.inputs) if i in wanted and v is not None)

    def get_value_hints(self) -> tuple[int, ...]:
        """Return the ids of the values that a decision can use where the host knows them anyway."""
        wanted = self.operator.value_hints
        return tuple(v for i, v in enumerate(self.inputs) if i in wanted and v is not None)


@attrs.define(eq=False)
class Graph:
    """What the passes work on, and what a program is made of.

    Attributes:
        fresh: Returns a name that nothing in the model has, neither a value nor a dim.
        depth: How many nodes it is inside of; 0 is the model's own graph, the only one that surely runs.
        fused: Nodes that stand for several of `nodes`, which come one after the other.
        varying: Inputs that are others in each iteration of a Loop or Scan, within one request.
        other_files: Whether tensors of it lie in other files than the model.
    """

    name: str
    values: list[Value]
    nodes: list[ProgramNode]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    fresh: Callable[[str], str]
    depth: int = 0
    fused: list[ProgramNode] = attrs.Factory(list)
    varying: frozenset[int] = frozenset()
    other_files: bool = False

    def keep(self, nodes: Iterable[ProgramNode]) -> None:
        """Replace the graph's nodes by *nodes*, number them, and note the producer and the readers of each value."""
        self.nodes = list(nodes)
        readers: list[list[int]] = [[] for _ in self.values]
        for value in self.values:
            value.producer = None
        for number, node in enumerate(self.nodes):
            node.id = number
            for output in node.outputs:
                self.values[output].producer = number
            for v in node.uses:
                readers[v].append(number)
        for value in self.values:
            value.readers = tuple(readers[value.id])


@attrs.define(eq=False)
class Subgraph:
    """A graph inside a node.

    Attributes:
        label: "then", "else" or "body".
        graph: Its inputs are the formal ones, then those captured values that are not constant.
        formals: How many inputs are formal.
        captured: Ids of all values from outside, by their ids in the graph.
        program: What is run, once the passes are done.
    """

    label: str
    graph: Graph
    formals: int
    captured: dict[int, int]
    program: Program | None = None
    _nodes: list[ProgramNode] = attrs.field(init=False, repr=False)
    _values: list[tuple[PartialLayout, Array | None]] = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self.remember()

    def remember(self) -> None:
        """Take the graph as it is for what the file says."""
        self._nodes = list(self.graph.nodes)
        self._values = [(v.layout, v.constant) for v in self.graph.values]

    def restart(self) -> None:
        """Forget everything that was inferred: the graph is again what the file says."""
        del self.graph.values[len(self._values) :]
        for value, (layout, constant) in zip(self.graph.values, self._values, strict=True):
            value.layout, value.constant, value.partial = layout, constant, None
        self.graph.keep(self._nodes)

    def begin(self, outside: Graph, formals: Sequence[PartialLayout | None]) -> None:
        """Be ready to be inferred: take over what is known outside, and nothing from an earlier inference.

        Args:
            formals: Layouts of the formal inputs; None keeps those of the file.
        """
        self.restart()
        values = self.graph.values
        for id, layout in zip(self.graph.inputs, formals, strict=False):
            if layout is not None:
                values[id].layout = layout
        for id, outer in self.captured.items():
            known = outside.values[outer]
            # Not its partial value: a request may break the assumptions behind it, and nothing inside would notice.
            values[id].layout, values[id].constant = known.layout, known.constant
        given = [id for id in self.captured if values[id].constant is None]
        self.graph.inputs = (*self.graph.inputs[: self.formals], *given)
        handed_on = [id for id in given if self.captured[id] in outside.varying]
        self.graph.varying = frozenset((*self.graph.inputs[: self.formals], *handed_on))

    def prune(self) -> None:
        """Capture no more than is read."""
        inputs, outputs = self.graph.inputs, self.graph.outputs
        given = [id for id in inputs[self.formals :] if self.graph.values[id].readers or id in outputs]
        self.graph.inputs = (*inputs[: self.formals], *given)

    def finish(self, program: Program) -> None:
        """Set the program that is run. Nothing is inferred from here on, so what the file says is dropped."""
        self.program = program
        self._nodes, self._values = [], []

    @property
    def taken(self) -> list[tuple[int, int]]:
        """Return the captured values that an execution must be given: the input's id, and the value's outside."""
        return [(id, self.captured[id]) for id in self.graph.inputs[self.formals :]]

    @property
    def results(self) -> list[PartialLayout]:
        """What is known of its outputs."""
        return [self.graph.values[id].layout for id in self.graph.outputs]


@attrs.frozen
class Chunk:
    """A part of the program whose shapes are all known before any of it runs.

    Attributes:
        index: Its place in the program.
        nodes: In processing order; a node that stands for several in their place.
        reads: Values that the device makes here and the host needs in a later chunk.
        decides: Values from here on whose contents, not only shapes, decide something later.
    """

    index: int
    nodes: tuple[ProgramNode, ...]
    reads: tuple[int, ...]
    decides: tuple[int, ...]

    @property
    def control(self) -> ProgramNode | None:
        """The node with subgraphs that is all of the chunk; None if the chunk is one to be planned."""
        return self.nodes[0] if self.nodes and self.nodes[0].subgraphs else None


@attrs.frozen(eq=False)
class Program:
    """A model compiled for a class of devices.

    Attributes:
        name: The graph's name.
        values: Every tensor, by id.
        nodes: In processing order.
        chunks: The same nodes, cut.
        inputs: Value ids of what a request brings, in the model's order.
        outputs: Value ids of what it gets.
        value_inputs: The inputs whose contents, not only shapes, decide something: shapes or skips.
        arriving: The inputs, and what nodes with subgraphs make: values whose bytes the host has, but not their plans.
        device_constants: The constants that kernels read.
        takes_view: For each value whether some reader may take it as a view with strides.
        last_use: For each value the id of its last reader, or `FOREVER`.
        symbolic: Shape arithmetic that a request evaluates as formulas.
        declared: The inputs whose values each node may see: those that its operator declares and that can matter.
        kinds: A number for each node, also for those that stand for several; nodes of one number differ only in
            which values they take and make.
        other_files: Whether tensors of it lay in other files than the model.
    """

    name: str
    values: tuple[Value, ...]
    nodes: tuple[ProgramNode, ...]
    chunks: tuple[Chunk, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    value_inputs: tuple[int, ...]
    arriving: frozenset[int]
    device_constants: tuple[int, ...]
    takes_view: tuple[bool, ...]
    last_use: tuple[int, ...]
    symbolic: SymbolicValues
    kinds: Mapping[ProgramNode, int]
    declared: Mapping[ProgramNode, tuple[int, ...]]
    other_files: bool = False

    def __repr__(self) -> str:
        return f"<Program {self.name!r}: {len(self.nodes)} nodes, {len(self.chunks)} chunks>"
