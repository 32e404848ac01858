"""The kernel of MatMulNBits for float32 on CPUs, weights of 4 or 8 bits in whole blocks of 32 and more.

A work-item has some rows and four columns, and takes 32 weights of each column at once. Two weights of four bits share a
byte, so it is what they meet that is put apart: even and odd elements, once for all columns.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.impl import KernelSource, Launch, Ref
from asyncrt.kernels.patterns.grid import round_up
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32, UINT8, DataType

STEP = 32
"""Weights that are taken at once."""
_COLUMNS = 4
_ROWS = 4
_ITEMS = 8  # work-items for each core: a group of its own costs each a tenth of a microsecond


class Weights(NamedTuple):
    """What the source depends on: bits of a weight, the dtype of zero points if there are any, and if there is a bias."""

    bits: int
    zeros: DataType | None
    bias: bool


def launch(
    form: Weights, refs: tuple[Ref, ...], rows: int, n: int, k: int, block: int, traits: DeviceTraits
) -> Launch:
    """Return the launch.

    Args:
        refs: What is multiplied, the weights, their scales and the result, then zero points and the bias, if any.
    """
    tall = _ROWS if rows >= _ROWS else 1
    tiles = -(-rows // tall)
    span = round_up(max(1, n * tiles // (_ITEMS * traits.compute_units)), _COLUMNS)
    return Launch(_kernel(form, tall), refs, (rows, n, k, block, span), (-(-n // span), tiles), (1, 1))


@functools.cache
def _kernel(form: Weights, tall: int) -> KernelSource:
    buffers = [("X", FLOAT32, "r"), ("W", UINT8, "r"), ("S", FLOAT32, "r"), ("Y", FLOAT32, "w")]
    if form.zeros is not None:
        buffers.append(("Z", form.zeros, "r"))
    if form.bias:
        buffers.append(("B", FLOAT32, "r"))
    rows, columns = range(tall), range(_COLUMNS)
    # Rows and columns past the end are the last ones again, and not stored.
    places = [f"const __global float* x{r} = X + min(m + {r}, rows - 1) * k;" for r in rows]
    places += [
        f"const int c{c} = min(n0 + {c}, n - 1); const __global uchar* w{c} = W + c{c} * (k / {8 // form.bits});"
        for c in columns
    ]
    sums = " ".join(f"float16 s{r}_{c} = 0.0f;" for r in rows for c in columns)
    heads = [f"const float f{c} = S[c{c} * blocks + b]; {_zero(form, c)}" for c in columns]
    stores = []
    for r in rows:
        for c in columns:
            v = f"s{r}_{c}"
            total = f"dot({v}.lo.lo + {v}.lo.hi + {v}.hi.lo + {v}.hi.hi, (float4)1.0f)"
            bias = f" + B[n0 + {c}]" if form.bias else ""
            stores.append(f"if (m + {r} < rows && n0 + {c} < n) Y[(m + {r}) * n + n0 + {c}] = {total}{bias};")
    joined = "\n    ".join
    body = f"""
  const int first = (int)get_global_id(0) * span, m = (int)get_global_id(1) * {tall}, blocks = k / block;
  for (int n0 = first; n0 < min(first + span, n); n0 += {_COLUMNS}) {{
    {joined(places)}
    {sums}
    for (int b = 0; b < blocks; b++) {{
      {joined(heads)}
      for (int e = b * block; e < (b + 1) * block; e += {STEP}) {{
        {joined(_step(form, tall))}
      }}
    }}
    {joined(stores)}
  }}"""
    return kernel(f"matmul_nbits_{tall}", tuple(buffers), ("rows", "n", "k", "block", "span"), body)


def _zero(form: Weights, c: int) -> str:
    """Declare ``z<c>``, the zero point of a block; an int where it is one."""
    if form.zeros is None:
        return f"const int z{c} = {1 << (form.bits - 1)};"
    if form.zeros is not UINT8:
        return f"const float z{c} = LOAD({form.zeros.name}, Z, c{c} * blocks + b);"
    if form.bits == 8:
        return f"const int z{c} = Z[c{c} * blocks + b];"
    return f"const int z{c} = Z[c{c} * ((blocks + 1) / 2) + b / 2] >> (b % 2 * 4) & 15;"


def _step(form: Weights, tall: int) -> list[str]:
    """Multiply `STEP` elements of every row and column, from element ``e`` on."""
    lines = []
    for r in range(tall):
        lines.append(f"const float16 g{r} = vload16(0, x{r} + e), h{r} = vload16(1, x{r} + e);")
        halves = (f"(float16)(g{r}.{half}, h{r}.{half})" for half in ("even", "odd"))
        first, second = halves if form.bits == 4 else (f"g{r}", f"h{r}")
        lines.append(f"const float16 x{r}_0 = {first}, x{r}_1 = {second};")
    for c in range(_COLUMNS):
        if form.bits == 4:
            lines.append(f"const int16 q{c} = convert_int16(vload16(0, w{c} + e / 2));")
            numbers = [f"q{c} & 15", f"q{c} >> 4"]
        else:
            numbers = [f"convert_int16(vload16({half}, w{c} + e))" for half in (0, 1)]
        for half, number in enumerate(numbers):
            whole = form.zeros in (None, UINT8)
            value = f"convert_float16(({number}) - z{c})" if whole else f"convert_float16({number}) - z{c}"
            lines.append(f"const float16 u{c}_{half} = {value};")
        lines += [
            f"s{r}_{c} = fma((float16)f{c}, fma(x{r}_0, u{c}_0, x{r}_1 * u{c}_1), s{r}_{c});" for r in range(tall)
        ]
    return lines
