"""Lanes keep every dependence, keep nothing else waiting while there are enough of them, and have no wait too many."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from asyncrt.scheduler.lanes import START, Lanes, find_lanes


def all_of(before: Sequence[object]) -> int:
    return (1 << len(before)) - 1


def closure(before: Sequence[set[int]]) -> list[int]:
    """All that each step comes after, a bit for each."""
    found: list[int] = []
    for steps in before:
        found.append(0)
        for step in steps:
            found[-1] |= found[step] | 1 << step
    return found


def fewest_chains(before: Sequence[set[int]]) -> int:
    """How few chains of steps, each behind one that it directly comes after, cover all: by trying paths."""
    every = closure(before)
    needed = [{s for s in steps if not any(every[o] >> s & 1 for o in steps)} for steps in before]
    follows: dict[int, int] = {}

    def place(step: int, tried: set[int]) -> bool:
        for other in needed[step] - tried:
            tried.add(other)
            if other not in follows or place(follows[other], tried):
                follows[other] = step
                return True
        return False

    return len(before) - sum(place(step, set()) for step in range(len(before)))


def drawn(seed: int) -> list[set[int]]:
    chance = random.Random(seed)
    density = chance.choice((0.05, 0.2, 0.5))
    return [{j for j in range(i) if chance.random() < density} for i in range(chance.randrange(2, 30))]


def inception(blocks: int) -> list[set[int]]:
    """Blocks of four branches of one to three steps, each begun by and ended by one step."""
    before: list[set[int]] = [set()]
    for _ in range(blocks):
        fork, ends = len(before) - 1, set()
        for length in (1, 2, 3, 2):
            last = fork
            for _ in range(length):
                before.append({last})
                last = len(before) - 1
            ends.add(last)
        before.append(ends)
    return before


def without(lanes: Lanes, place: int, wait: int) -> Lanes:
    """The same with one wait less."""
    segment = lanes.segments[place]
    waits = tuple(w for w in segment.waits if w != wait)
    before, after = lanes.segments[:place], lanes.segments[place + 1 :]
    return lanes._replace(segments=(*before, segment._replace(waits=waits), *after))


def test_every_step_is_there_once_and_behind_all_that_it_comes_after() -> None:
    """However many lanes there may be, and whichever steps gain by them."""
    found = 0
    for seed in range(1500):
        before = drawn(seed)
        chance = random.Random(seed)
        most, gains = chance.randrange(1, 6), chance.choice((all_of(before), chance.getrandbits(len(before))))
        lanes = find_lanes(before, gains, most)
        if lanes is None:
            continue
        found += 1

        assert 2 <= lanes.width <= most
        assert list(range(len(before))) == [s for x in lanes.segments for s in range(x.begin, x.end)]
        assert set(range(lanes.width)) == set(lanes.of_steps())
        for known, needed in zip(lanes.before(), closure(before), strict=True):
            assert known & needed == needed

    assert found > 500


def test_with_lanes_enough_nothing_waits_that_need_not() -> None:
    """The order by lanes and waits is that of the dependences, and no other."""
    found = 0
    for seed in range(500):
        before = drawn(seed)
        lanes = find_lanes(before, all_of(before), len(before))
        if lanes is not None:
            found += 1
            assert closure(before) == lanes.before()

    assert found > 100


def test_there_are_no_more_lanes_than_the_fewest_chains() -> None:
    """Found by a maximum matching; laying chains behind each other may make them fewer."""
    fewer = 0
    for seed in range(500):
        before = drawn(seed)
        chains = fewest_chains(before)
        lanes = find_lanes(before, all_of(before), len(before))

        width = 1 if lanes is None else lanes.width
        assert width <= chains
        fewer += width < chains

    assert fewer


def test_no_wait_is_implied_by_others() -> None:
    """Each taken out in turn: a step starts before something that it comes after."""
    taken = 0
    for seed in range(200):
        before = drawn(seed)
        lanes = find_lanes(before, all_of(before), 4)
        for place, segment in enumerate(() if lanes is None else lanes.segments):
            for wait in segment.waits:
                if wait != START:
                    taken += 1
                    assert lanes is not None
                    needed, known = closure(before)[segment.begin], without(lanes, place, wait).before()[segment.begin]
                    assert known & needed != needed, (seed, place, wait)

    assert taken > 100


def test_each_other_lane_begins_behind_the_start_and_is_joined_at_the_end() -> None:
    """By a wait of its own, or by one that implies it."""
    for seed in range(200):
        before = drawn(seed)
        lanes = find_lanes(before, all_of(before), 4)
        if lanes is None:
            continue
        begun = {0}
        ended = 0
        for number, segment in enumerate(lanes.segments):
            behind = {0 if w == START else lanes.segments[w].lane for w in segment.waits}
            assert segment.lane in begun or behind & begun, (seed, number)
            begun.add(segment.lane)
        before_all = lanes.before()
        own = [s.end - 1 for s in lanes.segments if s.lane == 0]
        for last in [own[-1], *(lanes.segments[j].end - 1 for j in lanes.joins)]:
            ended |= before_all[last] | 1 << last

        assert all_of(before) == ended


def test_branches_that_meet_again_and_again_share_the_same_lanes() -> None:
    """Four lanes for any number of blocks; in each block three branches begin elsewhere, and three ends are awaited."""
    one, ten = (find_lanes(b, all_of(b), 4) for b in (inception(1), inception(10)))

    assert one is not None
    assert ten is not None
    assert (one.width, one.waits) == (4, 6)
    assert (ten.width, ten.waits) == (4, 60)


@pytest.mark.parametrize(
    ("before", "gains", "most"),
    [
        pytest.param([{i - 1} if i else set() for i in range(20)], (1 << 20) - 1, 4, id="a chain"),
        pytest.param(inception(3), (1 << 28) - 1, 1, id="one stream"),
        pytest.param(inception(3), 0, 4, id="nothing gains"),
        pytest.param([set(), {0}, {0}, {1, 2}], 0b0010, 4, id="one step gains, and no other beside it"),
        pytest.param([set(), {0}, {0}, {1, 2}], 0b1011, 4, id="those that gain come after each other"),
        pytest.param([], 0, 4, id="nothing"),
    ],
)
def test_where_there_is_nothing_to_gain_there_is_one_lane(before: list[set[int]], gains: int, most: int) -> None:
    """And no waits."""
    assert find_lanes(before, gains, most) is None


def test_a_short_branch_stays_on_the_lane_of_what_it_has_to_do_with() -> None:
    """Only steps that gain are kept apart: here the two longer branches, and not the one of a single step."""
    before: list[set[int]] = [set(), {0}, {1}, {0}, {3}, {0}, {2, 4, 5}]

    lanes = find_lanes(before, 0b11110, 4)

    assert lanes is not None
    assert lanes.width == 2
