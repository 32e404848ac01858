"""InstanceNormalization: each channel of each image to mean 0 and variance 1, then scale and shift per channel.

Source: ONNX InstanceNormalization-22.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asyncrt.dims import Dim
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import Impl, inp, out
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.patterns.normalize import Affine, normalize_rows
from asyncrt.kernels.shapes import check, count
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, Shape


def infer(call: Call) -> tuple[Shape]:
    shape = call.shape(0)
    check(call, len(shape) >= 2, f"the data must have at least two axes, it has {len(shape)}")
    for index in (1, 2):
        given = call.shape(index)
        check(call, len(given) == 1, f"input {index} must have one axis, it has {len(given)}")
        if not isinstance(given[0], Dim) and not isinstance(shape[1], Dim):
            check(call, given[0] == shape[1], f"input {index} has {given[0]} elements for {shape[1]} channels")
    return (shape,)


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x, scale, bias = (i for i in inputs if i is not None)
    wide, axes = x.astype(np.float64), tuple(range(2, x.ndim))
    mean, var = np.mean(wide, axis=axes, keepdims=True), np.var(wide, axis=axes, keepdims=True)
    shape = (1, -1) + (1,) * (x.ndim - 2)
    y = (wide - mean) / np.sqrt(var + attributes.get("epsilon", 1e-5))
    return ((y * scale.astype(np.float64).reshape(shape) + bias.astype(np.float64).reshape(shape)).astype(x.dtype),)


def implement(call: Call, traits: DeviceTraits) -> Impl:
    shape, dtype = call.shape(0), call.dtype(0)
    rows, n = count(shape[:2]), count(shape[2:])
    affine = Affine(inp(1), inp(2), dtype, groups=shape[1], length=n)
    epsilon = call.attributes.get("epsilon", 1e-5)
    return Impl("rows", (normalize_rows("layer", inp(0), out(0), dtype, rows, n, epsilon, traits, affine=affine),))


OPERATOR = Operator(
    name="InstanceNormalization",
    infer=infer,
    reference=reference,
    implement=implement,
    examples=(
        Example(("f32[2,3,7,9]", "f32[3]", "f32[3]"), {"epsilon": 1e-3}),
        Example(("f32[1,5,130]", "f32[5]", "f32[5]")),
        Example(("f16[2,3,40]", "f16[3]", "f16[3]")),
        Example(("f32[2,2,3,3,3]", "f32[2]", "f32[2]")),
    ),
)
