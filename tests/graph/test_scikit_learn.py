"""Estimators of scikit-learn, exported by skl2onnx, give their own predictions."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from asyncrt import load_sync
from asyncrt.kinds import STRING
from asyncrt.layout import Array

pytest.importorskip("skl2onnx", reason="the dependency group dev brings it")
pytestmark = [
    pytest.mark.skipif(STRING.numpy.kind != "T", reason="NumPy has no arrays of texts"),
    pytest.mark.filterwarnings("ignore"),  # of scikit-learn and its exporter about each other
]

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType
    from sklearn.compose import ColumnTransformer
    from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier, RandomForestRegressor
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LinearRegression, LogisticRegression
    from sklearn.naive_bayes import GaussianNB
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler
    from sklearn.svm import SVC, SVR
    from sklearn.tree import DecisionTreeRegressor

OPSETS = {"": 21, "ai.onnx.ml": 3}
RANDOM = np.random.default_rng(7)
X = RANDOM.standard_normal((120, 4)).astype(np.float32)
PLACE = X[:, 0] + X[:, 1] * X[:, 2]
CLASSES = np.digitize(PLACE, [-0.5, 0.7])
NAMES = np.array(["low", "middle", "high"])[CLASSES]

CLASSIFIERS = [
    LogisticRegression(),
    SVC(probability=True, random_state=0),
    RandomForestClassifier(10, random_state=0),
    GradientBoostingClassifier(n_estimators=5, random_state=0),
    GaussianNB(),
    KNeighborsClassifier(3),
    MLPClassifier((8,), max_iter=30, random_state=0),
    make_pipeline(StandardScaler(), LogisticRegression()),
]
REGRESSORS = [LinearRegression(), SVR(), RandomForestRegressor(10, random_state=0), DecisionTreeRegressor()]


def answers(file: Any, **inputs: Array) -> list[Any]:
    """What asyncrt gives, twice: the second request has the first one's plan."""
    with load_sync(file) as model:
        first, again = (list(model.infer_sync(inputs).values()) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        np.testing.assert_equal(one, other)
    return first


LABELLED = [(c, NAMES) for c in CLASSIFIERS] + [(c, CLASSES) for c in CLASSIFIERS[:3]]


@pytest.mark.parametrize(("classifier", "labels"), LABELLED, ids=lambda v: getattr(v, "dtype", type(v).__name__))
def test_classifiers_give_their_labels_and_probabilities(classifier: Any, labels: Array) -> None:
    """Labels that are numbers or texts, and a probability for each."""
    classifier.fit(X, labels)
    file = to_onnx(classifier, X[:1], target_opset=OPSETS, options={"zipmap": False})

    got, probabilities = answers(file, X=X)

    assert classifier.predict(X).tolist() == got.tolist()
    np.testing.assert_allclose(probabilities, classifier.predict_proba(X), atol=1e-5)


@pytest.mark.parametrize("regressor", REGRESSORS, ids=lambda r: type(r).__name__)
def test_regressors_give_their_numbers(regressor: Any) -> None:
    """In float32."""
    regressor.fit(X, PLACE)

    (got,) = answers(to_onnx(regressor, X[:1], target_opset=OPSETS), X=X)

    np.testing.assert_allclose(got.reshape(-1), regressor.predict(X), rtol=1e-4, atol=1e-4)


def test_a_pipeline_takes_texts_beside_numbers_and_gives_probabilities_by_name() -> None:
    """Columns of both kinds; a dict for each row comes out, as skl2onnx has it by default."""
    colours = RANDOM.choice(["red", "green", "blue"], (len(X), 1))
    mixed = np.concatenate([colours.astype(object), X.astype(object)], 1)
    columns = ColumnTransformer([("colour", OneHotEncoder(), [0]), ("size", StandardScaler(), [1, 2, 3, 4])])
    pipeline = make_pipeline(columns, LogisticRegression())
    pipeline.fit(mixed, np.where((PLACE > 0) | (colours[:, 0] == "red"), "yes", "no"))
    types = [("colour", StringTensorType([None, 1])), ("size", FloatTensorType([None, 4]))]

    labels, rows = answers(to_onnx(pipeline, initial_types=types, target_opset=OPSETS), colour=colours, size=X)

    assert pipeline.predict(mixed).tolist() == labels.tolist()
    assert [list(row) for row in rows] == [["no", "yes"]] * len(X)
    np.testing.assert_allclose([list(row.values()) for row in rows], pipeline.predict_proba(mixed), atol=1e-5)


def test_sentences_come_in_and_probabilities_go_out() -> None:
    """They are cut into words, counted and weighed on the host."""
    sentences = np.array(["a red apple", "green apple pie", "the sky is blue", "a red sky", "the pie is blue"])
    pipeline = make_pipeline(TfidfVectorizer(), LogisticRegression())
    pipeline.fit(sentences, ["food", "food", "sky", "sky", "food"])
    types = [("text", StringTensorType([None, 1]))]
    file = to_onnx(pipeline, initial_types=types, target_opset=OPSETS, options={"zipmap": False})

    labels, probabilities = answers(file, text=sentences[:, None])

    assert pipeline.predict(sentences).tolist() == labels.tolist()
    np.testing.assert_allclose(probabilities, pipeline.predict_proba(sentences), atol=1e-5)
