"""Inputs whose contents decide shapes, and are too large to compare."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from asyncrt import load_sync


@pytest.mark.parametrize("size", [10, 20_000])
@pytest.mark.parametrize("device", ["host", None])
def test_each_request_is_planned_for_its_own_contents(size: int, device: str | None) -> None:
    """What one request was told of a long input is never told to the next one of that length."""
    nodes = [helper.make_node("Unique", ["x"], ["y"])]
    x, y = (helper.make_tensor_value_info(name, TensorProto.INT64, [None]) for name in ("x", "y"))
    file = helper.make_model(
        helper.make_graph(nodes, "unique", [x], [y]), opset_imports=[helper.make_opsetid("", 21)]
    )
    with load_sync(file, device) as model:
        for count in (2, 3, 4, 3):
            expected = np.arange(count)

            got = model.infer_sync({"x": np.arange(size) % count})["y"]

            np.testing.assert_array_equal(got, expected)
