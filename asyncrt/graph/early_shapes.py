"""How many axes have the values of a graph that is still being imported?

Rules that rewrite nodes ask it, where an operator means another thing for another number of axes. The answer is what
operators infer from the shapes and the constants that are there; it is no more than a hint of what the pass that infers
layouts finds out later.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncrt.kernels.call import Call
from asyncrt.layout import Layout, PartialShape

from .ir import ProgramNode, Value


class EarlyShapes:
    """Shapes, found when the first is asked for; nodes come before those that read them.

    Attributes:
        outside: Where a graph inside a node has values from: the shapes of the graph around it, and the value's id
            there. None for a value of which nothing is known before its graph runs.
    """

    def __init__(self, values: Sequence[Value], nodes: Sequence[ProgramNode]) -> None:
        self._values, self._nodes = values, nodes
        self._found: dict[int, PartialShape] = {}
        self._seen = 0
        self.outside: dict[int, tuple[EarlyShapes, int] | None] = {}

    def rank(self, value: int) -> int | None:
        """Return the number of axes of a value, or None if it is not known yet."""
        shape = self.shape(value)
        return None if shape is None else len(shape)

    def shape(self, value: int) -> PartialShape | None:
        """Return what is known of the shape of a value."""
        shape = self._shape(value)
        if shape is None:
            for node in self._nodes[self._seen :]:
                self._infer(node)
            self._seen = len(self._nodes)
            shape = self._shape(value)
        return shape

    def _shape(self, value: int) -> PartialShape | None:
        if value in self.outside:
            place = self.outside[value]
            return None if place is None else place[0].shape(place[1])
        found = self._found.get(value)
        return self._values[value].layout.shape if found is None else found

    def _infer(self, node: ProgramNode) -> None:
        layouts: list[Layout | None] = []
        for id in node.inputs:
            shape, dtype = (None, None) if id is None else (self._shape(id), self._values[id].layout.dtype)
            if id is not None and (shape is None or dtype is None):
                return
            layouts.append(None if shape is None or dtype is None else Layout(dtype, shape))  # type: ignore[arg-type]  # dims may be symbolic
        constants = tuple(None if id is None else self._values[id].constant for id in node.inputs)
        call = Call(node.name, node.attributes, tuple(layouts), constants, (), node.output_types)
        try:
            shapes = node.operator.infer(call)
        except Exception:  # the pass that infers layouts tells what is wrong, and naming what
            return
        self._found.update(zip(node.outputs, shapes, strict=False))
