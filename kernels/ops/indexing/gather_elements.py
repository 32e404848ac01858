"""GatherElements: each element by its own index along one axis.  Source: ONNX GatherElements-13."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import Impl, inp, out
from asyncrt.kernels.indices import Indices, clamped, from_either_end
from asyncrt.kernels.operator import Example, Operator, ViewOf
from asyncrt.kernels.patterns.copy import BITS, materialise
from asyncrt.kernels.patterns.indexing import check_not_empty, known_ints, normal_indices, run_start
from asyncrt.kernels.patterns.walk import WalkedBuffer, walk
from asyncrt.kernels.shapes import check, ints, normal_axis
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, Shape, row_major
from asyncrt.memory.view import View


def _axis(call: Call) -> int:
    return normal_axis(call, call.attributes.get("axis", 0), len(call.shape(0)))


def infer(call: Call) -> tuple[Shape]:
    shape, indices, axis = call.shape(0), call.shape(1), _axis(call)
    check(call, len(shape) == len(indices), f"data has {len(shape)} axes and indices have {len(indices)}")
    for a, (have, want) in enumerate(zip(shape, indices, strict=True)):
        if a != axis and isinstance(have, int) and isinstance(want, int):
            check(call, want <= have, f"indices are longer than the data on axis {a}: {want} and {have}")
    check_not_empty(call, (shape[axis],), indices)
    return (indices,)


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x, indices = inputs[0], inputs[1]
    assert x is not None
    assert indices is not None
    axis = attributes.get("axis", 0) % x.ndim
    at = normal_indices(indices, x.shape[axis])
    part = x[tuple(slice(None) if a == axis else slice(n) for a, n in enumerate(indices.shape))]
    return (np.take_along_axis(part, at, axis),)


def views(call: Call) -> tuple[ViewOf] | None:
    """One piece of the data, if the elements that are taken lie one after the other."""
    axis, result = _axis(call), tuple(ints(call.shape(1)))
    shape = tuple(ints(call.shape(0)))
    strides = row_major(shape)
    if shape[axis] == 1:  # every index is that of the only element
        return (ViewOf(0, View(result, tuple(0 if a == axis else s for a, s in enumerate(strides)))),)
    at = known_ints(call, 1)
    if at is None:
        return None
    at = np.where(at < 0, at + shape[axis], at)
    if ((at < 0) | (at >= shape[axis])).any():
        return None
    places = at * strides[axis]
    for a, dim in enumerate(result):
        if a != axis:
            places = places + (np.arange(dim) * strides[a]).reshape((-1,) + (1,) * (len(result) - 1 - a))
    start = run_start(places.reshape(-1))
    return None if start is None else (ViewOf(0, View(result, row_major(result), start)),)


def why_not(call: Call) -> str:
    moved = views(call)
    if moved is not None:
        return moved[0].view.why_not_dense()
    unknown = call.value(1) is None
    return "the indices are not known on the host" if unknown else "the elements do not lie one after the other"


def indices(call: Call) -> Indices:
    return from_either_end(1, call.shape(0)[_axis(call)])


def implement(call: Call, traits: DeviceTraits) -> Impl:
    moved = views(call)
    if moved is not None:
        return materialise(call, moved, traits)
    shape, axis = call.shape(0), _axis(call)
    strides = row_major(shape)
    bits, known = BITS[call.dtype(0).itemsize], call.value(1) is not None
    launch = walk(
        "gather_elements",
        f"long v = index[i]; if (v < 0) v += extent; {clamped('v', 'extent', 'i', known=known)} "
        "y[i] = x[p + (int)v * step];",
        call.shape(1),
        (WalkedBuffer("x", inp(0), bits, "r"), WalkedBuffer("index", inp(1), call.dtype(1), "r"), WalkedBuffer("y", out(0), bits, "w")),
        traits,
        looks=not known,
        offsets=(("p", tuple(0 if a == axis else s for a, s in enumerate(strides))),),
        ints=(("extent", shape[axis]), ("step", strides[axis])),
    )
    return Impl("gather", () if launch is None else (launch,))


_I64 = np.int64
OPERATOR = Operator(
    name="GatherElements",
    infer=infer,
    reference=reference,
    implement=implement,
    views=views,
    indices=indices,
    why="the elements lie one after the other",
    why_not=why_not,
    value_hints=(1,),
    examples=(
        Example(("f32[3,2]", np.array([[0, 0], [1, 1], [2, 2]], _I64))),
        Example(("f32[2,3]", np.array([[0, 1, -1], [0, 1, 2]], _I64)), {"axis": 1}),
        Example(("f32[1,5]", np.array([[2, 3]], _I64)), {"axis": 1}),
        Example(("f32[2,1]", np.array([[0, 0, -1], [0, 0, 0]], _I64)), {"axis": 1}),
        Example(("f32[3,3]", np.array([[1, 2, 0], [2, 0, 0]], _I64))),
        Example(("f32[2,3,4]", np.array([[[-1], [0], [2]], [[1], [1], [-4]]], _I64)), {"axis": 2}),
        Example(("f32[2,5]", np.array([[4, 0, -1, 2, 2, 1, 3]] * 2, np.int32)), {"axis": 1}),
        Example(("i64[5]", np.array([4, 0, -1], _I64))),
        Example(("f16[3,2]", np.array([[1, 1], [-3, 2]], _I64)), {"axis": 0}),
        Example(("bool[4,2]", np.array([[3, 1]], _I64))),
    ),
)
