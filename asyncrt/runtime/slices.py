"""How is long work cut, so that the event loop can do other things in between?

It is a generator that yields wherever it may be interrupted, and returns what comes of it. Whoever has a loop to share
lets it turn at each of those places; whoever has not runs the generator to its end. It yields after so much work rather
than after so much time, so that the same happens each time.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

_T = TypeVar("_T")

Slices: TypeAlias = Generator[None, None, _T]
"""Work that may be interrupted, and what it returns."""


def finished(work: Slices[_T]) -> _T:
    """Do all of the work now and return what comes of it."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: _T = end.value
            return result
