"""Where a model dequantises both operands of a product, which product of integers is that?

Models quantised with QuantizeLinear and DequantizeLinear say ``MatMul(DequantizeLinear(x), DequantizeLinear(w))``:
floats, which stand for integers times a scale. As the scales are the same along the summed axis, the integers are
multiplied and the sum is scaled. That sum is exact, and is rounded once where the float one is rounded at each step;
where the result is quantised again, it may fall one step from where it did.

Only with 8-bit integers, weights that are constants, one scale for x, and sums that 32 bits hold whatever x is.
"""

from __future__ import annotations

from typing import NamedTuple

import attrs
import numpy as np

from asyncrt.graph.node import ProgramNode, Value
from asyncrt.graph.onnx import Graph
from asyncrt.kernels.operator import Attributes
from asyncrt.kernels.ops.matmul_integer import SCALED
from asyncrt.kernels.registry import find_operator
from asyncrt.layout import FLOAT32, INT8, UINT8, Array, PartialLayout, dtype_of

_BYTES = (UINT8, INT8)
_LARGEST = 2**31 - 1


class _Levels(NamedTuple):
    """The inputs of a DequantizeLinear, and the axis that scales are for if there are several."""

    integers: int
    scale: int
    zero: int | None
    axis: int


def quantized_products(graph: Graph) -> None:
    """Replace such products by products of integers. Changes *graph*, and those inside its nodes."""
    replaced: dict[ProgramNode, list[ProgramNode]] = {}
    for node in graph.nodes:
        for sub in node.subgraphs:
            quantized_products(sub.graph)
        made = _of_integers(node, graph)
        if made is not None:
            replaced[node] = made
    if replaced:
        graph.keep(kept for node in graph.nodes for kept in replaced.get(node, [node]))


def _of_integers(node: ProgramNode, graph: Graph) -> list[ProgramNode] | None:
    """Return what *node* is as a product of integers; None if it is not one."""
    if node.operator.domain or node.operator.name not in ("MatMul", "Gemm"):
        return None
    a = node.attributes
    if node.operator.name == "Gemm" and (a.get("alpha", 1.0), a.get("beta", 1.0), a.get("transA", 0)) != (1.0, 1.0, 0):
        return None
    left, (right, turned) = _dequantized(node.inputs[0], graph), _weights(node.inputs[1], graph)
    if left is None or right is None or not _is_one(graph.values[left.scale]):
        return None
    weights, scale, zero = (_constant(v, graph) for v in (right.integers, right.scale, right.zero))
    if weights is None or scale is None or (zero is None and right.zero is not None) or weights.ndim != 2:
        return None
    axis = 1
    if turned != bool(a.get("transB", 0)):
        axis, weights = 0, np.ascontiguousarray(weights.T)
    per_column = scale.shape == weights.shape[1:] and right.axis % 2 == axis
    if not (_is_one(graph.values[right.scale]) or per_column) or not _fits(weights, zero):
        return None
    return _replacement(node, left, weights, scale, zero, graph)


def _replacement(
    node: ProgramNode, left: _Levels, weights: Array, scale: Array, zero: Array | None, graph: Graph
) -> list[ProgramNode]:
    right = [
        None if array is None else _add(graph, f"{node.name}.{name}", array)
        for name, array in (("weights", weights), ("scale", scale), ("zero", zero))
    ]
    inputs = (left.integers, right[0], left.scale, right[1], left.zero, right[2])
    attributes = Attributes({}, node.attributes.opset)
    product = attrs.evolve(node, operator=SCALED, attributes=attributes, inputs=inputs)
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is None:
        return [product]
    add = find_operator("", "Add")
    assert add is not None
    made = Value(len(graph.values), graph.fresh(f"{node.name}.product"), graph.values[node.outputs[0]].layout)
    graph.values.append(made)
    name = f"{node.name}.bias"
    return [
        attrs.evolve(product, outputs=(made.id,)),
        ProgramNode(0, name, add, attributes, (made.id, bias), node.outputs, node.output_types),
    ]


def _dequantized(id: int | None, graph: Graph) -> _Levels | None:
    """Return what *id* was dequantised from, if that are bytes and it is float32."""
    node = _maker(id, graph)
    if node is None or node.operator.name != "DequantizeLinear" or node.attributes.get("block_size", 0):
        return None
    integers, scale, *more = node.inputs
    if integers is None or scale is None or node.output_types != (FLOAT32,):
        return None
    layouts = graph.values[integers].layout, graph.values[scale].layout
    if layouts[0].dtype not in _BYTES or layouts[1].dtype is not FLOAT32:
        return None
    return _Levels(integers, scale, more[0] if more else None, node.attributes.get("axis", 1))


def _weights(id: int | None, graph: Graph) -> tuple[_Levels | None, bool]:
    """Return what weights were dequantised from, if they were, and whether they were transposed since."""
    node = _maker(id, graph)
    if node is not None and node.operator.name == "Transpose" and node.attributes.get("perm", (1, 0)) == (1, 0):
        return _dequantized(node.inputs[0], graph), True
    return _dequantized(id, graph), False


def _maker(id: int | None, graph: Graph) -> ProgramNode | None:
    number = None if id is None else graph.values[id].producer
    node = None if number is None else graph.nodes[number]
    return node if node is not None and not node.operator.domain else None


def _constant(id: int | None, graph: Graph) -> Array | None:
    return None if id is None else graph.values[id].constant


def _is_one(value: Value) -> bool:
    return value.layout.shape in ((), (1,))


def _fits(weights: Array, zero: Array | None) -> bool:
    """Whether 32 bits hold the sums, whatever bytes and zero point are on the left."""
    wide = weights.astype(np.int64)
    if zero is not None:
        wide = wide - zero.astype(np.int64).reshape(-1)
    return bool(255 * np.abs(wide).sum(axis=0).max(initial=0) <= _LARGEST)


def _add(graph: Graph, name: str, array: Array) -> int:
    """Add a constant to the graph."""
    layout = PartialLayout(dtype_of(array.dtype), array.shape)
    value = Value(len(graph.values), graph.fresh(name), layout, constant=array)
    graph.values.append(value)
    return value.id
