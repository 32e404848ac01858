"""How does a pass write several nodes in the place of one?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrt.dims import Dim
from asyncrt.graph.ir import Graph, ProgramNode, Value
from asyncrt.kernels.call import Attributes
from asyncrt.kernels.registry import find_operator
from asyncrt.layout import FLOAT32, Array, PartialLayout, dtype_of


class Replacement:
    """The nodes that take the place of one, in the branches that it is in."""

    def __init__(self, node: ProgramNode, graph: Graph) -> None:
        self._node, self._graph = node, graph
        self._nodes: list[ProgramNode] = []

    def constant(self, array: Array) -> int:
        return self._value(PartialLayout(dtype_of(array.dtype), array.shape), array)

    def add(
        self,
        name: str,
        inputs: tuple[int, ...],
        shape: Sequence[int | Dim],
        attributes: dict[str, Any] | None = None,
    ) -> int:
        """Add a node; returns its output, which has that shape."""
        output = self._value(PartialLayout(FLOAT32, tuple(shape)))
        self._append(name, inputs, output, attributes)
        return output

    def end(self, name: str, inputs: tuple[int, ...], attributes: dict[str, Any] | None = None) -> list[ProgramNode]:
        """Add the node that makes the output of the one that is replaced; returns all."""
        self._append(name, inputs, self._node.outputs[0], attributes)
        return self._nodes

    def _append(self, name: str, inputs: tuple[int, ...], output: int, attributes: dict[str, Any] | None) -> None:
        operator = find_operator("", name)
        assert operator is not None
        number = f"{self._node.name}/{name}_{len(self._nodes)}"
        held = Attributes(attributes or {}, self._node.attributes.opset, 1)
        types, guards = self._node.output_types, self._node.guards
        self._nodes.append(ProgramNode(0, number, operator, held, inputs, (output,), types, guards=guards))

    def _value(self, layout: PartialLayout, constant: Array | None = None) -> int:
        id = len(self._graph.values)
        name = self._graph.fresh(f"{self._node.name}.{id}")
        small = constant is not None and constant.dtype == np.int64
        self._graph.values.append(Value(id, name, layout, constant=constant, partial=constant if small else None))
        return id
