"""The most urgent first, then first come, first served; each chunk to the stream with the least in flight."""

from __future__ import annotations

from collections.abc import Sequence

from ..queue import RequestQueue
from .base import StreamView

# Chunks in flight per stream before the next is held back. Enough that a stream never runs dry while the host
# prepares; few enough that a request that comes later does not wait behind a long queue it cannot jump.
DEPTH = 8


class Policy:
    """The order of `RequestQueue`."""

    def __init__(self) -> None:
        #: In the order in which they would go.
        self.ready = RequestQueue()

    def push(
        self, request: int, priority: int, last_stream: int | None, deadline: float | None = None, work: int = 1
    ) -> None:
        self.ready.push(request, priority, deadline)

    def pop(self, streams: Sequence[StreamView]) -> tuple[int, int] | None:
        calmest = min(streams, key=lambda s: (s.depth, s.number))
        if calmest.depth >= DEPTH:
            return None
        for request in self.ready:
            self.ready.take(request)
            return request, calmest.number
        return None

    def discard(self, request: int) -> None:
        self.ready.discard(request)
