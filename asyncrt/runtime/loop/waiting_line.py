"""Who begins next of those that wait to be at work beside others, and what is each told?

Lower priorities begin first, then earlier deadlines, then who came first.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections.abc import Callable
from typing import Any, Generic, TypeVar

_Begin = TypeVar("_Begin")


class WaitingLine(Generic[_Begin]):
    """Those that wait, each with what begins it and the future by which it is told its outcome."""

    def __init__(self) -> None:
        self._sorted: list[tuple[int, float, int, _Begin, asyncio.Future[Any]]] = []
        self._came = itertools.count()

    def __len__(self) -> int:
        return len(self._sorted)

    def push(self, priority: int, until: float | None, begin: _Begin, future: asyncio.Future[Any]) -> None:
        """Add one; *until* is its deadline."""
        deadline = math.inf if until is None else until
        heapq.heappush(self._sorted, (priority, deadline, next(self._came), begin, future))

    def begin_next(self, room: Callable[[], object], begin: Callable[[_Begin, asyncio.Future[Any]], bool]) -> None:
        """Begin those in front while there is room; whom *begin* refuses is told None, and goes the general way."""
        while self._sorted and room():
            *_, own, future = heapq.heappop(self._sorted)
            if future.done():
                continue
            try:
                if not begin(own, future):
                    future.set_result(None)
            except Exception as error:
                future.set_exception(error)

    def leave(self) -> list[asyncio.Future[Any]]:
        """Let none wait any more; returns what those are told by that have not been told anything."""
        left, self._sorted = self._sorted, []
        return [future for *_, future in left if not future.done()]


def tell(future: asyncio.Future[Any], end: Callable[[], Any]) -> None:
    """End a request and tell its outcome, unless nobody waits for it any more."""
    try:
        outcome = end()
    except Exception as error:
        if not future.done():
            future.set_exception(error)
    else:
        if not future.done():
            future.set_result(outcome)
