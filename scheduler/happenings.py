"""What the scheduler is told: one record per thing that can happen."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from asyncrt.events import Event


class Submitted(NamedTuple):
    """A request wants to run. Lower `priority` goes first; equal ones in the order they came."""

    request: int
    priority: int = 0


class Ready(NamedTuple):
    """A request has planned its next chunk and wants a stream for it."""

    request: int


class Launched(NamedTuple):
    """A request's chunk was enqueued; it ends at `event`."""

    request: int
    event: Event


class Reached(NamedTuple):
    """A stream has come to `event`."""

    event: Event


class Ended(NamedTuple):
    """A request is over, for whatever reason: finished, failed, or its caller was cancelled."""

    request: int


Happening: TypeAlias = Submitted | Ready | Launched | Reached | Ended
