"""The largest first, each to the stream that will be done soonest: what decides when everything is done goes ahead.

For requests of very different sizes that are to be over as soon as possible all together, such as a job over a data
set. A small one waits behind large ones that came later, but not for ever (`RequestQueue`).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..queue import RequestQueue
from .base import StreamView
from .fifo import DEPTH


class Policy:
    """The order of `RequestQueue`, the largest first among those of one priority and deadline."""

    def __init__(self) -> None:
        self._ready = RequestQueue()

    def push(
        self, request: int, priority: int, last_stream: int | None, deadline: float | None = None, work: int = 1
    ) -> None:
        self._ready.push(request, priority, deadline, work)

    def pop(self, streams: Sequence[StreamView]) -> tuple[int, int] | None:
        free = [s for s in streams if s.depth < DEPTH]
        if not free:
            return None
        soonest = min(free, key=lambda s: (s.work, s.depth, s.number))
        for request in self._ready:
            self._ready.take(request)
            return request, soonest.number
        return None

    def discard(self, request: int) -> None:
        self._ready.discard(request)
