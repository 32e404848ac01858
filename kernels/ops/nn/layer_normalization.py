"""LayerNormalization and RMSNormalization: all axes from `axis` on are normalised together, then scaled and shifted.

LayerNormalization subtracts the mean and divides by the standard deviation; RMSNormalization divides by the root mean
square. Statistics are calculated in float32 for 16-bit inputs, whatever `stash_type` says, which only names their type.

Source: ONNX LayerNormalization-17, RMSNormalization-23.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import Impl, Launch, Ref, inp, out, scratch
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.patterns.copy import copy_launch
from asyncrt.kernels.patterns.normalize import Affine, normalize_rows
from asyncrt.kernels.shapes import broadcast_shapes, check, count, normal_axis
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import BFLOAT16, FLOAT32, Array, DataType, Shape, dtype_from_onnx
from asyncrt.memory.view import View, broadcast_strides


def infer(call: Call) -> Sequence[Shape]:
    shape = call.shape(0)
    axis = normal_axis(call, call.attributes.get("axis", -1), len(shape))
    for index in (1, 2):
        if call.has(index):
            check(call, len(call.shape(index)) <= len(shape), f"input {index} has more axes than the input")
            wide = broadcast_shapes(call, shape, call.shape(index))
            check(call, all(a is b or a == b for a, b in zip(wide, shape, strict=True)), f"input {index} does not fit")
    kept = (*shape[:axis], *(1 for _ in shape[axis:]))
    return (shape, kept, kept)[: max(1, len(call.output_types))]


def _stash(attributes: Attributes) -> DataType:
    return BFLOAT16 if dtype_from_onnx(attributes.get("stash_type", 1)) is BFLOAT16 else FLOAT32


def _types(attributes: Attributes, inputs: Sequence[DataType | None], outputs: int) -> Sequence[DataType]:
    assert inputs[0] is not None
    return (inputs[0], _stash(attributes), _stash(attributes))[:outputs]


def _wide(attributes: Attributes, x: Array) -> tuple[Any, tuple[int, ...], float]:
    axis = attributes.get("axis", -1) % x.ndim
    return x.astype(np.float64), tuple(range(axis, x.ndim)), float(attributes.get("epsilon", 1e-5))


def _layer_reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array, Array, Array]:
    x, scale = inputs[0], inputs[1]
    assert x is not None
    assert scale is not None
    wide, axes, epsilon = _wide(attributes, x)
    with np.errstate(all="ignore"):
        mean = wide.mean(axis=axes, keepdims=True)
        inverse = 1 / np.sqrt(np.square(wide - mean).mean(axis=axes, keepdims=True) + epsilon)
        result = (wide - mean) * inverse * scale.astype(np.float64)
    if len(inputs) > 2 and inputs[2] is not None:
        result = result + inputs[2].astype(np.float64)
    stash = _stash(attributes).numpy
    return result.astype(x.dtype), mean.astype(stash), inverse.astype(stash)


def _rms_reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x, scale = inputs[0], inputs[1]
    assert x is not None
    assert scale is not None
    wide, axes, epsilon = _wide(attributes, x)
    with np.errstate(all="ignore"):
        root = np.sqrt(np.square(wide).mean(axis=axes, keepdims=True) + epsilon)
        return ((wide / root * scale.astype(np.float64)).astype(scale.dtype),)


def _implement(statistics: str, call: Call, traits: DeviceTraits) -> Impl:
    shape = call.shape(0)
    axis = call.attributes.get("axis", -1) % len(shape)
    rows, n = count(shape[:axis]), count(shape[axis:])
    launches: list[Launch] = []
    sizes: list[int] = []

    def factors(index: int) -> tuple[Ref, int]:
        """Return where an input has one factor for each column, and how far the next row's are."""
        strides = broadcast_strides(call.shape(index), shape)
        same = all(s == 0 or d == 1 for s, d in zip(strides[:axis], shape[:axis], strict=True))
        view = View(shape[axis:], strides[axis:]) if same else View(shape, strides)
        row = 0 if same else n
        if view.is_dense:
            return inp(index), row
        dtype = call.dtype(index)
        place = scratch(len(sizes))
        launch = copy_launch(inp(index), view, place, View.dense(view.shape), dtype.itemsize, traits)
        if launch is not None:
            launches.append(launch)
        sizes.append(count(view.shape) * dtype.itemsize)
        return place, row

    scale, scale_row = factors(1)
    bias, bias_row = factors(2) if call.has(2) else (None, 0)
    types = [o.dtype for o in call.outputs]
    launches.append(
        normalize_rows(
            statistics,
            inp(0),
            out(0),
            call.dtype(0),
            rows,
            n,
            float(call.attributes.get("epsilon", 1e-5)),
            traits,
            affine=Affine(scale, bias, call.dtype(1), scale_row, bias_row),
            mean=(out(1), types[1]) if len(types) > 1 else None,
            inverse=(out(2), types[2]) if len(types) > 2 else None,
        )
    )
    return Impl("rows", tuple(launches), tuple(sizes))


OPERATORS = (
    Operator(
        name="LayerNormalization",
        infer=infer,
        reference=_layer_reference,
        implement=functools.partial(_implement, "layer"),
        types=_types,
        examples=(
            Example(("f32[3,37]", "f32[37]", "f32[37]")),
            Example(("f32[2,5,64]", "f32[64]")),
            Example(("f32[2,3,4,5]", "f32[4,5]", "f32[4,5]"), {"axis": 2, "epsilon": 1e-3}, outputs=3),
            Example(("f32[2,3,4]", "f32[3,1]", "f32[2,3,4]"), {"axis": 1}),
            Example(("f32[2,3,4]", "f32[]", "f32[3,1]"), {"axis": -1}, outputs=2),
            Example(("f32[2,3,40]", "f32[1,1,40]", "f32[40]"), {"axis": 0}),
            Example(("f16[3,50]", "f16[50]", "f16[50]")),
            Example(("f64[3,20]", "f64[20]", "f64[20]")),
            Example(("bf16[3,20]", "bf16[20]", "bf16[20]"), outputs=3),
            Example(("f32[300,1]", "f32[1]", "f32[1]")),
        ),
    ),
    Operator(
        name="RMSNormalization",
        infer=infer,
        reference=_rms_reference,
        implement=functools.partial(_implement, "rms"),
        examples=(
            Example(("f32[3,37]", "f32[37]"), opset=23),
            Example(("f32[2,5,64]", "f32[5,64]"), {"axis": 1, "epsilon": 1e-3}, opset=23),
            Example(("f32[2,5,8]", "f32[5,1]"), {"axis": -2}, opset=23),
            Example(("f32[2,5,8]", "f32[1]"), opset=23),
            Example(("f16[3,50]", "f16[50]"), opset=23),
            Example(("f64[3,20]", "f64[20]"), opset=23),
        ),
    ),
)
