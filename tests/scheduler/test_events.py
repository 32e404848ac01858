"""Events and how far streams have come."""

from __future__ import annotations

import random
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from asyncrt.events import Event, Order, Timeline, latest

EVENTS = st.lists(st.builds(Event, st.integers(0, 3), st.integers(1, 20)))


@given(EVENTS)
def test_the_latest_stand_for_all(events: list[Event]) -> None:
    """One event per stream, and whoever waits for them waits for all."""
    newest = latest(events)

    assert len({e.stream for e in newest}) == len(newest)
    assert set(newest) <= set(events)
    assert all(any(n.stream == e.stream and n.stamp >= e.stamp for n in newest) for e in events)


@given(EVENTS, EVENTS)
def test_reached_means_reached_by_its_stream(reached: list[Event], asked: list[Event]) -> None:
    """What a stream has passed includes all before it, and says nothing of other streams."""
    timeline = Timeline(4)
    for event in reached:
        timeline.advance(event)

    expected = tuple(a for a in asked if not any(r.stream == a.stream and r.stamp >= a.stamp for r in reached))

    assert expected == timeline.pending(asked)
    assert all(timeline.reached(a) == (a not in expected) for a in asked)
    assert timeline.streams == 4


def test_a_wait_is_needed_where_nothing_enqueued_before_implies_it() -> None:
    """A search through all that was enqueued finds the same, with every event still to come."""
    for seed in range(200):
        chance = random.Random(seed)
        order = Order(3)
        #: What each event comes after at once: the one before it on its stream, and what its stream has waited for.
        after: dict[Event, set[Event]] = {}
        waits: list[set[Event]] = [set(), set(), set()]
        newest = [0, 0, 0]
        for _ in range(20):
            stream = chance.randrange(3)
            events = set(chance.sample(sorted(after), min(len(after), 2)))
            asked = events - {e for e in events if e.stream == stream}

            needed = order.needed(stream, asked)

            own = waits[stream] | ({Event(stream, newest[stream])} if newest[stream] else set())
            assert asked <= behind(own | set(needed), after)
            for event in needed:
                assert event not in behind(own | set(needed) - {event}, after)
            order.waited(stream, needed)
            waits[stream] |= set(needed)
            if chance.random() < 0.7:
                newest[stream] += 1
                event = Event(stream, newest[stream])
                after[event] = own | waits[stream]
                order.marked(event)


def behind(ends: set[Event], after: Mapping[Event, set[Event]]) -> set[Event]:
    """All that has to be reached for all of *ends* to be; on a stream that is all before them."""
    found: set[Event] = set()
    to_do = list(ends)
    while to_do:
        event = to_do.pop()
        if event not in found:
            found.add(event)
            to_do += after[event]
    return found
