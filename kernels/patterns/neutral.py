"""When is one operand of an element-wise operator the result? When all others are known to be neutral.

A neutral operand must keep the bits of every value, not only its number. ``x + 0.0`` turns -0.0 into +0.0, so -0.0 is
neutral for a sum, and +0.0 is neutral for what a difference subtracts. Arithmetic might still change the bits of a NaN
(OpenCL leaves them open), so kernels of such a call copy: a node then gives the same bytes whether it is run or
skipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from asyncrt.kernels.call import Call
from asyncrt.kernels.operator import ViewOf
from asyncrt.layout import Array, DataType
from asyncrt.memory.view import View

#: Gives the neutral element of a dtype; None if there is none.
Neutral: TypeAlias = Callable[[DataType], float | None]


def zero(dtype: DataType) -> float:
    """The neutral element of sums."""
    return -0.0 if dtype.is_float else 0


def nothing(dtype: DataType) -> float:
    """The neutral element of what is subtracted."""
    return 0.0 if dtype.is_float else 0


def one(dtype: DataType) -> float:
    return 1


def lowest(dtype: DataType) -> float:
    """The neutral element of maxima: no value is less."""
    return -math.inf if dtype.is_float else int(np.iinfo(dtype.name).min)


def highest(dtype: DataType) -> float:
    return math.inf if dtype.is_float else int(np.iinfo(dtype.name).max)


def every_bit(dtype: DataType) -> float:
    return int(np.iinfo(dtype.name).max) if dtype.numpy.kind == "u" else -1


def never(dtype: DataType) -> None:
    return None


def is_uniform(value: Array, number: float) -> bool:
    """Whether every element of *value* is *number*; zeros must have its sign, too."""
    if value.dtype == object:  # symbolic dims are given numbers by a request
        return all(isinstance(v, int) and v == number for v in value.reshape(-1).tolist())
    if value.size == 0:
        return True
    flat = np.ascontiguousarray(value).reshape(-1)
    first = flat[0].item() if flat.dtype.kind in "iub" else float(flat[0])
    if first != number or (number == 0 and math.copysign(1, first) != math.copysign(1, number)):
        return False
    bits = flat.view(f"u{flat.dtype.itemsize}")
    return bool(np.all(bits == bits[0]))


def all_equal(value: Array) -> bool:
    """Whether all elements of *value* have the same bits; otherwise it is not neutral."""
    if value.size < 2 or value.dtype.kind in "OT":
        return True
    flat = np.ascontiguousarray(value).reshape(-1)
    bits = flat.view(f"u{flat.dtype.itemsize}")
    return bool(np.all(bits == bits[0]))


def neutral_view(call: Call, neutral: Neutral, either: bool) -> tuple[ViewOf] | None:
    """Return the operand that is the result, if all others are neutral and it is as large as the result.

    Args:
        either: Whether the first operand can be the neutral one.
    """
    operands = range(len(call.inputs))
    changing = [i for i in operands if not _is_neutral(call, i, neutral, either)]
    if len(changing) > 1:
        return None
    shape = call.outputs[0].shape
    for source in changing or operands:
        view = View.dense(call.shape(source)).expand(shape)
        if changing or view.is_dense:
            return (ViewOf(source, view),)
    return None


def _is_neutral(call: Call, operand: int, neutral: Neutral, either: bool) -> bool:
    value = call.value(operand)
    if value is None or (operand == 0 and not either):
        return False
    number = neutral(call.dtype(operand))
    return number is not None and is_uniform(value, number)


def why_not(call: Call, neutral: Neutral, either: bool) -> str:
    """Return why `neutral_view` finds no view that is the result."""
    changing = [i for i in range(len(call.inputs)) if not _is_neutral(call, i, neutral, either)]
    if len(changing) < 2:
        return f"input {changing[0] if changing else 0} is repeated to the result's shape"
    known = any(call.value(i) is not None for i in changing)
    return "no operand is known to change nothing" if known else ""
