"""What a quantised model calculates in floats between integers, as integers: products, moves, and tables."""

from __future__ import annotations

from collections.abc import Callable

from asyncrt.graph.ir import Graph, ProgramNode

from .moves import byte_move
from .products import quantized_products
from .tables import byte_table

__all__ = ["quantized_products", "quantized_steps"]


def quantized_steps(graph: Graph) -> None:
    """Keep as integers what lies between quantised values. Changes *graph*, and those inside its nodes."""
    for find in (byte_move, byte_table):
        _replace(graph, find)


def _replace(graph: Graph, find: Callable[[ProgramNode, Graph], ProgramNode | None]) -> None:
    """Put what *find* returns for a node in its place, if that is one; the nodes before it stay."""
    changed = False
    for number, node in enumerate(graph.nodes):
        for sub in node.subgraphs:
            _replace(sub.graph, find)
        made = find(node, graph)
        if made is not None:
            graph.nodes[number], changed = made, True
    if changed:
        graph.keep(graph.nodes)
