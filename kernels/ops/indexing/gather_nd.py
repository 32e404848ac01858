"""GatherND: slices of the data by index tuples, after `batch_dims` shared axes.  Source: ONNX GatherND-13."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import Impl, inp
from asyncrt.kernels.indices import Indices, from_either_end
from asyncrt.kernels.operator import Example, Operator, ViewOf
from asyncrt.kernels.patterns.copy import materialise
from asyncrt.kernels.patterns.indexing import check_not_empty, gather_rows, known_ints, normal_indices, run_start
from asyncrt.kernels.shapes import check, count, ints
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, Shape, row_major
from asyncrt.memory.view import View


def _batch(call: Call) -> int:
    batch = int(call.attributes.get("batch_dims", 0))
    rank = min(len(call.shape(0)), len(call.shape(1)))
    check(call, 0 <= batch < rank, f"batch_dims {batch} does not fit {rank} axes")
    return batch


def infer(call: Call) -> tuple[Shape]:
    shape, indices, batch = call.shape(0), call.shape(1), _batch(call)
    depth = int(indices[-1])
    check(call, 1 <= depth <= len(shape) - batch, f"index tuples of {depth} do not fit {len(shape) - batch} axes")
    for a, b in zip(shape[:batch], indices[:batch], strict=True):
        if isinstance(a, int) and isinstance(b, int):
            check(call, a == b, f"the batch axes differ: {a} and {b}")
    result = (*indices[:-1], *shape[batch + depth :])
    check_not_empty(call, shape[batch : batch + depth], result)
    return (result,)


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x, indices = inputs[0], inputs[1]
    assert x is not None
    assert indices is not None
    batch = int(attributes.get("batch_dims", 0))
    lead = indices.shape[:-1]
    places = [
        np.arange(lead[a]).reshape((1,) * a + (-1,) + (1,) * (len(lead) - a - 1)) for a in range(batch)
    ]  # fmt: skip
    places += [normal_indices(indices[..., k], x.shape[batch + k]) for k in range(indices.shape[-1])]
    return (np.asarray(x[tuple(np.broadcast_to(p, lead) for p in places)], x.dtype),)


def views(call: Call) -> tuple[ViewOf] | None:
    """One piece of the data, if the rows that are taken lie one after the other."""
    shape, indices, batch = ints(call.shape(0)), ints(call.shape(1)), _batch(call)
    depth, inner = indices[-1], count(shape[batch + indices[-1] :])
    dims, rows = shape[batch : batch + depth], count(indices[batch:-1])
    at = known_ints(call, 1)
    if at is None:
        if any(d != 1 for d in dims):
            return None
        at = np.zeros(indices, np.int64)  # every index is that of the only element
    at = np.where(at < 0, at + np.array(dims), at)
    if not ((at >= 0) & (at < np.array(dims))).all():
        return None
    places = (at * np.array(row_major(dims))).sum(axis=-1).reshape(-1, rows) if rows else np.zeros((0, 0), np.int64)
    start = run_start((places + count(dims) * np.arange(len(places))[:, None]).reshape(-1))
    result = call.outputs[0].shape
    return None if start is None else (ViewOf(0, View(result, row_major(result), start * inner)),)


def why_not(call: Call) -> str:
    unknown = call.value(1) is None
    return "the indices are not known on the host" if unknown else "the rows do not lie one after the other"


def indices(call: Call) -> Indices:
    batch = _batch(call)
    return from_either_end(1, *call.shape(0)[batch : batch + call.shape(1)[-1]])


def implement(call: Call, traits: DeviceTraits) -> Impl:
    shape, at, batch = call.shape(0), call.shape(1), _batch(call)
    moved = views(call)
    if moved is not None:
        return materialise(call, moved, traits)
    depth = at[-1]
    rows = count(at[batch:-1])
    launch = gather_rows(
        call.dtype(0).itemsize,
        inp(1),
        call.dtype(1),
        traits,
        batches=count(at[:batch]),
        count=rows,
        batch_step=count(shape[batch:]),
        index_step=rows,
        dims=shape[batch : batch + depth],
        steps=row_major(shape)[batch : batch + depth],
        inner=count(shape[batch + depth :]),
        known=call.value(1) is not None,
    )
    return Impl("gather", (launch,))


_I64 = np.int64
OPERATOR = Operator(
    name="GatherND",
    infer=infer,
    reference=reference,
    implement=implement,
    views=views,
    indices=indices,
    why="the rows lie one after the other",
    why_not=why_not,
    value_hints=(1,),
    examples=(
        Example(("f32[2,3,4]", np.array([[0, 1], [0, 2], [1, 0]], _I64))),
        Example(("f32[2,3]", np.array([[[0], [1], [2]], [[0], [1], [2]]], _I64)), {"batch_dims": 1}),
        Example(("f32[2,1,3]", np.array([[[0]], [[-1]]], _I64)), {"batch_dims": 1}),
        Example(("f32[2,3,19]", np.array([[0, 1], [-1, 2], [1, -3]], _I64))),
        Example(("f32[2,3]", np.array([[0, 1], [-1, 2]], _I64))),
        Example(("f32[4,3]", np.array([[[3], [0]]], _I64))),
        Example(("f16[2,3,4]", np.array([[1], [2]], _I64)), {"batch_dims": 1}),
        Example(("i64[2,3,4]", np.array([[[1], [2]], [[0], [-1]]], _I64)), {"batch_dims": 1}),
        Example(("f32[2,2,3,5]", np.array([[[[1, 2]], [[0, 0]]], [[[2, 1]], [[-1, -1]]]], _I64)), {"batch_dims": 2}),
        Example(("bool[5]", np.array([4], _I64))),
    ),
)
