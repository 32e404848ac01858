"""How long each value's bytes are needed: until its last reader, the next chunk, or the end.

Skips need no special case here: a skipped node's output is an alias, and while a request is planned an alias extends
the life of the tensor it stands for.
"""

from __future__ import annotations

from asyncrt.graph.ir import FOREVER, Graph


def memory_dependencies(graph: Graph) -> tuple[int, ...]:
    """Return for each value the id of the last node that may read it, or `FOREVER` if it outlives its chunk."""
    last: list[int] = []
    outputs = set(graph.outputs)
    for value in graph.values:
        chunks = {graph.nodes[r].chunk for r in value.readers}
        own = graph.nodes[value.producer].chunk if value.producer is not None else 0
        if value.id in outputs or any(c != own for c in chunks):
            last.append(FOREVER)
        else:
            last.append(max(value.readers, default=-1))
    return tuple(last)
