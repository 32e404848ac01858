"""A request stays on one stream: all its chunks go where the first went."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from .base import StreamView
from .fifo import DEPTH


class Policy:
    """Lowest priority number first, then oldest first; a request whose stream is full lets others pass."""

    def __init__(self) -> None:
        #: (priority, order, request, last stream), in the order in which they go.
        self._ready: list[tuple[int, int, int, int | None]] = []
        self._count = 0

    def push(self, request: int, priority: int, last_stream: int | None) -> None:
        self._count += 1
        bisect.insort(self._ready, (priority, self._count, request, last_stream))

    def pop(self, streams: Sequence[StreamView]) -> tuple[int, int] | None:
        for position, (_, _, request, last) in enumerate(self._ready):
            choices = [s for s in streams if last in (None, s.number)]
            calmest = min(choices, key=lambda s: (s.depth, s.number))
            if calmest.depth < DEPTH:
                del self._ready[position]
                return request, calmest.number
        return None

    def discard(self, request: int) -> None:
        self._ready = [r for r in self._ready if r[2] != request]
