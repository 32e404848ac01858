"""Pads that cut off, against onnxruntime, on the device and in the reference."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from asyncrt.devices.base import Device
from asyncrt.errors import ShapeError
from asyncrt.kernels.operator import Example
from asyncrt.kernels.ops.tensor.pad import OPERATOR
from asyncrt.layout import Array

from ...second_opinion import onnxruntime_session
from ..run import arrays, make_call, reference, run_impl, traits_of

CASES = [
    ((-1, 2, 1, -2), "constant"), ((-5, 0, 3, 0), "constant"), ((3, 0, -5, 0), "constant"), ((-1, 2, 0, -1), "edge"),
    ((2, -1, -1, 1), "edge"), ((-1, 1, 2, -1), "reflect"), ((1, -2, -1, 1), "reflect"), ((-1, 1, 2, -1), "wrap"),
]  # fmt: skip


def _onnxruntime(x: Array, pads: Array, mode: str) -> Array:
    infos = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape),
        helper.make_tensor_value_info("pads", TensorProto.INT64, pads.shape),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, None])]
    node = helper.make_node("Pad", ["x", "pads"], ["y"], mode=mode)
    model = helper.make_model(
        helper.make_graph([node], "pad", infos, outputs), opset_imports=[helper.make_opsetid("", 19)], ir_version=9
    )
    result: Array = onnxruntime_session(model).run(None, {"x": x, "pads": pads})[0]
    return result


@pytest.mark.parametrize(("pads", "mode"), CASES)
def test_negative_pads_cut_off(pads: tuple[int, ...], mode: str, device: Device) -> None:
    """Kernel and reference cut and add as onnxruntime does."""
    x = np.arange(1, 21, dtype=np.float32).reshape(4, 5)
    example = Example((x, np.array(pads, np.int64)), {"mode": mode}, opset=19)
    inputs = arrays(example)
    wanted = _onnxruntime(x, np.array(pads, np.int64), mode)
    expected = reference(OPERATOR, example, inputs)
    call = make_call(OPERATOR, example, inputs, expected, constant=False)
    assert OPERATOR.implement is not None
    (got,) = run_impl(OPERATOR.implement(call, traits_of(device)), call, inputs)

    np.testing.assert_array_equal(expected[0], wanted)
    np.testing.assert_array_equal(got, wanted)


def test_what_does_not_fit_is_a_shape_error() -> None:
    """More cut off than there is, and nothing left to repeat."""
    for shape, pads, mode in (((2,), (-3, 0), "constant"), ((0,), (1, 0), "edge"), ((2,), (-2, 1), "reflect")):
        x = np.zeros(shape, np.float32)
        example = Example((x, np.array(pads, np.int64)), {"mode": mode})
        with pytest.raises(ShapeError):
            make_call(OPERATOR, example, arrays(example), [x], constant=False)
