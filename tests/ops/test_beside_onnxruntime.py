"""Nodes in which runtimes may differ, at sizes where it shows: what ONNX Runtime gives is given."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from asyncrt import Runtime, RuntimeOptions
from asyncrt.layout import Array

from ..builders import i64, model, node
from ..second_opinion import onnxruntime_gives

RANDOM = np.random.default_rng(7)
ASYMMETRIC = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
CROP = {"mode": "nearest", "coordinate_transformation_mode": "tf_crop_and_resize", "nearest_mode": "ceil"}
OLD_HALF = {"mode": "nearest", "coordinate_transformation_mode": "tf_half_pixel_for_nn", "nearest_mode": "floor"}
IMAGE = RANDOM.standard_normal((1, 2, 12, 18)).astype(np.float32)
TEXTS = np.array(["a", "bc", "a"], object)


def f32(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def scales(*values: float) -> Array:
    return np.array(values, np.float32)


def pool(op: str, size: int, stride: int, **attributes: Any) -> onnx.NodeProto:
    return node(f"y = {op}(x)", kernel_shape=[size], strides=[stride], **attributes)


def lstm(*, inputs: str, **attributes: Any) -> onnx.NodeProto:
    return node(f"y, h, c = LSTM({inputs})", hidden_size=4, clip=0.5, **attributes)


CELL = {"w": f32(1, 16, 3), "r": f32(1, 16, 4), "b": f32(1, 32), "h0": f32(1, 2, 4), "c0": 3 * f32(1, 2, 4)}

CASES: dict[str, tuple[onnx.NodeProto, int, Array, dict[str, Array]]] = {
    "a coordinate that is whole in float32 alone": (
        node("y = Resize(x, , s)", **ASYMMETRIC), 18, IMAGE, {"s": scales(1, 1, 1.7, 1.7)}
    ),
    "such a coordinate of half pixels": (
        node("y = Resize(x, , s)", mode="nearest", nearest_mode="floor"), 18, IMAGE, {"s": scales(1, 1, 0.6, 0.34)}
    ),
    "a region that is whole in float32 alone": (
        node("y = Resize(x, r, s)", **CROP), 18, f32(6, 7), {"r": scales(0.2, 0.3, 0.7, 0.9), "s": scales(2.5, 0.5)}
    ),
    "coordinates of TensorFlow that only opset 11 has": (
        node("y = Resize(x, r, s)", **OLD_HALF), 11, IMAGE, {"r": scales(), "s": scales(1, 1, 0.5, 1.5)}
    ),
    "a group's own scale and bias": (
        node("y = GroupNormalization(x, a, b)", num_groups=3), 18, f32(2, 6, 5), {"a": f32(3), "b": f32(3)}
    ),
    "a window too large by less than two steps": (pool("MaxPool", 5, 2), 22, f32(1, 2, 3), {}),
    "a window too large by one": (pool("AveragePool", 5, 1), 22, f32(1, 2, 4), {}),
    "a window too large that rounds up": (pool("LpPool", 6, 3, ceil_mode=1), 22, f32(1, 2, 1), {}),
    "the rest beside no elements": (node("y = Reshape(x, s)", allowzero=1), 21, f32(0, 4, 8), {"s": i64(0, -1, 4)}),
    "the rest before no elements": (node("y = Reshape(x, s)", allowzero=1), 21, f32(2, 0, 3), {"s": i64(-1, 0, 3)}),
    "no elements and all the rest": (node("y = Reshape(x, s)"), 21, f32(2, 0, 3), {"s": i64(-1, 3)}),
    "a cell's state beyond what gates are clipped to": (
        lstm(inputs="x, w, r, b, , h0, c0"), 14, f32(5, 2, 3), CELL
    ),
    "such a state, backwards and without a bias": (
        lstm(inputs="x, w, r, , , h0, c0", direction="reverse"), 22, f32(5, 2, 3),
        {k: v for k, v in CELL.items() if k != "b"},
    ),
    "texts that are constants": (node("y = Equal(x, t)"), 19, TEXTS, {"t": TEXTS[::-1].copy()}),
}  # fmt: skip


def _kind(array: Array) -> int:
    return onnx.TensorProto.STRING if array.dtype == object else helper.np_dtype_to_tensor_dtype(array.dtype)


def _model(call: onnx.NodeProto, opset: int, given: dict[str, Array], constants: dict[str, Array]) -> onnx.ModelProto:
    made = model([call], [], list(call.output), constants, opset=opset)
    for name, array in given.items():
        dims = [f"{name}_{axis}" for axis in range(array.ndim)]
        made.graph.input.append(helper.make_tensor_value_info(name, _kind(array), dims))
    return made


@pytest.mark.asyncio
@pytest.mark.parametrize("device", [None, "host"])
async def test_it_gives_what_onnxruntime_gives(device: str | None) -> None:
    """Whether the other inputs are constants or come with the request; dims, dtypes and elements."""
    async with Runtime(device, options=RuntimeOptions(warm=False)) as rt:
        for what, (call, opset, x, others) in CASES.items():
            every = {"x": x, **others}
            expected = onnxruntime_gives(_model(call, opset, every, {}), every)
            for feeds, constants in (({"x": x}, others), (every, {})):
                loaded = await rt.load(_model(call, opset, feeds, constants))

                got = await loaded.infer(feeds)

                for name, array in expected.items():
                    assert got[name].shape == array.shape, what
                    assert got[name].dtype == array.dtype, what
                    np.testing.assert_allclose(got[name], array, rtol=2e-5, atol=2e-5, err_msg=what)
