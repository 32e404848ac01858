"""ArgMax and ArgMin: where the first (or last) extreme element along an axis is; NaN is the most extreme of all.

Source: ONNX ArgMax-13, ArgMin-13.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.source import compute_type, kernel
from asyncrt.kernels.impl import Impl, KernelSource, Launch, inp, out
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.patterns.grid import GPU_GROUP
from asyncrt.kernels.patterns.indexing import check_not_empty
from asyncrt.kernels.patterns.walk import WalkedBuffer, lines, walk
from asyncrt.kernels.shapes import normal_axis
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT16, FLOAT32, INT64, Array, DataType, Shape


def _axis(call: Call) -> int:
    return normal_axis(call, call.attributes.get("axis", 0), len(call.shape(0)))


def infer(call: Call) -> tuple[Shape]:
    shape, axis = call.shape(0), _axis(call)
    kept = (1,) if call.attributes.get("keepdims", 1) else ()
    result = (*shape[:axis], *kept, *shape[axis + 1 :])
    check_not_empty(call, (shape[axis],), result)
    return (result,)


def _reference(name: str, attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x: Any = inputs[0]
    find = np.argmax if name == "ArgMax" else np.argmin
    axis = attributes.get("axis", 0)
    if attributes.get("select_last_index", 0):
        result: Any = x.shape[axis] - 1 - find(np.flip(x, axis), axis=axis, keepdims=True)
    else:
        result = find(x, axis=axis, keepdims=True)
    result = np.asarray(result, np.int64)
    return (result if attributes.get("keepdims", 1) else np.squeeze(result, axis),)


def _beats(name: str, last: bool) -> str:
    """Whether element ``v``, which comes after ``a``, is taken instead."""
    less = {"ArgMax": ">", "ArgMin": "<"}[name]
    return f"(v {less}= a || v != v)" if last else f"(v {less} a || (v != v && a == a))"


def _implement(name: str, call: Call, traits: DeviceTraits) -> Impl:
    outer, extent, inner = lines(call.shape(0), _axis(call))
    last = bool(call.attributes.get("select_last_index", 0))
    dtype = call.dtype(0)
    if not traits.is_cpu and extent >= 64 and inner < 32 and traits.max_group >= GPU_GROUP:
        source = _group_kernel(name, dtype, last)
        launch = Launch(source, (inp(0), out(0)), (extent, inner), (outer * inner * GPU_GROUP,), (GPU_GROUP,))
        return Impl("group per result", (launch,))
    if traits.is_cpu and inner >= 16 and dtype in (FLOAT32, FLOAT16):
        return _columns(name, call, traits, (outer, extent, inner), last)
    one = walk(
        name.lower(),
        f"""int best = 0; {compute_type(dtype)} a = LOAD({dtype.name}, x, p);
      for (int k = 1; k < extent; k++) {{
        const {compute_type(dtype)} v = LOAD({dtype.name}, x, p + k * inner);
        if ({_beats(name, last)}) {{ a = v; best = k; }}
      }}
      y[i] = best;""",
        (outer, inner),
        (WalkedBuffer("x", inp(0), dtype, "r"), WalkedBuffer("y", out(0), INT64, "w")),
        traits,
        offsets=(("p", (extent * inner, 1)),),
        ints=(("extent", extent), ("inner", inner)),
        work=extent,
    )
    return Impl("item per result", () if one is None else (one,))


def _columns(name: str, call: Call, traits: DeviceTraits, line: tuple[int, int, int], last: bool) -> Impl:
    """16 neighbouring results at once; on CPU devices. The last 16 of a row overlap those before."""
    outer, extent, inner = line
    dtype = call.dtype(0)
    load = "vload16(0, {})" if dtype is FLOAT32 else "vload_half16(0, {})"
    less = {"ArgMax": ">", "ArgMin": "<"}[name]
    beats = f"(v {less}= a) | (v != v)" if last else f"(v {less} a) | ((v != v) & (a == a))"
    blocks = -(-inner // 16)
    launch = walk(
        f"{name.lower()}_columns",
        f"""const int c = min(block * 16, inner - 16), p = b * extent * inner + c;
      float16 a = {load.format("x + p")}; int16 best = 0;
      for (int k = 1; k < extent; k++) {{
        const float16 v = {load.format("x + p + k * inner")};
        const int16 taken = {beats};
        a = select(a, v, taken);
        best = select(best, (int16)k, taken);
      }}
      vstore16(convert_long16(best), 0, y + b * inner + c);""",
        (outer, blocks),
        (WalkedBuffer("x", inp(0), dtype, "r"), WalkedBuffer("y", out(0), INT64, "w")),
        traits,
        offsets=(("b", (1, 0)), ("block", (0, 1))),
        ints=(("extent", extent), ("inner", inner)),
        work=16 * extent,
    )
    return Impl("columns", () if launch is None else (launch,))


@functools.cache
def _group_kernel(name: str, dtype: DataType, last: bool) -> KernelSource:
    """A work-group per result; an item without elements has index -1."""
    kind = compute_type(dtype)
    beats = _beats(name, last)
    body = f"""
  __local {kind} values[{GPU_GROUP}]; __local int places[{GPU_GROUP}];
  const int id = (int)get_local_id(0), line = (int)get_group_id(0), b = line / inner;
  const int p = b * extent * inner + (line - b * inner);
  int best = -1; {kind} a = 0;
  for (int k = id; k < extent; k += {GPU_GROUP}) {{
    const {kind} v = LOAD({dtype.name}, x, p + k * inner);
    if (best < 0 || {beats}) {{ a = v; best = k; }}
  }}
  values[id] = a; places[id] = best;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int other = {GPU_GROUP // 2}; other > 0; other /= 2) {{
    if (id < other) {{
      {kind} a = values[id], v = values[id + other];
      int here = places[id], there = places[id + other];
      if (there >= 0 && there < here) {{
        const {kind} t = a; a = v; v = t;
        const int j = here; here = there; there = j;
      }}
      if (here < 0 || (there >= 0 && {beats})) {{ a = v; here = there; }}
      values[id] = a; places[id] = here;
    }}
    barrier(CLK_LOCAL_MEM_FENCE);
  }}
  if (id == 0) y[line] = places[0];"""
    group = f"__attribute__((reqd_work_group_size({GPU_GROUP}, 1, 1)))"
    buffers = (("x", dtype, "r"), ("y", INT64, "w"))
    return kernel(name.lower(), buffers, ("extent", "inner"), body, attributes=group)


_TIES = np.array([[2, 7, 7, 1], [3, 3, 3, 3], [9, 0, 0, 9]], np.float32)
_EXAMPLES = (
    Example(("f32[3,5,37]",), {"axis": -1}),
    Example(("f32[3,5,37]",), {"axis": 1, "keepdims": 0}),
    Example(("f32[4,3]",)),
    Example(("f32[2,1000]",), {"axis": 1}),
    Example(("i64[2,300]",), {"axis": 1}),
    Example(("i64[2,300]",), {"axis": 1, "select_last_index": 1}),
    Example(("i32[70,3]",), {"axis": 0, "select_last_index": 1}),
    Example((_TIES,), {"axis": 1}),
    Example((_TIES,), {"axis": 1, "select_last_index": 1, "keepdims": 0}),
    Example(("f16[9]",), {"keepdims": 0}),
    Example(("f32[2,5,37]",), {"axis": 1, "select_last_index": 1}),
    Example(("f16[5,33]",), {"axis": 0}),
    Example((np.tile(_TIES.T, (1, 7)),), {"axis": 0}),
    Example((np.tile(np.array([[1], [np.nan], [3], [np.nan]], np.float32), (1, 18)),), {"axis": 0}),
    Example(("f32[5,1,2]",), {"axis": 1}),
    Example((np.array([[1, np.nan, 3, np.nan]], np.float32),), {"axis": 1}),
    Example((np.array([[1, np.nan, 3, np.nan]], np.float32),), {"axis": 1, "select_last_index": 1}),
)

OPERATORS = tuple(
    Operator(
        name=name,
        infer=infer,
        reference=functools.partial(_reference, name),
        implement=functools.partial(_implement, name),
        examples=_EXAMPLES,
    )
    for name in ("ArgMax", "ArgMin")
)
