"""When does Python look for unreachable cycles of objects? Where it is told to: while no request is there.

A full collection goes through all objects of the process and takes 30 to 300 ms, in which the event loop stands still.
Python begins one whenever objects have become many, which is when requests of new shapes are there. What references
count is freed at once as ever, and young objects are collected as ever; those that are neither young nor old are
collected more often, so that each time takes a third of a millisecond rather than one.

Python does as it likes while no request is there. Each rest ends with a collection, if one is due, and what is left
then, models and modules above all, is frozen: collections until the next rest do not go through it. A process that
never rests is collected now and then all the same, so that what cannot be reached stays bounded.
"""

from __future__ import annotations

import asyncio
import gc

QUIET_S = 0.02  # without a request before it is collected
PATIENCE_S = 60.0  # of a process that never rests, before it is collected all the same
MANY = 768  # collections of those neither young nor old, some thousand each, after which it is, too
_MIDDLE = 2  # collections of young ones before one of those, rather than ten
_NEVER = 1 << 30
OWN = gc.get_freeze_count()
"""What the interpreter has frozen itself: hundreds of objects with Python 3.12, none with others."""


class ProcessCollections:
    """What holds for all runtimes of the process at once.

    Attributes:
        open: The collectors there are.
        busy: Those among them with a request.
        threshold: What the process had before one of them was busy.
        frozen: Whether what is frozen is frozen by them.
    """

    def __init__(self) -> None:
        self.open: set[Collector] = set()
        self.busy: set[Collector] = set()
        self.threshold = gc.get_threshold()
        self.frozen = False

    def begin(self, collector: Collector) -> None:
        """It has a request."""
        if not self.busy:
            self.threshold = gc.get_threshold()
            gc.set_threshold(self.threshold[0], min(_MIDDLE, self.threshold[1]), _NEVER)
        self.busy.add(collector)

    def end(self, collector: Collector) -> None:
        """It has none."""
        if collector in self.busy:
            self.busy.remove(collector)
            if not self.busy:
                gc.set_threshold(*self.threshold)

    def close(self, collector: Collector) -> None:
        """It is closed."""
        self.end(collector)
        self.open.discard(collector)
        if self.frozen and not self.open:
            gc.unfreeze()
            self.frozen = False

    def collect(self, *, whole: bool) -> None:
        """Collect now; what was frozen before, too, if *whole*."""
        if whole and self.frozen:
            gc.unfreeze()
            self.frozen = False
        gc.collect()
        if not self.frozen and gc.get_freeze_count() <= OWN:  # what somebody else has frozen stays theirs
            gc.freeze()
            self.frozen = True


PROCESS = ProcessCollections()


class Collector:
    """Puts full collections off while its runtime has requests, until it is closed.

    Args:
        loop: Whose clock it goes by.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        #: Since when there is no request; None while there is one.
        self.quiet_since: float | None = None
        self._collected = loop.time()
        PROCESS.open.add(self)

    @property
    def due(self) -> bool:
        """Whether Python would have begun a full collection by now, about."""
        _, middle, old = PROCESS.threshold
        return gc.get_count()[2] > old * max(1, (middle + 1) // (_MIDDLE + 1))

    def quiet(self) -> None:
        """No request is there: if none comes, rest."""
        self.quiet_since = self._loop.time()
        self._watch()

    def busy(self) -> None:
        """A request is there."""
        self.quiet_since = None
        if self not in PROCESS.busy:
            PROCESS.begin(self)
            self._watch()

    def _watch(self) -> None:
        # One that goes on, because to set and cancel one for each request takes longer than a small request should.
        if self._timer is None:
            self._timer = self._loop.call_later(QUIET_S, self.look)

    def look(self) -> None:
        """Collect if it is time to; while there are requests, look again later."""
        self._timer = None
        now = self._loop.time()
        if self.quiet_since is not None and now - self.quiet_since >= QUIET_S:
            if self.due:
                self._collect(whole=True)
            PROCESS.end(self)
            return
        if self.due and (now - self._collected >= PATIENCE_S or gc.get_count()[2] > MANY):
            self._collect(whole=False)
        self._watch()

    def _collect(self, *, whole: bool) -> None:
        PROCESS.collect(whole=whole)
        self._collected = self._loop.time()

    def close(self) -> None:
        """Let Python do as it did before."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        PROCESS.close(self)
