"""How are the launches of one chunk enqueued on several streams, so that for everybody else it is on one?

The chunk has its own stream, which the policy chose. The other lanes of its plan go to streams that have nothing to
pass at that moment; where there are too few, the rest go to the chunk's own, in the order of the steps, for which the
plan is right as well. Other streams begin behind a mark on the chunk's own, which is behind all that the chunk waits
for and behind its inputs; and before its results are read, the chunk's own stream waits for the others. So the event at
its end is behind all of it.

What a failed command does to the streams that wait for it differs by driver. So each of the streams has an event at the
end of its part, too: memory is not free before all of them are reached, and the chunk fails with whichever does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from asyncrt.devices.base import Prepared
from asyncrt.events import Event
from asyncrt.runtime.loop.dispatcher import Dispatcher
from asyncrt.runtime.plan.bound_plan import BoundPlan
from asyncrt.runtime.watch.watched import announced
from asyncrt.scheduler.lanes import START, Lanes


class LaneLaunches:
    """The launches of one chunk, while they are enqueued.

    Args:
        streams: By lane, the chunk's own first.
        opened: The streams on which something may be that no event is behind; the chunk's own is one.
        events: Gets the event at the end of each of the other streams' parts.
    """

    def __init__(
        self, dispatcher: Dispatcher, bound: BoundPlan, streams: Sequence[int], opened: set[int], events: list[Event]
    ) -> None:
        assert bound.plan.lanes is not None
        self._dispatcher = dispatcher
        self._bound = bound
        self._lanes = bound.plan.lanes
        self._streams, self._opened, self._events = streams, opened, events
        #: By segment, where another stream waits for its end.
        self._marks: dict[int, Event] = {}

    def enqueue(self, request: int, memory: Sequence[Any], prepared: Sequence[Prepared] | None) -> None:
        """Enqueue them with the marks and waits between them; *prepared* are those of each segment."""
        dispatcher, lanes, of = self._dispatcher, self._lanes, self._streams
        own = of[0]
        awaited = self._awaited(lanes)
        last = {of[s.lane]: number for number, s in enumerate(lanes.segments)}
        del last[own]
        ends: list[Event] = []
        self._mark(START, own, START in awaited)
        for number, segment in enumerate(lanes.segments):
            stream = of[segment.lane]
            self._opened.add(stream)
            self._wait(stream, segment.waits)
            target, steps = dispatcher.streams[stream], self._bound.steps[segment.begin : segment.end]
            if prepared is None:
                target.launch_all(steps, memory)
            else:
                prepared[number].launch(announced(target, steps, memory))
            if last.get(stream) == number:
                self._marks[number] = event = dispatcher.abandon(stream, self._bound)
                self._opened.discard(stream)
                self._events.append(event)
                ends.append(event)
            else:
                self._mark(number, stream, number in awaited)
        self._wait(own, lanes.joins)
        dispatcher.ends_beside(request, ends)

    def _awaited(self, lanes: Lanes) -> set[int]:
        """Return the segments for which another stream waits."""
        of, segments = self._streams, lanes.segments

        def stream(segment: int) -> int:
            return of[0] if segment == START else of[segments[segment].lane]

        awaited = {w for s in segments for w in s.waits if stream(w) != of[s.lane]}
        return awaited | {w for w in lanes.joins if stream(w) != of[0]}

    def _mark(self, segment: int, stream: int, awaited: bool) -> None:
        if awaited:
            self._marks[segment] = self._dispatcher.marks.inside(stream)

    def _wait(self, stream: int, segments: Iterable[int]) -> None:
        """Let *stream* wait for the ends of segments on others."""
        self._dispatcher.marks.wait_inside(stream, [self._marks[s] for s in segments if s in self._marks])
