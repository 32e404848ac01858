"""TensorScatter: a cache with an update written into it, for each batch from an index of its own on.

In the mode "circular" what goes beyond the end continues at the beginning. In the mode "linear" it must not.

Source: ONNX TensorScatter-24.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrt.dims import Undetermined
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.impl import Impl, KernelSource, Launch, inp, out
from asyncrt.kernels.indices import Indices
from asyncrt.kernels.operator import Example, Operator, ViewOf
from asyncrt.kernels.patterns.copy import BITS, copy_launch
from asyncrt.kernels.patterns.grid import GPU_GROUP, cut_rows, round_up
from asyncrt.kernels.shapes import check, count, normal_axis
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import INT64, Array, DataType, Shape
from asyncrt.memory.view import View


def infer(call: Call) -> tuple[Shape]:
    cache, update = call.shape(0), call.shape(1)
    axis = normal_axis(call, call.attributes.get("axis", -2), len(cache))
    check(call, axis > 0, "the sequence axis cannot be the batch axis")
    check(call, call.attributes.get("mode", "linear") in ("linear", "circular"), "mode must be linear or circular")
    check(call, len(cache) == len(update), "cache and update must have the same number of axes")
    for a, (mine, theirs) in enumerate(zip(cache, update, strict=True)):
        with contextlib.suppress(Undetermined):  # only a request can tell
            fits = theirs <= mine if a == axis else theirs == mine
            check(call, fits, f"axis {a} of the update is {theirs}, of the cache {mine}")
    if call.has(2):
        with contextlib.suppress(Undetermined):
            check(call, call.shape(2) == (cache[0],), "there must be a write index for each batch")
    return (cache,)


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    cache: Any = inputs[0]
    update: Any = inputs[1]
    axis = attributes.get("axis", -2) % cache.ndim
    starts: Any = inputs[2] if len(inputs) > 2 else None
    starts = np.zeros(len(cache), np.int64) if starts is None else starts
    y = cache.copy()
    length = cache.shape[axis]
    moved, source = np.moveaxis(y, axis, 1), np.moveaxis(update, axis, 1)
    for batch, start in enumerate(starts.tolist()):
        rows = start + np.arange(update.shape[axis])
        if attributes.get("mode", "linear") == "circular":
            rows = rows % length
        moved[batch, rows] = source[batch]
    return (y,)


def indices(call: Call) -> Indices | None:
    if not call.has(2):
        return None
    axis = normal_axis(call, call.attributes.get("axis", -2), len(call.shape(0)))
    circular = call.attributes.get("mode", "linear") == "circular"
    return Indices(2, ((0, None if circular else call.shape(0)[axis] - call.shape(1)[axis]),))


def views(call: Call) -> tuple[ViewOf] | None:
    """The cache if there is no update, the update if it is all of the cache."""
    cache, update = call.shape(0), call.shape(1)
    if any(d == 0 for d in update):
        return (ViewOf(0, View.dense(cache)),)
    value = call.value(2)
    from_start = not call.has(2) or (value is not None and all(start == 0 for start in call.ints(2)))
    axis = call.attributes.get("axis", -2) % len(cache)
    if from_start and update[axis] == cache[axis]:
        return (ViewOf(1, View.dense(cache)),)
    return None


def implement(call: Call, traits: DeviceTraits) -> Impl:
    cache, update = call.shape(0), call.shape(1)
    axis = call.attributes.get("axis", -2) % len(cache)
    itemsize = call.dtype(0).itemsize
    whole = View.dense(cache)
    launches: list[Launch] = []
    first = copy_launch(inp(0), whole, out(0), whole, itemsize, traits)
    if first is not None:
        launches.append(first)
    if count(update):
        circular, has = call.attributes.get("mode", "linear") == "circular", call.has(2)
        rows, inner = count(update[: axis + 1]), count(update[axis + 1 :])
        refs = (inp(1), out(0), inp(2)) if has else (inp(1), out(0))
        ints = (rows, inner, update[axis], cache[axis], rows // cache[0])
        k = _kernel(BITS[itemsize], circular, has, traits.is_cpu)
        if traits.is_cpu:
            cut = cut_rows(rows, inner, traits)
            launches.append(Launch(k, refs, (*ints, cut.chunk, cut.rows_per_item), cut.grid, (1, 1)))
        else:
            launches.append(Launch(k, refs, (*ints, 1, 1), (round_up(rows * inner, GPU_GROUP),), (GPU_GROUP,)))
    return Impl("copy, then scatter", tuple(launches))


@functools.cache
def _kernel(dtype: DataType, circular: bool, has_starts: bool, cpu: bool) -> KernelSource:
    """Rows of the update are copied to where they belong; a batch has `per_batch` rows."""
    start = "starts[r / per_batch]" if has_starts else "0"
    wrap = "to = (to % length + length) % length;" if circular else ""
    place = f"long to = {start} + r % count; {wrap} const int inside = to >= 0 && to < length;"
    target = "(r / count * length + (int)to) * n"
    if cpu:
        body = f"""
  const int r1 = min(((int)get_global_id(1) + 1) * per_item, rows);
  const int c0 = (int)get_global_id(0) * chunk, c1 = min(c0 + chunk, n);
  for (int r = (int)get_global_id(1) * per_item; r < r1; r++) {{
    {place}
    if (inside) for (int c = c0; c < c1; c++) y[{target} + c] = x[r * n + c];
  }}"""
    else:
        body = f"""
  const int id = (int)get_global_id(0);
  if (id >= rows * n) return;
  const int r = id / n, c = id - r * n;
  {place}
  if (inside) y[{target} + c] = x[id];"""
    buffers: tuple[tuple[str, DataType, str], ...] = (("x", dtype, "r"), ("y", dtype, "w"))
    if has_starts:
        buffers += (("starts", INT64, "r"),)
    ints = ("rows", "n", "count", "length", "per_batch", "chunk", "per_item")
    return kernel("tensor_scatter", buffers, ints, body)


_STARTS = np.array([1, 3], np.int64)

OPERATOR = Operator(
    name="TensorScatter",
    infer=infer,
    reference=reference,
    implement=implement,
    views=views,
    indices=indices,
    why="the update is empty, or is the whole cache",
    value_hints=(2,),
    examples=(
        Example(("f32[2,3,6,5]", "f32[2,3,2,5]", _STARTS), opset=24),
        Example(("f32[2,3,4,5]", "f32[2,3,3,5]", _STARTS), {"mode": "circular"}, opset=24),
        Example(("f16[2,6,4]", "f16[2,2,4]", _STARTS), {"axis": 1}, opset=24),
        Example(("i64[2,6]", "i64[2,2]"), {"axis": -1}, opset=24),
        Example(("f32[2,3,4]", "f32[2,3,4]"), opset=24),
    ),
)
