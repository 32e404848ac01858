"""ONNX's own tests of texts, sequences, optionals, volumes, losses, what onnx's evaluator carries out, and models.

All node tests take minutes: `python -m tests.onnx_suite` runs them.
"""

from __future__ import annotations

import re

import pytest

from asyncrt.kinds import STRING

from ..onnx_model_cases import IN_FILES, model_cases
from ..onnx_suite import EXCLUDED, MOST_EXCLUDED, node_cases, run_case

pytestmark = pytest.mark.skipif(STRING.numpy.kind != "T", reason="NumPy has no arrays of texts")

_ABOUT = re.compile(
    "sequence|_seq|optional|_opt$|string|regex|strnorm|tfidf|label_encoder|volumetric|deform|set_member|svm|_NCd1_"
)


def test_onnx_own_tests_pass() -> None:
    """In dtypes, shapes and values, within ONNX's tolerances."""
    cases = [c for c in node_cases() if _ABOUT.search(c.name) and c.name not in EXCLUDED]

    outcomes = [run_case(case, "host") for case in cases]

    assert len(outcomes) >= 80
    assert [o for o in outcomes if o.result != "passed"] == []


def test_what_is_excluded_still_fails_and_is_no_more_than_it_was() -> None:
    """One that passes leaves the list; none comes to it."""
    cases = [c for c in (*node_cases(), *model_cases("simple")) if c.name in EXCLUDED]

    outcomes = [run_case(case, "host") for case in cases]

    assert {o.name for o in outcomes if o.result != "passed"} == set(EXCLUDED)
    assert len(EXCLUDED) == MOST_EXCLUDED
    assert all(EXCLUDED.values())


@pytest.mark.parametrize("kind", IN_FILES)
def test_the_models_of_onnx_own_tests_give_what_they_should(kind: str) -> None:
    """Those that come with files of inputs and outputs, on the device."""
    outcomes = [run_case(case) for case in model_cases(kind) if case.name not in EXCLUDED]

    assert len(outcomes) >= 20
    assert [o for o in outcomes if o.result != "passed"] == []
