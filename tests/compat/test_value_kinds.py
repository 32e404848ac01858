"""Lists, dicts, texts and None, as ONNX Runtime gives and takes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from .api import described, session

X = np.array([1, 2], np.float32)

SEQUENCE = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]>
grown (seq(float[n]) s, float[n] x) => (seq(float[n]) t, int64 n) {
    t = SequenceInsert (s, x)
    n = SequenceLength (t)
}""")

ZIPPED = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18, "ai.onnx.ml" : 1]>
zipped (float[n, 2] x) => (seq(map(string, float)) y, string[n] label) {
    y = ai.onnx.ml.ZipMap <classlabels_strings = ["no", "yes"]> (x)
    best = ArgMax <axis = 1, keepdims = 0> (x)
    names = Constant <value_strings = ["no", "yes"]> ()
    label = Gather (names, best)
}""")


def test_lists_of_arrays_come_and_go(ort: Any) -> None:
    """A sequence is a list of arrays."""
    made = session(ort, SEQUENCE)

    grown, count = made.run(None, {"s": [X, X * 2], "x": X * 3})

    assert [type(t) for t in (grown, *grown)] == [list] + [np.ndarray] * 3
    assert [t.tolist() for t in grown] == [[1, 2], [2, 4], [3, 6]]
    assert count == 3
    assert described(made.get_inputs())[0][1] == "seq(tensor(float))"
    assert described(made.get_outputs())[0][1] == "seq(tensor(float))"


def test_scores_are_a_list_of_dicts(ort: Any) -> None:
    """A dict for each row, and labels as an array of objects."""
    made = session(ort, ZIPPED)

    scores, labels = made.run(None, {"x": np.array([[0.25, 0.75], [1, 0]], np.float32)})

    assert scores == [{"no": 0.25, "yes": 0.75}, {"no": 1.0, "yes": 0.0}]
    assert (labels.dtype, labels.tolist()) == (np.dtype(object), ["yes", "no"])
    assert described(made.get_outputs())[0][1] == "seq(map(string,tensor(float)))"


@pytest.mark.parametrize("texts", [["a", "b"], np.array(["a", "b"]), np.array(["a", "b"], object)])
def test_texts_come_in_any_form(texts: Any, ort: Any) -> None:
    """Lists of texts as well."""
    made = session(ort, onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]>
        same (string[n] x) => (string[n] y) { y = Identity (x) }"""))

    (got,) = made.run(None, {"x": texts})

    assert (got.dtype, got.tolist()) == (np.dtype(object), ["a", "b"])
