"""A request goes to the device where it ends first, going by what was seen; with times that the tests choose."""

from __future__ import annotations

import pytest

from asyncrt.scheduler.balancing import Backlog, Candidate, Costs, choose


@pytest.mark.parametrize(
    ("candidates", "chosen"),
    [
        ([Candidate("a", 0, 10), Candidate("b", 0, 10)], 0),
        ([Candidate("a", 10, 10), Candidate("b", 0, 10)], 1),
        ([Candidate("slow", 0, 30), Candidate("fast", 19, 10)], 1),
        ([Candidate("slow", 0, 30), Candidate("fast", 21, 10)], 0),
        ([Candidate("known", 0, 10), Candidate("new", 0, None)], 0),
        ([Candidate("known", 1, 10), Candidate("new", 0, None)], 1),
        ([Candidate("new", 1, None), Candidate("newer", 0, None)], 1),
    ],
)
def test_a_request_goes_where_it_ends_first(candidates: list[Candidate], chosen: int) -> None:
    """Of equal ones to the first; one of which nothing is known is tried as soon as the others are busy."""
    assert choose(candidates).chosen == chosen


def test_a_choice_says_why() -> None:
    """With the time of each device."""
    choice = choose([Candidate("gpu:0", 3_000_000, 1_000_000), Candidate("gpu:1", 1_000_000, None)])

    assert choice.why == "it was to end on gpu:1 in 2 ms; on gpu:0 in 4 ms"


def test_what_is_left_of_a_backlog() -> None:
    """All that was given and has not ended, less what the first of it has had of the device."""
    backlog = Backlog()
    assert backlog.left_ns(5) == 0

    backlog.begin(100, 1, 40)
    backlog.begin(110, 2, 60)
    assert backlog.left_ns(120) == 80
    assert backlog.left_ns(1000) == 60  # the first is late, which says nothing of the second

    assert backlog.end(150, 1) == 50
    assert backlog.left_ns(150) == 60
    backlog.drop(2)
    assert (len(backlog), backlog.left_ns(150)) == (0, 0)


def test_requests_side_by_side_share_the_time_of_their_device() -> None:
    """Four that a device runs at once in 80 took 20 of it each, on average; a rest before them counts for nothing."""
    backlog = Backlog()
    for request in range(4):
        backlog.begin(1000, request, 0)

    took = [backlog.end(now, request) for request, now in enumerate((1070, 1074, 1078, 1080))]

    assert sum(took) == 80
    backlog.begin(5000, 9, 0)
    assert backlog.end(5020, 9) == 20


def test_costs_are_averages_of_requests_of_a_kind() -> None:
    """What is not like any that was seen is guessed by its size."""
    costs = Costs()
    assert costs.of("small", 10) is None

    for ns in (1_000_000, 3_000_000):
        costs.took("small", 10, ns)

    assert costs.of("small", 10) == 2_000_000
    assert costs.of("large", 40) == pytest.approx(8_000_000, rel=0.01)


def test_one_that_was_held_up_counts_for_little() -> None:
    """A pause of the host is no property of a request; a device that has become slow is noticed all the same."""
    costs = Costs()
    for _ in range(20):
        costs.took("small", 10, 1_000_000)

    costs.took("small", 10, 10_000_000_000)
    assert costs.of("small", 10) == pytest.approx(1_000_000, rel=0.2)

    for _ in range(100):
        costs.took("small", 10, 8_000_000)
    assert costs.of("small", 10) == pytest.approx(8_000_000, rel=0.05)


def test_a_device_that_was_slow_once_is_tried_again() -> None:
    """The less is believed of what was seen there, the more often others were taken."""
    costs, known = Costs(), Candidate("other", 0, 1_000_000)
    costs.took("small", 10, 5_000_000)

    passed_over = 0
    while choose([known, Candidate("once slow", 0, costs.of("small", 10))]).chosen == 0:
        costs.passed_over("small")
        passed_over += 1

    assert 100 < passed_over < 1000
    costs.passed_over("never seen")
