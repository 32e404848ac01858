"""Products and convolutions of two dequantised operands become products and convolutions of integers.

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

from asyncrt.graph.ir import Graph, ProgramNode, Value
from asyncrt.kernels.call import Attributes
from asyncrt.kernels.operator import Operator
from asyncrt.kernels.ops.math.matmul_integer import SCALED as MATMUL
from asyncrt.kernels.ops.nn.conv_integer import SCALED as CONV
from asyncrt.kernels.registry import find_operator
from asyncrt.layout import FLOAT32, Array, PartialLayout, dtype_of

from .levels import BYTES, maker

_LARGEST = 2**31 - 1


class _Levels(NamedTuple):
    """The inputs of a DequantizeLinear, and the axis that scales are for if there are several."""

    integers: int
    scale: int
    zero: int | None
    axis: int


class _Weights(NamedTuple):
    """Constant weights, with one scale, or one for each index of an axis."""

    integers: Array
    scale: Array
    zero: Array | None
    axis: int | None


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
    """Return the product of integers that *node* stands for, or None if it is none."""
    if node.operator.domain or node.operator.name not in ("MatMul", "Gemm", "Conv"):
        return None
    left, (right, turned) = _dequantized(node.inputs[0], graph), _weights(node.inputs[1], graph)
    if left is None or right is None or not _is_one(graph.values[left.scale]):
        return None
    weights, scale, zero = (_constant(v, graph) for v in (right.integers, right.scale, right.zero))
    if weights is None or scale is None or (zero is None and right.zero is not None):
        return None
    given = _Weights(weights, scale, zero, None if _is_one(graph.values[right.scale]) else right.axis % weights.ndim)
    if node.operator.name == "Conv":
        return None if turned else _convolution(node, left, given, graph)
    return _matrix(node, left, given, turned, graph)


def _matrix(node: ProgramNode, left: _Levels, given: _Weights, turned: bool, graph: Graph) -> list[ProgramNode] | None:
    a = node.attributes
    if node.operator.name == "Gemm" and (a.get("alpha", 1.0), a.get("beta", 1.0), a.get("transA", 0)) != (1.0, 1.0, 0):
        return None
    if given.integers.ndim != 2:
        return None
    axis = 1
    if turned != bool(a.get("transB", 0)):
        axis, given = 0, given._replace(integers=np.ascontiguousarray(given.integers.T))
    if given.axis not in (None, axis) or not _fits(given.integers, given.zero):
        return None
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    return _replacement(node, MATMUL, Attributes({}, a.opset), left, given, bias, graph)


def _convolution(node: ProgramNode, left: _Levels, given: _Weights, graph: Graph) -> list[ProgramNode] | None:
    """Return the convolution of integers, or None: a bias must be a constant."""
    filters = given.integers
    if filters.ndim < 3 or given.axis not in (None, 0):
        return None
    if not _fits(filters.reshape(filters.shape[0], -1).T, given.zero):
        return None
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None:
        constant = graph.values[bias].constant
        if constant is None or constant.shape != filters.shape[:1]:
            return None
        bias = _add(graph, f"{node.name}.bias", constant.reshape(-1, *(1,) * (filters.ndim - 2)))
    return _replacement(node, CONV, node.attributes, left, given, bias, graph)


def _replacement(
    node: ProgramNode,
    operator: Operator,
    attributes: Attributes,
    left: _Levels,
    given: _Weights,
    bias: int | None,
    graph: Graph,
) -> list[ProgramNode]:
    right = [
        None if array is None else _add(graph, f"{node.name}.{name}", array)
        for name, array in (("weights", given.integers), ("scale", given.scale), ("zero", given.zero))
    ]
    inputs = (left.integers, right[0], left.scale, right[1], left.zero, right[2])
    product = attrs.evolve(node, operator=operator, attributes=attributes, inputs=inputs)
    if bias is None:
        return [product]
    add = find_operator("", "Add")
    assert add is not None
    made = Value(len(graph.values), graph.fresh(f"{node.name}.product"), graph.values[node.outputs[0]].layout)
    graph.values.append(made)
    own = Attributes({}, node.attributes.opset)
    return [
        attrs.evolve(product, outputs=(made.id,)),
        ProgramNode(
            0, f"{node.name}.sum", add, own, (made.id, bias), node.outputs, node.output_types, guards=node.guards
        ),
    ]


def _dequantized(id: int | None, graph: Graph) -> _Levels | None:
    """Return the inputs of the DequantizeLinear that makes *id*, if it makes float32 of 8-bit integers."""
    node = maker(id, graph)
    if node is None or node.operator.name != "DequantizeLinear" or node.attributes.get("block_size", 0):
        return None
    integers, scale, *more = node.inputs
    if integers is None or scale is None or node.output_types != (FLOAT32,):
        return None
    layouts = graph.values[integers].layout, graph.values[scale].layout
    if layouts[0].dtype not in BYTES or layouts[1].dtype is not FLOAT32:
        return None
    return _Levels(integers, scale, more[0] if more else None, node.attributes.get("axis", 1))


def _weights(id: int | None, graph: Graph) -> tuple[_Levels | None, bool]:
    """Return the inputs of the DequantizeLinear behind *id*, if there is one, and whether a Transpose follows it."""
    node = maker(id, graph)
    if node is not None and node.operator.name == "Transpose" and node.attributes.get("perm", (1, 0)) == (1, 0):
        return _dequantized(node.inputs[0], graph), True
    return _dequantized(id, graph), False


def _constant(id: int | None, graph: Graph) -> Array | None:
    return None if id is None else graph.values[id].constant


def _is_one(value: Value) -> bool:
    return value.layout.shape in ((), (1,))


def _fits(weights: Array, zero: Array | None) -> bool:
    """Whether the sums of columns fit 32 bits for every left-hand side and zero point."""
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
