"""Whether two values are the same, to the bit or nearly, whatever their kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from .answers import arrays_in, difference, exactly

ONE = np.array([1.0, -0.0], np.float32)
TEXT = np.array(["a", "b"], object)


def _values() -> list[Any]:
    """Return values of every kind, of which no two are the same; made anew each time."""
    return [
        ONE.copy(), ONE + 0, ONE[None], ONE.astype(np.float64), TEXT.copy(), TEXT[::-1], [ONE.copy()], [],
        [TEXT.copy()], [[ONE.copy()]], None, {"a": 1.0}, {"a": 2.0}, {1: 1.0}, [{"a": 1.0}],
    ]  # fmt: skip


def test_values_are_the_same_to_the_bit_or_not() -> None:
    """Texts by what they say rather than where that lies; zeros by their signs; lists by what is in them."""
    for i, one in enumerate(map(exactly, _values())):
        for j, other in enumerate(map(exactly, _values())):
            assert (i == j) == (one == other), (i, j)


@pytest.mark.parametrize("index", range(len(_values())))
def test_nearly_the_same_is_no_difference(index: int) -> None:
    """And everything is nearly the same as itself."""
    value = _values()[index]
    near = [ONE * np.float32(1 + 1e-5)] if index == 6 else _values()[index]

    assert difference({"y": value}, {"y": near}) is None


@pytest.mark.parametrize(
    ("expected", "got", "text"),
    [
        (ONE, ONE + 1, "'y'[0] is np.float32(2.0), elsewhere np.float32(1.0); 2 of 2 elements"),
        (ONE, ONE[None], "'y' is float32[1, 2], elsewhere float32[2]"),
        (TEXT, TEXT[::-1], "'y'[0] is 'b', elsewhere 'a'; 2 of 2 elements"),
        ([ONE], [ONE + 1], "'y'[0][0] is np.float32(2.0), elsewhere np.float32(1.0); 2 of 2 elements"),
        ([ONE], [], "'y' is [], elsewhere [array([ 1., -0.], dtype=float32)]"),
        ([{"a": 1.0}], [{"a": 2.0}], "'y'[0][0][1] is 2.0, elsewhere 1.0"),
        (None, ONE, "'y' is float32[2] array([ 1., -0.], dtype=float32), elsewhere None"),
    ],
)
def test_what_differs_is_told(expected: Any, got: Any, text: str) -> None:
    """With where it is."""
    assert text == difference({"y": expected}, {"y": got})


def test_the_least_integer_may_stand_for_anything() -> None:
    """Where it is said to, and there alone."""
    expected, got = np.array([np.iinfo(np.int64).min, 2]), np.array([0, 2])

    assert difference({"y": expected}, {"y": got}, indefinite=True) is None
    assert difference({"y": expected}, {"y": got}) is not None
    assert difference({"y": expected}, {"y": got + 1}, indefinite=True) is not None


def test_arrays_are_found_wherever_they_are() -> None:
    """Texts are none of them."""
    found = arrays_in({"x": [{"k": np.ones(3)}, TEXT], "y": ONE, "z": None})

    sizes = [3, 2]

    assert sizes == [a.size for a in found]
