"""CenterCropPad: the middle of the input where it is too long, zeros around it where it is too short.

What cannot be cut or added evenly is cut or added at the end.

Source: ONNX CenterCropPad-18.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.impl import Impl, KernelSource, Launch, inp, out
from asyncrt.kernels.operator import Example, Operator, ViewOf
from asyncrt.kernels.patterns.copy import BITS, copy_launch
from asyncrt.kernels.patterns.grid import GPU_GROUP, round_up
from asyncrt.kernels.shapes import check, count, normal_axis
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, DataType, Shape
from asyncrt.memory.view import View


def infer(call: Call) -> tuple[Shape]:
    result = list(call.shape(0))
    axes = call.attributes.get("axes")
    axes = range(len(result)) if axes is None else [normal_axis(call, a, len(result)) for a in axes]
    wanted = call.ints(1)
    check(call, len(wanted) == len(axes), f"{len(wanted)} sizes for {len(axes)} axes")
    for axis, dim in zip(axes, wanted, strict=True):
        result[axis] = dim
        check(call, dim >= 0, f"size {dim} is negative")
    return (tuple(result),)


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x: Any = inputs[0]
    sizes: Any = inputs[1]
    shape = list(x.shape)
    axes = attributes.get("axes")
    for axis, dim in zip(range(x.ndim) if axes is None else axes, sizes.reshape(-1).tolist(), strict=True):
        shape[axis] = dim
    y = np.zeros(shape, x.dtype)
    taken, placed = [], []
    for mine, theirs in zip(x.shape, shape, strict=True):
        kept = min(mine, theirs)
        taken.append(slice((mine - kept) // 2, (mine - kept) // 2 + kept))
        placed.append(slice((theirs - kept) // 2, (theirs - kept) // 2 + kept))
    y[tuple(placed)] = x[tuple(taken)]
    return (y,)


def views(call: Call) -> tuple[ViewOf] | None:
    """A view if nothing is padded."""
    view = View.dense(call.shape(0))
    for axis, (mine, theirs) in enumerate(zip(call.shape(0), call.outputs[0].shape, strict=True)):
        if mine is theirs or mine == theirs:
            continue
        if theirs > mine:
            return None
        view = view.slice(axis, (mine - theirs) // 2, theirs)
    return (ViewOf(0, view),)


def implement(call: Call, traits: DeviceTraits) -> Impl:
    shape, result = call.shape(0), call.outputs[0].shape
    taken, placed = View.dense(shape), View.dense(result)
    padded = False
    for axis, (mine, theirs) in enumerate(zip(shape, result, strict=True)):
        kept = min(mine, theirs)
        padded = padded or theirs > mine
        taken = taken.slice(axis, (mine - kept) // 2, kept)
        placed = placed.slice(axis, (theirs - kept) // 2, kept)
    itemsize = call.dtype(0).itemsize
    launches: list[Launch] = []
    if padded:
        n = count(result)
        grid, group = (min(n, 4 * traits.compute_units), 1) if traits.is_cpu else (round_up(n, GPU_GROUP), GPU_GROUP)
        launches.append(Launch(_zeros_kernel(BITS[itemsize]), (out(0),), (n, -(-n // grid)), (grid,), (group,)))
    launch = copy_launch(inp(0), taken, out(0), placed, itemsize, traits)
    if launch is not None:
        launches.append(launch)
    return Impl("zeros, then copy" if padded else "copy", tuple(launches))


@functools.cache
def _zeros_kernel(dtype: DataType) -> KernelSource:
    body = """
  const int i0 = (int)get_global_id(0) * each, i1 = min(i0 + each, n);
  for (int i = i0; i < i1; i++) y[i] = 0;"""
    return kernel("zeros", (("y", dtype, "w"),), ("n", "each"), body)


def _sizes(*sizes: int) -> Array:
    return np.array(sizes, np.int64)


OPERATOR = Operator(
    name="CenterCropPad",
    infer=infer,
    reference=reference,
    implement=implement,
    views=views,
    why="nothing is cut but outer ends, nothing is added",
    shape_infer_dependencies=(1,),
    examples=(
        Example(("f32[10,7,3]", _sizes(5, 4, 3)), opset=18),
        Example(("f32[4,7]", _sizes(9, 4)), opset=18),
        Example(("f16[3,4]", _sizes(6)), {"axes": (-1,)}, opset=18),
        Example(("i64[2,5]", _sizes(3, 5)), {"axes": (0, 1)}, opset=18),
        Example(("bool[5]", _sizes(2)), opset=18),
        Example(("f32[3,4]", _sizes(3, 4)), opset=18),
    ),
)
