"""Give products and convolutions other weights than the model has, so that every kernel multiplies with the same ones.

Weights are what a product or a convolution multiplies with and adds to its sums, where those are constants of float32.
Other readers of such a constant keep it as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs

from asyncrt.graph.ir import Graph, ProgramNode, Value
from asyncrt.layout import FLOAT32, Array


def exchange_weights(
    graph: Graph, places: Mapping[str, Sequence[int]], other: Callable[[Array], Array | None], suffix: str
) -> None:
    """Give nodes other constants. Changes *graph*, and those inside its nodes.

    Args:
        places: Of the operators, which inputs are weights.
        other: Returns what takes a constant's place; None if it stays.
        suffix: Of the names of those that come instead.
    """
    made: dict[int, int] = {}
    nodes: list[ProgramNode] = []
    for node in graph.nodes:
        for sub in node.subgraphs:
            exchange_weights(sub.graph, places, other, suffix)
        weights = () if node.operator.domain else places.get(node.operator.name, ())
        inputs = list(node.inputs)
        for place in weights:
            id = inputs[place] if place < len(inputs) else None
            if id is not None and graph.values[id].constant is not None and graph.values[id].layout.dtype is FLOAT32:
                if id not in made:
                    made[id] = _exchanged(id, graph, other, suffix)
                inputs[place] = made[id]
        nodes.append(attrs.evolve(node, inputs=tuple(inputs)) if inputs != list(node.inputs) else node)
    if all(instead == id for id, instead in made.items()):
        return
    graph.keep(nodes)
    for value in (graph.values[id] for id, instead in made.items() if instead != id):
        if not value.readers and value.id not in graph.outputs:
            value.constant = value.partial = None  # the other one stands for it


def _exchanged(id: int, graph: Graph, other: Callable[[Array], Array | None], suffix: str) -> int:
    """Add to the graph what takes the place of constant *id*, if anything does; returns the id of what is there."""
    value = graph.values[id]
    assert value.constant is not None
    instead = other(value.constant)
    if instead is None:
        return id
    made = Value(len(graph.values), graph.fresh(f"{value.name}.{suffix}"), value.layout, constant=instead)
    graph.values.append(made)
    return made.id
