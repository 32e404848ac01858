"""Work that nobody waits for, of which one piece runs at a time; who begins it may be on any thread.

Requests that run on their caller's thread (`asyncrt.sync`) have no running loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from asyncrt.loops import tell_loop

Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class BackgroundWork:
    """The work of the event loop that it is made on."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._closed = False
        #: The last that was begun.
        self.task: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether some is under way."""
        return self.task is not None and not self.task.done()

    def begin(self, work: Work) -> None:
        """Begin it in the loop's next turn, if none is under way by then."""
        if not self.busy:
            tell_loop(self._loop, self._begin, work)

    def _begin(self, work: Work) -> None:
        if not self.busy and not self._closed:
            self.task = self._loop.create_task(work())

    async def close(self, patience_s: float | None = None) -> None:
        """Stop; returns when none is under way any more, or after *patience_s* seconds."""
        self._closed = True
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task], timeout=patience_s)
