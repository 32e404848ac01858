"""How is a chunk enqueued? Its inputs go up, its launches follow, its results come down: the one walk for all chunks.

Which way the launches go is a `Route`, chosen when it is the chunk's turn. Nothing here waits for the device.

What of a chunk was enqueued when something fails stays on the streams: their ends are noted, so that its memory is free
when the device has passed it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from asyncrt.devices.base import Prepared
from asyncrt.events import Event
from asyncrt.graph.ir import Program
from asyncrt.layout import Array
from asyncrt.runtime.loop.dispatcher import Dispatcher
from asyncrt.runtime.plan.bound_plan import BoundPlan
from asyncrt.runtime.watch.watched import announced, one_by_one, watching

from .lanes import LaneLaunches
from .prepared_launches import Company, Presets
from .route import Route, choose_route
from .transfers import Arriving, download, upload


class ChunkEnqueuer:
    """Enqueues the chunks of one program.

    Args:
        presets: The runtime's; None where no launches are prepared.
    """

    def __init__(self, program: Program, dispatcher: Dispatcher, presets: Presets | None) -> None:
        self._program = program
        self._dispatcher = dispatcher
        self.presets = presets

    async def enqueue(
        self,
        request: int,
        bound: BoundPlan,
        own: int,
        waits: Iterable[Event],
        arrays: Mapping[int, Array],
        memory: Sequence[Any],
        events: list[Event],
    ) -> Arriving:
        """Enqueue a chunk of a request; returns what its results are read into.

        Args:
            own: The chunk's own stream, on which it ends.
            waits: What the streams must have passed before.
            arrays: The request's inputs, by value id.
            memory: The arena of each chunk, None where a chunk has none; then the memory of what a sequence keeps.
            events: Gets the ends of what is on other streams; and if it fails half-way, those of all there is.
        """
        dispatcher = self._dispatcher
        if dispatcher.submissions.busy(own):
            await dispatcher.submissions.turn(own)
        stream, opened = dispatcher.streams[own], {own}
        try:
            dispatcher.marks.wait_for(own, waits)
            prepared, route = self._route(own, bound, memory)
            with watching(dispatcher.streams, own, route.streams, request, self._program, bound.plan, memory):
                if route.on_thread:
                    dispatcher.begins(request, own)
                upload(bound, stream, memory, arrays)
                if route.streams is not None:
                    lanes = LaneLaunches(dispatcher, bound, route.streams, opened, events)
                    lanes.enqueue(request, memory, prepared)
                elif prepared is None:
                    stream.launch_all(bound.steps, memory)
                else:
                    below = announced(stream, bound.steps, memory)
                    if route.on_thread:
                        await dispatcher.submissions.submit(own, below, prepared[0])
                    else:
                        prepared[0].launch(below)
                return download(bound, stream, memory, arrays)
        except BaseException:
            for number in sorted(opened):
                events.append(dispatcher.abandon(number, bound))
            raise

    def _route(
        self, own: int, bound: BoundPlan, memory: Sequence[Any]
    ) -> tuple[Sequence[Prepared] | None, Route]:
        """Return a chunk's prepared launches, if there are any, and which way it goes."""
        dispatcher, presets, lanes = self._dispatcher, self.presets, bound.plan.lanes
        idle = () if lanes is None else dispatcher.idle_beside(own)
        traced, prepared = one_by_one(dispatcher.streams[own]), None
        if presets is not None and not traced:
            others = dispatcher.in_flight > 1 or len(dispatcher.marks) > 0
            company = Company.OTHERS if others else Company.NOBODY_YET
            prepared = presets.find(bound, memory, bool(idle), company)
        return prepared, choose_route(own, lanes, idle, prepared, presets is not None, traced)
