"""Where: one input's elements where a condition is true, another's where it is not, with broadcasting.

Source: ONNX Where-16.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asyncrt.layout import Array, Layout, Shape

from ..copy import BITS
from ..elementwise import elementwise
from ..impl import Impl
from ..operator import Attributes, Call, DeviceTraits, Example, Operator
from ..shapes import broadcast_shapes


def infer(call: Call) -> tuple[Shape]:
    return (broadcast_shapes(call, call.shape(0), call.shape(1), call.shape(2)),)


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    condition, x, y = inputs[0], inputs[1], inputs[2]
    assert condition is not None
    assert x is not None
    assert y is not None
    return (np.where(condition.astype(np.bool_), x, y),)


def implement(call: Call, traits: DeviceTraits) -> Impl:
    """Elements are chosen, not calculated with: only their size counts."""
    output = call.outputs[0]
    bits = BITS[output.dtype.itemsize]
    operands = (Layout(call.dtype(0), call.shape(0)), Layout(bits, call.shape(1)), Layout(bits, call.shape(2)))
    return elementwise("where", "a0 ? a1 : a2", operands, Layout(bits, output.shape), traits)


OPERATOR = Operator(
    name="Where",
    infer=infer,
    reference=reference,
    implement=implement,
    examples=(
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
