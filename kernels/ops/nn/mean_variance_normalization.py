"""MeanVarianceNormalization and LpNormalization: mean 0 and variance 1, or norm 1, along some axes.

The axes that are normalised together are brought to the end first where they are not there already.

Source: ONNX MeanVarianceNormalization-13, LpNormalization-22.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import Impl, Launch, inp, out, scratch
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.patterns.copy import copy_launch
from asyncrt.kernels.patterns.normalize import normalize_rows
from asyncrt.kernels.shapes import check, count, normal_axes, normal_axis
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, Shape, row_major
from asyncrt.memory.view import View

_TINY = 1e-9  # added to the standard deviation


def _mean_variance_infer(call: Call) -> tuple[Shape]:
    normal_axes(call, call.attributes.get("axes", (0, 2, 3)), len(call.shape(0)))
    return (call.shape(0),)


def _mean_variance_reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x = inputs[0]
    assert x is not None
    wide, axes = x.astype(np.float64), tuple(attributes.get("axes", (0, 2, 3)))
    with np.errstate(all="ignore"):
        centred = wide - wide.mean(axis=axes, keepdims=True)
        deviation = np.sqrt(np.square(centred).mean(axis=axes, keepdims=True))
        return ((centred / (deviation + _TINY)).astype(x.dtype),)


def _lp_infer(call: Call) -> tuple[Shape]:
    normal_axis(call, call.attributes.get("axis", -1), len(call.shape(0)))
    check(call, call.attributes.get("p", 2) in (1, 2), "p must be 1 or 2")
    return (call.shape(0),)


def _lp_reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x = inputs[0]
    assert x is not None
    wide, axis = x.astype(np.float64), attributes.get("axis", -1)
    with np.errstate(all="ignore"):
        if attributes.get("p", 2) == 1:
            norm = np.abs(wide).sum(axis=axis, keepdims=True)
        else:
            norm = np.sqrt(np.square(wide).sum(axis=axis, keepdims=True))
        return (np.where(norm == 0, 0, wide / norm).astype(x.dtype),)


def _normalize(call: Call, traits: DeviceTraits, statistics: str, axes: Sequence[int], epsilon: float) -> Impl:
    shape, dtype = call.shape(0), call.dtype(0)
    order = tuple(a for a in range(len(shape)) if a not in axes) + tuple(sorted(axes))
    moved = View.dense(shape).permute(order)
    n = count(shape[a] for a in axes)
    rows = count(shape) // n
    if moved.is_dense:
        return Impl("rows", (normalize_rows(statistics, inp(0), out(0), dtype, rows, n, epsilon, traits),))
    back = [0] * len(shape)
    for position, axis in enumerate(order):
        back[axis] = row_major(moved.shape)[position]
    nbytes = count(shape) * dtype.itemsize
    dense = View.dense(moved.shape)
    launches = (
        copy_launch(inp(0), moved, scratch(0), dense, dtype.itemsize, traits),
        normalize_rows(statistics, scratch(0), scratch(1), dtype, rows, n, epsilon, traits),
        copy_launch(scratch(1), View(shape, tuple(back)), out(0), View.dense(shape), dtype.itemsize, traits),
    )
    return Impl("moved rows", tuple(x for x in launches if isinstance(x, Launch)), (nbytes, nbytes))


def _mean_variance(call: Call, traits: DeviceTraits) -> Impl:
    axes = normal_axes(call, call.attributes.get("axes", (0, 2, 3)), len(call.shape(0)))
    return _normalize(call, traits, "deviation", axes, _TINY)


def _lp(call: Call, traits: DeviceTraits) -> Impl:
    axis = normal_axis(call, call.attributes.get("axis", -1), len(call.shape(0)))
    return _normalize(call, traits, "l1" if call.attributes.get("p", 2) == 1 else "l2", (axis,), 0.0)


_POSITIVE = np.array([[1, 2, 3], [0, 5, 0], [4, 0, 2]], np.float32)
OPERATORS = (
    Operator(
        name="MeanVarianceNormalization",
        infer=_mean_variance_infer,
        reference=_mean_variance_reference,
        implement=_mean_variance,
        examples=(
            Example(("f32[3,4,5,6]",)),
            Example(("f32[3,37]",), {"axes": (-1,)}),
            Example(("f32[2,3,4]",), {"axes": (0, 2)}),
            Example(("f32[1,3,4,5]",)),
        ),
    ),
    Operator(
        name="LpNormalization",
        infer=_lp_infer,
        reference=_lp_reference,
        implement=_lp,
        examples=(
            Example(("f32[3,37]",)),
            Example(("f32[3,5,7]",), {"axis": 1, "p": 2}),
            Example((_POSITIVE,), {"p": 1}),
            Example((_POSITIVE,), {"p": 2}),
            Example(("f16[3,40]",)),
            Example(("f64[4,3]",), {"axis": 1}),
        ),
    ),
)
