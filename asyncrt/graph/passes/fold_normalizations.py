"""Batch normalisations of a convolution's result become part of its filter and bias.

``BatchNormalization(Conv(x))`` is a factor and a term for each output channel, both constants: the factor goes into the
filter, the term into the bias. Results differ by the rounding of one more product. float16 is left alone: its
filters would be rounded a second time.
"""

from __future__ import annotations

import attrs
import numpy as np

from asyncrt.graph.ir import Graph, ProgramNode, Value
from asyncrt.layout import FLOAT32, FLOAT64, Array, PartialLayout, dtype_of


def fold_normalizations(graph: Graph) -> None:
    """Replace each such pair of nodes by one convolution."""
    replaced: dict[ProgramNode, ProgramNode | None] = {}
    for node in graph.nodes:
        convolution = _convolution_of(node, graph)
        folded = None if convolution is None else _folded(convolution, node, graph)
        if convolution is not None and folded is not None:
            replaced |= {convolution: folded, node: None}
        for sub in node.subgraphs:
            fold_normalizations(sub.graph)
    if not replaced:
        return
    kept = [replaced.get(node, node) for node in graph.nodes]
    graph.keep(node for node in kept if node is not None)
    for node in replaced:
        for value in (graph.values[v] for v in node.uses):
            if not value.readers and value.id not in graph.outputs:
                value.constant = value.partial = None  # the folded one stands for it


def _convolution_of(node: ProgramNode, graph: Graph) -> ProgramNode | None:
    """Return the convolution whose result *node* normalises and no other node reads."""
    if node.operator.name != "BatchNormalization" or node.operator.domain or len(node.outputs) != 1:
        return None
    value = graph.values[node.uses[0]]
    if value.producer is None or len(value.readers) != 1 or value.id in graph.outputs:
        return None
    convolution = graph.nodes[value.producer]
    return convolution if convolution.operator.name == "Conv" and not convolution.operator.domain else None


def _folded(convolution: ProgramNode, normalization: ProgramNode, graph: Graph) -> ProgramNode | None:
    """Return the convolution that does both, or None if an input is no finite constant of their dtype."""
    ids = [*convolution.inputs[1:], *normalization.inputs[1:]]
    given = [graph.values[v].constant for v in ids if v is not None]
    constants = [c for c in given if c is not None]
    dtype = dtype_of(constants[0].dtype) if constants else None
    if len(constants) < len(given) or dtype not in (FLOAT32, FLOAT64) or {c.dtype for c in constants} != {dtype.numpy}:
        return None
    filters, *bias = constants[:-4]
    scale, shift, mean, variance = (c.astype(np.float64) for c in constants[-4:])
    channels = filters.shape[0]
    if any(c.shape != (channels,) for c in (scale, shift, mean, variance, *bias)):
        return None  # a request reports what is wrong with it
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + normalization.attributes.get("epsilon", 1e-5))
        before = bias[0].astype(np.float64) if bias else np.zeros(channels)
        folded = (filters * factor.reshape(-1, *(1,) * (filters.ndim - 1))).astype(filters.dtype)
        term = ((before - mean) * factor + shift).astype(filters.dtype)
    if not (np.isfinite(folded).all() and np.isfinite(term).all()):
        return None
    inputs = (
        convolution.inputs[0],
        _constant(folded, f"{convolution.name}.filter", graph),
        _constant(term, f"{convolution.name}.bias", graph),
    )
    return attrs.evolve(convolution, inputs=inputs, outputs=normalization.outputs)


def _constant(array: Array, name: str, graph: Graph) -> int:
    """Add a constant to the graph."""
    id = len(graph.values)
    layout = PartialLayout(dtype_of(array.dtype), array.shape)
    graph.values.append(Value(id, graph.fresh(name), layout, constant=array))
    return id
