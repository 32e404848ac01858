"""Fourier transforms of signals as exporters write them."""

from __future__ import annotations

import numpy as np
import pytest

from asyncrt import Runtime
from asyncrt.kernels.call import Attributes
from asyncrt.kernels.registry import find_operator

from ...builders import i64, model, node
from ...second_opinion import onnxruntime_gives


@pytest.mark.asyncio
async def test_a_real_signal_needs_no_axis_for_its_parts() -> None:
    """ONNX wants a last axis of one element; ONNX Runtime takes signals without it, and exporters write them."""
    constants = {"step": i64(5).reshape(()), "window": np.hanning(12).astype(np.float32)}
    source = model([node("y = STFT(x, step, window)")], ["x f32[n,m]"], ["y"], constants)
    async with Runtime("host") as rt:
        loaded = await rt.load(source)
        for shape in [(1, 40), (3, 57)]:
            x = np.random.default_rng(shape).standard_normal(shape, np.float32)

            y = (await loaded.infer({"x": x}))["y"]

            np.testing.assert_allclose(onnxruntime_gives(source, {"x": x})["y"], y, rtol=1e-4, atol=1e-5)


def test_an_inverse_is_in_the_precision_of_its_signal() -> None:
    """As in onnx's reference: a real signal that was transformed there comes back with next to no imaginary part."""
    operator = find_operator("", "DFT")
    assert operator is not None
    signal = np.arange(100, dtype=np.float32).reshape(1, 10, 10)
    there = np.fft.fft(signal.astype(np.complex64), axis=1)
    parts = np.stack([there.real, there.imag], axis=-1)

    (back,) = operator.reference(Attributes({"inverse": 1, "axis": 1}, 19), [parts])

    np.testing.assert_allclose(back[..., 1], 0, atol=1e-7)
    np.testing.assert_allclose(back[..., 0], signal, rtol=1e-6)
