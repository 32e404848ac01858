"""CumProd: products of all elements up to each one along an axis.

The axis is a tensor that may be on the device alone; the kernel reads it there.

Source: ONNX CumProd-26.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.source import compute_type, kernel
from asyncrt.kernels.impl import Impl, KernelSource, Launch, inp, out
from asyncrt.kernels.indices import Indices, from_either_end
from asyncrt.kernels.operator import Example, Operator, ViewOf
from asyncrt.kernels.patterns.grid import GPU_GROUP, round_up
from asyncrt.kernels.shapes import check, count, normal_axis
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, DataType, Shape
from asyncrt.memory.view import View

_ITEMS = 1 << 20  # work-items at most: the number of a line, and as many as there are work-items, are within 32 bits


def infer(call: Call) -> tuple[Shape]:
    check(call, len(call.shape(0)) > 0, "its input must have an axis")
    return (call.shape(0),)


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x: Any = inputs[0]
    axis: Any = inputs[1]
    axis = int(axis.reshape(-1)[0])
    backwards = bool(attributes.get("reverse", 0))
    wide = np.flip(x, axis) if backwards else x
    kind = np.float64 if x.dtype.kind not in "iu" else x.dtype
    with np.errstate(all="ignore"):
        y = np.cumprod(wide.astype(kind), axis=axis, dtype=kind)
        if attributes.get("exclusive", 0):
            y = np.roll(y, 1, axis=axis)
            first: list[Any] = [slice(None)] * x.ndim
            first[axis] = slice(0, 1)
            y[tuple(first)] = 1
        y = np.flip(y, axis) if backwards else y
        return (np.ascontiguousarray(y).astype(x.dtype),)


def indices(call: Call) -> Indices:
    return from_either_end(1, len(call.shape(0)))


def views(call: Call) -> tuple[ViewOf] | None:
    shape, value = call.shape(0), call.value(1)
    if call.attributes.get("exclusive", 0) or value is None:
        return None
    axis = normal_axis(call, call.ints(1)[0], len(shape))
    return (ViewOf(0, View.dense(shape)),) if shape[axis] == 1 else None


def implement(call: Call, traits: DeviceTraits) -> Impl:
    shape = call.shape(0)
    total = count(shape)
    most = total // min(shape)  # lines, if the axis is the shortest
    if traits.is_cpu:
        grid, group = max(1, min(4 * traits.compute_units, total // 4096)), 1
    else:
        grid, group = min(round_up(most, GPU_GROUP), _ITEMS), GPU_GROUP
    backwards, exclusive = bool(call.attributes.get("reverse", 0)), bool(call.attributes.get("exclusive", 0))
    k = _kernel(call.dtype(0), call.dtype(1), len(shape), backwards, exclusive)
    return Impl("lines", (Launch(k, (inp(0), inp(1), out(0)), (total, *shape), (grid,), (group,)),))


@functools.cache
def _kernel(dtype: DataType, axis: DataType, rank: int, backwards: bool, exclusive: bool) -> KernelSource:
    """Each work-item takes every so many lines along the axis."""
    extents = " ".join(
        f"if (axis == {a}) n = d{a}; else if (axis < {a}) inner *= d{a};" for a in range(rank)
    )
    t = compute_type(dtype)
    store = f"STORE({dtype.name}, y, at, product);"
    step = f"product *= LOAD({dtype.name}, x, at);"
    body = f"""
  int axis = (int)axes[0];
  axis = clamp(axis < 0 ? axis + {rank} : axis, 0, {rank - 1});
  int n = 1, inner = 1;
  {extents}
  const int lines = total / n;
  for (int line = (int)get_global_id(0); line < lines; line += (int)get_global_size(0)) {{
    const int o = line / inner * n * inner + line % inner;
    {t} product = 1;
    for (int k = 0; k < n; k++) {{
      const int at = o + ({"n - 1 - k" if backwards else "k"}) * inner;
      {f"{store} {step}" if exclusive else f"{step} {store}"}
    }}
  }}"""
    buffers = (("x", dtype, "r"), ("axes", axis, "r"), ("y", dtype, "w"))
    return kernel("cumulative_product", buffers, ("total", *(f"d{a}" for a in range(rank))), body)


def _axis(axis: int) -> Array:
    return np.array(axis, np.int64)


OPERATOR = Operator(
    name="CumProd",
    infer=infer,
    reference=reference,
    implement=implement,
    views=views,
    indices=indices,
    why="one element along the axis",
    value_hints=(1,),
    examples=(
        Example(("f32[3,4,5]", _axis(1)), opset=26),
        Example(("f32[3,40]", _axis(-1)), {"reverse": 1}, opset=26),
        Example(("i64[3,4]", np.array(0, np.int32)), {"exclusive": 1}, opset=26),
        Example(("i32[5]", _axis(0)), {"exclusive": 1, "reverse": 1}, opset=26),
        Example(("f64[2,3]", _axis(1)), opset=26),
        Example(("f32[3,1,4]", _axis(1)), opset=26),
    ),
)
