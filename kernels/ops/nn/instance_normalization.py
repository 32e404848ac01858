"""InstanceNormalization: each channel of each image to mean 0 and variance 1, then scale and shift per channel.

Source: ONNX InstanceNormalization-22.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from asyncrt.dims import Dim
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.literals import literal
from asyncrt.kernels.codegen.source import compute_type, kernel
from asyncrt.kernels.impl import Impl, KernelSource, Launch, inp, out
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.patterns.grid import cut_rows
from asyncrt.kernels.shapes import check, count
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, DataType, Shape

_GROUP = 128


def infer(call: Call) -> tuple[Shape]:
    shape = call.shape(0)
    check(call, len(shape) >= 2, f"the data must have at least two axes, it has {len(shape)}")
    for index in (1, 2):
        given = call.shape(index)
        check(call, len(given) == 1, f"input {index} must have one axis, it has {len(given)}")
        if not isinstance(given[0], Dim) and not isinstance(shape[1], Dim):
            check(call, given[0] == shape[1], f"input {index} has {given[0]} elements for {shape[1]} channels")
    return (shape,)


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x, scale, bias = (i for i in inputs if i is not None)
    wide, axes = x.astype(np.float64), tuple(range(2, x.ndim))
    mean, var = np.mean(wide, axis=axes, keepdims=True), np.var(wide, axis=axes, keepdims=True)
    shape = (1, -1) + (1,) * (x.ndim - 2)
    y = (wide - mean) / np.sqrt(var + attributes.get("epsilon", 1e-5))
    return ((y * scale.astype(np.float64).reshape(shape) + bias.astype(np.float64).reshape(shape)).astype(x.dtype),)


def implement(call: Call, traits: DeviceTraits) -> Impl:
    shape = call.shape(0)
    rows, n = count(shape[:2]), count(shape[2:])
    epsilon = literal(call.attributes.get("epsilon", 1e-5), call.dtype(0))
    k = _kernel(call.dtype(0), epsilon, traits.is_cpu)
    refs = (inp(0), inp(1), inp(2), out(0))
    if not traits.is_cpu:
        return Impl("groups", (Launch(k, refs, (rows, n, shape[1], 1), (rows * _GROUP,), (_GROUP,)),))
    per_item = cut_rows(rows, n, traits).rows_per_item
    return Impl("rows", (Launch(k, refs, (rows, n, shape[1], per_item), (-(-rows // per_item),), (1,)),))


@functools.cache
def _kernel(dtype: DataType, epsilon: str, cpu: bool) -> KernelSource:
    acc = compute_type(dtype)
    if cpu:
        body = f"""
  const int r0 = (int)get_global_id(0) * per_item, r1 = min(r0 + per_item, rows);
  for (int r = r0; r < r1; r++) {{
    const int ch = r % channels;
    {acc} lanes[16]; {acc} sum; int c;
    {_sum_by_item(dtype, "v")}
    const {acc} mean = sum / n;
    {_sum_by_item(dtype, "(v - mean) * (v - mean)")}
    const {acc} var = sum / n;
    {_stored(dtype, epsilon, "0", 1)}
  }}"""
    else:
        body = f"""
  __local {acc} parts[{_GROUP}];
  const int r = (int)get_group_id(0), id = (int)get_local_id(0), ch = r % channels;
  {acc} sum;
  {_sum_by_group(dtype, "v")}
  const {acc} mean = sum / n;
  {_sum_by_group(dtype, "(v - mean) * (v - mean)")}
  const {acc} var = sum / n;
  {_stored(dtype, epsilon, "id", _GROUP)}"""
    attributes = "" if cpu else f"__attribute__((reqd_work_group_size({_GROUP}, 1, 1)))"
    buffers = (("x", dtype, "r"), ("scale", dtype, "r"), ("bias", dtype, "r"), ("y", dtype, "w"))
    return kernel("instance_normalization", buffers, ("rows", "n", "channels", "per_item"), body, attributes=attributes)


def _sum_by_item(dtype: DataType, term: str) -> str:
    """Return a sum over the row in 16 lanes, which the compiler makes vectors of."""
    acc, t = compute_type(dtype), dtype.name
    return f"""
    for (int j = 0; j < 16; j++) lanes[j] = 0;
    for (c = 0; c + 16 <= n; c += 16)
      for (int j = 0; j < 16; j++) {{ const {acc} v = LOAD({t}, x, r * n + c + j); lanes[j] += {term}; }}
    sum = 0;
    for (; c < n; c++) {{ const {acc} v = LOAD({t}, x, r * n + c); sum += {term}; }}
    for (int j = 0; j < 16; j++) sum += lanes[j];"""


def _sum_by_group(dtype: DataType, term: str) -> str:
    """Return a sum over the row by the whole group; every work-item gets it."""
    acc, t = compute_type(dtype), dtype.name
    return f"""
  sum = 0;
  for (int c = id; c < n; c += {_GROUP}) {{ const {acc} v = LOAD({t}, x, r * n + c); sum += {term}; }}
  parts[id] = sum;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int reach = {_GROUP // 2}; reach > 0; reach /= 2) {{
    if (id < reach) parts[id] += parts[id + reach];
    barrier(CLK_LOCAL_MEM_FENCE);
  }}
  sum = parts[0];
  barrier(CLK_LOCAL_MEM_FENCE);"""


def _stored(dtype: DataType, epsilon: str, start: str, step: int) -> str:
    acc, t = compute_type(dtype), dtype.name
    return f"""
    const {acc} s = LOAD({t}, scale, ch) / sqrt(var + {epsilon}), b = LOAD({t}, bias, ch);
    for (int c = {start}; c < n; c += {step}) {{
      const {acc} v = (LOAD({t}, x, r * n + c) - mean) * s + b;
      STORE({t}, y, r * n + c, v);
    }}"""


OPERATOR = Operator(
    name="InstanceNormalization",
    infer=infer,
    reference=reference,
    implement=implement,
    examples=(
        Example(("f32[2,3,7,9]", "f32[3]", "f32[3]"), {"epsilon": 1e-3}),
        Example(("f32[1,5,130]", "f32[5]", "f32[5]")),
        Example(("f16[2,3,40]", "f16[3]", "f16[3]")),
        Example(("f32[2,2,3,3,3]", "f32[2]", "f32[2]")),
    ),
)
