"""ONNX's own node tests of texts, sequences, optionals, volumes, and of operators that onnx's evaluator carries out."""

from __future__ import annotations

import re

import pytest

from asyncrt.kinds import STRING

from ..onnx_suite import EXCLUDED, Outcome, node_cases, run_case

pytestmark = pytest.mark.skipif(STRING.numpy.kind != "T", reason="NumPy has no arrays of texts")

_ABOUT = re.compile(
    "sequence|_seq|optional|_opt$|string|regex|strnorm|tfidf|label_encoder|volumetric|deform|set_member|svm"
)


def test_onnx_own_tests_pass() -> None:
    """In dtypes, shapes and values, within ONNX's tolerances."""
    cases = [c for c in node_cases() if _ABOUT.search(c.name) and c.name not in EXCLUDED]

    outcomes = [run_case(case, "host") for case in cases]

    assert len(outcomes) >= 80
    assert [o for o in outcomes if o != Outcome(o.name, "passed")] == []
