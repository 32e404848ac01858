"""Threads that plan take turns: one at a time, those first for whom somebody waits, and none is left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable

from asyncrt.runtime.loop.planning_turns import PlanningTurns


class Planner:
    """A thread that takes its turn, and says so; it gives the turn back when the test says so."""

    def __init__(self, turns: PlanningTurns, name: str, order: list[str]) -> None:
        self.urgent = self.ended = False
        self.got: bool | None = None
        self._asked = threading.Event()
        self._turns, self._name, self._order = turns, name, order
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        assert self._asked.wait(30)

    def _run(self) -> None:
        def ended() -> bool:
            self._asked.set()
            return self.ended

        self.got = self._turns.take(lambda: self.urgent, ended)
        if self.got:
            self._order.append(self._name)
            self._turns.give_back()


def joined(*planners: Planner) -> bool:
    for planner in planners:
        planner.thread.join(30)
    return not any(planner.thread.is_alive() for planner in planners)


def never() -> bool:
    return False


def always() -> bool:
    return True


def test_one_goes_on_and_the_others_after_it() -> None:
    """As soon as it gives its turn back."""
    turns, order = PlanningTurns(), list[str]()
    assert turns.take(never, never)
    planners = [Planner(turns, str(n), order) for n in range(5)]
    waited = list(order)
    turns.give_back()

    assert joined(*planners)
    assert waited == []
    assert sorted(order) == ["0", "1", "2", "3", "4"]


def test_the_one_somebody_waits_for_is_the_next() -> None:
    """Be it that it has become so only while it waits; and who has the turn can see it."""
    turns, order = PlanningTurns(), list[str]()
    assert turns.take(never, never)
    others = [Planner(turns, f"other {n}", order) for n in range(3)]
    hurried = Planner(turns, "hurried", order)
    before = turns.wanted_urgently
    hurried.urgent = True
    turns.look_again()
    wait_until(lambda: turns.wanted_urgently)
    turns.give_back()

    assert joined(hurried, *others)
    assert not before
    assert not turns.wanted_urgently
    assert order[0] == "hurried"


def test_who_has_ended_waits_no_longer() -> None:
    """And has no turn that it would have to give back."""
    turns, order = PlanningTurns(), list[str]()
    assert turns.take(always, never)
    planner = Planner(turns, "ended", order)
    planner.ended = True
    turns.look_again()

    assert joined(planner)
    assert planner.got is False
    assert order == []
    turns.give_back()
    assert turns.take(never, never)


def wait_until(condition: Callable[[], bool]) -> None:
    """Return when it holds; another thread sees to that, in a moment."""
    gone = threading.Event()
    for _ in range(30_000):
        if condition():
            return
        gone.wait(1e-3)
    raise AssertionError("it did not come to that")
