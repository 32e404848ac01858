"""Gemm: ``alpha * A' @ B' + beta * C``, where the prime is an optional transpose.  Source: ONNX Gemm-13."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.conversion import cast
from asyncrt.kernels.impl import Impl, Normalisation, inp, out
from asyncrt.kernels.matmul.product import Bias, Epilogue, Operand, matmul
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.shapes import check, check_spreads
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, Shape
from asyncrt.memory.view import View, broadcast_strides


def _matrix(call: Call, index: int, attribute: str) -> View:
    shape = call.shape(index)
    check(call, len(shape) == 2, f"input {index} must be a matrix, it has {len(shape)} axes")
    view = View.dense(shape)
    return view.permute((1, 0)) if call.attributes.get(attribute, 0) else view


def infer(call: Call) -> tuple[Shape]:
    a, b = _matrix(call, 0, "transA"), _matrix(call, 1, "transB")
    check(call, a.shape[1] == b.shape[0], f"inner dims differ: {a.shape[1]} and {b.shape[0]}")
    result = a.shape[0], b.shape[1]
    if call.has(2):
        check_spreads(call, 2, call.shape(2), result)
    return (result,)


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    a, b = inputs[0], inputs[1]
    assert a is not None
    assert b is not None
    wide = np.float64 if a.dtype.kind == "f" else a.dtype
    left = (a.T if attributes.get("transA", 0) else a).astype(wide)
    right = (b.T if attributes.get("transB", 0) else b).astype(wide)
    alpha, beta = attributes.get("alpha", 1.0), attributes.get("beta", 1.0)
    with np.errstate(all="ignore"):
        result: Any = left @ right if alpha == 1 else alpha * (left @ right)
        if len(inputs) > 2 and inputs[2] is not None:
            bias = inputs[2].astype(wide)
            result = result + (bias if beta == 1 else beta * bias)
    return (cast(result, a.dtype),)


def implement(
    call: Call, traits: DeviceTraits, epilogue: Epilogue | None = None, normal: Normalisation | None = None
) -> Impl:
    bias = None
    if call.has(2):
        rows, columns = broadcast_strides(call.shape(2), call.outputs[0].shape)
        bias = Bias(inp(2), call.dtype(2), rows, columns, call.attributes.get("beta", 1.0))
    return matmul(
        "gemm",
        Operand(inp(0), call.dtype(0), _matrix(call, 0, "transA")),
        Operand(inp(1), call.dtype(1), _matrix(call, 1, "transB")),
        out(0),
        (),
        traits,
        bias=bias,
        alpha=call.attributes.get("alpha", 1.0),
        constant=1 if call.constants[1] else None,
        transposed=bool(call.attributes.get("transB", 0)),
        epilogue=epilogue,
        normal=normal,
    )


OPERATOR = Operator(
    name="Gemm",
    infer=infer,
    reference=reference,
    implement=implement,
    with_epilogue=implement,
    with_normal=implement,
    examples=(
        Example(("f32[5,7]", "f32[7,40]", "f32[40]")),
        Example(("f32[5,7]", "f32[33,7]", "f32[1,33]"), {"transB": 1}),
        Example(("f32[7,5]", "f32[7,33]", "f32[5,1]"), {"transA": 1, "alpha": 0.5, "beta": 2.0}),
        Example(("f32[9,7]", "f32[7,64]", "f32[]")),
        Example(("f32[9,7]", "f32[7,64]")),
        Example(("f32[9,7]", "f32[7,64]", "f32[9,64]")),
    ),
)
