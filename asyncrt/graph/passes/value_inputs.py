"""Which inputs of a request decide shapes or skips by their contents, not only by their shapes?

Their contents are part of the key of a plan. An input that only a skip could use is among them if comparing it in every
request is cheap and it takes few values: a vector of integers, such as the indices of a beam search. What counts the
iterations of a loop takes too many.
"""

from __future__ import annotations

from collections.abc import Iterable

from asyncrt.graph.ir import Graph, Placement, Value


def decisive_values(graph: Graph, arriving: Iterable[int]) -> set[int]:
    """Return the ids of the values whose contents decide something, hints only if they are among *arriving*.

    Args:
        arriving: Values that the host has without reading them: inputs, and what nodes with subgraphs make.
    """
    planned = [node for node in graph.nodes if not node.subgraphs]
    found = {v for node in planned for v in node.host_reads}
    hinted = [n for n in planned if n.place is Placement.DEVICE and n.operator.compares_hints]
    hints = {v for node in hinted for v in node.get_value_hints() if _worth_comparing(graph.values[v])}
    return found | ((hints & set(arriving)) - graph.varying)


def value_inputs(graph: Graph) -> tuple[int, ...]:
    """Return the ids of the inputs whose contents decide something, in the model's order. Placements must be known."""
    decisive = decisive_values(graph, graph.inputs)
    return tuple(i for i in graph.inputs if i in decisive)


def host_values(graph: Graph) -> set[int]:
    """Return the ids of all values that planning may know: those of the host, and those read from the device."""
    known = {v.id for v in graph.values if v.constant is not None} | set(value_inputs(graph))
    for node in graph.nodes:
        known.update(node.host_reads)
        if node.place is Placement.HOST:
            known.update(node.outputs)
    return known


def _worth_comparing(value: Value) -> bool:
    dtype, shape = value.layout
    return dtype is not None and dtype.numpy.kind in "iub" and shape is not None and len(shape) <= 1
