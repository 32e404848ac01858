"""Policies: found by the names of their files, each fit for use."""

from __future__ import annotations

import pytest

from asyncrt.scheduler.policies import StreamView, make_policy, policy_names
from asyncrt.scheduler.policies.fifo import DEPTH
from asyncrt.scheduler.queue import PATIENCE


def calm(*depths: int) -> list[StreamView]:
    return [StreamView(number, depth) for number, depth in enumerate(depths)]


def test_policies_are_the_files_of_the_folder() -> None:
    """The contract itself is not one."""
    assert {"auto", "critical_path", "fifo", "sticky"} <= set(policy_names())
    assert "base" not in policy_names()


def test_an_unknown_policy_is_refused() -> None:
    """The error names those there are."""
    with pytest.raises(ValueError, match=r"policy 'lifo' is not one of auto, critical_path, fifo, sticky"):
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


def busy(*works: int) -> list[StreamView]:
    """Streams with one chunk each, of so much work."""
    return [StreamView(number, 1, work) for number, work in enumerate(works)]


def test_critical_path_lets_the_largest_go_first_to_where_it_is_done_soonest() -> None:
    """Of one priority and deadline; how many chunks a stream has does not matter."""
    policy = make_policy("critical_path")
    for request, priority, work in ((1, 0, 5), (2, 0, 90), (3, -1, 1), (4, 0, 7)):
        policy.push(request, priority, None, None, work)

    assert [policy.pop(busy(50, 10)) for _ in range(2)] == [(3, 1), (2, 1)]
    assert policy.pop([StreamView(0, 1, 100), StreamView(1, DEPTH - 1, 99)]) == (4, 1)
    assert policy.pop([StreamView(0, 1, 100), StreamView(1, DEPTH, 0)]) == (1, 0)


def test_largest_first_starves_nobody() -> None:
    """A small one goes after so many larger ones at the latest."""
    policy = make_policy("critical_path")
    policy.push(1, 0, None, None, 1)
    for request in range(2, 40):
        policy.push(request, 0, None, None, 9)

    went = [policy.pop(busy(0)) for _ in range(20)]

    assert went.index((1, 0)) == PATIENCE


def test_auto_stays_where_it_was_unless_another_stream_has_less_to_do() -> None:
    """Less by more than the request itself; a request that was nowhere goes where there is least."""
    policy = make_policy("auto")
    choices: list[object] = []
    for streams in (busy(0, 5), busy(0, 6), busy(9, 2)):
        policy.push(1, 0, 1, None, 5)
        choices.append(policy.pop(streams))
    policy.push(2, 0, None, None, 5)
    choices.append(policy.pop(busy(3, 2, 4)))
    policy.push(3, 0, 0, None, 5)
    choices.append(policy.pop([StreamView(0, DEPTH, 0), StreamView(1, 1, 100)]))

    assert choices == [(1, 1), (1, 0), (1, 1), (2, 1), (3, 1)]


def test_auto_goes_in_the_order_of_those_who_wait() -> None:
    """However large they are."""
    policy = make_policy("auto")
    policy.push(1, 0, None, None, 5)
    policy.push(2, 0, None, None, 90)

    assert [policy.pop(busy(0)), policy.pop(busy(0))] == [(1, 0), (2, 0)]
