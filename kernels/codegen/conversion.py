"""Which integer does a float become?

The float is rounded towards 0. If the integer does not fit the target type, its lowest bits are kept, as C and NumPy do
when they convert integers. This works on a signed integer: of 32 bits for target types up to int32, of 64 bits for the
others. A float beyond that signed integer, or NaN, becomes its least value, of which again the lowest bits are kept:
-2147483648 as int32, 0 in fewer bits. uint64 also takes floats from 2^63 to 2^64, and gives 0 from there on.

ONNX and C leave these cases open. The rule is what ONNX Runtime and NumPy give on x86-64, where both agree, written so
that no compiler, processor or vector width gives anything else.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from asyncrt.layout import INT32, UINT32, UINT64, Array, DataType, dtype_of


def to_integer(text: str, target: DataType) -> str:
    """Return OpenCL C for what the float *text* is as the integer type *target*: a scalar, as int32 of float32 also a vector.

    The functions are those of `functions.py`.
    """
    if target is UINT64:
        return f"asyncrt_to_ulong({text})"
    return f"asyncrt_to_long({text})" if _wide(target) else f"asyncrt_to_int({text})"


def cast(x: Any, target: np.dtype[Any]) -> Array:
    """Return *x* with another dtype, as kernels store it: what is too large a float is infinite, floats become integers
    as above, and integers keep their lowest bits."""
    array = np.asarray(x)
    dtype = dtype_of(target)
    assert dtype is not None
    if dtype.is_integer and array.dtype.kind not in "iub":
        return _as_integers(array, dtype)
    with np.errstate(all="ignore"):
        return array.astype(target)


def saturated(x: Any, target: DataType) -> Array:
    """Return the nearest integers of type *target*, and 0 for NaN, as OpenCL's ``convert_T_sat_rte``."""
    low, high = np.iinfo(target.name).min, np.iinfo(target.name).max
    number: Any = np.rint(np.nan_to_num(np.asarray(x, np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf))
    inside = (number > low) & (number < high)  # as floats, the limits of 64 bits are beyond them
    return np.asarray(np.where(inside, _as_integers(np.where(inside, number, 0), target), np.where(number > 0, high, low)), target.numpy)


def _as_integers(x: Array, target: DataType) -> Array:
    floats: Any = x if x.dtype in (np.float32, np.float64) else x.astype(np.float32)  # those of 16 bits
    signed: Any = np.int64 if _wide(target) else np.int32
    beyond = float(np.iinfo(signed).max) + 1  # has one bit, and is therefore exact
    least = np.iinfo(signed).min
    fits = (floats >= least) & (floats < beyond)
    kept = np.where(fits, np.where(fits, floats, 0).astype(signed), signed(least))
    result = np.asarray(kept.astype(target.numpy))
    if target is UINT64:
        large = (floats >= beyond) & (floats < 2 * beyond)
        result = np.where(large, np.where(large, floats, 0).astype(np.uint64), result)
        result = np.asarray(np.where(floats >= 2 * beyond, np.uint64(0), result))
    return result


def _wide(target: DataType) -> bool:
    """Whether the conversion goes by signed integers of 64 bits, rather than 32."""
    return target is UINT32 or target.itemsize > INT32.itemsize
