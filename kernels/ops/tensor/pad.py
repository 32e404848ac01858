"""Pad: elements added before and after each axis, or cut off where the number is negative.  Source: ONNX Pad-21.

Mode constant adds one value; edge repeats the outermost element; reflect mirrors without repeating it; wrap begins
again at the other end. In the last three modes what a negative number cuts off is gone before anything is added.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from asyncrt.dims import Dim
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.impl import Impl, KernelSource, Launch, inp, out
from asyncrt.kernels.operator import Example, Operator, ViewOf
from asyncrt.kernels.ops._values import known
from asyncrt.kernels.patterns.copy import BITS, materialise
from asyncrt.kernels.patterns.grid import GPU_GROUP, cut_rows, round_up
from asyncrt.kernels.reach import MOST, check_extent
from asyncrt.kernels.shapes import check, check_channels, count, normal_axis
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, DataType, Shape, row_major, show_shape
from asyncrt.memory.view import View

_MODES = ("constant", "edge", "reflect", "wrap")

# Where index i of the output, counted from the source's first element, lies in a source of d elements; -1: nowhere.
_INDEX = {
    "constant": "return i >= 0 && i < d ? i : -1;",
    "edge": "return clamp(i, 0, d - 1);",
    "reflect": "const int p = max(2 * (d - 1), 1); i %= p; if (i < 0) i += p; return i < d ? i : p - i;",
    "wrap": "i %= d; return i < 0 ? i + d : i;",
}


def _mode(attributes: Attributes) -> str:
    return str(attributes.get("mode", "constant"))


def _pads(call: Call) -> list[tuple[int, int]]:
    """Return for each axis the elements before and after it."""
    rank = len(call.shape(0))
    axes = [normal_axis(call, a, rank) for a in call.vector(3)] if call.has(3) else list(range(rank))
    pads = call.ints(1)
    check(call, len(set(axes)) == len(axes), f"an axis is named twice in {axes}")
    check(call, len(pads) == 2 * len(axes), f"{len(pads)} pads for {len(axes)} axes")
    result: list[tuple[int, int]] = [(0, 0)] * rank
    for axis, before, after in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        result[axis] = before, after
    return result


def infer(call: Call) -> tuple[Shape]:
    shape, mode = call.shape(0), _mode(call.attributes)
    check(call, mode in _MODES, f"unknown mode '{mode}'")
    check_channels(call, 2, 1)
    result: list[int] = []
    for dim, (before, after) in zip(shape, _pads(call), strict=True):
        padded = dim + before + after
        if not any(isinstance(v, Dim) for v in (dim, before, after)):
            check(call, padded >= 0, f"{before} and {after} cut more than there is off {show_shape(shape)}")
            left = dim + min(before, 0) + min(after, 0)
            added = before > 0 or after > 0
            check(call, mode == "constant" or left > 0 or not added, f"mode {mode} finds no elements to add")
        result.append(padded)
    return (tuple(result),)


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x, given, value, named = (*inputs, None, None)[:4]
    assert x is not None
    assert given is not None
    axes = list(range(x.ndim)) if named is None else known(named).tolist()
    befores, afters = np.zeros(x.ndim, np.int64), np.zeros(x.ndim, np.int64)
    befores[axes], afters[axes] = np.split(known(given), 2)
    mode = _mode(attributes)
    if mode == "constant":
        fill = np.zeros((), x.dtype) if value is None else value.reshape(())
        y = np.full([int(n) for n in np.array(x.shape, np.int64) + befores + afters], fill, x.dtype)
        source = [slice(max(0, -b), max(0, d + min(0, a))) for d, b, a in zip(x.shape, befores, afters, strict=True)]
        target = [slice(max(0, b), max(0, n - max(0, a))) for n, b, a in zip(y.shape, befores, afters, strict=True)]
        y[tuple(target)] = x[tuple(source)]
        return (y,)
    cut = [slice(max(0, -b), d + min(0, a)) for d, b, a in zip(x.shape, befores, afters, strict=True)]
    added: Any = [(max(0, b), max(0, a)) for b, a in zip(befores.tolist(), afters.tolist(), strict=True)]
    how: Any = mode
    return (np.pad(x[tuple(cut)], added, how),)


def views(call: Call) -> tuple[ViewOf] | None:
    """A piece of the input, if nothing is added."""
    pads = _pads(call)
    if any(not isinstance(p, Dim) and p > 0 for pair in pads for p in pair):
        return None
    view = View.dense(call.shape(0))
    for axis, (before, after) in enumerate(pads):
        if before > 0 or after > 0:
            return None
        view = view.slice(axis, -before, view.shape[axis] + before + after)
    return (ViewOf(0, view),)


def why_not(call: Call) -> str:
    moved = views(call)
    if moved is not None:
        return moved[0].view.why_not_dense()
    axis, (before, after) = next((a, p) for a, p in enumerate(_pads(call)) if max(p) > 0)
    return f"adds {max(before, 0) + max(after, 0)} elements to axis {axis}"


class _PaddedAxis(NamedTuple):
    """An axis of the output, or several merged.

    Attributes:
        size: Its elements.
        before: How many of them come before the source's first; negative if some of the source is cut off.
        dim: Elements of the source.
        stride: From one of the source's elements to the next.
    """

    size: int
    before: int
    dim: int
    stride: int


def _axes(call: Call, constant: bool) -> tuple[list[_PaddedAxis], int]:
    """Return the axes, those merged that are padded as one, and where the source begins."""
    merged: list[_PaddedAxis] = []
    shape, start = call.shape(0), 0
    for dim, stride, (before, after) in zip(shape, row_major(shape), _pads(call), strict=True):
        axis = _PaddedAxis(dim + before + after, before, dim, stride)
        if not constant:  # what is cut off is gone first
            start -= min(before, 0) * stride
            axis = _PaddedAxis(axis.size, max(before, 0), dim + min(before, 0) + min(after, 0), stride)
        whole = axis.before == 0 and axis.dim == axis.size == dim
        last = merged[-1] if merged else None
        joins = last is not None and (constant or (last.before == 0 and last.dim == last.size))
        if last is not None and joins and whole and last.stride == dim * stride:
            merged[-1] = _PaddedAxis(last.size * dim, last.before * dim, last.dim * dim, stride)
        else:
            merged.append(axis)
    return merged or [_PaddedAxis(1, 0, 1, 1)], start


def implement(call: Call, traits: DeviceTraits) -> Impl:
    only_cut = views(call)
    if only_cut is not None:
        return materialise(call, only_cut, traits)
    mode = _mode(call.attributes)
    axes, start = _axes(call, mode == "constant")
    for axis in axes:
        extent = abs(axis.before) + max(axis.size, axis.dim)
        check_extent(call.name, "an axis with its padding", extent, MOST // 2 if mode == "reflect" else MOST)
    outer, inner = axes[:-1], axes[-1]
    rows = count(a.size for a in outer)
    valued = mode == "constant" and call.has(2)
    k = _kernel(BITS[call.dtype(0).itemsize], mode, valued, len(outer), traits.is_cpu)
    buffers = (inp(0), *((inp(2),) if valued else ()), out(0))
    sizes = (inner.size, rows, start, inner.before, inner.dim)
    decode = tuple(v for axis in reversed(outer) for v in axis)
    if not traits.is_cpu:
        grid = (round_up(rows * inner.size, GPU_GROUP),)
        return Impl(f"pad {mode}", (Launch(k, buffers, (*sizes, *decode), grid, (GPU_GROUP,)),))
    cut = cut_rows(rows, inner.size, traits)
    ints = (*sizes, cut.chunk, cut.rows_per_item, *decode)
    return Impl(f"pad {mode}", (Launch(k, buffers, ints, cut.grid, (1, 1)),))


@functools.cache
def _kernel(dtype: DataType, mode: str, valued: bool, outer: int, cpu: bool) -> KernelSource:
    decode = ["int rest = r, from = start; bool inside = true;"]
    decode += [
        f"{{ const int q = rest / n{a}; const int i = $_index(rest - q * n{a} - b{a}, d{a}); rest = q; "
        f"inside = inside && i >= 0; from += i * s{a}; }}"
        for a in range(outer)
    ]
    element = "const int i = $_index(c - before, d); y[r * n + c] = inside && i >= 0 ? x[from + i] : fill;"
    head = f"const {dtype.c} fill = {'value[0]' if valued else '0'};"
    if cpu:
        body = f"""
  {head}
  const int r1 = min(((int)get_global_id(1) + 1) * per_item, rows);
  const int c0 = (int)get_global_id(0) * chunk, c1 = min(c0 + chunk, n);
  for (int r = (int)get_global_id(1) * per_item; r < r1; r++) {{
    {" ".join(decode)}
    const int lo = inside ? clamp(before, c0, c1) : c1, hi = clamp(before + d, lo, c1);
    for (int c = c0; c < lo; c++) {{ {element} }}
    for (int c = lo; c < hi; c++) y[r * n + c] = x[from + c - before];
    for (int c = hi; c < c1; c++) {{ {element} }}
  }}"""
    else:
        body = f"""
  {head}
  const int id = (int)get_global_id(0);
  if (id >= rows * n) return;
  const int r = id / n, c = id - r * n;
  {" ".join(decode)}
  {element}"""
    axes = tuple(f"{v}{a}" for a in range(outer) for v in "nbds")
    ints = ("n", "rows", "start", "before", "d", *(("chunk", "per_item") if cpu else ()), *axes)
    buffers = (("x", dtype, "r"), *((("value", dtype, "r"),) if valued else ()), ("y", dtype, "w"))
    return kernel("pad", buffers, ints, body, helpers=f"inline int $_index(int i, int d) {{ {_INDEX[mode]} }}")


def _i64(*values: int) -> Array:
    return np.array(values, np.int64)


OPERATOR = Operator(
    name="Pad",
    infer=infer,
    reference=reference,
    implement=implement,
    views=views,
    why="nothing is added",
    why_not=why_not,
    shape_infer_dependencies=(1, 3),
    examples=(
        Example(("f32[2,3,5,37]", _i64(0, 0, 1, 2, 0, 0, 3, 4))),
        Example(("f32[3,4]", _i64(1, 0, 0, 2), np.array(2.5, np.float32))),
        Example(("i64[3,4]", _i64(0, 1, 2, 0), np.array(-7, np.int64)), opset=13),
        Example(("f16[5]", _i64(2, 1), None, np.array([-1], np.int64)), opset=18),
        Example(("f32[2,3,4]", _i64(1, 2, 0, 1), None, np.array([2, 0], np.int64)), opset=18),
        Example(("bool[3,4]", _i64(1, 1, 1, 1), np.array(True)), opset=13),
        Example(("i32[3,4]", _i64(0, 0, 0, 0))),
        Example(("f32[2,3,4,5]", _i64(0, 0, 1, 2, 0, 0, 2, 4)), {"mode": "reflect"}),
        Example(("f32[2,3,4,5]", _i64(0, 0, 3, 2, 0, 0, 2, 9)), {"mode": "edge"}),
        Example(("f32[3,4]", _i64(2, 1, 3, 6)), {"mode": "wrap"}, opset=19),
        Example(("i32[3,4]", _i64(2, 0, 0, 0)), {"mode": "reflect"}),
        Example(("f32[70,100]", _i64(1, 0, 1, 0)), {"mode": "edge"}),
    ),
)
