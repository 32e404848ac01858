"""Who goes next of those that wait for what no scheduler gives them, and what is each told?

They go in the order of requests that wait (`asyncrt.scheduler.queue`): by priority, then deadline, then who came first,
and nobody is passed by for ever.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from asyncrt.scheduler.queue import RequestQueue

_Begin = TypeVar("_Begin")


class WaitingLine(Generic[_Begin]):
    """Those that wait, each with what begins it and the future by which it is told."""

    def __init__(self) -> None:
        self._order = RequestQueue()
        self._waiting: dict[int, tuple[_Begin, asyncio.Future[Any]]] = {}
        self._came = itertools.count()

    def __len__(self) -> int:
        return len(self._waiting)

    def push(self, priority: int, until: float | None, begin: _Begin, future: asyncio.Future[Any]) -> None:
        """Add one; *until* is its deadline."""
        number = next(self._came)
        self._order.push(number, priority, until)
        self._waiting[number] = begin, future

    def pop(self) -> tuple[_Begin, asyncio.Future[Any]] | None:
        """Return who goes next of those that still wait, and waits no more; None if there is none."""
        while self._waiting:
            number = next(iter(self._order))
            found = self._waiting.pop(number)
            if found[1].done():
                self._order.discard(number)  # nobody was passed by
            else:
                self._order.take(number)
                return found
        return None

    def begin_next(self, room: Callable[[], object], begin: Callable[[_Begin, asyncio.Future[Any]], bool]) -> None:
        """Begin those in front while there is room; whom *begin* refuses is told None, and goes the general way."""
        while self._waiting and room():
            found = self.pop()
            if found is None:
                return
            own, future = found
            try:
                if not begin(own, future):
                    future.set_result(None)
            except Exception as error:
                future.set_exception(error)

    def leave(self) -> list[asyncio.Future[Any]]:
        """Let none wait any more; returns what those are told by that have not been told anything."""
        left, self._waiting, self._order = self._waiting, {}, RequestQueue()
        return [future for _, future in left.values() if not future.done()]


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
