"""To the stream that will be done soonest, by the work that it has, unless the stream of the chunk before will do.

A request stays where it was, so that its memory is taken over without a wait, as long as that stream has no more to do
than the others but for the request itself. The order is that of who waits, not of size: to let large requests go first
made a job end no sooner, and small requests wait.

Where requests of different sizes come at random and streams run side by side, it answers sooner than `fifo`, which
counts chunks; tests/scheduler/test_policies.py has the figures.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..queue import RequestQueue
from .base import StreamView
from .fifo import DEPTH


class Policy:
    """The order of `RequestQueue`."""

    def __init__(self) -> None:
        #: In the order in which they would go.
        self.ready = RequestQueue()
        #: By request, the stream of its chunk before, and how much the next one is.
        self._known: dict[int, tuple[int | None, int]] = {}

    def push(
        self, request: int, priority: int, last_stream: int | None, deadline: float | None = None, work: int = 1
    ) -> None:
        self.ready.push(request, priority, deadline)
        self._known[request] = last_stream, work

    def pop(self, streams: Sequence[StreamView]) -> tuple[int, int] | None:
        free = [s for s in streams if s.depth < DEPTH]
        if not free:
            return None
        for request in self.ready:
            self.ready.take(request)
            last, work = self._known.pop(request)
            soonest = min(free, key=lambda s: (s.work, s.depth, s.number))
            for stream in free:
                if stream.number == last and stream.work <= soonest.work + work:
                    return request, stream.number
            return request, soonest.number
        return None

    def discard(self, request: int) -> None:
        self.ready.discard(request)
        self._known.pop(request, None)
