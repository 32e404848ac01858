"""Plans that are made before their step comes: the same bytes, while nobody waits, and nothing left of wrong ones."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from asyncrt import Model, Runtime, RuntimeOptions
from asyncrt.layout import Array
from asyncrt.runtime.cooperative import Slices
from asyncrt.runtime.plan.foreseen_plan import Guess, Guessed
from asyncrt.runtime.request.next_plan import Foresight, following, has_all

from ...builders import model, node
from ..sequences.test_sequence import attention, floats


def options(**changes: Any) -> RuntimeOptions:
    return RuntimeOptions(**changes)


@pytest_asyncio.fixture
async def loaded() -> AsyncIterator[Model]:
    """A decoder whose recipes are trusted, from sequences of other lengths."""
    async with Runtime(streams=2, options=options()) as rt:
        model = await rt.load(attention())
        await decode(model, [3, *[1] * 6])
        await decode(model, [40, *[1] * 6])
        yield model
    assert rt.statistics().memory.leases == 0


async def decode(loaded: Model, lengths: list[int], used: list[bool] | None = None) -> list[Array]:
    """What steps of those lengths give; notes whether there was a guess for each, and it was right."""
    found = []
    async with loaded.sequence() as sequence:
        for i, length in enumerate(lengths):
            before = taken(loaded)
            found.append((await sequence.infer({"x": floats(1, length, 6, seed=i)}))["y"])
            if used is not None:
                used.append(taken(loaded) > before)
    return found


def taken(loaded: Model) -> int:
    """How many guesses were right so far."""
    foresight = loaded.network.foresight
    return 0 if foresight is None else foresight.taken


async def without(lengths: list[int]) -> list[Array]:
    """The same without any guess."""
    async with Runtime(streams=2, options=options(without={"next_plan"})) as rt:
        model = await rt.load(attention())
        assert model.network.foresight is None
        return await decode(model, lengths)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[Guess]:
    """Let the device be at every step until its guess is made, and return the guesses."""
    guesses: list[Guess] = []
    really = Foresight.guessing

    @contextlib.contextmanager
    def guessing(self: Foresight, kept: Any, given: Any, bound: Any) -> Iterator[None]:
        with really(self, kept, given, bound):
            if kept.guess is not None:
                guesses.append(kept.guess)
                while kept.guess.go_on():
                    pass
            yield

    monkeypatch.setattr(Foresight, "guessing", guessing)
    return guesses


@pytest.mark.asyncio
async def test_a_text_goes_on_as_it_went(loaded: Model, slow: list[Guess]) -> None:
    """From the step on that two single tokens are before, each finds its plan made; bit for bit the same."""
    lengths, used = [60, *[1] * 12], list[bool]()

    found = await decode(loaded, lengths, used)

    assert used == [False] * 3 + [True] * 10
    assert [y.tobytes() for y in await without(lengths)] == [y.tobytes() for y in found]


@pytest.mark.asyncio
async def test_another_step_throws_the_guess_away(loaded: Model, slow: list[Guess]) -> None:
    """Its plan is made when it comes, and those of the guesses are kept nowhere."""
    lengths, used = [70, 1, 1, 5, 1, 1, 1, 9], list[bool]()
    before = len(loaded.network.plans)

    found = await decode(loaded, lengths, used)

    assert [y.tobytes() for y in await without(lengths)] == [y.tobytes() for y in found]
    assert used == [False] * 6 + [True, False]
    assert len(loaded.network.plans) == before + len(lengths)


@pytest.mark.asyncio
async def test_steps_are_guessed_before_and_behind_one_that_moves_what_is_kept(slow: list[Guess]) -> None:
    """To memory with room for more; by then the guess is about that, and it is another recipe's."""
    lengths, used = [120, *[1] * 15], list[bool]()
    async with Runtime(streams=2, options=options(plan_bytes=1)) as rt:  # so that no plan is found
        loaded = await rt.load(attention())
        for length in (119, 121, 125, 122):
            await decode(loaded, [length, *[1] * 12])

        found = await decode(loaded, lengths, used)

    assert used[3:8] + used[10:] == [True] * 11
    assert [y.tobytes() for y in await without(lengths)] == [y.tobytes() for y in found]


@pytest.mark.asyncio
async def test_a_device_that_is_done_earlier_ends_the_guess(loaded: Model) -> None:
    """After the first slice, here: what is left of it is made when the step comes."""

    class OneTurn:
        """A loop that has time for the first slice of each guess; `left` counts those that had more."""

        left, turning = 0, False

        def call_soon(self, go_on: Callable[[], None]) -> OneTurn:
            if self.turning:
                self.left += 1
            else:
                self.turning = True
                go_on()
                self.turning = False
            return self

        def cancel(self) -> None:
            """It does not run any more."""

    loop: Any = OneTurn()
    loaded.network.foresight.loop = loop  # type: ignore[union-attr]
    lengths, used = [60, *[1] * 6], list[bool]()

    found = await decode(loaded, lengths, used)

    assert loop.left == 5
    assert used == [False] * 3 + [True] * 4
    assert [y.tobytes() for y in await without(lengths)] == [y.tobytes() for y in found]


@pytest.mark.asyncio
async def test_nothing_is_guessed_beside_another_request() -> None:
    """It would have to wait for the guess; one that comes meanwhile ends it."""
    requests, slices = SimpleNamespace(in_flight=1), []

    def work() -> Slices[None]:
        for n in range(3):
            slices.append(n)
            if n == 1:
                requests.in_flight = 2
            yield

    plans = SimpleNamespace(follows=True, knows=lambda signature: False, foresee=lambda *given: work())
    program = SimpleNamespace(inputs=[], value_inputs=[])
    bound = SimpleNamespace(left=SimpleNamespace(layouts={}, tensors=(), signature=()))
    kept = SimpleNamespace(given=(), guess=None)
    guessing = Foresight(program, plans, requests, None)  # type: ignore[arg-type]

    with guessing.guessing(kept, (), bound):  # type: ignore[arg-type]
        for _ in range(6):
            await asyncio.sleep(0)

    assert slices == [0, 1]
    assert isinstance(kept.guess, Guess)


@pytest.mark.asyncio
async def test_a_cancelled_step_may_be_tried_again_whatever_was_guessed(loaded: Model, slow: list[Guess]) -> None:
    """The state is what it was before; so the guess of the step behind it is of another one."""
    lengths = [60, *[1] * 5]
    expected = await without(lengths)
    found = []

    async with loaded.sequence() as sequence:
        for i, length in enumerate(lengths):
            inputs = {"x": floats(1, length, 6, seed=i)}
            step = asyncio.ensure_future(sequence.infer(inputs))
            for _ in range(i + 1):  # before it is enqueued, or behind
                await asyncio.sleep(0)
            step.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                found.append((await step)["y"])
            if len(found) == i:
                found.append((await sequence.infer(inputs))["y"])

    assert [y.tobytes() for y in expected] == [y.tobytes() for y in found]


@pytest.mark.asyncio
@pytest.mark.parametrize("limit", [None, 1 << 20])
async def test_a_guess_is_bound_unless_it_would_keep_constants_from_leaving(
    limit: int | None, slow: list[Guess]
) -> None:
    """To those of the step under way; then nothing of that is looked up when the step comes."""
    lengths, used = [60, *[1] * 6], list[bool]()
    async with Runtime(streams=2, options=options(weights_bytes=limit)) as rt:
        loaded = await rt.load(attention())
        await decode(loaded, [3, *[1] * 6])
        await decode(loaded, [40, *[1] * 6])
        slow.clear()

        found = await decode(loaded, lengths, used)
        guessed = [guess.plan() for guess in slow]

    assert used == [False] * 3 + [True] * 4
    assert [g is not None and g.bound is not None and g.bound.plan is g.plan for g in guessed] == (
        [limit is None] * len(slow)
    )
    assert [y.tobytes() for y in await without(lengths)] == [y.tobytes() for y in found]


@pytest.mark.parametrize(
    ("constants", "kernels", "all_there"),
    [("ab", "k", True), ("a", "k", False), ("ab", "", False), ("abc", "kl", True)],
)
def test_a_plan_is_bound_to_what_another_has_if_that_is_all_it_needs(
    constants: str, kernels: str, all_there: bool
) -> None:
    """One constant or one kernel that is missing has to be brought or built first."""
    before: Any = SimpleNamespace(packings=())
    bound: Any = SimpleNamespace(plan=before, constants=dict.fromkeys(constants), kernels=dict.fromkeys(kernels))
    steps = [SimpleNamespace(kernel="k")]
    plan: Any = SimpleNamespace(packings=[SimpleNamespace(key=k) for k in "ab"], steps=steps)

    assert has_all(bound, plan) is all_there


@pytest.mark.asyncio
@pytest.mark.parametrize("mechanism", ["next_plan", "recipes", "replay"])
async def test_nothing_is_guessed_where_it_is_off(mechanism: str, slow: list[Guess]) -> None:
    """Nor where there are no recipes to guess by."""
    async with Runtime(streams=2, options=options(without={mechanism})) as rt:
        loaded = await rt.load(attention())
        for length in (3, 40, 60):
            async with loaded.sequence() as sequence:
                for i, size in enumerate([length, *[1] * 6]):
                    await sequence.infer({"x": floats(1, size, 6, seed=i)})

    assert slow == []


def test_a_guess_that_fails_is_none() -> None:
    """The step may never come; if it does, planning it fails for whoever asked for it."""

    def work() -> Slices[Guessed | None]:
        yield
        raise OverflowError

    guess = Guess("signature", work())

    more = [guess.go_on(), guess.go_on(), guess.go_on()]

    assert more == [True, False, False]
    assert guess.plan() is None


@pytest.mark.asyncio
async def test_a_model_whose_recipe_was_wrong_takes_no_guess() -> None:
    """It may be by that very recipe."""
    distrusted, unused = SimpleNamespace(follows=False), SimpleNamespace()
    kept = SimpleNamespace(guess=Guess("signature", iter(())))  # type: ignore[arg-type]
    taker = Foresight(unused, distrusted, unused, None)  # type: ignore[arg-type]

    found = taker.take(kept, "signature")  # type: ignore[arg-type]

    assert found is None
    assert kept.guess is None


@pytest.mark.parametrize(
    ("before", "now", "after"),
    [
        ((), (), ()),
        (((1, 1), (1, 17)), ((1, 1), (1, 18)), ((1, 1), (1, 19))),
        (((4, 0), ()), ((2, 3), ()), ((0, 6), ())),
        (((1, 16),), ((1, 1),), None),
        (((1, 16),), ((1, 16, 1),), None),
        (((1, 16),), ((1, 16), (1,)), None),
        (None, ((1, 16),), None),
    ],
    ids=["none", "a mask grows", "to nothing", "below nothing", "another rank", "another number", "the first"],
)  # fmt: skip
def test_axes_go_on_as_they_went(before: Any, now: Any, after: Any) -> None:
    """By the difference of two steps; where there are not two that can be compared, nothing is known."""
    assert following(before, now) == after


@pytest.mark.asyncio
async def test_sequences_whose_state_is_paired_otherwise_share_no_plan() -> None:
    """The same shapes, but what is kept is another input: with guesses, recipes and plans that are found."""
    source = model(
        [node("p = Concat(a, x)", axis=0), node("q = Concat(b, z)", axis=0), node("y = Sub(p, q)")],
        ["x f32[n,2]", "z f32[n,2]", "a f32[past,2]", "b f32[past,2]"], ["y", "p", "q"],
    )  # fmt: skip
    straight, crossed = {"a": "p", "b": "q"}, {"a": "q", "b": "p"}
    one, two = floats(3, 2), floats(3, 2, seed=1)
    found: dict[str, list[Array]] = {"straight": [], "crossed": []}

    async with Runtime(options=options()) as rt:
        loaded = await rt.load(source)
        for name, state in (("straight", straight), ("crossed", crossed)):
            async with loaded.sequence(state) as sequence:
                for i in range(8):
                    found[name].append((await sequence.infer({"x": one + i, "z": two}))["y"])

    for i, (y, z) in enumerate(zip(found["straight"], found["crossed"], strict=True)):
        rows = [one + k for k in range(i + 1)], [two] * (i + 1)
        turned = [rows[(i - k) % 2][k] for k in range(i + 1)], [rows[(i - k + 1) % 2][k] for k in range(i + 1)]
        assert np.array_equal(np.concatenate(rows[0]) - np.concatenate(rows[1]), y)
        assert np.array_equal(np.concatenate(turned[0]) - np.concatenate(turned[1]), z)
