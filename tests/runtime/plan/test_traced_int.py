"""Ints that remember how they were calculated."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from types import ModuleType

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from asyncrt.dims import Dim
from asyncrt.runtime.cooperative import finished
from asyncrt.runtime.plan.traced_int import MARK, Recording, Witness

Sizes = tuple[int, int, int]

#: What planning does with sizes: arithmetic, rounding, choices, loops over tuples of them.
CALCULATIONS: list[Callable[[int, int, int], int]] = [
    lambda a, b, c: a * b + c,
    lambda a, b, c: -(-a // 8) * 8 - b,
    lambda a, b, c: a % 7 + (b - c) // 3,
    lambda a, b, c: max(a, b * 2, 5) - min(c, 4),
    lambda a, b, c: math.prod((a, b, c, 4)) + sum([a, b]),
    lambda a, b, c: 1 if a == b else a if b > c else c * 0 + 3,
    lambda a, b, c: next((r for r in (1, 2, 4, 8) if a <= r), 8) * b,
    lambda a, b, c: a if (a, b) == (b, a) else int(c) + 1,
    lambda a, b, c: hash((a,)) * 0 + b,
    lambda a, b, c: (a << 1) + (b & 3) + c.bit_length(),
    lambda a, b, c: divmod(a, 5)[1] * 10 + divmod(100, b + 1)[0] + abs(b - c),
    lambda a, b, c: round(a / 2) + (7 if not b else 8) + math.floor(c) + (+a),
    lambda a, b, c: 1 * a + 0 + b * 1 - 0 + c // 1,
]


@given(
    st.sampled_from(CALCULATIONS),
    st.tuples(*[st.integers(0, 40)] * 3),
    st.tuples(*[st.integers(0, 40)] * 3),
    st.sampled_from([1, 2, 3, 64]),
)
def test_where_answers_are_the_same_formulas_give_what_calculating_gives(
    calculate: Callable[[int, int, int], int], first: Sizes, second: Sizes, lines: int
) -> None:
    """For any other sizes a recording gives the right number, or none; for its own sizes it always gives one. In how
    many parts its formulas are compiled makes no difference."""
    recording = Recording()
    outcome = calculate(*(recording.size(s) for s in first))
    numbers = finished(recording.compiled([outcome], lines))

    again, other = numbers(*first), numbers(*second)

    assert again == (calculate(*first),)
    assert other is None or other == (calculate(*second),)


@given(st.integers(1, 99), st.integers(1, 99))
def test_what_is_not_asked_is_free(first: int, second: int) -> None:
    """Arithmetic alone leaves a recording that holds for every size."""
    recording = Recording()
    x = recording.size(first)
    numbers = finished(recording.compiled([x * 3 + 1, -(-x // 16), 7]))

    found = numbers(second)

    assert found == (second * 3 + 1, -(-second // 16), 7)
    assert not recording.fixed


@pytest.mark.parametrize("ask", [hash, int, float, lambda x: x.bit_length(), lambda x: 2**x, lambda x: x / 2, round])
def test_what_cannot_be_followed_ties_the_recording_to_the_value(ask: Callable[[int], object]) -> None:
    """It is safe, and says so."""
    recording = Recording()
    x = recording.size(5)
    plain = ask(5)

    answer = ask(x)
    numbers = finished(recording.compiled([x]))

    assert answer == plain
    assert not isinstance(answer, Witness)
    assert (numbers(5), numbers(6)) == ((5,), None)
    assert recording.fixed == {"x0"}


def test_a_text_of_a_witness_has_a_mark() -> None:
    """So that what is made of texts can be told from what is not; it ties nothing to the value."""
    recording = Recording()
    x = recording.size(5)

    texts = [f"{x}", f"{x:3d}", str(x), repr([x])]

    assert all(MARK in t for t in texts)
    assert finished(recording.compiled([x]))(6) == (6,)


def test_equal_formulas_are_equal_without_being_asked() -> None:
    """Two ways to the same expression are no assumption."""
    recording = Recording()
    x, y = recording.size(4), recording.size(6)

    same = (x * y == x * y, (x, y) == (x, y), x * 2 <= x * 2)

    assert same == (True, True, True)
    assert finished(recording.compiled([x]))(9, 1) == (9,)


def test_symbolic_dims_take_witnesses_as_ints() -> None:
    """Planning may meet both; what comes out is symbolic."""
    recording = Recording()

    total = Dim.named("n") + recording.size(3)

    assert isinstance(total, Dim)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=3), st.integers(0, 50))
def test_a_division_by_what_may_be_zero_has_no_answer_there(sizes: list[int], other: int) -> None:
    """The one who asks for numbers is told by Python's own error."""
    recording = Recording()
    assume(sizes[0] != 0)
    x = recording.size(sizes[0])
    numbers = finished(recording.compiled([100 // x], native=False))

    if other:
        assert numbers(other) == (100 // other,)
    else:
        with pytest.raises(ZeroDivisionError):
            numbers(0)


_LARGE = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-9, 9)


@given(
    st.sampled_from(CALCULATIONS[:5] + CALCULATIONS[10:]),
    st.tuples(*[st.integers(1, 40)] * 3),
    st.tuples(*[_LARGE] * 3),
)
def test_formulas_in_c_give_what_python_gives_or_nothing(
    formulas: ModuleType, calculate: Callable[[int, int, int], int], first: Sizes, second: Sizes
) -> None:
    """Quotients are rounded down. Where 64 bits do not do there is no answer: such a plan is made from the start."""
    recording = Recording()
    outcome = calculate(*(recording.size(s) for s in first))
    table = finished(recording.table([outcome]))
    numbers = finished(recording.compiled([outcome], native=False))
    assert table is not None

    again, other = [formulas.evaluate(*table, sizes) for sizes in (first, second)]

    assert again == (calculate(*first),)
    try:
        expected = numbers(*second)
    except ZeroDivisionError:
        expected = None
    assert other in (expected, None)
    if expected is not None and max(map(abs, second)) < 1 << 30:
        assert other == expected


def test_lines_that_read_what_is_not_there_are_refused(formulas: ModuleType) -> None:
    """Rather than memory of others."""
    line = array("i", [0, 0, 2]).tobytes()

    for lines, results in ((line, b""), (b"", array("i", [1]).tobytes())):
        with pytest.raises(ValueError, match="before it is there"):
            formulas.evaluate(lines, b"", results, (1,))
    assert formulas.evaluate(line, array("q", [5, 7]).tobytes(), array("i", [3]).tobytes(), (1,)) == (8,)
