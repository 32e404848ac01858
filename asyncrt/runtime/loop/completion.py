"""How does the event loop learn which events are reached? In batches, by one wake-up for each."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable

from asyncrt.devices.base import Mark, Stream
from asyncrt.events import Event
from asyncrt.loops import tell_loop

from .wake_up import WakeUp


class Completions:
    """Collects what streams report, on whatever thread, and hands it to the loop.

    Args:
        loop: Where `deliver` is called.
        deliver: Called with each event and the error of a failed command, in the order they were reached.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, deliver: Callable[[Event, BaseException | None], None]
    ) -> None:
        self._loop = loop
        self._deliver = deliver
        self._lock = threading.Lock()
        self._arrived: list[tuple[Event, BaseException | None]] = []
        self._thread = threading.get_ident()
        self.wake_up = WakeUp(loop, self._drain)

    def watch(self, stream: Stream, mark: Mark, event: Event) -> None:
        """Deliver *event* when *stream* comes to *mark*."""
        stream.when_reached(mark, lambda error: self._reached(event, error))

    def close(self) -> None:
        """Stop listening; events that arrive later are dropped."""
        with self._lock:  # no thread may write to a file that is another one's by then
            self.wake_up.close()
        self._deliver = _dropped

    def _reached(self, event: Event, error: BaseException | None) -> None:
        with self._lock:
            wake = not self._arrived
            self._arrived.append((event, error))
            file = self.wake_up.file
            if wake and file is not None and threading.get_ident() != self._thread:
                os.eventfd_write(file, 1)
                return
        if wake:
            tell_loop(self._loop, self._drain)

    def _drain(self) -> None:
        with self._lock:
            arrived, self._arrived = self._arrived, []
        for event, error in arrived:
            self._deliver(event, error)


def _dropped(event: Event, error: BaseException | None) -> None:
    """Nobody listens any more."""
