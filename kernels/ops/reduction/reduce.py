"""The Reduce family: one value of all elements along some axes.

The axes are an attribute or, in newer versions, an input. A reduction over axes of one element that leaves the value
as it is (sum, mean, product, maximum, minimum) is the input's bytes.

Source: ONNX ReduceSum-13, ReduceMean-18, ReduceMax-20, ReduceMin-20, ReduceProd-18, ReduceL1-18, ReduceL2-18,
ReduceLogSum-18, ReduceLogSumExp-18, ReduceSumSquare-18.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from asyncrt.dims import Undetermined
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import Impl
from asyncrt.kernels.operator import Example, Operator, ViewOf
from asyncrt.kernels.patterns.copy import materialise
from asyncrt.kernels.patterns.reduction import GREATEST, MEAN, SUM, Pass, Reduction, norm, reduce_axes
from asyncrt.kernels.shapes import normal_axes, reference_call
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    Array,
    Shape,
)
from asyncrt.memory.view import View


class _Member(NamedTuple):
    """One operator of the family.

    Attributes:
        reduction: Its kernels.
        numpy: The result of an array and its axes, kept as unit axes.
        keeps_one: Whether the result of one element is that element.
        ints: Whether kernels take integers.
    """

    reduction: Reduction
    numpy: Callable[[Any, tuple[int, ...]], Any]
    keeps_one: bool
    ints: bool = True


def _axes(call: Call) -> tuple[int, ...]:
    """The reduced axes, counted from the front: an attribute before opset 18 (ReduceSum: 13), then an input."""
    rank = len(call.shape(0))
    axes = call.ints(1) if call.has(1) else list(call.attributes.get("axes") or ())
    if not axes:
        return () if call.attributes.get("noop_with_empty_axes", 0) else tuple(range(rank))
    return normal_axes(call, axes, rank)


def infer(call: Call) -> tuple[Shape]:
    axes = _axes(call)
    keep = call.attributes.get("keepdims", 1)
    return (tuple(1 if a in axes else d for a, d in enumerate(call.shape(0)) if keep or a not in axes),)


def _views(call: Call) -> tuple[ViewOf] | None:
    shape = call.shape(0)
    if any(shape[axis] != 1 for axis in _axes(call)):
        return None
    return (ViewOf(0, View.dense(call.outputs[0].shape)),)


def _why_not(call: Call) -> str:
    shape = call.shape(0)
    axis = next(axis for axis in _axes(call) if shape[axis] != 1)
    return f"reduces axis {axis}, which has {shape[axis]} elements"


def _implement(name: str, call: Call, traits: DeviceTraits) -> Impl:
    if _TABLE[name].keeps_one:
        moved = _views(call)
        if moved is not None:
            return materialise(call, moved, traits)
    return reduce_axes(_TABLE[name].reduction, call.inputs[0], _axes(call), traits)


# The table.

_MIN = Pass("highest", "(v < a || v != v) ? v : a", "(v < a || v != v) ? v : a", "select(a, v, (v < a) | (v != v))")
_EXPS = Pass("0", "a + asyncrt_exp(v - m)", "a + v")


def _log_sum_exp(x: Any, axes: tuple[int, ...]) -> Any:
    highest = np.max(x, axis=axes, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(highest), highest, 0)
    return np.log(np.sum(np.exp(x - shift), axis=axes, keepdims=True)) + shift


def _extreme(function: Any, lowest: bool) -> Callable[[Any, tuple[int, ...]], Any]:
    """numpy.max or numpy.min, that of nothing being the lowest or the highest value of the dtype."""

    def reduce(x: Any, axes: tuple[int, ...]) -> Any:
        if x.size or 0 not in [x.shape[a] for a in axes]:
            return function(x, axis=axes, keepdims=True)
        if x.dtype.kind in "iu":
            limits = np.iinfo(x.dtype)
            first: Any = limits.min if lowest else limits.max
        else:
            first = (not lowest) if x.dtype == np.bool_ else -np.inf if lowest else np.inf
        return function(x, axis=axes, keepdims=True, initial=first)

    return reduce


def _mean(x: Any, axes: tuple[int, ...]) -> Any:
    total = np.sum(x, axis=axes, keepdims=True)
    n = int(np.prod([x.shape[a] for a in axes], dtype=np.int64))
    if x.dtype.kind == "f":
        return total / n if n else np.full_like(total, np.nan)
    quotient = total // max(n, 1)
    return quotient + ((total < 0) & (total % max(n, 1) != 0))  # towards 0, exactly


def _numpy(function: Any, prepare: Callable[[Any], Any] = lambda x: x) -> Callable[[Any, tuple[int, ...]], Any]:
    return lambda x, axes: function(prepare(x), axis=axes, keepdims=True)


def _plain(name: str, only: Pass, finish: str) -> Reduction:
    return Reduction(name.lower(), (only,), finish)


_TABLE: dict[str, _Member] = {
    "ReduceMean": _Member(MEAN, _mean, True),
    "ReduceSum": _Member(_plain("ReduceSum", SUM, "a"), _numpy(np.sum), True),
    "ReduceMax": _Member(GREATEST, _extreme(np.max, True), True),
    "ReduceMin": _Member(Reduction("reducemin", (_MIN,), "a", selects=True), _extreme(np.min, False), True),
    "ReduceProd": _Member(_plain("ReduceProd", Pass("1", "a * v", "a * v"), "a"), _numpy(np.prod), True),
    "ReduceL1": _Member(norm(1), _numpy(np.sum, np.abs), False),
    "ReduceL2": _Member(norm(2), lambda x, axes: np.sqrt(np.sum(x * x, axis=axes, keepdims=True)), False, ints=False),
    "ReduceLogSum": _Member(
        _plain("ReduceLogSum", SUM, "log(a)"), lambda x, axes: np.log(np.sum(x, axis=axes, keepdims=True)), False, ints=False
    ),
    "ReduceLogSumExp": _Member(
        Reduction("reducelogsumexp", (GREATEST.passes[0], _EXPS), "log(a) + m"), _log_sum_exp, False, ints=False
    ),
    "ReduceSumSquare": _Member(_plain("ReduceSumSquare", norm(2).passes[0], "a"), _numpy(np.sum, np.square), False),
}
_EXACT_FOR_OBJECTS = ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd")


def _reference(name: str, attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x: Any = inputs[0]
    axes = _axes(reference_call(name, attributes, inputs))
    if x.dtype == object and name not in _EXACT_FOR_OBJECTS:
        raise Undetermined(f"{name} of symbolic dims")
    if _TABLE[name].keeps_one and all(x.shape[a] == 1 for a in axes):
        result = x.copy()  # NumPy's sum of -0.0 alone would be +0.0
        return (result if attributes.get("keepdims", 1) else np.squeeze(result, axes),)
    exact = x.dtype.kind in "bO" or (x.dtype.kind in "iu" and _TABLE[name].ints)
    wide = x if exact else x.astype(np.float64)
    with np.errstate(all="ignore"):
        result = np.asarray(_TABLE[name].numpy(wide, axes)).astype(x.dtype)
    if not attributes.get("keepdims", 1):
        result = result.reshape(tuple(d for a, d in enumerate(result.shape) if a not in axes))
    return (result,)


_I64 = np.int64
_COMMON = (
    Example(("f32[3,5,37]", np.array([-1], _I64))),
    Example(("f32[4,33,19]", np.array([1], _I64)), {"keepdims": 0}),
    Example(("f32[7,100]", np.array([0], _I64))),
    Example(("f32[2,3,4,5]", np.array([0, 2], _I64))),
    Example(("f32[2,3,4,5]", np.array([3, 1], _I64)), {"keepdims": 0}),
    Example(("f32[3,1000]", np.array([1], _I64))),
    Example(("f32[2,9,300]",), {"keepdims": 0}),
    Example(("f16[3,5,40]", np.array([2], _I64))),
    Example(("f16[5,3,21]", np.array([0], _I64))),
    Example(("f32[1,5,1]", np.array([0, 2], _I64))),
    Example(("f32[2,3]", np.array([], _I64)), {"noop_with_empty_axes": 1}),
    Example(("f32[2,3]", np.array([], _I64))),
    Example(("f32[3,2]",), {"axes": (1,)}, opset=11),
    Example(("f64[3,7]", np.array([1], _I64))),
)
_POSITIVE = tuple(
    Example(
        (np.linspace(0.1, 3, int(np.prod(shape)), dtype=dtype).reshape(shape), np.array(axes, _I64)),
        {"keepdims": keep},
    )
    for shape, dtype, axes, keep in (
        ((3, 70), np.float32, [1], 1),
        ((9, 40), np.float32, [0], 0),
        ((2, 3, 4, 5), np.float32, [0, -2], 1),
        ((3, 20), np.float16, [1], 1),
        ((3, 1), np.float32, [1], 1),
    )
)
_INTS = (
    Example(("i64[3,40]", np.array([1], _I64))),
    Example(("i64[5,17]", np.array([0], _I64)), {"keepdims": 0}),
    Example(("i64[3,300]",)),
)
_EMPTY = (Example(("f32[2,0,3]", np.array([1], _I64))),)


def _operator(name: str) -> Operator:
    member = _TABLE[name]
    examples = _POSITIVE if name == "ReduceLogSum" else _COMMON + (_INTS if member.ints else ())
    if name not in ("ReduceMean",):
        examples += _EMPTY
    if name in ("ReduceMax", "ReduceMin"):
        examples += (
            Example(("bool[3,20]", np.array([1], _I64)), opset=20),
            Example(("u8[20,3]", np.array([0], _I64)), opset=20),
            Example((np.array([[1, np.nan, 2], [-np.inf, -1, 0]], np.float32), np.array([1], _I64))),
        )
    if name in ("ReduceSum", "ReduceProd", "ReduceL1", "ReduceMean"):
        examples += (Example(("i32[3,20]", np.array([1], _I64))),)
    if name == "ReduceLogSumExp":
        examples += (Example((np.array([[1000, 1001], [-1000, -1001]], np.float32), np.array([1], _I64))),)
    return Operator(
        name=name,
        infer=infer,
        reference=functools.partial(_reference, name),
        implement=functools.partial(_implement, name),
        views=_views if member.keeps_one else None,
        why="only unit axes are reduced",
        why_not=_why_not,
        shape_infer_dependencies=(1,),
        device_types=None if member.ints else frozenset((FLOAT16, BFLOAT16, FLOAT32, FLOAT64)),
        examples=examples,
    )


OPERATORS = tuple(_operator(name) for name in _TABLE)
