"""What becomes of a number in a type of 8 bits and fewer, and of such a number in another type? On the host alone.

Floats are rounded to the nearest, ties to even. What is beyond the greatest becomes that, where the conversion saturates;
else it is infinite, or NaN where the type has no infinity. Integers of 2 and 4 bits keep their lowest bits.

Source: ONNX Cast-25, technical pages float8.md, int4.md and float4.md.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from asyncrt.layout import Array, DataType, dtype_of

from .conversion import cast


def narrow(x: Any, target: DataType, saturate: bool = True, round_mode: str = "up") -> Array:
    """Return *x* as *target*; one of the two is a narrow type.

    Args:
        saturate: Of types of float8.
        round_mode: Of float8e8m0: "up", "down" or "nearest".
    """
    wide = np.asarray(x)
    source = dtype_of(wide.dtype)
    if source is not None and source.is_narrow:
        wide = wide.astype(np.float32)  # which has all their numbers
    if not target.is_narrow:
        return cast(wide, target.numpy)
    if target.name.startswith("float"):
        return _float(wide.astype(np.float32), target, saturate, round_mode)
    whole = cast(wide, np.dtype(np.int32)) & ((1 << target.bits) - 1)
    sign = 1 << (target.bits - 1) if target.name.startswith("int") else 0
    return np.asarray((whole ^ sign) - sign).astype(np.int8).astype(target.numpy)


def _float(wide: Any, target: DataType, saturate: bool, round_mode: str) -> Array:
    if target.name == "float8e8m0":
        return _power(wide, target, saturate, round_mode)
    top = np.float32(ml_dtypes.finfo(target.numpy).max)
    with np.errstate(all="ignore"):
        near = np.asarray(wide).astype(target.numpy)
        if not saturate and target.bits == 8:
            return near
        return np.where(np.isnan(wide), near, np.clip(wide, -top, top).astype(target.numpy))


def _power(wide: Any, target: DataType, saturate: bool, round_mode: str) -> Array:
    """Return powers of two, of which float8e8m0 has the exponent; what is no positive number becomes NaN."""
    bits = np.ascontiguousarray(wide, np.float32).view(np.uint32)
    exponent, rest = (bits >> 23) & 0xFF, bits & 0x7FFFFF
    least = {"up": 1, "nearest": 0x400000}.get(round_mode, 0x800000)  # of the rest, from which on it goes up
    up = rest >= least
    last = 0xFE if saturate else 0xFF
    found = np.where(exponent < 0xFF, np.minimum(exponent + up, last), 0xFF)
    return np.where(np.isnan(wide), 0xFF, found).astype(np.uint8).view(target.numpy)


def saturated(x: Any, target: DataType, *, saturate: bool = True) -> Array:
    """Return the nearest numbers of a narrow type; what is beyond it becomes its greatest or least.

    Args:
        saturate: Of types of float8: otherwise what is beyond becomes infinite or NaN.
    """
    wide = np.asarray(x, np.float64)
    if target.name.startswith("float"):
        return narrow(wide, target, saturate)
    signed = target.name.startswith("int")
    low, high = (-(1 << (target.bits - 1)), (1 << (target.bits - 1)) - 1) if signed else (0, (1 << target.bits) - 1)
    return np.clip(np.rint(np.nan_to_num(wide)), low, high).astype(np.int8).astype(target.numpy)
