"""Builds rest while requests come, not for ever, and not while somebody waits for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from asyncrt.kernels.resident.build_pauses import LOOK_S, MOST_S, BuildPauses

from ...virtual_loop import run


class Builds:
    """Builds that may rest, and requests that are under way or not."""

    def __init__(self) -> None:
        self.told: list[bool] = []
        self.busy = False
        self.pauses = BuildPauses(self.told.append, lambda: self.busy)

    @property
    def rest(self) -> bool:
        return bool(self.told) and self.told[-1]

    async def until_they_go_on(self) -> float:
        """Let requests come without end; returns after how many seconds builds go on all the same."""
        began = asyncio.get_running_loop().time()
        self.pauses.touch()
        while self.rest:
            await asyncio.sleep(LOOK_S / 2)
            self.pauses.touch()
        return asyncio.get_running_loop().time() - began


def during(scenario: Callable[[Builds], Coroutine[Any, Any, None]]) -> Builds:
    """Run a scenario while there are builds, and return those."""

    async def go() -> Builds:
        builds = Builds()
        builds.pauses.begin()
        assert builds.pauses.building
        await scenario(builds)
        builds.pauses.end()
        assert not builds.pauses.building
        return builds

    return run(go())


def test_they_rest_from_the_first_request_on_until_none_came_for_a_while() -> None:
    """At once, and as long as requests come one after the other."""

    async def scenario(builds: Builds) -> None:
        assert not builds.rest
        for _ in range(20):
            builds.pauses.touch()
            assert builds.rest
            await asyncio.sleep(LOOK_S / 2)
            assert builds.rest
        await asyncio.sleep(3 * LOOK_S)
        assert not builds.rest
        assert 10 * LOOK_S <= builds.pauses.rested_s <= 14 * LOOK_S

    assert during(scenario).told == [True, False]


def test_they_rest_while_a_long_request_is_under_way() -> None:
    """Also where none comes meanwhile."""

    async def scenario(builds: Builds) -> None:
        builds.pauses.touch()
        builds.busy = True
        await asyncio.sleep(20 * LOOK_S)
        assert builds.rest
        builds.busy = False
        await asyncio.sleep(3 * LOOK_S)
        assert not builds.rest

    during(scenario)


def test_where_requests_never_end_they_go_on_after_some_time() -> None:
    """Then it is likely that what is built is worth it; that holds for builds that begin soon after as well."""

    async def scenario(builds: Builds) -> None:
        assert MOST_S <= await builds.until_they_go_on() <= MOST_S + 3 * LOOK_S
        builds.pauses.end()
        await asyncio.sleep(MOST_S / 2)
        builds.pauses.begin()
        builds.pauses.touch()
        assert not builds.rest
        builds.pauses.end()
        await asyncio.sleep(MOST_S + LOOK_S)
        builds.pauses.begin()
        assert MOST_S <= await builds.until_they_go_on() <= MOST_S + 3 * LOOK_S

    during(scenario)


def test_none_rests_while_somebody_waits_for_it() -> None:
    """From that moment on; when nobody waits any more, they rest again."""

    async def scenario(builds: Builds) -> None:
        builds.busy = True
        builds.pauses.touch()
        assert builds.rest
        with builds.pauses.waited_for():
            assert not builds.rest
            with builds.pauses.waited_for():
                builds.pauses.touch()
            await asyncio.sleep(3 * LOOK_S)
            assert not builds.rest
        await asyncio.sleep(3 * LOOK_S)
        assert builds.rest

    during(scenario)


def test_nothing_rests_when_builds_are_over() -> None:
    """What built them may have something else to do."""

    async def scenario(builds: Builds) -> None:
        builds.pauses.touch()

    builds = during(scenario)
    builds.pauses.touch()
    assert builds.told == [True, False]


def test_what_is_said_last_is_told_last() -> None:
    """Also where a request comes on another thread in the moment in which somebody begins to wait."""
    told: list[bool] = []
    waits: list[threading.Thread] = []

    def pause(paused: bool) -> None:
        if paused:
            waits.append(threading.Thread(target=lambda: pauses.waited_for().__enter__()))
            waits[-1].start()
            waits[-1].join(0.1)  # it waits until this is told
        told.append(paused)

    pauses = BuildPauses(pause, lambda: False)

    async def scenario() -> None:
        pauses.begin()
        pauses.touch()
        for thread in waits:
            thread.join()
        pauses.end()

    run(scenario())

    assert told == [True, False]
