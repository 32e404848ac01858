"""The contract of a policy: which of the ready requests goes next, and to which stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class StreamView(NamedTuple):
    """What a policy sees of a stream: `depth` chunks enqueued and not yet reached, which are about so much `work`."""

    number: int
    depth: int
    work: int = 0


class Policy(Protocol):
    """Owns the ready requests. Deterministic: the same calls give the same answers."""

    def push(
        self, request: int, priority: int, last_stream: int | None, deadline: float | None = None, work: int = 1
    ) -> None:
        """A request is ready; lower *priority* goes first, then the earlier *deadline*.

        Args:
            last_stream: Where its previous chunk ran.
            work: How much its chunk is, about: any unit will do, as long as it is the same for all.
        """
        ...

    def pop(self, streams: Sequence[StreamView]) -> tuple[int, int] | None:
        """Return ``(request, stream)`` to launch now, or None to wait for the next happening."""
        ...

    def discard(self, request: int) -> None:
        """Forget a request, if it is here."""
        ...
