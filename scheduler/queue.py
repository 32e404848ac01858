"""In which order do requests go that wait for the same thing?

By priority, lower first; inside one priority by deadline, earliest first, and those without one last; then in the order
in which they came. So that nothing starves, the one that has been here longest goes after `PATIENCE` others at the
latest, however urgent those are.
"""

from __future__ import annotations

import bisect
import math
from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

# Requests that may pass the oldest before it goes. The more urgent ones keep at least that many in so many and one
# places, and a request that `n` others are older than goes after `n + 1` times as many at the latest.
PATIENCE = 16


class _Rank(NamedTuple):
    """Where a request stands; the smallest goes first."""

    priority: int
    deadline: float
    order: int
    request: int


class RequestQueue:
    """Requests that wait. Iterating gives them in the order in which they would go; `take` says which one did."""

    def __init__(self) -> None:
        self._sorted: list[_Rank] = []
        #: By request, the oldest first.
        self._places: OrderedDict[int, _Rank] = OrderedDict()
        self._order = 0
        #: How many have passed the oldest.
        self._passed = 0

    def __repr__(self) -> str:
        return f"<RequestQueue {list(self)}>"

    def __len__(self) -> int:
        return len(self._sorted)

    def __iter__(self) -> Iterator[int]:
        oldest = None
        if self._passed >= PATIENCE:
            oldest = next(iter(self._places))
            yield oldest
        for place in self._sorted:
            if place.request != oldest:
                yield place.request

    def push(self, request: int, priority: int, deadline: float | None = None) -> None:
        """Add a request."""
        self._order += 1
        place = _Rank(priority, math.inf if deadline is None else deadline, self._order, request)
        self._places[request] = place
        bisect.insort(self._sorted, place)

    def take(self, request: int) -> None:
        """Remove a request, because it is its turn."""
        self._passed = 0 if request == next(iter(self._places)) else self._passed + 1
        self._remove(request)

    def discard(self, request: int) -> None:
        """Remove a request, if it is here, because it does not want to go any more."""
        if request in self._places:
            if request == next(iter(self._places)):
                self._passed = 0
            self._remove(request)

    def _remove(self, request: int) -> None:
        place = self._places.pop(request)
        del self._sorted[bisect.bisect_left(self._sorted, place)]
