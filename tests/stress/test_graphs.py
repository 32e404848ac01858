"""Random models give the same bytes whatever is switched on, and what the reference gives."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrt.devices.opencl.submit import native_submitter

from ..paths import AS_USERS_RUN_IT, CHECKED
from .compare import WAYS, compare, results
from .graphs import draw_model

SEEDS = {CHECKED: range(30, 44), AS_USERS_RUN_IT: range(50, 64)}
FEATURES = {
    "If", "Loop", "NonZero", "Concat", "Split", "Slice", "Transpose", "Reshape", "Expand", "Gather", "Pad", "Tile",
    "Identity", "Squeeze", "Unsqueeze", "Where", "MatMul", "Softmax", "ReduceSum", "Range", "Dropout", "input returned",
}  # fmt: skip


def test_many_models_give_the_same_bytes_in_every_way(either_path: str) -> None:
    """Skips, views, parts in place, replay and the pool on and off; one stream to four; alone and all at once.

    On the path of users those models that the checked path has not had.
    """
    compared = [compare(seed) for seed in SEEDS[either_path]]

    assert {f for c in compared for f in c.model.features} >= FEATURES
    assert sum(c.referenced for c in compared) > 2 * len(compared), "the reference had hardly any results"
    assert sum(s.presets.replays for c in compared for s in c.seen) > 10 * len(compared)


@pytest.mark.usefixtures("shared_programs")
def test_models_give_the_same_bytes_in_every_way_on_opencl(either_path: str) -> None:
    """Fusion may add in another order, and stays within what the operators are allowed."""
    seen = [s for seed in range(1000, 1002) for s in compare(seed, opencl=True).seen]

    assert sum(s.presets.replays for s in seen) > 0
    assert (sum(s.native for s in seen) > 0) == (native_submitter() is not None)
    assert sum(s.by_recipe for s in seen) > 0


@settings(max_examples=15)
@given(chance=st.randoms(use_true_random=False))
def test_models_that_shrink_give_the_same_bytes(chance: random.Random) -> None:
    """Drawn by Hypothesis, which finds a small model where a large one fails."""
    model = draw_model(chance)
    drawn = [model.inputs(chance) for _ in range(2)]

    first = asyncio.run(results(WAYS[1], model.proto, drawn, "simulated"))
    for way in (WAYS[2], WAYS[3]):
        for expected, got in zip(first, asyncio.run(results(way, model.proto, drawn, "simulated")), strict=True):
            assert {k: v.tobytes() for k, v in expected.items()} == {k: v.tobytes() for k, v in got.items()}


def test_a_seed_draws_the_same_model_and_inputs_again() -> None:
    """Byte for byte, so that its number is all that a report needs."""
    for seed in range(20):
        chances = random.Random(seed), random.Random(seed)
        first, again = (draw_model(c) for c in chances)

        assert first.proto.SerializeToString(deterministic=True) == again.proto.SerializeToString(deterministic=True)
        a, b = (m.inputs(c) for m, c in zip((first, again), chances, strict=True))
        assert {k: v.tobytes() for k, v in a.items()} == {k: v.tobytes() for k, v in b.items()}


def test_what_is_drawn_is_varied() -> None:
    """Every feature is in one model of fifty, at least."""
    found: Counter[str] = Counter()
    for seed in range(1000):
        found.update(set(draw_model(random.Random(seed)).features))

    assert [f for f in FEATURES if found[f] < 20] == []


def test_a_difference_is_found_and_says_how_to_see_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime that is wrong in one way only."""
    from . import compare as module

    async def wrong(way: object, *rest: object) -> object:
        got = await results(way, *rest)  # type: ignore[arg-type]
        if way is WAYS[-1]:
            got[-1] = {name: array + 1 for name, array in got[-1].items()}
        return got

    monkeypatch.setattr(module, "results", wrong)

    with pytest.raises(AssertionError, match="branches, no skips, two at once, request 11") as caught:
        compare(3)
    assert "seed 3" in caught.value.__notes__[0]
