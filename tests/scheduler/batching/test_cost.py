"""How long a batch will take, from those that have run."""

from __future__ import annotations

import math
import random

import pytest

from asyncrt.scheduler.batching.admission import DelayAllowance
from asyncrt.scheduler.batching.cost import CostModel, Line, resistant_line


def test_the_line_is_found() -> None:
    """3 ms, and 4 µs for each element; from sizes that differ, in any order."""
    runs = [(work, 0.003 + 4e-6 * work) for work in (900, 10, 400, 50, 3000, 100)]

    line = resistant_line(runs)

    assert pytest.approx((4e-6, 0.003)) == (line.per_work, line.fixed)
    assert line.told
    assert line(1000) == pytest.approx(0.007)


def test_runs_that_took_far_too_long_change_nothing() -> None:
    """A fifth of them, wherever they are: a kernel was built, or the machine was busy."""
    chance = random.Random(0)
    runs = [(work, 0.003 + 4e-6 * work) for work in chance.sample(range(10, 5000), 24)]
    for place in chance.sample(range(24), 5):
        runs[place] = (runs[place][0], 2.0)

    line = resistant_line(runs)

    assert line(2000) == pytest.approx(0.011, rel=0.25)


def test_runs_that_are_alike_tell_no_slope() -> None:
    """All of the time is taken to grow with the work, and the line says that it is a guess, and of which work."""
    line = resistant_line([(100, 0.01), (110, 0.011)])

    assert tuple(line) == pytest.approx((1e-4, 0.0, False, 110))
    assert (line(50), line(1100)) == pytest.approx((0.005, 0.11))
    assert (line.at_least(50), line.at_least(1100)) == pytest.approx((0.005, 0.011))


def test_of_two_runs_the_longer_is_not_believed() -> None:
    """A kernel was built for it, whether it is the smaller one or the larger."""
    assert resistant_line([(10, 3.0), (100, 0.004)])(1000) == pytest.approx(0.004)
    assert resistant_line([(10, 0.004), (100, 3.0)])(1000) == pytest.approx(0.4)


def test_the_slope_of_all_serves_a_class_that_tells_none() -> None:
    """With what its own runs say of the fixed cost."""
    assert tuple(resistant_line([(100, 0.02)], Line(1e-4, 0.5))) == pytest.approx((1e-4, 0.01, True, math.inf))
    assert tuple(resistant_line([(100, 0.02)], Line(1e-4, 0.5, False))) == pytest.approx((2e-4, 0.0, False, 100))


def test_neither_number_is_negative() -> None:
    """Where larger batches were faster, work costs nothing; where small ones were free, nothing is fixed."""
    assert resistant_line([(100, 0.02), (1000, 0.01)]).per_work == 0.0
    assert resistant_line([(100, 0.001), (1000, 0.1)]).fixed == 0.0


def test_classes_are_told_apart_and_the_oldest_is_forgotten() -> None:
    """What was never seen is like all; and there are not more classes than are of use."""
    model = CostModel()
    nothing = model.line("a")
    for work in (10, 100, 1000):
        model.observe("a", work, 1.0 * work)
        model.observe("b", work, 3.0 * work)

    a, b, c = model.line("a"), model.line("b"), model.line("c")

    assert nothing is None
    assert a is not None
    assert b is not None
    assert c is not None
    assert pytest.approx((a.per_work, b.per_work)) == (1.0, 3.0)
    assert a.per_work <= c.per_work <= b.per_work
    for kind in range(1000):
        model.observe(kind, 10, 1.0)
    assert repr(model).endswith(" 1006 runs of 256 classes>")


def test_what_is_allowed_for_follows_what_happens() -> None:
    """Up at once where a request took longer, slowly down where none does; early ones say nothing of the queue."""
    allowance = DelayAllowance(factor=2.0)

    allowance.saw(expected=1.0, took=3.0, had=3.0)
    after_late = allowance.factor
    for _ in range(100):
        allowance.saw(expected=1.0, took=1.0, had=3.0)
    after_many = allowance.factor
    allowance.saw(expected=0.01, took=10.0, had=3.0)

    assert after_late > 2.0
    assert 2.0 < after_many < after_late
    assert allowance.factor == after_many
    for _ in range(100):
        allowance.saw(expected=1.0, took=100.0, had=3.0)
    assert allowance.factor == 8.0


def test_a_model_that_has_become_slower_is_noticed() -> None:
    """After as many runs as are remembered at most."""
    model = CostModel()
    for seconds in [0.01] * 100 + [0.02] * 24:
        model.observe("a", 100, seconds)

    line = model.line("a")

    assert line is not None
    assert line(100) == pytest.approx(0.02)


def test_what_is_fixed_is_not_believed_of_one_class_alone() -> None:
    """Runs of about one size tell it badly: the less of what they and all say; what a unit of work takes, the more."""
    model = CostModel()
    for work, seconds in ((100, 0.009), (160, 0.0095)) * 6:
        model.observe("few", work, seconds)
    for work in (100, 200, 400, 800) * 20:
        model.observe("many", work, 0.001 + 1e-5 * work)
    few, cautious = model.line("few"), model.cautious("few")

    assert few is not None
    assert cautious is not None
    assert few.fixed > 0.008
    assert cautious.fixed < 0.005
    assert cautious.per_work >= few.per_work
    assert model.cautious("many") == pytest.approx(model.line("many"))
