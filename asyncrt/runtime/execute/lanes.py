"""How are the commands of one chunk enqueued on several streams, so that for everybody else it is on one?

The chunk has its own stream, which the policy chose. The other lanes of its plan go to streams that have nothing to
pass at that moment; where there are too few, the rest go to the chunk's own, in the order of the steps, for which the
plan is right as well. Other streams begin behind a mark on the chunk's own, which is behind all that the chunk waits
for and behind its inputs; and before its results are read, the chunk's own stream waits for the others. So the event at
its end is behind all of it.

What a failed command does to the streams that wait for it differs by driver. So each of the streams has an event at the
end of its part, too: memory is not free before all of them are reached, and the chunk fails with whichever does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from asyncrt.devices.base import Prepared
from asyncrt.events import Event
from asyncrt.graph.ir import Program
from asyncrt.layout import Array
from asyncrt.runtime.loop.dispatcher import Dispatcher
from asyncrt.runtime.plan.bound_plan import BoundPlan
from asyncrt.runtime.plan.chunk_plan import PlanStep
from asyncrt.runtime.watch.watched import WatchedStream, announced, one_by_one
from asyncrt.scheduler.lanes import START, Lanes

from .prepared_launches import Presets
from .transfers import Arriving, fetch, upload


class ChunkOnLanes:
    """One chunk, while it is enqueued.

    Args:
        streams: By lane, the chunk's own first.
        events: Gets the event at the end of each of the other streams' parts.
    """

    def __init__(self, dispatcher: Dispatcher, bound: BoundPlan, streams: Sequence[int], events: list[Event]) -> None:
        assert bound.plan.lanes is not None
        self._dispatcher = dispatcher
        self._bound = bound
        self._lanes = bound.plan.lanes
        self._streams = streams
        self._events = events
        #: The streams on which something may be that no event is behind.
        self.open = {streams[0]}
        self._marks: dict[int, Event] = {}

    def enqueue(
        self,
        request: int,
        program: Program,
        arenas: Sequence[Any],
        arrays: Mapping[int, Array],
        presets: Presets | None,
    ) -> Arriving:
        """Enqueue the chunk; returns as `executor.enqueue` does."""
        dispatcher, bound, own = self._dispatcher, self._bound, self._streams[0]
        with contextlib.ExitStack() as stack:
            parts = None
            if isinstance(dispatcher.streams[own], WatchedStream):
                self._tell(stack, request, program, arenas)
            if presets is not None and not one_by_one(dispatcher.streams[own]):
                parts = presets.parts(bound, arenas)
            upload(bound, dispatcher.streams[own], arenas, arrays)
            self._launch(request, arenas, parts)
            return fetch(bound, dispatcher.streams[own], arenas, arrays)

    def _tell(
        self, stack: contextlib.ExitStack, request: int, program: Program, arenas: Sequence[Any]
    ) -> None:
        """Tell streams that are watched which steps follow on each."""
        plan, streams = self._bound.plan, self._dispatcher.streams
        own = streams[self._streams[0]]
        assert isinstance(own, WatchedStream)
        steps: dict[int, list[PlanStep]] = {number: [] for number in self._streams}
        for step, lane in zip(plan.steps, self._lanes.of_steps(), strict=True):
            steps[self._streams[lane]].append(step)
        stack.enter_context(own.chunk(request, program, plan, arenas, steps[self._streams[0]]))
        for number in sorted(set(self._streams[1:]) - {self._streams[0]}):
            beside = streams[number]
            assert isinstance(beside, WatchedStream)
            stack.enter_context(beside.beside(own, steps[number]))

    def _launch(self, request: int, arenas: Sequence[Any], parts: Sequence[Prepared] | None) -> None:
        """Enqueue the steps with the marks and waits between them."""
        dispatcher, lanes, of = self._dispatcher, self._lanes, self._streams
        own = of[0]
        awaited = self._awaited(lanes)
        last = {of[s.lane]: number for number, s in enumerate(lanes.segments)}
        del last[own]
        ends: list[Event] = []
        self._mark(START, own, START in awaited)
        for number, segment in enumerate(lanes.segments):
            stream = of[segment.lane]
            self.open.add(stream)
            self._wait(stream, segment.waits)
            target, steps = dispatcher.streams[stream], self._bound.steps[segment.begin : segment.end]
            if parts is not None:
                parts[number].launch(announced(target, steps, arenas))
            else:
                target.launch_all(steps, arenas)
            if last.get(stream) == number:
                self._marks[number] = event = dispatcher.abandon(stream, self._bound)
                self.open.discard(stream)
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
            self._marks[segment] = self._dispatcher.mark_inside(stream)

    def _wait(self, stream: int, segments: Iterable[int]) -> None:
        """Let *stream* wait for the ends of segments on others."""
        self._dispatcher.wait_inside(stream, [self._marks[s] for s in segments if s in self._marks])


def streams_for(dispatcher: Dispatcher, bound: BoundPlan, own: int) -> list[int] | None:
    """Return the stream of each lane of a chunk whose own stream is *own*; None if all are to be enqueued there."""
    lanes = bound.plan.lanes
    if lanes is None:
        return None
    idle = dispatcher.idle_beside(own)[: lanes.width - 1]
    return [own, *idle, *[own] * (lanes.width - 1 - len(idle))] if idle else None
