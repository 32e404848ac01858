"""The checker of orders against brute force: on every small program it reports what is unordered, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrt.events import Event
from asyncrt.memory.hazards import (
    WHOLE,
    ByteAccess,
    Enqueued,
    Entry,
    HazardChecker,
    HostFinished,
    Marked,
    Region,
    Released,
    Seen,
    Touched,
    Waited,
    check,
    overlap,
)

from .orders import brute_force, cells


def pairs(log: Sequence[Entry]) -> set[tuple[int, int]]:
    """The same from the checker."""
    places: dict[tuple[int, int], int] = {}
    counts: dict[int, int] = {}
    checker, found = HazardChecker(STREAMS), set[tuple[int, int]]()
    for place, entry in enumerate(log):
        if isinstance(entry, Enqueued):
            counts[entry.stream] = counts.get(entry.stream, 0) + 1
            places[entry.stream, counts[entry.stream]] = place
        for hazard in checker.take(entry):
            assert hazard.first.stream is not None
            found.add((places[hazard.first.stream, hazard.first.number], place))
    return found


STREAMS = 3


@st.composite
def regions(draw: st.DrawFn) -> Region:
    axes = draw(st.integers(0, 3))
    shape = tuple(draw(st.integers(0 if axes else 1, 4)) for _ in range(axes))
    strides = tuple(draw(st.integers(-12, 12)) for _ in range(axes))
    lowest = sum(min(0, (n - 1) * s) for n, s in zip(shape, strides, strict=True))
    return Region(draw(st.integers(0, 20)) - lowest, draw(st.integers(0, 5)), shape, strides)


@given(regions(), regions())
@settings(max_examples=600)
def test_regions_overlap_if_they_share_a_byte(a: Region, b: Region) -> None:
    """Any shapes and strides, also interleaved, reversed and overlapping themselves."""
    shared = cells(a) & cells(b)

    assert overlap(a, b) == bool(shared)
    assert overlap(b, a) == bool(shared)


def test_rows_of_two_columns_do_not_meet() -> None:
    """A million rows each, and the answer does not take a million steps: a cache's heads lie so."""
    left = Region(0, 64, (1000, 1000), (128_000, 128))
    right = left._replace(offset=64)
    one_more = left._replace(offset=63)

    assert not overlap(left, right)
    assert overlap(left, one_more)
    assert overlap(left, WHOLE)



class Label(NamedTuple):
    """Of which request a command is."""

    request: int


@st.composite
def programs(draw: st.DrawFn) -> list[Entry]:
    """A log: commands on a few small memories, marks, waits for them, and what the host sees, touches and releases."""
    log: list[Entry] = []
    marks: list[Event] = []
    stamps = [0] * STREAMS
    alive = ["a", "b", "c"]
    for _ in range(draw(st.integers(1, 24))):
        stream = draw(st.integers(0, STREAMS - 1))
        accesses = tuple(
            ByteAccess(draw(st.sampled_from(alive)), draw(regions()), draw(st.booleans()))
            for _ in range(draw(st.integers(1, 2)))
        )
        match draw(st.sampled_from(["command"] * 5 + ["mark"] * 3 + ["wait"] * 3 + ["see", "touch", "release", "end"])):
            case "command":
                log.append(Enqueued(stream, Label(draw(st.integers(1, 2))), accesses))
            case "mark":
                stamps[stream] += 1
                marks.append(Event(stream, stamps[stream]))
                log.append(Marked(marks[-1]))
            case "wait" if marks:
                log.append(Waited(stream, draw(st.sampled_from(marks))))
            case "see" if marks:
                log.append(Seen(draw(st.sampled_from(marks))))
            case "touch":
                log.append(Touched("the host", accesses, draw(st.sampled_from([None, 1]))))
            case "release" if len(alive) > 1:
                log.append(Released("the end", alive.pop()))
            case "end":
                log.append(HostFinished())
    return log


def compare(log: Sequence[Entry]) -> None:
    """Of several accesses by one stream to the same bytes the newest stands for all; no other pair may be missing."""
    expected, found = brute_force(log), pairs(log)

    assert found <= expected
    assert {second for _, second in expected} == {second for _, second in found}


@given(programs())
@settings(max_examples=400)
def test_it_reports_what_no_path_orders_and_nothing_else(log: list[Entry]) -> None:
    """Random programs: what it finds is what a search for paths finds."""
    compare(log)


@given(programs())
@settings(max_examples=150)
def test_every_wait_that_is_taken_away_is_missed_where_nothing_else_orders(log: list[Entry]) -> None:
    """Each edge in turn, and each thing that the host has seen."""
    for place, entry in enumerate(log):
        if isinstance(entry, Waited | Seen):
            compare([*log[:place], *log[place + 1 :]])


def test_a_hazard_says_all_there_is_to_say() -> None:
    """Both commands, the bytes, and the order that is missing."""
    log: list[Entry] = [
        Enqueued(0, "request 1, 'conv', kernel k", (ByteAccess("arena", Region(0, 100), True),)),
        Marked(Event(0, 1)),
        Enqueued(0, "request 1, 'add', kernel a", (ByteAccess("arena", Region(64, 100), False),)),
        Waited(1, Event(0, 1)),
        Enqueued(1, "request 2, 'mul', kernel m", (ByteAccess("arena", Region(100, 50), True),)),
    ]

    (hazard,) = check(log)

    assert str(hazard) == (
        "write after read, bytes 100 to 150 of arena\n"
        "first   request 1, 'add', kernel a (stream 0, command 2): bytes 64 to 164\n"
        "second  request 2, 'mul', kernel m (stream 1, command 1): bytes 100 to 150\n"
        "missing stream 1 does not wait for command 2 of stream 0, nor did the host see it passed: "
        "it is known to come after 1 of that stream's commands"
    )


def test_a_host_that_looks_too_early_is_seen() -> None:
    """What a read fills may be looked at when the host has seen its mark, and not before."""
    read = Enqueued(0, "a read", (ByteAccess("array", Region(0, 8), True),))
    look = Touched("the caller", (ByteAccess("array", Region(0, 8), False),))
    mark = Marked(Event(0, 1))

    early, late = check([read, mark, look]), check([read, mark, Seen(Event(0, 1)), look])

    assert [h.kind for h in early] == ["read after write"]
    assert "the host did not see command 1 of stream 0 passed" in early[0].missing
    assert late == []


@pytest.mark.parametrize("streams", [1, 3])
def test_it_remembers_what_is_in_flight_alone(streams: int) -> None:
    """Ten thousand chunks over the same blocks, each seen in the end: nothing of those is kept."""
    checker, most = HazardChecker(streams), 0
    random = np.random.default_rng(0)
    for turn in range(10_000):
        stream = int(random.integers(streams))
        blocks = [ByteAccess((stream, int(b)), Region(int(b) * 8, 8), True) for b in random.integers(0, 50, 3)]
        stamp = turn + 1
        found = checker.take(Enqueued(stream, turn, tuple(blocks)))
        checker.take(Marked(Event(stream, stamp)))
        if turn % 4 == 3:
            checker.take(Seen(Event(stream, stamp)))
        most = max(most, checker.in_flight)

        assert found == []
    checker.take(HostFinished())

    assert most < 400
    assert checker.in_flight == 0
    assert checker.memories == 0
