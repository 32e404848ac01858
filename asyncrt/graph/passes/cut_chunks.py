"""Cut the graph where the host must read what the device computed.

A chunk is the nodes whose shapes can all be inferred before any of them runs. The next chunk begins where a shape, or a
node on the host, needs the *value* of something that a kernel of an earlier chunk makes. Most models are one chunk.
"""

from __future__ import annotations

from asyncrt.graph.node import Place
from asyncrt.graph.onnx import Graph
from asyncrt.options import RuntimeOptions


def cut_chunks(graph: Graph, options: RuntimeOptions) -> None:
    """Number the nodes' chunks and put the nodes in chunk order; the order inside a chunk stays."""
    on_host = {v.id for v in graph.values if v.constant is not None} | set(graph.inputs)
    chunk_of = {v.id: 0 for v in graph.values}
    for node in graph.nodes:
        level = max((chunk_of[v] for v in node.uses), default=0)
        for v in node.host_reads:
            if v not in on_host:
                level = max(level, chunk_of[v] + 1)
        node.chunk = level
        for output in node.outputs:
            chunk_of[output] = level
            if node.place is Place.HOST:
                on_host.add(output)
    graph.keep(sorted(graph.nodes, key=lambda n: n.chunk))  # stable
