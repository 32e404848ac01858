"""Who joins the request whose turn it is?

Around that one, because then nobody is passed over for ever; the nearest shapes first, because they cost the least
padding. A request joins if it is cheaper so than alone, and nobody who would have been in time is late because of it.
"""

from __future__ import annotations

import math

import attrs

from .batch_shape import BatchShape, largest
from .cost import Line
from .options import BatchOptions
from .waiting import QueuedRequest, WaitingQueue


@attrs.define(eq=False)
class BatchGroup:
    """Requests that are to run as one."""

    members: list[QueuedRequest]
    form: BatchShape
    rows: int
    #: Elements of its members without padding.
    own: int
    #: When the first of those that can be in time is due.
    due: float
    #: Whether no more fits in.
    full: bool = False

    @property
    def work(self) -> int:
        """Elements, padding included."""
        return self.rows * self.form.per_row


def form_group(
    queue: WaitingQueue,
    head: QueuedRequest,
    options: BatchOptions,
    line: Line | None,
    share: Line | None,
    at: float,
    start: float,
) -> BatchGroup:
    """Return the batch that *head* would go in now, if the device begins it at *start*.

    Args:
        line: When a batch is over.
        share: What it takes of the device, beside what others that run at the same time take of it.
    """
    group = BatchGroup([head], head.form, head.rows, head.work, math.inf)
    group.due = _due(head, group.work, line, start)
    if head.rows >= options.max_batch or group.work >= (options.max_work or math.inf):
        group.full = True
        return group
    for same in queue.alike(head, at, equal=options.mode != "cost"):
        form = group.form.padded_to(largest(group.form.sizes, same[0].form.sizes))
        for request in same:
            if request is head:
                continue
            if not _join(group, request, form, options, line, share, start):
                break
            if group.rows == options.max_batch:
                group.full = True
                return group
    return group


def _join(
    group: BatchGroup,
    request: QueuedRequest,
    form: BatchShape,
    options: BatchOptions,
    line: Line | None,
    share: Line | None,
    start: float,
) -> bool:
    """Let *request* join if that is right, in a batch of that *form*; False if nobody else of its shape can either."""
    rows = group.rows + request.rows
    if rows > options.max_batch:
        # Somebody with fewer rows may fit; but if nobody else can, the batch is as full as it gets.
        group.full = group.full or request.rows == 1
        return True
    work = rows * form.per_row
    if work > (options.max_work or math.inf):
        group.full = True
        return False
    own = group.own + request.work
    if options.mode == "cost":
        if work - own > options.max_waste * work:
            return False
        if share is not None and share.told and share.per_work * (work - group.work) > share(request.work):
            return False
    due = group.due
    if line is not None:
        if start + line(work) > due:
            return False
        due = min(due, _due(request, work, line, start))
    group.members.append(request)
    group.form, group.rows, group.own, group.due = form, rows, own, due
    return True


def _due(request: QueuedRequest, work: int, line: Line | None, start: float) -> float:
    """When the request is due; never, if it is late in any case and so nobody need hurry for it."""
    if line is not None and start + line(work) > request.due:
        return math.inf
    return request.due
