"""Which nodes are carried out as one, where the shapes of a request allow it?

Runs when everything else is decided. The nodes stay, and a node that stands for them is put beside them: a request that
cannot use it has them at hand. The parts of a group are moved together, to where the last of them is.
"""

from __future__ import annotations

from asyncrt.graph.fusions import PATTERNS
from asyncrt.graph.fusions.base import Surroundings, fused_node
from asyncrt.graph.node import ProgramNode
from asyncrt.graph.onnx import Graph


def fuse(graph: Graph) -> None:
    """Find groups, latest first, so that each is as large as can be; note them in `Graph.fused`."""
    taken: set[ProgramNode] = set()
    around = Surroundings(graph, taken)
    found: list[ProgramNode] = []
    for pattern in PATTERNS:
        for node in reversed(graph.nodes):
            group = pattern.find(node, around) if around.free(node) else None
            if group is not None:
                whole = fused_node(group)
                found.append(whole)
                taken.update(whole.parts)
    moved = {whole.parts[-1]: whole.parts for whole in found}
    graph.keep(n for node in graph.nodes if node in moved or node not in taken for n in moved.get(node, (node,)))
    for whole in found:
        whole.id = whole.parts[-1].id
    graph.fused = sorted(found, key=lambda whole: whole.id)
