"""The best of a line, whichever way they are found."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from asyncrt.kernels.operator import Example
from asyncrt.kernels.registry import operators
from asyncrt.layout import Array

from ..run import arrays, assert_close, best_device, build_examples, make_call, reference, run_impl, traits_of

_RNG = np.random.default_rng(0)
RISING = np.arange(3000, dtype=np.float32)[None]
"""Each goes before all that were seen before it."""


def both(example: Example, kind: str) -> list[tuple[Array, Array]]:
    """Return what the reference gives, and the kernels for a class of devices."""
    it, inputs = operators()["", "TopK"], arrays(example)
    expected = reference(it, example, inputs)
    call = make_call(it, example, inputs, expected, constant=False)
    assert it.implement is not None
    impl = it.implement(call, attrs.evolve(traits_of(best_device()), kind=kind))
    return list(zip(expected, run_impl(impl, call, inputs), strict=True))


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_each_class_of_device_finds_what_the_reference_does(kind: str) -> None:
    """Lines are sorted on a GPU."""
    it = operators()["", "TopK"]
    build_examples(it, (False, attrs.evolve(traits_of(best_device()), kind=kind)))
    for example in it.examples:
        for expected, got in both(example, kind):
            assert_close(expected, got, f"{example} on a {kind}")


@pytest.mark.parametrize("k", [1, 8, 9, 64, 1400, 1501, 2999, 3000])
@pytest.mark.parametrize("largest", [0, 1])
def test_however_many_are_wanted_and_in_whatever_order_they_come(k: int, largest: int) -> None:
    """Rising and falling lines, with and without equal elements."""
    mixed = _RNG.integers(0, 40, (2, 3000)).astype(np.float32)
    for x in (RISING, RISING[:, ::-1].copy(), mixed, np.zeros_like(RISING)):
        for expected, got in both(Example((x, np.array([k])), {"largest": largest}, outputs=2), "cpu"):
            np.testing.assert_array_equal(expected, got)
