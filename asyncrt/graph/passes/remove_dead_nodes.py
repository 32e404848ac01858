"""Leave out the nodes that no output needs: those that became constants, and those nobody reads."""

from __future__ import annotations

from asyncrt.options import RuntimeOptions

from ..onnx import Graph


def remove_dead_nodes(graph: Graph, options: RuntimeOptions) -> None:
    """Keep only the nodes that lead to an output; renumber readers."""
    wanted = set(graph.outputs)
    kept = []
    for node in reversed(graph.nodes):
        constant = all(graph.values[o].constant is not None for o in node.outputs)
        if not constant and any(o in wanted for o in node.outputs):
            kept.append(node)
            wanted.update(v for v in node.inputs if v is not None and graph.values[v].constant is None)
    kept.reverse()
    for value in graph.values:
        value.readers = ()
        value.producer = None
    for number, node in enumerate(kept):
        node.id = number
        for output in node.outputs:
            graph.values[output].producer = number
        for v in {i for i in node.inputs if i is not None}:
            graph.values[v].readers += (number,)
    graph.nodes = kept
