"""With `precision="bf16"`: round the weights of products and convolutions to bfloat16.

Weights are the right-hand matrix of a product and the filter of a convolution. Rounding them here, once, makes
bf16 a property of the model: every kernel, for every shape and on every device, multiplies with the same numbers. Other
readers of such a constant keep it as it is.
"""

from __future__ import annotations

import attrs

from asyncrt.graph.ir import Graph, ProgramNode, Value
from asyncrt.kernels.matmul.bf16_weights import rounded
from asyncrt.layout import FLOAT32

_WEIGHTS = {"MatMul": 1, "Gemm": 1, "Conv": 1, "ConvTranspose": 1}


def round_weights(graph: Graph) -> None:
    """Give products and convolutions weights that bfloat16 has. Changes *graph*, and those inside its nodes."""
    made: dict[int, int] = {}
    nodes: list[ProgramNode] = []
    for node in graph.nodes:
        for sub in node.subgraphs:
            round_weights(sub.graph)
        position = _WEIGHTS.get(node.operator.name) if not node.operator.domain else None
        id = None if position is None else node.inputs[position]
        if id is not None and graph.values[id].constant is not None and graph.values[id].layout.dtype is FLOAT32:
            if id not in made:
                made[id] = _rounded(id, graph)
            inputs = tuple(made[id] if p == position else v for p, v in enumerate(node.inputs))
            node = attrs.evolve(node, inputs=inputs)
        nodes.append(node)
    if not made:
        return
    graph.keep(nodes)
    for value in (graph.values[v] for v in made):
        if not value.readers and value.id not in graph.outputs:
            value.constant = value.partial = None  # the rounded one stands for it


def _rounded(id: int, graph: Graph) -> int:
    """Add constant *id* to the graph once more, rounded."""
    value = graph.values[id]
    assert value.constant is not None
    made = Value(len(graph.values), graph.fresh(f"{value.name}.bf16"), value.layout, constant=rounded(value.constant))
    graph.values.append(made)
    return made.id
