"""Symbolic dims: what the polynomials say holds for every request."""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrt.dims import Dim, Undetermined, identical

NAMES = ("batch", "seq", "past")
BATCH, SEQ, PAST = (Dim.named(n) for n in NAMES)
COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)

Expression = tuple[int | Dim, Callable[[dict[str, int]], int]]


def _leaf(name: str) -> Expression:
    return Dim.named(name), lambda sizes: sizes[name]


def _constant(value: int) -> Expression:
    return value, lambda sizes: value


def _combine(parts: tuple[Callable[[int, int], int], Expression, Expression]) -> Expression:
    how, (a, of_a), (b, of_b) = parts
    try:
        return how(a, b), lambda sizes: how(of_a(sizes), of_b(sizes))  # type: ignore[arg-type]
    except (Undetermined, ZeroDivisionError):
        return a, of_a


def _expressions(*operators: Callable[[int, int], int]) -> st.SearchStrategy[Expression]:
    leaves = st.sampled_from(NAMES).map(_leaf) | st.integers(-4, 6).map(_constant)
    return st.recursive(
        leaves, lambda inner: st.tuples(st.sampled_from(operators), inner, inner).map(_combine), max_leaves=8
    )


SIZES = st.fixed_dictionaries({n: st.integers(0, 9) for n in NAMES})
ANY = _expressions(operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod)


def _value(dim: int | Dim, sizes: dict[str, int]) -> int:
    """What a polynomial is for given sizes, from its terms alone."""
    if not isinstance(dim, Dim):
        return dim
    total = 0
    for term, factor in dim.terms.items():
        for atom in term:
            if isinstance(atom, str):
                factor *= sizes[atom]
            else:
                factor *= _value(atom.dividend, sizes) // _value(atom.divisor, sizes)
        total += factor
    return total


@given(ANY, SIZES)
@settings(max_examples=300)
def test_arithmetic_agrees_with_ints(expression: Expression, sizes: dict[str, int]) -> None:
    """Whatever is computed of dims is, for any sizes, what ints would have given; division by 0 aside."""
    dim, ints = expression
    try:
        expected = ints(sizes)
    except ZeroDivisionError:
        return

    try:
        got = _value(dim, sizes)
    except ZeroDivisionError:
        return  # 0 * (x // y) keeps nothing of the quotient, its opposite (x // y) - (x // y) neither

    assert expected == got


@given(ANY, ANY, SIZES, st.sampled_from(COMPARISONS))
@settings(max_examples=500)
def test_an_answer_holds_for_every_size(
    a: Expression, b: Expression, sizes: dict[str, int], compare: Callable[[int, int], bool]
) -> None:
    """A comparison agrees with ints or raises `Undetermined`; it never guesses."""
    try:
        answer = compare(a[0], b[0])  # type: ignore[arg-type]
        expected = compare(a[1](sizes), b[1](sizes))
    except (Undetermined, ZeroDivisionError):
        return

    assert expected == answer


@given(_expressions(operator.add, operator.sub, operator.mul), st.integers(1, 9), st.sampled_from(NAMES))
@settings(max_examples=200)
def test_a_product_is_divided_exactly(expression: Expression, factor: int, name: str) -> None:
    """Dividing by a factor that was multiplied in gives the expression back."""
    dim, other = expression[0], factor * Dim.named(name)

    assert identical([dim], [dim * other // other])
    assert dim * other % other == 0


@given(ANY, ANY)
@settings(max_examples=200)
def test_identical_never_raises(a: Expression, b: Expression) -> None:
    """Whether two shapes are written the same is always known, and so is that a shape is like itself."""
    assert identical([a[0]], [a[0]])
    assert identical([a[0]], [b[0]]) == identical([b[0]], [a[0]])


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        ("seq", SEQ),
        ("2*seq + 1", 2 * SEQ + 1),
        ("-seq + 3", 3 - SEQ),
        ("batch*seq", SEQ * BATCH),
        ("((seq - 4)//2) + 1", (SEQ - 4) // 2 + 1),
        ("(7//seq)", 7 // SEQ),
    ],
)
def test_a_dim_is_written_readably(expected: str, got: int | Dim) -> None:
    """The text of a dim is what `explain()` and messages show."""
    assert expected == repr(got)


def test_only_a_plain_name_has_a_name() -> None:
    """`name` is what ties the inputs of a request together; expressions have none."""
    assert SEQ.name == "seq"
    assert [getattr(d, "name", "?") for d in (SEQ + 1, SEQ * BATCH, SEQ // 2)] == [None, None, None]


def test_a_name_that_looks_like_an_expression_is_a_name() -> None:
    """Exporters name dims ``2*seq`` or ``(seq//2)``; that does not make them equal to the expression."""
    with pytest.raises(Undetermined):
        assert Dim.named("(seq//2)") == SEQ // 2
    with pytest.raises(Undetermined):
        assert Dim.named("batch*seq") == BATCH * SEQ


def test_a_quotient_may_be_negative() -> None:
    """(seq - 4) // 2 is -2 for no tokens, so that it is at least 0 is not known; seq // 2 is never negative."""
    with pytest.raises(Undetermined):
        assert (SEQ - 4) // 2 >= 0
    assert SEQ // 2 >= 0
    assert SEQ // 2 != -1


@pytest.mark.parametrize(
    "ask",
    [
        lambda: SEQ == 1,
        lambda: SEQ == 0,
        lambda: SEQ == BATCH,
        lambda: SEQ > 0,
        lambda: SEQ < PAST,
        lambda: 2 * SEQ - BATCH >= 0,
        lambda: bool(SEQ),
        lambda: int(SEQ),
        lambda: range(SEQ),  # type: ignore[call-overload]
        lambda: SEQ % 2 == 0,
    ],
)
def test_what_depends_on_the_size_is_not_answered(ask: Callable[[], object]) -> None:
    """A question that a request may answer either way raises."""
    with pytest.raises(Undetermined):
        ask()


def test_a_dim_takes_numpy_integers() -> None:
    """Shape arithmetic mixes dims with NumPy's integers, from either side."""
    three = np.int64(3)

    assert identical([SEQ + 3] * 2, [SEQ + three, three + SEQ])
    assert identical([3 - SEQ, 3 * SEQ], [three - SEQ, three * SEQ])
    assert [three == SEQ + 4, three < SEQ + 4] == [False, True]


def test_a_dim_of_an_array_is_an_array() -> None:
    """An operation with an array is done for each element."""
    assert [repr(d) for d in SEQ * np.array([3, 4])] == ["3*seq", "4*seq"]
    assert [repr(d) for d in SEQ + np.array([3])] == ["seq + 3"]


def test_floats_are_refused() -> None:
    """Half a dim is no dim: arithmetic with floats is a TypeError and not rounded."""
    for how in (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod):
        with pytest.raises(TypeError):
            how(SEQ, 1.5)
        with pytest.raises(TypeError):
            how(1.5, SEQ)


def test_division_by_zero_is_one() -> None:
    """As with ints."""
    with pytest.raises(ZeroDivisionError):
        SEQ // 0
    with pytest.raises(ZeroDivisionError):
        SEQ % 0


def _again(step: Callable[[int | Dim], int | Dim], start: int | Dim) -> None:
    for _ in range(1000):
        start = step(start)


def test_no_expression_grows_without_end() -> None:
    """Squaring a sum again and again, or dividing what was divided, ends in `Undetermined`, at once."""
    with pytest.raises(Undetermined):
        _again(lambda x: x * x, SEQ + BATCH + PAST + 1)
    with pytest.raises(Undetermined):
        _again(lambda x: (x * x + 1) // 3, SEQ)
