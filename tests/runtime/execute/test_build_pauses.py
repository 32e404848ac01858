"""Builds that nobody waits for rest while requests come, and not for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from asyncrt.runtime.execute.build_pauses import LOOK_S, MOST_S, BuildPauses

from ...virtual_loop import run


class Build:
    """A build that may rest, and requests that are under way or not."""

    def __init__(self) -> None:
        self.told: list[bool] = []
        self.busy = False
        self.pauses = BuildPauses(self.told.append, lambda: self.busy)

    @property
    def rests(self) -> bool:
        return bool(self.told) and self.told[-1]


def during(scenario: Callable[[Build], Coroutine[Any, Any, None]]) -> Build:
    """Run a scenario while there is a build, and return that."""

    async def go() -> Build:
        build = Build()
        with build.pauses.during():
            assert build.pauses.building
            await scenario(build)
        assert not build.pauses.building
        return build

    return run(go())


def test_it_rests_from_the_first_request_on_until_none_came_for_a_while() -> None:
    """At once, and as long as requests come one after the other."""

    async def scenario(build: Build) -> None:
        assert not build.rests
        for _ in range(20):
            build.pauses.touch()
            assert build.rests
            await asyncio.sleep(LOOK_S / 2)
            assert build.rests
        await asyncio.sleep(3 * LOOK_S)
        assert not build.rests

    assert during(scenario).told == [True, False]


def test_it_rests_while_a_long_request_is_under_way() -> None:
    """Also where none comes meanwhile."""

    async def scenario(build: Build) -> None:
        build.pauses.touch()
        build.busy = True
        await asyncio.sleep(20 * LOOK_S)
        assert build.rests
        build.busy = False
        await asyncio.sleep(3 * LOOK_S)
        assert not build.rests

    during(scenario)


def test_where_requests_never_end_it_goes_on_after_some_time() -> None:
    """Then it is likely that what is built is worth it; the next build rests again."""

    async def scenario(build: Build) -> None:
        while build.rests or asyncio.get_running_loop().time() < MOST_S / 2:
            build.pauses.touch()
            await asyncio.sleep(LOOK_S / 2)
        took = asyncio.get_running_loop().time()
        assert MOST_S <= took <= MOST_S + 3 * LOOK_S
        build.pauses.touch()
        await asyncio.sleep(LOOK_S)
        assert not build.rests
        with build.pauses.during():
            build.pauses.touch()
            assert build.rests

    during(scenario)


def test_it_does_not_rest_when_the_build_is_over() -> None:
    """Whoever built it may have something else to do."""

    async def scenario(build: Build) -> None:
        build.pauses.touch()

    assert during(scenario).told == [True, False]
