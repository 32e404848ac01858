"""Models of the first ten opsets mean what they meant when they were written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from asyncrt.errors import UnsupportedOperatorError
from asyncrt.layout import Array

from ..second_opinion import onnxruntime_gives
from .models import compute, f32, info, model, names, node, program

X = np.random.default_rng(3).standard_normal((2, 3, 4, 5)).astype(np.float32)
C = np.array([1, -2, 3], np.float32)
ROWS = np.arange(12, dtype=np.float32).reshape(3, 4) + 1


def _given(op: str, arrays: Sequence[Array], opset: int, outputs: int = 1, **attributes: Any) -> list[Array]:
    """What a node of that opset gives, of inputs whose dims are not known before."""
    source = _source(op, arrays, opset, outputs, **attributes)
    return compute(program(source), {f"x{i}": a for i, a in enumerate(arrays)})


def _source(
    op: str, arrays: Sequence[Array], opset: int, outputs: int = 1, constant: bool = False, **attributes: Any
) -> onnx.ModelProto:
    inputs = [f"x{i}" for i in range(len(arrays))]
    infos = [
        info(name, helper.np_dtype_to_tensor_dtype(a.dtype), [f"{name}_{k}" for k in range(a.ndim)])
        for name, a in zip(inputs, arrays, strict=True)
    ]
    results = [f"y{i}" for i in range(outputs)]
    held = dict(zip(inputs[1:], arrays[1:], strict=True)) if constant else {}
    made = model(
        [node(op, inputs, results, **attributes)], infos[: 1 if constant else None], results, held, opset=opset
    )
    made.ir_version = 3 if not constant else 4
    return made


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("Add", X + C[:, None, None]),
        ("Sub", X - C[:, None, None]),
        ("Mul", X * C[:, None, None]),
        ("Div", X / C[:, None, None]),
        ("Greater", C[:, None, None] < X),
        ("Less", C[:, None, None] > X),
    ],
)
@pytest.mark.parametrize("axis", [1, -3])
def test_before_opset_7_the_second_operand_is_spread_from_an_axis_on(op: str, expected: Array, axis: int) -> None:
    """With `broadcast` and `axis`; from opset 7 on an operand is aligned at the last axis."""
    (got,) = _given(op, [X, C], 6, broadcast=1, axis=axis)

    np.testing.assert_array_equal(got, expected)


def test_an_operand_of_several_axes_is_spread_as_well() -> None:
    """Its axes are those from `axis` on; without an axis they are the last ones."""
    inner, last = np.float32([[1, 2, 3, 4]] * 3), np.arange(5, dtype=np.float32)

    np.testing.assert_array_equal(_given("Add", [X, inner], 1, broadcast=1, axis=1)[0], X + inner[:, :, None])
    np.testing.assert_array_equal(_given("Add", [X, last], 6, broadcast=1)[0], X + last)
    np.testing.assert_array_equal(_given("Add", [X, X], 6)[0], X + X)


def test_before_opset_7_a_slope_is_one_for_each_channel() -> None:
    """PRelu took a vector along axis 1, or a single number."""
    for slope in (C, C[:1]):
        source = _source("PRelu", [X, slope], 6, constant=True)

        (got,) = compute(program(source), {"x0": X})

        np.testing.assert_allclose(got, np.where(X < 0, X * slope[:, None, None], X), rtol=1e-6)


@pytest.mark.parametrize("opset", [1, 6])
def test_attributes_became_inputs(opset: int) -> None:
    """Clip, Slice, Squeeze, Unsqueeze, Split and TopK said by attributes what inputs say now."""
    sliced = {"axes": [1, 3], "starts": [1, -4], "ends": [3, 100]}

    np.testing.assert_array_equal(_given("Clip", [X], opset, min=-0.5, max=0.5)[0], X.clip(-0.5, 0.5))
    np.testing.assert_array_equal(_given("Clip", [X], opset)[0], X)
    np.testing.assert_array_equal(_given("Slice", [X], opset, **sliced)[0], X[:, 1:3, :, -4:])
    np.testing.assert_array_equal(_given("Slice", [ROWS], opset, starts=[1], ends=[9])[0], ROWS[1:])
    np.testing.assert_array_equal(_given("Squeeze", [X[:1]], opset, axes=[0])[0], X[0])
    np.testing.assert_array_equal(_given("Unsqueeze", [ROWS], opset, axes=[1])[0], ROWS[:, None])
    np.testing.assert_array_equal(_given("TopK", [ROWS], opset, 2, k=2)[0], ROWS[:, :1:-1])
    for got, expected in zip(_given("Split", [ROWS], 2, 2, split=[1, 2]), (ROWS[:1], ROWS[1:]), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_the_first_opset_has_versions_of_its_own() -> None:
    """Cast names its dtype, Pad its paddings, Reshape its shape; Concat joins axis 1; Tile repeats along one axis."""
    edge = np.pad(ROWS, [(1, 0), (0, 2)], constant_values=7)

    assert _given("Cast", [ROWS], 1, to="INT32")[0].dtype == np.int32
    np.testing.assert_array_equal(_given("Pad", [ROWS], 1, paddings=[1, 0, 0, 2], value=7.0)[0], edge)
    np.testing.assert_array_equal(_given("Pad", [ROWS], 2, pads=[1, 0, 0, 2], value=7.0)[0], edge)
    np.testing.assert_array_equal(_given("Reshape", [X], 1, shape=[0, -1])[0], X.reshape(2, 60))
    np.testing.assert_array_equal(_given("Concat", [ROWS, ROWS], 1)[0], np.concatenate([ROWS, ROWS], 1))
    np.testing.assert_array_equal(_given("Tile", [ROWS, np.float32(3), np.float32(1)], 1)[0], np.tile(ROWS, (1, 3)))
    for got in _given("Split", [ROWS, np.array([2, 2], np.float32)], 1, 2, axis=1):
        assert got.shape == (3, 2)
    np.testing.assert_allclose(_given("GlobalLpPool", [X], 1, p=1.0)[0], abs(X).sum((2, 3), keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("scales", [(1, 1, 2, 3), (1, 1, 0.5, 0.6), (1, 1, 1.5, 0.6), (1, 1, 1, 1)])
@pytest.mark.parametrize("constant", [True, False])
def test_upsample_and_the_first_resize_round_as_onnxruntime_does(scales: Any, constant: bool) -> None:
    """Where an axis grows, the element below is the nearest one; where it shrinks, the one above."""
    s = np.array(scales, np.float32)
    source = _source("Resize", [X, s], 10, constant=constant)
    (expected,) = onnxruntime_gives(source, {"x0": X} if constant else {"x0": X, "x1": s}).values()

    (got,) = compute(program(source), {"x0": X, "x1": s})

    np.testing.assert_array_equal(got, expected)
    if s.min() >= 1:
        np.testing.assert_array_equal(_given("Upsample", [X], 7, scales=list(map(float, scales)))[0], expected)


def test_upsample_by_attributes_of_the_first_opset() -> None:
    """Height and width each have their own; linear interpolation is what ONNX Runtime gives for opset 9."""
    s = np.array([1, 1, 2, 2.5], np.float32)
    (expected,) = onnxruntime_gives(_source("Upsample", [X, s], 9, mode="linear"), {"x0": X, "x1": s}).values()

    (got,) = _given("Upsample", [X], 1, height_scale=2.0, width_scale=2.5, mode="bilinear")

    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("spatial", [1, 0])
def test_batch_normalization_before_opset_9(spatial: int) -> None:
    """`spatial` 0 has a mean and a variance for each element; opset 1 and 6 also say that they infer."""
    rng = np.random.default_rng(5)
    shape = (3,) if spatial else (3, 4, 5)
    params = [rng.random(shape).astype(np.float32) + 0.5 for _ in range(4)]
    scale, bias, mean, var = [p.reshape(3, 1, 1) if spatial else p for p in params]
    expected = (X - mean) / np.sqrt(var + 1e-5) * scale + bias

    np.testing.assert_allclose(_given("BatchNormalization", [X, *params], 7, spatial=spatial)[0], expected, rtol=1e-4)
    old = _given("BatchNormalization", [X, *params], 6, spatial=spatial, is_test=1)
    np.testing.assert_allclose(old[0], expected, rtol=1e-4)
    with pytest.raises(UnsupportedOperatorError, match="training mode"):
        _given("BatchNormalization", [X, *params], 6, spatial=spatial)


@pytest.mark.parametrize("opset", [1, 6, 7, 9])
def test_an_old_dropout_passes_its_input_on(opset: int) -> None:
    """Its mask has the dtype of the data before opset 10."""
    y, mask = _given("Dropout", [X], opset, 2, ratio=0.4)

    np.testing.assert_array_equal(y, X)
    np.testing.assert_array_equal(mask, np.ones_like(X))
    assert names(program(_source("Dropout", [X], opset))) == ["Identity"]


def test_scan_of_opset_8_scans_each_element_of_a_batch() -> None:
    """States and outputs have the batch as their first axis; a direction of 1 goes backwards."""
    body = helper.make_graph(
        [node("Add", ["s", "v"], ["t"]), node("Identity", ["t"], ["o"])], "body",
        [f32("s", 2), f32("v", 2)], [f32("t", 2), f32("o", 2)],
    )  # fmt: skip
    start, data = np.zeros((3, 2), np.float32), np.arange(30, dtype=np.float32).reshape(3, 5, 2)
    scan = node("Scan", ["", "s0", "x"], ["last", "all"], num_scan_inputs=1, directions=[1], body=body)
    built = program(model([scan], [f32("s0", "b", 2), f32("x", "b", "n", 2)], ["last", "all"], opset=8))

    assert names(built) == ["Scan"]
    assert [s.graph.nodes[0].operator.name for n in built.nodes for s in n.subgraphs] == ["Scan"]
    assert start.shape[0] == data.shape[0]


@pytest.mark.parametrize(
    ("op", "attributes", "expected"),
    [
        ("Affine", {"alpha": 2.0, "beta": 1.0}, X * 2 + 1),
        ("Crop", {"border": [1, 0, 2, 3]}, X[:, :, :1, 1:3]),
        ("Crop", {"border": [1, 0, 2, 3], "scale": [2, 3]}, X[:, :, :2, 1:4]),
        ("ImageScaler", {"bias": [1.0, 2.0, 3.0], "scale": 0.5}, X * np.float32(0.5) + np.abs(C)[:, None, None]),
        ("ParametricSoftplus", {"alpha": 2.0, "beta": 0.5}, 2 * np.log1p(np.exp(X * 0.5))),
        ("ScaledTanh", {"alpha": 2.0, "beta": 0.5}, 2 * np.tanh(X * 0.5)),
        ("Scale", {"scale": 3.0}, X * 3),
    ],
)
def test_experimental_operators_of_the_first_opsets(op: str, attributes: dict[str, Any], expected: Array) -> None:
    """ONNX has dropped them; files of older exporters have them still."""
    (got,) = _given(op, [X], 7, **attributes)

    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
