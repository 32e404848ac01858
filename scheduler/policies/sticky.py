"""A request stays on one stream: all its chunks go where the first went."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from .base import StreamView
from .fifo import DEPTH


class Policy:
    """Oldest first; a request whose stream is full lets others pass."""

    def __init__(self) -> None:
        self._ready: deque[tuple[int, int | None]] = deque()

    def push(self, request: int, priority: int, last_stream: int | None) -> None:
        self._ready.append((request, last_stream))

    def pop(self, streams: Sequence[StreamView]) -> tuple[int, int] | None:
        for position, (request, last) in enumerate(self._ready):
            choices = [s for s in streams if last in (None, s.index)]
            calmest = min(choices, key=lambda s: (s.depth, s.index))
            if calmest.depth < DEPTH:
                del self._ready[position]
                return request, calmest.index
        return None

    def discard(self, request: int) -> None:
        self._ready = deque(r for r in self._ready if r[0] != request)
