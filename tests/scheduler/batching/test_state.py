"""Who goes with whom, when, and why: one scenario each."""

from __future__ import annotations

import math
from typing import Any

import pytest

from asyncrt.scheduler.batching import BatchingState, BatchOptions, BatchShape
from asyncrt.scheduler.batching.group import BatchGroup, form_group
from asyncrt.scheduler.batching.happenings import Arrived, BatchFinished, Began, Closing, Failed, Left, Ticked
from asyncrt.scheduler.batching.instructions import Drop, Instruction, LaunchBatch, Reject, WakeAt
from asyncrt.scheduler.batching.waiting import QueuedRequest
from asyncrt.scheduler.happenings import InvalidHappening

from .world import text

EIGHT = text(8)


class Story:
    """A state, told one thing after the other, a millisecond apart."""

    def __init__(self, streams: int = 1, **options: Any) -> None:
        self.state = BatchingState(streams, BatchOptions(**options))
        self.now = 0.0

    def comes(self, number: int, form: BatchShape = EIGHT, after: float = 0.001, **known: Any) -> list[Instruction]:
        self.now += after
        return self._checked(Arrived(self.now, number, form, **known))

    def leaves(self, number: int) -> list[Instruction]:
        self.now += 0.001
        return self._checked(Left(self.now, number))

    def begins(self, batch: int) -> list[Instruction]:
        return self._checked(Began(self.now, batch))

    def ends(self, batch: int, after: float = 0.01) -> list[Instruction]:
        """It begins, and is over a while later."""
        self.begins(batch)
        return self.is_over(batch, after)

    def is_over(self, batch: int, after: float) -> list[Instruction]:
        self.now += after
        return self._checked(BatchFinished(self.now, batch))

    def fails(self, batch: int) -> list[Instruction]:
        self.begins(batch)
        self.now += 0.01
        return self._checked(Failed(self.now, batch))

    def ticks(self, at: float) -> list[Instruction]:
        self.now = at
        return self._checked(Ticked(at))

    def closes(self) -> list[Instruction]:
        return self._checked(Closing(self.now))

    def learns(self, fixed: float = 0.01, per_token: float = 1e-4) -> Story:
        """Runs of two sizes, one after the other, so that the model of cost knows."""
        for number, length in ((-1, 8), (-2, 64)):
            (launch,) = launches(self.comes(number, text(length)))
            self.ends(launch.batch, fixed + per_token * length)
        return self

    def _checked(self, happening: Any) -> list[Instruction]:
        given = self.state.handle(happening)
        self.state.check()
        return given


def launches(given: list[Instruction]) -> list[LaunchBatch]:
    return [i for i in given if isinstance(i, LaunchBatch)]


def members(given: list[Instruction]) -> list[tuple[int, ...]]:
    return [launch.requests for launch in launches(given)]


def wakes(given: list[Instruction]) -> float | None:
    (wake,) = [i.at for i in given if isinstance(i, WakeAt)]
    return wake


def test_an_idle_stream_is_never_kept_waiting() -> None:
    """A request goes at once, for each stream there is; it is not asked what that costs."""
    story = Story(streams=2)

    given = [story.comes(1), story.comes(2)]

    assert given == [[LaunchBatch(1, (1,), (8,), "idle")], [LaunchBatch(2, (2,), (8,), "idle")]]


@pytest.mark.parametrize(
    ("options", "arrived", "closing"),
    [
        ({}, Arrived(0.0, 2, EIGHT), False),
        ({"max_in_flight": 1}, Arrived(1.0, 2, EIGHT), False),
        ({"mode": "buckets"}, Arrived(1.0, 2, EIGHT), False),
        ({}, Arrived(1.0, 1, EIGHT), False),
        ({}, Arrived(1.0, 2, EIGHT, due=0.5), False),
        ({}, Arrived(1.0, 2, EIGHT), True),
    ],
    ids=["before now", "no stream is idle", "sizes are rounded up", "came before", "is due", "is closing"],
)
def test_what_does_not_begin_at_once_is_not_noted(options: dict[str, Any], arrived: Arrived, closing: bool) -> None:
    """`handle()` is to be told of it, and says what becomes of it."""
    story = Story(streams=2, **options)
    story.comes(1)
    if closing:
        story.closes()
    before = story.state.statistics(), story.state.story(1), story.state.story(2)

    batch = story.state.begin_at_once(arrived)

    assert batch is None
    assert (story.state.statistics(), story.state.story(1), story.state.story(2)) == before


def test_two_batches_of_many_rows_have_the_device_to_themselves() -> None:
    """A third would only divide the same requests into smaller ones; small ones go on every stream there is."""
    story = Story(streams=4)
    small = [story.comes(n) for n in (1, 2, 3, 4)]
    waiting = [story.comes(n) for n in range(5, 75)]

    first = story.ends(1)  # a batch of 32 rows, beside three small ones
    few = [story.ends(n) for n in (2, 3)]
    second = story.ends(4)
    late = story.comes(75)
    third = story.ends(5)

    assert [members(g) for g in small] == [[(n,)] for n in (1, 2, 3, 4)]
    assert not any(map(launches, waiting))
    assert [len(numbers) for numbers in members(first)] == [32]
    assert [members(g) for g in few] == [[], members(few[1])]
    assert [len(numbers) for g in (*few, second) for numbers in members(g)] == [32]
    assert members(late) == []
    assert [len(numbers) for numbers in members(third)] == [7]


@pytest.mark.parametrize(("devices", "at_once"), [(1, 2), (2, 4)])
def test_each_of_several_devices_has_two(devices: int, at_once: int) -> None:
    """Their streams are counted together."""
    state = BatchingState(8, BatchOptions(max_batch=64), devices=devices)
    for number in range(4):
        given = state.handle(Arrived(float(number), number, EIGHT, 40))
        assert bool(launches(given)) == (number < at_once)


def test_who_says_how_many_has_so_many() -> None:
    """`max_in_flight` holds for batches of any number of rows."""
    state = BatchingState(8, BatchOptions(max_in_flight=3))

    given = [state.handle(Arrived(float(number), number, EIGHT, 40)) for number in range(4)]

    assert [bool(launches(g)) for g in given] == [True, True, True, False]


def test_while_streams_are_busy_company_gathers() -> None:
    """When the stream is free, all that came meanwhile go as one."""
    story = Story(max_delay=1.0)
    story.comes(1)
    waiting = [story.comes(n, text(8)) for n in (2, 3, 4)]

    given = story.ends(1)

    assert [members(w) for w in waiting] == [[], [], []]
    assert launches(given) == [LaunchBatch(2, (2, 3, 4), (8,), "idle")]


def test_a_full_batch_goes_behind_the_one_that_runs() -> None:
    """The next after it waits: one behind is enough to keep the device busy."""
    story = Story(max_batch=2, max_delay=1.0)
    story.comes(1)

    given = [story.comes(n) for n in (2, 3, 4, 5)]

    assert [launches(g) for g in given] == [[], [LaunchBatch(2, (2, 3), (8,), "full")], [], []]


def test_a_batch_is_full_also_when_no_more_work_fits() -> None:
    """Three of eight tokens are 24; a fourth would be more than 30."""
    story = Story(max_work=30, max_delay=1.0)
    story.comes(1)

    given = [story.comes(n) for n in (2, 3, 4, 5)]

    assert [members(g) for g in given] == [[], [], [], [(2, 3, 4)]]


@pytest.mark.parametrize(
    ("costs", "max_batch", "rows"),
    [
        ({"fixed": 0.01, "per_token": 1e-6}, 128, 40),
        ({"fixed": 0.01, "per_token": 1e-6}, 36, 36),
        ({"fixed": 0.001, "per_token": 1e-3}, 128, 32),
        ({"fixed": 0.001, "per_token": 1e-3}, 16, 16),
        (None, 128, 32),
    ],
    ids=["much is fixed", "as many as may", "little is fixed", "fewer than usual", "nothing is known"],
)
def test_a_batch_has_more_than_the_usual_rows_where_that_gains(
    costs: dict[str, float] | None, max_batch: int, rows: int
) -> None:
    """Forty wait while two batches take long; the next has as many as is worth it, and no more than `max_batch`."""
    story = Story(streams=2, max_batch=max_batch, max_delay=10.0)
    if costs is not None:
        story.learns(**costs)
    busy = [launches(story.comes(number))[0].batch for number in (1, 2)]
    for number in range(3, 43):
        assert launches(story.comes(number)) == []

    (launch,) = launches(story.ends(busy[0]))

    assert len(launch.requests) == rows


def test_behind_one_stream_no_more_than_the_usual_rows_are_waited_for() -> None:
    """Where more gain little, the batch is full, and goes behind the one that runs."""
    story = Story(max_delay=10.0).learns(fixed=0.001, per_token=1e-3)
    story.comes(1, text(64))

    given = [members(story.comes(number, after=0.0)) for number in range(2, 35)]

    assert [tuple(range(2, 34))] in given


def test_nothing_known_means_no_longer_than_the_delay() -> None:
    """The oldest has waited for `max_delay`, and goes behind."""
    story = Story(max_delay=0.005)
    story.comes(1)
    woken = wakes(story.comes(2))

    given = story.ticks(0.002 + 0.005)

    assert woken == pytest.approx(0.007)
    assert launches(given) == [LaunchBatch(2, (2,), (8,), "delay")]


def test_no_delay_goes_behind_at_once_while_nothing_is_known() -> None:
    """With `max_delay=0` a request goes behind at once; what comes then waits for the place."""
    story = Story(max_delay=0.0)
    story.comes(1)

    given = [story.comes(2), story.comes(3)]

    assert [launches(g) for g in given] == [[LaunchBatch(2, (2,), (8,), "delay")], []]


def test_no_delay_lets_requests_gather_while_the_device_is_busy() -> None:
    """With `max_delay=0` company that costs nothing is waited for, and nobody waits once the device should be free."""
    story = Story(max_delay=0.0).learns(fixed=0.01, per_token=0.0)
    story.comes(1)

    given = [story.comes(2), story.comes(3)]
    at_the_end = story.ticks(story.now - 0.002 + 0.01)

    assert [launches(g) for g in given] == [[], []]
    assert members(at_the_end) == [(2, 3)]


def test_shortly_before_the_stream_is_free_it_is_asked_whether_waiting_pays() -> None:
    """Requests that come seldom, against a small fixed cost: it goes behind, so that the device has no gap."""
    story = Story(max_delay=1.0).learns(fixed=0.0001, per_token=0.001)
    story.comes(1, text(8), after=1.0)
    began = story.now
    woken = wakes(story.comes(2, text(8), after=0.002))
    assert woken is not None

    given = story.ticks(woken)

    assert began + 0.0081 - 0.0005 == pytest.approx(woken)
    assert [launch.reason for launch in launches(given)] == ["no gain"]


def test_where_company_comes_fast_and_saves_much_it_is_waited_for() -> None:
    """Each one more saves 10 ms and they come every millisecond: not until the stream is free are they launched."""
    story = Story(max_delay=1.0).learns(fixed=0.01, per_token=0.0001)
    story.comes(1)
    given = []
    for n in range(2, 11):
        given += story.comes(n, text(8))
    woken = next(i.at for i in reversed(given) if isinstance(i, WakeAt))
    assert woken is not None

    given += story.ticks(woken)

    assert launches(given) == []
    assert woken < (wakes(story.ticks(woken + 0.0001)) or 0.0)


def test_a_member_that_would_be_late_lets_its_batch_go() -> None:
    """It is not held back for company beyond what its deadline leaves."""
    story = Story(max_delay=10.0).learns(fixed=0.5, per_token=0.0)
    story.comes(1, text(64))
    free = story.now + 0.5
    story.comes(2, due=free + 0.6)
    woken = wakes(story.ticks(free - 0.0005))

    given = story.ticks(free + 0.1)

    assert free + 0.6 - 0.5 - 0.0005 == pytest.approx(woken)
    assert [launch.reason for launch in launches(given)] == ["deadline"]


def test_the_nearest_shapes_join() -> None:
    """Around the oldest, as long as no more than a quarter is padding."""
    story = Story(max_delay=1.0, max_batch=3)
    story.comes(0)
    for number, length in ((1, 100), (2, 20), (3, 95), (4, 110), (5, 300)):
        story.comes(number, text(length))

    given = [story.ends(1), story.ends(2), story.ends(3)]

    assert [members(g) for g in given] == [[], [(2,)], [(5,)]]
    assert story.state.story(4)[1] == "LaunchBatch(batch=2, requests=(1, 3, 4), sizes=(110,), reason='full')"


def test_what_must_be_equal_is() -> None:
    """Requests of another kind wait for a batch of their own."""
    story = Story(max_delay=1.0)
    story.comes(0)
    for number, kind in ((1, "a"), (2, "b"), (3, "a"), (4, "b")):
        story.comes(number, BatchShape(kind, (8,)))

    given = [story.ends(1), story.ends(2)]

    assert [members(g) for g in given] == [[(1, 3)], [(2, 4)]]


@pytest.mark.parametrize(
    ("options", "batches"),
    [
        ({"mode": "exact"}, [((1, 5), (5,)), ((2,), (6,)), ((3,), (8,)), ((4,), (9,))]),
        ({"mode": "buckets"}, [((1, 2, 3, 5), (8,)), ((4,), (16,))]),
        ({"mode": "buckets", "buckets": (9, 6)}, [((1, 2, 5), (6,)), ((3, 4), (9,))]),
        ({"mode": "buckets", "buckets": (7,)}, [((1, 2, 5), (7,)), ((3,), (8,)), ((4,), (9,))]),
        ({"mode": "cost"}, [((1, 5, 2, 3, 4), (9,))]),
        ({"mode": "cost", "max_waste": 0.0}, [((1, 5), (5,)), ((2,), (6,)), ((3,), (8,)), ((4,), (9,))]),
    ],
)
def test_modes(options: dict[str, Any], batches: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
    """Equal shapes; sizes rounded up, where there is a bucket; and what costs least."""
    story = Story(max_delay=0.0, **{"max_waste": 0.4, **options})
    story.comes(98)
    story.comes(99)
    for number, length in enumerate((5, 6, 8, 9, 5), 1):
        story.comes(number, text(length))

    given = [story.ends(batch) for batch in range(1, len(batches) + 2)]

    assert [(launch.requests, launch.sizes) for g in given for launch in launches(g)] == batches


def test_padding_that_costs_more_than_it_saves_is_not_done() -> None:
    """Where a batch costs nothing fixed, two lengths are better apart."""
    story = Story(max_delay=1.0, max_waste=0.9).learns(fixed=0.0, per_token=0.001)
    story.comes(1, text(8))
    story.comes(2, text(8))
    story.comes(3, text(12))

    given = story.ends(3)

    assert members(given) == [(2,)]


def test_a_higher_priority_goes_first() -> None:
    """Lower numbers first; equal ones in the order they came, and only then the nearest shapes."""
    story = Story(max_delay=1.0, max_batch=2)
    story.comes(0)
    for number in (98, 99):
        story.comes(number, BatchShape("other"))
    story.comes(1, priority=0)
    story.comes(2, text(16), priority=5)
    story.comes(3, text(11), priority=5)
    story.comes(4, text(12), priority=-1)

    given = story.ends(1)

    assert members(given) == [(4, 1)]


def test_the_earliest_deadline_goes_first_inside_a_priority() -> None:
    """Whoever came first; and a deadline does not beat a higher priority."""
    story = Story(max_delay=10.0, mode="exact", max_batch=1)
    story.comes(0)
    story.comes(10)
    for number, due, priority in ((1, 0.4, 0), (2, 0.3, 0), (3, math.inf, 0), (4, 0.1, 1), (5, 0.35, 0)):
        story.comes(number, due=due, priority=priority)

    given = [story.ends(batch, 0.001) for batch in (1, 2, 3, 4, 5, 6)]

    assert [m for g in given for m in members(g)] == [(2,), (5,), (1,), (3,), (4,)]


def test_nobody_waits_longer_than_ageing_allows() -> None:
    """A request of low priority goes before those of the next that come `ageing_s` later."""
    story = Story(mode="exact", max_batch=1, ageing_s=0.1)
    story.comes(0)
    story.comes(1)
    story.comes(50, priority=1)
    gone: list[int] = []
    for number in range(2, 40):
        story.comes(number, after=0.002)
        gone += [m for g in members(story.ends(number - 1, 0.008)) for m in g]

    assert 50 in gone
    assert story.now > 0.1
    assert gone.index(50) <= 12


def test_a_large_request_among_small_ones_has_its_turn() -> None:
    """However many small ones come: it is the head of a batch when it is the oldest, and runs alone."""
    story = Story(max_batch=4, max_work=64)
    story.comes(0)
    for number in range(1, 6):
        story.comes(number)
    story.comes(100, text(500))
    gone: list[tuple[int, ...]] = []
    for number in range(6, 40):
        story.comes(number, after=0.0001)
        for batch in story.state.in_flight[:1]:
            gone += members(story.ends(batch, 0.0001))

    assert (100,) in gone[:4]


def test_more_rows_than_a_batch_may_have_run_alone() -> None:
    """A request is never cut in two."""
    story = Story(max_batch=4, max_delay=1.0)
    story.comes(0)
    story.comes(1, rows=9)

    given = story.ends(1)

    assert members(given) == []
    assert "(1,)" in story.state.story(1)[1]
    assert "full" in story.state.story(1)[1]


def test_who_leaves_before_the_batch_begins_is_not_in_it() -> None:
    """And if all leave, there is nothing to begin."""
    story = Story(max_delay=1.0)
    story.comes(0)
    for number in (1, 2, 3):
        story.comes(number)
    story.ends(1)

    one = story.leaves(2)
    left = story.state.members(2)
    rest = [story.leaves(1), story.leaves(3)]

    assert (one, left) == ([], (1, 3))
    assert rest == [[], [Drop(2)]]
    assert story.state.handle(BatchFinished(story.now, 2, False)) == []
    assert (story.state.statistics().executions, story.state.statistics().left) == (1, 3)


def test_who_leaves_the_queue_is_forgotten() -> None:
    """Twice is as good as once."""
    story = Story(max_delay=1.0)
    story.comes(0)
    story.comes(1)
    story.comes(2)
    story.leaves(1)
    story.leaves(1)

    assert members(story.ends(1)) == [(2,)]


def test_members_of_a_batch_that_failed_run_alone() -> None:
    """Before all others, in their own sizes, and nobody is given up for another's fault."""
    story = Story(max_delay=1.0, mode="buckets")
    story.comes(0)
    for number in (1, 2, 3):
        story.comes(number, text(number + 4))
    story.ends(1)
    story.comes(4)

    given = [story.fails(2), story.ends(3), story.ends(4), story.ends(5)]

    assert [(launch.requests, launch.sizes, launch.reason) for g in given for launch in launches(g)] == [
        ((1,), (5,), "retry"), ((2,), (6,), "retry"), ((3,), (7,), "retry"), ((4,), (8,), "idle"),
    ]  # fmt: skip
    assert story.state.statistics().failed == 1


def test_a_batch_behind_another_is_timed_from_when_that_was_over() -> None:
    """And by its rows: four of eight tokens in 20 ms are not what one takes, nor what two batches do."""
    story = Story(max_batch=4, max_delay=10.0)
    story.comes(0, text(64))
    for number in (1, 2, 3, 4):
        story.comes(number)
    story.begins(2)
    story.ends(1, 0.5)

    story.now += 0.02
    story.state.handle(BatchFinished(story.now, 2))

    line = story.state.cost.line(((), text(8).per_row.bit_length()))
    assert line is not None
    assert line(32) == pytest.approx(0.02)


def test_time_in_which_several_run_is_divided_among_them() -> None:
    """Two streams that share a device: the short one takes twice as long as alone, and costs what it does alone."""
    story = Story(streams=2)
    for n in range(4):
        (long,), (short,) = launches(story.comes(2 * n, text(100))), launches(story.comes(2 * n + 1, text(20), 0.0))
        story.begins(long.batch)
        story.ends(short.batch, 0.004)
        story.is_over(long.batch, 0.008)

    share, cost = story.state.share.line(((), ())), story.state.cost.line(((), ()))
    assert share is not None
    assert cost is not None
    assert (share(20), share(100)) == pytest.approx((0.002, 0.010))
    assert (cost(20), cost(100)) == pytest.approx((0.004, 0.012))


def test_who_is_more_urgent_than_those_held_back_changes_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hold is for the oldest; what comes before that in turn is asked about anew, and leads its own batch."""
    story = Story(max_delay=10.0, mode="exact").learns(fixed=0.5, per_token=0.0)
    story.comes(1)
    story.comes(2)
    heads: list[int] = []

    def noted(queue: Any, head: QueuedRequest, *known: Any) -> BatchGroup:
        heads.append(head.number)
        return form_group(queue, head, *known)

    monkeypatch.setattr("asyncrt.scheduler.batching.state.form_group", noted)
    story.comes(4)
    story.comes(3, text(9), priority=-1)

    assert heads == [3]
    assert members(story.ends(3)) == [(3,)]


def test_nobody_joins_who_would_make_another_late() -> None:
    """Two together take longer than the one has; it goes first, and alone."""
    story = Story(max_delay=10.0, max_waste=0.9).learns(fixed=0.01, per_token=0.01)
    story.comes(1)
    start = story.now + 0.09
    story.comes(2, due=start + 0.11)
    story.comes(3)

    given = story.ends(3, start - story.now)

    assert members(given) == [(2,)]


def test_closing_lets_all_go() -> None:
    """Nobody waits for company that will not come; who comes then is a mistake."""
    story = Story(max_delay=10.0)
    story.comes(1)
    story.comes(2)

    given = story.closes()

    assert [launch.reason for launch in launches(given)] == ["closing"]
    with pytest.raises(InvalidHappening, match="after Closing"):
        story.comes(3)


def test_the_queue_is_bounded_by_count_and_bytes() -> None:
    """Who is refused is told when to come again; who would go at once is let in whatever its size."""
    story = Story(max_queue=2, max_queue_bytes=100, max_delay=10.0).learns()
    at_once = story.comes(0, nbytes=1000)
    story.comes(1, nbytes=60)

    large = story.comes(2, nbytes=60)
    story.comes(3, nbytes=10)
    third = story.comes(4, nbytes=1)

    assert members(at_once) == [(0,)]
    (by_bytes,), (by_count,) = large, third
    assert isinstance(by_bytes, Reject)
    assert isinstance(by_count, Reject)
    assert (by_bytes.why, by_count.why) == ("bytes", "count")
    assert 0 < by_count.retry_after_s < 0.02


def test_who_would_be_late_is_refused_at_once() -> None:
    """With what is expected of the batches before it; who has time, or no deadline, waits."""
    story = Story(max_delay=10.0).learns(fixed=0.01, per_token=0.0)
    story.comes(0, text(64))
    hurried = story.comes(1, due=story.now + 0.005, strict=True)
    patient = story.comes(2, due=story.now + 1.0, strict=True)
    careless = story.comes(3)

    (reject,) = hurried
    assert isinstance(reject, Reject)
    assert (reject.why, reject.retry_after_s > 0) == ("late", True)
    assert not any(isinstance(i, Reject) for i in (*patient, *careless))


def test_who_comes_again_when_told_to_is_let_in() -> None:
    """With as much time as before, if nobody else has come meanwhile; and not much sooner."""
    story = Story(max_delay=10.0, max_batch=1).learns(fixed=0.01, per_token=0.0)
    for number in range(4):
        story.comes(number, text(64), due=story.now + 0.05)
    (reject,) = story.comes(4, due=story.now + 0.051, strict=True)
    assert isinstance(reject, Reject)
    assert 0.02 < reject.retry_after_s < 0.04

    story.ends(3, 0.0)
    story.ends(4, reject.retry_after_s / 2)
    story.ends(5, reject.retry_after_s / 2)
    again = story.comes(5, due=story.now + 0.051, strict=True)

    assert not any(isinstance(i, Reject) for i in again)


@pytest.mark.parametrize("length", [8, 512])
def test_a_run_that_waited_for_its_kernels_sends_nobody_away_for_long(length: int) -> None:
    """The first took 3 s: others wait no longer than that, however much larger they are, and come again by then."""
    story = Story(max_delay=10.0)
    story.comes(0, text(8))
    story.ends(1, 3.0)
    story.comes(1, text(length))

    (hurried,) = story.comes(2, text(length), due=story.now + 0.2, strict=True)
    patient = story.comes(3, text(length), due=story.now + 30, strict=True)

    assert isinstance(hurried, Reject)
    assert (hurried.why, 0 < hurried.retry_after_s <= 3) == ("late", True)
    assert not any(isinstance(i, Reject) for i in patient)


def test_a_due_that_is_not_strict_is_an_order_and_no_limit() -> None:
    """It goes first, and nothing is refused."""
    story = Story(max_delay=10.0, max_batch=1).learns()
    story.comes(0)
    story.comes(1)
    story.comes(2)
    given = story.comes(3, due=story.now)

    assert not any(isinstance(i, Reject) for i in given)
    assert members(story.ends(3)) == [(3,)]


def test_what_cannot_be_in_time_any_more_is_not_run() -> None:
    """It waited, others went first, and its answer would be of no use."""
    story = Story(max_delay=10.0, max_batch=1)
    story.comes(0)
    story.comes(1)
    story.comes(2, due=story.now + 0.01, strict=True)

    given = story.ends(1, 1.0)

    assert [(i.request, i.why) for i in given if isinstance(i, Reject)] == [(2, "missed")]


def test_with_nothing_in_flight_the_model_of_cost_is_not_believed() -> None:
    """A first run that took very long would otherwise refuse all that come, and nothing could ever correct it."""
    story = Story().learns(fixed=100.0)

    given = story.comes(1, due=story.now + 0.1, strict=True)

    assert members(given) == [(1,)]


@pytest.mark.parametrize(
    ("happening", "why"),
    [
        (Arrived(1.0, 1, text(8)), "it came before"),
        (Began(1.0, 7), "no such batch"),
        (BatchFinished(1.0, 7), "no such batch"),
        (Failed(1.0, 7), "no such batch"),
        (Ticked(-1.0), "it is 0.001 already"),
    ],
)
def test_what_cannot_be_is_refused(happening: Any, why: str) -> None:
    """And changes nothing."""
    story = Story()
    story.comes(1)
    before = repr(story.state)

    with pytest.raises(InvalidHappening, match=why):
        story.state.handle(happening)

    assert before == repr(story.state)
    story.state.check()


def test_a_batch_begins_once() -> None:
    """And not without members."""
    story = Story(streams=2)
    story.comes(1)
    story.comes(2)
    story.begins(1)
    story.leaves(2)

    with pytest.raises(InvalidHappening, match="begun before"):
        story.begins(1)
    with pytest.raises(InvalidHappening, match="no members"):
        story.begins(2)


def test_a_story_is_told() -> None:
    """A request's happenings and instructions, and those of its batch."""
    story = Story()
    story.comes(1)
    story.ends(1)

    happened = [entry.split("(")[0] for entry in story.state.story(1)]

    assert happened == ["Arrived", "LaunchBatch", "Began", "BatchFinished"]
    assert story.state.story(99) == []
    assert "0 waiting" in repr(story.state)
