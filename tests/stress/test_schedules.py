"""Every order of a few requests, and many orders of more: no block has two users, and nothing is left over."""

from __future__ import annotations

from typing import Any

import pytest

from asyncrt.memory.buffer import Lease
from asyncrt.memory.pool import MemoryPool
from asyncrt.scheduler.policies import policy_names

from .schedules import Violation, World, explore, random_schedule

SEEDS = range(1500)


@pytest.mark.parametrize("policy", policy_names())
@pytest.mark.parametrize(
    ("requests", "more"),
    [
        ([(100, 5000), (5000, 100)], {}),
        ([(5000,), (5000, 100)], {"limit": 1 << 14}),
        ([(100, 5000), (5000,)], {"reuse": False}),
        ([(100,), (100,), (100,)], {"cancels": False, "limit": 8192}),
        ([(100,), (100,), (100,)], {"max_in_flight": 1}),
        ([(100, 5000), (5000,)], {"branches": True}),
    ],
    ids=[
        "two of two chunks", "little memory", "no reuse", "memory for two of three", "one after the other", "branches",
    ],
)
def test_every_order_of_a_few_requests(requests: Any, more: dict[str, Any], policy: str) -> None:
    """Callers may be cancelled and chunks fail to be enqueued at any time; streams report as late as they like."""
    explored = explore(World(requests, policy=policy, **more), most=50_000)

    assert explored.complete
    assert explored.ends > 1
    assert explored.states > 200


def test_many_orders_of_more_requests() -> None:
    """Up to six requests of up to three chunks on up to three streams, in more or less memory."""
    worlds = [random_schedule(seed, check=seed % 10 == 0) for seed in SEEDS]

    refused = sum(w.refused for w in worlds)
    waited = sum(w.pool.statistics().reused_with_wait for w in worlds)
    assert refused > 100, "memory was never short"
    assert waited > 50, "no block was taken over from another stream"
    assert sum(w.spread for w in worlds) > 500, "hardly any chunk was on several streams"


@pytest.fixture
def forgetful_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is told what else uses a block."""
    acquire = MemoryPool.acquire
    monkeypatch.setattr(MemoryPool, "acquire", lambda *args: acquire(*args)._replace(waits=()))


@pytest.mark.usefixtures("forgetful_pool")
def test_a_wait_that_is_missing_is_found() -> None:
    """Whoever takes a block over from another stream must wait."""
    assert violations()


def test_memory_that_comes_back_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that ends without the events of its user."""
    drop = Lease.drop
    monkeypatch.setattr(Lease, "drop", lambda lease, after=(): drop(lease))

    assert violations()


def violations() -> dict[int, str]:
    """What is found among the first seeds, by seed."""
    found: dict[int, str] = {}
    for seed in range(300):
        try:
            random_schedule(seed)
        except Violation as violation:
            found[seed] = f"{violation}\n{violation.__notes__}"
    return found


@pytest.mark.usefixtures("forgetful_pool")
def test_a_violation_says_how_to_see_it_again() -> None:
    """Its seed is named, and gives the same schedule and the same violation."""
    first, again = violations(), violations()

    assert first == again
    assert all(f"seed {seed}, after submit 1, " in text for seed, text in first.items())
