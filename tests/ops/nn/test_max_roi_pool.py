"""MaxRoiPool, which onnx's evaluator does not have."""

from __future__ import annotations

from asyncrt.kernels.operator import Example
from asyncrt.kernels.ops.image.max_roi_pool import OPERATOR

from ..onnxruntime_truth import check_with_onnxruntime


def test_regions_are_pooled_as_onnxruntime_does() -> None:
    for example in OPERATOR.examples:
        check_with_onnxruntime("MaxRoiPool", Example(example.inputs, example.attributes, opset=11))
