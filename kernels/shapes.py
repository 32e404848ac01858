"""Shape rules that many operators share. They work on symbolic dims too, and raise rather than guess."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from asyncrt.dims import Dim, Undetermined
from asyncrt.errors import ShapeError
from asyncrt.layout import Array, Shape, show_shape

from .call import Attributes, Call


class _Shaped(NamedTuple):
    """As much of a layout as rules of shapes ask for."""

    shape: Shape


def reference_call(name: str, attributes: Attributes, inputs: Sequence[Array | None]) -> Call:
    """Return the call that arrays are given to, for rules of shapes: its layouts have nothing but a shape."""
    layouts: Any = tuple(None if i is None else _Shaped(i.shape) for i in inputs)
    return Call(name, attributes, layouts, tuple(inputs))


def normal_axis(call: Call, axis: int, rank: int) -> int:
    """Return *axis* counted from the front; raises `ShapeError` if a tensor of *rank* has no such axis."""
    if not -rank <= axis < rank:
        raise ShapeError(f"'{call.name}': axis {axis} is outside a tensor of rank {rank}")
    return axis % rank


def normal_axes(call: Call, axes: Iterable[int], rank: int) -> tuple[int, ...]:
    """Return *axes* counted from the front, in ascending order; raises `ShapeError` if one comes twice."""
    normal = sorted(normal_axis(call, a, rank) for a in axes)
    if len(set(normal)) != len(normal):
        raise ShapeError(f"'{call.name}': an axis is named twice in {list(axes)}")
    return tuple(normal)


def same_shape(call: Call) -> tuple[Shape]:
    """Return the first input's shape: the `infer` of operators that keep it."""
    return (call.shape(0),)


def broadcast_shapes(call: Call, *shapes: Sequence[int]) -> Shape:
    """Return the shape that *shapes* broadcast to by NumPy's rules."""
    result: list[int] = []
    for axis in range(-max((len(s) for s in shapes), default=0), 0):
        dim: int = 1
        for shape in shapes:
            if -axis <= len(shape):
                dim = _broadcast_dim(call, dim, shape[axis], shapes)
        result.append(dim)
    return tuple(result)


def broadcast_axes(call: Call) -> tuple[Sequence[int | None]]:
    """Return what all inputs broadcast to, with None where only a request can tell: the `axes` of such operators."""
    shapes = [call.shape(i) for i in range(len(call.inputs))]
    result: list[int | None] = []
    for axis in range(-max(len(s) for s in shapes), 0):
        try:
            result += broadcast_shapes(call, *(s[axis:][:1] for s in shapes if -axis <= len(s)))
        except Undetermined:
            result.append(None)
    return (result,)


def _broadcast_dim(call: Call, a: int, b: int, shapes: Sequence[Sequence[int]]) -> int:
    if a is b:
        return a
    if isinstance(a, Dim) or isinstance(b, Dim):
        if not isinstance(b, Dim):
            return a if b == 1 else b  # the other is 1 or b, or the request fails
        if not isinstance(a, Dim):
            return b if a == 1 else a
        if a.same_as(b):
            return a
        raise Undetermined(f"do {a!r} and {b!r} broadcast?")
    if a == b or b == 1:
        return a
    if a == 1:
        return b
    raise ShapeError(f"'{call.name}': shapes {' and '.join(show_shape(s) for s in shapes)} do not broadcast")


def check_spreads(call: Call, index: int, shape: Sequence[int], target: Sequence[int]) -> None:
    """Raise `ShapeError` unless input *index*, as *shape*, broadcasts to *target* and not the other way round.

    What only a request can tell passes till then.
    """
    with contextlib.suppress(Undetermined):
        fits = len(shape) <= len(target) and all(
            d == 1 or d == t for d, t in zip(reversed(shape), reversed(target), strict=False)
        )
        check(call, fits, f"input {index} of shape {show_shape(shape)} does not broadcast to {show_shape(target)}")


def check_channels(call: Call, index: int | None, channels: int) -> None:
    """Raise `ShapeError` unless input *index*, if there is such, is one value or a vector of one for each channel."""
    if index is not None and call.has(index):
        shape = call.shape(index)
        check(call, len(shape) < 2, f"input {index} must be a scalar or a vector, it has {len(shape)} axes")
        check_spreads(call, index, shape, (channels,))


def count(shape: Iterable[int]) -> int:
    """Return the number of elements of *shape* (an expression while dims are symbolic)."""
    return math.prod(shape)


def check(call: Call, condition: bool, message: str) -> None:
    """Raise `ShapeError` naming the node unless *condition* holds."""
    if not condition:
        raise ShapeError(f"'{call.name}': {message}")


def ints(shape: Sequence[int]) -> list[int]:
    """Return *shape* if its dims are ints; raises `Undetermined` if one is symbolic."""
    return [d if isinstance(d, int) else int(d) for d in shape]
