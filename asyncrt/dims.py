"""Dims that are not known yet: polynomials over the names that a model gives to its dynamic dims.

`Dim` supports the arithmetic of shape inference, so that one `infer` function serves both a request (all ints) and
loading (some dims symbolic). It never guesses: a question whose answer depends on the actual size raises
`Undetermined`, and the caller treats the answer as unknown. What it does answer holds for every request, given that
a named dim is at least 0.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping
from typing import TypeAlias

# More than shapes need. Without limits, what a few nodes make of a dim could take for ever to write down.
_MAX_TERMS = 64
_MAX_DEGREE = 32
_MAX_TEXT = 512


class Undetermined(Exception):
    """A question about a dynamic dim that only a request can answer."""


class _Quotient:
    """A quotient that is not exact, rounded down. It stands in a polynomial like a name."""

    __slots__ = ("dividend", "divisor", "may_be_negative", "text")

    def __init__(self, dividend: int | Dim, divisor: int | Dim) -> None:
        self.dividend, self.divisor = dividend, divisor
        self.may_be_negative = not (_at_least(dividend, 0) and _at_least(divisor, 0))
        self.text = f"{_in_brackets(dividend)}//{_in_brackets(divisor)}"
        if len(self.text) > _MAX_TEXT:
            raise Undetermined(f"a quotient of {len(self.text)} characters is too long")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Quotient) and identical(
            (self.dividend, self.divisor), (other.dividend, other.divisor)
        )

    def __hash__(self) -> int:
        return hash(self.text)

    def evaluate(self, sizes: Mapping[str, int]) -> int:
        """Return the quotient where every name has the size given."""
        dividend, divisor = (p.evaluate(sizes) if isinstance(p, Dim) else p for p in (self.dividend, self.divisor))
        return dividend // divisor

    def __str__(self) -> str:
        return f"({self.text})"


_Atom: TypeAlias = "str | _Quotient"
_Term: TypeAlias = "tuple[_Atom, ...]"


class Dim:
    """An integer polynomial over dim names, e.g. ``2*seq + 1``; at least one name is in it."""

    __slots__ = ("terms",)

    def __init__(self, terms: Mapping[_Term, int]) -> None:
        self.terms: dict[_Term, int] = dict(terms)

    @staticmethod
    def named(name: str) -> Dim:
        """Return the dim called *name*."""
        return Dim({(name,): 1})

    @property
    def name(self) -> str | None:
        """The dim's name if it is a plain name, else None."""
        if len(self.terms) == 1:
            ((term, factor),) = self.terms.items()
            if factor == 1 and len(term) == 1 and isinstance(term[0], str):
                return term[0]
        return None

    def names(self) -> set[str]:
        """Return the names in the expression."""
        found: set[str] = set()
        for term in self.terms:
            for atom in term:
                if isinstance(atom, str):
                    found.add(atom)
                else:
                    for part in (atom.dividend, atom.divisor):
                        if isinstance(part, Dim):
                            found |= part.names()
        return found

    def evaluate(self, sizes: Mapping[str, int]) -> int:
        """Return the expression's value where every name has the size given.

        Raises:
            ZeroDivisionError: A divisor in it is 0.
        """
        total = 0
        for term, factor in self.terms.items():
            for atom in term:
                factor *= sizes[atom] if isinstance(atom, str) else atom.evaluate(sizes)
            total += factor
        return total

    def bound(self, most: int) -> int:
        """Return what the expression's absolute value does not exceed where no name is greater than *most*."""
        total = 0
        for term, factor in self.terms.items():
            part = abs(factor)
            for atom in term:
                if isinstance(atom, str):
                    part *= most
                elif isinstance(atom.dividend, Dim):
                    part *= atom.dividend.bound(most) + 1  # rounded down; a divisor is 1 or more
                else:
                    part *= abs(atom.dividend) + 1
            total += part
        return total

    def same_as(self, other: object) -> bool:
        """Return whether *other* is the same expression. Never raises."""
        return isinstance(other, Dim) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    def __repr__(self) -> str:
        def show(term: _Term, factor: int) -> str:
            names = "*".join(map(str, term))
            return str(factor) if not term else {1: "", -1: "-"}.get(factor, f"{factor}*") + names

        ordered = sorted(self.terms.items(), key=lambda item: [str(atom) for atom in item[0]], reverse=True)
        return " + ".join(show(t, f) for t, f in ordered).replace("+ -", "- ")

    # Arithmetic. A result without names becomes an int again.

    def __add__(self, other: int | Dim) -> int | Dim:
        return _merge(self, other, 1) if _is_integer(other) else NotImplemented

    def __radd__(self, other: int) -> int | Dim:
        return self + other

    def __sub__(self, other: int | Dim) -> int | Dim:
        return _merge(self, other, -1) if _is_integer(other) else NotImplemented

    def __rsub__(self, other: int) -> int | Dim:
        return _merge(other, self, -1) if _is_integer(other) else NotImplemented

    def __neg__(self) -> int | Dim:
        return 0 - self

    def __mul__(self, other: int | Dim) -> int | Dim:
        if not _is_integer(other):
            return NotImplemented
        product: dict[_Term, int] = {}
        for a, fa in self.terms.items():
            for b, fb in _terms(other).items():
                term = tuple(sorted(a + b, key=str))
                if len(term) > _MAX_DEGREE or len(product) > _MAX_TERMS:
                    raise Undetermined(f"the product of {len(self.terms)} and {len(_terms(other))} terms is too long")
                product[term] = product.get(term, 0) + fa * fb
        return _normal(product)

    def __rmul__(self, other: int) -> int | Dim:
        return self * other

    def __floordiv__(self, other: int | Dim) -> int | Dim:
        """Divide exactly where that is possible; otherwise the quotient, rounded down, is like a new name."""
        if not _is_integer(other):
            return NotImplemented
        divisor = _terms(other)
        if not any(divisor.values()):
            raise ZeroDivisionError(f"{self!r} divided by 0")
        if len(divisor) == 1:
            ((names, factor),) = divisor.items()
            quotient: dict[_Term, int] = {}
            for term, f in self.terms.items():
                rest = _without(term, names)
                if rest is None or f % factor:
                    break
                quotient[rest] = f // factor
            else:
                return _normal(quotient)
        return Dim({(_Quotient(self, _plain(other)),): 1})

    def __rfloordiv__(self, other: int) -> int | Dim:
        if not _is_integer(other):
            return NotImplemented
        return Dim({(_Quotient(int(other), self),): 1}) if other else 0

    def __mod__(self, other: int | Dim) -> int | Dim:
        """Return what is left of `//`: 0 where that is exact, else an expression that holds the quotient."""
        return self - self // other * other if _is_integer(other) else NotImplemented

    def __rmod__(self, other: int) -> int | Dim:
        return other - other // self * self if _is_integer(other) else NotImplemented

    # Questions.

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, int | Dim | numbers.Integral):
            return NotImplemented
        difference = _merge(self, other, -1)  # type: ignore[arg-type]  # NumPy's integers are numbers.Integral
        if isinstance(difference, int):
            return difference == 0
        if _at_least(difference, 1) or _at_least(-difference, 1):
            return False
        raise Undetermined(f"is {self!r} equal to {other!r}?")

    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    def __lt__(self, other: int | Dim) -> bool:
        return _negative(self - other, f"is {self!r} less than {other!r}?")

    def __gt__(self, other: int | Dim) -> bool:
        return _negative(other - self, f"is {self!r} greater than {other!r}?")

    def __le__(self, other: int | Dim) -> bool:
        return not self > other

    def __ge__(self, other: int | Dim) -> bool:
        return not self < other

    def __bool__(self) -> bool:
        return not self == 0  # noqa: SIM201 - `!=` reads the same but asks twice

    def __index__(self) -> int:
        raise Undetermined(f"how large is {self!r}?")

    def __int__(self) -> int:
        raise Undetermined(f"how large is {self!r}?")


def _is_integer(value: object) -> bool:
    """Floats and arrays are refused: a dim times 0.5 would be a guess, and an array does its own arithmetic."""
    return isinstance(value, int | Dim | numbers.Integral)


def _plain(value: int | Dim) -> int | Dim:
    return value if isinstance(value, Dim) else int(value)


def _terms(value: int | Dim) -> Mapping[_Term, int]:
    return value.terms if isinstance(value, Dim) else {(): int(value)}


def _merge(a: int | Dim, b: int | Dim, sign: int) -> int | Dim:
    result = dict(_terms(a))
    for term, factor in _terms(b).items():
        result[term] = result.get(term, 0) + sign * factor
    return _normal(result)


def _normal(terms: dict[_Term, int]) -> int | Dim:
    kept = {term: factor for term, factor in terms.items() if factor}
    if not kept:
        return 0
    if len(kept) == 1 and () in kept:
        return kept[()]
    return Dim(kept)


def _without(term: _Term, names: _Term) -> _Term | None:
    rest = list(term)
    for name in names:
        if name not in rest:
            return None
        rest.remove(name)
    return tuple(rest)


def _at_least(value: int | Dim, least: int) -> bool:
    """Whether *value* is known to be at least *least* in every request, because no name is less than 0."""
    if isinstance(value, int):
        return value >= least
    for term, factor in value.terms.items():
        if term and (factor < 0 or any(isinstance(a, _Quotient) and a.may_be_negative for a in term)):
            return False
    return value.terms.get((), 0) >= least


def _negative(value: int | Dim, question: str) -> bool:
    if _at_least(value, 0):
        return False
    if _at_least(-value, 1):
        return True
    raise Undetermined(question)


def _in_brackets(value: int | Dim) -> str:
    return f"({value!r})" if isinstance(value, Dim) and len(value.terms) > 1 else f"{value!r}"


def identical(a: Iterable[int | Dim], b: Iterable[int | Dim]) -> bool:
    """Return whether two shapes are written the same. Never raises, unlike ``==`` on dynamic dims."""
    x, y = tuple(a), tuple(b)
    return len(x) == len(y) and all(
        p.same_as(q) if isinstance(p, Dim) else not isinstance(q, Dim) and p == q for p, q in zip(x, y, strict=True)
    )
