"""From the device to the event loop: finished places arrive in batches, through one wake-up.

A stream's thread that waits for it wakes the loop, or the driver does, where the device has reports to collect.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

from asyncrt.devices.base import Mark, Reports, Stream
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
        self._reports: Reports | None = None
        self._collecting = False

    def watch(self, stream: Stream, mark: Mark, event: Event) -> None:
        """Deliver *event* when *stream* comes to *mark*."""
        stream.when_reached(mark, lambda error: self._reached(event, error))

    def listen(self, reports: Reports) -> None:
        """Deliver what a device reports, too, until `close()`."""
        self._reports = reports
        self._loop.add_reader(reports.file, self._collect, reports)

    def close(self) -> None:
        """Listen no more."""
        if self._reports is not None:
            self._loop.remove_reader(self._reports.file)
            self._reports = None

    def _collect(self, reports: Reports) -> None:
        self._collecting = True
        try:
            reports.collect()
        finally:
            self._collecting = False
            self._drain()

    def _reached(self, event: Event, error: BaseException | None) -> None:
        with self._lock:
            wake = not self._arrived and not self._collecting
            self._arrived.append((event, error))
        if wake:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        with self._lock:
            arrived, self._arrived = self._arrived, []
        for event, error in arrived:
            self._deliver(event, error)
