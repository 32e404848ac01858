"""A request stays on one stream: all its chunks go where the first went."""

from __future__ import annotations

from collections.abc import Sequence

from ..queue import RequestQueue
from .base import StreamView
from .fifo import DEPTH


class Policy:
    """The order of `RequestQueue`; a request whose stream is full lets others pass."""

    def __init__(self) -> None:
        self._ready = RequestQueue()
        #: By request, the stream of its chunk before.
        self._last: dict[int, int | None] = {}

    def push(
        self, request: int, priority: int, last_stream: int | None, deadline: float | None = None, work: int = 1
    ) -> None:
        self._ready.push(request, priority, deadline)
        self._last[request] = last_stream

    def pop(self, streams: Sequence[StreamView]) -> tuple[int, int] | None:
        for request in self._ready:
            last = self._last[request]
            choices = [s for s in streams if last in (None, s.number)]
            calmest = min(choices, key=lambda s: (s.depth, s.number))
            if calmest.depth < DEPTH:
                self._ready.take(request)
                del self._last[request]
                return request, calmest.number
        return None

    def discard(self, request: int) -> None:
        self._ready.discard(request)
        self._last.pop(request, None)
