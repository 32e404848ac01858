"""What a quantised model calculates in floats between integers, as integers: products, moves, and tables."""

from __future__ import annotations

from asyncrt.graph.ir import Graph

from .moves import byte_moves
from .products import quantized_products
from .tables import byte_tables

__all__ = ["quantized_products", "quantized_steps"]


def quantized_steps(graph: Graph) -> None:
    """Keep as integers what lies between quantised values. Changes *graph*, and those inside its nodes."""
    byte_moves(graph)
    byte_tables(graph)
