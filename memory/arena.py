"""Where the tensors of one chunk lie in one block: offsets planned by how long each is needed.

Source of the method: Pisarchyk and Lee, "Efficient memory management for deep neural net inference" (2020), greedy by
size: the largest first, each at the lowest offset where no tensor that lives at the same time lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

ALIGNMENT = 256  # bytes; vector loads and every driver's base alignment are met


class Interval(NamedTuple):
    """A tensor's size, and the first and last step at which it is needed (inclusive)."""

    nbytes: int
    first: int
    last: int


class ArenaPlan(NamedTuple):
    """Where each tensor begins, in the order they were given, and the size of the whole."""

    offsets: tuple[int, ...]
    nbytes: int


def plan_arena(tensors: Sequence[Interval]) -> ArenaPlan:
    """Return offsets such that tensors needed at the same step do not overlap."""
    offsets = [0] * len(tensors)
    total = 0
    placed: list[tuple[int, int, int, int]] = []  # (offset, end, first, last), by offset
    for i in sorted(range(len(tensors)), key=lambda i: (-tensors[i].nbytes, tensors[i].first)):
        nbytes, first, last = tensors[i]
        nbytes = -(-nbytes // ALIGNMENT) * ALIGNMENT
        if not nbytes:
            continue
        offset, position = 0, 0
        for position, (begin, end, f, l) in enumerate(placed):  # noqa: B007, E741
            if f > last or l < first:
                continue
            if begin - offset >= nbytes:
                break
            if end > offset:
                offset = end
        offsets[i] = offset
        total = max(total, offset + nbytes)
        entry = (offset, offset + nbytes, first, last)
        position = len(placed)
        while position and placed[position - 1][0] > offset:
            position -= 1
        placed.insert(position, entry)
    return ArenaPlan(tuple(offsets), total)


def live_bytes(tensors: Sequence[Interval]) -> int:
    """Return the most bytes needed at any one step: no plan can be smaller."""
    def live(step: int) -> int:
        return sum(-(-t.nbytes // ALIGNMENT) * ALIGNMENT for t in tensors if t.first <= step <= t.last)

    return max((live(s) for s in {t.first for t in tensors}), default=0)
