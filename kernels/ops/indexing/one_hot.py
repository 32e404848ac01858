"""OneHot: each index becomes a row of `depth` off-values with the on-value at the index.  Source: ONNX OneHot-11."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrt.dims import Dim
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.conversion import cast, to_integer
from asyncrt.kernels.impl import Impl, inp, out
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.patterns.copy import BITS
from asyncrt.kernels.patterns.walk import WalkedBuffer, walk
from asyncrt.kernels.shapes import check, normal_axis
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import INT64, Array, Shape, show_shape


def _axis(call: Call) -> int:
    return normal_axis(call, call.attributes.get("axis", -1), len(call.shape(0)) + 1)


def infer(call: Call) -> tuple[Shape]:
    shape, axis, depth = call.shape(0), _axis(call), call.ints(1)
    check(call, len(depth) == 1, f"the depth must be one value, there are {len(depth)}")
    check(call, isinstance(depth[0], Dim) or depth[0] >= 0, f"depth {depth[0]} is negative")
    values = call.shape(2)
    fits = len(values) == 1 and (isinstance(values[0], Dim) or values[0] == 2)
    check(call, fits, f"values must be two, they have the shape {show_shape(values)}")
    return ((*shape[:axis], depth[0], *shape[axis:]),)


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    indices: Any = inputs[0]
    depth: Any = inputs[1]
    values: Any = inputs[2]
    n = int(depth.reshape(-1)[0])
    at = cast(indices, np.dtype(np.int64))
    at = np.where(at < 0, at + n, at)
    result = np.where(at[..., None] == np.arange(n), values[1], values[0]).astype(values.dtype)
    axis = attributes.get("axis", -1)
    return (np.ascontiguousarray(np.moveaxis(result, -1, axis)),)


def implement(call: Call, traits: DeviceTraits) -> Impl:
    axis, shape, bits = _axis(call), call.outputs[0].shape, BITS[call.dtype(2).itemsize]
    steps, step = [0] * len(shape), 1
    for a in range(len(shape) - 1, -1, -1):
        if a != axis:
            steps[a] = step
            step *= shape[a]
    index = f"LOAD({call.dtype(0).name}, x, p)"
    index = to_integer(index, INT64) if call.dtype(0).is_float else f"(long){index}"
    launch = walk(
        "one_hot",
        f"long v = {index}; if (v < 0) v += depth; y[i] = values[v == k];",
        shape,
        (
            WalkedBuffer("x", inp(0), call.dtype(0), "r"),
            WalkedBuffer("values", inp(2), bits, "r"),
            WalkedBuffer("y", out(0), bits, "w"),
        ),
        traits,
        offsets=(("p", steps), ("k", [1 if a == axis else 0 for a in range(len(shape))])),
        ints=(("depth", shape[axis]),),
    )
    return Impl("compare", () if launch is None else (launch,))


_I64 = np.int64
_VALUES = np.array([0, 1], np.float32)
OPERATOR = Operator(
    name="OneHot",
    infer=infer,
    reference=reference,
    implement=implement,
    shape_infer_dependencies=(1,),
    examples=(
        Example((np.array([1, -1, 0], _I64), np.array(5, _I64), _VALUES)),
        Example((np.array([[1, 3], [2, 0]], np.int32), np.array(4, _I64), np.array([5, 2], _I64)), {"axis": 1}),
        Example((np.array([[1, 3], [2, 0]], _I64), np.array(4, _I64), np.array([-1, 2], np.int32)), {"axis": 0}),
        Example((np.array([1.0, 2.0], np.float32), np.array(3.0, np.float32), np.array([0, 1], np.float16))),
        Example((np.array([2, 0], _I64), np.array(3, _I64), np.array([1, 3], np.uint8))),
        Example((np.array([0, 0], _I64), np.array(1, _I64), _VALUES), {"axis": -2}),
    ),
)
