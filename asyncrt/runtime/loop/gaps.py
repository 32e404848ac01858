"""When may work that nobody waits for have the interpreter? Early in the gaps between requests.

A thread that holds the interpreter when a request comes keeps it waiting, for as long as its step takes or for five
milliseconds, whichever is less. So it begins when a request has just ended, and goes on for a fraction of what such
gaps last, all but about one in a hundred. Where nobody listens nothing is noted.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

_SHARE = 0.25  # of a gap, in which a step of work may begin
_LEAST_S = 8e-4  # that a gap has to last to be of use
_FREE_S = 0.5  # without a request, after which nobody is expected
_SHORTER, _LONGER = 0.5, 1.006  # so that one gap in a hundred and seventeen is shorter than is expected


class Gaps:
    """The times between the requests of a device.

    Args:
        clock: Returns now in seconds; is called on any thread.

    Attributes:
        watched: How many listen; `begin()` and `end()` need not be called while there is none.
        expected_s: How long all but a few gaps last.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.watched = 0
        self.expected_s = math.inf
        #: Since when no request is there; None while one is.
        self._since: float | None = -math.inf
        self._bells: list[threading.Event] = []

    def __enter__(self) -> None:
        """Listen from now on; on the loop's thread, as its end."""
        if not self.watched:
            self.expected_s, self._since = math.inf, -math.inf
        self.watched += 1

    def __exit__(self, *error: object) -> None:
        self.watched -= 1

    def begin(self) -> None:
        """A request comes, on the loop's thread or one that has its turn."""
        since, self._since = self._since, None
        if since is not None:
            gap = self._clock() - since
            if gap < self.expected_s:
                self.expected_s = gap if self.expected_s == math.inf else self.expected_s * _SHORTER
            else:
                self.expected_s = min(self.expected_s * _LONGER, gap)

    def end(self) -> None:
        """No request is there any more."""
        self._since = self._clock()
        self.ring()

    def ring(self) -> None:
        """Let those who wait look again."""
        while self._bells:
            self._bells.pop().set()

    @property
    def useful(self) -> bool:
        """Whether gaps are long enough to do something in them."""
        return self.expected_s >= _LEAST_S

    @property
    def open(self) -> bool:
        """Whether a step of work may begin now."""
        since = self._since
        if since is None:
            return False
        gone = self._clock() - since
        return gone < self.expected_s * _SHARE or gone >= _FREE_S

    def wait(self, seconds: float, unless: threading.Event) -> None:
        """Return when the next gap begins, after `ring()`, or when so many seconds have passed. Blocks.

        Args:
            unless: Nobody waits once this is set, if `ring()` is called after that.
        """
        bell = threading.Event()
        self._bells.append(bell)
        if not self.open and not unless.is_set():
            bell.wait(seconds)
