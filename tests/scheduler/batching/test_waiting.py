"""Who goes before whom, at any clock, ageing and priority: looking for company always comes to an end."""

from __future__ import annotations

import itertools

import pytest

from asyncrt.scheduler.batching import BatchOptions, BatchShape
from asyncrt.scheduler.batching.happenings import Arrived
from asyncrt.scheduler.batching.waiting import QueuedRequest, WaitingQueue, waiting


class Counted(WaitingQueue):
    """Raises where it would look for ever."""

    looks = 0

    def _urgency(self, request: QueuedRequest, at: float) -> int:
        self.looks += 1
        assert self.looks < 100, "it goes round in circles"
        return super()._urgency(request, at)


CASES = [
    (0.3, 0.0, -46), (0.1, 0.1080138952733335, 12), (0.01, 0.0005202206961552652, -21),
    *itertools.product(
        (1e-6, 0.01, 0.3, 1.0, 7.0, 1e9), (0.0, 0.1080138952733335, 4e4, 1e9), (-(10**9), -46, 0, 12, 10**9)
    ),
]  # fmt: skip


@pytest.mark.parametrize(("ageing_s", "at", "priority"), CASES)
def test_all_are_gone_through_once(ageing_s: float, at: float, priority: int) -> None:
    """However the sums of times and priorities are rounded."""
    options = BatchOptions(ageing_s=ageing_s)
    queue = Counted(ageing_s)
    head = waiting(Arrived(at, 0, BatchShape("f"), priority=priority - 1), options)
    others = [waiting(Arrived(at, n, BatchShape("f"), priority=priority), options) for n in (1, 2, 3)]
    for request in (head, *others):
        queue.add(request)

    found = [request.number for same in queue.alike(head, at, equal=True) for request in same]

    assert found == [0, 1, 2, 3]
