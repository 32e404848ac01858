"""How many requests go on in one turn of the event loop? One of each kind: one that is under way, and one that begins.

The device reports many at once, and each of them may plan, or enqueue a chunk, as soon as it is told. If all did so in
one turn, everything else on the loop (timers, sockets, other people's coroutines) would wait for all of them; so it
waits for one. Who ends and begins the next does both in one turn: a turn in which the loop asks the system for events
takes about ten microseconds, and one more for each request took a fifth more of the loop's time.
"""

from __future__ import annotations

import asyncio
from collections import deque

from .pending_request import internal


class Turns:
    """Tells requests of one kind to go on, in the order in which that is asked for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[tuple[asyncio.Future[int], int, BaseException | None]] = deque()
        #: Whether this turn has its request.
        self._taken = False

    def go_on(self, future: asyncio.Future[int], answer: int, error: BaseException | None = None) -> None:
        """Set a future's result or exception, in this turn or one that follows; unless it is done by then."""
        if self._taken:
            self._waiting.append((future, answer, error))
        else:
            self._taken = True
            try:
                settle(future, answer, error)
            finally:  # whatever becomes of this one, others wait
                self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._taken = False
        while self._waiting and not self._taken:
            future, answer, error = self._waiting.popleft()
            try:
                if not future.done():
                    self.go_on(future, answer, error)
            except Exception as failure:
                future.set_exception(internal(failure, "a request could not be told to go on"))


def settle(future: asyncio.Future[int], answer: int, error: BaseException | None = None) -> None:
    """Set a future's result, or its exception if there is one."""
    if error is None:
        future.set_result(answer)
    else:
        future.set_exception(error)
