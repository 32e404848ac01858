"""Functions that kernels may call where drivers' own are slow in vectors: ``asyncrt_erf`` and ``asyncrt_tanh``.

On CPU devices they are ratios of polynomials, for float and for vectors of 16, within 4e-7 of what they should be,
relatively. They take about as long as exp; Intel's erf takes three times as long and PoCL's nine times. On other devices
they are the driver's own.
"""

from __future__ import annotations

from collections.abc import Sequence


def _ratio(name: str, limit: float, above: Sequence[float], below: Sequence[float]) -> str:
    """Write a function that is ``x P(x²) / Q(x²)`` up to *limit*, beyond it 1, and never more; NaN stays NaN."""

    def polynomial(v: str, coefficients: Sequence[float]) -> str:
        steps = " ".join(f"{v} = fma({v}, s, (T){c!r}f);" for c in coefficients[1:])
        return f"T {v} = {coefficients[0]!r}f; {steps}"

    macro, own = name.upper(), name.removeprefix("asyncrt_")
    return f"""\
#if !defined(ASYNCRT_CPU)
#define {name} {own}
#elif !defined({macro})
#define {macro}(T) inline T __attribute__((overloadable)) {name}(T x) {{ \\
  T s = x * x; s = s > {limit * limit!r}f ? {limit * limit!r}f : s; \\
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
}  # fmt: skip


def functions(text: str) -> str:
    """Return the definitions of those functions that *text* calls."""
    return "".join(definition for name, definition in _FUNCTIONS.items() if f"{name}(" in text)
