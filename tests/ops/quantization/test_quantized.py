"""Quantised operators where onnx's evaluator does not round as ONNX says, or has no such case.

Sums of products of integers are compared with what they are in float64, which holds them: what ONNX Runtime has for
them depends on the processor.
"""

from __future__ import annotations

import numpy as np
import pytest

from asyncrt.kernels.operator import Example
from asyncrt.layout import Array

from ...builders import model, node
from ...second_opinion import reference_gives
from ..onnxruntime_truth import check_with, check_with_onnxruntime


def scale(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def zero(value: int, dtype: type = np.uint8) -> np.ndarray:
    return np.array(value, dtype)


def quantised(real: Array, zero_point: Array) -> Array:
    """Round to even, add the zero point, and stay in range."""
    limits = np.iinfo(zero_point.dtype)
    return np.clip(np.rint(real) + zero_point, limits.min, limits.max).astype(zero_point.dtype)


def test_ties_are_rounded_before_the_zero_point_is_added() -> None:
    """An odd zero point does not turn half to even into half to odd."""
    a = np.array([[1], [3], [5], [7]], np.uint8)
    b = np.array([[1, 2]], np.uint8)
    inputs = (a, scale(1), zero(0), b, scale(1), zero(0), scale(2), zero(3))
    expected = np.array([[3, 4], [5, 6], [5, 8], [7, 10]], np.uint8)  # 0.5, 1; 1.5, 3; 2.5, 5; 3.5, 7; and 3

    check_with([expected], "QLinearMatMul", Example(inputs, opset=10))


def test_old_dequantization() -> None:
    """Opset 13, which onnx's evaluator lacks."""
    factors = np.array([0.1, 0.2, 0.3], np.float32)
    check_with_onnxruntime("DequantizeLinear", Example(("i8[3,4]", factors, "i8[3]"), {"axis": 0}, opset=13))
    check_with_onnxruntime("DequantizeLinear", Example(("i32[3,4]", factors), {"axis": -2}, opset=13))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_convolution_rounds_as_the_product_does(dtype: type) -> None:
    """With a bias, groups and padding; the sums are those of a convolution of floats that hold them."""
    random = np.random.default_rng(0)
    x = random.integers(0, 100, (1, 4, 9, 9)).astype(dtype)
    w = random.integers(0, 100, (6, 2, 3, 3)).astype(dtype)
    bias = random.integers(-999, 999, 6).astype(np.int32)
    inputs = (x, scale(0.02), zero(3, dtype), w, scale(0.03), zero(5, dtype), scale(0.5), zero(9, dtype), bias)
    attributes = {"group": 2, "auto_pad": "SAME_LOWER", "strides": (2, 2)}
    wide = {"a": x.astype(np.float64) - 3, "b": w.astype(np.float64) - 5, "c": bias.astype(np.float64)}
    floating = model([node("y = Conv(a, b, c)", **attributes)], ["a f64", "b f64", "c f64"], ["y"])
    sums = reference_gives(floating, wide)["y"]

    expected = quantised(sums.astype(np.float32) * (scale(0.02) * scale(0.03) / scale(0.5)), zero(9, dtype))
    assert len(np.unique(expected)) > 10
    check_with([expected], "QLinearConv", Example(inputs, attributes, opset=10))


@pytest.mark.parametrize("count", [0, 3])
def test_a_range_of_nothing_has_the_scale_of_onnx_own_evaluator(count: int) -> None:
    """Zeros alone, and no elements: one step of 255. ONNX Runtime has 1 for it; no element is another by that."""
    expected = [np.zeros(count, np.uint8), scale(1 / 255), zero(0)]

    check_with(expected, "DynamicQuantizeLinear", Example((np.zeros(count, np.float32),), outputs=3, opset=11))
