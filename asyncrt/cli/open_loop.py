"""What becomes of requests that come whether or not the ones before have been answered?

Latency counts from the time at which a request was to be sent, not from when there was time to send it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import attrs
import numpy as np

from asyncrt.errors import Overloaded
from asyncrt.layout import Array

if TYPE_CHECKING:
    from asyncrt.scheduler.batching import BatchingStatistics

Inputs: TypeAlias = Mapping[str, Array]


class Infer(Protocol):
    """`Batched.infer`, or `Model.infer`."""

    def __call__(self, inputs: Inputs, *, deadline: float | None) -> Awaitable[Any]: ...


Outcome: TypeAlias = Literal["answered", "refused", "late"]
"""Refused at once, or late: no answer within its deadline."""


@attrs.frozen
class Answer:
    """What became of a request, and how long after it was to be sent, in seconds."""

    outcome: Outcome
    seconds: float


@attrs.frozen
class Sent:
    """What became of all, and how many seconds passed until the last of them was answered."""

    answers: list[Answer]
    wall: float


async def send(infer: Infer, requests: Sequence[tuple[float, Inputs]], deadline: float | None) -> Sent:
    """Send each request at its time, in seconds from now, and wait for all.

    Args:
        deadline: Seconds after its time in which each is to be answered.

    Raises:
        AsyncrtError: A request failed; the others are cancelled.
    """
    loop = asyncio.get_running_loop()
    start = loop.time()

    async def one(at: float, inputs: Inputs) -> Answer:
        left = None if deadline is None else start + at + deadline - loop.time()
        outcome: Outcome = "answered"
        if left is not None and left <= 0:
            outcome = "late"
        else:
            try:
                await infer(inputs, deadline=left)
            except Overloaded:
                outcome = "refused"
            except TimeoutError:  # DeadlineExceeded is one
                outcome = "late"
        return Answer(outcome, loop.time() - start - at)

    tasks: list[asyncio.Task[Answer]] = []
    try:
        async with asyncio.TaskGroup() as group:
            for at, inputs in requests:
                await asyncio.sleep(max(start + at - loop.time(), 0))  # 0 gives others their turn
                tasks.append(group.create_task(one(at, inputs)))
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return Sent([task.result() for task in tasks], loop.time() - start)


@attrs.frozen
class Point:
    """What became of requests at one rate.

    Attributes:
        way: "batched" or "alone".
        rate: Requests a second that were sent.
        requests, answered, refused, late: How many.
        goodput: Answers in time, a second.
        p50_ms, p90_ms, p99_ms: Of those that were answered; None without any.
        mean_batch: Requests in a batch.
        padding: The share of the batches' work that was padding.
        reasons: Why batches went, and how many.
    """

    way: str
    rate: float
    requests: int
    answered: int
    refused: int
    late: int
    goodput: float
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    mean_batch: float | None = None
    padding: float | None = None
    reasons: dict[str, int] = attrs.field(factory=dict)

    @classmethod
    def of(cls, way: str, rate: float, sent: Sent, batching: Batching | None = None) -> Point:
        """Summarise what became of requests."""
        counts = {kind: sum(a.outcome == kind for a in sent.answers) for kind in ("answered", "refused", "late")}
        seconds = [a.seconds for a in sent.answers if a.outcome == "answered"]
        p50, p90, p99 = (np.percentile(seconds, [50, 90, 99]) * 1e3).tolist() if seconds else (None, None, None)
        b = Batching(None, None, {}) if batching is None else batching
        return cls(
            way, rate, len(sent.answers), counts["answered"], counts["refused"], counts["late"],
            counts["answered"] / sent.wall, p50, p90, p99, b.mean_batch, b.padding, b.reasons,
        )  # fmt: skip


@attrs.frozen
class Batching:
    """What was batched between two readings."""

    mean_batch: float | None
    padding: float | None
    reasons: dict[str, int]

    @classmethod
    def between(cls, before: BatchingStatistics, after: BatchingStatistics) -> Batching:
        """Return what happened in between."""
        executions, work = after.executions - before.executions, after.work - before.work
        members, padding = after.members - before.members, after.padding - before.padding
        reasons = {str(reason): count - before.reasons[reason] for reason, count in after.reasons.items()}
        return cls(
            members / executions if executions else None,
            padding / work if work else 0.0,
            {reason: count for reason, count in reasons.items() if count},
        )


async def measure(
    way: str,
    infer: Infer,
    rate: float,
    requests: Sequence[tuple[float, Inputs]],
    deadline: float | None,
    statistics: Callable[[], BatchingStatistics] | None = None,
) -> Point:
    """Send requests that come at *rate*, and return what became of them and of *statistics*."""
    before = None if statistics is None else statistics()
    sent = await send(infer, requests, deadline)
    batching = None if statistics is None or before is None else Batching.between(before, statistics())
    return Point.of(way, rate, sent, batching)
