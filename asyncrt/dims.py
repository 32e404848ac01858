"""Dims that are not known yet: polynomials over the names that a model gives to its dynamic dims.

`Dim` supports the arithmetic of shape inference, so that one `infer` function serves both a request (all ints) and
loading (some dims symbolic). It never guesses: a question whose answer depends on the actual size raises
`Undetermined`, and the caller treats the answer as unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_Term = tuple[str, ...]


class Undetermined(Exception):
    """A question about a dynamic dim that only a request can answer."""


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
            (term, factor), = self.terms.items()
            if factor == 1 and len(term) == 1:
                return term[0]
        return None

    def _key(self) -> frozenset[tuple[_Term, int]]:
        return frozenset(self.terms.items())

    def same_as(self, other: object) -> bool:
        """Return whether *other* is the same expression. Never raises."""
        return isinstance(other, Dim) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        def show(term: _Term, factor: int) -> str:
            names = "*".join(term)
            return str(factor) if not term else names if factor == 1 else f"{factor}*{names}"

        return " + ".join(show(t, f) for t, f in sorted(self.terms.items(), reverse=True)).replace("+ -", "- ")

    # Arithmetic. A result without names becomes an int again.

    def __add__(self, other: int | Dim) -> int | Dim:
        return _normal(_merge(self.terms, _terms(other), 1))

    def __radd__(self, other: int) -> int | Dim:
        return self + other

    def __sub__(self, other: int | Dim) -> int | Dim:
        return _normal(_merge(self.terms, _terms(other), -1))

    def __rsub__(self, other: int) -> int | Dim:
        return _normal(_merge(_terms(other), self.terms, -1))

    def __neg__(self) -> int | Dim:
        return 0 - self

    def __mul__(self, other: int | Dim) -> int | Dim:
        product: dict[_Term, int] = {}
        for a, fa in self.terms.items():
            for b, fb in _terms(other).items():
                term = tuple(sorted(a + b))
                product[term] = product.get(term, 0) + fa * fb
        return _normal(product)

    def __rmul__(self, other: int) -> int | Dim:
        return self * other

    def __floordiv__(self, other: int | Dim) -> int | Dim:
        """Divide exactly where that is possible; otherwise the quotient is a new name."""
        if isinstance(other, int) and other == 1:
            return self
        divisor = _terms(other)
        if len(divisor) == 1:
            (names, factor), = divisor.items()
            quotient: dict[_Term, int] = {}
            for term, f in self.terms.items():
                rest = _without(term, names)
                if rest is None or factor == 0 or f % factor:
                    break
                quotient[rest] = f // factor
            else:
                return _normal(quotient)
        return Dim.named(f"({self!r})//({other!r})")

    def __rfloordiv__(self, other: int) -> int | Dim:
        return Dim.named(f"({other})//({self!r})")

    def __mod__(self, other: int | Dim) -> int | Dim:
        quotient = self // other
        return self - quotient * other  # exact division leaves 0; otherwise an expression of the quotient's name

    # Questions.

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, int | Dim):
            return NotImplemented
        difference = self - other
        if isinstance(difference, int):
            return difference == 0
        if difference._one_sign():
            return False
        raise Undetermined(f"is {self!r} equal to {other!r}?")

    def __ne__(self, other: object) -> bool:
        return not self == other

    def _one_sign(self) -> bool:
        """A dim is at least 0, so a polynomial of one sign with a constant of that sign is never 0."""
        constant = self.terms.get((), 0)
        signs = {f > 0 for f in self.terms.values()}
        return constant != 0 and len(signs) == 1

    def __lt__(self, other: int | Dim) -> bool:
        difference = self - other
        if isinstance(difference, int):
            return difference < 0
        if all(f > 0 for f in difference.terms.values()):
            return False
        if difference._one_sign():
            return True
        raise Undetermined(f"is {self!r} less than {other!r}?")

    def __ge__(self, other: int | Dim) -> bool:
        return not self < other

    def __gt__(self, other: int | Dim) -> bool:
        return self != other and not self < other

    def __le__(self, other: int | Dim) -> bool:
        return not self > other

    def __bool__(self) -> bool:
        return self != 0

    def __index__(self) -> int:
        raise Undetermined(f"how large is {self!r}?")

    def __int__(self) -> int:
        raise Undetermined(f"how large is {self!r}?")


def _terms(value: int | Dim) -> Mapping[_Term, int]:
    return value.terms if isinstance(value, Dim) else {(): int(value)}


def _merge(a: Mapping[_Term, int], b: Mapping[_Term, int], sign: int) -> dict[_Term, int]:
    result = dict(a)
    for term, factor in b.items():
        result[term] = result.get(term, 0) + sign * factor
    return result


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


def identical(a: Iterable[int | Dim], b: Iterable[int | Dim]) -> bool:
    """Return whether two shapes are written the same. Never raises, unlike ``==`` on dynamic dims."""
    x, y = tuple(a), tuple(b)
    return len(x) == len(y) and all(
        p.same_as(q) if isinstance(p, Dim) else not isinstance(q, Dim) and p == q for p, q in zip(x, y, strict=True)
    )
