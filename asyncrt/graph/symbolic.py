"""Shape arithmetic as formulas: values that loading knows as expressions of the inputs' dims.

Most of a model's host nodes compute shapes from shapes. Loading has their values as polynomials over dim names, so a
request need not run those nodes: it evaluates each distinct expression once. Where such a node reads a layout, the
layout that its input really has is compared with what loading expected; if a request breaks an assumption of loading
(a slice longer than its axis, say), it notices and runs every host node instead.

Expressions are calculated without limits, but the nodes that they stand for keep the lowest bits of their dtype. Where
sizes make one of them leave its dtype, a request runs every host node, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from asyncrt.dims import Dim
from asyncrt.layout import Array, Layout

LARGE = 1 << 31  # larger than any size of a tensor with elements


@attrs.frozen(eq=False)
class Formula:
    """A value of the program: its elements are ints, or the numbers of expressions."""

    value: int
    layout: Layout
    template: Array
    places: tuple[tuple[int, int], ...]  # (element, number of its expression)


@attrs.frozen(eq=False)
class SymbolicValues:
    """The values that need not be computed by their nodes.

    Attributes:
        nodes: Ids of the host nodes that need not run.
    """

    nodes: frozenset[int]
    _shapes: tuple[tuple[int, tuple[int, ...], tuple[tuple[int, int], ...]], ...]
    _names: tuple[tuple[str, int, int], ...]  # (dim name, position of the input, axis)
    _expressions: tuple[Dim, ...]
    _formulas: tuple[Formula, ...]
    _limits: tuple[tuple[int, int, int], ...]  # (expression, least, greatest), where sizes could leave them

    def evaluate(
        self, layouts: Sequence[Layout], *, as_objects: bool = False
    ) -> tuple[list[tuple[int, Layout, Array]], dict[int, tuple[int, ...]]]:
        """Evaluate the formulas for the inputs' *layouts*.

        Args:
            as_objects: Return values that depend on dims as arrays of objects, so that traced ints stay traced.

        Returns:
            ``(value id, layout, value)`` of every such value; and the shapes that the replaced nodes rely on, by
            value id.

        Raises:
            ZeroDivisionError: A divisor is 0.
            OverflowError: A value leaves its dtype.
        """
        sizes = {name: layouts[position].shape[axis] for name, position, axis in self._names}
        numbers = [expression.evaluate(sizes) for expression in self._expressions]
        if any(size >= LARGE for size in sizes.values()) or any(
            not low <= numbers[n] <= high for n, low, high in self._limits
        ):
            raise OverflowError("a value of shape arithmetic leaves its dtype")
        found: list[tuple[int, Layout, Array]] = []
        for value, layout, template, places in (
            (f.value, f.layout, f.template, f.places) for f in self._formulas
        ):
            if places:
                template = template.astype(object) if as_objects else template.copy()
                flat = template.reshape(-1)
                for element, number in places:
                    flat[element] = numbers[number]
            found.append((value, layout, template))
        shapes: dict[int, tuple[int, ...]] = {}
        for id, dims, places in self._shapes:
            shape = list(dims)
            for axis, number in places:
                shape[axis] = numbers[number]
            shapes[id] = tuple(shape)
        return found, shapes
