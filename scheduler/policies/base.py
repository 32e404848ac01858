"""The contract of a policy: which of the ready requests goes next, and to which stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class StreamView(NamedTuple):
    """What a policy sees of a stream: `depth` chunks enqueued and not yet reached."""

    number: int
    depth: int


class Policy(Protocol):
    """Owns the ready requests. Deterministic: the same calls give the same answers."""

    def push(self, request: int, priority: int, last_stream: int | None, deadline: float | None = None) -> None:
        """A request is ready; lower *priority* goes first, then the earlier *deadline*. *last_stream* is where its
        previous chunk ran.
        """
        ...

    def pop(self, streams: Sequence[StreamView]) -> tuple[int, int] | None:
        """Return ``(request, stream)`` to launch now, or None to wait for the next happening."""
        ...

    def discard(self, request: int) -> None:
        """Forget a request, if it is here."""
        ...
