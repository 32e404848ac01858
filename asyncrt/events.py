"""Places on streams, and how far each stream has come.

A stream is in order, so one number per stream says all that is done. The driver's own event objects stay in
`devices/`; everything above speaks of `Event(stream, stamp)`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Event(NamedTuple):
    """A place on a stream: everything enqueued there up to and including `stamp`."""

    stream: int
    stamp: int


def latest(events: Iterable[Event]) -> tuple[Event, ...]:
    """Return at most one event per stream, the newest: waiting for it waits for all of them."""
    newest: dict[int, int] = {}
    for stream, stamp in events:
        if stamp > newest.get(stream, 0):
            newest[stream] = stamp
    return tuple(Event(stream, stamp) for stream, stamp in newest.items())


class Timeline:
    """The newest stamp that each stream is known to have passed."""

    def __init__(self, streams: int) -> None:
        self._reached = [0] * streams

    def __repr__(self) -> str:
        return f"<Timeline reached={self._reached}>"

    @property
    def streams(self) -> int:
        return len(self._reached)

    def advance(self, event: Event) -> None:
        """Note that *event* was reached, and with it all that is before it on its stream."""
        self._reached[event.stream] = max(self._reached[event.stream], event.stamp)

    def passed(self, stream: int) -> int:
        """Return the newest stamp that *stream* is known to have passed."""
        return self._reached[stream]

    def reached(self, event: Event) -> bool:
        """Return whether *event* is known to have been reached."""
        return event.stamp <= self._reached[event.stream]

    def pending(self, events: Iterable[Event]) -> tuple[Event, ...]:
        """Return those of *events* that are not known to have been reached."""
        return tuple(event for event in events if not self.reached(event))


class Order:
    """Which commands of other streams each stream comes after, by the waits so far; says which are needed."""

    def __init__(self, streams: int) -> None:
        #: For each stream the stamps, by stream, that its next command comes after.
        self._behind = [[0] * streams for _ in range(streams)]
        #: The same of events, by stream and stamp, until they are reached; those of a stream in their order.
        self._at: list[dict[int, tuple[int, ...]]] = [{} for _ in range(streams)]

    def __repr__(self) -> str:
        return f"<Order behind={self._behind}>"

    def needed(self, stream: int, events: Iterable[Event]) -> tuple[Event, ...]:
        """Return those of *events*, not reached yet, that nothing on *stream* or among them implies."""
        behind = self._behind[stream]
        ahead = [e for e in latest(events) if e.stream != stream and e.stamp > behind[e.stream]]
        return tuple(
            e for e in ahead if not any(other != e and self._implies(other, e) for other in ahead)
        )

    def waited(self, stream: int, events: Iterable[Event]) -> None:
        """Note that *stream* waits for *events*."""
        behind = self._behind[stream]
        for event in events:
            reach = self._at[event.stream].get(event.stamp, ())
            behind[:] = [max(pair) for pair in zip(behind, reach or behind, strict=True)]
            behind[event.stream] = max(behind[event.stream], event.stamp)

    def marked(self, event: Event) -> None:
        """Note that *event* is behind all that is enqueued on its stream."""
        self._at[event.stream][event.stamp] = tuple(self._behind[event.stream])

    def reached(self, event: Event) -> None:
        """Forget of what *event* came after, and those before it on its stream."""
        at = self._at[event.stream]
        while at and (oldest := next(iter(at))) <= event.stamp:
            del at[oldest]

    def _implies(self, event: Event, other: Event) -> bool:
        reach = self._at[event.stream].get(event.stamp)
        return reach is not None and reach[other.stream] >= other.stamp
