"""Who enqueues a chunk, and where: the loop or a thread, with arguments set beforehand or not, on how many streams?

What of it was enqueued when something fails stays on the streams: their ends are noted, so that its memory is free when
the device has passed it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from asyncrt.events import Event
from asyncrt.graph.ir import Program
from asyncrt.layout import Array
from asyncrt.runtime.loop.dispatcher import Dispatcher
from asyncrt.runtime.plan.bound_plan import BoundPlan
from asyncrt.runtime.watch.watched import WatchedStream, announced, one_by_one

from .lanes import ChunkOnLanes, streams_for
from .prepared_launches import Presets
from .transfers import Arriving, enqueue, fetch, upload


class Enqueueing:
    """Of one network.

    Args:
        presets: The runtime's; None where no arguments are set beforehand.
    """

    def __init__(self, program: Program, dispatcher: Dispatcher, presets: Presets | None) -> None:
        self._program = program
        self._dispatcher = dispatcher
        self._presets = presets

    async def enqueue(
        self,
        request: int,
        bound: BoundPlan,
        stream: int,
        waits: Iterable[Event],
        arrays: Mapping[int, Array],
        arenas: list[Any],
        events: list[Event],
    ) -> Arriving:
        """Enqueue a chunk; returns what `executor.enqueue` does.

        Args:
            stream: Its own, on which it ends.
            events: Gets the ends of what is on other streams, and if it fails half-way those of all there is.
        """
        dispatcher = self._dispatcher
        await dispatcher.submissions.turn(stream)
        target = dispatcher.streams[stream]
        spread: ChunkOnLanes | None = None
        try:
            dispatcher.wait_for(stream, waits)
            streams = streams_for(dispatcher, bound, stream)
            if streams is not None:
                spread = ChunkOnLanes(dispatcher, bound, streams, events)
                return spread.enqueue(request, self._program, arenas, arrays, self._presets)
            if isinstance(target, WatchedStream):
                with target.chunk(request, self._program, bound.plan, arenas):
                    return await self._on_one(request, bound, stream, arrays, arenas)
            return await self._on_one(request, bound, stream, arrays, arenas)
        except BaseException:
            for number in (stream,) if spread is None else sorted(spread.open):
                events.append(dispatcher.abandon(number, bound))
            raise

    async def _on_one(
        self, request: int, bound: BoundPlan, stream: int, arrays: Mapping[int, Array], arenas: list[Any]
    ) -> Arriving:
        """Enqueue a chunk on its own stream alone."""
        dispatcher = self._dispatcher
        target, prepared = dispatcher.streams[stream], None
        if self._presets is not None and not one_by_one(target):
            prepared = self._presets.prepared(bound, arenas)
        if prepared is None:
            return enqueue(bound, target, arenas, arrays)
        if prepared.long:
            dispatcher.begins(request, stream)
        upload(bound, target, arenas, arrays)
        below = announced(target, bound.steps, arenas)
        if prepared.long:
            await dispatcher.submissions.submit(stream, below, prepared)
        else:
            prepared.launch(below)
        return fetch(bound, target, arenas, arrays)
