"""Shrink and Swish, element by element.

Shrink moves what is beyond `lambd` towards 0 by `bias` and makes the rest 0; Swish is ``x * sigmoid(alpha * x)``.

Source: ONNX Shrink-9, Swish-24.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrt.layout import DATA_TYPES, UINT64, Array

from ..elementwise import elementwise
from ..impl import Impl
from ..operator import Attributes, Call, DeviceTraits, Example, Expression, Operator
from ..shapes import same_shape
from ..source import compute_type


def _shrink_reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x: Any = inputs[0]
    bias, bound = attributes.get("bias", 0.0), attributes.get("lambd", 0.5)
    wide = x.astype(np.float64)
    result = np.where(wide < -bound, wide + bias, np.where(wide > bound, wide - bias, 0))
    return (result.astype(x.dtype),)


def _shrink(call: Call, traits: DeviceTraits) -> Impl:
    dtype = call.dtype(0)
    bias, bound = float(call.attributes.get("bias", 0.0)), float(call.attributes.get("lambd", 0.5))
    if dtype.is_float:
        t = compute_type(dtype)
        text = f"a0 < ({t}){-bound!r}f ? a0 + ({t}){bias!r}f : a0 > ({t}){bound!r}f ? a0 - ({t}){bias!r}f : ({t})0"
    else:
        low, high = math.ceil(-bound), math.floor(bound)
        text = f"(long)a0 < {low}L ? {_moved(bias)} : (long)a0 > {high}L ? {_moved(-bias)} : 0L"
    return elementwise("shrink", text, [i for i in call.inputs if i], call.outputs[0], traits)


def _moved(by: float) -> str:
    """Return OpenCL C for the integer ``a0 + by``, rounded towards 0."""
    whole = math.trunc(by)
    moved = f"((long)a0 + {whole}L)"
    if by > whole:
        return f"({moved} + ({moved} < 0))"
    return f"({moved} - ({moved} > 0))" if by < whole else moved


def _swish_reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x: Any = inputs[0]
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        return ((wide / (1 + np.exp(-attributes.get("alpha", 1.0) * wide))).astype(x.dtype),)


def _swish_expression(call: Call) -> Expression:
    alpha = f"{float(call.attributes.get('alpha', 1.0))!r}f"
    return Expression(f"a0 / (1.0f + exp(-{alpha} * a0))", (0,), vector=True)


def _swish(call: Call, traits: DeviceTraits) -> Impl:
    text = _swish_expression(call).text
    return elementwise("swish", text, [i for i in call.inputs if i], call.outputs[0], traits, vector=True)


OPERATORS = (
    Operator(
        name="Shrink",
        infer=same_shape,
        reference=_shrink_reference,
        implement=_shrink,
        device_types=frozenset(DATA_TYPES) - {UINT64},
        examples=(
            Example(("f32[3,37]",)),
            Example(("f32[3,37]",), {"bias": 1.5, "lambd": 0.75}),
            Example(("f16[7]",), {"bias": 0.25}),
            Example(("f64[7]",), {"bias": 0.25}),
            Example((np.array([-3, -2, -1, 0, 1, 2, 3], np.int32),), {"lambd": 1.5, "bias": 1.0}),
            Example((np.array([-3, -2, -1, 0, 1, 2, 3], np.int64),), {"lambd": 1.0, "bias": 1.5}),
            Example((np.array([-3, -2, -1, 0, 1, 2, 3], np.int8),), {"lambd": 0.5, "bias": -2.5}),
        ),
    ),
    Operator(
        name="Swish",
        infer=same_shape,
        reference=_swish_reference,
        implement=_swish,
        expression=_swish_expression,
        examples=(
            Example(("f32[3,37]",), opset=24),
            Example(("f32[3,37]",), {"alpha": 1.702}, opset=24),
            Example(("f16[7]",), opset=24),
        ),
    ),
)
