"""Models of classical machine learning give what ONNX Runtime gives: scalers, encoders, linear models, trees."""

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
from .models import compute, model, names, node, program

ML = "ai.onnx.ml"
RNG = np.random.default_rng(5)
X = RNG.standard_normal((40, 5)).astype(np.float32)
WHOLE = RNG.integers(-3, 9, (40, 5))


def _source(op: str, arrays: Sequence[Array], outputs: int = 1, version: int = 3, **attributes: Any) -> onnx.ModelProto:
    infos = [
        helper.make_tensor_value_info(f"x{i}", helper.np_dtype_to_tensor_dtype(a.dtype), [f"n{i}", *a.shape[1:]])
        for i, a in enumerate(arrays)
    ]
    results = [f"y{i}" for i in range(outputs)]
    made = node(op, [f"x{i}" for i in range(len(arrays))], results, domain=ML, **attributes)
    source = model([made], infos, results, opset=16)
    source.opset_import.append(helper.make_opsetid(ML, version))
    return source


def _check(op: str, *arrays: Array, outputs: int = 1, version: int = 3, **attributes: Any) -> None:
    source = _source(op, arrays, outputs, version, **attributes)
    feeds = {f"x{i}": a for i, a in enumerate(arrays)}
    expected = onnxruntime_gives(source, feeds)

    got = compute(program(source), feeds)

    for (name, e), g in zip(expected.items(), got, strict=True):
        assert (e.dtype, e.shape) == (g.dtype, g.shape), name
        np.testing.assert_allclose(g, e, 2e-4, 2e-5, err_msg=name)


@pytest.mark.parametrize("x", [X, X.astype(np.float64), WHOLE], ids=["float32", "float64", "int64"])
def test_features_are_prepared(x: Array) -> None:
    """Scaled, normalised, chosen, and put side by side."""
    _check("Scaler", x, offset=[0.1, 0.2, 0.3, 0.4, 0.5], scale=[1.0, 2.0, 3.0, 4.0, 5.0])
    _check("Scaler", x, offset=[0.5], scale=[2.0])
    for norm in ("L1", "L2", "MAX"):
        _check("Normalizer", abs(x) + 1, norm=norm)
    _check("ArrayFeatureExtractor", x, np.array([[4, 0, 0]]))
    _check("FeatureVectorizer", x, x, inputdimensions=[5, 5])


def test_values_are_replaced() -> None:
    """Missing ones by one for each column, numbers by others, above a threshold by 1."""
    holes = np.where(X > 1, np.nan, X).astype(np.float32)

    _check("Binarizer", X, threshold=0.3)
    _check("Imputer", holes, imputed_value_floats=[1.0, 2.0, 3.0, 4.0, 5.0], replaced_value_float=float("nan"))
    _check("Imputer", WHOLE, imputed_value_int64s=[7], replaced_value_int64=3)
    _check("OneHotEncoder", WHOLE, cats_int64s=[1, 3, 5], zeros=1)


def test_labels_become_others() -> None:
    """Keys and values are integers or floats, NaN is a key as well, and what is no key gets the default."""
    holes = np.where(X > 1, np.nan, np.round(X)).astype(np.float32)

    _check("LabelEncoder", WHOLE, keys_int64s=[1, 3, 5], values_int64s=[10, 30, 50], default_int64=-7)
    _check("LabelEncoder", WHOLE, keys_int64s=[1, 3, 5], values_floats=[0.1, 0.3, 0.5], default_float=9.0)
    nan = float("nan")
    _check("LabelEncoder", holes, version=4, keys_floats=[0.0, nan, 1.0], values_int64s=[3, 4, 5], default_int64=0)


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
def test_linear_models(transform: str) -> None:
    """Several targets, several classes, and two classes of which one has a score."""
    weights, bias = RNG.standard_normal(15).tolist(), RNG.standard_normal(3).tolist()

    _check("LinearRegressor", X, coefficients=weights, intercepts=bias, targets=3)
    _check("LinearRegressor", X, coefficients=weights[:5], targets=1)
    several = {"coefficients": weights, "intercepts": bias, "classlabels_ints": [3, 1, 7]}
    _check("LinearClassifier", X, outputs=2, post_transform=transform, **several)
    two = {"coefficients": weights[:10], "intercepts": bias[:2], "classlabels_ints": [0, 1]}
    _check("LinearClassifier", X, outputs=2, post_transform=transform, **two)


@pytest.mark.parametrize("kernel", ["LINEAR", "RBF", "POLY", "SIGMOID"])
def test_support_vectors_of_a_regression(kernel: str) -> None:
    """Each kernel function, and one that only tells the inside from the outside."""
    given = {
        "kernel_type": kernel, "kernel_params": [0.3, 0.2, 2.0], "support_vectors": RNG.standard_normal(30).tolist(),
        "coefficients": RNG.standard_normal(6).tolist(), "rho": [0.4], "n_supports": 6,
    }  # fmt: skip

    _check("SVMRegressor", X, **given)
    _check("SVMRegressor", X, one_class=1, **given)


def _trees(count: int, depth: int, kind: str, targets: Sequence[int], positive: bool, mode: str) -> dict[str, Any]:
    """Whole trees of a depth, as the attributes of an ensemble."""
    rng = np.random.default_rng(count)
    lists: dict[str, list[Any]] = {f"nodes_{n}": [] for n in ("treeids", "nodeids", "featureids", "values", "modes")}
    lists |= {f"nodes_{n}": [] for n in ("truenodeids", "falsenodeids", "missing_value_tracks_true")}
    lists |= {f"{kind}_{n}": [] for n in ("treeids", "nodeids", "ids", "weights")}
    for tree in range(count):
        for n in range(2 ** (depth + 1) - 1):
            leaf = n >= 2**depth - 1
            given = (
                tree, n, 0 if leaf else int(rng.integers(5)), 0.0 if leaf else float(np.float32(rng.normal())),
                "LEAF" if leaf else mode, 0 if leaf else 2 * n + 1, 0 if leaf else 2 * n + 2, int(rng.integers(2)),
            )  # fmt: skip
            for name, value in zip(list(lists)[:8], given, strict=True):
                lists[name].append(value)
            for target in targets if leaf else ():
                weight = abs(rng.normal()) if positive else rng.normal()
                for name, value in zip(list(lists)[8:], (tree, n, target, float(weight)), strict=True):
                    lists[name].append(value)
    return lists


@pytest.mark.parametrize("mode", ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT"])
@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_forests_of_a_regression(aggregate: str, mode: str) -> None:
    """One target and several, every way to aggregate and to compare, with missing values."""
    holes = np.where(X > 1.5, np.nan, X).astype(np.float32)
    for targets, x in (([0], X), ([0, 1, 2], holes)):
        forest = _trees(7, 4, "target", targets, positive=False, mode=mode)
        given = {"n_targets": len(targets), "aggregate_function": aggregate, "base_values": [0.5] * len(targets)}

        _check("TreeEnsembleRegressor", x, **forest, **given)


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC"])
@pytest.mark.parametrize("positive", [True, False])
def test_forests_of_a_classification(transform: str, positive: bool) -> None:
    """Three classes, two with a score each, and two of which the second alone has one."""
    for labels, classes in (([4, 2, 9], [0, 1, 2]), ([0, 1], [0, 1]), ([0, 1], [1]), ([0, 1], [0])):
        forest = _trees(6, 3, "class", classes, positive=positive, mode="BRANCH_LEQ")

        _check("TreeEnsembleClassifier", X, outputs=2, classlabels_int64s=labels, post_transform=transform, **forest)


def test_a_forest_is_one_node() -> None:
    """Its table is a constant that the kernel walks."""
    forest = _trees(3, 2, "target", [0], positive=False, mode="BRANCH_LEQ")

    assert names(program(_source("TreeEnsembleRegressor", [X], n_targets=1, **forest))) == ["TreeScores"]


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("child that is not there", {"nodes_truenodeids": 99}),
        ("two parents|no root leads", {"nodes_truenodeids": 2}),
        ("own ancestor|no root leads", {"nodes_truenodeids": 0}),
        ("comparison 'X'", {"nodes_modes": "X"}),
        ("feature -1", {"nodes_featureids": -1}),
        ("target that is not there", {"target_ids": 5}),
        ("node 99 of tree", {"target_nodeids": 99}),
    ],
)
def test_a_wrong_tree_is_refused(message: str, change: dict[str, Any]) -> None:
    """No table is made of what is no tree."""
    forest = _trees(2, 2, "target", [0], positive=False, mode="BRANCH_LEQ")
    for name, value in change.items():
        forest[name][0] = value

    with pytest.raises(UnsupportedOperatorError, match=message):
        program(_source("TreeEnsembleRegressor", [X], n_targets=1, **forest))
