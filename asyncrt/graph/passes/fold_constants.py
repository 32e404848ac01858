"""Evaluate what is the same in every request, and what is known of shape arithmetic before one.

A node whose inputs are all constants becomes a constant. A small integer node over dims that are still symbolic gets a
*partial* value, an array of dtype object, so that shapes computed from shapes are known as expressions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asyncrt.dims import Dim
from asyncrt.errors import AsyncrtError, ModelFormatError
from asyncrt.kernels.operator import Call, Operator
from asyncrt.layout import Array, Layout, PartialLayout
from asyncrt.options import RuntimeOptions

from ..node import ProgramNode
from ..onnx import Graph

_PARTIAL_ELEMENTS = 1024


def evaluate(operator: Operator, call: Call, inputs: Sequence[Array | None]) -> Sequence[Array]:
    """Return a node's outputs, computed on the host."""
    if operator.evaluate is not None:
        return operator.evaluate(call)
    return operator.reference(call.attributes, inputs)


def fold(node: ProgramNode, graph: Graph, call: Call | None, options: RuntimeOptions) -> None:
    """Give the node's outputs their constant or partial values, where they have any."""
    inputs = [None if v is None else graph.values[v] for v in node.inputs]
    if any(a for a in node.attributes.values() if hasattr(a, "node") and not isinstance(a, np.ndarray)):
        return  # its subgraphs may take values from outside
    if all(v is None or v.constant is not None for v in inputs):
        _fold_constant(node, graph, [None if v is None else v.constant for v in inputs], call, options)
        return
    by_layout = node.operator.evaluate is not None
    if call is None or not (by_layout or all(v is None or v.partial is not None for v in inputs)):
        return
    if any(t.numpy.kind not in "iub" for t in node.output_types):
        return
    try:
        results = evaluate(node.operator, call, [None if v is None else v.partial for v in inputs])
    except Exception:
        return  # it needs the actual sizes; NumPy's refusals of symbolic elements are of every class
    for output, result, dtype in zip(node.outputs, results, node.output_types, strict=False):
        _note(graph, output, np.asarray(result), dtype.numpy)


def _note(graph: Graph, id: int, result: Array, dtype: np.dtype[np.generic]) -> None:
    value = graph.values[id]
    if result.size > _PARTIAL_ELEMENTS:
        return
    elements = result.reshape(-1).tolist()
    if any(isinstance(e, Dim) for e in elements):
        value.partial = result
    elif all(isinstance(e, int | bool | np.integer) for e in elements):
        value.constant = value.partial = np.array(elements, dtype).reshape(result.shape)
        value.layout = PartialLayout(value.layout.dtype, result.shape)


def _fold_constant(
    node: ProgramNode, graph: Graph, inputs: list[Array | None], call: Call | None, options: RuntimeOptions
) -> None:
    if call is not None and call.outputs:
        nbytes = sum(o.nbytes for o in call.outputs if _static(o))
        if nbytes > max(options.max_folded_bytes, 2 * sum(a.nbytes for a in inputs if a is not None)):
            return  # a small expression for a large tensor is better made anew than kept
    if call is None:
        call = Call(node.name, node.attributes, (), ())
    try:
        results = evaluate(node.operator, call, inputs)
    except AsyncrtError:
        raise
    except Exception as error:
        raise ModelFormatError(f"'{node.name}': {node.operator.name} of constants cannot be evaluated: {error}") from error
    for output, result, dtype in zip(node.outputs, results, node.output_types, strict=False):
        array = np.ascontiguousarray(np.asarray(result, dtype.numpy)).reshape(np.shape(result))
        value = graph.values[output]
        value.constant = array
        value.layout = PartialLayout(dtype, array.shape)
        if array.size <= _PARTIAL_ELEMENTS and dtype.numpy.kind in "iub":
            value.partial = array


def _static(layout: Layout) -> bool:
    return not any(isinstance(d, Dim) for d in layout.shape)
