"""Element-wise operators of two (or, for Max, Min, Sum and Mean, any number of) inputs, with broadcasting.

Source: ONNX Add-14, Sub-14, Mul-14, Div-14, Pow-15, Mod-13, Max-13, Min-13, Sum-13, Mean-13, PRelu-16,
Equal-19, Less-13, LessOrEqual-16, Greater-13, GreaterOrEqual-16, And-7, Or-7, Xor-7, BitwiseAnd/Or/Xor-18, BitShift-11.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from asyncrt.layout import BOOL, Array, Shape

from ..copy import materialise, takes_any_view
from ..elementwise import elementwise
from ..impl import Impl
from ..neutral import Neutral, all_equal, every_bit, highest, lowest, neutral_view, never, nothing, one, why_not, zero
from ..operator import Attributes, Call, DeviceTraits, Example, Expression, Operator, ViewOf
from ..shapes import broadcast_shapes
from ..source import compute_type


def infer(call: Call) -> tuple[Shape]:
    return (broadcast_shapes(call, *(call.shape(i) for i in range(len(call.inputs)))),)


def _divide_ints(a: int, b: int) -> int:
    """Divide ints or symbolic dims; one that may be negative raises `Undetermined`."""
    if b == 0:
        raise ZeroDivisionError
    return a // b if (a >= 0) == (b > 0) else -(-a // b)


def _divide(a: Array, b: Array) -> Array:
    """Integers are divided towards zero, as in C and ONNX."""
    if a.dtype == object or b.dtype == object:
        return np.asarray(np.frompyfunc(_divide_ints, 2, 1)(a, b), object)
    if a.dtype.kind in "iu":
        quotient = np.floor_divide(a, b)
        return np.where((np.remainder(a, b) != 0) & ((a < 0) != (b < 0)), quotient + 1, quotient).astype(a.dtype)
    return np.divide(a, b)


def _modulo(attributes: Attributes, a: Array, b: Array) -> Array:
    return np.fmod(a, b) if attributes.get("fmod", 0) else np.mod(a, b)


def _power(a: Array, b: Array) -> Array:
    if a.dtype == object or b.dtype == object:
        raise TypeError("powers of symbolic dims are not known while loading")
    if a.dtype.kind in "iu" and b.dtype.kind in "iu" and not (b < 0).any():
        return np.power(a, b, dtype=a.dtype, casting="unsafe")
    with np.errstate(all="ignore"):
        return np.power(a.astype(np.float64), b.astype(np.float64)).astype(a.dtype)


def _shift(attributes: Attributes, a: Array, b: Array) -> Array:
    left = attributes.get("direction") == "LEFT"
    return np.left_shift(a, b) if left else np.right_shift(a, b)


def _shift_expression(call: Call) -> str:
    """An amount that is negative, or as large as the type, shifts every bit out, as in NumPy; in C it is undefined."""
    fits = f"(ulong)a1 < {8 * call.dtype(0).itemsize}ul"
    if call.attributes.get("direction") == "LEFT":
        return f"({fits} ? a0 << a1 : 0)"
    return f"({fits} ? a0 >> a1 : (a0 < 0 ? -1 : 0))"


def _max(a: str, b: str) -> str:
    """NaN wins, as in NumPy; ``x != x`` is false for integers."""
    return f"(({a}) != ({a}) || ({a}) > ({b}) ? ({a}) : ({b}))"


def _min(a: str, b: str) -> str:
    return f"(({a}) != ({a}) || ({a}) < ({b}) ? ({a}) : ({b}))"


def _fold(combine: Callable[[str, str], str], call: Call) -> str:
    return functools.reduce(combine, (f"a{i}" for i in range(len(call.inputs))))


def _mod_expression(call: Call) -> str:
    if call.dtype(0).is_float:
        remainder = "fmod(a0, a1)"
        if call.attributes.get("fmod", 0):
            return remainder
        return f"({remainder} != 0 && (({remainder} < 0) != (a1 < 0)) ? {remainder} + a1 : {remainder})"
    if call.attributes.get("fmod", 0) or call.dtype(0).numpy.kind == "u":
        return "a0 % a1"
    return "(a0 % a1 != 0 && ((a0 < 0) != (a1 < 0)) ? a0 % a1 + a1 : a0 % a1)"  # the sign of the divisor


def _pow_expression(call: Call) -> str:
    base, exponent = call.dtype(0), call.dtype(1)
    value = call.value(1)
    if base.is_float and value is not None and value.size == 1 and value.dtype != object:
        power = float(value.reshape(-1)[0])
        simple = {2.0: "a0 * a0", 3.0: "a0 * a0 * a0", 0.5: "sqrt(a0)", 1.0: "a0"}.get(power)
        if simple:
            return simple
    if not base.is_float and not exponent.is_float:
        return "$_ipow(a0, a1)"
    kind = compute_type(base) if base.is_float else "float"
    return f"pow(({kind})a0, ({kind})a1)"


_IPOW = """
long $_ipow(long base, long e) {
  if (e < 0) return base == 1 ? 1 : base == -1 ? (e & 1 ? -1 : 1) : 0;
  long result = 1;
  for (; e > 0; e >>= 1) { if (e & 1) result *= base; base *= base; }
  return result;
}"""

#: Those whose expression does not hold for vectors.
_SCALAR = {"Pow", "Mod", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift"}

#: What changes nothing, and whether it may be the first operand as well.
_NEUTRAL: dict[str, tuple[Neutral, bool]] = {
    "Add": (zero, True),
    "Sub": (nothing, False),
    "Mul": (one, True),
    "Div": (one, False),
    "Pow": (one, False),
    "Max": (lowest, True),
    "Min": (highest, True),
    "Sum": (zero, True),
    "Mean": (never, True),
    "PRelu": (one, False),
    "Equal": (lambda dtype: 1 if dtype is BOOL else None, True),
    "And": (one, True),
    "Or": (nothing, True),
    "Xor": (nothing, True),
    "BitwiseAnd": (every_bit, True),
    "BitwiseOr": (nothing, True),
    "BitwiseXor": (nothing, True),
    "BitShift": (nothing, False),
}
_HINTS = tuple(range(16))  # any operand; Max, Min and Sum have any number of them


def _binary(
    name: str,
    expression: str | Callable[[Call], str],
    reference: Callable[..., Any],
    *examples: Example,
    wants_attributes: bool = False,
    helpers: str = "",
) -> Operator:
    neutral = _NEUTRAL.get(name)

    def views(call: Call) -> tuple[ViewOf] | None:
        return None if neutral is None else neutral_view(call, *neutral)

    def reason(call: Call) -> str:
        assert neutral is not None
        return why_not(call, *neutral)

    def express(call: Call) -> Expression:
        text = expression if isinstance(expression, str) else expression(call)
        vector = name not in _SCALAR or text.startswith(("a0 * a0", "sqrt(a0)"))
        return Expression(text, tuple(range(len(call.inputs))), vector, helpers if "$" in text else "")

    def implement(call: Call, traits: DeviceTraits) -> Impl:
        same = views(call)
        if same is not None:
            return materialise(call, same, traits)
        found = express(call)
        inputs = [i for i in call.inputs if i is not None]
        return elementwise(
            name, found.text, inputs, call.outputs[0], traits,
            vector=found.vector, helpers=found.helpers, views=call.strided,
        )  # fmt: skip

    def run(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
        arrays = [i for i in inputs if i is not None]
        with np.errstate(all="ignore"):
            result = reference(attributes, *arrays) if wants_attributes else functools.reduce(reference, arrays)
        return (np.asarray(result),)

    return Operator(
        name=name,
        infer=infer,
        reference=run,
        implement=implement,
        expression=express,
        views=None if neutral is None else views,
        why="the other operand changes nothing" if name != "Mean" else "it is the mean of one",
        why_not=None if neutral is None else reason,
        value_hints=_HINTS if neutral is not None and neutral[0] is not never else (),
        hint_matters=all_equal,
        asks_hints=name != "Pow",
        compares_hints=False,
        takes_view=takes_any_view,
        examples=examples or (Example(("f32[2,3,4]", "f32[3,1]")), Example(("i64[5]", "i64[]"))),
    )


def _mean(attributes: Attributes, *arrays: Array) -> Array:
    return np.asarray(functools.reduce(np.add, arrays) / np.asarray(len(arrays), arrays[0].dtype))


_LOGIC = (Example(("bool[2,3]", "bool[3]")),)
_BITS = (Example(("i32[2,3]", "i32[3]")), Example(("u8[4]", "u8[4]")))
_FLOATS = (Example(("f32[2,3,4]", "f32[3,1]")), Example(("f16[5]", "f16[]")))

OPERATORS = (
    _binary("Add", "a0 + a1", np.add),
    _binary("Sub", "a0 - a1", np.subtract),
    _binary("Mul", "a0 * a1", np.multiply),
    _binary("Div", "a0 / a1", _divide, *_FLOATS, Example((np.array([7, -7, 9], np.int64), np.array([2, 2, -3], np.int64)))),
    _binary(
        "Pow", _pow_expression, _power,
        Example((np.array([0.5, 1, 2, 3], np.float32), np.array([2, 3, -1, 0.5], np.float32))),
        Example((np.array([0.5, 1, 2, 3], np.float32), np.array(2, np.int64))),
        Example((np.array([2, 3, -2], np.int64), np.array([3, 2, 5], np.int64))),
        helpers=_IPOW,
    ),
    _binary(
        "Mod", _mod_expression, _modulo,
        Example((np.array([7, -7, 9], np.int64), np.array([3, 3, -4], np.int64))),
        Example((np.array([7.5, -7.5], np.float32), np.array([2, 2], np.float32)), {"fmod": 1}),
        Example((np.array([7.5, -7.5, 7.5, -4], np.float32), np.array([2, 2, -2, 2], np.float32))),
        wants_attributes=True,
    ),
    _binary("Max", functools.partial(_fold, _max), np.maximum, *_FLOATS, Example(("f32[2,3]", "f32[3]", "f32[]"))),
    _binary("Min", functools.partial(_fold, _min), np.minimum, *_FLOATS, Example(("i64[2,3]", "i64[3]"))),
    _binary("Sum", functools.partial(_fold, lambda a, b: f"{a} + {b}"), np.add, Example(("f32[2,3]", "f32[3]", "f32[]"))),
    _binary(
        "Mean", lambda c: f"({_fold(lambda a, b: f'{a} + {b}', c)}) / {len(c.inputs)}", _mean,
        Example(("f32[2,3]", "f32[3]", "f32[]")), wants_attributes=True,
    ),
    _binary("PRelu", "a0 < 0 ? a0 * a1 : a0", lambda a, b: np.where(a < 0, a * b, a), Example(("f32[2,3]", "f32[3]"))),
    _binary("Equal", "a0 == a1", np.equal, Example(("i64[2,3]", "i64[3]")), *_LOGIC),
    _binary("Less", "a0 < a1", np.less),
    _binary("LessOrEqual", "a0 <= a1", np.less_equal),
    _binary("Greater", "a0 > a1", np.greater),
    _binary("GreaterOrEqual", "a0 >= a1", np.greater_equal),
    _binary("And", "a0 && a1", np.logical_and, *_LOGIC),
    _binary("Or", "a0 || a1", np.logical_or, *_LOGIC),
    _binary("Xor", "(a0 != 0) != (a1 != 0)", np.logical_xor, *_LOGIC),
    _binary("BitwiseAnd", "a0 & a1", np.bitwise_and, *_BITS),
    _binary("BitwiseOr", "a0 | a1", np.bitwise_or, *_BITS),
    _binary("BitwiseXor", "a0 ^ a1", np.bitwise_xor, *_BITS),
    _binary(
        "BitShift", _shift_expression, _shift,
        Example((np.array([16, 4, 1], np.uint8), np.array([1, 2, 3], np.uint8)), {"direction": "RIGHT"}),
        Example((np.array([16, 4, 1], np.uint8), np.array([1, 8, 9], np.uint8)), {"direction": "LEFT"}),
        wants_attributes=True,
    ),
)  # fmt: skip
