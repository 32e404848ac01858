"""On CPUs: calculate in float32 what a model with products or convolutions has in float16 or bfloat16.

Processors multiply float32, and kernels for them are written for it: those of 16 bits take twenty to a hundred times
as long. So inside of such a model these dtypes are float32; inputs are cast as they come, and outputs as they leave:
callers see no difference but in the last bits, which are those of float32. OpenVINO does the same on CPUs.

A model whose nodes see bits, or values of other kinds that hold such numbers, stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np

from asyncrt.graph.ir import Graph, ProgramNode, Value
from asyncrt.kernels.call import Attributes
from asyncrt.kernels.registry import find_operator
from asyncrt.kinds import is_plain
from asyncrt.layout import BFLOAT16, FLOAT16, FLOAT32, DataType

_NARROW = (FLOAT16, BFLOAT16)
_GAIN = frozenset({"Attention", "Conv", "ConvTranspose", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN"})
_SEES_BITS = frozenset({"BitCast"})
_SAY_DTYPE = frozenset(
    {"to", "dtype", "output_dtype", "output_datatype", "precision", "softmax_precision", "stash_type"}
)
"""Attributes that say a dtype by its number."""
_OPSET = 21  # of the casts


def widen_floats(graph: Graph) -> None:
    """Let a model's narrow floats be float32, if that gains anything. Changes *graph*, and those inside its nodes."""
    graphs = list(_all(graph))
    if not _may_widen(graphs):
        return
    ends = {id: graph.values[id].layout.dtype for id in (*graph.inputs, *graph.outputs)}
    for each in reversed(graphs):  # those inside first: what a node holds is remembered as it is then
        _widen(each)
    beside = {id: _beside(graph, id, dtype) for id, dtype in ends.items() if dtype in _NARROW}
    first = [_cast(beside[id], graph.values[id]) for id in graph.inputs if id in beside]
    last = [_cast(graph.values[id], narrow) for id, narrow in beside.items() if id not in graph.inputs]
    graph.inputs, graph.outputs = (
        tuple([beside[id].id if id in beside else id for id in ids]) for ids in (graph.inputs, graph.outputs)
    )
    graph.keep([*first, *graph.nodes, *last])


def _all(graph: Graph) -> Iterator[Graph]:
    yield graph
    for node in graph.nodes:
        for sub in node.subgraphs:
            yield from _all(sub.graph)


def _may_widen(graphs: list[Graph]) -> bool:
    """Whether a model has nodes that gain by it, and none that would see the difference."""
    found = [(node, _types(node, each)) for each in graphs for node in each.nodes]
    narrow = [node for node, types in found if any(dtype in _NARROW for dtype in types)]
    if any(node.operator.domain or node.operator.by_evaluator or node.operator.name in _SEES_BITS for node in narrow):
        return False
    plain = all(is_plain(dtype) for _, types in found for dtype in types)
    return plain and any(node.operator.name in _GAIN for node in narrow)


def _types(node: ProgramNode, graph: Graph) -> list[DataType | None]:
    return [*(graph.values[v].layout.dtype for v in node.uses), *node.output_types]


def _wide(dtype: Any) -> Any:
    return FLOAT32 if dtype in _NARROW else dtype


def _widen(graph: Graph) -> None:
    """Let everything in a graph that is narrow be float32."""
    for value in graph.values:
        value.layout = value.layout._replace(dtype=_wide(value.layout.dtype))
        if value.constant is not None and _is_narrow(value.constant):
            value.constant = value.constant.astype(np.float32)
    nodes = []
    for node in graph.nodes:
        attributes = {name: _wide_attribute(name, value) for name, value in node.attributes.items()}
        nodes.append(
            attrs.evolve(
                node,
                attributes=Attributes(attributes, node.attributes.opset, node.attributes.outputs),
                output_types=tuple(_wide(t) for t in node.output_types),
            )
        )
        for sub in node.subgraphs:
            sub.remember()
    graph.keep(nodes)


def _is_narrow(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype in [dtype.numpy for dtype in _NARROW]


def _wide_attribute(name: str, value: Any) -> Any:
    if name in _SAY_DTYPE and value in [dtype.onnx for dtype in _NARROW]:
        return FLOAT32.onnx
    return value.astype(np.float32) if _is_narrow(value) else value


def _beside(graph: Graph, id: int, dtype: DataType | None) -> Value:
    """Add what callers give or get of *dtype* in the place of a value, by its name."""
    wide = graph.values[id]
    narrow = Value(len(graph.values), wide.name, wide.layout._replace(dtype=dtype))
    graph.values.append(narrow)
    wide.name = graph.fresh(f"{wide.name}.wide")
    return narrow


def _cast(source: Value, target: Value) -> ProgramNode:
    operator, dtype = find_operator("", "Cast"), target.layout.dtype
    assert operator is not None
    assert dtype is not None
    attributes = Attributes({"to": dtype.onnx, "saturate": 1}, _OPSET)
    return ProgramNode(0, f"{target.name}/Cast", operator, attributes, (source.id,), (target.id,), (dtype,))
