"""Reductions of rows: each row of a ``[rows, n]`` tensor becomes one value.

A reduction is OpenCL C over the accumulator ``a`` and the value ``v``. On a CPU a work-item folds a row in 16 lanes,
which the compiler makes vectors of; on a GPU a work-group folds it through local memory.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from asyncrt.kernels.codegen.source import accumulator_type, compute_type, kernel
from asyncrt.kernels.impl import Impl, KernelSource, Launch, inp, out
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import DataType, Layout

from .grid import cut_rows

_GROUP = 128


class Fold(NamedTuple):
    """How a row is reduced; every field is OpenCL C.

    Attributes:
        start: Value of ``a`` before the first element.
        step: ``a`` after element ``v``.
        join: ``a`` after another part's accumulator ``b``.
        result: The output from ``a`` and the row's length ``n``.
    """

    start: str
    step: str
    join: str
    result: str


def reduce_rows(name: str, fold: Fold, source: Layout, rows: int, n: int, traits: DeviceTraits) -> Impl:
    """Return the implementation that folds each row of input 0, seen as ``[rows, n]``, into output 0."""
    k = _kernel(name, fold, source.dtype, traits.is_cpu)
    if traits.is_cpu:
        per_item = cut_rows(rows, max(n, 1), traits).rows_per_item
        return Impl("rows", (Launch(k, (inp(0), out(0)), (rows, n, per_item), (-(-rows // per_item),), (1,)),))
    return Impl("groups", (Launch(k, (inp(0), out(0)), (rows, n, 1), (rows * _GROUP,), (_GROUP,)),))


@functools.cache
def _kernel(name: str, fold: Fold, dtype: DataType, cpu: bool) -> KernelSource:
    acc, result = accumulator_type(dtype), compute_type(dtype)
    load = f"({acc})LOAD({dtype.name}, x, {{}})"
    store = f"const {result} v = ({result})({fold.result}); STORE({dtype.name}, y, r, v);"
    if cpu:
        body = f"""
  const int r0 = (int)get_global_id(0) * per_item, r1 = min(r0 + per_item, rows);
  for (int r = r0; r < r1; r++) {{
    {acc} lanes[16];
    for (int j = 0; j < 16; j++) lanes[j] = {fold.start};
    int c = 0;
    for (; c + 16 <= n; c += 16)
      for (int j = 0; j < 16; j++) {{
        const {acc} v = {load.format("r * n + c + j")}; const {acc} a = lanes[j]; lanes[j] = {fold.step};
      }}
    {acc} a = {fold.start};
    for (; c < n; c++) {{ const {acc} v = {load.format("r * n + c")}; a = {fold.step}; }}
    for (int j = 0; j < 16; j++) {{ const {acc} b = lanes[j]; a = {fold.join}; }}
    {store}
  }}"""
    else:
        body = f"""
  __local {acc} parts[{_GROUP}];
  const int r = (int)get_group_id(0), id = (int)get_local_id(0);
  {acc} a = {fold.start};
  for (int c = id; c < n; c += {_GROUP}) {{ const {acc} v = {load.format("r * n + c")}; a = {fold.step}; }}
  parts[id] = a;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int reach = {_GROUP // 2}; reach > 0; reach /= 2) {{
    if (id < reach) {{ a = parts[id]; const {acc} b = parts[id + reach]; parts[id] = {fold.join}; }}
    barrier(CLK_LOCAL_MEM_FENCE);
  }}
  if (id == 0) {{ a = parts[0]; {store} }}"""
    attributes = "" if cpu else f"__attribute__((reqd_work_group_size({_GROUP}, 1, 1)))"
    return kernel(name, (("x", dtype, "r"), ("y", dtype, "w")), ("rows", "n", "per_item"), body, attributes=attributes)
