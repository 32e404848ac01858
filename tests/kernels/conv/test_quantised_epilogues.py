"""Convolutions of floats whose results are quantised and dequantised before they are stored, next to 8-bit operands."""

from __future__ import annotations

import numpy as np
import pytest

from asyncrt import Runtime, RuntimeOptions

from ...builders import model, node
from ...second_opinion import onnxruntime_gives

pytestmark = pytest.mark.usefixtures("shared_programs")

AFTER = [
    node("q = QuantizeLinear(c, s, z)"), node("d = DequantizeLinear(q, s, z)"), node("e = DequantizeLinear(b, t, u)"),
    node("a = Add(d, e)"), node("y = Relu(a)"),
]  # fmt: skip
#: Filters, attributes, and sides: kernels for short and long rows, for one cell, for planes, packed and by strips.
CONVOLUTIONS = {
    "depthwise, short rows": ((48, 1, 3, 3), {"group": 48, "pads": [1, 1, 1, 1]}, (48, 14, 14)),
    "depthwise, long rows": ((24, 1, 3, 3), {"group": 24, "pads": [1, 1, 1, 1]}, (24, 20, 70)),
    "depthwise, every other": ((48, 1, 5, 5), {"group": 48, "pads": [2, 2, 2, 2], "strides": [2, 2]}, (48, 27, 27)),
    "one cell": ((40, 24, 1, 1), {}, (24, 13, 17)),
    "one cell, few positions": ((64, 32, 1, 1), {}, (32, 5, 7)),
    "three by three": ((32, 16, 3, 3), {"pads": [1, 1, 1, 1]}, (16, 21, 23)),
    "three by three, few positions": ((64, 64, 3, 3), {"pads": [1, 1, 1, 1]}, (64, 7, 7)),
    "few channels": ((16, 3, 3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}, (3, 40, 46)),
    "groups": ((32, 8, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}, (32, 15, 18)),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("device", ["simulated", None], ids=lambda d: d or "opencl")
@pytest.mark.parametrize("case", CONVOLUTIONS)
async def test_what_follows_may_be_of_integers(case: str, device: str | None) -> None:
    """One scale and zero point, and an 8-bit tensor of the result's shape: at most one step from ONNX Runtime."""
    filters, attributes, (channels, height, width) = CONVOLUTIONS[case]
    random = np.random.default_rng(0)
    stride = attributes.get("strides", [1])[0]
    constants = {
        "w": random.standard_normal(filters).astype(np.float32) / np.float32(np.prod(filters[1:]) ** 0.5),
        "s": np.float32(0.05), "z": np.uint8(120), "t": np.float32(0.02), "u": np.int8(-7),
    }  # fmt: skip
    sides = -(-height // stride), -(-width // stride)
    loaded = model(
        [node("c = Conv(x, w)", **attributes), *AFTER], [f"x f32[n,{channels},h,w]", f"b i8[n,{filters[0]},h2,w2]"],
        ["y"], constants,
    )  # fmt: skip
    request = {
        "x": random.standard_normal((2, channels, height, width)).astype(np.float32),
        "b": random.integers(-128, 128, (2, filters[0], *sides)).astype(np.int8),
    }

    async with Runtime(device, options=RuntimeOptions(warm=False, without={"stand_in"})) as rt:
        found = (await (await rt.load(loaded)).infer(request))["y"]

    np.testing.assert_allclose(found, onnxruntime_gives(loaded, request)["y"], rtol=0, atol=0.0501)
