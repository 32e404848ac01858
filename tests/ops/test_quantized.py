"""Quantised operators where onnx's evaluator does not round as ONNX says, or has no such case."""

from __future__ import annotations

import numpy as np
import pytest

from asyncrt.kernels.operator import Example

from .onnxruntime_truth import check_with_onnxruntime


def scale(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def zero(value: int, dtype: type = np.uint8) -> np.ndarray:
    return np.array(value, dtype)


def test_ties_are_rounded_before_the_zero_point_is_added() -> None:
    """An odd zero point does not turn half to even into half to odd."""
    a = np.array([[1], [3], [5], [7]], np.uint8)
    b = np.array([[1, 2]], np.uint8)
    inputs = (a, scale(1), zero(0), b, scale(1), zero(0), scale(2), zero(3))
    check_with_onnxruntime("QLinearMatMul", Example(inputs, opset=10))


def test_old_dequantization() -> None:
    """Opset 13, which onnx's evaluator lacks."""
    factors = np.array([0.1, 0.2, 0.3], np.float32)
    check_with_onnxruntime("DequantizeLinear", Example(("i8[3,4]", factors, "i8[3]"), {"axis": 0}, opset=13))
    check_with_onnxruntime("DequantizeLinear", Example(("i32[3,4]", factors), {"axis": -2}, opset=13))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_convolution_rounds_as_the_product_does(dtype: type) -> None:
    random = np.random.default_rng(0)
    x = random.integers(0, 100, (1, 4, 9, 9)).astype(dtype)
    w = random.integers(0, 100, (6, 2, 3, 3)).astype(dtype)
    bias = random.integers(-999, 999, 6).astype(np.int32)
    inputs = (x, scale(0.02), zero(3, dtype), w, scale(0.03), zero(5, dtype), scale(0.5), zero(9, dtype), bias)
    attributes = {"group": 2, "auto_pad": "SAME_LOWER", "strides": (2, 2)}
    check_with_onnxruntime("QLinearConv", Example(inputs, attributes, opset=10))
