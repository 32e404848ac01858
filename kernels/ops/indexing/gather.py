"""Gather: slices of the data along one axis, by index.  Source: ONNX Gather-13."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import Impl, inp
from asyncrt.kernels.indices import Indices, from_either_end
from asyncrt.kernels.operator import Example, Operator, ViewOf
from asyncrt.kernels.patterns.copy import materialise
from asyncrt.kernels.patterns.indexing import (
    check_not_empty,
    gather_rows,
    normal_indices,
    progression,
    progression_view,
)
from asyncrt.kernels.patterns.walk import lines
from asyncrt.kernels.shapes import count, normal_axis
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, Shape


def _axis(call: Call) -> int:
    return normal_axis(call, call.attributes.get("axis", 0), len(call.shape(0)))


def infer(call: Call) -> tuple[Shape]:
    shape, axis = call.shape(0), _axis(call)
    result = (*shape[:axis], *call.shape(1), *shape[axis + 1 :])
    check_not_empty(call, (shape[axis],), result)
    return (result,)


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x, indices = inputs[0], inputs[1]
    assert x is not None
    assert indices is not None
    axis = attributes.get("axis", 0)
    return (np.asarray(np.take(x, normal_indices(indices, x.shape[axis]), axis=axis), x.dtype),)


def views(call: Call) -> tuple[ViewOf] | None:
    shape, axis = call.shape(0), _axis(call)
    found = None if call.value(1) is None else progression(call.flat(1), shape[axis])
    if found is None and shape[axis] == 1:
        found = 0, 0  # every index is that of the only element
    return None if found is None else (ViewOf(0, progression_view(shape, axis, call.shape(1), *found)),)


def why_not(call: Call) -> str:
    moved = views(call)
    if moved is not None:
        return moved[0].view.why_not_dense()
    return "the indices are not known on the host" if call.value(1) is None else "the indices are no dense range"


def indices(call: Call) -> Indices:
    return from_either_end(1, call.shape(0)[_axis(call)])


def implement(call: Call, traits: DeviceTraits) -> Impl:
    moved = views(call)
    if moved is not None:
        return materialise(call, moved, traits)
    outer, extent, inner = lines(call.shape(0), _axis(call))
    launch = gather_rows(
        call.dtype(0).itemsize,
        inp(1),
        call.dtype(1),
        traits,
        batches=outer,
        count=count(call.shape(1)),
        batch_step=extent * inner,
        index_step=0,
        dims=(extent,),
        steps=(inner,),
        inner=inner,
        known=call.value(1) is not None,
    )
    return Impl("gather", (launch,))


_I64 = np.int64
OPERATOR = Operator(
    name="Gather",
    infer=infer,
    reference=reference,
    implement=implement,
    views=views,
    indices=indices,
    why="the indices are a dense range",
    why_not=why_not,
    value_hints=(1,),
    examples=(
        Example(("f32[7,37]", np.array([[3, -1, 0], [6, 6, -7]], _I64))),
        Example(("f32[2,5,3]", np.array([4, 0, -2, 2], np.int32)), {"axis": 1}),
        Example(("f16[3,9]", np.array([8, 1, 1, -9], _I64)), {"axis": -1}),
        Example(("i64[4]", np.array(-1, _I64))),
        Example(("i64[4]", np.array([2], _I64))),
        Example(("f32[6,4]", np.array([0, 1, 2, 3, 4, 5], _I64))),
        Example(("f32[6,4]", np.array([5, 3, 1], _I64))),
        Example(("f32[2,6]", np.array([[1, 2], [3, 4]], _I64)), {"axis": 1}),
        Example(("f32[2,1,3]", np.array([0, -1, 0], _I64)), {"axis": 1}),
        Example(("bool[6]", np.array([5, 0, 4], _I64))),
        Example(("u8[3,2,40]", np.array([2, 0, 2], _I64))),
        Example(("f64[3,2]", np.array([2, 0, 1], _I64))),
        Example(("bf16[9,17]", np.array([2, 0, 8], _I64))),
    ),
)
