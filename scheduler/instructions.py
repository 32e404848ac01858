"""What the scheduler asks for: one record per thing that is to be done."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from asyncrt.events import Event


class Admit(NamedTuple):
    """Let the request begin: it may hold device memory from now on."""

    request: int


class LaunchChunk(NamedTuple):
    """Enqueue the request's planned chunk on `stream`."""

    request: int
    stream: int


class Resume(NamedTuple):
    """The request's chunk has passed the device; what it read is on the host."""

    request: int
    event: Event


class Expire(NamedTuple):
    """Tell the request that its deadline has passed; `Ended` is to follow, and no `Launched`."""

    request: int


Instruction: TypeAlias = Admit | LaunchChunk | Resume | Expire
