"""CumSum: running sums along an axis.  Source: ONNX CumSum-14."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.source import accumulator_type, compute_type, kernel
from asyncrt.kernels.impl import Impl, KernelSource, Launch, inp, out
from asyncrt.kernels.operator import Example, Operator, ViewOf
from asyncrt.kernels.patterns.copy import materialise
from asyncrt.kernels.patterns.grid import GPU_GROUP
from asyncrt.kernels.patterns.walk import WalkedBuffer, lines, walk
from asyncrt.kernels.shapes import check, normal_axis
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, DataType, Shape
from asyncrt.memory.view import View


def _axis(call: Call) -> int:
    axes = call.ints(1)
    check(call, len(axes) == 1, f"the axis must be one value, there are {len(axes)}")
    return normal_axis(call, axes[0], len(call.shape(0)))


def infer(call: Call) -> tuple[Shape]:
    if call.value(1) is not None:  # the shape does not depend on it
        _axis(call)
    return (call.shape(0),)


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x: Any = inputs[0]
    axes: Any = inputs[1]
    axis = int(axes.reshape(-1)[0])
    if attributes.get("reverse", 0):
        x = np.flip(x, axis)
    wide = x if x.dtype.kind in "iuO" else x.astype(np.float64)
    result: Any = np.cumsum(wide, axis=axis, dtype=wide.dtype)
    if attributes.get("exclusive", 0):
        result = result - wide
        if wide.dtype.kind == "f":  # not by subtraction, which rounds
            result = np.roll(np.cumsum(wide, axis=axis), 1, axis)
            result[tuple(slice(1) if a == axis % x.ndim else slice(None) for a in range(x.ndim))] = 0
    result = np.asarray(result).astype(x.dtype)
    return (np.ascontiguousarray(np.flip(result, axis) if attributes.get("reverse", 0) else result),)


def views(call: Call) -> tuple[ViewOf] | None:
    if call.attributes.get("exclusive", 0) or call.shape(0)[_axis(call)] != 1:
        return None
    return (ViewOf(0, View.dense(call.shape(0))),)


def why_not(call: Call) -> str:
    extent = call.shape(0)[_axis(call)]
    return "it is exclusive" if extent == 1 else f"it sums {extent} elements"


def implement(call: Call, traits: DeviceTraits) -> Impl:
    moved = views(call)
    if moved is not None:
        return materialise(call, moved, traits)
    outer, extent, inner = lines(call.shape(0), _axis(call))
    dtype = call.dtype(0)
    exclusive = bool(call.attributes.get("exclusive", 0))
    first, step = (extent - 1, -1) if call.attributes.get("reverse", 0) else (0, 1)
    if not traits.is_cpu and extent >= 64 and inner < 32 and traits.max_group >= GPU_GROUP:
        ints = (extent, inner, first * inner, step * inner)
        launch = Launch(
            _group_kernel(dtype, exclusive), (inp(0), out(0)), ints, (outer * inner * GPU_GROUP,), (GPU_GROUP,)
        )
        return Impl("group per line", (launch,))
    add, store = f"a += LOAD({dtype.name}, x, at);", f"STORE({dtype.name}, y, at, ({compute_type(dtype)})a);"
    one = walk(
        "cumsum",
        f"""{accumulator_type(dtype)} a = 0;
      for (int k = 0, at = p + first; k < extent; k++, at += step) {{ {store + add if exclusive else add + store} }}""",
        (outer, inner),
        (WalkedBuffer("x", inp(0), dtype, "r"), WalkedBuffer("y", out(0), dtype, "w")),
        traits,
        offsets=(("p", (extent * inner, 1)),),
        ints=(("extent", extent), ("first", first * inner), ("step", step * inner)),
        work=extent,
    )
    return Impl("item per line", () if one is None else (one,))


@functools.cache
def _group_kernel(dtype: DataType, exclusive: bool) -> KernelSource:
    """A work-group per line: it sums 256 elements at a time in local memory and carries their sum on."""
    acc = accumulator_type(dtype)
    result = "carry + (id > 0 ? sums[id - 1] : 0)" if exclusive else "carry + sums[id]"
    body = f"""
  __local {acc} sums[{GPU_GROUP}];
  const int id = (int)get_local_id(0), line = (int)get_group_id(0), b = line / inner;
  const int p = b * extent * inner + (line - b * inner) + first;
  {acc} carry = 0;
  for (int k0 = 0; k0 < extent; k0 += {GPU_GROUP}) {{
    const int k = k0 + id;
    sums[id] = k < extent ? ({acc})LOAD({dtype.name}, x, p + k * step) : 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int d = 1; d < {GPU_GROUP}; d *= 2) {{
      const {acc} before = id >= d ? sums[id - d] : 0;
      barrier(CLK_LOCAL_MEM_FENCE);
      sums[id] += before;
      barrier(CLK_LOCAL_MEM_FENCE);
    }}
    if (k < extent) {{
      const {acc} a = {result};
      STORE({dtype.name}, y, p + k * step, ({compute_type(dtype)})a);
    }}
    carry += sums[{GPU_GROUP - 1}];
    barrier(CLK_LOCAL_MEM_FENCE);
  }}"""
    group = f"__attribute__((reqd_work_group_size({GPU_GROUP}, 1, 1)))"
    buffers = (("x", dtype, "r"), ("y", dtype, "w"))
    return kernel("cumsum", buffers, ("extent", "inner", "first", "step"), body, attributes=group)


def _at(axis: int) -> Array:
    return np.array(axis, np.int64)


_SMALL_STEPS = np.linspace(0, 1, 600, dtype=np.float32).reshape(2, 300)
OPERATOR = Operator(
    name="CumSum",
    infer=infer,
    reference=reference,
    implement=implement,
    views=views,
    why="it sums a unit axis",
    why_not=why_not,
    shape_infer_dependencies=(1,),
    examples=(
        Example(("f32[3,5]", _at(1))),
        Example(("f32[4,2,3]", _at(0))),
        Example(("i64[2,300]", _at(-1))),
        Example(("i64[2,300]", _at(-1)), {"exclusive": 1}),
        Example(("i64[2,300]", _at(-1)), {"reverse": 1}),
        Example(("i32[2,300]", _at(1)), {"exclusive": 1, "reverse": 1}),
        Example((_SMALL_STEPS, _at(1)), {"exclusive": 1}),
        Example(("f32[2,5,3]", _at(-2)), {"exclusive": 1, "reverse": 1}),
        Example(("f16[7]", _at(0))),
        Example(("f32[3,1]", np.array(1, np.int32))),
        Example(("f32[3,1]", _at(1)), {"exclusive": 1}),
        Example(("f64[3,9]", _at(1))),
    ),
)
