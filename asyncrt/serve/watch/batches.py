"""What is noted of batches: how long each of its requests waited for it, and a span."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import Any

from .counts import Counts
from .spans import batch_span, current_span


class BatchWatch:
    """Looks on while the requests of one version of a model are batched."""

    def __init__(self, model: str, version: int, counts: Counts) -> None:
        self._model, self._version, self._counts = model, version, counts

    def came(self) -> tuple[int, Any]:
        """Return when a request came, and its span; None if nobody keeps it."""
        return time.perf_counter_ns(), current_span()

    def running(self, members: list[tuple[int, Any]], sizes: tuple[int, ...]) -> AbstractContextManager[None]:
        """Note how long the members of a batch waited; what is entered while it runs makes its span."""
        now = time.perf_counter_ns()
        for came, _ in members:
            self._counts.queue.add(now - came)
        return batch_span(self._model, self._version, [span for _, span in members], sizes)
