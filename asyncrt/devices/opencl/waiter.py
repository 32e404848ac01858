"""One thread per stream that waits for marks, in order, and says when they are reached.

A stream is in order, so one thread for each sees every completion in time. A callback of pyopencl takes a thread for
each event, and would gain nothing.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from asyncrt.devices.base import Reached


class Waiter:
    """Waits for one stream's marks on a thread of its own, from the first of them to `close()`."""

    def __init__(self, name: str) -> None:
        self._inbox: queue.SimpleQueue[tuple[Callable[[], None], Reached] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._started = False

    def watch(self, wait: Callable[[], None], callback: Reached) -> None:
        """Call *callback* after *wait* returned, or with what it raised."""
        self._inbox.put((wait, callback))
        if not self._started:
            self._started = True
            self._thread.start()

    def close(self) -> None:
        """Finish what is being watched and end the thread. Blocks."""
        self._inbox.put(None)
        if self._started:
            self._thread.join()

    def _run(self) -> None:
        while (item := self._inbox.get()) is not None:
            wait, callback = item
            error: BaseException | None = None
            try:
                wait()
            except Exception as failure:
                error = failure
            callback(error)
            del item, wait, callback, error  # hold nothing of a finished inference while idle
