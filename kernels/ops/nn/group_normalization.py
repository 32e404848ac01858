"""GroupNormalization: channels in groups, each normalised over its channels and all spatial axes.

From opset 21 `scale` and `bias` have an element for each channel, before that for each group.

Source: ONNX GroupNormalization-21, GroupNormalization-18.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import Impl, inp, out
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.patterns.normalize import Affine, normalize_rows
from asyncrt.kernels.shapes import check, count
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, Shape

_PER_CHANNEL = 21  # the opset from which scale and bias are per channel


def infer(call: Call) -> tuple[Shape]:
    shape, groups = call.shape(0), call.attributes.get("num_groups", 0)
    check(call, len(shape) >= 2, "its input must have a batch and a channel axis")
    check(call, groups > 0, f"num_groups is {groups}")
    check(call, shape[1] % groups == 0, f"{shape[1]} channels are not divided by {groups} groups")
    factors = shape[1] if call.attributes.opset >= _PER_CHANNEL else groups
    for index in (1, 2):
        check(call, len(call.shape(index)) == 1, f"input {index} must have one axis")
        check(call, call.shape(index)[0] == factors, f"input {index} must have {factors} elements")
    return (shape,)


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x, scale, bias = inputs[0], inputs[1], inputs[2]
    assert x is not None
    assert scale is not None
    assert bias is not None
    groups = attributes["num_groups"]
    wide = x.astype(np.float64).reshape(x.shape[0], groups, -1)
    with np.errstate(all="ignore"):
        mean = wide.mean(axis=2, keepdims=True)
        deviation = np.sqrt(np.square(wide - mean).mean(axis=2, keepdims=True) + attributes.get("epsilon", 1e-5))
        normal = ((wide - mean) / deviation).reshape(x.shape)
    per_channel = (1, x.shape[1]) + (1,) * (x.ndim - 2)
    repeats = x.shape[1] // len(scale)
    factor = np.repeat(scale.astype(np.float64), repeats).reshape(per_channel)
    shift = np.repeat(bias.astype(np.float64), repeats).reshape(per_channel)
    return ((normal * factor + shift).astype(x.dtype),)


def implement(call: Call, traits: DeviceTraits) -> Impl:
    shape, groups = call.shape(0), call.attributes["num_groups"]
    spatial, channels = count(shape[2:]), shape[1] // groups
    length = spatial if call.attributes.opset >= _PER_CHANNEL else channels * spatial
    launch = normalize_rows(
        "layer",
        inp(0),
        out(0),
        call.dtype(0),
        shape[0] * groups,
        channels * spatial,
        float(call.attributes.get("epsilon", 1e-5)),
        traits,
        affine=Affine(inp(1), inp(2), call.dtype(1), groups=groups, length=length),
    )
    return Impl("rows", (launch,))


OPERATOR = Operator(
    name="GroupNormalization",
    infer=infer,
    reference=reference,
    implement=implement,
    examples=(
        Example(("f32[2,6,5,7]", "f32[6]", "f32[6]"), {"num_groups": 3}, opset=21),
        Example(("f32[2,6,5,7]", "f32[3]", "f32[3]"), {"num_groups": 3}, opset=18),
        Example(("f32[3,4,40]", "f32[4]", "f32[4]"), {"num_groups": 1, "epsilon": 1e-2}, opset=21),
        Example(("f32[3,4,2,2,3]", "f32[4]", "f32[4]"), {"num_groups": 4}, opset=18),
        Example(("f16[1,4,9]", "f16[4]", "f16[4]"), {"num_groups": 2}, opset=21),
        Example(("f64[1,4,9]", "f64[4]", "f64[4]"), {"num_groups": 2}, opset=21),
    ),
)
