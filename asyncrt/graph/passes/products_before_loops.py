"""Which products in a Loop's body can be one product before it?

A recurrent layer written as a Loop multiplies the element of a sequence whose turn it is by weights. Those products do
not depend on each other: all of them as one, before the loop, read the weights once, and the body takes its element of
the result. Each element is the same sum as before, since a product's sums do not depend on how many rows it has.

Only what is counted out is multiplied before: an index that goes up by one in each iteration takes no element twice, so
there is no more to do unless the loop ends early. What an index may point at again, such as a row of a table of words,
stays where it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import attrs

from asyncrt.dims import Dim
from asyncrt.graph.ir import Graph, ProgramNode, Subgraph, Value
from asyncrt.graph.subgraphs import note_captures
from asyncrt.kernels.call import Attributes
from asyncrt.layout import Array, PartialLayout

MOST_WIDER = 16
"""How many times as many elements as the sequence its product may have: all of it is there at once, and a product of
fewer columns than that hardly takes longer than its result takes to be read."""

_SAME = frozenset({"Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape"})


class _Product(NamedTuple):
    """A product of an element by weights.

    Attributes:
        node: The MatMul.
        element: The Gather of what it multiplies.
        sequence: What that is an element of, outside of the body.
    """

    node: ProgramNode
    element: ProgramNode
    sequence: int


def products_before_loops(graph: Graph) -> None:
    """Multiply such sequences before the loops that go through them."""
    before: dict[ProgramNode, list[ProgramNode]] = {}
    for node in graph.nodes:
        for sub in node.subgraphs:
            products_before_loops(sub.graph)
        if node.operator.name == "Loop" and node.subgraphs:
            (body,) = node.subgraphs
            products = [p for inner in body.graph.nodes if (p := _product(inner, body, graph)) is not None]
            if products:
                before[node] = [_multiply_before(node, body, graph, product) for product in products]
    if before:
        graph.keep(kept for node in graph.nodes for kept in (*before.get(node, ()), node))


def _product(node: ProgramNode, body: Subgraph, outside: Graph) -> _Product | None:
    """Return the product of an element whose turn it is, if a node of *body* is one."""
    if node.operator.name != "MatMul" or node.operator.domain:
        return None
    given, weights = (_value(v, body.graph) for v in node.inputs)
    if weights.constant is None or weights.constant.ndim != 2 or given.producer is None:
        return None
    element = body.graph.nodes[given.producer]
    if element.operator.name != "Gather" or element.operator.domain:
        return None
    source, index = (_value(v, body.graph) for v in element.inputs)
    if source.id not in body.captured or source.constant is not None or not _is_counted(index, body):
        return None
    sequence = body.captured[source.id]
    shape = outside.values[sequence].layout.shape
    depth, width = weights.constant.shape
    # Where a request might find that they do not fit, the loop might not have gone round at all.
    if shape is None or len(shape) < 2 or isinstance(shape[-1], Dim) or shape[-1] != depth:
        return None
    if element.attributes.get("axis", 0) % len(shape) == len(shape) - 1 or width > MOST_WIDER * depth:
        return None
    return _Product(node, element, sequence)


def _is_counted(index: Value, body: Subgraph) -> bool:
    """Whether an index is one number that goes up by one in each iteration."""
    graph, shape = body.graph, index.layout.shape
    if shape is None or any(isinstance(d, Dim) or d != 1 for d in shape):
        return False
    while index.producer is not None and graph.nodes[index.producer].operator.name in _SAME:
        index = _value(graph.nodes[index.producer].inputs[0], graph)
    formals = graph.inputs[: body.formals]
    if index.id not in formals:
        return False
    place = formals.index(index.id)
    if place < 2:
        return place == 0  # the number of the iteration; the other is its condition
    made = graph.values[graph.outputs[place - 1]]
    if made.producer is None or graph.nodes[made.producer].operator.name != "Add":
        return False
    terms = [_value(v, graph) for v in graph.nodes[made.producer].inputs]
    return any(a is index and _is_one(b.constant) for a, b in (terms, terms[::-1]))


def _is_one(constant: Array | None) -> bool:
    return constant is not None and constant.size == 1 and bool(constant.item() == 1)


def _multiply_before(node: ProgramNode, body: Subgraph, outside: Graph, product: _Product) -> ProgramNode:
    """Let the body of a loop take an element of the product that is returned."""
    graph, (result,) = body.graph, product.node.outputs
    weights = _value(product.node.inputs[1], graph)
    shape = outside.values[product.sequence].layout.shape
    assert shape is not None
    assert weights.constant is not None
    layout = PartialLayout(graph.values[result].layout.dtype, (*shape[:-1], weights.constant.shape[1]))
    name = f"{node.name}/{product.node.name}"
    held = _add(outside, name, weights.layout, weights.constant)
    whole = _add(outside, name, layout)
    taken = _add(graph, name, layout)
    body.captured[taken] = whole
    graph.inputs = (*graph.inputs, taken)
    index = product.element.inputs[1]
    element = attrs.evolve(product.element, name=product.node.name, inputs=(taken, index), outputs=(result,))
    element.output_types, element.guards = product.node.output_types, product.node.guards
    graph.keep(element if inner is product.node else inner for inner in graph.nodes)
    graph.keep(n for n in graph.nodes if n is not product.element or _is_read(n.outputs, graph))
    if not _is_read((weights.id,), graph):
        weights.constant = weights.partial = None
    body.prune()
    note_captures(node)
    return attrs.evolve(
        product.node,
        name=name,
        attributes=Attributes({}, product.node.attributes.opset, 1),
        inputs=(product.sequence, held),
        outputs=(whole,),
        guards=node.guards,
    )


def _is_read(ids: Sequence[int], graph: Graph) -> bool:
    return any(graph.values[v].readers or v in graph.outputs for v in ids)


def _value(id: int | None, graph: Graph) -> Value:
    assert id is not None
    return graph.values[id]


def _add(graph: Graph, name: str, layout: PartialLayout, constant: Array | None = None) -> int:
    """Return a new value of a graph."""
    id = len(graph.values)
    graph.values.append(Value(id, graph.fresh(f"{name}.{id}"), layout, constant=constant))
    return id
