"""An If whose condition the host knows when it plans: the nodes of both branches, under guards, and what joins them.

Such an If needs no chunk of its own. Its condition is calculated while a request is planned, like a shape; then one
branch's nodes are planned as if they were the model's own, and those of the other are left out. What the If makes is
what the branch made that was taken: no copy, and no kernel. The decision is part of the plan, and so is what it
depends on part of the plan's signature.

Conditions of floats that a request brings are left to the network: each of their values would have a plan of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

import attrs

from asyncrt.errors import ShapeError
from asyncrt.kernels.call import Attributes, Call, ValueUnknown
from asyncrt.kernels.impl import Impl
from asyncrt.kernels.operator import Operator, ViewOf
from asyncrt.kernels.patterns.copy import materialise
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, PartialLayout, Shape, show_shape
from asyncrt.memory.view import View

from .ir import Graph, Guard, ProgramNode, Value
from .subgraphs import CONTROL_FLOW, common_shape, spliced

_FEW = 16  # elements of an input: each of their contents has a plan of its own


def element_of(name: str, what: str, array: Array | None) -> bool | int:
    """Return the one element of a value that decides what a node does.

    Raises:
        ShapeError: It has none, or several.
    """
    if array is None or array.size != 1:
        got = "none" if array is None else show_shape(array.shape)
        raise ShapeError(f"'{name}': {what} is one element, got {got}")
    element: bool | int = array.item()
    return element


def holds(condition: Array | None, name: str) -> bool:
    """Return whether the condition of the If of that name holds."""
    return bool(element_of(name, "its condition", condition))


def takes(guards: Sequence[Guard], value: Callable[[int], Array | None]) -> bool:
    """Whether a request takes the branches that a node is in.

    Args:
        value: Returns a value of the request by its id; those of inner conditions are there if outer ones hold.
    """
    return all(holds(value(g.condition), g.node) is g.wanted for g in guards)


# What joins two branches: a node of three inputs, what either branch makes and the condition.


def _taken(call: Call) -> int:
    condition = call.value(2)
    if condition is None:
        raise ValueUnknown(f"'{call.name}': a request decides which branch it takes")
    return 0 if holds(condition, call.name) else 1


def _infer(call: Call) -> tuple[Shape]:
    return (call.shape(_taken(call)),)


def _reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    made = inputs[0 if holds(inputs[2], "If") else 1]
    assert made is not None
    return (made.copy(),)


def _views(call: Call) -> tuple[ViewOf]:
    return (ViewOf(_taken(call), View.dense(call.outputs[0].shape)),)


def _implement(call: Call, traits: DeviceTraits) -> Impl:
    return materialise(call, _views(call), traits)


JOIN = Operator(
    name="If",
    infer=_infer,
    reference=_reference,
    implement=_implement,
    views=_views,
    why="a branch made it",
    shape_infer_dependencies=(2,),
)
"""What an If gives once its branch is known."""


def how_joined(source: int) -> str:
    """Return what a join does whose result is that input of it."""
    return f"the {'else' if source else 'then'} branch"


# While layouts are inferred.


def decidable(node: ProgramNode, known: Container[int]) -> bool:
    """Whether a node is an If whose condition the host knows when it plans.

    Args:
        known: Ids of values that the host has then.
    """
    condition = node.inputs[0] if node.operator is CONTROL_FLOW["If"] else None
    return condition is not None and condition in known


def comparable(graph: Graph) -> set[int]:
    """Return the ids of those inputs and constants whose contents are worth a plan each."""
    return {i for i in graph.inputs if _few_integers(graph.values[i])}


def _few_integers(value: Value) -> bool:
    dtype, shape = value.layout
    if dtype is None or dtype.numpy.kind not in "iub" or shape is None:
        return False
    count = 1
    for dim in shape:
        if not isinstance(dim, int):
            return False
        count *= dim
    return count <= _FEW


def inlined(node: ProgramNode, graph: Graph) -> list[ProgramNode]:
    """Return the nodes of both branches and what joins them, to stand for an If; their values are added to *graph*."""
    condition = node.inputs[0]
    assert condition is not None
    nodes: list[ProgramNode] = []
    made: list[list[int]] = []
    for branch, wanted in zip(node.subgraphs, (True, False), strict=True):
        outputs: list[int] = []
        for output, dtype in zip(node.outputs, node.output_types, strict=True):
            name = graph.fresh(f"{graph.values[output].name}/{branch.label}")
            outputs.append(len(graph.values))
            graph.values.append(Value(outputs[-1], name, PartialLayout(dtype, None)))
        guards = (*node.guards, Guard(condition, wanted, node.name))
        nodes += spliced(attrs.evolve(node, outputs=tuple(outputs), guards=guards), branch, graph)
        made.append(outputs)
    attributes = Attributes({}, node.attributes.opset, 1)
    for number, (then, other, output) in enumerate(zip(*made, node.outputs, strict=True)):
        name = f"{node.name}/{number}" if number else node.name
        types, inputs = (node.output_types[number],), (then, other, condition)
        nodes.append(ProgramNode(0, name, JOIN, attributes, inputs, (output,), types, guards=node.guards))
    return nodes


def infer_join(node: ProgramNode, graph: Graph) -> None:
    """Set what is known of a join's output: that on which the branches agree."""
    then, other = (graph.values[v].layout.shape for v in node.inputs[:2] if v is not None)
    (output,) = node.outputs
    graph.values[output].layout = PartialLayout(node.output_types[0], common_shape(then, other, node, graph))
