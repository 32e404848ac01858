"""MaxPool, AveragePool and LpPool: each position becomes the greatest, the mean or the p-norm of its window.

Cells outside the input are left out. AveragePool with `count_include_pad` counts cells of the padding (but not those
beyond it, which `ceil_mode` can reach) as zeros. MaxPool can also say where each maximum is, as an index into the
whole input; the first one wins.

Source: ONNX MaxPool-22, AveragePool-22, LpPool-22.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrt.errors import ShapeError
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.source import accumulator_type, compute_type, kernel
from asyncrt.kernels.impl import Impl, KernelSource, Launch, inp, out
from asyncrt.kernels.operator import Example, Operator, ViewOf
from asyncrt.kernels.patterns.copy import materialise
from asyncrt.kernels.patterns.grid import GPU_GROUP, cut_rows, round_up
from asyncrt.kernels.patterns.indexing import progression
from asyncrt.kernels.patterns.pooled import TYPES, PoolFold, fold_windows
from asyncrt.kernels.patterns.window import MAX_SPATIAL, Window, output_dims, patch_elements, patches, window
from asyncrt.kernels.shapes import check
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT8, INT64, UINT8, Array, DataType, Shape, row_major
from asyncrt.memory.view import View

_FLOATS = frozenset({FLOAT16, BFLOAT16, FLOAT32, FLOAT64})


def _size(attributes: Attributes) -> tuple[int, ...]:
    return tuple(attributes.get("kernel_shape") or ())


def _ceil(attributes: Attributes) -> bool:
    return bool(attributes.get("ceil_mode", 0))


def lp_power(attributes: Attributes) -> int:
    """Return which power elements of LpPool and GlobalLpPool are raised to."""
    p = int(attributes.get("p", 2))
    if not 1 <= p < 1 << 31:
        raise ShapeError(f"p is {p}; it must be at least 1 and of 32 bits")
    return p


def infer(call: Call) -> tuple[Shape, ...]:
    x = call.shape(0)
    check(call, len(x) >= 3, f"the data must have at least three axes, it has {len(x)}")
    dims = output_dims(call.name, call.attributes, x[2:], _size(call.attributes), ceil=_ceil(call.attributes), short=True)
    lp_power(call.attributes)
    return ((*x[:2], *dims),) * max(1, len(call.output_types))


def _window(name: str, attributes: Attributes, shape: Shape) -> Window:
    return window(name, attributes, shape[2:], _size(attributes), ceil=_ceil(attributes), short=True)


def _lowest(dtype: np.dtype[Any]) -> Any:
    return -np.inf if dtype.kind in "fV" else np.iinfo(dtype).min


def _index_strides(attributes: Attributes, spatial: Sequence[int]) -> tuple[int, ...]:
    if attributes.get("storage_order", 0):
        return tuple(reversed(row_major(tuple(reversed(tuple(spatial))))))
    return row_major(tuple(spatial))


def _max_reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array, Array]:
    x = inputs[0]
    assert x is not None
    w = _window("MaxPool", attributes, x.shape)
    axes = len(w.size)
    ends = (*x.shape[:2], *w.outs, -1)
    seen = patches(x, w, _lowest(x.dtype)).reshape(ends)
    offsets = np.zeros(w.spatial, np.int64)
    for axis, stride in enumerate(_index_strides(attributes, w.spatial)):
        offsets += (np.arange(w.spatial[axis]) * stride).reshape((-1,) + (1,) * (axes - 1 - axis))
    plane = math.prod(w.spatial)
    planes = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *(1,) * axes) * plane
    where = patches(offsets + planes, w, -1).reshape(ends)
    greatest = np.max(seen, axis=-1, keepdims=True)
    best = (where >= 0) & ((seen == greatest) | ((seen != seen) & (greatest != greatest)))
    first = np.argmax(best, axis=-1, keepdims=True)
    y = np.take_along_axis(seen, first, axis=-1)[..., 0]
    return y, np.take_along_axis(where, first, axis=-1)[..., 0]


def _cell_counts(attributes: Attributes, w: Window) -> Array:
    """Return how many cells each position divides by."""
    include = bool(attributes.get("count_include_pad", 0))
    total = np.ones((1,) * len(w.size))
    for axis, outs in enumerate(w.outs):
        low = -w.before[axis] if include else 0
        high = w.spatial[axis] + (w.after[axis] if include else 0)
        at = np.arange(outs)[:, None] * w.strides[axis] + np.arange(w.size[axis]) * w.dilations[axis] - w.before[axis]
        cells = np.sum((at >= low) & (at < high), axis=1)
        total = total * cells.reshape((-1,) + (1,) * (len(w.size) - 1 - axis))
    return total


def _average_reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x = inputs[0]
    assert x is not None
    w = _window("AveragePool", attributes, x.shape)
    axes = tuple(range(-len(w.size), 0))
    with np.errstate(invalid="ignore"):  # a window may have no cells
        # The sum of -0.0 alone is -0.0, so that padding must not be +0.0.
        y = np.sum(patches(x.astype(np.float64), w, -0.0), axis=axes, initial=-0.0) / _cell_counts(attributes, w)
    return (y.astype(x.dtype),)


def _lp_reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x = inputs[0]
    assert x is not None
    w = _window("LpPool", attributes, x.shape)
    p = lp_power(attributes)
    axes = tuple(range(-len(w.size), 0))
    y = np.sum(np.abs(patches(x.astype(np.float64), w, 0.0)) ** p, axis=axes) ** (1 / p)
    return (y.astype(x.dtype),)


def host_nbytes(call: Call) -> int:
    """What all windows see, in float64, and for a maximum where it lies as well."""
    x = call.shape(0)
    return 24 * patch_elements(x[0] * x[1], _window(call.name, call.attributes, x))


def _cells(w: Window, axis: int) -> tuple[int, int] | None:
    """Where along *axis* the one cell of the first window is and how far the next is, if all windows have one cell."""
    dim, outs, stride = w.spatial[axis], w.outs[axis], w.strides[axis]
    if w.size[axis] == 1 and w.before[axis] == 0:
        return (0, stride) if (outs - 1) * stride < dim else None
    if outs > 2 * dim + 2:
        return None  # most of what they see is padding
    found: list[int] = []
    step = w.dilations[axis]
    for position in range(outs):
        start = position * stride - w.before[axis]
        first = max(0, -(start // step))  # the first cell at or behind the input's beginning
        last = min(w.size[axis] - 1, (dim - 1 - start) // step)
        if first != last:
            return None
        found.append(start + first * step)
    return progression(found, dim)


def views(call: Call) -> tuple[ViewOf] | None:
    """The greatest, or the mean, of one cell is the cell; indices are not the input's."""
    if len(call.outputs) > 1:
        return None
    size = _size(call.attributes)
    if call.attributes.get("count_include_pad", 0) and any(k != 1 for k in size):
        return None
    w = _window(call.name, call.attributes, call.shape(0))
    view = View.dense(call.shape(0))
    for axis in range(len(size)):
        cells = _cells(w, axis)
        if cells is None:
            return None
        view = view.slice(2 + axis, cells[0], w.outs[axis], cells[1])
    return (ViewOf(0, view),)


def why_not(call: Call) -> str:
    if len(call.outputs) > 1:
        return "its indices are asked for"
    moved = views(call)
    return "its windows have several elements" if moved is None else moved[0].view.why_not_dense()


def _implement(mode: str, call: Call, traits: DeviceTraits) -> Impl:
    same = None if mode == "lp" else views(call)
    if same is not None:
        return materialise(call, same, traits)
    x = call.shape(0)
    plain = _window(call.name, call.attributes, x)
    w = plain.as_3d(call.name)
    lead = (0,) * (MAX_SPATIAL - len(plain.size))
    strides = lead + _index_strides(call.attributes, plain.spatial)
    indices = len(call.outputs) > 1
    include = mode == "average" and bool(call.attributes.get("count_include_pad", 0))
    p = lp_power(call.attributes) if mode == "lp" else 0
    od, oh, ow = w.outs
    rows = x[0] * x[1] * od * oh
    ints = (*w.spatial, *w.outs, *w.size, *w.strides, *w.dilations, *w.before, *w.after, *strides, rows)
    if traits.is_cpu and call.dtype(0) in TYPES and not indices:
        impl = fold_windows(_fold(mode, call.dtype(0), include, p), w, x[0] * x[1], traits)
        if impl is not None:
            return impl
    k = _kernel(mode, call.dtype(0), indices, include, p, traits.is_cpu)
    buffers = (inp(0), out(0)) + ((out(1),) if indices else ())
    if not traits.is_cpu:
        grid = (round_up(rows * ow, GPU_GROUP),)
        return Impl("elements", (Launch(k, buffers, (*ints, 1), grid, (GPU_GROUP,)),))
    per_item = cut_rows(rows, ow * w.size[0] * w.size[1] * w.size[2], traits).rows_per_item
    return Impl("rows", (Launch(k, buffers, (*ints, per_item), (-(-rows // per_item),), (1,)),))


# Floats as integers of the same order, so that a comparison is one instruction; a NaN of any sign is the greatest.
_SORTED = """
inline int16 $_sorted(float16 v) { const int16 i = as_int16(v), s = i ^ (i >> 31 & INT_MAX); return v != v ? INT_MAX : s; }
inline float16 $_float(int16 s) { return as_float16(s ^ (s >> 31 & INT_MAX)); }"""


def _fold(mode: str, dtype: DataType, include: bool, p: int) -> PoolFold:
    if mode == "max" and dtype.is_float:
        return PoolFold("max_pool", dtype, "int", "(int)0x807fffff", "$_sorted(v)", "max(a, v)", "$_float(a)", helpers=_SORTED)
    if mode == "max":
        return PoolFold("max_pool", dtype, "int", str(_lowest(dtype.numpy)), "v", "max(a, v)", "a")
    # The sum of -0.0 alone is -0.0, so that padding must not be +0.0.
    if mode == "average":
        return PoolFold("average_pool", dtype, "float", "-0.0f", "v", "a + v", "a / n", "padding" if include else "inside")
    term, root = _power(p)
    return PoolFold("lp_pool", dtype, "float", "0.0f", term, "a + v", root)


def _power(p: int) -> tuple[str, str]:
    """What is summed of an element ``v`` for a norm, and the norm of the sum ``a``."""
    term = "fabs(v)" if p == 1 else "v * v" if p == 2 else f"pown(fabs(v), {p})"
    return term, "a" if p == 1 else "sqrt(a)" if p == 2 else f"rootn(a, {p})"


_INTS = (
    "D", "H", "W", "OD", "OH", "OW", "KD", "KH", "KW", "sD", "sH", "sW", "dD", "dH", "dW", "pD", "pH", "pW", "eD", "eH",
    "eW", "id_s", "ih_s", "iw_s", "rows", "per_item",
)  # fmt: skip
_ROW = "const int oh = r % OH, od = r / OH % OD, plane = r / OH / OD, bD = od * sD - pD, bH = oh * sH - pH;"


@functools.cache
def _kernel(mode: str, dtype: DataType, indices: bool, include: bool, p: int, cpu: bool) -> KernelSource:
    one = _one(mode, dtype, indices, include, p)
    row = _ROW + (f" {_count('D', include)} {_count('H', include)}" if mode == "average" else "")
    if cpu:
        body = f"""
  const int r0 = (int)get_global_id(0) * per_item, r1 = min(r0 + per_item, rows);
  for (int r = r0; r < r1; r++) {{
    {row}
    for (int ow = 0; ow < OW; ow++) {{ {one} }}
  }}"""
    else:
        body = f"""
  const int item = (int)get_global_id(0);
  if (item >= rows * OW) return;
  const int r = item / OW, ow = item - r * OW;
  {row}
  {one}"""
    buffers = (("x", dtype, "r"), ("y", dtype, "w")) + ((("z", INT64, "w"),) if indices else ())
    return kernel(f"{mode}_pool", buffers, _INTS, body)


def _count(axis: str, include: bool) -> str:
    """Count the window's cells along one axis that the mean divides by."""
    low, high = (f"-p{axis}", f"{axis} + e{axis}") if include else ("0", axis)
    return (
        f"int n{axis} = 0; for (int k = 0; k < K{axis}; k++) "
        f"{{ const int i = b{axis} + k * d{axis}; n{axis} += i >= {low} && i < {high}; }}"
    )


def _one(mode: str, dtype: DataType, indices: bool, include: bool, p: int) -> str:
    """The result at column ``ow`` of output row ``r``; cells outside the input are left out."""
    t, result = dtype.name, compute_type(dtype)
    acc = result if mode == "max" else accumulator_type(dtype)
    start, finish = "0", ""
    if mode == "max":  # a NaN stays
        fold = "if (first || (a == a && !(v <= a))) { a = v; at = id * id_s + ih * ih_s + iw * iw_s; first = 0; }"
        start = "-INFINITY" if dtype.is_float else str(_lowest(dtype.numpy))
    elif mode == "average":
        fold, finish = "a += v;", f"{_count('W', include)} a /= ({acc})(nD * nH * nW);"
    else:
        term, root = _power(p)
        fold, finish = f"a += {term};", f"a = {root};"
    index = "z[r * OW + ow] = (long)plane * D * H * W + at;" if indices else ""
    return f"""
      const int bW = ow * sW - pW;
      {acc} a = {start};
      int first = 1, at = 0;
      for (int kd = 0; kd < KD; kd++) {{
        const int id = bD + kd * dD;
        if (id < 0 || id >= D) continue;
        for (int kh = 0; kh < KH; kh++) {{
          const int ih = bH + kh * dH;
          if (ih < 0 || ih >= H) continue;
          for (int kw = 0; kw < KW; kw++) {{
            const int iw = bW + kw * dW;
            if (iw < 0 || iw >= W) continue;
            const {acc} v = LOAD({t}, x, ((plane * D + id) * H + ih) * W + iw);
            {fold}
          }}
        }}
      }}
      {finish}
      const {result} v_ = ({result})a;
      STORE({t}, y, r * OW + ow, v_);
      {index}"""


_K3: dict[str, Any] = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}
_K1: dict[str, Any] = {"kernel_shape": (1, 1)}

OPERATORS = (
    Operator(
        name="MaxPool",
        infer=infer,
        reference=_max_reference,
        host_nbytes=host_nbytes,
        implement=functools.partial(_implement, "max"),
        views=views,
        why="each window is one element",
        why_not=why_not,
        device_types=_FLOATS | {INT8, UINT8},
        examples=(
            Example(("f32[2,3,9,70]",), _K3),
            Example(("f32[1,2,12,53]",), {"kernel_shape": (3, 2), "pads": (1, 1, 1, 1)}),
            Example(("f32[1,2,12]",), {"kernel_shape": (3,), "strides": (2,), "ceil_mode": 1}),
            Example(("f32[1,2,7,7]",), {"kernel_shape": (2, 2), "dilations": (2, 2)}),
            Example(("f32[1,2,8,8]",), {"kernel_shape": (3, 3), "strides": (2, 2), "auto_pad": "SAME_UPPER"}),
            Example(("f32[1,2,5,6,7]",), {"kernel_shape": (2, 3, 2), "strides": (1, 2, 2)}),
            Example(("f32[2,2,6,6]",), {"kernel_shape": (2, 2), "strides": (2, 2)}, 2),
            Example(("f32[2,2,6,6]",), {"kernel_shape": (2, 2), "strides": (2, 2), "storage_order": 1}, 2),
            Example(("f16[1,2,9,9]",), _K3),
            Example(("f32[1,2,3,4]",), _K1),
            Example(("f32[1,1,6,150]",), {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}),
            Example(("f32[1,1,3,300]",), {"kernel_shape": (2, 3), "strides": (1, 2), "dilations": (1, 100)}),
            Example(("f32[1,1,3,900]",), {"kernel_shape": (2, 3), "strides": (1, 2), "dilations": (1, 400)}),
        ),
    ),
    Operator(
        name="AveragePool",
        infer=infer,
        reference=_average_reference,
        host_nbytes=host_nbytes,
        implement=functools.partial(_implement, "average"),
        views=views,
        why="each window is one element",
        why_not=why_not,
        device_types=_FLOATS,
        examples=(
            Example(("f32[2,3,9,70]",), _K3),
            Example(("f32[2,3,9,70]",), {**_K3, "count_include_pad": 1}),
            Example(("f32[1,2,7,41]",), {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}),
            Example(("f32[1,2,7,8]",), {"kernel_shape": (2, 3), "strides": (2, 2), "ceil_mode": 1}),
            Example(("f32[1,2,13]",), {"kernel_shape": (3,), "pads": (1, 1), "dilations": (2,)}),
            Example(("f32[1,2,8,8]",), {"kernel_shape": (3, 3), "auto_pad": "SAME_LOWER"}),
            Example(("f32[1,2,5,6,7]",), {"kernel_shape": (2, 3, 2)}),
            Example(("f16[1,2,9,9]",), _K3),
            Example(("f32[1,2,3,4]",), _K1),
            Example(("f32[2,3,1,1]",), {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}),
            Example(("f32[2,3,1,1]",), {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "count_include_pad": 1}),
        ),
    ),
    Operator(
        name="LpPool",
        infer=infer,
        reference=_lp_reference,
        host_nbytes=host_nbytes,
        implement=functools.partial(_implement, "lp"),
        device_types=_FLOATS,
        examples=(
            Example(("f32[2,3,9,20]",), {"kernel_shape": (3, 2), "strides": (2, 2)}),
            Example(("f32[1,2,12]",), {"kernel_shape": (3,), "p": 1}),
            Example(("f32[1,2,6,6]",), {"kernel_shape": (2, 2), "p": 3, "dilations": (2, 1)}),
            Example(("f16[1,2,6,6]",), {"kernel_shape": (2, 2)}),
        ),
    ),
)
