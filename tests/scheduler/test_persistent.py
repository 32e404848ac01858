"""Kernels whose work-groups wait for each other never ask for more groups than the device holds."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from asyncrt.scheduler import persistent

UNITS, STREAMS, WANTED = (1, 2, 3, 4, 7, 66, 108, 132, 144), (1, 2, 3, 4, 8), (1, 5, 33, 132, 1000)


def together(groups_for: Callable[..., int]) -> list[tuple[int, int, int]]:
    """Return the cases in which requests on all streams, or one alone, ask for more than the device holds."""
    return [
        (units, streams, wanted)
        for units, streams, wanted in itertools.product(UNITS, STREAMS, WANTED)
        if streams * groups_for(wanted, units, streams, alone=False) > units
        or groups_for(wanted, units, streams, alone=True) > units
    ]


def test_all_streams_together_ask_for_no_more_groups_than_there_are() -> None:
    """Each group takes a compute unit for itself; a stream has one such kernel on the device at a time."""
    assert together(persistent.groups_for) == []


def test_a_request_that_is_alone_may_have_the_whole_device() -> None:
    """But no more groups than have something to do."""
    assert persistent.groups_for(1000, 132, 4, alone=True) == 132
    assert persistent.groups_for(24, 132, 4, alone=True) == 24
    assert persistent.groups_for(1000, 132, 4, alone=False) == 33


def test_where_there_are_more_streams_than_units_such_kernels_are_not_launched() -> None:
    """None of their groups could count on a unit."""
    assert persistent.groups_for(10, 3, 4, alone=False) == 0


@pytest.mark.parametrize(
    "mutant",
    [
        lambda wanted, units, streams, *, alone: min(wanted, units),
        lambda wanted, units, streams, *, alone: min(wanted, units if alone else -(-units // streams)),
        lambda wanted, units, streams, *, alone: wanted,
    ],
)
def test_a_rule_that_gives_more_groups_is_caught(mutant: Callable[..., int]) -> None:
    """The first test here would fail with it."""
    assert together(mutant)


def test_groups_that_share_steps_may_be_any_number_and_are_no_more_than_have_something_to_do() -> None:
    """A request beside others that is brief has one: a core for each."""
    assert persistent.groups_sharing(1000, 16, alone=True) == 16
    assert persistent.groups_sharing(3, 16, alone=True) == 3
    assert persistent.groups_sharing(1000, 16, alone=False) == 1
    assert persistent.groups_sharing(0, 16, alone=True) == 1
