"""One question, answered once: is a tensor the same bytes as another, under some offset and strides?

Operators that only move data (Transpose, Slice, Expand, Split, Tile, the Reshape family, ...) say where each element
of their output comes from as a `View` of an input. If the view is dense, the output *is* the input at an offset and
the node is skipped; if not, one strided copy carries it out. No operator decides this for itself.

Dims may be symbolic (`asyncrt.dims.Dim`): then a question that only a request can answer raises `Undetermined`, which
is how loading tells apart nodes that are skipped always, never, or depending on the request.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from asyncrt.layout import Shape, row_major


class View(NamedTuple):
    """Where each element of a tensor lies in another tensor's memory.

    Attributes:
        shape: The view's own shape.
        strides: Elements from one index to the next, per axis; 0 repeats, negative walks backwards.
        offset: Elements from the start of the memory to index (0, 0, ...).
    """

    shape: Shape
    strides: tuple[int, ...]
    offset: int = 0

    @staticmethod
    def dense(shape: Sequence[int]) -> View:
        """Return the row-major view of *shape*."""
        shape = tuple(shape)
        return View(shape, row_major(shape), 0)

    @property
    def is_dense(self) -> bool:
        """Whether the elements lie one after the other, in row-major order; True for a view of no elements."""
        if any(isinstance(d, int) and d == 0 for d in self.shape):
            return True
        step = 1
        for dim, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if isinstance(dim, int) and dim == 1:
                continue
            # In this order, so that a symbolic dim whose stride fits is not asked whether it is 1.
            if stride != step and dim != 1:
                return False
            step = step * dim
        return True

    def why_not_dense(self) -> str:
        """Return in words what keeps the elements from lying one after the other; "" if nothing does."""
        if self.is_dense:
            return ""
        axes = [axis for axis, dim in enumerate(self.shape) if dim != 1]
        for axis in axes:
            if self.strides[axis] == 0:
                return f"repeats axis {axis}"
            if self.strides[axis] < 0:
                return f"walks axis {axis} backwards"
        for before, after in itertools.pairwise(axes):
            if self.strides[before] < self.strides[after]:
                return f"moves axis {after} of the result past axis {before}"
        dense = row_major(self.shape)
        inner = next(axis for axis in reversed(axes) if self.strides[axis] != dense[axis])
        return f"leaves elements out between those of axis {inner}"

    def permute(self, order: Sequence[int]) -> View:
        """Reorder axes: axis k of the result is axis ``order[k]``."""
        return View(tuple(self.shape[a] for a in order), tuple(self.strides[a] for a in order), self.offset)

    def slice(self, axis: int, start: int, count: int, step: int = 1) -> View:
        """Keep *count* indices of *axis*: *start*, *start* + *step*, and so on."""
        shape, strides = list(self.shape), list(self.strides)
        nothing = isinstance(count, int) and count == 0
        offset = self.offset if nothing else self.offset + start * strides[axis]
        shape[axis], strides[axis] = count, strides[axis] * step
        return View(tuple(shape), tuple(strides), offset)

    def drop(self, axis: int) -> View:
        """Remove *axis*, whose dim is 1."""
        shape, strides = list(self.shape), list(self.strides)
        del shape[axis], strides[axis]
        return View(tuple(shape), tuple(strides), self.offset)

    def expand(self, shape: Sequence[int]) -> View:
        """Broadcast to *shape*, which this view's shape must broadcast to (NumPy's rules)."""
        lead = len(shape) - len(self.shape)
        strides = [0] * lead
        for mine, theirs, stride in zip(self.shape, shape[lead:], self.strides, strict=True):
            strides.append(stride if mine == theirs else 0)
        return View(tuple(shape), tuple(strides), self.offset)

    def through(self, base: View) -> View | None:
        """Return this view of a tensor whose elements lie as *base* says, as one view of the memory that *base* is of.

        None: no strides say it, because an axis of this view goes over several axes of *base* that are not walked as
        one. The tensor must then be written out densely first. Dims are ints.

        Args:
            base: The tensor's own view; this view is one of the dense tensor of ``base.shape``.
        """
        if 0 in self.shape:
            return View(self.shape, (0,) * len(self.shape), base.offset)
        dims, (steps,) = collapse(base.shape, base.strides)
        flat = row_major(dims)
        first, rest = [], self.offset
        for stride in flat:
            index, rest = divmod(rest, stride)
            first.append(index)
        low, high = list(first), list(first)
        strides: list[int] = []
        for dim, stride in zip(self.shape, self.strides, strict=True):
            if dim == 1 or stride == 0:
                strides.append(0)
                continue
            axis = next(a for a, whole in enumerate(flat) if whole <= abs(stride))
            times, part = divmod(stride, flat[axis])
            if part:
                return None
            reach = high if times > 0 else low
            reach[axis] += (dim - 1) * times
            strides.append(times * steps[axis])
        if any(lo < 0 or hi >= dim for lo, hi, dim in zip(low, high, dims, strict=True)):
            return None
        offset = base.offset + sum(index * step for index, step in zip(first, steps, strict=True))
        return View(self.shape, tuple(strides), offset)

    @property
    def span(self) -> int:
        """How many elements of memory lie between the view's first and its last, both included; strides from 0 on."""
        if 0 in self.shape:
            return 0
        return 1 + sum((dim - 1) * stride for dim, stride in zip(self.shape, self.strides, strict=True))

    def repeat(self, times: Sequence[int]) -> View:
        """Tile: the result has twice the axes, ``(times[0], shape[0], times[1], shape[1], ...)``."""
        shape: list[int] = []
        strides: list[int] = []
        for n, dim, stride in zip(times, self.shape, self.strides, strict=True):
            shape += [n, dim]
            strides += [0, stride]
        return View(tuple(shape), tuple(strides), self.offset)


def collapse(shape: Sequence[int], *strides: Sequence[int]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Merge axes that all operands walk as one, and drop unit axes.

    Args:
        shape: The iteration space, in elements.
        strides: For each operand its strides over *shape*, in elements.

    Returns:
        The smallest equivalent iteration space (at least one axis) and the operands' strides over it.
    """
    dims: list[int] = []
    kept: list[list[int]] = [[] for _ in strides]
    for axis, dim in enumerate(shape):
        if dim == 1:
            continue
        if dims and all(k[-1] == s[axis] * dim for k, s in zip(kept, strides, strict=True)):
            dims[-1] *= dim
            for k, s in zip(kept, strides, strict=True):
                k[-1] = s[axis]
        else:
            dims.append(dim)
            for k, s in zip(kept, strides, strict=True):
                k.append(s[axis])
    if not dims:
        return (1,), [(0,) for _ in strides]
    return tuple(dims), [tuple(k) for k in kept]


def broadcast_strides(shape: Sequence[int], target: Sequence[int]) -> tuple[int, ...]:
    """Return the strides with which a dense tensor of *shape* is read when broadcast to *target*."""
    lead = len(target) - len(shape)
    own = row_major(shape)
    return (0,) * lead + tuple(
        0 if mine == 1 and theirs != 1 else stride
        for mine, theirs, stride in zip(shape, target[lead:], own, strict=True)
    )
