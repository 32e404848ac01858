"""Cut the graph where the host must read what the device computed.

A chunk is the nodes whose shapes can all be inferred before any of them runs. The next chunk begins where a shape, or a
node on the host, needs the *value* of something that a kernel of an earlier chunk makes. Most models are one chunk.
A node with subgraphs is a chunk of its own, and what takes its outputs, whose shapes only it can tell, comes later.
"""

from __future__ import annotations

from asyncrt.graph.ir import Graph, Placement
from asyncrt.options import RuntimeOptions


def cut_chunks(graph: Graph, options: RuntimeOptions) -> None:
    """Number the nodes' chunks and put the nodes in chunk order; the order inside a chunk stays."""
    on_host = {v.id for v in graph.values if v.constant is not None} | set(graph.inputs)
    level_of = {v.id: 0 for v in graph.values}
    late: set[int] = set()  # made by nodes with subgraphs
    #: By node: the level, and within it first what is planned together, then one node with subgraphs after the other.
    places: list[tuple[int, int]] = []
    for node in graph.nodes:
        level = max((level_of[v] + (v in late) for v in (*node.conditions, *node.uses)), default=0)
        for v in node.host_reads:
            if v not in on_host:
                level = max(level, level_of[v] + 1)
        places.append((level, 1 + node.id if node.subgraphs else 0))
        for output in node.outputs:
            level_of[output] = level
            if node.place is Placement.HOST:
                on_host.add(output)
        if node.subgraphs:
            late.update(node.outputs)
    numbers = {place: number for number, place in enumerate(sorted(set(places)))}
    for node, place in zip(graph.nodes, places, strict=True):
        node.chunk = numbers[place]
    graph.keep(sorted(graph.nodes, key=lambda n: n.chunk))  # stable
