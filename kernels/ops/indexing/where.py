"""Where: one input's elements where a condition is true, another's where it is not, with broadcasting.

Source: ONNX Where-16.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import Impl
from asyncrt.kernels.operator import Example, Expression, Operator, ViewOf
from asyncrt.kernels.patterns.copy import BITS, materialise, takes_any_view
from asyncrt.kernels.patterns.elementwise import elementwise
from asyncrt.kernels.shapes import broadcast_axes, broadcast_shapes
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import BOOL, Array, Layout, Shape
from asyncrt.memory.view import View


def infer(call: Call) -> tuple[Shape]:
    return (broadcast_shapes(call, call.shape(0), call.shape(1), call.shape(2)),)


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    condition, x, y = inputs[0], inputs[1], inputs[2]
    assert condition is not None
    assert x is not None
    assert y is not None
    return (np.where(condition.astype(np.bool_), x, y),)


def views(call: Call) -> tuple[ViewOf] | None:
    """The input that a known condition chooses everywhere; or the condition, if it chooses between true and false."""
    shape, condition = call.outputs[0].shape, call.value(0)
    source = None
    if condition is not None and condition.dtype != object and condition.size:
        source = 1 if condition.all() else 2 if not condition.any() else None
    elif call.dtype(1) is BOOL and condition is None:
        x, y = call.value(1), call.value(2)
        source = 0 if x is not None and y is not None and x.all() and not y.any() else None
    return None if source is None else (ViewOf(source, View.dense(call.shape(source)).expand(shape)),)


def why_not(call: Call) -> str:
    condition, view = call.value(0), views(call)
    if view is not None:
        return f"input {view[0].source} is repeated to the result's shape"
    return "the condition is not known on the host" if condition is None else "the condition is true and false"


def implement(call: Call, traits: DeviceTraits) -> Impl:
    """Elements are chosen, not calculated with: only their size counts."""
    same = views(call)
    if same is not None:
        return materialise(call, same, traits)
    output = call.outputs[0]
    bits = BITS[output.dtype.itemsize]
    operands = (Layout(call.dtype(0), call.shape(0)), Layout(bits, call.shape(1)), Layout(bits, call.shape(2)))
    return elementwise("where", "a0 ? a1 : a2", operands, Layout(bits, output.shape), traits, views=call.strided)


def express(call: Call) -> Expression:
    return Expression("a0 ? a1 : a2", (0, 1, 2), vector=True)


OPERATOR = Operator(
    name="Where",
    infer=infer,
    axes=broadcast_axes,
    reference=reference,
    implement=implement,
    expression=express,
    views=views,
    takes_view=takes_any_view,
    why="the condition is the same everywhere",
    why_not=why_not,
    value_hints=(0, 1, 2),
    compares_hints=False,
    examples=(
        Example((np.array([True, True]), "f32[3,2]", "f32[2]")),
        Example((np.array([[False]]), "f32[]", "f32[2,3]")),
        Example(("bool[2,3]", np.array(True), np.array([False]))),
        Example(("bool[2,3,37]", "f32[2,3,37]", "f32[2,3,37]")),
        Example(("bool[3,1]", "f32[2,3,5]", "f32[]")),
        Example(("bool[2,1,5]", "f32[]", "f32[3,1]")),
        Example(("bool[5]", "i64[5]", "i64[1]")),
        Example(("bool[2,3]", "f16[3]", "f16[2,1]")),
        Example(("bool[]", "i32[2,3]", "i32[3]")),
        Example(("bool[4]", "bool[4]", "bool[4]")),
        Example(("bool[4]", np.array([np.nan, np.inf, -0.0, 1], np.float32), "f32[4]")),
        Example(("bool[70,100]", "u8[70,100]", "u8[100]")),
    ),
)
