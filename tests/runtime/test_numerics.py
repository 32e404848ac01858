"""How far results may be off, and what is not a number of the same kind at all."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from asyncrt.runtime.numerics import difference, tolerance


@pytest.mark.parametrize(
    ("expected", "got", "off"),
    [
        ([1.0, -4.0], [1.0, -4.0], 0.0),
        ([1.0, -4.0], [1.1, -4.0], 0.025),
        ([0.0, 0.0], [0.0, -0.0], 0.0),
        ([0.0, 0.0], [0.5, 0.0], 0.5),
        ([math.nan, 2.0], [math.nan, 1.0], 0.5),
        ([math.inf, 2.0], [math.inf, 2.0], 0.0),
        ([math.inf, 2.0], [-math.inf, 2.0], math.inf),
        ([1.0, 2.0], [math.nan, 2.0], math.inf),
        ([1.0, 2.0], [1.0], math.inf),
        ([], [], 0.0),
    ],
)
def test_a_difference_is_a_share_of_the_largest_element(expected: Any, got: Any, off: float) -> None:
    """And infinite where shapes, or what is not finite, are others."""
    a, b = np.array(expected, np.float32), np.array(got, np.float32)

    assert difference(a, b) == pytest.approx(off)
    assert difference(a, b.astype(np.float64)) == math.inf


def test_integers_are_the_same_or_not() -> None:
    """And floats of few bits may differ by more, but not by what is another result."""
    given = [np.int64, np.bool_, np.float64, np.float32, np.float16, ml_dtypes.bfloat16]
    allowed = [tolerance(np.dtype(d)) for d in given]

    assert allowed[:2] == [0.0, 0.0]
    assert sorted(allowed) == allowed
    assert allowed[3] == 2.0**-15
    assert allowed[4] == 2.0**-5
    assert allowed[5] < 0.1
