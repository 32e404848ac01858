"""How many requests go on in one turn of the event loop? A few.

The device reports many at once, and each of them may plan, or enqueue a chunk, as soon as it is told. If all did so in
one turn, everything else on the loop (timers, sockets, other people's coroutines) would wait for all of them; so it
waits for a few. More turns cost more, because the loop asks the system for events in each: with 64 callers of a small
model, one request in each turn took a fifth more of the loop's time than all in one, and eight a tenth.
"""

from __future__ import annotations

import asyncio
from collections import deque

AT_ONCE = 8


class Turns:
    """Tells requests to go on, in the order in which that is asked for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[tuple[asyncio.Future[int], int, BaseException | None]] = deque()
        #: How many may still go on in this turn.
        self._left = AT_ONCE

    def go_on(self, future: asyncio.Future[int], answer: int, error: BaseException | None = None) -> None:
        """Set a future's result or exception, in this turn or one that follows; unless it is done by then."""
        if self._left == AT_ONCE:
            self._loop.call_soon(self._turn)
        if self._left:
            self._left -= 1
            settle(future, answer, error)
        else:
            self._waiting.append((future, answer, error))

    def _turn(self) -> None:
        self._left = AT_ONCE
        while self._waiting and self._left:
            future, answer, error = self._waiting.popleft()
            if not future.done():
                self.go_on(future, answer, error)


def settle(future: asyncio.Future[int], answer: int, error: BaseException | None = None) -> None:
    """Set a future's result, or its exception if there is one."""
    if error is None:
        future.set_result(answer)
    else:
        future.set_exception(error)
