"""Arena plans: nothing overlaps, everything is aligned, and little is wasted."""

from __future__ import annotations

import random
import time
from array import array
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrt.memory.arena import ALIGNMENT, ArenaPlan, Interval, Lifetimes, plan_arena

SIZES = st.one_of(st.integers(0, 2000), st.sampled_from([4096, 4097, 100_000, 1 << 20]))
TENSORS = st.lists(
    st.builds(
        lambda n, first, length: Interval(n, first, first + length), SIZES, st.integers(-1, 30), st.integers(0, 40)
    ),
    max_size=40,
)


def rounded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def live_bytes(tensors: list[Interval]) -> int:
    """Return the most bytes needed at any one step, which is when some tensor is made: no plan can be smaller."""
    steps = {t.first for t in tensors}
    return max((sum(rounded(t.nbytes) for t in tensors if t.first <= s <= t.last) for s in steps), default=0)


def assert_sound(tensors: list[Interval], plan: ArenaPlan) -> None:
    places = list(zip(tensors, plan.offsets, strict=True))
    for i, (a, begin) in enumerate(places):
        assert begin % ALIGNMENT == 0
        assert 0 <= begin <= begin + a.nbytes <= plan.nbytes
        for b, other in places[:i]:
            together = a.first <= b.last and b.first <= a.last
            apart = begin + a.nbytes <= other or other + b.nbytes <= begin
            assert not (together and a.nbytes and b.nbytes) or apart, (a, begin, b, other)


@given(TENSORS)
@settings(max_examples=400)
def test_tensors_that_live_together_do_not_overlap(tensors: list[Interval]) -> None:
    """For any sizes and lives; and the plan is no smaller than what lives at once, nor larger than all together."""
    plan = plan_arena(tensors)

    assert_sound(tensors, plan)
    everything = sum(rounded(t.nbytes) for t in tensors)
    assert live_bytes(tensors) <= plan.nbytes <= everything


@given(TENSORS, st.lists(st.lists(SIZES, min_size=40, max_size=40), max_size=3))
@settings(max_examples=400)
def test_the_same_tensors_at_other_sizes_get_the_plan_they_would_get(
    arena: ModuleType, tensors: list[Interval], others: list[list[int]]
) -> None:
    """Whatever was planned before: other sizes, these, or some that are as many steps of the alignment. In C, too."""
    lifetimes, in_c = [Lifetimes([(t.first, t.last) for t in tensors]) for _ in range(2)]
    lifetimes.native, in_c.native = None, arena.place
    sizes = [[t.nbytes for t in tensors], *(other[: len(tensors)] for other in others)]
    sizes += [[max(1, n - n % 2) if n else 0 for n in given] for given in sizes]

    for given_now in (*sizes, *reversed(sizes)):
        expected = plan_arena([t._replace(nbytes=n) for t, n in zip(tensors, given_now, strict=True)])
        assert expected == lifetimes.place(given_now) == in_c.place(given_now)


def test_lifetimes_of_others_are_refused(arena: ModuleType) -> None:
    """Rather than memory read that is not theirs."""
    two, starts = array("i", [0, 0]).tobytes(), array("i", [0, 1, 2]).tobytes()

    for beside in ([1], [1, 2], [1, -1]):
        with pytest.raises(ValueError, match="lifetimes"):
            arena.place([256, 256], two, starts, array("i", beside).tobytes())
    assert arena.place([256, 512], two, starts, array("i", [1, 0]).tobytes()) == ((512, 0), 768)


def test_a_chain_needs_room_for_two() -> None:
    """Of a chain of equal tensors, each is needed only until the next is made."""
    tensors = [Interval(1000, i, i + 1) for i in range(20)]

    plan = plan_arena(tensors)

    assert plan.nbytes == 2 * 1024
    assert_sound(tensors, plan)


def test_what_lives_to_the_end_is_shared_with_nothing_after_it() -> None:
    """An output keeps its place, whatever is made later."""
    tensors = [Interval(512, 0, 1 << 30), *(Interval(512, i, i) for i in range(1, 9))]

    plan = plan_arena(tensors)

    assert plan.nbytes == 1024
    assert plan.offsets[0] not in plan.offsets[1:]


def test_nothing_needs_nothing() -> None:
    """No tensors, or only empty ones, make an arena of no bytes."""
    assert ArenaPlan((), 0) == plan_arena([])
    assert ArenaPlan((0, 0), 0) == plan_arena([Interval(0, 0, 5), Interval(0, 2, 3)])


def network(seed: int, count: int) -> list[Interval]:
    """Tensors as a network of *count* nodes has them: short lives, some residuals, a few outputs."""
    chance = random.Random(seed)
    made = []
    for i in range(count):
        last = 1 << 30 if chance.random() < 0.02 else i + chance.choice((1, 1, 1, 2, 3, 12))
        made.append(Interval(chance.choice((64, 1 << 12, 393_216, 1_572_864, chance.randrange(1 << 20))), i, last))
    return made


def test_plans_are_close_to_the_least_possible() -> None:
    """Greedy by size comes within a tenth of the bytes that live at once, and on average within a fiftieth."""
    ratios = []
    for seed in range(20):
        tensors = network(seed, 200)
        plan = plan_arena(tensors)
        assert_sound(tensors, plan)
        ratios.append(plan.nbytes / live_bytes(tensors))

    mean, worst = sum(ratios) / len(ratios), max(ratios)
    assert mean <= 1.02, f"arena / live bytes: mean {mean:.4f}, worst {worst:.4f}"
    assert worst <= 1.1, f"arena / live bytes: mean {mean:.4f}, worst {worst:.4f}"


def test_planning_is_fast() -> None:
    """300 tensors take well under the 5 ms that a request may wait; measured as the best of several, CPU time only."""
    tensors = network(1, 300)
    best = float("inf")
    for _ in range(7):
        before = time.process_time()
        plan_arena(tensors)
        best = min(best, time.process_time() - before)

    assert best < 0.005, f"{best * 1e3:.2f} ms"
