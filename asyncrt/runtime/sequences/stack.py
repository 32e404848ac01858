"""How do the inputs of several steps become those of one inference, and its outputs theirs?

Rows are laid one behind the other. A dim that grows with the past is filled up at its beginning, so that all rows end
at the same index; outputs that have the dim are cut there again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import attrs
import numpy as np

from asyncrt.dims import Dim
from asyncrt.layout import Array, PartialShape

from .state_axes import RowTensor


@attrs.frozen(eq=False)
class StackPart:
    """The part of one step in an inference.

    Attributes:
        arrays: Its inputs, by value id.
        sizes: Of the named dims, by themselves.
        rows: How many it has.
        pad: By how much its past is shorter than the longest.
        start: Its first row.
    """

    arrays: Mapping[int, Array]
    sizes: Mapping[str, int]
    rows: int
    pad: int = 0
    start: int = 0


def stack(
    tensors: Iterable[RowTensor], parts: Sequence[StackPart], along: frozenset[str], count: int, fill: int = 0
) -> dict[int, Array]:
    """Return the inputs of one inference.

    Args:
        along: The dims that grow with the past.
        count: Rows; those that are no part's are the first part's first row over again.
        fill: What dims are filled up with.
    """
    order = [-1] * count
    before = 0
    for part in parts:
        order[part.start : part.start + part.rows] = range(before, before + part.rows)
        before += part.rows
    as_they_are = order == list(range(before))
    arrays: dict[int, Array] = {}
    for tensor in tensors:
        first = parts[0].arrays[tensor.id]
        if tensor.rows is None:
            arrays[tensor.id] = first
            continue
        axes = grown_axes(tensor.dims, along)
        filled = [_fill(part.arrays[tensor.id], axes, part.pad, fill) for part in parts]
        joined = np.concatenate(filled, axis=tensor.rows) if len(filled) > 1 else filled[0]
        if not as_they_are:
            joined = np.take(joined, [max(row, 0) for row in order], axis=tensor.rows)
        arrays[tensor.id] = np.ascontiguousarray(joined)
    return arrays


def stacked_nbytes(tensors: Iterable[RowTensor], parts: Sequence[StackPart], along: frozenset[str], count: int) -> int:
    """Return how many bytes `stack()` makes at most: what is filled up, and what is joined."""
    total = 0
    if len(parts) == 1 and count == parts[0].rows and not parts[0].pad:
        return total  # they are what is given
    for tensor in tensors:
        first = parts[0].arrays[tensor.id]
        if tensor.rows is not None:
            axes = grown_axes(tensor.dims, along)
            shape = [d + parts[0].pad if axis in axes else d for axis, d in enumerate(first.shape)]
            shape[tensor.rows] = 2 * max(count, sum(part.rows for part in parts))
            total += math.prod(shape) * first.itemsize
    return total


def unstack(
    tensors: Iterable[RowTensor], outputs: Mapping[int, Array], part: StackPart, along: frozenset[str]
) -> dict[int, Array]:
    """Return a step's outputs, in memory of their own."""
    found: dict[int, Array] = {}
    for tensor in tensors:
        array = outputs[tensor.id]
        assert tensor.rows is not None, "every output has rows"
        index = [slice(None)] * array.ndim
        index[tensor.rows] = slice(part.start, part.start + part.rows)
        for axis in grown_axes(tensor.dims, along):
            dim = tensor.dims[axis]
            assert isinstance(dim, Dim)
            index[axis] = slice(array.shape[axis] - dim.evaluate(part.sizes), None)
        found[tensor.id] = array[tuple(index)].copy()
    return found


def grown_axes(dims: PartialShape, along: frozenset[str]) -> list[int]:
    """Return the axes whose dims depend on those that grow."""
    return [axis for axis, dim in enumerate(dims) if isinstance(dim, Dim) and dim.names() & along]


def _fill(array: Array, axes: Sequence[int], pad: int, fill: int) -> Array:
    if not axes or not pad:
        return array
    widths = [(pad if axis in axes else 0, 0) for axis in range(array.ndim)]
    return np.pad(array, widths, constant_values=fill)
