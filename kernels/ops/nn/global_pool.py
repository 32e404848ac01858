"""GlobalAveragePool, GlobalMaxPool and GlobalLpPool: each channel of ``[N, C, ...]`` becomes one value.

Source: ONNX GlobalAveragePool-22, GlobalMaxPool-22, GlobalLpPool-22.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import Impl
from asyncrt.kernels.operator import Example, Operator, ViewOf
from asyncrt.kernels.patterns.copy import materialise
from asyncrt.kernels.patterns.reduction import GREATEST, MEAN, Reduction, norm, reduce_axes
from asyncrt.kernels.shapes import check, count
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, Shape
from asyncrt.memory.view import View

from .pool import lp_power

_Wide = npt.NDArray[np.float64]


def infer(call: Call) -> tuple[Shape]:
    shape = call.shape(0)
    check(call, len(shape) >= 2, f"the data must have at least two axes, it has {len(shape)}")
    lp_power(call.attributes)
    return (shape[:2] + (1,) * (len(shape) - 2),)


def _views(call: Call) -> tuple[ViewOf] | None:
    """The mean or greatest of one element is the element itself."""
    shape = call.shape(0)
    return (ViewOf(0, View.dense(shape)),) if all(d == 1 for d in shape[2:]) else None


def _lp(attributes: Attributes) -> Reduction:
    return norm(lp_power(attributes))


def _operator(
    name: str,
    reduction: Callable[[Attributes], Reduction],
    reduce: Callable[[Attributes, _Wide, tuple[int, ...]], _Wide],
    examples: tuple[Example, ...],
    *,
    moves: bool,
) -> Operator:
    def implement(call: Call, traits: DeviceTraits) -> Impl:
        same = _views(call) if moves else None
        if same is not None:
            return materialise(call, same, traits)
        return reduce_axes(reduction(call.attributes), call.inputs[0], range(2, len(call.shape(0))), traits)

    def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
        x = inputs[0]
        assert x is not None
        return (reduce(attributes, x.astype(np.float64), tuple(range(2, x.ndim))).astype(x.dtype),)

    return Operator(
        name=name,
        infer=infer,
        reference=reference,
        implement=implement,
        views=_views if moves else None,
        why="each channel has one element",
        examples=examples,
    )


def _root(attributes: Attributes, x: _Wide, axes: tuple[int, ...]) -> _Wide:
    p = lp_power(attributes)
    result: _Wide = np.power(np.sum(np.abs(x) ** p, axis=axes, keepdims=True), 1 / p)
    return result


def _mean(attributes: Attributes, x: _Wide, axes: tuple[int, ...]) -> _Wide:
    with np.errstate(invalid="ignore"):  # the mean of nothing is NaN
        total: _Wide = np.sum(x, axis=axes, keepdims=True, initial=-0.0)  # the sum of -0.0 alone is -0.0
        result: _Wide = total / np.float64(count(x.shape[2:]))
    return result


def _greatest(attributes: Attributes, x: _Wide, axes: tuple[int, ...]) -> _Wide:
    result: _Wide = np.max(x, axis=axes, keepdims=True, initial=-np.inf)
    return result


_SHAPES = (Example(("f32[2,3,7,9]",)), Example(("f16[1,4,3,11]",)), Example(("f32[3,2,1,1]",)))

OPERATORS = (
    _operator("GlobalAveragePool", lambda _: MEAN, _mean, _SHAPES, moves=True),
    _operator("GlobalMaxPool", lambda _: GREATEST, _greatest, _SHAPES, moves=True),
    _operator("GlobalLpPool", _lp, _root, (*_SHAPES, Example(("f32[2,3,5,5]",), {"p": 3})), moves=False),
)
