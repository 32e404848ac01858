"""Which steps of one chunk run side by side: on how few lanes, and with how few waits between them?

A lane is what is enqueued on one stream, in the order of its steps. Chains of steps are found as Nimble finds them: of
the dependences those are left that no others imply (the transitive reduction), and a maximum matching of steps with
steps that come after them joins steps to as few chains as keep all branches apart, so that most dependences lie within
chains. Chains are then laid behind each other where that keeps nothing waiting, or where there are no more lanes.

Pure: it knows steps by their numbers, and of each what it comes after and whether it gains by running beside others.

Source of the method: Kwon, Yu, Jeong and Chun, "Nimble: lightweight and parallel GPU task scheduling for deep learning"
(NeurIPS 2020), section 4.2.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

START = -1
"""Stands for what comes before all steps, on lane 0: a segment that waits for it waits for that."""

_NEVER = -2  # no step of a lane, nor what comes before all steps


class Segment(NamedTuple):
    """Steps that are enqueued one after the other on one lane, with nothing between them.

    Attributes:
        lane: Which one.
        begin, end: Its steps, the last one excluded.
        waits: The segments of other lanes for whose ends the first step waits; `START` may be one.
    """

    lane: int
    begin: int
    end: int
    waits: tuple[int, ...]


class Lanes(NamedTuple):
    """The steps of a chunk on several lanes.

    Attributes:
        width: How many lanes; lane 0 has the first step, and of the others the first have most.
        segments: In the order in which they are enqueued, which is that of the steps.
        joins: The segments for whose ends lane 0 waits when all are enqueued, so that it is behind all of them.
    """

    width: int
    segments: tuple[Segment, ...]
    joins: tuple[int, ...]

    @property
    def waits(self) -> int:
        """How many waits there are between lanes."""
        return sum(len(s.waits) for s in self.segments) + len(self.joins)

    def of_steps(self) -> list[int]:
        """Return each step's lane."""
        return [s.lane for s in self.segments for _ in range(s.begin, s.end)]

    def before(self) -> list[int]:
        """Return for each step those that are over when it starts, by lanes and waits alone: a bit for each."""
        found: list[int] = []
        behind = [0] * self.width
        for segment in self.segments:
            over = behind[segment.lane]
            for other in segment.waits:
                if other != START:
                    last = self.segments[other].end - 1
                    over |= found[last] | 1 << last
            for step in range(segment.begin, segment.end):
                found.append(over)
                over |= 1 << step
            behind[segment.lane] = over
        return found


def find_lanes(before: Sequence[Collection[int]], gains: int, most: int) -> Lanes | None:
    """Return the lanes for steps; None if there is nothing to gain by more than one.

    Args:
        before: For each step those that it comes after, all of smaller numbers.
        gains: The steps that gain by running beside others that do, a bit for each.
        most: How many lanes there may be.
    """
    if most < 2 or gains.bit_count() < 2:
        return None
    ancestors: list[int] = []
    last, beside = -1, False
    for step, steps in enumerate(before):
        over = 0
        for other in steps:
            over |= ancestors[other] | 1 << other
        ancestors.append(over)
        if gains >> step & 1:
            beside = beside or (last >= 0 and not over >> last & 1)
            last = step
    if not beside:
        return None  # each step that gains comes after the one before it
    order = _Order(before, ancestors)
    chains = _chains(order.needed)
    if len(chains) < 2:
        return None
    lanes = _lanes(chains, order, gains, most)
    if len(lanes) < 2:
        return None
    return _with_waits(sorted(lanes, key=lambda steps: (steps[0] != 0, -len(steps), steps[0])), order.needed)


class _Order:
    """What each step comes after, and what comes after it.

    Args:
        before: Of each step, some of that from which all of it follows.
        ancestors: All of it.

    Attributes:
        needed: Of what each comes after, that which nothing else in it implies.
        ancestors, descendants: All of it, a bit for each step.
    """

    def __init__(self, before: Sequence[Iterable[int]], ancestors: list[int]) -> None:
        self.needed: list[tuple[int, ...]] = []
        self.ancestors = ancestors
        for steps in before:
            covered, needed = 0, []
            for step in sorted(steps, reverse=True):  # what implies others is later than they are
                if not covered >> step & 1:
                    needed.append(step)
                    covered |= ancestors[step] | 1 << step
            # The earliest first: where branches meet, what comes behind goes on with the first of them, which is on the
            # lane of what they began with.
            self.needed.append(tuple(reversed(needed)))
        self.descendants = [0] * len(before)
        for step in reversed(range(len(before))):
            for other in self.needed[step]:
                self.descendants[other] |= self.descendants[step] | 1 << step

    def related(self, step: int) -> int:
        """Return what comes before or after *step*, and itself."""
        return self.ancestors[step] | self.descendants[step] | 1 << step


def _chains(needed: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return as few chains as cover all steps, each step right behind one that it needs; sorted by their first steps.

    A maximum matching of steps with their successors, found by augmenting paths.
    """
    follows: list[int | None] = [None] * len(needed)
    for start in range(len(needed)):
        came: dict[int, tuple[int, int | None]] = {}
        todo: deque[tuple[int, int | None]] = deque([(start, None)])
        while todo:
            step, via = todo.popleft()
            free = None
            for other in needed[step]:
                if other in came:
                    continue
                came[other] = step, via
                successor = follows[other]
                if successor is None:
                    free = other
                    break
                todo.append((successor, other))
            if free is not None:
                at: int | None = free
                while at is not None:
                    follows[at], at = came[at]
                break
    first = set(range(len(needed))) - {s for s in follows if s is not None}
    chains = []
    for step in sorted(first):
        chain, next_step = [step], follows[step]
        while next_step is not None:
            chain.append(next_step)
            next_step = follows[next_step]
        chains.append(chain)
    return chains


def _lanes(chains: list[list[int]], order: _Order, gains: int, most: int) -> list[list[int]]:
    """Lay chains on lanes: where they keep the fewest steps from running side by side, then where they have most to do
    with what is there, so that fewer waits are needed."""
    lanes: list[list[int]] = []
    masks: list[int] = []
    for chain in chains:
        linked = 0
        for step in chain:
            linked |= order.descendants[step]
            for other in order.needed[step]:
                linked |= 1 << other
        gaining = [step for step in chain if gains >> step & 1]
        costs = []
        for number, mask in enumerate(masks):
            apart = sum((mask & gains & ~order.related(step)).bit_count() for step in gaining)
            costs.append((apart, -(mask & linked).bit_count(), number))
        best = min(costs, default=None)
        if best is None or (best[0] and len(lanes) < most):
            lanes.append([])
            masks.append(0)
            number = len(lanes) - 1
        else:
            number = best[2]
        lanes[number] = sorted([*lanes[number], *chain])
        masks[number] |= sum(1 << step for step in chain)
    return lanes


def _with_waits(lanes: list[list[int]], needed: Sequence[Sequence[int]]) -> Lanes:
    """Find the waits between lanes, none that others imply, and cut the lanes where there are some."""
    of = {step: lane for lane, steps in enumerate(lanes) for step in steps}
    count = len(lanes)
    # The newest step of each lane that a lane comes after, and the same of each step, itself included.
    behind = [[_NEVER] * count for _ in range(count)]
    behind[0][0] = START
    reach: dict[int, list[int]] = {START: list(behind[0])}
    of[START] = 0

    def minimal(lane: int, steps: Iterable[int]) -> list[int]:
        newest: dict[int, int] = {}
        for step in steps:
            other = of[step]
            if other != lane and step > behind[lane][other]:
                newest[other] = max(step, newest.get(other, _NEVER))
        return sorted(
            step for other, step in newest.items()
            if not any(reach[s][other] >= step for s in newest.values() if s != step)
        )  # fmt: skip

    waits: list[list[int]] = []
    for step in range(len(needed)):
        lane = of[step]
        begins = [START] if behind[lane][0] == _NEVER else []
        waits.append(minimal(lane, [*begins, *needed[step]]))
        for other in waits[-1]:
            behind[lane] = [max(pair) for pair in zip(behind[lane], reach[other], strict=True)]
        behind[lane][lane] = step
        reach[step] = list(behind[lane])
    joins = minimal(0, [steps[-1] for steps in lanes[1:]])
    marked = {step for steps in waits for step in steps} | set(joins)
    cuts = [s for s in range(len(needed)) if not s or waits[s] or s - 1 in marked or of[s] != of[s - 1]]
    number = {end - 1: place for place, end in enumerate([*cuts[1:], len(needed)])}
    number[START] = START
    segments = tuple([
        Segment(of[begin], begin, end, tuple([number[s] for s in waits[begin]]))
        for begin, end in zip(cuts, [*cuts[1:], len(needed)], strict=True)
    ])  # fmt: skip
    return Lanes(count, segments, tuple([number[s] for s in joins]))
