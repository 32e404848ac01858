"""Slice: from each axis the indices from a start to before an end, at a step that may be negative.

Source: ONNX Slice-13. Starts and ends are counted from the back if negative, then brought into range.

While loading, a symbolic dim is taken to hold what is sliced out of it: ``x[2:]`` of an axis of ``seq`` has ``seq - 2``
elements, and ``x[:seq]`` has ``seq``. A request, whose dims are ints, brings every bound into range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from asyncrt.dims import Dim, Undetermined
from asyncrt.kernels.call import Attributes, Call, ValueUnknown
from asyncrt.kernels.impl import Impl
from asyncrt.kernels.operator import Example, Operator, ViewOf
from asyncrt.kernels.ops._values import ceil_div, known
from asyncrt.kernels.patterns.copy import materialise
from asyncrt.kernels.shapes import check, normal_axis
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, Shape
from asyncrt.memory.view import View

_FAR = 2**31 - 1  # a bound of at least this size stands for the axis' end


class _Cut(NamedTuple):
    """*length* indices of *axis*: *start*, *start* + *step*, and so on."""

    axis: int
    start: int
    length: int
    step: int


def _cut(dim: int, start: int, end: int, step: int) -> tuple[int, int]:
    """Return the first index and the number of indices."""
    if any(isinstance(v, Dim) for v in (dim, start, end, step)):
        return _cut_of_dims(dim, start, end, step)
    start = start + dim if start < 0 else start
    end = end + dim if end < 0 else end
    if step > 0:
        start, end = min(max(start, 0), dim), min(max(end, 0), dim)
        return start, max(0, ceil_div(end - start, step))
    start, end = min(max(start, 0), dim - 1), min(max(end, -1), dim - 1)
    return start, max(0, ceil_div(start - end, -step))


def _cut_of_dims(dim: int, start: int, end: int, step: int) -> tuple[int, int]:
    """`_cut` where one of the four is symbolic."""
    if isinstance(step, Dim):
        raise Undetermined(f"is {step!r} positive?")
    if step > 0:
        first, last = _bound(dim, start), _bound(dim, end)
        if isinstance(dim, Dim) and not isinstance(last, Dim) and last > 1:
            raise Undetermined(f"is {dim!r} at least {last}?")
        length = last - first
    else:
        if isinstance(start, Dim) or isinstance(end, Dim) or 0 <= start < _FAR or end > -_FAR:
            raise Undetermined(f"how much of {dim!r} lies between {start!r} and {end!r}?")
        first = dim - 1 if start >= 0 else dim + start
        length, step = first + 1, -step
    count = ceil_div(length, step)
    if isinstance(count, Dim) or count <= 0:
        return first, count if isinstance(count, Dim) else max(0, count)
    # A number that the dim may be too short for; nothing notices a request that breaks what loading says of a number.
    if count > 1 or not isinstance(dim, Dim):
        raise Undetermined(f"is {dim!r} at least {count}?")
    return first, 2 * dim // (dim + 1)  # which is 0 of 0, and 1 of everything above


def _bound(dim: int, bound: int) -> int:
    """Where a bound lies in a dim that is taken to hold it."""
    if not isinstance(bound, Dim):
        if bound >= _FAR:
            return dim
        if bound <= -_FAR:
            return 0
    return dim + bound if bound < 0 else bound


class _Asked(NamedTuple):
    """What is asked of *axis*."""

    axis: int
    start: int
    end: int
    step: int


def _asked(call: Call) -> Iterator[_Asked]:
    shape = call.shape(0)
    starts, ends = call.vector(1), call.vector(2)
    axes = call.vector(3) if call.has(3) else list(range(len(starts)))
    steps = call.vector(4) if call.has(4) else [1] * len(starts)
    same = len(starts) == len(ends) == len(axes) == len(steps)
    check(call, same, f"{len(starts)} starts, {len(ends)} ends, {len(axes)} axes and {len(steps)} steps")
    seen: set[int] = set()
    for start, end, named, step in zip(starts, ends, axes, steps, strict=True):
        axis = normal_axis(call, named, len(shape))
        check(call, axis not in seen, f"axis {axis} is sliced twice")
        check(call, isinstance(step, Dim) or step != 0, "a step is 0")
        seen.add(axis)
        yield _Asked(axis, start, end, step)


def _cuts(call: Call) -> Iterator[_Cut]:
    shape = call.shape(0)
    for axis, start, end, step in _asked(call):
        yield _Cut(axis, *_cut(shape[axis], start, end, step), step)


def infer(call: Call) -> tuple[Shape]:
    shape = list(call.shape(0))
    for cut in _cuts(call):
        shape[cut.axis] = cut.length
    return (tuple(shape),)


def axes(call: Call) -> tuple[Sequence[int | None]]:
    """The dims that are not cut, and those of cuts that loading can tell."""
    shape: list[int | None] = list(call.shape(0))
    try:
        for asked in _asked(call):
            shape[asked.axis] = _length(call.shape(0)[asked.axis], asked)
    except ValueUnknown:
        return ([None] * len(shape),)
    return (shape,)


def _length(dim: int, asked: _Asked) -> int | None:
    try:
        return _cut(dim, asked.start, asked.end, asked.step)[1]
    except Undetermined:
        return None


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x = inputs[0]
    assert x is not None
    starts, ends, axes, steps = (None if v is None else known(v).tolist() for v in (*inputs[1:], None, None)[:4])
    assert starts is not None
    assert ends is not None
    axes, steps = axes or range(len(starts)), steps or [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        first, count = _cut(x.shape[axis], start, end, step)
        x = np.take(x, first + step * np.arange(count), axis)
    return (x.copy(),)


def views(call: Call) -> tuple[ViewOf]:
    view = View.dense(call.shape(0))
    for cut in _cuts(call):
        view = view.slice(*cut)
    return (ViewOf(0, view),)


def why_not(call: Call) -> str:
    """The first cut that keeps the slice from being one piece."""
    shape = call.shape(0)
    for cut in sorted(_cuts(call)):
        if cut.length > 1 and cut.step != 1:
            return f"step {cut.step} on axis {cut.axis}"
        if cut.length < shape[cut.axis] and any(d != 1 for d in call.outputs[0].shape[: cut.axis]):
            where = f"starts at {cut.start}" if cut.start else f"ends at {cut.length}"
            return f"{where} on axis {cut.axis}, once for each index of the axes before it"
    return ""


def implement(call: Call, traits: DeviceTraits) -> Impl:
    return materialise(call, views(call), traits)


def _i64(*values: int) -> Array:
    return np.array(values, np.int64)


_END = 2**63 - 1

OPERATOR = Operator(
    name="Slice",
    infer=infer,
    axes=axes,
    reference=reference,
    implement=implement,
    views=views,
    why="the slice is one piece of its input",
    why_not=why_not,
    shape_infer_dependencies=(1, 2, 3, 4),
    examples=(
        Example(("f32[4,5,6]", _i64(1, 0, 2), _i64(3, 5, 4))),
        Example(("f32[4,5,37]", _i64(1), _i64(_END), _i64(-1))),
        Example(("f32[4,5,6]", _i64(-3, 1), _i64(-1, 100), _i64(1, 2), _i64(1, 2))),
        Example(("f32[4,5,6]", _i64(-1, 4), _i64(-_END, 0), _i64(2, 1), _i64(-1, -2))),
        Example(("i64[9]", _i64(-1), _i64(-100), _i64(0), _i64(-3))),
        Example(("f16[4,5]", _i64(0), _i64(2), _i64(-2))),
        Example(("i32[4,5]", np.array([1], np.int32), np.array([4], np.int32), np.array([1], np.int32))),
        Example(("bool[4,5]", _i64(0, 0), _i64(_END, 2**31 - 1))),
        Example(("f32[1,5,6]", _i64(2), _i64(4), _i64(1)), opset=11),
        Example(("f32[4,5]", _i64(3), _i64(3), _i64(1))),
        Example(("f32[4,5]", _i64(7), _i64(9), _i64(0))),
        Example(("f32[3,4]", _i64(1), _i64(3), None, _i64(1))),
        Example(("f32[3,4]", _i64(), _i64(), _i64())),
    ),
)
