"""Softmax and the normalisations where onnx's evaluator cannot judge: old opsets, infinities, zero rows."""

from __future__ import annotations

import numpy as np
import pytest

from asyncrt.kernels.operator import Example

from ..onnxruntime_truth import check_with_onnxruntime

SPECIAL = np.array(
    [[-np.inf, 1, 2], [-np.inf, -np.inf, -np.inf], [np.inf, 1, 2], [np.nan, 1, 2], [1e4, -1e4, 0]], np.float32
)
WIDE = np.tile(SPECIAL, (1, 7))


@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", [-2, 0, 1, 2, 3])
def test_old_softmax_sums_over_all_axes_from_its_axis_on(name: str, axis: int) -> None:
    """Before opset 13 the input is a matrix whose rows are summed."""
    check_with_onnxruntime(name, Example(("f32[2,3,4,5]",), {"axis": axis}, opset=11))


@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("x", [SPECIAL, WIDE, WIDE.T.copy()], ids=["short", "rows", "columns"])
@pytest.mark.parametrize("axis", [0, 1])
def test_softmax_of_infinities_and_nan(name: str, x: np.ndarray, axis: int) -> None:
    """Rows without a finite maximum give NaN, others give what is left of them."""
    check_with_onnxruntime(name, Example((x,), {"axis": axis}, opset=13))


@pytest.mark.parametrize("p", [1, 2])
def test_rows_of_zeros_stay_zeros(p: int) -> None:
    """A norm of 0 divides nothing; negative elements count by their size."""
    x = np.array([[1, -2, 3], [0, 0, 0], [4, 0, -2]], np.float32)
    check_with_onnxruntime("LpNormalization", Example((x,), {"p": p}, opset=21))


def test_layer_normalization_of_a_large_mean() -> None:
    """The variance is summed from differences, so a large mean costs no digits."""
    x = np.random.default_rng(0).standard_normal((4, 100)).astype(np.float32) + np.float32(50)
    one = np.ones(100, np.float32)
    check_with_onnxruntime("LayerNormalization", Example((x, one, one), outputs=1, opset=17))


@pytest.mark.parametrize("n", [15, 16, 63, 64, 100, 200, 384])
def test_rows_of_every_length_are_normalized(n: int) -> None:
    """What is left of a row after whole steps of several vectors, and after whole vectors, counts as well."""
    layer = Example((f"f32[5,{n}]", f"f32[{n}]", f"f32[{n}]"), {}, outputs=1, opset=17)
    check_with_onnxruntime("LayerNormalization", layer)
    check_with_onnxruntime("InstanceNormalization", Example((f"f32[2,3,{n}]", "f32[3]", "f32[3]"), {}, opset=6))
