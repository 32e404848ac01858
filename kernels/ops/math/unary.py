"""Element-wise operators of one input.

Source: the ONNX operators of these names, newest versions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.literals import literal
from asyncrt.kernels.impl import Impl
from asyncrt.kernels.operator import Example, Expression, Operator
from asyncrt.kernels.patterns.copy import takes_any_view
from asyncrt.kernels.patterns.elementwise import elementwise
from asyncrt.kernels.shapes import same_shape
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array

from ._erf import erf

_PIECE = 1 << 14  # elements whose temporaries stay in a processor's cache


def _wide(function: Callable[[Array], Any]) -> Callable[[Array], Array]:
    """Evaluate in float64 and round once, so that the reference is more exact than the kernels tested against it."""

    def evaluate(x: Array) -> Array:
        if x.dtype.kind in "biu":
            return np.asarray(function(x)).astype(x.dtype)
        flat, result = x.reshape(-1), np.empty(x.size, x.dtype)
        for start in range(0, x.size, _PIECE):
            piece = slice(start, start + _PIECE)
            result[piece] = function(flat[piece].astype(np.float64))
        return result.reshape(x.shape)

    return evaluate


def _unary(
    name: str,
    expression: str | Callable[[Call], str],
    reference: Callable[..., Any],
    *,
    vector: bool = True,
    wants_attributes: bool = False,
    wide: bool = True,
    examples: tuple[Example, ...] = (Example(("f32[2,3,37]",)), Example(("f16[5]",))),
) -> Operator:
    def express(call: Call) -> Expression:
        return Expression(expression if isinstance(expression, str) else expression(call), (0,), vector)

    def implement(call: Call, traits: DeviceTraits) -> Impl:
        inputs = [i for i in call.inputs[:1] if i is not None]
        text = express(call).text
        return elementwise(name, text, inputs, call.outputs[0], traits, vector=vector, views=call.strided[:1])

    def run(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
        x = inputs[0]
        assert x is not None

        def function(v: Array) -> Any:
            return reference(attributes, v) if wants_attributes else reference(v)

        with np.errstate(all="ignore"):
            return (np.asarray(_wide(function)(x) if wide else function(x)),)

    return Operator(
        name=name,
        infer=same_shape,
        reference=run,
        implement=implement,
        expression=express,
        takes_view=takes_any_view,
        examples=examples,
    )


def _gelu(call: Call) -> str:
    if call.attributes.get("approximate", "none") == "tanh":
        return "0.5f * a0 * (1.0f + asyncrt_tanh(0.7978845608f * (a0 + 0.044715f * a0 * a0 * a0)))"
    return "0.5f * a0 * (1.0f + asyncrt_erf(a0 * 0.70710678118654752f))"


def _gelu_reference(attributes: Attributes, x: Array) -> Any:
    if attributes.get("approximate", "none") == "tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def _a(attributes: Attributes, name: str = "alpha", default: float = 1.0) -> float:
    return float(attributes.get(name, default))


def _number(call: Call, name: str = "alpha", default: float = 1.0) -> str:
    """An attribute in OpenCL C."""
    return literal(_a(call.attributes, name, default), call.dtype(0))


def _least(text: str, least: str) -> str:
    """The larger of the two. NaN stays NaN, unlike with ``fmax``."""
    return f"(({text}) < {least} ? {least} : ({text}))"


def _most(text: str, most: str) -> str:
    """The smaller of the two. NaN stays NaN, unlike with ``fmin``."""
    return f"(({text}) > {most} ? {most} : ({text}))"


def _celu(call: Call) -> str:
    alpha = _number(call)
    return f"{_least('a0', '0')} + {_most(f'{alpha} * expm1(a0 / {alpha})', '0')}"


def _hard_sigmoid(call: Call) -> str:
    line = f"{_number(call, 'alpha', 0.2)} * a0 + {_number(call, 'beta', 0.5)}"
    return _most(_least(line, "0"), "1")


_POSITIVE = (Example((np.linspace(0.1, 4, 24, dtype=np.float32).reshape(4, 6),)),)
_UNIT = (Example((np.linspace(-0.9, 0.9, 24, dtype=np.float32),)),)
_BOOL = (Example(("bool[2,3]",)),)
_SPECIAL = (Example((np.array([1, np.nan, np.inf, -np.inf, 0], np.float32),)),)
_HALVES = (Example((np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.4], np.float32),)),)
_SIGNED = (Example(("f32[2,3]",)), Example(("i64[5]",)))

OPERATORS = (
    _unary("Neg", "-a0", np.negative, examples=_SIGNED, wide=False),
    _unary("Abs", "a0 < 0 ? -a0 : a0", np.abs, examples=_SIGNED, wide=False),
    _unary("Sign", "a0 > 0 ? 1 : a0 < 0 ? -1 : a0", np.sign, vector=False, examples=_SIGNED, wide=False),
    _unary("Relu", "a0 < 0 ? 0 : a0", lambda x: np.where(x < 0, 0, x)),
    _unary("Sqrt", "sqrt(a0)", np.sqrt, examples=_POSITIVE),
    _unary("Reciprocal", "1.0f / a0", lambda x: 1 / x, examples=_POSITIVE),
    _unary("Exp", "asyncrt_exp(a0)", np.exp),
    _unary("Log", "log(a0)", np.log, examples=_POSITIVE),
    _unary("Sin", "sin(a0)", np.sin),
    _unary("Cos", "cos(a0)", np.cos),
    _unary("Tan", "tan(a0)", np.tan),
    _unary("Asin", "asin(a0)", np.arcsin, examples=_UNIT),
    _unary("Acos", "acos(a0)", np.arccos, examples=_UNIT),
    _unary("Atan", "atan(a0)", np.arctan),
    _unary("Sinh", "sinh(a0)", np.sinh),
    _unary("Cosh", "cosh(a0)", np.cosh),
    _unary("Asinh", "asinh(a0)", np.arcsinh),
    _unary("Acosh", "acosh(a0 + 0.0f)", np.arccosh, examples=(Example((np.linspace(1, 4, 9, dtype=np.float32),)),)),
    _unary("Atanh", "atanh(a0)", np.arctanh, examples=_UNIT),
    _unary("Tanh", "asyncrt_tanh(a0)", np.tanh),
    _unary("Erf", "asyncrt_erf(a0)", erf),
    _unary("Sigmoid", "1.0f / (1.0f + asyncrt_exp_beside_1(-a0))", lambda x: 1 / (1 + np.exp(-x))),
    _unary("Softplus", f"log1p(asyncrt_exp(-fabs(a0))) + {_least('a0', '0')}", lambda x: np.logaddexp(x, 0)),
    _unary("Softsign", "a0 / (1.0f + fabs(a0))", lambda x: x / (1 + np.abs(x))),
    _unary("Gelu", _gelu, _gelu_reference, wants_attributes=True,
           examples=(Example(("f32[2,37]",)), Example(("f32[2,37]",), {"approximate": "tanh"}))),
    _unary("Elu", lambda c: f"a0 < 0 ? {_number(c)} * expm1(a0) : a0",
           lambda a, x: np.where(x < 0, _a(a) * np.expm1(x), x), wants_attributes=True),
    _unary("Celu", _celu, lambda a, x: np.maximum(0, x) + np.minimum(0, _a(a) * np.expm1(x / _a(a))), wants_attributes=True),
    _unary("Selu",
           lambda c: f"{_number(c, 'gamma', 1.0507009873554805)} * (a0 <= 0 ? "
                     f"{_number(c, 'alpha', 1.6732632423543772)} * expm1(a0) : a0)",
           lambda a, x: _a(a, "gamma", 1.0507009873554805) * np.where(
               x <= 0, _a(a, "alpha", 1.6732632423543772) * np.expm1(x), x),
           wants_attributes=True),
    _unary("LeakyRelu", lambda c: f"a0 < 0 ? {_number(c, default=0.01)} * a0 : a0",
           lambda a, x: np.where(x < 0, _a(a, default=0.01) * x, x), wants_attributes=True),
    _unary("ThresholdedRelu", lambda c: f"a0 > {_number(c)} ? a0 : 0",
           lambda a, x: np.where(x > _a(a), x, 0), wants_attributes=True),
    _unary("HardSigmoid", _hard_sigmoid,
           lambda a, x: np.clip(_a(a, "alpha", 0.2) * x + _a(a, "beta", 0.5), 0, 1), wants_attributes=True),
    _unary("HardSwish", f"a0 * {_most(_least('a0 / 6.0f + 0.5f', '0'), '1')}", lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    _unary("Mish", f"a0 * asyncrt_tanh(log1p(asyncrt_exp(-fabs(a0))) + {_least('a0', '0')})", lambda x: x * np.tanh(np.logaddexp(x, 0))),
    _unary("Floor", "floor(a0)", np.floor, examples=_HALVES),
    _unary("Ceil", "ceil(a0)", np.ceil, examples=_HALVES),
    _unary("Round", "rint(a0)", np.rint, examples=_HALVES),
    _unary("IsNaN", "a0 != a0", np.isnan, examples=_SPECIAL, wide=False),
    _unary("IsInf",
           lambda c: " || ".join(
               t for t, on in (("a0 == INFINITY", c.attributes.get("detect_positive", 1)),
                               ("a0 == -INFINITY", c.attributes.get("detect_negative", 1))) if on) or "0",
           lambda a, x: (np.isposinf(x) & bool(a.get("detect_positive", 1)))
           | (np.isneginf(x) & bool(a.get("detect_negative", 1))),
           vector=False, wants_attributes=True, wide=False, examples=_SPECIAL),
    _unary("Not", "!a0", np.logical_not, wide=False, examples=_BOOL),
    _unary("BitwiseNot", "~a0", np.invert, vector=False, wide=False, examples=(Example(("i32[5]",)),)),
)  # fmt: skip
