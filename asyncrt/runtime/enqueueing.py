"""Who enqueues a chunk, and where: the loop or a thread, with arguments set beforehand or not, on how many streams?

What of it was enqueued when something fails stays on the streams: their ends are noted, so that its memory is free when
the device has passed it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from asyncrt.events import Event
from asyncrt.graph.program import Program
from asyncrt.layout import Array

from .dispatcher import Dispatcher
from .executor import Arriving, BoundPlan, enqueue, fetch, upload
from .preset import Presets
from .spread import Spread, streams_for
from .watched import WatchedStream


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
        spread: Spread | None = None
        try:
            dispatcher.wait_for(stream, waits)
            streams = streams_for(dispatcher, bound, stream)
            if streams is not None:
                spread = Spread(dispatcher, bound, streams, events)
                return spread.enqueue(request, self._program, arenas, arrays, self._presets)
            if isinstance(target, WatchedStream):
                with target.chunk(request, self._program, bound.plan, arenas):
                    return enqueue(bound, target, arenas, arrays)
            prepared = None if self._presets is None else self._presets.prepared(bound, arenas)
            if prepared is None or not prepared.long:
                return enqueue(bound, target, arenas, arrays, prepared)
            dispatcher.begins(request, stream)
            upload(bound, target, arenas, arrays)
            await dispatcher.submissions.submit(stream, target, prepared)
            return fetch(bound, target, arenas, arrays)
        except BaseException:
            for number in (stream,) if spread is None else sorted(spread.open):
                events.append(dispatcher.abandon(number, bound))
            raise
