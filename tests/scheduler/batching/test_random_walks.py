"""Batching under callers who come, leave, hurry and fail at random."""

from __future__ import annotations

import math
import random
from typing import Literal

import pytest

from asyncrt.scheduler.batching import BatchOptions, BatchShape

from .world import Caller, World, about, poisson


def random_world(seed: int, count: int, at_once: Literal["one", "two"] | None = None) -> World:
    """Run *count* callers through options and streams that the seed draws; the state is checked at every step."""
    chance = random.Random(seed)
    options = BatchOptions(
        max_batch=chance.choice((1, 2, 5, 16)),
        max_delay=chance.choice((0.0, 0.001, 0.02)),
        mode=chance.choice(("cost", "cost", "exact", "buckets")),
        max_waste=chance.choice((0.0, 0.25, 0.6)),
        max_work=chance.choice((None, 200, 4000)),
        max_queue=chance.choice((3, 50, 1000)),
        max_queue_bytes=chance.choice((100, 10_000)),
        ageing_s=chance.choice((0.01, 0.1, 1.0)),
    )
    kinds = chance.randrange(1, 4)
    rate = chance.choice((50.0, 400.0, 2000.0))
    bad = {n for n in range(count) if chance.random() < 0.02}
    world = World(
        options, streams=chance.randrange(1, 4), fails=lambda members: not bad.isdisjoint(members), at_once=at_once
    )
    at, callers = 0.0, []
    for _ in range(count):
        at += chance.expovariate(rate)
        sizes = (chance.randrange(1, 60), chance.choice((4, 8)))
        form = BatchShape(chance.randrange(kinds), sizes, ((2, (0,)), (1, (0, 1))))
        callers.append(
            Caller(
                at,
                form,
                rows=chance.choice((1, 1, 1, 2, 7)),
                priority=chance.choice((0, 0, 0, 1, 9)),
                deadline=chance.choice((math.inf, math.inf, 0.005, 0.05, 0.5)),
                patience=chance.choice((math.inf, math.inf, 0.0, 0.002, 0.03)),
                nbytes=chance.randrange(60),
            )
        )
    world.run(callers)
    return world


@pytest.mark.parametrize("seed", range(20))
def test_every_caller_is_told_once_whatever_happens(seed: int) -> None:
    """Ten thousand in all: answered, refused, failed or gone, and nothing of them is left behind.

    `World` sees to it that nobody is answered twice or in two batches, that members fit together and into what they
    are padded to, and that no batch that begins has a member who has left.
    """
    world = random_world(seed, 500)

    statistics = world.state.statistics()
    fates = [(t.answered is not None) + bool(t.refused) + (t.left is not None) for t in world.told]
    assert fates == [1] * 500
    assert sum(statistics.reasons.values()) == statistics.executions == len(world.begun)
    assert statistics.members == sum(map(len, world.begun.values()))
    assert statistics.requests == 500
    assert (statistics.waiting, statistics.waiting_nbytes, statistics.in_flight) == (0, 0, 0)
    refused = sum(t.refused in ("count", "bytes", "late", "missed") for t in world.told)
    assert sum(statistics.rejected.values()) == refused


def test_a_walk_goes_the_same_way_again() -> None:
    """The same happenings give the same instructions."""
    one, other = random_world(0, 300), random_world(0, 300)

    assert one.launches == other.launches
    assert len({launch.reason for launch in one.launches}) > 1


@pytest.mark.parametrize("seed", range(20))
def test_a_request_that_begins_when_it_comes_is_told_of_in_one_call_or_two(seed: int) -> None:
    """Whichever way, the same becomes of everybody, and every story and every count is the same."""
    one, two = (random_world(seed, 300, at_once=way) for way in ("one", "two"))

    assert one.told == two.told
    assert one.begun == two.begun
    assert one.state.statistics() == two.state.statistics()
    assert [one.state.story(n) for n in range(300)] == [two.state.story(n) for n in range(300)]
    assert repr(one.state) == repr(two.state)  # with what was learned of costs


@pytest.mark.parametrize("seed", range(5))
def test_with_several_streams_the_delay_changes_nothing(seed: int) -> None:
    """Behind a batch that runs nothing goes, so nothing is held back from there."""
    forms = [BatchShape((), (8 + n * 7 % 50,), ((1, (0,)),)) for n in range(300)]
    worlds = [World(BatchOptions(max_delay=delay), streams=2) for delay in (0.0, 0.002, 10.0)]

    for world in worlds:
        world.run(poisson(900.0, forms, seed, deadline=0.05))

    assert worlds[0].launches == worlds[1].launches == worlds[2].launches
    assert {launch.reason for launch in worlds[0].launches} == {"idle"}


def test_only_the_guilty_fail() -> None:
    """Who was in a batch with one that fails is answered from a run of its own."""
    world = World(BatchOptions(max_delay=0.01), fails=lambda members: 5 in members, seconds=about)

    told = world.run([Caller(0.0, BatchShape("a", (n,), ((1, (0,)),))) for n in (8, 9, 8, 9, 8, 9, 8, 9)])

    assert [n for n, t in enumerate(told) if t.refused] == [5]
    assert world.state.statistics().failed == 1
