"""Softmax and LogSoftmax: exponentials divided by their sum along an axis, and the logarithm of that.

Before opset 13 the input is coerced to a matrix at `axis`, so that the sum is over all axes from there on.

Source: ONNX Softmax-13, Softmax-11, LogSoftmax-13, LogSoftmax-11.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from asyncrt.errors import ShapeError
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.source import compute_type, kernel
from asyncrt.kernels.codegen.vectors import steps
from asyncrt.kernels.impl import Impl, KernelSource, Launch, inp, out
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.patterns.grid import GPU_GROUP, cut_rows, round_up
from asyncrt.kernels.shapes import count, normal_axis
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32, Array, DataType, Shape

_ONE_AXIS = 13  # the opset from which the sum is over one axis
_GROUP = 128
_TOGETHER = 4  # vectors of a row on a CPU: a comparison waits for the one before
_SHORT = 32  # rows that a single work-item of a GPU takes on


def infer(call: Call) -> tuple[Shape]:
    shape = call.shape(0)
    axis = call.attributes.get("axis", _default_axis(call.attributes))
    if call.attributes.opset >= _ONE_AXIS:
        normal_axis(call, axis, len(shape))
    elif not -len(shape) <= axis <= len(shape):
        raise ShapeError(f"'{call.name}': axis {axis} is outside a tensor of rank {len(shape)}")
    return (shape,)


def _default_axis(attributes: Attributes) -> int:
    return -1 if attributes.opset >= _ONE_AXIS else 1


def _extents(attributes: Attributes, shape: Shape) -> tuple[int, int, int]:
    """Return the elements before, along and after what is summed over."""
    axis = attributes.get("axis", _default_axis(attributes))
    axis = axis + len(shape) if axis < 0 else axis
    if attributes.opset < _ONE_AXIS:
        return count(shape[:axis]), count(shape[axis:]), 1
    return count(shape[:axis]), shape[axis], count(shape[axis + 1 :])


def _reference(log: bool, attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x = inputs[0]
    assert x is not None
    if x.size == 0:
        return (x.copy(),)
    wide = x.astype(np.float64).reshape(_extents(attributes, x.shape))
    with np.errstate(all="ignore"):
        shifted = wide - wide.max(axis=1, keepdims=True)
        total = np.exp(shifted).sum(axis=1, keepdims=True)
        result = shifted - np.log(total) if log else np.exp(shifted) / total
    return (result.reshape(x.shape).astype(x.dtype),)


def _implement(log: bool, call: Call, traits: DeviceTraits) -> Impl:
    dtype = call.dtype(0)
    outer, n, inner = _extents(call.attributes, call.shape(0))
    buffers = (inp(0), out(0))
    if traits.is_cpu and inner == 1:
        cut = cut_rows(outer, n, traits)
        if cut.chunk < n:  # a row is one work-item's
            cut = cut._replace(chunk=n, grid=(1, cut.grid[1]))
        launch = Launch(_row_kernel(dtype, log), buffers, (outer, n, cut.rows_per_item), cut.grid[1:], (1,))
        return Impl("rows", (launch,))
    if traits.is_cpu:
        cut = cut_rows(outer, n * inner, traits)
        chunk = inner
        if cut.chunk < n * inner:
            chunk = min(inner, round_up(-(-inner // cut.grid[0]), 16))
        grid = (-(-inner // chunk), cut.grid[1])
        ints = (outer, n, inner, chunk, cut.rows_per_item)
        return Impl("columns", (Launch(_column_kernel(dtype, log), buffers, ints, grid, (1, 1)),))
    if n <= _SHORT or inner >= _SHORT:
        grid1 = (round_up(outer * inner, GPU_GROUP),)
        launch = Launch(_item_kernel(dtype, log), buffers, (outer, n, inner), grid1, (GPU_GROUP,))
        return Impl("item per row", (launch,))
    launch = Launch(_group_kernel(dtype, log), buffers, (n, inner), (outer * inner * _GROUP,), (_GROUP,))
    return Impl("group per row", (launch,))


def _buffers(dtype: DataType) -> tuple[tuple[str, DataType, str], ...]:
    return (("x", dtype, "r"), ("y", dtype, "w"))


def _name(log: bool) -> str:
    return "log_softmax" if log else "softmax"


@functools.cache
def _row_kernel(dtype: DataType, log: bool) -> KernelSource:
    """Rows of adjacent elements, one after the other."""
    t = compute_type(dtype)
    load, store = f"LOAD({dtype.name}, x, o + c)", f"STORE({dtype.name}, y, o + c, {{}})"
    if dtype is FLOAT32:
        # As fmax, a comparison leaves NaN out; it is one instruction.
        greatest = [
            f"{{ const float16 v = vload16({k}, x + o + c); m16_{k} = v > m16_{k} ? v : m16_{k}; }}" for k in range(_TOGETHER)
        ]
        fold_sum = "float8 s8 = vs.lo + vs.hi; float4 s4 = s8.lo + s8.hi; float2 s2 = s4.lo + s4.hi;"
        longest = f"""
    {" ".join(f"float16 m16_{k} = -INFINITY;" for k in range(_TOGETHER))} int c = 0;
    {steps(greatest, "n")}
    const float16 vm = {functools.reduce("fmax({}, {})".format, (f"m16_{k}" for k in range(_TOGETHER)))};
    const float8 m8 = fmax(vm.lo, vm.hi); const float4 m4 = fmax(m8.lo, m8.hi); const float2 m2 = fmax(m4.lo, m4.hi);
    float m = fmax(m2.x, m2.y);
    for (; c < n; c++) m = fmax(m, x[o + c]);"""
        keep = "" if log else "vstore16(e, 0, y + o + c);"
        total = f"""
    float16 vs = 0.0f; c = 0;
    for (; c + 16 <= n; c += 16) {{ const float16 e = asyncrt_exp(vload16(0, x + o + c) - m); vs += e; {keep} }}
    {fold_sum} float sum = s2.x + s2.y;
    for (; c < n; c++) {{ const float e = asyncrt_exp(x[o + c] - m); sum += e; {"" if log else "y[o + c] = e;"} }}"""
        if log:
            last = f"""
    const float shift = m, l = log(sum); c = 0;
    {steps([f"vstore16(vload16({k}, x + o + c) - shift - l, {k}, y + o + c);" for k in range(_TOGETHER)], "n")}
    for (; c < n; c++) y[o + c] = x[o + c] - shift - l;"""
        else:
            last = f"""
    const float inverse = 1.0f / sum; c = 0;
    {steps([f"vstore16(vload16({k}, y + o + c) * inverse, {k}, y + o + c);" for k in range(_TOGETHER)], "n")}
    for (; c < n; c++) y[o + c] *= inverse;"""
    else:
        value = f"{load} - m - l" if log else f"asyncrt_exp({load} - m) * inverse"
        longest = f"{t} m = -INFINITY; for (int c = 0; c < n; c++) m = fmax(m, ({t}){load});"
        total = f"{t} sum = 0; for (int c = 0; c < n; c++) sum += asyncrt_exp(({t}){load} - m);"
        last = f"const {t} {'l = log(sum)' if log else 'inverse = 1 / sum'};"
        last += f" for (int c = 0; c < n; c++) {store.format(value)};"
    body = f"""
  const int r1 = min(((int)get_global_id(0) + 1) * per_item, rows);
  for (int r = (int)get_global_id(0) * per_item; r < r1; r++) {{
    const int o = r * n;
    {longest}
    {total}
    {last}
  }}"""
    return kernel(f"{_name(log)}_rows", _buffers(dtype), ("rows", "n", "per_item"), body)


def _strided(log: bool, t: str, load: str, store: str) -> str:
    """Three passes over n elements that are `inner` apart, in type *t*; `{}` in *store* is the value."""
    value = f"{load} - m - l" if log else f"asyncrt_exp({load} - m) * inverse"
    last = f"const {t} l = log(sum);" if log else f"const {t} inverse = 1 / sum;"
    return f"""
    {t} m = -INFINITY, sum = 0;
    for (int k = 0; k < n; k++) m = fmax(m, {load});
    for (int k = 0; k < n; k++) sum += asyncrt_exp({load} - m);
    {last}
    for (int k = 0; k < n; k++) {store.format(value)};"""


@functools.cache
def _column_kernel(dtype: DataType, log: bool) -> KernelSource:
    """Elements along the axis are `inner` apart: neighbouring columns are treated at once."""
    scalar = _strided(
        log, compute_type(dtype), f"LOAD({dtype.name}, x, o + c + k * inner)",
        f"STORE({dtype.name}, y, o + c + k * inner, {{}})",
    )  # fmt: skip
    fast = ""
    if dtype is FLOAT32:
        vectors = _strided(
            log, "float16", "vload16(0, x + o + c + k * inner)", "vstore16({}, 0, y + o + c + k * inner)"
        )
        fast = f"for (; c + 16 <= c1; c += 16) {{ {vectors} }}"
    body = f"""
  const int r1 = min(((int)get_global_id(1) + 1) * per_item, rows);
  const int c0 = (int)get_global_id(0) * chunk, c1 = min(c0 + chunk, inner);
  for (int r = (int)get_global_id(1) * per_item; r < r1; r++) {{
    const int o = r * n * inner; int c = c0;
    {fast}
    for (; c < c1; c++) {{ {scalar} }}
  }}"""
    return kernel(f"{_name(log)}_columns", _buffers(dtype), ("rows", "n", "inner", "chunk", "per_item"), body)


@functools.cache
def _item_kernel(dtype: DataType, log: bool) -> KernelSource:
    """One work-item per row or column."""
    passes = _strided(
        log, compute_type(dtype), f"LOAD({dtype.name}, x, o + k * inner)",
        f"STORE({dtype.name}, y, o + k * inner, {{}})",
    )  # fmt: skip
    body = f"""
  const int id = (int)get_global_id(0);
  if (id >= outer * inner) return;
  const int o = id / inner * n * inner + id % inner;
  {passes}"""
    return kernel(f"{_name(log)}_items", _buffers(dtype), ("outer", "n", "inner"), body)


@functools.cache
def _group_kernel(dtype: DataType, log: bool) -> KernelSource:
    """One work-group per row, with its maximum and sum found in local memory."""
    t = compute_type(dtype)
    load = f"LOAD({dtype.name}, x, o + k * inner)"
    value = f"{load} - m - l" if log else f"asyncrt_exp({load} - m) * inverse"

    def fold(combined: str) -> str:
        return f"""
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int half_ = {_GROUP // 2}; half_ > 0; half_ /= 2) {{
    if (id < half_) part[id] = {combined};
    barrier(CLK_LOCAL_MEM_FENCE);
  }}"""

    body = f"""
  __local {t} part[{_GROUP}];
  const int id = (int)get_local_id(0), row = (int)get_group_id(0);
  const int o = row / inner * n * inner + row % inner;
  {t} own = -INFINITY;
  for (int k = id; k < n; k += {_GROUP}) own = fmax(own, ({t}){load});
  part[id] = own;
  {fold("fmax(part[id], part[id + half_])")}
  const {t} m = part[0];
  barrier(CLK_LOCAL_MEM_FENCE);
  own = 0;
  for (int k = id; k < n; k += {_GROUP}) own += asyncrt_exp(({t}){load} - m);
  part[id] = own;
  {fold("part[id] + part[id + half_]")}
  const {t} {"l = log(part[0])" if log else "inverse = 1 / part[0]"};
  for (int k = id; k < n; k += {_GROUP}) STORE({dtype.name}, y, o + k * inner, {value});"""
    group = f"__attribute__((reqd_work_group_size({_GROUP}, 1, 1)))"
    return kernel(f"{_name(log)}_groups", _buffers(dtype), ("n", "inner"), body, attributes=group)


_STEEP = np.linspace(-1000, 1000, 120).reshape(3, 40)
_EXAMPLES = (
    Example(("f32[3,37]",)),
    Example(("f32[2,5,64]",), {"axis": -1}),
    Example(("f32[2,5,19]",), {"axis": 1}),
    Example(("f32[7,2,3]",), {"axis": 0}),
    Example(("f16[3,130]",)),
    Example(("f16[3,40,5]",), {"axis": 1}),
    Example(("f64[3,40]",)),
    Example(("f32[1]",)),
    Example(("f32[300,1]",)),
)
_MASKED = np.where(np.arange(120).reshape(3, 40) % 7 == 3, -np.inf, _STEEP).astype(np.float32)
_STEEP_EXAMPLES = (Example((_STEEP.astype(np.float32),)), Example((_MASKED,)), Example((_MASKED,), {"axis": 0}))

OPERATORS = tuple(
    Operator(
        name=name,
        infer=infer,
        reference=functools.partial(_reference, log),
        implement=functools.partial(_implement, log),
        examples=_EXAMPLES if log else _EXAMPLES + _STEEP_EXAMPLES,
    )
    for name, log in (("Softmax", False), ("LogSoftmax", True))
)
