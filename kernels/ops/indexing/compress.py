"""Compress: the slices along an axis (or the elements) for which the condition holds.  Source: ONNX Compress-11."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrt.dims import Dim
from asyncrt.errors import IndexOutOfRange
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.impl import Impl, KernelSource, Launch, inp, scratch
from asyncrt.kernels.operator import Example, Operator, ViewOf
from asyncrt.kernels.patterns.copy import materialise
from asyncrt.kernels.patterns.indexing import gather_rows, progression, progression_view
from asyncrt.kernels.patterns.walk import lines
from asyncrt.kernels.shapes import count, normal_axis
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import BOOL, INT32, Array, Shape


def _view(call: Call) -> tuple[Shape, int]:
    """The shape that is compressed and its axis; without an axis, all elements in a row."""
    shape, axis = call.shape(0), call.attributes.get("axis")
    return ((count(shape),), 0) if axis is None else (shape, normal_axis(call, axis, len(shape)))


def _chosen(call: Call) -> list[int]:
    return [k for k, holds in enumerate(call.vector(1)) if holds]


def infer(call: Call) -> tuple[Shape]:
    shape, axis = _view(call)
    chosen = _chosen(call)
    if chosen and not isinstance(shape[axis], Dim):
        last = chosen[-1]
        if not last < shape[axis]:
            raise IndexOutOfRange(call.name, 1, last, last, 0, shape[axis] - 1)
    return ((*shape[:axis], len(chosen), *shape[axis + 1 :]),)


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x: Any = inputs[0]
    condition: Any = inputs[1]
    return (np.compress(condition, x, axis=attributes.get("axis")),)


def views(call: Call) -> tuple[ViewOf] | None:
    shape, axis = _view(call)
    chosen = _chosen(call)
    found = progression(chosen, shape[axis])
    return None if found is None else (ViewOf(0, progression_view(shape, axis, (len(chosen),), *found)),)


def why_not(call: Call) -> str:
    moved = views(call)
    return "what is chosen is no dense range" if moved is None else moved[0].view.why_not_dense()


def implement(call: Call, traits: DeviceTraits) -> Impl:
    moved = views(call)
    if moved is not None:
        return materialise(call, moved, traits)
    shape, axis = _view(call)
    outer, extent, inner = lines(shape, axis)
    chosen = call.outputs[0].shape[axis]
    find = Launch(_find_kernel(), (inp(1), scratch(0)), (count(call.shape(1)), chosen), (1,), (1,))
    gather = gather_rows(
        call.dtype(0).itemsize,
        scratch(0),
        INT32,
        traits,
        batches=outer,
        count=chosen,
        batch_step=extent * inner,
        index_step=0,
        dims=(extent,),
        steps=(inner,),
        inner=inner,
        known=True,
    )
    return Impl("gather", (find, gather), scratch=(4 * chosen,))


@functools.cache
def _find_kernel() -> KernelSource:
    """The positions at which the condition holds."""
    body = "int k = 0; for (int i = 0; i < n && k < chosen; i++) if (condition[i]) places[k++] = i;"
    return kernel("compress_find", (("condition", BOOL, "r"), ("places", INT32, "w")), ("n", "chosen"), body)


_SOME = np.array([True, False, False, True, True])
OPERATOR = Operator(
    name="Compress",
    infer=infer,
    reference=reference,
    implement=implement,
    views=views,
    why="a dense range is chosen",
    why_not=why_not,
    shape_infer_dependencies=(1,),
    examples=(
        Example(("f32[5,20]", _SOME), {"axis": 0}),
        Example(("f32[2,5,3]", _SOME), {"axis": 1}),
        Example(("i64[2,7]", _SOME), {"axis": -1}),
        Example(("f16[3,2]", _SOME)),
        Example(("f32[2,3]", np.array([False, True])), {"axis": 0}),
        Example(("f32[3,2]", np.array([True, True, True])), {"axis": 0}),
        Example(("bool[5]", _SOME), {"axis": 0}),
    ),
)
