"""BatchNormalization in inference: ``(x - mean) / sqrt(var + epsilon) * scale + bias`` per channel (axis 1).

Source: ONNX BatchNormalization-15.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from asyncrt.dims import Dim
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.literals import literal
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.impl import Impl, KernelSource, Launch, inp, out
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.patterns.elementwise import elementwise
from asyncrt.kernels.patterns.grid import GPU_GROUP, cut_rows, over_rows, round_up
from asyncrt.kernels.shapes import check, count
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32, FLOAT64, Array, DataType, Shape


def infer(call: Call) -> tuple[Shape]:
    check(call, not call.attributes.get("training_mode", 0), "training_mode 1 is not supported")
    check(call, len(call.output_types) <= 1, "outputs of training are not supported")
    shape = call.shape(0)
    check(call, len(shape) >= 1, "the data must have at least one axis")
    channels = shape[1] if len(shape) > 1 else 1
    for index in range(1, 5):
        given = call.shape(index)
        check(call, len(given) == 1, f"input {index} must have one axis, it has {len(given)}")
        if not isinstance(given[0], Dim) and not isinstance(channels, Dim):
            check(call, given[0] == channels, f"input {index} has {given[0]} elements for {channels} channels")
    return (shape,)


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x, *rest = (i for i in inputs if i is not None)
    shape = (-1,) + (1,) * (x.ndim - 2) if x.ndim > 1 else (-1,)
    scale, bias, mean, var = (p.astype(np.float64).reshape(shape) for p in rest)
    y = (x.astype(np.float64) - mean) * (scale / np.sqrt(var + attributes.get("epsilon", 1e-5))) + bias
    return (y.astype(x.dtype),)


def implement(call: Call, traits: DeviceTraits) -> Impl:
    shape = call.shape(0)
    channels = shape[1] if len(shape) > 1 else 1
    n = count(shape[2:])
    rows = count(shape) // n
    types = tuple(call.dtype(i) for i in range(5))
    epsilon = literal(call.attributes.get("epsilon", 1e-5), FLOAT64 if FLOAT64 in types else FLOAT32)
    if traits.is_cpu and len(shape) == 2 and set(types) == {FLOAT32}:  # a row's neighbours are of neighbouring channels
        text = f"(a0 - a3) * (a1 / sqrt(a4 + {epsilon})) + a2"
        inputs = [layout for layout in call.inputs if layout is not None]
        return elementwise("batch_normalization", text, inputs, call.outputs[0], traits, vector=True)
    k = _kernel(types, epsilon, traits.is_cpu)
    buffers = (*(inp(i) for i in range(5)), out(0))
    if not traits.is_cpu:
        grid = (round_up(rows * n, GPU_GROUP),)
        return Impl("elements", (Launch(k, buffers, (rows, n, channels, 1, 1), grid, (GPU_GROUP,)),))
    cut = cut_rows(rows, n, traits)
    return Impl("rows", (Launch(k, buffers, (rows, n, channels, cut.chunk, cut.rows_per_item), cut.grid, (1, 1)),))


@functools.cache
def _kernel(types: tuple[DataType, ...], epsilon: str, cpu: bool) -> KernelSource:
    t = types[0]
    acc = "double" if FLOAT64 in types else "float"
    names = ("x", "scale", "bias", "mean", "var")
    scale, bias, mean, var = (f"({acc})LOAD({d.name}, {n}, ch)" for n, d in zip(names[1:], types[1:], strict=True))
    row = f"""
    const int ch = r % channels;
    const {acc} m = {mean}, s = {scale} / sqrt({var} + {epsilon}), b = {bias};"""
    one = f"const {acc} v = (({acc})LOAD({t.name}, x, r * n + c) - m) * s + b; STORE({t.name}, y, r * n + c, v);"
    body = over_rows(row, one, cpu)
    buffers = (*((n, d, "r") for n, d in zip(names, types, strict=True)), ("y", t, "w"))
    return kernel("batch_normalization", buffers, ("rows", "n", "channels", "chunk", "per_item"), body)


def _positive(n: int) -> Array:
    return np.linspace(0.25, 2.0, n, dtype=np.float32)


OPERATOR = Operator(
    name="BatchNormalization",
    infer=infer,
    reference=reference,
    implement=implement,
    examples=(
        Example(("f32[2,3,5,7]", "f32[3]", "f32[3]", "f32[3]", _positive(3)), {"epsilon": 1e-3}, opset=15),
        Example(("f32[4,9]", "f32[9]", "f32[9]", "f32[9]", _positive(9)), opset=15),
        Example(("f32[5,37]", "f32[37]", "f32[37]", "f32[37]", _positive(37)), opset=15),
        Example(("f32[1,70,6,100]", "f32[70]", "f32[70]", "f32[70]", _positive(70)), opset=14),
        Example(("f16[2,3,33]", "f16[3]", "f16[3]", "f16[3]", _positive(3).astype(np.float16)), opset=15),
        Example(("f16[2,3,33]", "f32[3]", "f32[3]", "f32[3]", _positive(3)), opset=15),
    ),
)
