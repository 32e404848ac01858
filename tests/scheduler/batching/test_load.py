"""How much is served, how fast, and to whom, on a device that takes 3 ms and 4 µs for each token.

Lengths are log-normal, 8 to 512 with a median of about 74; one request alone takes some 3.4 ms.
"""

from __future__ import annotations

import math
import statistics

import attrs
import numpy as np
import pytest

from asyncrt.scheduler.batching import BatchOptions

from .shared_world import SharedWorld
from .world import Caller, Told, World, about, lengths, poisson, text

OPTIONS = BatchOptions(max_batch=16, max_work=4096, max_queue=100_000)
ALONE = 1 / statistics.mean(about(n) for n in lengths(6000, 1))


def served(told: list[Told], world: World) -> float:
    """Answers in a second."""
    return sum(t.answered is not None for t in told) / world.now


def equal_shapes_rule(rate: float, count: int) -> float:
    """Answers in a second of the rule that others have: the requests in front, as long as their shapes are equal."""
    callers = poisson(rate, [text(n) for n in lengths(count, 1)], 1)
    now, place = 0.0, 0
    while place < count:
        now = max(now, callers[place].at)
        end = place + 1
        while end < min(count, place + 16) and callers[end].at <= now and callers[end].form == callers[place].form:
            end += 1
        now += about((end - place) * callers[place].form.per_row)
        place = end
    return count / now


def test_at_four_times_what_one_by_one_can_do_batches_carry_it() -> None:
    """Mean batch at least 5, at most a quarter padding, and three times what equal shapes allow."""
    world = World(OPTIONS, check=False)

    told = world.run(poisson(4 * ALONE, [text(n) for n in lengths(6000, 1)], 1))

    counts = world.state.statistics()
    assert counts.mean_batch >= 5
    assert counts.padding_share <= 0.25
    assert served(told, world) >= 3 * equal_shapes_rule(4 * ALONE, 6000)
    assert sum(counts.reasons.values()) == counts.executions


@pytest.mark.parametrize("overload", [3, 10])
@pytest.mark.parametrize(("deadline", "streams"), [(0.1, 1), (0.3, 1), (0.1, 2)])
def test_under_overload_what_is_let_in_is_in_time(overload: int, deadline: float, streams: int) -> None:
    """At least nine tenths of what can be done is done in time, 99 % of those let in are, and the rest know at once.

    The first fifth is left out: at its beginning nothing is known of how long batches take.
    """
    capacity = _capacity(streams)
    count = 2500 * overload
    forms = [text(n) for n in lengths(count, 1)]
    world = World(OPTIONS, streams=streams, check=False)

    told = world.run(poisson(overload * capacity, forms, 1, deadline))

    last = told[-1].caller.at
    settled = [t for t in told if t.caller.at > last / 5]
    accepted = [t for t in settled if t.refused in ("", "missed")]
    good = sum(t.good for t in settled)
    assert good / (last * 4 / 5) >= 0.9 * capacity
    assert good >= 0.99 * len(accepted)
    assert all(0 < t.retry_after_s < deadline for t in settled if t.refused)  # by then all that are here have ended


def _capacity(streams: int) -> float:
    """Answers in a second of full batches, when all requests are there from the start."""
    world = World(OPTIONS, streams=streams, check=False)
    told = world.run([Caller(0.0, text(n)) for n in lengths(1500, 2)])
    return served(told, world)


def fixed_setting(callers: list[Caller], size: int, delay: float) -> float:
    """Answers in a second where batches go when they have *size* members, or the first of them has waited *delay*."""
    now, place = 0.0, 0
    while place < len(callers):
        full = callers[place + size - 1].at if place + size <= len(callers) else math.inf
        now = max(now, min(full, callers[place].at + delay))
        end = place + 1
        while end < min(len(callers), place + size) and callers[end].at <= now:
            end += 1
        now += about((end - place) * max(c.form.per_row for c in callers[place:end]))
        place = end
    return len(callers) / now


@pytest.mark.parametrize("load", [1.5, 4, 10])
def test_no_fixed_setting_serves_more(load: float) -> None:
    """At high load, of all sizes of batches and delays; each of which would have to be found first."""
    callers = poisson(load * ALONE, [text(n) for n in lengths(3000, 1)], 1)
    world = World(OPTIONS, check=False)

    told = world.run(callers)

    sweep = [fixed_setting(callers, size, delay) for size in range(1, 17) for delay in (0, 0.002, 0.01, 0.05, 0.2)]
    assert served(told, world) >= 0.95 * max(sweep)


def test_at_low_load_nobody_waits_for_company() -> None:
    """The median is that of a direct call, within a tenth; and a batch is what comes at the same time."""
    world = World(OPTIONS)

    told = world.run(poisson(0.1 * ALONE, [text(n) for n in lengths(1000, 1)], 1))

    direct = statistics.median(0.0003 + about(t.caller.form.per_row) for t in told)
    assert statistics.median(t.latency for t in told) <= 1.1 * direct


def test_a_longer_delay_does_no_harm() -> None:
    """Whatever `max_delay` says, nobody is held back while a stream has nothing to do."""
    medians = []
    for max_delay in (0.0, 0.002, 1.0):
        world = World(BatchOptions(max_batch=16, max_delay=max_delay), check=False)
        told = world.run(poisson(0.5 * ALONE, [text(n) for n in lengths(1500, 1)], 1))
        medians.append(statistics.median(t.latency for t in told))

    assert max(medians) <= 1.1 * min(medians)


@pytest.mark.parametrize(
    ("fixed", "per_token", "gain"), [(0.001, 2e-7, 1.3), (0.001, 1e-6, 1.1), (0.0003, 1e-6, 1.0), (0.0003, 65e-6, 1.0)]
)
def test_hundreds_of_callers_get_batches_as_large_as_is_best(fixed: float, per_token: float, gain: float) -> None:
    """More is served than with 32 rows at most, on all but devices that take time for little else than tokens."""
    wanted = np.clip(np.random.default_rng(0).lognormal(np.log(40), 0.6, 3000), 1, 256).astype(int).tolist()
    seconds = []
    for options in (BatchOptions(), BatchOptions(max_batch=32)):
        world = SharedWorld(options, streams=2, seconds=lambda tokens: fixed + per_token * tokens, check=False)
        world.callers(256, wanted)
        seconds.append(world.now)

    assert gain * seconds[0] <= seconds[1]


def test_where_streams_share_the_device_two_large_batches_serve_more_than_four() -> None:
    """Of a device with four streams, most of whose time does not grow with the rows, as that of many GPUs."""
    wanted = np.clip(np.random.default_rng(0).lognormal(np.log(40), 0.6, 3000), 1, 256).astype(int).tolist()
    seconds = []
    for options in (BatchOptions(), BatchOptions(max_in_flight=4)):
        world = SharedWorld(options, streams=4, seconds=lambda tokens: 0.0008 + 2e-7 * tokens, check=False)
        world.callers(256, wanted)
        seconds.append(world.now)

    assert 1.15 * seconds[0] <= seconds[1]


@pytest.mark.parametrize("fixed", [0.0003, 0.003])
def test_where_streams_share_the_device_batches_are_no_slower_than_none(fixed: float) -> None:
    """Eight callers, each with its next request; padding takes no more of the device than company saves."""
    world = SharedWorld(BatchOptions(), streams=2, seconds=lambda tokens: fixed + 65e-6 * tokens)
    wanted = np.random.default_rng(0).integers(8, 201, 1500).tolist()

    world.callers(8, wanted)

    alone = sum(fixed + 65e-6 * tokens for tokens in wanted)
    share = world.state.share.line(None)
    assert share is not None
    assert share(100) == pytest.approx(fixed + 0.0065, rel=0.01)
    assert world.busy_s <= alone
    assert world.now <= 1.01 * alone


def test_no_shape_starves_among_many_of_another() -> None:
    """A few requests of 500 tokens among a flood of short ones: each has its turn, in bounded time."""
    random = np.random.default_rng(0)
    callers, at = [], 0.0
    for n in range(4000):
        at += float(random.exponential(1 / 3000))
        callers.append(Caller(at, text(500 if n % 400 == 399 else int(random.integers(8, 16)))))
    world = World(BatchOptions(max_batch=16, max_work=512, max_queue=100_000), check=False)

    told = world.run(callers)

    for n, large in enumerate(told):
        if large.caller.form.sizes == (500,):
            neighbours = [t.latency for t in told[max(0, n - 50) : n + 50]]
            assert large.latency <= 2 * max(neighbours[:50])


def of_two_priorities(ageing_s: float) -> tuple[list[Told], list[Told]]:
    """Twice as much as can be served, a quarter of it urgent; returns what became of the urgent and of the others."""
    forms = [text(n) for n in lengths(6000, 1)]
    callers = [c._replace(priority=int(n % 4 != 0)) for n, c in enumerate(poisson(2 * _capacity(1), forms, 1))]
    world = World(attrs.evolve(OPTIONS, ageing_s=ageing_s), check=False)
    told = world.run(callers)
    return [t for t in told if t.caller.priority == 0], [t for t in told if t.caller.priority == 1]


def test_the_urgent_go_as_if_they_were_alone() -> None:
    """However many others wait."""
    urgent, others = of_two_priorities(100.0)

    assert np.percentile([t.latency for t in urgent], 99) <= 0.15
    assert statistics.median(t.latency for t in others) >= 1.0


def test_who_has_waited_for_its_ageing_is_as_urgent_as_what_comes() -> None:
    """So that in the long run both wait, the others once or twice that much longer: seats go by whole steps."""
    urgent, others = of_two_priorities(0.5)

    fresh = statistics.median(t.latency for t in urgent[-500:])
    aged = statistics.median(t.latency for t in others[-1500:])
    assert 0.4 <= aged - fresh <= 1.1
