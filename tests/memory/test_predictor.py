"""The shape predictor: the published table, and what holds for every history."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrt.memory.predictor import SIZES, PredictorSettings, ShapePredictor

Shape = tuple[int, ...]
NO_PERCENT = PredictorSettings(percent=0)
SHAPES = st.integers(1, 4).flatmap(lambda rank: st.tuples(*[st.integers(0, 600)] * rank))
HISTORIES = st.lists(SHAPES, min_size=1, max_size=6)
STEADY = st.integers(1, 4).flatmap(
    lambda rank: st.tuples(st.tuples(*[st.integers(1, 9)] * rank), st.tuples(*[st.integers(0, 2)] * rank))
)


def predicted(history: list[Shape], settings: PredictorSettings | None = None, bits: int = 32) -> Shape | None:
    predictor = ShapePredictor(settings)
    for shape in history:
        predictor.record(shape)
    return predictor.predict(bits)


@pytest.mark.parametrize(
    ("history", "settings", "expected"),
    [
        pytest.param([(1, 1), (1, 2), (1, 3)], NO_PERCENT, (1, 13), id="by one"),
        pytest.param([(1, 1, 1), (1, 1, 3), (1, 1, 5)], NO_PERCENT, (1, 1, 25), id="by two"),
        pytest.param([(1, 1), (1, 128), (1, 256)], None, (281, 1), id="by too many, a tenth more"),
        pytest.param([(1, 3, 480, 720), (3, 3, 480, 720), (5, 3, 480, 720)], NO_PERCENT, None, id="too large a slice"),
        pytest.param([(1, 1), (1, 1), (1, 1)], None, (1, 1), id="not at all"),
    ],
)
def test_the_published_table_holds(
    history: list[Shape], settings: PredictorSettings | None, expected: Shape | None
) -> None:
    """What the plugin's own tests expect of elements of 32 bits comes out here."""
    assert expected == predicted(history, settings)


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([], None),
        ([(1, 1), (1, 2)], None),
        ([(9, 9), (1, 1), (1, 2), (1, 3)], (1, 13)),
        ([(1, 10), (1, 20), (1, 19)], (20, 1)),
        ([(1, 5), (1, 6), (1, 8)], (8, 1)),
        ([(8,), (1, 9), (1, 10)], (11, 1)),
        ([(1, 2), (2, 3), (3, 4)], (13, 14)),
        ([(), (), ()], None),
    ],
    ids=["nothing", "two", "the last three count", "shrank", "uneven", "another rank", "two axes", "no axes"],
)
def test_only_two_equal_steps_are_steady(history: list[Shape], expected: Shape | None) -> None:
    """Fewer than three shapes say nothing; three of which one shrank or grew unevenly get a tenth more."""
    assert expected == predicted(history)


@pytest.mark.parametrize(
    ("width", "bits", "followed"),
    [(4096, 32, True), (4097, 32, False), (32768, 4, True), (32769, 4, False)],
)
def test_a_slice_of_16_kib_is_followed_and_no_larger(width: int, bits: int, followed: bool) -> None:
    """The limit is of bytes, rounded up for elements that are smaller, and itself within."""
    found = predicted([(1, width), (2, width), (3, width)], NO_PERCENT, bits)

    assert found == ((13, width) if followed else None)


@pytest.mark.parametrize(("step", "expected"), [(16384, 100 + 12 * 16384), (16385, (100 + 2 * 16385) * 11 // 10)])
def test_sizes_in_bytes_grow_by_at_most_16_kib_a_step(step: int, expected: int) -> None:
    """As shapes of one axis they get room for ten steps, or a tenth more."""
    assert (expected,) == predicted([(100,), (100 + step,), (100 + 2 * step,)], SIZES, 8)


def test_who_knows_the_axis_needs_no_history() -> None:
    """The axis that grows, and how often, may be said; without the axis only how often is replaced."""
    predictor = ShapePredictor()
    predictor.record((1, 7, 4))

    assert predictor.predict(32, iterations=128, axis=1) == (1, 135, 4)
    assert predictor.predict(32, iterations=128) is None

    predictor.record((1, 8, 4))
    predictor.record((1, 9, 4))

    assert predictor.predict(32, iterations=3) == (1, 12, 4)


@given(HISTORIES, st.sampled_from([None, NO_PERCENT, SIZES]), st.sampled_from([1, 4, 8, 32, 64]))
def test_never_less_than_asked(history: list[Shape], settings: PredictorSettings | None, bits: int) -> None:
    """Whatever came before: elements are never fewer, the rank stays, and an axis is shorter only if all lie flat."""
    found = predicted(history, settings, bits)

    if found is not None:
        assert math.prod(found) >= math.prod(history[-1])
        assert len(found) == len(history[-1])
        flat = set(found[1:]) <= {1}
        assert flat or all(f >= asked for f, asked in zip(found, history[-1], strict=True))


@given(STEADY)
def test_steady_growth_fits_for_the_next_ten_steps(case: tuple[Shape, Shape]) -> None:
    """No axis is smaller than in any of them, and none is larger than in the tenth."""
    start, step = case
    history = [tuple(d + i * s for d, s in zip(start, step, strict=True)) for i in range(13)]

    found = predicted(history[:3], NO_PERCENT, 8)

    assert found == (history[12] if any(step) else None)


def test_it_says_what_it_has_seen() -> None:
    """`repr` is the debugger."""
    predictor = ShapePredictor()
    assert predictor.last is None
    predictor.record([1, 2])

    assert predictor.last == (1, 2)
    assert repr(predictor) == "<ShapePredictor [(1, 2)]>"
