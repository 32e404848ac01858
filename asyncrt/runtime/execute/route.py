"""Which way does a chunk go to the device? One decision, from what is known when it is the chunk's turn.

- On which streams: its own; and where its plan has lanes and other streams are idle, those, too.
- By which calls: those of prepared launches, where there are any for its memory; otherwise each launch is given its
  arguments as it is enqueued.
- On which thread: the event loop's; or another one, where the device says that the calls take long.

Two more things are settled before, when the streams are opened: whether native code makes the calls
(`asyncrt.devices.opencl.submit`), and who watches the streams (`asyncrt.runtime.watch.watched`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from asyncrt.devices.base import Prepared
from asyncrt.scheduler.lanes import Lanes


class Route(NamedTuple):
    """Which way a chunk goes.

    Attributes:
        prepared: Whether its launches are those that were prepared; otherwise each is given its arguments now.
        on_thread: Whether a thread enqueues them.
        how: Why so.
        streams: The stream of each lane, the chunk's own first; None if all of it is enqueued on its own.
        where: Why there.
    """

    prepared: bool
    on_thread: bool
    how: str
    streams: Sequence[int] | None = None
    where: str = "one stream, because its plan has one lane"

    @property
    def why(self) -> str:
        """The reasons for all of it."""
        return f"{self.where}; {self.how}"


# Made once, because most chunks go one of these ways, and each request chooses.
_TRACED = Route(False, False, "launch by launch, because a trace is told of each")
_NEVER_PREPARED = Route(False, False, "launch by launch, because the runtime prepares none")
_NOT_PREPARED = Route(False, False, "launch by launch, because none are prepared for this plan and memory")
_PREPARED = Route(True, False, "prepared launches")
_ON_THREAD = Route(True, True, "prepared launches on a thread, because they take long to enqueue")


def choose_route(
    own: int,
    lanes: Lanes | None,
    idle: Sequence[int],
    prepared: Sequence[Prepared] | None,
    prepares: bool,
    traced: bool,
) -> Route:
    """Return which way a chunk goes.

    Args:
        own: The stream that the policy chose for it.
        lanes: Those of its plan.
        idle: The other streams that have nothing to do; asked only where there are lanes.
        prepared: Its prepared launches, if there are any: of each segment where a lane can go to an idle stream.
        prepares: Whether the runtime prepares launches.
        traced: Whether a trace is told of each launch with its arguments.
    """
    if prepared is not None:
        route = _ON_THREAD if prepared[0].long and not idle else _PREPARED
    elif traced:
        route = _TRACED
    else:
        route = _NOT_PREPARED if prepares else _NEVER_PREPARED
    if lanes is None:
        return route
    if not idle:
        return route._replace(where="one stream, because no other is idle")
    beside = idle[: lanes.width - 1]
    streams = (own, *beside, *[own] * (lanes.width - 1 - len(beside)))
    return route._replace(streams=streams, where="several streams, because its plan has lanes and others are idle")
