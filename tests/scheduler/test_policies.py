"""Policies: found by the names of their files, each fit for use."""

from __future__ import annotations

import pytest

from asyncrt.scheduler.policies import StreamView, make_policy, policy_names
from asyncrt.scheduler.policies.fifo import DEPTH


def calm(*depths: int) -> list[StreamView]:
    return [StreamView(number, depth) for number, depth in enumerate(depths)]


def test_policies_are_the_files_of_the_folder() -> None:
    """The contract itself is not one."""
    assert {"fifo", "sticky"} <= set(policy_names())
    assert "base" not in policy_names()


def test_an_unknown_policy_is_refused() -> None:
    """The error names those there are."""
    with pytest.raises(ValueError, match=r"policy 'lifo' is not one of fifo, sticky"):
        make_policy("lifo")


@pytest.mark.parametrize("name", policy_names())
def test_the_more_urgent_goes_first(name: str) -> None:
    """Lower numbers first; equal ones in the order they came."""
    policy = make_policy(name)
    for request, priority in ((1, 0), (2, 5), (3, -1), (4, 0)):
        policy.push(request, priority, None)

    popped = [policy.pop(calm(0, 1)) for _ in range(5)]

    assert popped == [(3, 0), (1, 0), (4, 0), (2, 0), None]


@pytest.mark.parametrize("name", policy_names())
def test_nothing_goes_to_full_streams(name: str) -> None:
    """It stays for the next time."""
    policy = make_policy(name)
    policy.push(1, 0, None)

    assert policy.pop(calm(DEPTH, DEPTH)) is None
    assert policy.pop(calm(DEPTH, DEPTH - 1)) == (1, 1)


@pytest.mark.parametrize("name", policy_names())
def test_a_discarded_request_is_forgotten(name: str) -> None:
    """And discarding one that is not here does nothing."""
    policy = make_policy(name)
    policy.push(1, 0, None)
    policy.push(2, 0, None)
    policy.discard(1)
    policy.discard(3)

    assert [policy.pop(calm(0)), policy.pop(calm(0))] == [(2, 0), None]


@pytest.mark.parametrize("name", policy_names())
def test_two_policies_share_nothing(name: str) -> None:
    """Each runtime has its own."""
    one, other = make_policy(name), make_policy(name)
    one.push(1, 0, None)

    assert other.pop(calm(0)) is None


def test_sticky_stays_on_its_stream() -> None:
    """Even if another is calmer; while its own is full, others pass."""
    policy = make_policy("sticky")
    policy.push(1, 0, 1)
    policy.push(2, 0, None)

    assert policy.pop(calm(0, DEPTH)) == (2, 0)
    assert policy.pop(calm(0, DEPTH)) is None
    assert policy.pop(calm(0, DEPTH - 1)) == (1, 1)


def test_fifo_goes_where_it_is_calm() -> None:
    """Where a request ran before does not matter."""
    policy = make_policy("fifo")
    policy.push(1, 0, 1)

    assert policy.pop(calm(0, 1)) == (1, 0)
