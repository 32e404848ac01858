"""Which size of batches and which delay sustain the highest rate, found with as few trials as that takes?

A trial says whether one setting sustains one rate. A setting that is not tried at a higher rate than the best so far
could only be as good, so one trial is enough to be done with it: that is what makes this cheaper than a sweep, which
needs several trials to find each setting's own highest rate.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
DELAYS = (0.0, 0.0005, 0.001, 0.002, 0.005, 0.01)
PRECISION = 1.025  # rates closer than this are the same
_REACH = 2  # neighbours so far away are tried; the nearest may be no better where the next but one is
_SLOWER = 1.05  # a setting that does not sustain a rate less than this below its highest: the machine has changed
_PATIENCE = 8  # times that it may
_LOWEST = 1 / 64  # of the first rate; what does not sustain that sustains nothing


class Setting(NamedTuple):
    """Options of batching that are searched."""

    max_batch: int
    max_delay: float


Sustains: TypeAlias = Callable[[Setting, float], Awaitable[bool]]
"""Whether a setting sustains so many requests a second."""


class Found(NamedTuple):
    """The best setting, the rate that it sustains, and how many trials that took."""

    setting: Setting
    rate: float
    trials: int


async def search(
    sustains: Sustains, first: float, batches: Sequence[int] = BATCHES, delays: Sequence[float] = DELAYS
) -> Found | None:
    """Return the setting that sustains the highest rate, or None if none sustains a 64th of *first*.

    It climbs from the middle: to a neighbour that sustains more, along one axis or the other, until there is none.
    What is compared is tried one after the other, because a machine may be busy with other things for seconds: who wins
    is to win against the one before at the rate of now, and who loses is only done with if the best still is the best.

    Args:
        first: Requests a second to begin with.
    """
    trials = itertools.count()

    async def counted(setting: Setting, rate: float) -> bool:
        next(trials)
        return await sustains(setting, rate)

    def setting(place: tuple[int, int]) -> Setting:
        return Setting(batches[place[0]], delays[place[1]])

    best = len(batches) // 2, len(delays) // 2
    rate = await highest(counted, setting(best), first)
    if rate is None:
        return None
    tried = {best}  # once is enough: what did not sustain a rate sustains no higher one, and rates only rise
    patience = _PATIENCE
    waiting = neighbours(best, len(batches), len(delays))
    while (here := next((place for place in waiting if place not in tried), None)) is not None:
        tried.add(here)
        if await counted(setting(here), rate * PRECISION):
            before, best = best, here
            rate = await climb(counted, setting(best), rate * PRECISION, PRECISION)
            waiting = neighbours(best, len(batches), len(delays))
            if patience and await counted(setting(before), rate):
                patience -= 1
                tried = {best}  # the machine is faster than it was: so might the others be that were tried
        elif patience and not await counted(setting(best), rate / _SLOWER):
            patience -= 1  # the machine is slower than it was: this one's trial says nothing
            tried.remove(here)
            rate = await highest(counted, setting(best), rate) or rate
            waiting = neighbours(best, len(batches), len(delays))
    return Found(setting(best), rate, next(trials))


def neighbours(place: tuple[int, int], batches: int, delays: int) -> Iterator[tuple[int, int]]:
    """Return the places beside one, the nearest first, larger batches before longer delays."""
    batch, delay = place
    for step in range(1, _REACH + 1):
        for other in ((batch + step, delay), (batch - step, delay), (batch, delay + step), (batch, delay - step)):
            if 0 <= other[0] < batches and 0 <= other[1] < delays:
                yield other


async def highest(sustains: Sustains, setting: Setting, first: float) -> float | None:
    """Return the highest rate that a setting sustains, or None if it does not even sustain a 64th of *first*."""
    if await sustains(setting, first):
        return await climb(sustains, setting, first, 2.0)
    high = first
    while high > first * _LOWEST:
        if await sustains(setting, high / 2):
            return await between(sustains, setting, high / 2, high)
        high /= 2
    return None


async def climb(sustains: Sustains, setting: Setting, rate: float, step: float) -> float:
    """Return the highest rate that a setting sustains, which sustains *rate*; steps grow as long as it does."""
    while await sustains(setting, rate * step):
        rate, step = rate * step, step * step
    return await between(sustains, setting, rate, rate * step)


async def between(sustains: Sustains, setting: Setting, low: float, high: float) -> float:
    """Return the highest rate that a setting sustains, which sustains *low* and not *high*."""
    while high / low > PRECISION:
        middle = math.sqrt(low * high)
        if await sustains(setting, middle):
            low = middle
        else:
            high = middle
    return low
