"""When does Python look for unreachable cycles of objects? Where it is told to: while no request is there.

A full collection goes through all objects of the process and takes 30 to 300 ms, in which the event loop stands still.
Python begins one whenever objects have become many, which is when requests of new shapes are there. What references
count is freed at once as ever, and young objects are collected as ever, which takes about a millisecond.
"""

from __future__ import annotations

import asyncio
import gc

QUIET_S = 0.02  # without a request before it is collected
PATIENCE_S = 60.0  # of a process that never rests, before it is collected all the same
_NEVER = 1 << 30

_before: list[tuple[int, int, int]] = []
"""What holds without any of these: once for each, so that the last one to go restores it."""


class Collector:
    """Puts full collections off, for the whole process, until it is closed.

    Args:
        loop: Where `quiet` calls back.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._collected = loop.time()
        _before.append(_before[0] if _before else gc.get_threshold())
        gc.set_threshold(*_before[0][:2], _NEVER)

    @property
    def due(self) -> bool:
        """Whether Python would have begun a full collection by now."""
        return bool(_before) and gc.get_count()[2] > _before[0][2]

    def quiet(self) -> None:
        """No request is there: if none comes, collect."""
        if self._timer is None and self.due:
            self._timer = self._loop.call_later(QUIET_S, self.collect)

    def busy(self) -> None:
        """A request is there: do not, unless it has been too long."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.due and self._loop.time() - self._collected > PATIENCE_S:
            self.collect()

    def collect(self) -> None:
        """Collect now."""
        self._timer = None
        gc.collect()
        self._collected = self._loop.time()

    def close(self) -> None:
        """Let Python do as it did before."""
        if self._timer is not None:
            self._timer.cancel()
        threshold = _before.pop()
        if not _before:
            gc.set_threshold(*threshold)
