"""Full garbage collections: put off while a request is there, done when none is, and never lost."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from asyncrt import Runtime, RuntimeOptions
from asyncrt.runtime.loop import gc_pauses as collecting
from asyncrt.runtime.loop.gc_pauses import MANY, PATIENCE_S, QUIET_S, Collector

from ...builders import model, node

NETWORK = model([node("y = Tanh(x)")], ["x f32[n]"], ["y"])


class FakeLoop:
    """A clock, and the one call that it makes later."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.later: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, call: Callable[[], None]) -> SimpleNamespace:
        entry = (self.now + delay, call)
        self.later.append(entry)
        return SimpleNamespace(cancel=lambda: self.later.remove(entry))

    def go_on(self, seconds: float) -> None:
        """Let time pass, and make the calls that are due by then."""
        until = self.now + seconds
        while self.later and self.later[0][0] <= until:
            self.now, call = self.later.pop(0)
            call()
        self.now = until


@pytest.fixture
def loop() -> FakeLoop:
    return FakeLoop()


@pytest.fixture
def collector(loop: FakeLoop) -> Iterator[Collector]:
    collector = Collector(loop)  # type: ignore[arg-type]
    yield collector
    collector.close()


@pytest.fixture(autouse=True)
def nothing_frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever runtimes of other tests are open; and nothing is left frozen by these."""
    gc.unfreeze()
    gc.collect()
    monkeypatch.setattr(collecting, "OWN", gc.get_freeze_count())  # Python 3.12 has frozen its own again
    monkeypatch.setattr(collecting, "PROCESS", collecting.ProcessCollections())
    yield
    assert gc.get_freeze_count() <= collecting.OWN
    gc.freeze()  # as before; see conftest.py


@pytest.fixture
def full() -> Iterator[list[str]]:
    """The full collections that there were, by who began them."""
    found: list[str] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "start" and info["generation"] == 2:
            found.append("collected")

    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)


def grow_old(times: int = 40) -> None:
    """What would have made Python collect all: that many collections of younger objects, as it counts them."""
    for _ in range(times):
        gc.collect(1)


def test_they_wait_until_no_request_is_there(full: list[str], collector: Collector, loop: FakeLoop) -> None:
    """They are due while there is one like at any other time; there is one when it has been quiet for a while."""
    collector.busy()
    grow_old()
    loop.go_on(10.0)
    under_way = list(full)

    collector.quiet()
    loop.go_on(QUIET_S / 2)
    early = list(full)
    loop.go_on(2 * QUIET_S)

    assert (under_way, early) == ([], [])
    assert full == ["collected"]
    assert loop.later == []


def test_a_request_that_comes_puts_it_off(full: list[str], collector: Collector, loop: FakeLoop) -> None:
    """There was not enough rest; the rest after it is another one."""
    collector.busy()
    grow_old()
    for _ in range(5):
        collector.quiet()
        loop.go_on(QUIET_S * 0.9)
        collector.busy()
        loop.go_on(QUIET_S * 0.9)
    before = list(full)

    collector.quiet()
    loop.go_on(2 * QUIET_S)

    assert before == []
    assert full == ["collected"]


def test_what_is_not_due_is_not_done(full: list[str], collector: Collector, loop: FakeLoop) -> None:
    """A few requests make few objects."""
    collector.busy()
    gc.collect()
    full.clear()
    collector.quiet()

    loop.go_on(1.0)

    assert full == []


def test_a_process_that_never_rests_is_collected_all_the_same(
    full: list[str], collector: Collector, loop: FakeLoop
) -> None:
    """After a while, and without any request that would begin or end meanwhile."""
    collector.busy()
    grow_old()
    loop.go_on(PATIENCE_S - 1)
    early = list(full)

    loop.go_on(2)
    grow_old()
    loop.go_on(PATIENCE_S - 2)
    once = list(full)
    loop.go_on(4)

    assert early == []
    assert once == ["collected"]
    assert full == ["collected"] * 2


def test_many_objects_are_not_waited_for(full: list[str], collector: Collector, loop: FakeLoop) -> None:
    """What cannot be reached stays bounded, however fast a process makes it."""
    collector.busy()
    grow_old(MANY)
    loop.go_on(1.0)
    before = list(full)

    grow_old(1)
    loop.go_on(1.0)

    assert before == []
    assert full == ["collected"]


class Cycle:
    """What references do not free."""

    def __init__(self) -> None:
        self.itself = self


def test_what_was_there_at_a_rest_is_left_alone_until_the_next(
    collector: Collector, loop: FakeLoop
) -> None:
    """Collections between do not go through it, so they take no time for it; then it is collected like anything."""
    old = Cycle()
    seen = weakref.ref(old)
    collector.quiet()
    grow_old()
    loop.go_on(1.0)
    frozen = gc.get_freeze_count()
    young = Cycle()
    also = weakref.ref(young)
    del old, young

    collector.busy()
    grow_old()
    loop.go_on(PATIENCE_S + 1)
    between = (seen() is None, also() is None)
    collector.quiet()
    grow_old()
    loop.go_on(1.0)

    assert frozen > 1000
    assert between == (False, True)
    assert seen() is None


def test_what_somebody_else_has_frozen_stays_frozen(collector: Collector, loop: FakeLoop) -> None:
    """It is theirs to let go; nothing is added to it."""
    gc.freeze()
    theirs = gc.get_freeze_count()
    collector.quiet()
    grow_old()

    loop.go_on(1.0)
    collector.close()

    assert theirs - 100 < gc.get_freeze_count() <= theirs  # some of it was freed since
    gc.unfreeze()


def test_python_does_as_it_likes_while_no_request_is_there(loop: FakeLoop) -> None:
    """Of any of several runtimes."""
    before = gc.get_threshold()
    one, other = (Collector(loop) for _ in range(2))  # type: ignore[arg-type]
    thresholds = [gc.get_threshold()]
    for happens in (one.busy, one.busy, other.busy, one.quiet, lambda: loop.go_on(1.0), other.close):
        happens()
        thresholds.append(gc.get_threshold())
    one.close()

    never = thresholds[1]
    assert never[0] == before[0]
    assert never[1] < before[1]
    assert never[2] > 10**6
    assert thresholds == [before, never, never, never, never, never, before]


@pytest.mark.asyncio
async def test_a_runtime_says_when_it_has_requests() -> None:
    """And when not; it leaves the process as it was, and it changes nothing unless it is asked to."""
    before = gc.get_threshold()
    found: list[tuple[int, int, int]] = []
    for idle, options in ((True, RuntimeOptions(collect_when_idle=True)), (False, RuntimeOptions())):
        async with Runtime("host", options=options) as rt:
            loaded = await rt.load(NETWORK)
            await rt.session.dispatcher.admit(0)
            found.append(gc.get_threshold())
            await loaded.infer({"x": np.ones(3, np.float32)})
            found.append(gc.get_threshold())
            rt.session.dispatcher.end(0)
            collector = rt.session.collector
            assert (collector is not None) == idle
            assert collector is None or collector.quiet_since is not None

        assert before == gc.get_threshold()
    assert all(threshold[2] > 10**6 for threshold in found[:2])
    assert found[2:] == [before, before]


@pytest.mark.asyncio
async def test_what_was_loaded_is_frozen_before_requests_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model is thousands of objects, and does not change."""
    async with Runtime("host", options=RuntimeOptions(collect_when_idle=True)) as rt:
        await rt.load(NETWORK)
        collector = rt.session.collector
        assert collector is not None
        grow_old()
        monkeypatch.setattr(collector, "quiet_since", -1.0)
        collector.look()

        assert gc.get_freeze_count() > 1000
