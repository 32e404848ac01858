"""The scheduler, happening by happening."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from asyncrt.events import Event
from asyncrt.scheduler.happenings import (
    Elapsed,
    Ended,
    Happening,
    InvalidHappening,
    Launched,
    Reached,
    Ready,
    Submitted,
)
from asyncrt.scheduler.instructions import Admit, Expire, LaunchChunk, Resume
from asyncrt.scheduler.policies import make_policy, policy_names
from asyncrt.scheduler.policies.fifo import DEPTH
from asyncrt.scheduler.queue import PATIENCE
from asyncrt.scheduler.state import SchedulerState


@pytest.fixture
def state() -> Iterator[SchedulerState]:
    state = SchedulerState(2, make_policy("fifo"), max_in_flight=2)
    yield state
    state.check()


def tell(state: SchedulerState, *happenings: Happening) -> list[object]:
    """Tell all *happenings* and return the instructions of the last."""
    given: list[object] = []
    for happening in happenings:
        given = [*state.handle(happening)]
        state.check()
    return given


def test_a_request_of_two_chunks(state: SchedulerState) -> None:
    """Admitted, launched, resumed, launched where it is calm, resumed, ended."""
    first, second = Event(0, 1), Event(0, 2)

    assert [Admit(1)] == tell(state, Submitted(1))
    assert [LaunchChunk(1, 0)] == tell(state, Ready(1))
    assert tell(state, Launched(1, first)) == []
    assert [Resume(1, first)] == tell(state, Reached(first))
    assert [LaunchChunk(1, 0)] == tell(state, Ready(1))
    assert [Resume(1, second)] == tell(state, Launched(1, second), Reached(second))
    assert tell(state, Ended(1)) == []
    assert state.idle


def test_no_more_are_admitted_than_allowed(state: SchedulerState) -> None:
    """The third waits until one of two ends."""
    assert tell(state, Submitted(1), Submitted(2), Submitted(3)) == []
    assert [Admit(3)] == tell(state, Ended(1))


def test_the_more_urgent_is_admitted_first(state: SchedulerState) -> None:
    """Lower numbers first; equal ones in the order they came."""
    tell(state, Submitted(1), Submitted(2), Submitted(3, 5), Submitted(4, -1), Submitted(5, 5))

    assert [Admit(4)] == tell(state, Ended(1))
    assert [Admit(3)] == tell(state, Ended(2))
    assert [Admit(5)] == tell(state, Ended(3))


def test_chunks_go_to_the_stream_with_the_least_in_flight(state: SchedulerState) -> None:
    """Two requests go to two streams."""
    tell(state, Submitted(1), Submitted(2), Ready(1))

    assert [LaunchChunk(2, 1)] == tell(state, Ready(2))


def test_reaching_a_place_reaches_all_before_it(state: SchedulerState) -> None:
    """A stream is in order: one report may stand for several."""
    tell(state, Submitted(1), Submitted(2), Ready(1), Launched(1, Event(0, 1)))
    state.abandoned(Event(1, 1))
    tell(state, Ready(2), Launched(2, Event(0, 2)))

    assert [Resume(1, Event(0, 1)), Resume(2, Event(0, 2))] == tell(state, Reached(Event(0, 2)))
    assert tell(state, Reached(Event(0, 1))) == []
    assert not state.idle
    assert tell(state, Reached(Event(1, 1))) == []


@pytest.mark.parametrize("name", policy_names())
def test_full_streams_hold_the_next_chunk_back(name: str) -> None:
    """No stream gets more than its depth; what is ready goes as soon as one is passed."""
    state = SchedulerState(1, make_policy(name), max_in_flight=DEPTH + 2)
    for request in range(DEPTH):
        tell(state, Submitted(request), Ready(request), Launched(request, Event(0, request + 1)))
    tell(state, Submitted(90), Submitted(91, -1))

    assert tell(state, Ready(90), Ready(91)) == []
    assert [Resume(0, Event(0, 1)), LaunchChunk(91, 0)] == tell(state, Reached(Event(0, 1)))
    assert [Resume(1, Event(0, 2))] == tell(state, Launched(91, Event(0, DEPTH + 1)), Reached(Event(0, 2)))[:1]


#: From the admission of request 1 to each state that it can be in, with what is in flight then.
STATES: dict[str, list[Happening]] = {
    "waiting": [Submitted(8), Submitted(9), Submitted(1)],
    "preparing": [Submitted(1)],
    "launching": [Submitted(1), Ready(1)],
    "running": [Submitted(1), Ready(1), Launched(1, Event(0, 1))],
    "preparing the next": [Submitted(1), Ready(1), Launched(1, Event(0, 1)), Reached(Event(0, 1))],
}


@pytest.mark.parametrize("before", STATES.values(), ids=STATES)
def test_a_request_may_end_in_any_state(before: list[Happening], state: SchedulerState) -> None:
    """Nothing of it is left but what the device still has to pass."""
    tell(state, *before)
    tell(state, Ended(1), Ended(1))
    for request in (8, 9):
        tell(state, Ended(request))
    given = tell(state, Reached(Event(0, 1))) if Launched(1, Event(0, 1)) in before else []

    assert given == []
    assert state.idle
    assert repr(state) == "<SchedulerState 0 admitted, 0 waiting, 0 ready, 0 running; stream depths [0, 0]>"


@pytest.mark.parametrize("name", policy_names())
def test_a_ready_request_may_end(name: str) -> None:
    """One that is held back by full streams is not launched after its end."""
    state = SchedulerState(1, make_policy(name))
    for request in range(DEPTH):
        tell(state, Submitted(request), Ready(request), Launched(request, Event(0, request + 1)))
    tell(state, Submitted(90), Ready(90), Ended(90))

    assert [Resume(0, Event(0, 1))] == tell(state, Reached(Event(0, 1)))


def test_many_that_end_while_they_wait_leave_nothing(state: SchedulerState) -> None:
    """Callers that time out under load must not make the queue grow, nor may they be admitted later."""
    tell(state, Submitted(1), Submitted(2))
    for request in range(10, 1010):
        tell(state, Submitted(request, request % 7), Ended(request))

    assert state.waiting in ([], [2])
    assert [Admit(5000)] == tell(state, Submitted(5000), Ended(1))


INVALID: list[tuple[list[Happening], Happening, str]] = [
    ([], Ready(1), "request 1: it is unknown, not preparing"),
    ([], Launched(1, Event(0, 1)), "it is unknown, not launching"),
    (STATES["preparing"], Submitted(1), "it was submitted before"),
    (STATES["waiting"], Ready(1), "it is waiting, not preparing"),
    (STATES["preparing"], Launched(1, Event(0, 1)), "it is preparing, not launching"),
    (STATES["launching"], Ready(1), "it is launching, not preparing"),
    (STATES["launching"], Launched(1, Event(1, 1)), "it was to be launched on stream 0"),
    (STATES["running"], Launched(1, Event(0, 2)), "it is running, not launching"),
    ([*STATES["preparing the next"], Ready(1)], Launched(1, Event(0, 1)), "stream 0 came to stamp 1 before"),
    ([*STATES["running"], Ended(1)], Ready(1), "it is unknown, not preparing"),
    ([], Reached(Event(0, 1)), "nothing was launched there"),
    ([], Reached(Event(7, 0)), "nothing was launched there"),
    (STATES["running"], Reached(Event(0, 2)), "nothing was launched there"),
    (
        [Submitted(1, 0, 1.0), Ready(1), Elapsed(1.0)],
        Launched(1, Event(0, 1)),
        "its deadline had passed",
    ),
    ([Submitted(8), Submitted(9), Submitted(1, 0, 1.0), Elapsed(1.0)], Ready(1), "it is expired, not preparing"),
]


@pytest.mark.parametrize(("before", "wrong", "message"), INVALID, ids=[f"{m} by {w!r}" for _, w, m in INVALID])
def test_what_cannot_be_is_refused(
    before: list[Happening], wrong: Happening, message: str, state: SchedulerState
) -> None:
    """The error tells what came, why it cannot be and the request's story; everything is as it was before."""
    tell(state, *before)
    story, shown = state.story(1), repr(state)

    with pytest.raises(InvalidHappening) as caught:
        state.handle(wrong)

    assert message.removeprefix("request 1: ") in str(caught.value)
    assert repr(wrong) in str(caught.value)
    assert all(line in str(caught.value) for line in story) or isinstance(wrong, Reached)
    assert (story, shown) == (state.story(1), repr(state))


def test_the_earlier_deadline_goes_first_among_equals(state: SchedulerState) -> None:
    """Priority before deadline, a deadline before none, and then who came first."""
    tell(state, Submitted(1), Submitted(2))
    tell(state, Submitted(3), Submitted(4, 0, 9.0), Submitted(5, 0, 8.0), Submitted(6, -1))

    assert [[Admit(6)], [Admit(5)], [Admit(4)], [Admit(3)]] == [tell(state, Ended(n)) for n in (1, 2, 6, 5)]


def test_the_oldest_goes_in_the_end_however_urgent_the_others(state: SchedulerState) -> None:
    """More urgent ones that keep coming pass it so many times and no more; then they go first again."""
    tell(state, Submitted(1), Submitted(2), Submitted(3, 9), Submitted(4, 9))
    admitted = []
    for request in range(100, 100 + 2 * PATIENCE + 2):
        tell(state, Submitted(request))
        admitted += tell(state, Ended(1 if request == 100 else admitted[-1].request))

    assert [Admit(3), Admit(4)] == [admitted[PATIENCE], admitted[2 * PATIENCE + 1]]
    assert all(a.request >= 100 for n, a in enumerate(admitted) if n not in (PATIENCE, 2 * PATIENCE + 1))


#: Both streams have as much as they get, of requests that have ended.
FULL: list[Happening] = [
    happening
    for n in range(2 * DEPTH)
    for happening in (Submitted(20 + n), Ready(20 + n), Launched(20 + n, Event(n % 2, 1 + n // 2)), Ended(20 + n))
]

#: From the admission of request 1, whose deadline is 1, to each state that it can be in, and what it is told then.
LATE: dict[str, tuple[list[Happening], list[object]]] = {
    "waiting": ([Submitted(8), Submitted(9), Submitted(1, 0, 1.0)], [Expire(1)]),
    "preparing": ([Submitted(1, 0, 1.0)], []),
    "ready": ([*FULL, Submitted(1, 0, 1.0), Ready(1)], [Expire(1)]),
    "launching": ([Submitted(1, 0, 1.0), Ready(1)], [Expire(1)]),
    "running": ([Submitted(1, 0, 1.0), Ready(1), Launched(1, Event(0, 1))], []),
}


@pytest.mark.parametrize(("before", "told"), LATE.values(), ids=LATE)
def test_a_deadline_ends_what_waits(before: list[Happening], told: list[object], state: SchedulerState) -> None:
    """Neither before it nor twice; what is being prepared, or on a stream, is told when it asks for something."""
    tell(state, *before)

    assert state.next_deadline == 1.0
    assert tell(state, Elapsed(0.5)) == []
    assert told == tell(state, Elapsed(1.0))
    assert tell(state, Elapsed(2.0)) == []
    assert state.next_deadline is None
    for request in (1, 8, 9):
        tell(state, Ended(request))
    assert not state.requests


def test_what_is_late_is_not_launched(state: SchedulerState) -> None:
    """Also where the deadline passes while it is prepared, or while an earlier chunk of it runs."""
    tell(state, Submitted(1, 0, 1.0), Submitted(2, 0, 1.0), Ready(2), Launched(2, Event(0, 1)))
    tell(state, Elapsed(1.0))

    assert [Expire(1)] == tell(state, Ready(1))
    assert [Resume(2, Event(0, 1))] == tell(state, Reached(Event(0, 1)))
    assert [Expire(2)] == tell(state, Ready(2))
    assert state.statistics().expired == 2
    assert [Expire(3)] == tell(state, Submitted(3, 0, 0.5))


def test_an_expired_request_makes_room_when_it_ends(state: SchedulerState) -> None:
    """It may hold memory until then."""
    tell(state, Submitted(1, 0, 1.0), Submitted(2), Submitted(3), Elapsed(1.0))

    assert [Expire(1)] == tell(state, Ready(1))
    assert [Admit(3)] == tell(state, Ended(1))


def test_time_does_not_go_back(state: SchedulerState) -> None:
    """An older time says nothing new."""
    tell(state, Elapsed(2.0), Elapsed(1.0))

    assert [Expire(1)] == tell(state, Submitted(1, 0, 1.5))


def test_a_stream_has_the_work_that_it_has_not_passed() -> None:
    """What is being launched counts, and what ended requests have launched; what ended before its launch does not."""
    state = SchedulerState(2, make_policy("auto"))
    tell(state, *(Submitted(n) for n in range(1, 6)))

    assert [LaunchChunk(1, 0)] == tell(state, Ready(1, 10))
    assert [LaunchChunk(2, 1)] == tell(state, Ready(2, 30))
    assert [LaunchChunk(3, 0)] == tell(state, Launched(1, Event(0, 1)), Ended(1), Ready(3, 15))
    assert [LaunchChunk(4, 0)] == tell(state, Ready(4, 50))
    assert [LaunchChunk(5, 0)] == tell(state, Ended(4), Reached(Event(0, 1)), Ready(5, 1))


def test_an_abandoned_chunk_must_lie_ahead(state: SchedulerState) -> None:
    """The same for the event behind a chunk that was enqueued in part."""
    state.abandoned(Event(1, 4))

    for wrong in (Event(1, 4), Event(2, 1)):
        with pytest.raises(InvalidHappening):
            state.abandoned(wrong)
    assert tell(state, Reached(Event(1, 4))) == []
    assert state.idle


def test_an_abandoned_chunk_counts_as_in_flight(state: SchedulerState) -> None:
    """The device still has to pass it, so that others go to the calmer stream."""
    tell(state, Submitted(1), Submitted(2), Ready(1))
    state.abandoned(Event(0, 1))
    tell(state, Ended(1))

    assert [LaunchChunk(2, 1)] == tell(state, Ready(2))


def test_it_tells_the_story_of_a_request(state: SchedulerState) -> None:
    """What happened to it and what was asked for, in order, and of no other."""
    tell(state, Submitted(1), Submitted(2), Ready(1), Launched(1, Event(0, 1)), Reached(Event(0, 1)), Ended(1))

    assert state.story(1) == [
        "Submitted(request=1, priority=0, deadline=None)",
        "Admit(request=1)",
        "Ready(request=1, work=1)",
        "LaunchChunk(request=1, stream=0)",
        "Launched(request=1, event=Event(stream=0, stamp=1))",
        "Resume(request=1, event=Event(stream=0, stamp=1))",
        "Ended(request=1)",
    ]


def test_stories_do_not_grow_for_ever() -> None:
    """The oldest lines leave first."""
    state = SchedulerState(1, make_policy("fifo"), story_length=5)
    for request in range(10):
        tell(state, Submitted(request), Ended(request))

    assert state.story(0) == []
    assert len(state.story(9)) == 3
