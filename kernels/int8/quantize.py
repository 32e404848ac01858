"""What the quantised operators share: exact division, and how a quotient becomes an integer."""

from __future__ import annotations

from typing import Any

import numpy as np

from asyncrt.kernels.codegen.literals import literal
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import BFLOAT16, FLOAT16, FLOAT32, Array, DataType

# OpenCL allows a division an error of 2.5 ulp, but a quotient next to a tie must fall on the right side. One step of
# correction gives the nearest float; where the correction overflows, the quotient is far beyond any integer's range.
HELPERS = """
inline float $_divide(float a, float b) {
  const float q = a / b, c = fma(-q, b, a) / b;
  return isfinite(c) ? q + c : q;
}
"""


def whole16(value: str) -> str:
    """Return OpenCL C for 16 floats, which are integers of up to 22 bits, as integers.

    Behind so large a number an integer is the last bits of a float. It takes an addition where Intel's compiler makes two
    roundings of a conversion, and where only the lowest byte is stored, nothing else.
    """
    return f"(as_int16(({value}) + 0x1.8p23f) - 0x4b400000)"


# What QuantizeLinear and DequantizeLinear are for one element or for 16, so that they can be part of other kernels.
EXPRESSIONS = (
    HELPERS
    + """
#ifdef ASYNCRT_CPU
inline float __attribute__((overloadable)) $_ratio(float a, float b) { return a / b; }
#else
inline float __attribute__((overloadable)) $_ratio(float a, float b) { return $_divide(a, b); }
#endif
inline float16 __attribute__((overloadable)) $_ratio(float16 a, float16 b) { return a / b; }
"""
    + "".join(
        f"inline float __attribute__((overloadable)) $_real({t} a) {{ return (float)a; }}\n"
        for t in ("uchar", "char", "ushort", "short", "int", "uint")
    )
    + f"""
inline float16 __attribute__((overloadable)) $_real(int16 a) {{ return convert_float16(a); }}
inline int __attribute__((overloadable)) $_level(float a, float s, float z, float low, float high) {{
  return (int)clamp(rint($_ratio(a, s)) + z, low, high);
}}
inline int __attribute__((overloadable)) $_level(float a, float s, float low, float high) {{
  return $_level(a, s, 0.0f, low, high);
}}
inline int16 __attribute__((overloadable)) $_level(float16 a, float16 s, float16 z, float low, float high) {{
  return {whole16("clamp(rint($_ratio(a, s)) + z, low, high)")};
}}
inline int16 __attribute__((overloadable)) $_level(float16 a, float16 s, float low, float high) {{
  return {whole16("clamp(rint($_ratio(a, s)), low, high)")};
}}
"""
)


def limits(dtype: DataType) -> tuple[int, int]:
    """Return the smallest and the largest integer of *dtype*."""
    info = np.iinfo(dtype.numpy.name)
    return int(info.min), int(info.max)


def bounds(dtype: DataType) -> tuple[str, str]:
    """Return the same two as floats in OpenCL C."""
    low, high = limits(dtype)
    return literal(low, FLOAT32), literal(high, FLOAT32)


def divided(a: str, b: str, traits: DeviceTraits) -> str:
    """Return OpenCL C for the float quotient of *a* and *b*, rounded to nearest. It needs `HELPERS`."""
    return f"((float)({a}) / (float)({b}))" if traits.is_cpu else f"$_divide({a}, {b})"


def saturated(value: str, zero_point: str, dtype: DataType) -> str:
    """Return OpenCL C for the float *value* rounded to an integer, moved by the zero point and kept in *dtype*."""
    low, high = bounds(dtype)
    return f"clamp(rint({value}) + (float)({zero_point}), {low}, {high})"  # NaN becomes the smallest


def saturate(value: Any, zero_point: Any, dtype: DataType) -> Array:
    """The same in NumPy. NaN becomes the smallest integer of *dtype*."""
    low, high = limits(dtype)
    moved = np.rint(value.astype(np.float64)) + (0 if zero_point is None else zero_point.astype(np.float64))
    return np.asarray(np.clip(np.where(np.isnan(moved), low, moved), low, high)).astype(dtype.numpy)


def quotient(a: Any, b: Any, precision: DataType) -> Any:
    """Return ``a / b`` in NumPy, both first converted to *precision* and the result rounded to it once."""
    with np.errstate(all="ignore"):
        p = precision.numpy
        wide = a.astype(p).astype(np.float64) / b.astype(p).astype(np.float64)
        return wide.astype(p).astype(np.float64)


def precision_of(a: DataType, b: DataType) -> DataType:
    """Return the precision in which values of these types are divided."""
    return a if a is b and a in (FLOAT16, BFLOAT16) else FLOAT32
