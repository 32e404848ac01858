"""What becomes of a batch normalisation that is part of no product's weights?

Of constants it is a product and a sum for each channel (`fold_scales` says which). Written so, it is calculated where
such steps are: in the kernel of what it normalises, or of what follows it, together with activations and residuals.
"""

from __future__ import annotations

import numpy as np

from asyncrt.graph.ir import Graph, ProgramNode
from asyncrt.graph.replacement import Replacement
from asyncrt.layout import FLOAT32

from .fold_scales import constant_of, line_of


def write_out_normalizations(graph: Graph) -> None:
    """Replace each BatchNormalization of constants by a Mul and an Add. Changes *graph*, and those inside its nodes."""
    kept: list[ProgramNode] = []
    for node in graph.nodes:
        for sub in node.subgraphs:
            write_out_normalizations(sub.graph)
        kept += _steps(node, graph) or [node]
    if len(kept) > len(graph.nodes):
        graph.keep(kept)


def _steps(node: ProgramNode, graph: Graph) -> list[ProgramNode] | None:
    """Return what does the same as *node*; None if it is no such normalisation, or if a factor would be infinite."""
    if (node.operator.domain, node.operator.name) != ("", "BatchNormalization") or len(node.outputs) != 1:
        return None
    source, *others = node.inputs
    if source is None or node.attributes.get("training_mode", 0):
        return None
    constants = [constant_of(node, 1 + i, graph) for i in range(len(others))]
    dtype, shape = graph.values[source].layout
    if dtype is not FLOAT32 or shape is None or len(shape) < 2 or not isinstance(shape[1], int):
        return None
    if any(c is None or c.dtype != np.float32 or c.shape != (shape[1],) for c in constants):
        return None
    line = line_of(node, [c.astype(np.float64) for c in constants if c is not None])
    with np.errstate(over="ignore"):
        numbers = [x.astype(np.float32).reshape(-1, *(1,) * (len(shape) - 2)) for x in line]
    if not all(np.isfinite(n).all() for n in numbers):
        return None
    make = Replacement(node, graph)
    factor, term = map(make.constant, numbers)
    return make.end("Add", (make.add("Mul", (source, factor), shape), term))
