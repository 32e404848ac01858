"""Nodes that train or draw at random: what they give, and that it is the same each time."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from .models import compute, f32, info, model, names, node, program

X = np.random.default_rng(2).standard_normal((4, 3, 50)).astype(np.float32)


def _dropout(ratio: float) -> onnx.ModelProto:
    nodes = [node("Dropout", ["x", "r", "t"], ["y", "m"], seed=3)]
    inputs = [f32("x", "n", 3, 50), info("t", onnx.TensorProto.BOOL, [])]
    return model(nodes, inputs, ["y", "m"], {"r": np.float32(ratio)})


@pytest.mark.parametrize("ratio", [0.25, 0.5])
def test_a_dropout_that_trains_scales_what_it_keeps(ratio: float) -> None:
    """Its mask says what was kept, and is the same in every request."""
    built = program(_dropout(ratio))

    y, mask = compute(built, {"x": X, "t": np.array(True)})

    np.testing.assert_allclose(y, np.where(mask, X / np.float32(1 - ratio), 0), rtol=1e-6)
    assert mask.mean() == pytest.approx(1 - ratio, abs=0.08)
    np.testing.assert_array_equal(compute(built, {"x": X, "t": np.array(True)})[1], mask)


def test_a_request_may_say_that_nothing_is_dropped() -> None:
    """Then the result is exact; and where the model says it, nothing of it is left."""
    y, mask = compute(program(_dropout(0.5)), {"x": X, "t": np.array(False)})
    fixed = _dropout(0.5)
    fixed.graph.input.pop()
    fixed.graph.initializer.append(onnx.numpy_helper.from_array(np.array(False), "t"))
    del fixed.graph.output[1:], fixed.graph.node[0].output[1:]

    np.testing.assert_array_equal(y, X)
    assert mask.all()
    assert names(program(fixed)) == ["Dropout"]


def test_normalisation_that_trains_uses_the_batch() -> None:
    """It also gives the running mean and variance."""
    scale, bias, mean, var = (np.arange(3, dtype=np.float32) + k for k in (1, 0, 2, 4))
    held = {"s": scale, "b": bias, "m": mean, "v": var}
    made = node("BatchNormalization", ["x", *held], ["y", "rm", "rv"], training_mode=1, momentum=0.75)
    m, v = X.mean((0, 2)), X.var((0, 2))

    y, running_mean, running_var = compute(
        program(model([made], [f32("x", "n", 3, 50)], ["y", "rm", "rv"], held)), {"x": X}
    )

    expected = (X - m[:, None]) / np.sqrt(v[:, None] + 1e-5) * scale[:, None] + bias[:, None]
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(running_mean, mean * 0.75 + m * 0.25, rtol=1e-4)
    np.testing.assert_allclose(running_var, var * 0.75 + v * 0.25, rtol=1e-4)


def test_chance_without_a_seed_is_of_the_nodes_name() -> None:
    """Two nodes give two results, and each gives the same in every request and every program."""
    nodes = [node("RandomNormalLike", ["x"], [name], name=name) for name in ("a", "b")]
    source = model(nodes, [f32("x", "n", 3, 50)], ["a", "b"])

    a, b = compute(program(source), {"x": X})

    assert a.dtype == np.float32
    assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.1
    for first, second in zip((a, b), compute(program(source), {"x": X}), strict=True):
        np.testing.assert_array_equal(first, second)


def test_numbers_have_the_distribution_that_was_asked_for() -> None:
    """Mean and deviation of normal ones, bounds of uniform ones, shares of a Multinomial and a Bernoulli."""
    nodes = [
        node("RandomNormal", [], ["n"], shape=[40_000], mean=3.0, scale=0.5),
        node("RandomUniform", [], ["u"], shape=[40_000], low=2.0, high=6.0, dtype=onnx.TensorProto.DOUBLE),
        node("Multinomial", ["p"], ["c"], sample_size=40_000),
        node("Bernoulli", ["q"], ["k"]),
    ]
    held = {"p": np.log(np.float32([[0.1, 0.2, 0.7]])), "q": np.full(40_000, 0.3, np.float32)}

    n, u, c, k = compute(program(model(nodes, [f32("x", 1)], ["n", "u", "c", "k"], held)), {"x": X[0, 0, :1]})

    assert (n.mean(), n.std()) == (pytest.approx(3, abs=0.02), pytest.approx(0.5, abs=0.02))
    assert (u.dtype, u.mean()) == (np.float64, pytest.approx(4, abs=0.05))
    assert u.min() >= 2
    assert u.max() < 6
    np.testing.assert_allclose(np.bincount(c[0]) / c.size, [0.1, 0.2, 0.7], atol=0.01)
    assert k.mean() == pytest.approx(0.3, abs=0.02)
    assert helper.tensor_dtype_to_np_dtype(6) == c.dtype
