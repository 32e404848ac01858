"""Policies: found by the names of their files, each fit for use."""

from __future__ import annotations

import heapq
import math
import random
import statistics

import pytest

from asyncrt.events import Event
from asyncrt.scheduler.happenings import Ended, Happening, Launched, Reached, Ready, Submitted
from asyncrt.scheduler.instructions import Admit, LaunchChunk
from asyncrt.scheduler.policies import StreamView, make_policy, policy_names
from asyncrt.scheduler.policies.fifo import DEPTH
from asyncrt.scheduler.state import SchedulerState


def calm(*depths: int) -> list[StreamView]:
    return [StreamView(number, depth) for number, depth in enumerate(depths)]


def test_policies_are_the_files_of_the_folder() -> None:
    """The contract itself is not one."""
    assert {"auto", "fifo"} <= set(policy_names())
    assert "base" not in policy_names()


def test_an_unknown_policy_is_refused() -> None:
    """The error names those there are."""
    with pytest.raises(ValueError, match=r"policy 'lifo' is not one of auto, fifo"):
        make_policy("lifo")


@pytest.mark.parametrize("name", policy_names())
def test_the_more_urgent_goes_first(name: str) -> None:
    """Lower numbers first; equal ones in the order they came."""
    policy = make_policy(name)
    for request, priority in ((1, 0), (2, 5), (3, -1), (4, 0)):
        policy.push(request, priority, None)

    popped = [policy.pop(calm(0, 1)) for _ in range(5)]

    assert popped == [(3, 0), (1, 0), (4, 0), (2, 0), None]


@pytest.mark.parametrize("name", policy_names())
def test_nothing_goes_to_full_streams(name: str) -> None:
    """It stays for the next time."""
    policy = make_policy(name)
    policy.push(1, 0, None)

    assert policy.pop(calm(DEPTH, DEPTH)) is None
    assert policy.pop(calm(DEPTH, DEPTH - 1)) == (1, 1)


@pytest.mark.parametrize("name", policy_names())
def test_a_discarded_request_is_forgotten(name: str) -> None:
    """And discarding one that is not here does nothing."""
    policy = make_policy(name)
    policy.push(1, 0, None)
    policy.push(2, 0, None)
    policy.discard(1)
    policy.discard(3)

    assert [policy.pop(calm(0)), policy.pop(calm(0))] == [(2, 0), None]


@pytest.mark.parametrize("name", policy_names())
def test_two_policies_share_nothing(name: str) -> None:
    """Each runtime has its own."""
    one, other = make_policy(name), make_policy(name)
    one.push(1, 0, None)

    assert other.pop(calm(0)) is None


def test_fifo_goes_where_it_is_calm() -> None:
    """Where a request ran before does not matter."""
    policy = make_policy("fifo")
    policy.push(1, 0, 1)

    assert policy.pop(calm(0, 1)) == (1, 0)


def busy(*works: int) -> list[StreamView]:
    """Streams with one chunk each, of so much work."""
    return [StreamView(number, 1, work) for number, work in enumerate(works)]


def test_auto_stays_where_it_was_unless_another_stream_has_less_to_do() -> None:
    """Less by more than the request itself; a request that was nowhere goes where there is least."""
    policy = make_policy("auto")
    choices: list[object] = []
    for streams in (busy(0, 5), busy(0, 6), busy(9, 2)):
        policy.push(1, 0, 1, None, 5)
        choices.append(policy.pop(streams))
    policy.push(2, 0, None, None, 5)
    choices.append(policy.pop(busy(3, 2, 4)))
    policy.push(3, 0, 0, None, 5)
    choices.append(policy.pop([StreamView(0, DEPTH, 0), StreamView(1, 1, 100)]))

    assert choices == [(1, 1), (1, 0), (1, 1), (2, 1), (3, 1)]


def test_auto_goes_in_the_order_of_those_who_wait() -> None:
    """However large they are."""
    policy = make_policy("auto")
    policy.push(1, 0, None, None, 5)
    policy.push(2, 0, None, None, 90)

    assert [policy.pop(busy(0)), policy.pop(busy(0))] == [(1, 0), (2, 0)]


def latencies(policy: str, arrivals: list[tuple[float, int]], streams: int) -> list[float]:
    """How long each request takes, where streams run side by side and a chunk takes as long as it has work.

    Args:
        arrivals: When each request comes, and its work; it has one chunk.
    """
    state = SchedulerState(streams, make_policy(policy))
    free, stamps, took = [0.0] * streams, [0] * streams, dict[int, float]()
    heap: list[tuple[float, int, Happening]] = [(at, n, Submitted(n)) for n, (at, _) in enumerate(arrivals)]
    while heap:
        now, number, happening = heapq.heappop(heap)
        given = state.handle(happening)
        if isinstance(happening, Reached):
            took[number] = now - arrivals[number][0]
            given = [*given, *state.handle(Ended(number))]
        while given:
            instruction, *given = given
            work = arrivals[instruction.request][1]
            if isinstance(instruction, Admit):
                given += state.handle(Ready(instruction.request, work))
            elif isinstance(instruction, LaunchChunk):
                stream = instruction.stream
                stamps[stream] += 1
                event = Event(stream, stamps[stream])
                free[stream] = max(now, free[stream]) + work
                heapq.heappush(heap, (free[stream], instruction.request, Reached(event)))
                given += state.handle(Launched(instruction.request, event))
    return [took[n] for n in range(len(arrivals))]


@pytest.mark.parametrize(("streams", "mean", "p99"), [(2, 0.99, 0.92), (4, 0.95, 0.85)])
def test_auto_answers_requests_of_different_sizes_sooner(streams: int, mean: float, p99: float) -> None:
    """Lognormal sizes at random times, at 80 % of what streams side by side can do, beside the default: in the median
    of 20 drawings p99 is 12 % lower on two streams and 21 % on four, and the mean 2 and 9 %. It is why it is there.
    """
    ratios: list[tuple[float, float]] = []
    for seed in range(20):
        chance, at, arrivals = random.Random(seed), 0.0, list[tuple[float, int]]()
        for _ in range(400):
            at += chance.expovariate(0.8 * streams / (900 * math.exp(0.5)))
            arrivals.append((at, max(1, round(900 * chance.lognormvariate(0, 1)))))
        auto, fifo = (sorted(latencies(name, arrivals, streams)) for name in ("auto", "fifo"))
        ratios.append((sum(auto) / sum(fifo), auto[396] / fifo[396]))

    found = [statistics.median(each) for each in zip(*ratios, strict=True)]

    assert found[0] < mean
    assert found[1] < p99
