"""Clip: no element below the minimum or above the maximum; either may be absent.

If the minimum is above the maximum, every element becomes the maximum. NaN elements stay NaN; a NaN bound
is ignored.

Source: ONNX Clip-13.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import Impl
from asyncrt.kernels.operator import Example, Expression, Operator, ViewOf
from asyncrt.kernels.patterns.copy import materialise
from asyncrt.kernels.patterns.elementwise import elementwise
from asyncrt.kernels.shapes import check, count
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, Layout, Shape
from asyncrt.memory.view import View


def infer(call: Call) -> tuple[Shape]:
    for bound in (1, 2):
        if call.has(bound):
            size = count(call.shape(bound))
            check(call, not isinstance(size, int) or size == 1, f"input {bound} must be one value, it is {size}")
    return (call.shape(0),)


def _bounds(call: Call) -> list[int]:
    """Return the indices of the inputs that are bounds, without those that are known to have no effect."""
    bounds = []
    for bound in (1, 2):
        if not call.has(bound):
            continue
        value: Any = call.value(bound)
        if value is not None and value.dtype != object:
            number = value.reshape(-1)[0]
            if call.dtype(bound).is_float:
                nothing = float(number) == (-np.inf if bound == 1 else np.inf)
            else:
                limits = np.iinfo(value.dtype)
                nothing = int(number) == (limits.min if bound == 1 else limits.max)
            if nothing:
                continue
        bounds.append(bound)
    return bounds


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    result: Any = inputs[0]
    for bound, beyond in ((1, np.less), (2, np.greater)):
        value = inputs[bound] if bound < len(inputs) else None
        if value is not None:  # no element is beyond NaN
            result = np.where(beyond(result, value.reshape(())), value.reshape(()), result)
    return (np.array(result),)


def views(call: Call) -> tuple[ViewOf] | None:
    return None if _bounds(call) else (ViewOf(0, View.dense(call.shape(0))),)


def why_not(call: Call) -> str:
    unknown = any(call.value(bound) is None for bound in _bounds(call))
    return "the bounds are not known on the host" if unknown else "it has bounds"


def express(call: Call) -> Expression:
    bounds, text = _bounds(call), "a0"
    for k, bound in enumerate(bounds, 1):
        text = f"(({text}) {'<' if bound == 1 else '>'} a{k} ? a{k} : ({text}))"  # NaN stays
    return Expression(text, (0, *bounds), vector=True)


def implement(call: Call, traits: DeviceTraits) -> Impl:
    bounds = _bounds(call)
    if not bounds:
        return materialise(call, (ViewOf(0, View.dense(call.shape(0))),), traits)
    found = express(call)
    layouts = [Layout(call.dtype(0), call.shape(0)), *(Layout(call.dtype(b), ()) for b in bounds)]
    return elementwise(
        "clip", found.text, layouts, call.outputs[0], traits, sources=found.operands, vector=found.vector
    )


OPERATOR = Operator(
    name="Clip",
    infer=infer,
    reference=reference,
    implement=implement,
    expression=express,
    views=views,
    why="there are no bounds",
    why_not=why_not,
    value_hints=(1, 2),
    examples=(
        Example(("f32[3,37]", np.array(-0.5, np.float32), np.array(0.25, np.float32))),
        Example(("f32[40]", np.array(0, np.float32))),
        Example(("f32[40]", None, np.array(0.1, np.float32))),
        Example(("f32[2,3]",)),
        Example(("f32[2,3]", np.array(-np.inf, np.float32), np.array(np.inf, np.float32))),
        Example(("f16[9]", np.array(-0.5, np.float16), np.array(0.5, np.float16))),
        Example(("i64[9]", np.array(2, np.int64), np.array(4, np.int64))),
        Example(("i32[9]", np.array(-(2**31), np.int32), np.array(4, np.int32))),
        Example(("u8[9]", np.array(0, np.uint8), np.array(4, np.uint8))),
        Example((np.array([np.nan, 1, -1], np.float32), np.array(0, np.float32), np.array(0.5, np.float32))),
        Example(("f32[5]", np.array(2, np.float32), np.array(1, np.float32))),
    ),
)
