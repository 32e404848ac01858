"""When does a build go on that makes requests faster, but that none of them needs? While none comes.

A compiler takes as much of a core as a request does: where there are two, requests beside it take half as long again,
for the seconds of a large build. So it rests as long as requests come, for some time; after that it is likely that they
go on coming, and that what is built is worth it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

LOOK_S = 5e-3  # without a request, after which a build goes on
MOST_S = 20.0  # for which one rests in all


class BuildPauses:
    """Lets builds rest while requests come.

    Args:
        pause: Lets them rest, or go on again; may be called on any thread.
        busy: Whether requests are under way, in a turn of the event loop.
    """

    def __init__(self, pause: Callable[[bool], object], busy: Callable[[], bool]) -> None:
        self._pause, self._busy = pause, busy
        #: Whether there is a build that may rest; else nobody need say that requests come.
        self.building = False
        self._paused = self._came = False
        self._rested, self._looked = 0.0, 0.0

    def __repr__(self) -> str:
        how = "rests" if self._paused else "goes on" if self.building else "nothing is built"
        return f"<BuildPauses {how}, rested {self._rested:.1f} s>"

    @contextlib.contextmanager
    def during(self) -> Iterator[None]:
        """Let a build rest from time to time while this lasts."""
        loop = asyncio.get_running_loop()
        self.building, self._came, self._rested, self._looked = True, False, 0.0, loop.time()
        timer = loop.call_soon(lambda: None)

        def look() -> None:
            nonlocal timer
            self._look(loop.time())
            timer = loop.call_later(LOOK_S, look)

        look()
        try:
            yield
        finally:
            timer.cancel()
            self.building = False
            self._set(paused=False)

    def touch(self) -> None:
        """A request comes."""
        self._came = True
        if self._rested < MOST_S:
            self._set(paused=True)

    def _look(self, now: float) -> None:
        if self._paused:
            self._rested += now - self._looked
        self._looked = now
        came, self._came = self._came or self._busy(), False
        self._set(paused=came and self._rested < MOST_S)

    def _set(self, *, paused: bool) -> None:
        if paused is not self._paused:
            self._paused = paused
            self._pause(paused)
