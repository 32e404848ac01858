"""Trilu: the upper or lower triangle of the last two axes, zero elsewhere.  Source: ONNX Trilu-14.

Input k moves the diagonal, which is part of both triangles: towards the upper right if positive.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.impl import Impl, KernelSource, Launch, inp, out
from asyncrt.kernels.operator import Example, Operator, ViewOf
from asyncrt.kernels.ops._values import known
from asyncrt.kernels.patterns.copy import BITS
from asyncrt.kernels.patterns.grid import GPU_GROUP, cut_rows, round_up
from asyncrt.kernels.shapes import check, count
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import INT64, Array, DataType, Shape
from asyncrt.memory.view import View


def infer(call: Call) -> tuple[Shape]:
    check(call, len(call.shape(0)) >= 2, "its input has fewer than two axes")
    return (call.shape(0),)


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x, given = inputs[0], inputs[1] if len(inputs) > 1 else None
    assert x is not None
    k = 0 if given is None else int(known(given).reshape(-1)[0])
    k = max(-x.shape[-2] - 1, min(x.shape[-1] + 1, k))  # NumPy adds to it
    return (np.triu(x, k) if attributes.get("upper", 1) else np.tril(x, k),)


def views(call: Call) -> tuple[ViewOf] | None:
    """The input, if the triangle is all of it."""
    if call.has(1) and call.value(1) is None:
        return None
    k = call.ints(1)[0] if call.has(1) else 0
    rows, columns = call.shape(0)[-2:]
    whole = k + rows <= 1 if call.attributes.get("upper", 1) else columns - k <= 1
    return (ViewOf(0, View.dense(call.shape(0))),) if whole else None


def why_not(call: Call) -> str:
    unknown = call.has(1) and call.value(1) is None
    return "k is not known on the host" if unknown else "the triangle is not all of it"


def implement(call: Call, traits: DeviceTraits) -> Impl:
    shape = call.shape(0)
    rows, columns = count(shape[:-1]), shape[-1]
    bits = BITS[call.dtype(0).itemsize]
    k = _kernel(bits, bool(call.attributes.get("upper", 1)), call.has(1), traits.is_cpu)
    buffers = (inp(0), inp(1), out(0)) if call.has(1) else (inp(0), out(0))
    sizes = (columns, rows, shape[-2])
    if not traits.is_cpu:
        return Impl("trilu", (Launch(k, buffers, sizes, (round_up(rows * columns, GPU_GROUP),), (GPU_GROUP,)),))
    cut = cut_rows(rows, columns, traits)
    return Impl("trilu", (Launch(k, buffers, (*sizes, cut.chunk, cut.rows_per_item), cut.grid, (1, 1)),))


@functools.cache
def _kernel(dtype: DataType, upper: bool, moved: bool, cpu: bool) -> KernelSource:
    k = "clamp(diagonal[0], (long)-height - 1, (long)n + 1)" if moved else "0"
    if cpu:
        lo, hi = ("at", "c1") if upper else ("c0", "at")
        body = f"""
  const int k = (int){k};
  const int r1 = min(((int)get_global_id(1) + 1) * per_item, rows);
  const int c0 = (int)get_global_id(0) * chunk, c1 = min(c0 + chunk, n);
  for (int r = (int)get_global_id(1) * per_item; r < r1; r++) {{
    const int at = clamp(r % height + k{"" if upper else " + 1"}, c0, c1);
    __global const {dtype.c}* from = x + r * n;
    __global {dtype.c}* to = y + r * n;
    for (int c = c0; c < {lo}; c++) to[c] = 0;
    for (int c = {lo}; c < {hi}; c++) to[c] = from[c];
    for (int c = {hi}; c < c1; c++) to[c] = 0;
  }}"""
    else:
        body = f"""
  const int k = (int){k};
  const int id = (int)get_global_id(0);
  if (id >= rows * n) return;
  const int r = id / n, c = id - r * n;
  y[id] = c - r % height {">=" if upper else "<="} k ? x[id] : 0;"""
    buffers = (("x", dtype, "r"), *((("diagonal", INT64, "r"),) if moved else ()), ("y", dtype, "w"))
    return kernel("trilu", buffers, ("n", "rows", "height", *(("chunk", "per_item") if cpu else ())), body)


def _k(value: int) -> Array:
    return np.array(value, np.int64)


OPERATOR = Operator(
    name="Trilu",
    infer=infer,
    reference=reference,
    implement=implement,
    views=views,
    why="the triangle is all of it",
    why_not=why_not,
    value_hints=(1,),
    examples=(
        Example(("f32[5,5]",)),
        Example(("f32[2,4,7]",), {"upper": 0}),
        Example(("f32[2,3,7,4]", _k(1))),
        Example(("i64[4,7]", _k(-2)), {"upper": 0}),
        Example(("f16[4,7]", _k(3)), {"upper": 0}),
        Example(("bool[9,3]", _k(-4))),
        Example(("i32[3,4]", _k(-(2**40)))),
        Example(("i32[3,4]", _k(2**40))),
        Example(("f32[3,4]", _k(3)), {"upper": 0}),
        Example(("f32[1,4]", None)),
        Example(("f32[2,70,90]", _k(5))),
    ),
)
