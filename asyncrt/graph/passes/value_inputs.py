"""Of which inputs of a request the contents, not only the shapes, decide something: shapes or skips.

Their contents are part of what plans are kept by. An input that only a skip could use is among them if comparing it in
every request is cheap and it is of few kinds: a vector of integers, such as the indices of a beam search.
"""

from __future__ import annotations

from asyncrt.graph.node import Place, Value
from asyncrt.graph.onnx import Graph


def value_inputs(graph: Graph) -> tuple[int, ...]:
    """Return the ids of these inputs, in the model's order. Places must be known."""
    used = {v for node in graph.nodes for v in node.host_reads}
    for node in graph.nodes:
        if node.place is Place.DEVICE and node.operator.compares_hints:
            used |= {v for v in node.get_value_hints() if _worth_comparing(graph.values[v])}
    return tuple(i for i in graph.inputs if i in used)


def host_values(graph: Graph) -> set[int]:
    """Return the ids of all values that planning may know: the host's own, and what it reads from the device."""
    known = {v.id for v in graph.values if v.constant is not None} | set(value_inputs(graph))
    for node in graph.nodes:
        known.update(node.host_reads)
        if node.place is Place.HOST:
            known.update(node.outputs)
    return known


def _worth_comparing(value: Value) -> bool:
    dtype, shape = value.layout
    return dtype is not None and dtype.numpy.kind in "iub" and shape is not None and len(shape) <= 1
