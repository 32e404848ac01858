"""Where the tensors of one chunk lie in one block: offsets planned by how long each is needed.

Source of the method: Pisarchyk and Lee, "Efficient memory management for deep neural net inference" (2020), greedy by
size: the largest first, each at the lowest offset where no tensor that lives at the same time lies.
"""

from __future__ import annotations

import bisect
import functools
import itertools
from array import array
from collections.abc import Callable, Iterable, Sequence
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
    starts = sorted({t.first for t in tensors})
    # What was placed so far, as (begin, end): by the step at which it begins to live, and by each at which it lives.
    born: list[list[tuple[int, int]]] = [[] for _ in starts]
    alive: list[list[tuple[int, int]]] = [[] for _ in starts]
    for i in sorted(range(len(tensors)), key=lambda i: (-_aligned(tensors[i].nbytes), tensors[i].first)):
        nbytes, first, last = tensors[i]
        if not nbytes:
            continue
        nbytes = _aligned(nbytes)
        step, end = bisect.bisect_left(starts, first), bisect.bisect_right(starts, last)
        offset = offsets[i] = _lowest(nbytes, itertools.chain(alive[step], *born[step + 1 : end]))
        total = max(total, offset + nbytes)
        place = (offset, offset + nbytes)
        born[step].append(place)
        for living in alive[step:end]:
            living.append(place)
    return ArenaPlan(tuple(offsets), total)


class Lifetimes:
    """The steps at which tensors are needed, to plan the same ones at many sizes: as `plan_arena`, and faster.

    Args:
        steps: The first and the last of each tensor.
        ordered: Whether of two tensors one is over before the other begins, where the steps do not run one after the
            other and so do not say it.
    """

    def __init__(
        self, steps: Sequence[tuple[int, int]], ordered: Callable[[int, int], bool] = lambda i, j: True
    ) -> None:
        beside = [
            [
                j for j, (begin, end) in enumerate(steps)
                if j != i and ((begin <= last and first <= end) or not ordered(i, j))
            ]
            for i, (first, last) in enumerate(steps)
        ]  # fmt: skip
        #: What places in C; None where Python does.
        self.native = _native_place()
        #: Of each tensor its first step, where its part of the last numbers begins, and those needed beside it.
        self._table = _table([first for first, _ in steps], beside)
        #: The sizes that were placed last, and where: those of a decoder's next step are often the same.
        self._latest: tuple[list[int], ArenaPlan] = [], ArenaPlan((), 0)

    def place(self, nbytes: Sequence[int]) -> ArenaPlan:
        """Return offsets for tensors of these sizes."""
        sizes = [-(-n // ALIGNMENT) * ALIGNMENT for n in nbytes]
        if sizes == self._latest[0]:
            return self._latest[1]
        plan = self._placed(sizes) if self.native is None else ArenaPlan(*self.native(sizes, *self._table))
        self._latest = sizes, plan
        return plan

    def _placed(self, sizes: list[int]) -> ArenaPlan:
        """As `_arena.c` does it."""
        count, (first, starts, beside) = len(sizes), self._table
        offsets, ends = [0] * count, [-1] * count
        total = 0
        for i in sorted(range(count), key=lambda i: (-sizes[i], first[i])):
            size = sizes[i]
            if not size:
                break  # as have all behind it
            offset = _lowest(size, [(offsets[j], ends[j]) for j in beside[starts[i] : starts[i + 1]] if ends[j] >= 0])
            offsets[i], ends[i] = offset, offset + size
            total = max(total, ends[i])
        return ArenaPlan(tuple(offsets), total)


def _table(first: list[int], beside: list[list[int]]) -> tuple[array[int], array[int], array[int]]:
    """Return lifetimes as `_arena.c` reads them: in memory that no garbage collection goes through."""
    starts = itertools.accumulate(map(len, beside), initial=0)
    return array("i", first), array("i", starts), array("i", itertools.chain(*beside))


@functools.cache
def _native_place() -> Callable[..., tuple[tuple[int, ...], int]] | None:
    """Return what places in C; None where it was not built."""
    try:
        from . import _arena
    except ImportError:
        return None
    return _arena.place


def _lowest(nbytes: int, taken: Iterable[tuple[int, int]]) -> int:
    """Return the lowest offset from which *nbytes* are free beside what is *taken*, each as (begin, end)."""
    offset = 0
    for lower, upper in sorted(taken):
        if lower - offset >= nbytes:
            break
        if upper > offset:
            offset = upper
    return offset


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
