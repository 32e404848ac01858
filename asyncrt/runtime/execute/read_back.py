"""How does the host get what a request has left on the device? By a request that has no plan, and reads it."""

from __future__ import annotations

import contextlib

import numpy as np

from asyncrt.events import Event
from asyncrt.layout import Array, Layout
from asyncrt.memory.buffer import Lease
from asyncrt.runtime.loop.dispatcher import Dispatcher
from asyncrt.runtime.watch.watched import WatchedStream


async def read_back(
    request: int, dispatcher: Dispatcher, lease: Lease, layout: Layout, after: tuple[Event, ...], events: list[Event]
) -> Array:
    """Return what lies densely in memory, as an array of its own, when it is there.

    Args:
        request: An admitted request.
        lease: Of the memory.
        layout: Of what lies there.
        after: The events behind which it may be read.
        events: Gets the end of what was enqueued.
    """
    number = await dispatcher.place(request)
    await dispatcher.submissions.turn(number)
    stream = dispatcher.streams[number]
    room = stream.room(layout.nbytes)
    shape, dtype = layout.shape, layout.dtype.numpy
    target: Array = np.empty(shape, dtype) if room is None else np.ndarray(shape, dtype, room)
    try:
        dispatcher.marks.wait_for(number, after)
        watched = stream.launches(request, ()) if isinstance(stream, WatchedStream) else contextlib.nullcontext()
        with watched:
            stream.read(lease.allocation, 0, target)
    except BaseException:
        events.append(dispatcher.abandon(number, (lease, target)))
        raise
    events.append(dispatcher.launched(request, number, (lease, target)))
    await dispatcher.passed(request)
    if dispatcher.checks is not None:
        dispatcher.checks.looks_at(request, [target])
    return target
