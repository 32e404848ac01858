"""How is a number written in OpenCL C, so that the compiler reads the very same number?

Everything that puts a number that it did not choose into the text of a kernel (an attribute, a constant of the model, a
limit of a dtype) writes it with `literal`. The text is also what caches of kernels compare: two floats may be equal and
yet differ (0.0 and -0.0), or differ from themselves (NaN), but equal numbers have equal literals and others have not.
"""

from __future__ import annotations

import math
from typing import SupportsFloat

import numpy as np

from asyncrt.layout import BOOL, FLOAT64, DataType

_SUFFIXES = {"int32": "", "uint32": "U", "int64": "L", "uint64": "UL"}


def literal(value: SupportsFloat, dtype: DataType) -> str:
    """Return *value* as a constant of the type in which values of *dtype* are calculated (`source.compute_type`).

    It can stand wherever a variable can: negative numbers are in parentheses. Floats are written in hexadecimal and are
    therefore exact; unless they are calculated in double, they are first rounded to float32, once. Small integers are
    written as int, which they are in any expression.

    Raises:
        ValueError: An integer type does not have *value*.
    """
    if dtype.is_float:
        return _float(float(value), double=dtype is FLOAT64)
    number = int(value)  # type: ignore[call-overload]  # every kind of number
    low, high = (0, 1) if dtype is BOOL else (int(np.iinfo(dtype.name).min), int(np.iinfo(dtype.name).max))
    if number != value or not low <= number <= high:
        raise ValueError(f"{value!r} is no number of {dtype}")
    suffix = _SUFFIXES.get(dtype.name, "")
    if number == low and low < 0 and dtype.itemsize >= 4:  # C has no negative constants, and this one's opposite is too large
        return f"(-{-(number + 1)}{suffix} - 1)"
    return f"(-{-number}{suffix})" if number < 0 else f"{number}{suffix}"


def _float(value: float, *, double: bool) -> str:
    with np.errstate(over="ignore"):
        number = value if double else float(np.float32(value))
    if math.isnan(number):
        text = "NAN"
    elif math.isinf(number):
        text = "INFINITY"
    else:
        text = abs(number).hex() + ("" if double else "f")
    if double and not math.isfinite(number):
        text = f"(double){text}"  # the macros are floats
    if math.copysign(1.0, number) < 0 and not math.isnan(number):
        text = f"-{text}"
    return f"({text})" if not text[0].isalnum() else text
