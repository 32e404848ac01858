"""What scales and shifts the channels of a product by constants becomes part of its weights and bias.

A batch normalisation, a learned scale, or a product or sum with a constant is a factor and a term for each output
channel. Behind a Conv, a ConvTranspose, a Gemm or a MatMul of constant weights the factor goes into the weights and the
term into the bias, one after the other if there are several. Results differ by the rounding of one more product.
float16 is left alone: its weights would be rounded a second time. So are large weights, which stay in the model's file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import attrs
import numpy as np

from asyncrt.graph.ir import Graph, ProgramNode, Value
from asyncrt.kernels.call import Attributes
from asyncrt.layout import FLOAT32, FLOAT64, Array, PartialLayout, dtype_of

NORMALIZATIONS = frozenset({"BatchNormalization"})
SCALES = NORMALIZATIONS | {"Mul", "Div", "Add", "Sub"}
_MOST = 64 << 20  # bytes of weights that are copied


class Line(NamedTuple):
    """What becomes of a channel's results: ``factor * result + term``, in float64, for each channel or for all."""

    factor: Array
    term: Array

    @property
    def shifts_alone(self) -> bool:
        return bool((self.factor == 1).all())


class _Product(NamedTuple):
    """A product as this pass sees it.

    Attributes:
        node: Its second input is the weights, its third the bias.
        weights, bias: Constants; there may be no bias.
        channels: Of the result.
        rank: Of the result.
        axis: That of the channels in the result, counted from its end.
    """

    node: ProgramNode
    weights: Array
    bias: Array | None
    channels: int
    rank: int
    axis: int

    @property
    def scaled_axes(self) -> tuple[int, ...]:
        """The shape of the factors of the channels beside the weights, whose first axis is split if it is in groups."""
        cells = (1,) * (self.weights.ndim - 2)
        match self.node.operator.name:
            case "Conv":
                return (self.channels, 1, *cells)
            case "ConvTranspose":
                group = self.node.attributes.get("group", 1)
                return (group, 1, self.channels // group, *cells)
            case "Gemm" if self.node.attributes.get("transB", 0):
                return (self.channels, 1)
            case _:
                return (1, self.channels)


def fold_scales(graph: Graph, operators: frozenset[str] = SCALES) -> None:
    """Replace each product, and those of *operators* that scale its result, by one product."""
    for node in graph.nodes:
        for sub in node.subgraphs:
            fold_scales(sub.graph, operators)
    while _fold_once(graph, operators):
        pass


def _fold_once(graph: Graph, operators: frozenset[str]) -> bool:
    """Fold the nodes that follow a product; return whether there were any."""
    replaced: dict[ProgramNode, ProgramNode | None] = {}
    for node in graph.nodes:
        product = _product_of(node, graph) if node.operator.name in operators else None
        line = None if product is None else _line(node, product, graph)
        folded = None if product is None or line is None else _folded(product, line, node, graph)
        if product is not None and folded is not None:
            replaced |= {product.node: folded, node: None}
    if not replaced:
        return False
    kept = [replaced.get(node, node) for node in graph.nodes]
    graph.keep(node for node in kept if node is not None)
    for node in replaced:
        for value in (graph.values[v] for v in node.uses):
            if not value.readers and value.id not in graph.outputs:
                value.constant = value.partial = None  # the folded one stands for it
    return True


def _product_of(node: ProgramNode, graph: Graph) -> _Product | None:
    """Return the product whose result *node* takes and no other node reads, if its weights are constants."""
    if node.operator.domain or len(node.outputs) != 1:
        return None
    for id in node.uses:
        value = graph.values[id]
        if value.producer is None or value.constant is not None:
            continue
        if len(value.readers) != 1 or value.id in graph.outputs:
            return None
        return _product(graph.nodes[value.producer], value.layout.shape, graph)
    return None


def _product(node: ProgramNode, shape: Sequence[object] | None, graph: Graph) -> _Product | None:
    """Return *node*, whose result has that shape, if it is such a product."""
    if node.operator.domain or node.operator.name not in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
        return None
    weights, bias = (constant_of(node, index, graph) for index in (1, 2))
    has_bias = len(node.inputs) > 2 and node.inputs[2] is not None
    if weights is None or weights.ndim < 2 or weights.nbytes > _MOST or (has_bias and bias is None):
        return None
    if dtype_of(weights.dtype) not in (FLOAT32, FLOAT64) or (bias is not None and bias.dtype != weights.dtype):
        return None
    match node.operator.name:
        case "Conv":
            return _Product(node, weights, bias, weights.shape[0], weights.ndim, weights.ndim - 1)
        case "ConvTranspose":
            group = node.attributes.get("group", 1)
            if weights.shape[0] % group:
                return None  # a request reports what is wrong with it
            channels = weights.shape[1] * group
            return _Product(node, weights, bias, channels, weights.ndim, weights.ndim - 1)
        case _:
            channels = weights.shape[0 if node.attributes.get("transB", 0) else 1]
            known = weights.ndim == 2 and shape is not None
            return _Product(node, weights, bias, channels, len(shape or ()), 1) if known else None


def _line(node: ProgramNode, product: _Product, graph: Graph) -> Line | None:
    """Return what *node* does to each channel of the product's result; None if it is no such thing."""
    result = product.node.outputs[0]
    others = [constant_of(node, i, graph) for i, v in enumerate(node.inputs) if v != result]
    constants = [c.astype(np.float64) for c in others if c is not None and c.dtype == product.weights.dtype]
    if not len(constants) == len(others) == len(node.inputs) - 1:
        return None
    first = node.inputs[0] == result
    if node.operator.name == "BatchNormalization":
        return _normalization(node, product, constants) if first else None
    each = _for_each_channel(constants[0], product)
    if each is None:
        return None
    one, zero = np.ones(()), np.zeros(())
    match node.operator.name:
        case "Mul":
            return Line(each, zero)
        case "Div":
            with np.errstate(all="ignore"):
                return Line(one / each, zero) if first else None
        case "Add":
            return Line(one, each)
        case _:
            return Line(one, -each) if first else Line(-one, each)


def _normalization(node: ProgramNode, product: _Product, constants: Sequence[Array]) -> Line | None:
    if product.rank - product.axis != 1 or any(c.shape != (product.channels,) for c in constants):
        return None  # a request reports what is wrong with it
    return line_of(node, constants)


def line_of(node: ProgramNode, constants: Sequence[Array]) -> Line:
    """Return what a BatchNormalization of these scales, shifts, means and variances does to each channel."""
    scale, shift, mean, variance = constants
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + node.attributes.get("epsilon", 1e-5))
        return Line(factor, shift - mean * factor)


def _for_each_channel(constant: Array, product: _Product) -> Array | None:
    """Return a constant that is one element, or one for each channel, without its other axes; None if it is neither."""
    if constant.ndim > product.rank:
        return None  # it might give the result more axes
    at = constant.ndim - product.axis
    if constant.size == 1:
        return constant.reshape(())
    return constant.reshape(-1) if at >= 0 and constant.shape[at] == constant.size == product.channels else None


def _folded(product: _Product, line: Line, last: ProgramNode, graph: Graph) -> ProgramNode | None:
    """Return the product that does both, or None if that is none or gives what is no number."""
    node, term = product.node, line.term
    if product.bias is not None:
        beta = node.attributes.get("beta", 1.0) if node.operator.name == "Gemm" else 1.0
        bias = product.bias if product.bias.size == 1 else _rows(product.bias, product.channels)
        if bias is None:
            return None
        with np.errstate(all="ignore"):
            term = term + line.factor * beta * bias.astype(np.float64).reshape(-1)
    inputs = [*node.inputs[:2]]
    if not line.shifts_alone:
        scaled = _scaled(product, line.factor)
        if scaled is None:
            return None
        inputs[1] = _constant(scaled, f"{node.name}.weights", graph)
    if product.bias is not None or term.any():
        if node.operator.name == "MatMul":
            return None  # it has no bias
        added = np.broadcast_to(term, (product.channels,)).astype(product.weights.dtype)
        if not np.isfinite(added).all():
            return None
        inputs.append(_constant(added, f"{node.name}.bias", graph))
    if node.operator.name == "Gemm":
        node = attrs.evolve(node, attributes=Attributes({**node.attributes, "beta": 1.0}))
    return attrs.evolve(node, inputs=tuple(inputs), outputs=last.outputs)


def _rows(bias: Array, channels: int) -> Array | None:
    """Return the bias of a Gemm if all rows have the same."""
    return bias if bias.size == channels == bias.shape[-1] else None


def _scaled(product: _Product, factor: Array) -> Array | None:
    """Return the weights times the channels' factors; None if there is no number for one, or nothing is left of it."""
    weights, dtype = product.weights, product.weights.dtype
    axes = product.scaled_axes
    factors = np.broadcast_to(factor, (product.channels,)).reshape(axes)
    parts = weights.reshape(axes[0], -1, *weights.shape[1:]) if len(axes) > weights.ndim else weights
    with np.errstate(all="ignore"):
        scaled = (parts * factors).astype(dtype)
    others = tuple(i for i, n in enumerate(axes) if n == 1)
    before, after = (np.abs(p).max(others, initial=0, keepdims=True) for p in (parts, scaled))
    least = np.finfo(dtype).tiny
    lost = (factors != 0) & (before >= least) & (after < least)
    return None if lost.any() or not np.isfinite(scaled).all() else scaled.reshape(weights.shape)


def constant_of(node: ProgramNode, index: int, graph: Graph) -> Array | None:
    id = node.inputs[index] if index < len(node.inputs) else None
    return None if id is None else graph.values[id].constant


def _constant(array: Array, name: str, graph: Graph) -> int:
    """Add a constant to the graph."""
    id = len(graph.values)
    layout = PartialLayout(dtype_of(array.dtype), array.shape)
    graph.values.append(Value(id, graph.fresh(name), layout, constant=array))
    return id
