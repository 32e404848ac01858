"""When memory is short, which requests wait for more, and which gives up what it has if all of them wait?"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from asyncrt.errors import OutOfDeviceMemory
from asyncrt.scheduler.state import SchedulerStatistics

from .pending_request import PendingRequest, RunAgain

_ALONE = 2  # times that a request runs again though no other holds memory: it may have held more than it needed


class Shortage:
    """Requests that wait for memory.

    Args:
        waiting: All requests, these and others.
    """

    def __init__(self, waiting: Mapping[int, PendingRequest]) -> None:
        self._waiting = waiting
        #: By request, what it was refused with; most of the time nobody waits.
        self.refused: dict[int, OutOfDeviceMemory] = {}

    def try_again(self) -> None:
        """Let all of them ask for memory again."""
        for _, future in self._pending():
            future.set_result(0)

    def resolve(self, now: SchedulerStatistics) -> None:
        """If all that go on wait for memory, let the least and youngest give up what it has.

        A single one begins again, and takes no more than it needs; if that is too much, it fails.
        """
        pending = dict(self._pending())
        if not pending or now.preparing or now.launching > len(pending):
            return
        youngest = max(pending, key=lambda r: (self._waiting[r].priority, r))
        request = self._waiting[youngest]
        alone = len(pending) == 1 and not now.ready
        if alone and request.alone == _ALONE:
            pending[youngest].set_exception(self.refused[youngest])
        else:
            request.yields, request.frugal = not alone, True
            request.alone += alone
            pending[youngest].set_exception(RunAgain())

    def _pending(self) -> list[tuple[int, asyncio.Future[int]]]:
        """Those that have not been told anything yet."""
        futures = [(r, self._waiting[r].future) for r in self.refused if r in self._waiting]
        return [(r, f) for r, f in futures if f is not None and not f.done()]
