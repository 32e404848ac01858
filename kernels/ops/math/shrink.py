"""Shrink and Swish, element by element.

Shrink moves what is beyond `lambd` towards 0 by `bias` and makes the rest 0; its kernels take floats, integers are
moved on the host. Swish is ``x * sigmoid(alpha * x)``.

Source: ONNX Shrink-9, Swish-24.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.conversion import cast
from asyncrt.kernels.codegen.literals import literal
from asyncrt.kernels.impl import Impl
from asyncrt.kernels.operator import Example, Expression, Operator
from asyncrt.kernels.patterns.elementwise import elementwise
from asyncrt.kernels.shapes import same_shape
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import DATA_TYPES, Array


def _shrink_reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x: Any = inputs[0]
    bias, bound = attributes.get("bias", 0.0), attributes.get("lambd", 0.5)
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        result = np.where(wide < -bound, wide + bias, np.where(wide > bound, wide - bias, 0))
    return (cast(result, x.dtype),)


def _shrink(call: Call, traits: DeviceTraits) -> Impl:
    dtype = call.dtype(0)
    bias, bound = float(call.attributes.get("bias", 0.0)), float(call.attributes.get("lambd", 0.5))
    low, high, by = (literal(v, dtype) for v in (-bound, bound, bias))
    text = f"a0 < {low} ? a0 + {by} : a0 > {high} ? a0 - {by} : 0"
    return elementwise("shrink", text, [i for i in call.inputs if i], call.outputs[0], traits)


def _swish_reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x: Any = inputs[0]
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        return ((wide / (1 + np.exp(-attributes.get("alpha", 1.0) * wide))).astype(x.dtype),)


def _swish_expression(call: Call) -> Expression:
    alpha = literal(-call.attributes.get("alpha", 1.0), call.dtype(0))
    return Expression(f"a0 / (1.0f + asyncrt_exp_beside_1({alpha} * a0))", (0,), vector=True)


def _swish(call: Call, traits: DeviceTraits) -> Impl:
    text = _swish_expression(call).text
    return elementwise("swish", text, [i for i in call.inputs if i], call.outputs[0], traits, vector=True)


OPERATORS = (
    Operator(
        name="Shrink",
        infer=same_shape,
        reference=_shrink_reference,
        implement=_shrink,
        device_types=frozenset(t for t in DATA_TYPES if t.is_float),
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
