"""Cut the graph where the host must read what the device computed.

A chunk is the nodes whose shapes can all be inferred before any of them runs. The next chunk begins where a shape, or a
node on the host, needs the *value* of something that a kernel of an earlier chunk makes. Most models are one chunk.
"""

from __future__ import annotations

from asyncrt.options import RuntimeOptions

from ..node import Place
from ..onnx import Graph


def cut_chunks(graph: Graph, options: RuntimeOptions) -> None:
    """Number the nodes' chunks and put the nodes in chunk order; the order inside a chunk stays."""
    on_host = {v.id for v in graph.values if v.constant is not None} | set(graph.inputs)
    chunk_of = {v.id: 0 for v in graph.values}
    for node in graph.nodes:
        host = node.place is Place.HOST
        if node.operator.evaluate is not None:
            read: tuple[int, ...] = ()
        else:
            read = tuple(v for v in node.inputs if v is not None) if host else node.get_shape_infer_dependencies()
        level = max((chunk_of[v] for v in node.inputs if v is not None), default=0)
        for v in read:
            if v not in on_host:
                level = max(level, chunk_of[v] + 1)
        node.chunk = level
        for output in node.outputs:
            chunk_of[output] = level
            if host:
                on_host.add(output)
    order = sorted(graph.nodes, key=lambda n: n.chunk)  # stable
    for number, node in enumerate(order):
        node.id = number
    for value in graph.values:
        value.readers = ()
    for node in order:
        for output in node.outputs:
            graph.values[output].producer = node.id
        for v in {i for i in node.inputs if i is not None}:
            graph.values[v].readers += (node.id,)
    graph.nodes = order
