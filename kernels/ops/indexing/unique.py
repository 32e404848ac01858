"""Unique: the different elements, or slices along an axis, and where they occur.  Source: ONNX Unique-11."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrt.dims import Undetermined
from asyncrt.kernels.call import Attributes, Call, ValueUnknown
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.shapes import normal_axis
from asyncrt.layout import Array, Shape


def infer(call: Call) -> tuple[Shape, ...]:
    axis = call.attributes.get("axis")
    if axis is not None:
        normal_axis(call, axis, len(call.shape(0)))
    raise ValueUnknown(f"'{call.name}': how many elements are different is known when they are sorted")


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
    x: Any = inputs[0]
    if x.dtype == object:
        raise Undetermined("which dims are equal?")
    axis = attributes.get("axis")
    values, first, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    inverse = inverse.reshape(-1)
    if not attributes.get("sorted", 1):  # in the order in which they first occur
        order = np.argsort(first, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        values = np.take(values, order, axis=0 if axis is None else axis)
        first, inverse, counts = first[order], place[inverse], counts[order]
    return values, first.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64)


def host_nbytes(call: Call) -> int:
    """The elements sorted, and for each its place, its group and how many are in that, each of them twice."""
    count = math.prod(call.shape(0))
    return (4 * call.dtype(0).itemsize + 80) * count


_X = np.array([2, 1, 1, 3, 4, 3], np.float32)
_ROWS = np.array([[1, 0, 0], [1, 0, 0], [2, 3, 4]], np.float32)
OPERATOR = Operator(
    name="Unique",
    infer=infer,
    reference=reference,
    host_nbytes=host_nbytes,
    shape_infer_dependencies=(0,),
    examples=(
        Example((_X,), outputs=4),
        Example((_X,), {"sorted": 0}, outputs=4),
        Example((_ROWS,), {"axis": 0}, outputs=4),
        Example((_ROWS,), {"axis": -1}, outputs=4),
        Example((_ROWS,), outputs=1),
        Example((np.array([5, 5, -1], np.int64),), outputs=2),
    ),
)
