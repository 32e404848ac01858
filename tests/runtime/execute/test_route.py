"""Which way a chunk goes to the device: one decision, and why."""

from __future__ import annotations

import attrs
import pytest

from asyncrt.runtime.execute.route import choose_route
from asyncrt.scheduler.lanes import START, Lanes, Segment

LANES = Lanes(3, (Segment(0, 0, 1, ()), Segment(1, 1, 2, (START,)), Segment(2, 2, 3, (START,))), (1, 2))


@attrs.define
class Launches:
    """Prepared ones that nobody enqueues."""

    long: bool = False
    busy: bool = False

    def bind(self, memory: object) -> None:
        raise AssertionError

    def launch(self, stream: object, stop: object = None) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    ("idle", "streams"),
    [([], None), ([4], (1, 4, 1)), ([4, 0], (1, 4, 0)), ([4, 0, 2], (1, 4, 0))],
    ids=["none is idle", "one is", "as many as lanes", "more"],
)
def test_lanes_go_to_idle_streams_and_the_rest_to_the_chunks_own(
    idle: list[int], streams: tuple[int, ...] | None
) -> None:
    """Its own is the first; where no other is idle, all of it is enqueued there."""
    route = choose_route(1, LANES, idle, None, True, False)

    assert streams == (None if route.streams is None else tuple(route.streams))
    assert ("no other is idle" in route.why) is (streams is None)


def test_a_plan_of_one_lane_stays_on_its_stream() -> None:
    """Whoever else is idle."""
    route = choose_route(1, None, [0, 2], None, True, False)

    assert None is route.streams
    assert "its plan has one lane" in route.why


@pytest.mark.parametrize("lanes", [None, LANES], ids=["one lane", "lanes"])
@pytest.mark.parametrize(
    ("prepares", "traced", "why"),
    [(True, False, "none are prepared"), (False, False, "the runtime prepares none"), (True, True, "a trace")],
    ids=["not yet", "never", "traced"],
)
def test_without_prepared_launches_each_gets_its_arguments_now(
    lanes: Lanes | None, prepares: bool, traced: bool, why: str
) -> None:
    """And the route says why there are none."""
    route = choose_route(1, lanes, [0], None, prepares, traced)

    assert not route.prepared
    assert not route.on_thread
    assert why in route.why


@pytest.mark.parametrize("long", [False, True], ids=["short", "long"])
def test_a_thread_enqueues_prepared_launches_that_take_long(long: bool) -> None:
    """The event loop enqueues the others."""
    route = choose_route(1, None, [], [Launches(long)], True, False)

    assert (True, long) == (route.prepared, route.on_thread)
    assert ("thread" in route.why) is long


def test_lanes_are_enqueued_by_the_loop_however_long_that_takes() -> None:
    """Their marks and waits are between them, and those are the loop's to put."""
    route = choose_route(1, LANES, [0], [Launches(long=True) for _ in LANES.segments], True, False)

    assert route.prepared
    assert not route.on_thread
    assert route.streams == (1, 0, 1)
