"""From the streams' waiting threads to the event loop: finished places arrive in batches, through one wake-up."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

from asyncrt.devices.base import Mark, Stream
from asyncrt.events import Event


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

    def watch(self, stream: Stream, mark: Mark, event: Event) -> None:
        """Deliver *event* when *stream* comes to *mark*."""
        stream.when_reached(mark, lambda error: self._reached(event, error))

    def _reached(self, event: Event, error: BaseException | None) -> None:
        with self._lock:
            wake = not self._arrived
            self._arrived.append((event, error))
        if wake:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        with self._lock:
            arrived, self._arrived = self._arrived, []
        for event, error in arrived:
            self._deliver(event, error)
