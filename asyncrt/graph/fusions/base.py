"""What a pattern may ask of the graph around a node, and how it says which nodes are fused.

All values that the parts make, except the last part's output, must be read by parts alone. Then the parts can be moved
together without breaking the order of nodes, and one kernel need not store those values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from asyncrt.graph.ir import Graph, Placement, ProgramNode
from asyncrt.kernels.call import Attributes
from asyncrt.kernels.decide import SkipMode
from asyncrt.kernels.fusion.expression import Wiring
from asyncrt.kernels.operator import Operator
from asyncrt.layout import Array, DataType

Build: TypeAlias = Callable[[Sequence[Operator], Wiring, Sequence[Attributes]], Operator]
"""Makes the operator of a group from its parts' operators, where each part's inputs come from, and attributes."""


class Pattern(NamedTuple):
    """A kind of group.

    Attributes:
        name: For `explain()` and tests.
        find: Returns the group whose last part is the node, or None.
    """

    name: str
    find: Callable[[ProgramNode, Surroundings], FusionGroup | None]


class FusionGroup(NamedTuple):
    """Nodes that may become one.

    Attributes:
        parts: In any order.
        first: The values that are the first inputs of the whole; the others follow in the parts' order.
        build: Makes its operator.
        attributes: Of the whole.
    """

    parts: Iterable[ProgramNode]
    first: Sequence[int | None]
    build: Build
    attributes: Mapping[str, Any] = {}


class Surroundings:
    """The graph as patterns see it: only nodes that may still become parts.

    Args:
        taken: Nodes that are parts of another group; may grow.
    """

    def __init__(self, graph: Graph, taken: set[ProgramNode]) -> None:
        self._graph, self._taken = graph, taken
        self._outputs = set(graph.outputs)

    def free(self, node: ProgramNode, *, skipped: bool = False) -> bool:
        """Whether *node* may be part of a group: on the device, with one output, not skipped in every request.

        Args:
            skipped: Let it be skipped in every request.
        """
        return (
            node.place is Placement.DEVICE
            and len(node.outputs) == 1
            and not node.subgraphs
            and (skipped or node.skip_mode is not SkipMode.ALWAYS)
            and node not in self._taken
        )

    def producer(self, value: int | None, chunk: int, *, skipped: bool = False) -> ProgramNode | None:
        """Return the free node of *chunk* that makes *value*, or None. The arguments are those of `free`."""
        node = self.maker(value, chunk)
        return node if node is not None and self.free(node, skipped=skipped) else None

    def maker(self, value: int | None, chunk: int) -> ProgramNode | None:
        """Return the node of *chunk* that makes *value*, free or not; None if there is none."""
        number = None if value is None else self._graph.values[value].producer
        if number is None:
            return None
        node = self._graph.nodes[number]
        return node if node.chunk == chunk else None

    def may_move_nothing(self, node: ProgramNode) -> bool:
        """Whether the output of *node* may have its first input's elements, in order, for some shapes or values."""
        others = (i for i, v in enumerate(node.inputs) if i and v is not None)
        return (
            node.place is Placement.DEVICE
            and len(node.outputs) == 1
            and node.operator.views is not None
            and node.skip_mode is not SkipMode.NEVER
            and node not in self._taken
            and all(i in node.operator.declared for i in others)
        )

    def hidden(self, value: int, parts: Iterable[ProgramNode]) -> bool:
        """Whether only *parts* read *value*."""
        readers = {self._graph.nodes[r] for r in self._graph.values[value].readers}
        return value not in self._outputs and readers <= set(parts)

    def constant(self, value: int | None) -> Array | None:
        """Return the value, if it is the same in every request."""
        return None if value is None else self._graph.values[value].constant

    def dtype(self, value: int) -> DataType | None:
        """Return the value's dtype."""
        return self._graph.values[value].layout.dtype

    def shape(self, value: int) -> tuple[Any, ...] | None:
        """Return what is known of the value's shape; dims may be symbolic."""
        return self._graph.values[value].layout.shape


def fused_node(group: FusionGroup, smaller: Mapping[ProgramNode, ProgramNode] = {}) -> ProgramNode:
    """Return the node that stands for *group*. Its number must be set when the graph's order is final.

    Args:
        smaller: Nodes that stand for some of the parts, by part; their parts follow one another.
    """
    parts = tuple(sorted(group.parts, key=lambda n: n.id))
    made = {part.outputs[0]: number for number, part in enumerate(parts)}
    inputs: list[int | None] = list(group.first)
    for part in parts:
        inputs += [v for v in part.uses if v not in made and v not in inputs]
    wiring = tuple(
        tuple(None if v is None else ~made[v] if v in made else inputs.index(v) for v in part.inputs) for part in parts
    )
    last = parts[-1]
    operator = group.build([p.operator for p in parts], wiring, [p.attributes for p in parts])
    attributes = Attributes({**group.attributes, "wiring": wiring}, last.attributes.opset)
    return ProgramNode(
        last.id, last.name, operator, attributes, tuple(inputs), last.outputs, last.output_types, last.place,
        chunk=last.chunk, parts=parts, build=group.build, apart=tuple(dict.fromkeys(smaller.get(p, p) for p in parts)),
        guards=last.guards,  # those of the others are among them: all that they make is for the last
    )  # fmt: skip
