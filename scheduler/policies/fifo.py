"""First come, first served, each chunk to the stream with the least in flight."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from .base import StreamView

# Chunks in flight per stream before the next is held back. Enough that a stream never runs dry while the host
# prepares; few enough that a request that comes later does not wait behind a long queue it cannot jump.
DEPTH = 8


class Policy:
    """Lowest priority number first, then oldest first."""

    def __init__(self) -> None:
        self._ready: list[tuple[int, int, int]] = []
        self._count = 0

    def push(self, request: int, priority: int, last_stream: int | None) -> None:
        self._count += 1
        heapq.heappush(self._ready, (priority, self._count, request))

    def pop(self, streams: Sequence[StreamView]) -> tuple[int, int] | None:
        calmest = min(streams, key=lambda s: (s.depth, s.number))
        if not self._ready or calmest.depth >= DEPTH:
            return None
        return heapq.heappop(self._ready)[2], calmest.number

    def discard(self, request: int) -> None:
        self._ready = [r for r in self._ready if r[2] != request]
        heapq.heapify(self._ready)
