"""Who waits, and in which order?

One number per request, its turn, decides, and it never changes: when it is due, plus `ageing_s` for each step of its
priority. What is due later than half of that time after it came, or never, counts as due then. So among requests of one
priority the earliest deadline goes first, a higher priority goes before a lower one that came at about the same time,
and nobody is overtaken by what comes `ageing_s` later for each step between them.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Hashable, Iterator
from typing import TypeAlias

import attrs

from .batch_shape import BatchShape, largest
from .happenings import Arrived
from .options import BatchOptions


@attrs.define(eq=False)
class QueuedRequest:
    """A request that waits."""

    number: int
    #: What it came with.
    own: BatchShape
    #: The same, or with sizes rounded up to buckets.
    form: BatchShape
    rows: int
    nbytes: int
    priority: int
    due: float
    strict: bool
    arrived: float
    turn: float
    #: Elements of its rows, without padding.
    work: int
    #: Seconds that it was expected to take when it came; None if nothing was.
    expected: float | None = None


def waiting(arrived: Arrived, options: BatchOptions) -> QueuedRequest:
    """Return what is kept of a request that has come."""
    at, number, form, rows, nbytes, priority, due, strict = arrived
    latest = at + options.ageing_s / 2
    turn = (latest if due > latest else max(due, at)) + priority * options.ageing_s
    work, own = rows * form.per_row, form
    if options.mode == "buckets":
        form = form.padded_to(tuple([_bucket(size, options.buckets) for size in form.sizes]))
    return QueuedRequest(number, own, form, rows, nbytes, priority, due, strict, at, turn, work)


def _bucket(size: int, buckets: tuple[int, ...] | None) -> int:
    if buckets is None:
        return 1 << (size - 1).bit_length() if size else 0
    return next((b for b in buckets if b >= size), size)


_Place: TypeAlias = tuple[float, int, QueuedRequest]
"""A request in a list that is in order; its turn and its number are compared, and no two requests have both."""


class WaitingQueue:
    """All that wait, in order, and by what they could be joined with."""

    def __init__(self, ageing_s: float) -> None:
        self._ageing_s = ageing_s
        self._known: dict[int, _Place] = {}
        self._ordered: list[_Place] = []
        #: By what must be equal, and by sizes; each in order.
        self._alike: dict[Hashable, dict[tuple[int, ...], list[_Place]]] = {}
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, number: int) -> bool:
        return number in self._known

    def __iter__(self) -> Iterator[QueuedRequest]:
        return (request for _, _, request in self._ordered)

    def add(self, request: QueuedRequest) -> None:
        """It waits from now on."""
        place = request.turn, request.number, request
        self._known[request.number] = place
        self.nbytes += request.nbytes
        bisect.insort(self._ordered, place)
        sizes = self._alike.setdefault(request.form.exact, {})
        bisect.insort(sizes.setdefault(request.form.sizes, []), place)

    def take(self, number: int) -> QueuedRequest | None:
        """It waits no more; None if it did not."""
        place = self._known.pop(number, None)
        if place is None:
            return None
        request = place[2]
        self.nbytes -= request.nbytes
        del self._ordered[bisect.bisect_left(self._ordered, place)]
        exact, sizes = request.form.exact, request.form.sizes
        same = self._alike[exact][sizes]
        del same[bisect.bisect_left(same, place)]
        if not same:
            del self._alike[exact][sizes]
            if not self._alike[exact]:
                del self._alike[exact]
        return request

    def take_all(self, requests: list[QueuedRequest]) -> None:
        """All of these have waited until now, and wait no more."""
        for request in requests:
            del self._known[request.number]
            self.nbytes -= request.nbytes
        known = self._known
        self._ordered = [place for place in self._ordered if place[1] in known]
        sizes = self._alike[requests[0].form.exact]
        for shape in dict.fromkeys([request.form.sizes for request in requests]):
            left = [place for place in sizes[shape] if place[1] in known]
            if left:
                sizes[shape] = left
            else:
                del sizes[shape]
        if not sizes:
            del self._alike[requests[0].form.exact]

    def first(self) -> QueuedRequest | None:
        """Whose turn it is."""
        return self._ordered[0][2] if self._ordered else None

    def ahead(self, turn: float) -> list[QueuedRequest]:
        """Those whose turn comes before that."""
        return [request for _, _, request in self._ordered[: bisect.bisect_left(self._ordered, (turn,))]]

    def alike(self, head: QueuedRequest, at: float, *, equal: bool) -> Iterator[list[QueuedRequest]]:
        """Those that *head* could be joined with, in lists of equal shape: more urgent ones first, then the nearest.

        Args:
            at: Now; who came `ageing_s` ago is as urgent as one of the next higher priority that comes now.
            equal: Only those of its own shape.
        """
        sizes = self._alike[head.form.exact]
        if equal:
            shapes = [sizes[head.form.sizes]]
        else:
            shapes = _nearest(head.form, list(sizes.values()))
        places = [0] * len(shapes)
        urgency: int | None = self._urgency(head, at)
        while urgency is not None:
            latest, after = at + (urgency + 0.5) * self._ageing_s, urgency + 1
            urgency = None
            for i, same in enumerate(shapes):
                end = len(same)
                if same[-1][0] > latest:
                    end = bisect.bisect_right(same, (latest, math.inf), lo=places[i])
                if end > places[i]:
                    yield [request for _, _, request in same[places[i] : end]]
                    places[i] = end
                if end < len(same):
                    next_ = max(self._urgency(same[end][2], at), after)  # rounding must not make it the same again
                    urgency = next_ if urgency is None else min(urgency, next_)

    def _urgency(self, request: QueuedRequest, at: float) -> int:
        """Its priority, less one for each `ageing_s` that it has waited."""
        return math.ceil((request.turn - at) / self._ageing_s - 0.5)


def _nearest(form: BatchShape, shapes: list[list[_Place]]) -> list[list[_Place]]:
    """Sort requests of equal shapes by how much larger a row of each is when padded to fit the other."""
    own, forms = form.per_row, [same[0][2].form for same in shapes]
    if len(form.sizes) == 1:  # the larger one is what both fit in
        sizes = [f.per_row for f in forms]
        distances = [size / max(own, 1) if size > own else own / max(size, 1) for size in sizes]
    else:
        both = [form.per_row_of(largest(form.sizes, f.sizes)) for f in forms]
        distances = [size / max(own + f.per_row, 1) for size, f in zip(both, forms, strict=True)]
    return [shapes[i] for i in sorted(range(len(shapes)), key=distances.__getitem__)]
