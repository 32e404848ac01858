"""Element-wise operators of two (or, for Max, Min, Sum and Mean, any number of) inputs, with broadcasting.

Source: ONNX Add-14, Sub-14, Mul-14, Div-14, Pow-15, Mod-13, Max-13, Min-13, Sum-13, Mean-13, PRelu-16,
Equal-19, Less-13, LessOrEqual-16, Greater-13, GreaterOrEqual-16, And-7, Or-7, Xor-7, BitwiseAnd/Or/Xor-18, BitShift-11.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from asyncrt.dims import Undetermined
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.conversion import cast, to_integer
from asyncrt.kernels.codegen.literals import literal
from asyncrt.kernels.codegen.source import compute_type
from asyncrt.kernels.impl import Impl
from asyncrt.kernels.operator import Example, Expression, Operator, ViewOf
from asyncrt.kernels.patterns.copy import materialise, takes_any_view
from asyncrt.kernels.patterns.elementwise import elementwise
from asyncrt.kernels.patterns.neutral import (
    Neutral,
    all_equal,
    every_bit,
    highest,
    lowest,
    neutral_view,
    never,
    nothing,
    one,
    why_not,
    zero,
)
from asyncrt.kernels.shapes import broadcast_axes, broadcast_shapes
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import BOOL, INT32, UINT64, Array, Shape


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
    """Return *a* to the power of *b*.

    Integers with integer exponents: products that keep their lowest bits, and 0 where a negative exponent gives no
    integer (also where it would give infinity). Otherwise the power is calculated in floats, and `cast` converts it.
    """
    if a.dtype == object or b.dtype == object:
        raise Undetermined("powers of symbolic dims are not known while loading")
    # The exponents are an array: for a scalar of 0.5 NumPy takes square roots, and -inf has none.
    exponents = np.array(np.broadcast_to(b, np.broadcast_shapes(a.shape, b.shape)), np.float64)
    real = cast(np.power(a.astype(np.float64), exponents), a.dtype)
    if a.dtype.kind not in "iu":
        return real
    whole = (np.trunc(b) == b) & (np.abs(b.astype(np.float64)) < _WHOLE) if b.dtype.kind not in "iu" else np.True_
    exponent = cast(b, np.dtype(np.int64)) if b.dtype.kind not in "iu" else b
    return np.asarray(np.where(whole, _whole_power(a, exponent), real), a.dtype)


def _whole_power(a: Array, exponent: Array) -> Array:
    """Multiply by squares, as the kernel does; what leaves the type keeps its lowest bits."""
    base, e = np.broadcast_arrays(a, exponent)
    negative, odd = e < 0, (e & 1).astype(np.bool_)
    result, base, e = np.ones_like(base), base.copy(), np.where(negative, 0, e).astype(np.uint64)
    ones = np.where(base == 1, 1, 0)
    if a.dtype.kind == "i":
        ones = np.where(base == -1, np.where(odd, -1, 1), ones)
    while e.any():
        result = np.where((e & np.uint64(1)) != 0, result * base, result)
        base, e = base * base, e >> np.uint64(1)
    return np.where(negative, ones.astype(a.dtype), result)


def _shift(attributes: Attributes, a: Array, b: Array) -> Array:
    left = attributes.get("direction") == "LEFT"
    return np.left_shift(a, b) if left else np.right_shift(a, b)


def _shift_expression(call: Call) -> str:
    """An amount that is negative, or as large as the type, shifts every bit out, as in NumPy; in C it is undefined."""
    fits = f"(ulong)a1 < {literal(8 * call.dtype(0).itemsize, UINT64)}"
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
        return "asyncrt_remainder(a0, a1)"
    remainder = "asyncrt_remainder(a0, a1)"
    return f"({remainder} != 0 && ((a0 < 0) != (a1 < 0)) ? {remainder} + a1 : {remainder})"  # the sign of the divisor


def _div_expression(call: Call) -> str:
    return "a0 / a1" if call.dtype(0).is_float else "asyncrt_quotient(a0, a1)"


def _pow_expression(call: Call) -> str:
    base, exponent = call.dtype(0), call.dtype(1)
    value = call.value(1)
    if base.is_float and value is not None and value.size == 1 and value.dtype != object:
        power = float(value.reshape(-1)[0])
        root = "(a0 == -INFINITY ? INFINITY : sqrt(a0))"
        simple = {2.0: "a0 * a0", 3.0: "a0 * a0 * a0", 0.5: root, 1.0: "a0"}.get(power)
        if simple:
            return simple
    if base.is_float:
        kind = compute_type(base)
        return f"pow(({kind})a0, ({kind})a1)"
    # The lowest bits of a product depend on those of its factors alone, so all is done without a sign.
    signed = "true" if base.numpy.kind == "i" else "false"
    if not exponent.is_float:
        negative = "a1 < 0" if exponent.numpy.kind == "i" else "false"
        return f"$_whole((ulong)a0, (ulong)a1, {negative}, {signed})"
    whole = f"$_whole((ulong)a0, (ulong)(long)a1, a1 < 0, {signed})"
    return f"(trunc(a1) == a1 && fabs(a1) < {literal(_WHOLE, exponent)} ? {whole} : (ulong){to_integer('$_real(a0, a1)', base)})"


_WHOLE = 2.0**62  # below it, an exponent can be an integer
_POWERS = """
ulong $_whole(ulong base, ulong e, bool negative, bool sign) {
  if (negative) return base == 1 ? 1 : sign && base == ~0UL ? (e & 1 ? base : 1) : 0;
  ulong result = 1;
  for (; e; e >>= 1) { if (e & 1) result *= base; base *= base; }
  return result;
}
#ifdef cl_khr_fp64
double $_real(double base, double e) { return pow(base, e); }
#else
float $_real(float base, float e) { return pow(base, e); }
#endif"""

#: Those whose expression does not hold for vectors.
_SCALAR = {"Pow", "Mod", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift"}

#: Those whose expression holds for vectors of int32 as well.
_INTEGERS = {"Add", "Sub", "Mul"}

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
        vector = name not in _SCALAR or (name == "Pow" and "pow" not in text and "$" not in text)
        integers = name in _INTEGERS and call.dtype(0) is INT32
        return Expression(text, tuple(range(len(call.inputs))), vector, helpers if "$" in text else "", integers)

    def implement(call: Call, traits: DeviceTraits) -> Impl:
        same = views(call)
        if same is not None:
            return materialise(call, same, traits)
        found = express(call)
        inputs = [i for i in call.inputs if i is not None]
        return elementwise(
            name, found.text, inputs, call.outputs[0], traits,
            vector=found.vector, integers=found.integers, helpers=found.helpers, views=call.strided,
        )  # fmt: skip

    def run(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
        arrays = [i for i in inputs if i is not None]
        with np.errstate(all="ignore"):
            result = reference(attributes, *arrays) if wants_attributes else functools.reduce(reference, arrays)
        return (np.asarray(result),)

    return Operator(
        name=name,
        infer=infer,
        axes=broadcast_axes,
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
    _binary("Div", _div_expression, _divide, *_FLOATS, Example((np.array([7, -7, 9], np.int64), np.array([2, 2, -3], np.int64)))),
    _binary(
        "Pow", _pow_expression, _power,
        Example((np.array([0.5, 1, 2, 3], np.float32), np.array([2, 3, -1, 0.5], np.float32))),
        Example((np.array([0.5, 1, 2, 3], np.float32), np.array(2, np.int64))),
        Example((np.array([2, 3, -2], np.int64), np.array([3, 2, 5], np.int64))),
        helpers=_POWERS,
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
