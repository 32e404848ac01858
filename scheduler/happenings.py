"""What the scheduler is told: one record per thing that can happen."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from asyncrt.events import Event


class InvalidHappening(Exception):
    """A state machine was told something that cannot be; the message has the story."""


class Submitted(NamedTuple):
    """A request wants to run. Lower `priority` goes first, then the earlier `deadline`, then who came first.

    None has no deadline; others are times by the clock of `Elapsed`.
    """

    request: int
    priority: int = 0
    deadline: float | None = None


class Ready(NamedTuple):
    """A request has planned its next chunk, which is about so much `work`, and wants a stream for it."""

    request: int
    work: int = 1


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


class Elapsed(NamedTuple):
    """It is `now`: requests whose deadline that is, or was, and that are not on a stream will not be launched."""

    now: float


Happening: TypeAlias = Submitted | Ready | Launched | Reached | Ended | Elapsed
