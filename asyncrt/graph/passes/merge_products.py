"""Which products of one value with several constants can be one product, whose result is split?

Queries, keys and values are such: three matrices of weights, each with its bias, and heads cut out of each result. One
product reads the value once and is one launch; the pieces stay views where what follows takes strides. Each element is
the same sum as before. Only pieces that are cut into heads are merged: others may have more to gain from what is
calculated behind a product before it stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import attrs
import numpy as np

from asyncrt.graph.ir import Graph, Guard, ProgramNode, Value
from asyncrt.kernels.call import Attributes
from asyncrt.kernels.registry import find_operator
from asyncrt.layout import Array, PartialLayout, dtype_of


class _Product(NamedTuple):
    """A MatMul by a constant, and the Add of a constant that alone reads it, if there is one."""

    node: ProgramNode
    weights: Array
    add: ProgramNode | None
    bias: Array | None

    @property
    def nodes(self) -> list[ProgramNode]:
        return [self.node] if self.add is None else [self.node, self.add]


def merge_products(graph: Graph) -> None:
    """Replace the nodes of each such group by a product, the addition of a bias, and a Split."""
    groups: dict[tuple[int | None, int, np.dtype[np.generic], bool, tuple[Guard, ...]], list[_Product]] = {}
    for node in graph.nodes:
        for sub in node.subgraphs:
            merge_products(sub.graph)
        product = _product(node, graph)
        if product is not None:
            key = node.inputs[0], product.weights.shape[0], product.weights.dtype, product.add is None, node.guards
            groups.setdefault(key, []).append(product)
    replaced: dict[ProgramNode, list[ProgramNode]] = {}
    for group in groups.values():
        if len(group) > 1:
            replaced |= {node: [] for product in group for node in product.nodes}
            replaced[group[0].node] = _merged(group, graph)
    if not replaced:
        return
    graph.keep(kept for node in graph.nodes for kept in replaced.get(node, [node]))
    for node in replaced:
        for value in (graph.values[v] for v in node.uses):
            if not value.readers and value.id not in graph.outputs:
                value.constant = value.partial = None  # the merged one stands for it


def _product(node: ProgramNode, graph: Graph) -> _Product | None:
    """Return *node* as one that may be merged, with its bias; None if it may not."""
    if node.operator.name != "MatMul" or node.operator.domain:
        return None
    weights = _own_constant(node.inputs[1], graph)
    if weights is None or weights.ndim != 2:
        return None
    made = graph.values[node.outputs[0]]
    readers = [graph.nodes[r] for r in made.readers]
    if len(readers) == 1 and readers[0].operator.name == "Add" and made.id not in graph.outputs:
        add = readers[0]
        if add.guards != node.guards:
            return None
        others = [v for v in add.inputs if v != made.id]
        bias = _own_constant(others[0], graph) if len(others) == 1 else None
        if bias is not None and bias.shape == weights.shape[1:] and _cut_into_heads(add.outputs[0], graph):
            return _Product(node, weights, add, bias)
    return _Product(node, weights, None, None) if _cut_into_heads(made.id, graph) else None


def _own_constant(id: int | None, graph: Graph) -> Array | None:
    """Return a constant that one node alone reads."""
    value = None if id is None else graph.values[id]
    return None if value is None or len(value.readers) != 1 or value.id in graph.outputs else value.constant


def _cut_into_heads(id: int, graph: Graph) -> bool:
    """Whether a value is only reshaped, and then only transposed; its shape may be asked for, too."""
    readers = [graph.nodes[r] for r in graph.values[id].readers if graph.nodes[r].operator.name != "Shape"]
    if id in graph.outputs or not readers:
        return False
    for reader in readers:
        cut = reader.outputs[0]
        if reader.operator.name != "Reshape" or cut in graph.outputs or not graph.values[cut].readers:
            return False
        if any(graph.nodes[r].operator.name != "Transpose" for r in graph.values[cut].readers):
            return False
    return True


def _merged(group: Sequence[_Product], graph: Graph) -> list[ProgramNode]:
    """Return the nodes that do what those of *group* do."""
    first = group[0]
    columns = tuple(product.weights.shape[1] for product in group)
    name = ", ".join(product.node.name for product in group)
    whole = _add(graph, name, _widened(graph.values[first.node.outputs[0]].layout, sum(columns)))
    weights = _add_constant(graph, f"{name}.weights", np.concatenate([p.weights for p in group], axis=1))
    nodes = [attrs.evolve(first.node, name=name, inputs=(first.node.inputs[0], weights), outputs=(whole,))]
    outputs = tuple(product.node.outputs[0] for product in group)
    if first.add is not None:
        bias = _add_constant(graph, f"{name}.bias", np.concatenate([p.bias for p in group if p.bias is not None]))
        added = _add(graph, f"{name}.biased", graph.values[whole].layout)
        named = ", ".join(product.add.name for product in group if product.add is not None)
        nodes.append(attrs.evolve(first.add, name=named, inputs=(whole, bias), outputs=(added,)))
        whole = added
        outputs = tuple(product.add.outputs[0] for product in group if product.add is not None)
    split = find_operator("", "Split")
    assert split is not None
    attributes = Attributes({"axis": -1, "split": columns}, first.node.attributes.opset, len(outputs))
    types = first.node.output_types * len(outputs)
    return [
        *nodes,
        ProgramNode(0, f"{name}.split", split, attributes, (whole,), outputs, types, guards=first.node.guards),
    ]


def _widened(layout: PartialLayout, columns: int) -> PartialLayout:
    shape = layout.shape
    return PartialLayout(layout.dtype, None if shape is None else (*shape[:-1], columns))


def _add(graph: Graph, name: str, layout: PartialLayout, constant: Array | None = None) -> int:
    """Add a value to the graph."""
    id = len(graph.values)
    graph.values.append(Value(id, graph.fresh(name), layout, constant=constant))
    return id


def _add_constant(graph: Graph, name: str, array: Array) -> int:
    return _add(graph, name, PartialLayout(dtype_of(array.dtype), array.shape), array)
