"""Work beside requests: early in the gaps between them, freely where nobody comes, and nowhere else."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from asyncrt.runtime.loop.gaps import Gaps


class Clock:
    """Time that the test lets pass."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gaps(clock: Clock) -> Iterator[Gaps]:
    gaps = Gaps(clock)
    with gaps:
        yield gaps


def come(gaps: Gaps, clock: Clock, gap: float, requests: int = 1) -> None:
    """Let requests come that take a millisecond, each so long after the one before it."""
    for _ in range(requests):
        clock.now += gap
        gaps.begin()
        clock.now += 1e-3
        gaps.end()


def test_where_no_request_comes_work_goes_on(gaps: Gaps, clock: Clock) -> None:
    """From the beginning, and again half a second after the last one."""
    assert gaps.open

    come(gaps, clock, 0.004, 10)
    clock.now += 0.3
    assert not gaps.open
    clock.now += 0.3
    assert gaps.open


def test_work_begins_when_a_request_has_ended_and_stops_long_before_the_next(gaps: Gaps, clock: Clock) -> None:
    """A step that has begun then is done when the next request comes."""
    come(gaps, clock, 0.004, 10)

    assert gaps.open
    clock.now += 0.0005
    assert gaps.open
    clock.now += 0.001
    assert not gaps.open
    gaps.begin()
    assert not gaps.open


def test_few_gaps_are_shorter_than_is_expected(gaps: Gaps, clock: Clock) -> None:
    """Callers come as they like: of gaps of all lengths, one in a hundred or so is shorter."""
    come(gaps, clock, 0.01, 10)
    shorter = 0
    for i in range(5000):
        gap = (i * 7919 % 1000 + 1) / 1000 * 0.01  # each length as often as the others, in no order
        shorter += gap < gaps.expected_s
        come(gaps, clock, gap)

    assert 10 <= shorter <= 100


def test_gaps_without_any_length_are_of_no_use(gaps: Gaps, clock: Clock) -> None:
    """A caller who asks at once again leaves none; one who pauses again makes them useful after a while."""
    come(gaps, clock, 1e-5, 20)
    assert not gaps.useful

    come(gaps, clock, 0.004, 2000)
    assert gaps.useful


def test_who_waits_is_told_of_the_next_gap(gaps: Gaps, clock: Clock) -> None:
    """Or that it is not worth waiting any more."""
    come(gaps, clock, 0.004, 10)
    gaps.begin()
    told = threading.Thread(target=gaps.wait, args=(600.0, threading.Event()))
    told.start()
    while told.is_alive():  # whether it waits by now or looks first
        gaps.end()

    gaps.begin()
    over = threading.Event()
    over.set()
    gaps.wait(600.0, over)


def test_what_was_before_somebody_listens_counts_for_nothing(gaps: Gaps, clock: Clock) -> None:
    """Nobody need say that requests come while nobody listens."""
    come(gaps, clock, 1e-5, 20)
    gaps.begin()
    gaps.__exit__()
    with gaps:
        assert gaps.open
        assert gaps.useful
    gaps.__enter__()
