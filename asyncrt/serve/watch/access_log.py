"""One line of JSON for each request. A thread writes it, so that nobody waits for a disk."""

from __future__ import annotations

import json
import logging
import logging.handlers
import queue
import time
from typing import Any, TextIO

from asyncrt.serve.errors import situation_of

from .counts import Clock

_MOST_WAITING = 65536  # lines; more are dropped rather than that requests wait


class AccessLog:
    """Where requests are noted.

    Args:
        to: Lines go there; None is no log.
    """

    def __init__(self, to: TextIO | None) -> None:
        self._listener: logging.handlers.QueueListener | None = None
        if to is None:
            return
        self._lines: queue.Queue[Any] = queue.Queue(_MOST_WAITING)
        handler = logging.StreamHandler(to)
        self._listener = logging.handlers.QueueListener(self._lines, handler)
        self._listener.start()

    def request(
        self, model: str, version: int, door: str, clock: Clock, took_ns: int, error: BaseException | None
    ) -> None:
        """Note a request that has ended."""
        if self._listener is None:
            return
        line = {
            "time": round(time.time(), 6),
            "door": door,
            "model": model,
            "version": version,
            "status": "OK" if error is None else _status(error),
            "ms": round(took_ns / 1e6, 3),
            **{f"{stage}_ms": round(ns / 1e6, 3) for stage, ns in clock.stages.items()},
            "rows": clock.batch,
        }
        record = logging.LogRecord("asyncrt.access", logging.INFO, "", 0, json.dumps(line), None, None)
        try:
            self._lines.put_nowait(record)
        except queue.Full:
            return

    def close(self) -> None:
        """Write what waits."""
        if self._listener is not None:
            self._listener.stop()


def _status(error: BaseException) -> str:
    return situation_of(error).name if isinstance(error, Exception) else "CANCELLED"
