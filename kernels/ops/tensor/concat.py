"""Concat: tensors one after the other along an axis.  Source: ONNX Concat-13."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asyncrt.dims import Dim
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import Impl
from asyncrt.kernels.operator import Example, Operator, ViewOf
from asyncrt.kernels.patterns.copy import takes_any_view
from asyncrt.kernels.patterns.side_by_side import Part, side_by_side
from asyncrt.kernels.shapes import check, normal_axis
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, Shape, show_shape
from asyncrt.memory.view import View


def _axis(call: Call) -> int:
    return normal_axis(call, call.attributes["axis"], len(call.shape(0)))


def infer(call: Call) -> tuple[Shape]:
    axis = _axis(call)
    result = list(call.shape(0))
    for index in range(1, len(call.inputs)):
        shape = call.shape(index)
        check(call, len(shape) == len(result), f"inputs 0 and {index} differ in rank")
        for a, dim in enumerate(shape):
            if a == axis:
                result[a] = result[a] + dim
            elif isinstance(result[a], Dim):
                result[a] = dim if isinstance(dim, int) else result[a]
            else:
                fits = isinstance(dim, Dim) or dim == result[a]
                check(call, fits, f"{show_shape(shape)} does not fit {show_shape(result)} beside axis {axis}")
    return (tuple(result),)


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    return (np.concatenate([x for x in inputs if x is not None], attributes["axis"]),)


def views(call: Call) -> tuple[ViewOf] | None:
    """The one input that has elements, if the others have none."""
    axis = _axis(call)
    dims = [call.shape(i)[axis] for i in range(len(call.inputs))]
    full = [i for i, dim in enumerate(dims) if isinstance(dim, Dim) or dim != 0]
    if len(full) > 1 and sum(not isinstance(dims[i], Dim) for i in full) < 2:
        full = [i for i in full if dims[i] != 0]
    if len(full) > 1:
        return None
    source = full[0] if full else 0
    return (ViewOf(source, View.dense(call.shape(source))),)


def why_not(call: Call) -> str:
    full = [i for i in range(len(call.inputs)) if call.shape(i)[_axis(call)] != 0]
    return f"{len(full)} of its inputs have elements"


def destinations(call: Call) -> tuple[View, ...]:
    """The part of the result that each input becomes."""
    axis, whole = _axis(call), View.dense(call.outputs[0].shape)
    parts: list[View] = []
    start = 0
    for index in range(len(call.inputs)):
        length = call.shape(index)[axis]
        parts.append(whole.slice(axis, start, length))
        start += length
    return tuple(parts)


def implement(call: Call, traits: DeviceTraits) -> Impl:
    parts = [Part(index, call.view(index), place) for index, place in enumerate(destinations(call))]
    return Impl("copy", side_by_side(parts, _axis(call), call.outputs[0].dtype.itemsize, traits))


OPERATOR = Operator(
    name="Concat",
    infer=infer,
    reference=reference,
    implement=implement,
    views=views,
    why="its other inputs are empty",
    why_not=why_not,
    takes_view=takes_any_view,
    destinations=destinations,
    examples=(
        Example(("f32[2,3,4]", "f32[2,5,4]"), {"axis": 1}),
        Example(("f32[2,3,4]", "f32[2,3,1]", "f32[2,3,7]"), {"axis": -1}),
        Example(("f16[3,5]", "f16[1,5]"), {"axis": 0}),
        Example(("i64[1]", "i64[1]", "i64[2]"), {"axis": 0}),
        Example(("i32[2,0,4]", "i32[2,5,4]", "i32[2,0,4]"), {"axis": 1}),
        Example(("bool[3,2]", "bool[3,9]"), {"axis": 1}),
        Example(("f32[7,9]",), {"axis": 1}),
        Example(tuple(f"u8[3,{n},2]" for n in (1, 40, 2, 17, 1, 3, 0, 5, 6, 4)), {"axis": 1}),
        Example(("f64[5,1]", "f64[5,1]", "f64[5,1]"), {"axis": 1}),
    ),
)
