"""Events and how far streams have come."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asyncrt.events import Event, Timeline, latest

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
