"""Which shapes have run lately? A batch that takes one of them has its plan already.

Batches of many lengths and any number of rows have many shapes, and a new one costs the host more than a little padding
costs the device. A shape that has run is one that the model takes, which one rounded up may not be.
"""

from __future__ import annotations

from collections.abc import Hashable

from asyncrt.lru import LruCache

from .batch_shape import BatchShape

_SHAPES = 128  # remembered: half as many as plans are kept


class RecentShapes:
    """The latest shapes of batches."""

    def __init__(self) -> None:
        self._latest: LruCache[tuple[Hashable, int, tuple[int, ...]], BatchShape] = LruCache(_SHAPES)

    def saw(self, form: BatchShape, rows: int) -> None:
        """A batch of that shape has run."""
        self._latest.put((form.exact, rows, form.sizes), form)

    def fitting(self, form: BatchShape, rows: int, most: float) -> BatchShape:
        """Return the smallest that a batch of this form fits in, if its work is at most *most*; else the form."""
        if (form.exact, rows, form.sizes) in self._latest:
            return form
        best, least = form, most / max(rows, 1)
        for (exact, other, sizes), known in self._latest.items():
            alike = other == rows and exact == form.exact and known.per_row <= least
            if alike and all(size >= own for size, own in zip(sizes, form.sizes, strict=True)):
                best, least = known, known.per_row
        return best
