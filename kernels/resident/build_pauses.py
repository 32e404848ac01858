"""When do builds go on that no request waits for? While none comes.

A compiler takes as much of a core as a request does: where there are two, requests beside it take half as long again,
for the seconds of a large build. So builds rest as long as requests come, for some time; after that it is likely that
they go on coming, and that what is built is worth it. While somebody waits for a kernel, none rests.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator

LOOK_S = 5e-3  # without a request, after which builds go on
MOST_S = 20.0  # for which they rest, until there were none for so long


class BuildPauses:
    """Lets builds rest while requests come.

    Args:
        pause: Lets them rest, or go on again; may be called on any thread.
        busy: Whether requests are under way, in a turn of the event loop.

    Attributes:
        rested_s: Seconds for which builds have rested, all time.
    """

    def __init__(self, pause: Callable[[bool], object], busy: Callable[[], bool]) -> None:
        self._pause, self._busy = pause, busy
        self.rested_s = 0.0
        self._lock = threading.Lock()  # what was said last is what was told last, on whatever threads
        self._paused = self._came = False
        self._waiting = 0
        #: Seconds for which they may rest, and when it was looked last.
        self._left_s, self._looked = MOST_S, 0.0
        #: Looks again; None while there are no builds.
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        how = "rest" if self._paused else "go on" if self.building else "are none"
        return f"<BuildPauses builds {how}, rested {self.rested_s:.1f} s>"

    @property
    def building(self) -> bool:
        """Whether there are builds."""
        return self._timer is not None

    def begin(self) -> None:
        """There are builds from now on, on the running loop."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._looked >= MOST_S:
            self._left_s = MOST_S
        self._came, self._looked = False, loop.time()
        self._look(loop)

    def end(self) -> None:
        """There are none any more."""
        if self._timer is not None:
            self._looked = self._timer.when()
            self._timer.cancel()
            self._timer = None
        self._set(paused=False)

    @contextlib.contextmanager
    def waited_for(self) -> Iterator[None]:
        """Somebody waits for what is built meanwhile."""
        self._waiting += 1
        self._set(paused=False)
        try:
            yield
        finally:
            self._waiting -= 1

    def touch(self) -> None:
        """A request comes; any thread may say so."""
        self._came = True
        if self.building and self._may:
            self._set(paused=True)

    @property
    def _may(self) -> bool:
        return not self._waiting and self._left_s > 0

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        if self._paused:
            self.rested_s += now - self._looked
            self._left_s -= now - self._looked
        self._looked = now
        came, self._came = self._came or self._busy(), False
        self._set(paused=came and self._may)
        self._timer = loop.call_later(LOOK_S, self._look, loop)

    def _set(self, *, paused: bool) -> None:
        with self._lock:
            if paused is not self._paused:
                self._paused = paused
                self._pause(paused)
