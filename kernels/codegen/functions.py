"""Functions that kernels may call: where the drivers' own are too slow, or OpenCL C leaves the result open.

On CPU devices ``asyncrt_erf`` and ``asyncrt_tanh`` are ratios of polynomials, for float and for vectors of 16, with a
relative error of at most 4e-7. They take about as long as exp; Intel's erf takes three times as long and PoCL's nine
times. ``asyncrt_exp`` is the driver's, but 0 below 1.2e-38, the least normal float: Intel's takes 27 times as long for 16
numbers with one below it among them. ``asyncrt_exp_beside_1`` is for what 1 is added to, and is 1e-38 there, which is less
to calculate. On other devices they are the driver's functions.

``asyncrt_to_int``, ``asyncrt_to_long`` and ``asyncrt_to_ulong`` are the integers of floats (`conversion.py`).
``asyncrt_quotient`` and ``asyncrt_remainder`` divide integers, towards 0. Divided by 0 both are 0, as in NumPy, and the
least integer over -1 is itself; C leaves both open, and processors stop the process.
``asyncrt_half`` rounds floats to those that half precision has.
``asyncrt_low`` and ``asyncrt_high`` interleave the lower, or the higher, halves of two vectors of 16 floats.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncrt.layout import FLOAT32

from .literals import literal


def _ratio(name: str, limit: float, above: Sequence[float], below: Sequence[float]) -> str:
    """Write a function that is ``x P(x²) / Q(x²)`` up to *limit*, beyond it 1, and never more; NaN stays NaN."""

    def polynomial(v: str, coefficients: Sequence[float]) -> str:
        steps = " ".join(f"{v} = fma({v}, s, (T){literal(c, FLOAT32)});" for c in coefficients[1:])
        return f"T {v} = {literal(coefficients[0], FLOAT32)}; {steps}"

    most = literal(limit * limit, FLOAT32)
    macro, own = name.upper(), name.removeprefix("asyncrt_")
    return f"""\
#if !defined(ASYNCRT_CPU)
#define {name} {own}
#elif !defined({macro})
#define {macro}(T) inline T __attribute__((overloadable)) {name}(T x) {{ \\
  T s = x * x; s = s > {most} ? {most} : s; \\
  {polynomial("p", above)} \\
  {polynomial("q", below)} \\
  T r = x * p / q; r = r > 1.0f ? 1.0f : r; return r < -1.0f ? -1.0f : r; \\
}}
{macro}(float)
{macro}(float16)
#ifdef cl_khr_fp64
inline double __attribute__((overloadable)) {name}(double x) {{ return {own}(x); }}
#endif
#endif
"""


def _conversion(name: str, result: str, text: str) -> str:
    """Write the function of a float or double ``x`` that is *text*; kernels that are built together may all have it."""
    macro = name.upper()
    return f"""\
#if !defined({macro})
#define {macro}(T) inline {result} __attribute__((overloadable)) {name}(T x) {{ return {text}; }}
{macro}(float)
#ifdef cl_khr_fp64
{macro}(double)
#endif
#endif
"""


def _division(name: str, signed: str, unsigned: str) -> str:
    """Write the function of integers ``a`` and ``b``; ``d`` is a divisor that may be divided by, b where b may be."""
    macro = name.upper()
    head = f"inline T __attribute__((overloadable)) {name}(T a, T b)"
    types = ("char", "short", "int", "long")
    return f"""\
#if !defined({macro})
#define {macro}(T) {head} {{ const T d = b == 0 || b == -1 ? 1 : b; return {signed}; }}
{" ".join(f"{macro}({t})" for t in types)}
#define {macro}_U(T) {head} {{ const T d = b == 0 ? 1 : b; return {unsigned}; }}
{" ".join(f"{macro}_U(u{t})" for t in types)}
#endif
"""


def _interleaved(name: str, part: str, first: int) -> str:
    """Write the function of vectors ``a`` and ``b``. Where one instruction can be asked for, it takes less to compile."""
    macro = name.upper()
    lanes = ", ".join(f"{i}, {16 + i}" for i in range(first, first + 8))
    return f"""\
#if !defined({macro})
#define {macro}
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define {name}(a, b) __builtin_shufflevector(a, b, {lanes})
#endif
#endif
#if !defined({name})
inline float16 {name}(float16 a, float16 b) {{ float16 r; r.even = a.{part}; r.odd = b.{part}; return r; }}
#endif
#endif
"""


# Without the extension for half it is stored and read back, which NVIDIA's compiler does by way of memory, unless told.
_HALF = """\
#if !defined(ASYNCRT_HALF)
#define ASYNCRT_HALF
inline float __attribute__((overloadable)) asyncrt_half(float x) {
#if defined(__NV_CL_C_VERSION)
  ushort h;
  float y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(h));
  return y;
#else
  ushort h;
  vstore_half_rte(x, 0, (half*)&h);
  return vload_half(0, (const half*)&h);
#endif
}
inline float16 __attribute__((overloadable)) asyncrt_half(float16 x) {
  ushort h[16];
  vstore_half16_rte(x, 0, (half*)h);
  return vload_half16(0, (const half*)h);
}
#endif
"""

def _exponential(name: str, guarded: str) -> str:
    """Write the exponential of *guarded*, which is ``x`` or what stands for it where the result would be subnormal."""
    macro = name.upper()
    return f"""\
#if !defined(ASYNCRT_CPU)
#define {name} exp
#elif !defined({macro})
#define {macro}(T) inline T __attribute__((overloadable)) {name}(T x) {{ return exp({guarded}); }}
{macro}(float)
{macro}(float16)
#ifdef cl_khr_fp64
inline double __attribute__((overloadable)) {name}(double x) {{ return exp(x); }}
#endif
#endif
"""


_TO_LONG = "x >= -0x1p63f && x < 0x1p63f ? (long)x : LONG_MIN"

_TO_INTS = """\
#if !defined(ASYNCRT_TO_INTS)
#define ASYNCRT_TO_INTS
inline int16 __attribute__((overloadable)) asyncrt_to_int(float16 x) {
  return x >= -0x1p31f && x < 0x1p31f ? convert_int16(x) : (int16)(INT_MIN);
}
#endif
"""

# The coefficients are those of Eigen's functions for float, from the highest power on.
_FUNCTIONS = {
    "asyncrt_erf": _ratio(
        "asyncrt_erf", 4.0,
        (-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
         -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02),
        (-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
         -1.42647390514189e-02),
    ),
    "asyncrt_tanh": _ratio(
        "asyncrt_tanh", 7.90531110763549805,
        (-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08,
         1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03),
        (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03),
    ),
    "asyncrt_exp": _exponential("asyncrt_exp", "x < -87.3365f ? (T)(-INFINITY) : x"),
    "asyncrt_exp_beside_1": _exponential("asyncrt_exp_beside_1", "x < -87.3365f ? (T)(-87.3365f) : x"),
    "asyncrt_quotient": _division(
        "asyncrt_quotient", "b == 0 ? 0 : b == -1 ? (T)(0UL - (ulong)a) : a / d", "b == 0 ? 0 : a / d"
    ),
    "asyncrt_remainder": _division(
        "asyncrt_remainder", "b == 0 || b == -1 ? 0 : a % d", "b == 0 ? 0 : a % d"
    ),
    "asyncrt_half": _HALF,
    "asyncrt_low": _interleaved("asyncrt_low", "lo", 0),
    "asyncrt_high": _interleaved("asyncrt_high", "hi", 8),
    "asyncrt_to_int": _conversion("asyncrt_to_int", "int", "x >= -0x1p31f && x < 0x1p31f ? (int)x : INT_MIN")
    + _TO_INTS,
    "asyncrt_to_long": _conversion("asyncrt_to_long", "long", _TO_LONG),
    "asyncrt_to_ulong": _conversion(
        "asyncrt_to_ulong", "ulong", f"x >= 0x1p63f ? (x < 0x1p64f ? (ulong)x : 0) : (ulong)({_TO_LONG})"
    ),
}  # fmt: skip


def functions(text: str) -> str:
    """Return the definitions of the functions that *text* calls."""
    return "".join(definition for name, definition in _FUNCTIONS.items() if f"{name}(" in text)
