"""What batching asks for: one record per thing that is to be done."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

#: Why a batch went when it did:
#: idle      a stream had nothing to do
#: full      no more rows or work fit into it
#: delay     its oldest member had been held back for `max_delay`
#: deadline  a member would have been late otherwise
#: no gain   the model of cost expects nothing of waiting
#: retry     its only member was in a batch that failed
#: closing   nobody else will come
Reason: TypeAlias = Literal["idle", "full", "delay", "deadline", "no gain", "retry", "closing"]
REASONS: tuple[Reason, ...] = ("idle", "full", "delay", "deadline", "no gain", "retry", "closing")

#: Why a request was refused:
#: count   as many wait as may
#: bytes   their inputs are as large as they may be
#: late    its answer would come after it is due
#: missed  it waited, and its answer would come after it is due
Refusal: TypeAlias = Literal["count", "bytes", "late", "missed"]
REFUSALS: tuple[Refusal, ...] = ("count", "bytes", "late", "missed")


class LaunchBatch(NamedTuple):
    """Run these requests as one, padded to `sizes`."""

    batch: int
    requests: tuple[int, ...]
    sizes: tuple[int, ...]
    reason: Reason


class Reject(NamedTuple):
    """Tell the request's caller no; to try again may be of use after `retry_after_s`."""

    request: int
    why: Refusal
    retry_after_s: float


class Drop(NamedTuple):
    """All members of the batch have left: give it up, if that is still possible."""

    batch: int


class WakeAt(NamedTuple):
    """Say `Ticked` at this time, and no more at one given before; None is never."""

    at: float | None


Instruction: TypeAlias = LaunchBatch | Reject | Drop | WakeAt
