"""What of a request's shape decides whom it may share a batch with, and how much padding that takes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import attrs


@attrs.frozen
class BatchShape:
    """The shape of a request without its rows.

    Attributes:
        exact: What must be equal in a batch.
        sizes: The dims that may be padded.
        terms: How many elements one row has: the sum, over these, of the factor times the sizes at these places.
        per_row: That number.
        kind: The class of shapes that it is in: alike in what must be equal, and about as large.
    """

    exact: Hashable
    sizes: tuple[int, ...] = ()
    terms: tuple[tuple[int, tuple[int, ...]], ...] = ((1, ()),)
    per_row: int = attrs.field(init=False, eq=False)
    kind: Hashable = attrs.field(init=False, eq=False)

    def __attrs_post_init__(self) -> None:
        per_row = self.per_row_of(self.sizes)
        object.__setattr__(self, "per_row", per_row)
        object.__setattr__(self, "kind", (self.exact, per_row.bit_length()))

    def per_row_of(self, sizes: tuple[int, ...]) -> int:
        """Return how many elements one row has with other sizes."""
        total = 0
        for factor, places in self.terms:
            for i in places:
                factor *= sizes[i]
            total += factor
        return total

    def joined(self, other: BatchShape) -> BatchShape:
        """Return the form that this one and *other*, which is equal in what must be, both fit in."""
        sizes = largest(self.sizes, other.sizes)
        # Mostly it is one of the two, which is there already.
        return other if sizes == other.sizes and self.terms == other.terms else self.padded_to(sizes)

    def padded_to(self, sizes: tuple[int, ...]) -> BatchShape:
        """Return the form with other sizes."""
        return self if sizes == self.sizes else BatchShape(self.exact, sizes, self.terms)


def largest(one: Iterable[int], other: Iterable[int]) -> tuple[int, ...]:
    """Return the sizes that both fit in."""
    return tuple(map(max, one, other))
