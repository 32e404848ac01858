"""Range: start, start + delta, start + 2 delta, ... to before a limit.  Source: ONNX Range-11."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrt.dims import Dim, Undetermined
from asyncrt.kernels.call import Attributes, Call, ValueUnknown
from asyncrt.kernels.codegen.source import accumulator_type, kernel
from asyncrt.kernels.impl import Impl, KernelSource, Launch, inp, out
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.ops._values import ceil_div, known
from asyncrt.kernels.patterns.grid import GPU_GROUP, cut_rows, round_up
from asyncrt.kernels.shapes import check
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, DataType, Shape

_WHOLE = 1 << 53  # floats below it have a last bit of 1 or less


def _whole(number: Any) -> Any:
    """Return a float as an int if it is a whole number: for those both ways of counting give the same."""
    return int(number) if isinstance(number, float) and number.is_integer() and abs(number) < _WHOLE else number


def _count(start: Any, limit: Any, delta: Any) -> int:
    """Return the number of elements, for a *delta* that is not 0. Floats are counted in float64."""
    if isinstance(delta, Dim):
        raise Undetermined(f"is {delta!r} positive?")
    start, limit, delta = map(_whole, (start, limit, delta))
    length, step = (limit - start, delta) if delta > 0 else (start - limit, -delta)
    if length < 0:
        return 0
    return math.ceil(length / step) if isinstance(length, float) or isinstance(step, float) else ceil_div(length, step)


def infer(call: Call) -> tuple[Shape]:
    numbers: list[Any] = []
    for index, name in enumerate(("start", "limit", "delta")):
        value = call.value(index)
        if value is None:
            raise ValueUnknown(f"'{call.name}': the {name} is not known while loading")
        check(call, value.size == 1, f"the {name} has {value.size} elements")
        number = value.reshape(-1).tolist()[0]
        check(call, isinstance(number, Dim | int) or math.isfinite(number), f"the {name} is {number}")
        numbers.append(number)
    check(call, isinstance(numbers[2], Dim) or numbers[2] != 0, "the delta is 0")
    return ((_count(*numbers),),)


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    values = [known(v).reshape(-1) for v in inputs if v is not None]
    start, limit, delta = (v.tolist()[0] for v in values)
    steps = np.arange(_count(start, limit, delta))
    return ((start + steps * delta).astype(values[0].dtype),)


def implement(call: Call, traits: DeviceTraits) -> Impl:
    count = call.outputs[0].count
    k = _kernel(call.dtype(0), traits.is_cpu)
    buffers = (inp(0), inp(2), out(0))
    if not traits.is_cpu:
        return Impl("range", (Launch(k, buffers, (count,), (round_up(count, GPU_GROUP),), (GPU_GROUP,)),))
    cut = cut_rows(1, count, traits)
    return Impl("range", (Launch(k, buffers, (count, cut.chunk), (cut.grid[0],), (1,)),))


@functools.cache
def _kernel(dtype: DataType, cpu: bool) -> KernelSource:
    t = accumulator_type(dtype)
    value = f"fma(({t})i, d, s)" if dtype.is_float else "s + i * d"
    head = f"const {t} s = LOAD({dtype.name}, start, 0), d = LOAD({dtype.name}, delta, 0);"
    if cpu:
        body = f"""
  {head}
  const int i0 = (int)get_global_id(0) * chunk, i1 = min(i0 + chunk, n);
  for (int i = i0; i < i1; i++) STORE({dtype.name}, y, i, {value});"""
    else:
        body = f"""
  {head}
  const int i = (int)get_global_id(0);
  if (i < n) STORE({dtype.name}, y, i, {value});"""
    buffers = (("start", dtype, "r"), ("delta", dtype, "r"), ("y", dtype, "w"))
    return kernel("range", buffers, ("n", *(("chunk",) if cpu else ())), body)


def _example(start: float, limit: float, delta: float, dtype: type[np.generic]) -> Example:
    return Example(tuple(np.array(v, dtype) for v in (start, limit, delta)))


OPERATOR = Operator(
    name="Range",
    infer=infer,
    reference=reference,
    implement=implement,
    shape_infer_dependencies=(0, 1, 2),
    examples=(
        _example(0, 37, 1, np.int64),
        _example(3, 20000, 2, np.int64),
        _example(10, -3, -4, np.int64),
        _example(-5, 6, 3, np.int32),
        _example(0, 5, 1, np.int16),
        _example(0.5, 2, 0.25, np.float32),
        _example(1, -1, -0.3, np.float32),
        _example(0, 1, 0.1, np.float32),
        _example(0, 1, 0.1, np.float64),
    ),
)
