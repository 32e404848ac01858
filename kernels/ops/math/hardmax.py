"""Hardmax: 1 at the first greatest element along the axis, 0 elsewhere.

Before opset 13 the axes from `axis` on are one.  Source: ONNX Hardmax-13, Hardmax-11.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.source import compute_type
from asyncrt.kernels.impl import Impl, inp, out
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.patterns.walk import WalkedBuffer, lines, walk
from asyncrt.kernels.shapes import check, count, normal_axis
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, Shape


def _lines(call: Call) -> tuple[int, int, int]:
    shape = call.shape(0)
    if call.attributes.opset >= 13:
        return lines(shape, normal_axis(call, call.attributes.get("axis", -1), len(shape)))
    axis = call.attributes.get("axis", 1)
    check(call, -len(shape) <= axis <= len(shape), f"axis {axis} is outside a tensor of rank {len(shape)}")
    axis += len(shape) if axis < 0 else 0
    return count(shape[:axis]), count(shape[axis:]), 1


def infer(call: Call) -> tuple[Shape]:
    _lines(call)
    return (call.shape(0),)


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x: Any = inputs[0]
    axis = attributes.get("axis", -1 if attributes.opset >= 13 else 1)
    if attributes.opset < 13:
        axis += x.ndim if axis < 0 else 0
        flat = x.reshape(int(np.prod(x.shape[:axis], dtype=np.int64)), -1) if x.size else x
    else:
        flat = x
    result = np.zeros_like(flat)
    if x.size:
        along = axis if attributes.opset >= 13 else 1
        best = np.argmax(flat, axis=along, keepdims=True)
        np.put_along_axis(result, best, np.ones_like(best, dtype=x.dtype), along)
    return (result.reshape(x.shape),)


def implement(call: Call, traits: DeviceTraits) -> Impl:
    outer, extent, inner = _lines(call)
    dtype = call.dtype(0)
    kind = compute_type(dtype)
    launch = walk(
        "hardmax",
        f"""int best = 0; {kind} a = LOAD({dtype.name}, x, p);
      for (int k = 1; k < extent; k++) {{
        const {kind} v = LOAD({dtype.name}, x, p + k * inner);
        if (v > a || (v != v && a == a)) {{ a = v; best = k; }}
      }}
      for (int k = 0; k < extent; k++) STORE({dtype.name}, y, p + k * inner, ({kind})(k == best));""",
        (outer, inner),
        (WalkedBuffer("x", inp(0), dtype, "r"), WalkedBuffer("y", out(0), dtype, "w")),
        traits,
        offsets=(("p", (extent * inner, 1)),),
        ints=(("extent", extent), ("inner", inner)),
        work=2 * extent,
    )
    return Impl("item per line", () if launch is None else (launch,))


OPERATOR = Operator(
    name="Hardmax",
    infer=infer,
    reference=reference,
    implement=implement,
    examples=(
        Example(("f32[3,5,7]",)),
        Example(("f32[3,5,7]",), {"axis": 1}),
        Example((np.array([[3, 0, 3, 1], [2, 2, 2, 2]], np.float32),)),
        Example(("f16[4,9]",), {"axis": 0}),
        Example(("f32[3,1]",)),
    ),
)
