"""Filling memory with one value. The value is an argument, so there is one kernel per element size."""

from __future__ import annotations

import functools

import numpy as np

from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.impl import KernelSource, Launch, Ref
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, DataType

from .copy import BITS
from .grid import GPU_GROUP, cut_rows, round_up


def fill_launch(target: Ref, count: int, value: Array, traits: DeviceTraits) -> Launch | None:
    """Return the launch that writes *count* times the one element of *value* from the start of *target*.

    None if there is nothing to write.
    """
    if count == 0:
        return None
    itemsize = value.dtype.itemsize
    low, high = np.frombuffer(value.tobytes().ljust(8, b"\0"), np.int32).tolist()
    k = _kernel(BITS[itemsize], traits.is_cpu)
    if not traits.is_cpu:
        return Launch(k, (target,), (count, low, high), (round_up(count, GPU_GROUP),), (GPU_GROUP,))
    cut = cut_rows(1, count, traits)
    return Launch(k, (target,), (count, low, high, cut.chunk), (cut.grid[0],), (1,))


@functools.cache
def _kernel(dtype: DataType, cpu: bool) -> KernelSource:
    value = f"const {dtype.c} v = ({dtype.c})(((ulong)(uint)high << 32) | (ulong)(uint)low);"
    if cpu:
        body = f"""
  {value}
  const int c0 = (int)get_global_id(0) * chunk, c1 = min(c0 + chunk, n);
  for (int c = c0; c < c1; c++) y[c] = v;"""
    else:
        body = f"""
  {value}
  const int id = (int)get_global_id(0);
  if (id < n) y[id] = v;"""
    return kernel("fill", (("y", dtype, "w"),), ("n", "low", "high", *(("chunk",) if cpu else ())), body)
