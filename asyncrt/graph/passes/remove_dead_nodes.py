"""Leave out the nodes that no output needs: those that became constants, and those nobody reads."""

from __future__ import annotations

from asyncrt.graph.ir import Graph
from asyncrt.graph.subgraphs import note_captures
from asyncrt.options import RuntimeOptions


def remove_dead_nodes(graph: Graph, options: RuntimeOptions) -> None:
    """Keep only the nodes that lead to an output, and of the constants only those that are still read."""
    wanted = set(graph.outputs)
    kept = []
    for node in reversed(graph.nodes):
        constant = all(graph.values[o].constant is not None for o in node.outputs)
        if not constant and any(o in wanted for o in node.outputs):
            kept.append(node)
            for sub in node.subgraphs:
                remove_dead_nodes(sub.graph, options)
                sub.prune()
            note_captures(node)
            wanted.update((*node.conditions, *node.uses))
    kept.reverse()
    graph.keep(kept)
    for value in graph.values:
        if value.id not in wanted:
            value.constant = value.partial = None  # a weight that was folded into another need not be kept
