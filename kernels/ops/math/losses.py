"""Losses of classes: the negative logarithm of a probability, or of the softmax of scores. They run on the host.

Classes are on axis 1. Elements whose target is `ignore_index` do not count; "mean" divides by the weights that count.

Source: ONNX NegativeLogLikelihoodLoss-22, SoftmaxCrossEntropyLoss-13.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrt.dims import Dim
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.indices import Indices
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.shapes import check
from asyncrt.layout import Array, Shape


def infer(call: Call) -> Sequence[Shape]:
    shape, target = call.shape(0), call.shape(1)
    check(call, len(shape) >= 2, "its input must have a batch and a class axis")
    expected = (shape[0], *shape[2:])
    known = not any(isinstance(d, Dim) for d in (*expected, *target))
    fits = len(target) == len(expected) and (not known or target == expected)
    check(call, fits, f"targets must have shape {expected}")
    check(call, isinstance(shape[1], Dim) or shape[1] > 0, "its input has no classes")
    if call.has(2) and not isinstance(shape[1], Dim):
        check(call, call.shape(2) == (shape[1],), f"there must be {shape[1]} weights")
    reduction = call.attributes.get("reduction", "mean")
    check(call, reduction in ("none", "sum", "mean"), f"reduction is {reduction!r}")
    return (expected if reduction == "none" else (), shape)[: max(1, len(call.output_types))]


def _targets(call: Call) -> Indices:
    return Indices(1, ((0, call.shape(0)[1] - 1),), call.attributes.get("ignore_index"))


def _loss(attributes: Attributes, logarithms: Any, inputs: Sequence[Array | None]) -> Any:
    target: Any = inputs[1]
    target = target.astype(np.int64)
    weight: Any = inputs[2] if len(inputs) > 2 else None
    ignored = attributes.get("ignore_index")
    counts = np.ones(target.shape, bool) if ignored is None else target != ignored
    chosen = np.where(counts, target, 0)
    factor = counts * (1.0 if weight is None else weight.astype(np.float64)[chosen])
    picked = np.take_along_axis(logarithms, chosen[:, None], axis=1)[:, 0]
    loss = np.where(counts, -picked * factor, 0.0)
    reduction = attributes.get("reduction", "mean")
    if reduction == "none":
        return loss
    with np.errstate(all="ignore"):
        return loss.sum() if reduction == "sum" else loss.sum() / factor.sum()


def _likelihood(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x: Any = inputs[0]
    return (np.asarray(_loss(attributes, x.astype(np.float64), inputs)).astype(x.dtype),)


def _cross_entropy(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array, Array]:
    x: Any = inputs[0]
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        shifted = wide - wide.max(axis=1, keepdims=True)
        logarithms = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return np.asarray(_loss(attributes, logarithms, inputs)).astype(x.dtype), logarithms.astype(x.dtype)


def host_nbytes(call: Call) -> int:
    """The logarithms of all classes, and what they are made of; all in float64."""
    return 8 * 6 * math.prod(call.shape(0)) + 8 * 6 * math.prod(call.shape(1))


_TARGETS = np.array([1, 0, 4], np.int64)
_GRID = np.array([[[0, 1], [2, 3]], [[4, 4], [1, 0]]], np.int64)
_EXAMPLES = (
    Example(("f32[3,5]", _TARGETS)),
    Example(("f32[3,5]", _TARGETS, "f32[5]"), {"reduction": "none"}),
    Example(("f32[2,5,2,2]", _GRID, "f32[5]"), {"reduction": "mean"}),
    Example(("f32[2,5,2,2]", _GRID), {"reduction": "sum", "ignore_index": 4}),
    Example(("f32[2,5,2,2]", _GRID), {"reduction": "mean", "ignore_index": 4}),
    Example(("f64[3,5]", _TARGETS.astype(np.int32)), {"reduction": "sum"}),
)
OPERATORS = (
    Operator(
        name="NegativeLogLikelihoodLoss",
        infer=infer,
        reference=_likelihood,
        indices=_targets,
        host_nbytes=host_nbytes,
        examples=_EXAMPLES,
    ),
    Operator(
        name="SoftmaxCrossEntropyLoss",
        infer=infer,
        reference=_cross_entropy,
        indices=_targets,
        host_nbytes=host_nbytes,
        examples=(*_EXAMPLES, Example(("f32[2,5,2,2]", _GRID, "f32[5]"), {"reduction": "none"}, outputs=2)),
    ),
)
