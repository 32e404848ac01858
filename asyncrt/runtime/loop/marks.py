"""How far has each stream come, and what do its next commands come after? Answered by the marks put behind commands.

A chunk ends at an event of its own stream; its end is watched, and what the chunk uses is held until it is reached. A
chunk on several streams has marks inside, too, for which other streams of the chunk wait: they are forgotten with the
end that follows them on their stream. All of it runs on the loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from asyncrt.devices.base import Mark, Stream
from asyncrt.errors import RuntimeClosedError
from asyncrt.events import Event, Order, Timeline

from .completion import Completions


class StreamMarks:
    """The marks of all streams that requests use.

    Args:
        streams: In the order of their indices.
        timeline: Moved on as events are reached.
        completions: Is told which events to watch.
        put: Puts a mark behind what is enqueued on a stream; raises if the device is lost.
    """

    def __init__(
        self, streams: Sequence[Stream], timeline: Timeline, completions: Completions, put: Callable[[int], Mark]
    ) -> None:
        self._streams, self._timeline, self._completions, self._put = streams, timeline, completions, put
        self._stamps = [0] * len(streams)
        self._marks: dict[Event, Mark] = {}
        #: The marks inside chunks, by stream and stamp; each with the errors of the commands before it.
        self._inside: list[dict[int, list[BaseException]]] = [{} for _ in streams]
        self._order = Order(len(streams))
        #: What the commands before an event use; held until it is reached.
        self._held: dict[Event, object] = {}
        #: Events that the next chunk on each stream waits for.
        self._waits: list[set[Event]] = [set() for _ in streams]

    def __repr__(self) -> str:
        return f"<StreamMarks {len(self._marks)} not reached, {self.held} hold something>"

    def __len__(self) -> int:
        """How many marks have not been reached."""
        return len(self._marks)

    @property
    def pending(self) -> list[Event]:
        """The events that have not been reached, in the order in which their marks were put."""
        return list(self._marks)

    @property
    def held(self) -> int:
        """For how many events something is held."""
        return len(self._held)

    def next(self, stream: int) -> Event:
        """Return the event that the next mark on *stream* will be."""
        return Event(stream, self._stamps[stream] + 1)

    def waits(self, stream: int) -> frozenset[Event]:
        """Return the events that the next chunk on *stream* waits for."""
        return frozenset(self._waits[stream])

    def close(self) -> None:
        """Nothing is enqueued any more."""
        self._put = _closed

    # What is enqueued.

    def wait_for(self, stream: int, events: Iterable[Event]) -> None:
        """Let the next chunk on *stream* wait for *events* of other streams."""
        pending = self._timeline.pending(events)
        if pending:
            self._waits[stream].update(pending)
            self.wait_inside(stream, pending)

    def wait_inside(self, stream: int, events: Iterable[Event]) -> None:
        """Let what is enqueued next on *stream* wait for *events*, of the same chunk or not reached yet."""
        needed = self._order.needed(stream, events)
        if needed:
            self._streams[stream].wait_for([self._marks[e] for e in needed])
            self._order.waited(stream, needed)

    def inside(self, stream: int) -> Event:
        """Put a mark behind what is enqueued of a chunk so far; its end on that stream follows before long."""
        event, mark = self._mark(stream)
        failed = self._inside[stream][event.stamp] = []
        self._streams[stream].when_reached(mark, lambda error: None if error is None else failed.append(error))
        return event

    def end(self, stream: int, hold: object = None) -> Event:
        """Put a mark behind a chunk, or a part of one, and watch for its end.

        Args:
            hold: What the chunk uses: it is held until the event that this returns is reached.
        """
        self._waits[stream].clear()
        event, mark = self._mark(stream)
        self._completions.watch(self._streams[stream], mark, event)
        self._held[event] = hold
        return event

    def _mark(self, stream: int) -> tuple[Event, Mark]:
        mark = self._put(stream)
        self._stamps[stream] += 1
        event = Event(stream, self._stamps[stream])
        self._marks[event] = mark
        self._order.marked(event)
        return event, mark

    # What is reached.

    def reach(self, event: Event, error: BaseException | None) -> BaseException | None:
        """Note that the end of a chunk, or of a part, is reached; returns the first error of its commands.

        Args:
            error: That of the commands behind the last mark inside.
        """
        self._timeline.advance(event)
        inside = self._inside[event.stream]
        while inside and (stamp := next(iter(inside))) < event.stamp:
            error = next(iter(inside.pop(stamp)), error)
            self._marks.pop(Event(event.stream, stamp), None)
        return error

    def release(self, event: Event) -> None:
        """Forget an event that was reached, and what was held until then."""
        self._marks.pop(event, None)
        self._order.reached(event)
        self._held.pop(event, None)

    def forget_until(self, event: Event) -> None:
        """Note that a stream has come to *event*, whatever is known of the events before it."""
        self._timeline.advance(event)
        for passed in [e for e in self._marks if e.stream == event.stream and e.stamp <= event.stamp]:
            del self._marks[passed]
            self._held.pop(passed, None)
        for stamp in [stamp for stamp in self._inside[event.stream] if stamp <= event.stamp]:
            del self._inside[event.stream][stamp]
        self._order.reached(event)

    def forget_inside(self) -> None:
        """The device is lost: no end follows any more, with which the marks inside chunks would go."""
        for stream, inside in enumerate(self._inside):
            for stamp in inside:
                self._marks.pop(Event(stream, stamp), None)
            inside.clear()


def _closed(stream: int) -> Mark:
    raise RuntimeClosedError("the runtime is closed")
