"""MatMul: matrix product with broadcast batch axes, as `numpy.matmul`.  Source: ONNX MatMul-13."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import Impl, Normalisation, inp, out
from asyncrt.kernels.matmul.product import Epilogue, Operand, matmul
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.shapes import broadcast_shapes, check
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, Shape
from asyncrt.memory.view import View


def infer(call: Call) -> tuple[Shape]:
    a, b = call.shape(0), call.shape(1)
    check(call, len(a) > 0 and len(b) > 0, "operands must have at least one axis")
    left = a if len(a) > 1 else (1, *a)
    right = b if len(b) > 1 else (*b, 1)
    check(call, left[-1] == right[-2], f"inner dims differ: {left[-1]} and {right[-2]}")
    batch = broadcast_shapes(call, left[:-2], right[:-2])
    return ((*batch, *([left[-2]] if len(a) > 1 else []), *([right[-1]] if len(b) > 1 else [])),)


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    a, b = inputs[0], inputs[1]
    assert a is not None
    assert b is not None
    if a.dtype.kind == "f":
        return (np.asarray(np.matmul(a.astype(np.float64), b.astype(np.float64))).astype(a.dtype),)
    return (np.asarray(np.matmul(a, b)),)


def _matrix(call: Call, index: int, shape: Shape) -> View:
    """How an operand lies; *shape* has an axis more than the input where that is a vector."""
    return call.view(index) if len(call.shape(index)) > 1 else View.dense(shape)


def takes_view(call: Call, index: int, view: View) -> bool:
    """Matrices through any strides: each element of the product is the same sum in the same order."""
    return len(view.shape) > 1


def implement(
    call: Call, traits: DeviceTraits, epilogue: Epilogue | None = None, normal: Normalisation | None = None
) -> Impl:
    a, b = call.shape(0), call.shape(1)
    left = a if len(a) > 1 else (1, *a)
    right = b if len(b) > 1 else (*b, 1)
    batch = broadcast_shapes(call, left[:-2], right[:-2])
    return matmul(
        "matmul",
        Operand(inp(0), call.dtype(0), _matrix(call, 0, left).expand((*batch, *left[-2:]))),
        Operand(inp(1), call.dtype(1), _matrix(call, 1, right).expand((*batch, *right[-2:]))),
        out(0),
        batch,
        traits,
        constant=1 if len(b) == 2 and call.constants[1] else None,
        epilogue=epilogue,
        normal=normal,
    )


OPERATOR = Operator(
    name="MatMul",
    infer=infer,
    reference=reference,
    implement=implement,
    with_epilogue=implement,
    with_normal=implement,
    takes_view=takes_view,
    examples=(
        Example(("f32[5,7]", "f32[7,33]")),
        Example(("f32[2,3,9,16]", "f32[2,3,16,40]")),
        Example(("f32[2,3,4,5]", "f32[5,6]")),
        Example(("f32[3,1,4,5]", "f32[2,5,6]")),
        Example(("f32[5]", "f32[5]")),
        Example(("f32[5]", "f32[2,5,3]")),
        Example(("f32[2,3,5]", "f32[5]")),
        Example(("i32[3,4]", "i32[4,5]")),
        Example(("f16[3,4]", "f16[4,5]")),
        Example(("f32[70,64]", "f32[64,96]")),
    ),
)
