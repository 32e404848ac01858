"""Who joins the request whose turn it is?

Around that one, because then nobody is passed over for ever; the nearest shapes first, because they cost the least
padding. A request joins if it is cheaper so than alone, and nobody who would have been in time is late because of it.
"""

from __future__ import annotations

import math

import attrs

from .batch_shape import BatchShape
from .cost import Line
from .options import USUAL_ROWS, BatchOptions
from .waiting import QueuedRequest, WaitingQueue

_FIXED = 0.2  # the part of a batch's time that must be fixed if it is to have more rows than the usual ones


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
    most_work, by_cost, usual = options.max_work or math.inf, options.mode == "cost", min(options.max_batch, USUAL_ROWS)
    per_work, fixed = (share.per_work, share.fixed) if share is not None and share.told else (0.0, 0.0)
    group.due = _due(head, group.work, line, start)
    if head.rows >= most_rows(options, group.work, share) or group.work >= most_work:
        group.full = True
        return group
    for same in queue.alike(head, at, equal=options.mode != "cost"):
        form = group.form.joined(same[0].form)
        before = group.work
        for request in same:
            if request is head:
                continue
            rows, own = group.rows + request.rows, group.own + request.work
            work = rows * form.per_row
            most = usual if rows < usual else most_rows(options, work, share)
            if rows > most:
                # Somebody with fewer rows may fit; but if nobody else can, the batch is as full as it gets.
                group.full = group.full or request.rows == 1
                continue
            if work > most_work:
                group.full = True
                break
            # It is to cost less than alone.
            if by_cost and (
                work - own > options.max_waste * work or per_work * (work - before - request.work) > fixed
            ):
                break
            due = group.due
            if line is not None and (due < math.inf or request.due < math.inf):
                if start + line(work) > due:
                    break
                due = min(due, _due(request, work, line, start))
            group.members.append(request)
            group.form, group.rows, group.own, group.due, before = form, rows, own, due, work
            if rows >= most:
                group.full = True
                return group
    return group


def most_rows(options: BatchOptions, work: int, share: Line | None) -> int:
    """Return how many rows a batch may have that takes so much work.

    More than the usual ones only where a good part of its time would not become longer: it gains little otherwise, and
    all who come meanwhile wait for its end.
    """
    if options.max_batch <= USUAL_ROWS:
        return options.max_batch
    gains = share is not None and share.told and share.fixed >= _FIXED * share(work)
    return options.max_batch if gains else USUAL_ROWS


def _due(request: QueuedRequest, work: int, line: Line | None, start: float) -> float:
    """When the request is due; never, if it is late in any case and so nobody need hurry for it."""
    if line is not None and start + line(work) > request.due:
        return math.inf
    return request.due
