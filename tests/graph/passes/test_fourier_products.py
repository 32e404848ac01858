"""Fourier transforms that loading knows the length of are products, on the device, and give what NumPy gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from asyncrt import Runtime, RuntimeOptions

from ...builders import i64, model, node
from ...second_opinion import onnxruntime_gives

HANN = np.hanning(24).astype(np.float32)
STEP = {"step": i64(5).reshape(())}


def scalar(value: int) -> Any:
    return i64(value).reshape(())


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("call", "constants", "shapes", "signal"),
    [
        (node("y = STFT(x, step, window)"), {**STEP, "window": HANN}, [(1, 80), (3, 57), (2, 24)], "n,m"),
        (node("y = STFT(x, step, window)"), {**STEP, "window": HANN}, [(1, 80, 1), (2, 57, 1)], "n,m,1"),
        (node("y = STFT(x, step, , length)", onesided=0), {**STEP, "length": scalar(16)}, [(2, 57, 1)], "n,m,1"),
        (node("y = DFT(x)"), {}, [(1, 20, 1), (3, 20, 1)], "n,20,1"),
        (node("y = DFT(x)", onesided=1), {}, [(2, 21, 1)], "n,21,1"),
        (node("y = DFT(x)", inverse=1), {}, [(2, 12, 2)], "n,12,2"),
        (node("y = DFT(x, length)"), {"length": scalar(16)}, [(2, 12, 2)], "n,12,2"),
        (node("y = DFT(x, length)"), {"length": scalar(9)}, [(2, 4, 12, 2)], "n,4,12,2"),
    ],
)
async def test_transforms_of_known_lengths_are_products(
    call: onnx.NodeProto, constants: dict[str, Any], shapes: list[tuple[int, ...]], signal: str
) -> None:
    """No node of them is left to the host, and results are NumPy's but for rounding."""
    source = model([call], [f"x f32[{signal}]"], ["y"], constants, opset=20)
    async with Runtime() as rt, Runtime(options=RuntimeOptions(without={"fuse"})) as plain:
        loaded, other = await rt.load(source), await plain.load(source)
        for shape in shapes:
            x = np.random.default_rng(len(shape)).standard_normal(shape, np.float32)
            got, wanted = (await loaded.infer({"x": x}))["y"], (await other.infer({"x": x}))["y"]

            np.testing.assert_allclose(wanted, got, rtol=0, atol=2e-5)
            assert not [n for n in loaded.explain() if n.decision == "host"]


@pytest.mark.asyncio
async def test_a_signal_whose_length_only_a_request_knows_needs_no_host() -> None:
    """Behind what cuts it and masks it, as front ends of speech recognisers do, where loading knows its axes alone."""
    nodes = [
        node("start = Slice(x, one, thirty, one)"),
        node("longer = Concat(start, x)", axis=1),
        node("kept = Where(mask, longer, longer)"),
        node("y = STFT(kept, step, window)"),
    ]
    constants = {**STEP, "window": HANN, "one": i64(1), "thirty": i64(30)}
    source = model(nodes, ["x f32[n,m]", "mask bool[n,k]"], ["y"], constants)
    async with Runtime() as rt:
        loaded = await rt.load(source)
        for length, longer in ((40, 69), (20, 39)):
            x = np.random.default_rng(length).standard_normal((2, length), np.float32)
            inputs = {"x": x, "mask": np.ones((2, longer), np.bool_)}
            y = (await loaded.infer(inputs))["y"]

            np.testing.assert_allclose(onnxruntime_gives(source, inputs)["y"], y, rtol=0, atol=2e-5)
            assert not [n for n in loaded.explain() if n.decision == "host"]


@pytest.mark.asyncio
async def test_a_window_that_a_request_brings_is_left_to_the_host() -> None:
    """And so is a length that only a request knows."""
    source = model(
        [node("y = STFT(x, step, window)")], ["x f32[n,m,1]", "window f32[k]"], ["y"], STEP, opset=17
    )  # fmt: skip
    x = np.random.default_rng(0).standard_normal((2, 50, 1), np.float32)
    async with Runtime() as rt:
        loaded = await rt.load(source)
        y = (await loaded.infer({"x": x, "window": HANN}))["y"]
        decisions = {n.operator: n.decision for n in loaded.explain()}

    np.testing.assert_allclose(onnxruntime_gives(source, {"x": x, "window": HANN})["y"], y, rtol=0, atol=2e-5)
    assert decisions["STFT"] == "host"


@pytest.mark.asyncio
@pytest.mark.parametrize("parts", [1, 2])
async def test_a_signal_that_may_be_complex_is_left_to_the_host(parts: int) -> None:
    """Where only a request knows whether it is."""
    source = model([node("y = STFT(x, step, window)", onesided=0)], ["x f32[n,m,k]"], ["y"], {**STEP, "window": HANN})
    x = np.random.default_rng(0).standard_normal((2, 50, parts), np.float32)
    async with Runtime("host") as rt:
        y = (await (await rt.load(source)).infer({"x": x}))["y"]

    np.testing.assert_allclose(onnxruntime_gives(source, {"x": x})["y"], y, rtol=0, atol=1e-4)
