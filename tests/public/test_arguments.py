"""What is no number that there can be is refused at every door, with a typed error, and nobody else is disturbed."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

import asyncrt
from asyncrt import ArgumentError, AsyncrtError, BatchOptions, Model, Runtime, RuntimeOptions, load_sync
from asyncrt.arguments import MOST_COUNT, MOST_PRIORITY, MOST_SECONDS
from asyncrt.mechanisms import MECHANISMS

from ..builders import model, node

X = np.ones((2, 3), np.float32)
NEITHER: dict[str, Any] = {
    "a text": "a", "bytes": b"1", "a list": [1], "an array": np.ones(3), "an array of one": np.ones(1),
    "a scalar array": np.array(1), "nan": float("nan"), "NumPy's nan": np.float32("nan"), "inf": float("inf"),
    "-inf": float("-inf"), "10**400": 10**400, "-10**400": -(10**400), "10**5000": 10**5000, "complex": 1j,
    "True": True, "NumPy's False": np.bool_(False), "an object": object(), "a type": int,
}  # fmt: skip
"""Neither a count nor a time, nor anything else that there can be."""
Door = Callable[..., Awaitable[Any]]


def negated() -> Any:
    return model([node("y = Neg(x)")], ["x f32[n,3]"], ["y"])


def summed() -> Any:
    """Each step adds to what the one before gave."""
    return model([node("y = Add(x, past)"), node("present = Identity(y)")], ["x f32[n,3]", "past f32[n,3]"],
                 ["y", "present"])  # fmt: skip


@contextlib.asynccontextmanager
async def infer(loaded: Model) -> AsyncIterator[Door]:
    yield functools.partial(loaded.infer, {"x": X})


@contextlib.asynccontextmanager
async def infer_sync(loaded: Model) -> AsyncIterator[Door]:
    yield lambda **given: asyncio.to_thread(loaded.infer_sync, {"x": X}, **given)


@contextlib.asynccontextmanager
async def profile(loaded: Model) -> AsyncIterator[Door]:
    yield lambda priority=0, deadline=None: (
        loaded.profile({"x": X}, priority=priority) if deadline is None else loaded.infer({"x": X}, deadline=deadline)
    )


@contextlib.asynccontextmanager
async def batched(loaded: Model) -> AsyncIterator[Door]:
    async with loaded.batched() as batch:
        yield functools.partial(batch.infer, {"x": X})


@contextlib.asynccontextmanager
async def sequence(loaded: Model) -> AsyncIterator[Door]:
    async with loaded.sequence() as one:
        yield functools.partial(one.infer, {"x": X})


@contextlib.asynccontextmanager
async def steps(loaded: Model) -> AsyncIterator[Door]:
    async with loaded.sequence() as one:

        async def all_of(**given: Any) -> Any:
            return [outputs async for outputs in one.steps({"x": X}, lambda _: None, **given)]

        yield all_of


@contextlib.asynccontextmanager
async def group(loaded: Model) -> AsyncIterator[Door]:
    async with loaded.sequences() as several, several.sequence() as one:
        yield functools.partial(one.infer, {"x": X})


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "door", [infer, infer_sync, profile, batched, sequence, steps, group], ids=lambda door: door.__name__
)
async def test_a_priority_or_a_deadline_that_there_cannot_be_is_refused(door: Any) -> None:
    """With what was expected and what came; it is what one would catch, and nothing was launched."""
    source = negated() if door in (infer, infer_sync, profile, batched) else summed()
    async with Runtime("host") as rt, door(await rt.load(source)) as call:
        await call()
        launches = rt.statistics().launches
        for name, value in NEITHER.items():
            for argument, expected in (("priority", "an integer from"), ("deadline", "a number of seconds from now")):
                with pytest.raises(ArgumentError, match=f"{argument} must be {expected}") as caught:
                    await call(**{argument: value})
                assert isinstance(caught.value, ValueError | TypeError), name
                assert len(str(caught.value)) < 250
        with pytest.raises(ArgumentError, match=r"from -1000000000 to 1000000000, got 0\.5"):
            await call(priority=0.5)
        for priority in (-MOST_PRIORITY - 1, MOST_PRIORITY + 1, None):
            with pytest.raises(ArgumentError, match="priority must be"):
                await call(priority=priority)

        assert launches == rt.statistics().launches
        assert rt.statistics().in_flight == 0
        await call(priority=np.int64(-3), deadline=np.float32(60))
        await call(priority=MOST_PRIORITY, deadline=MOST_SECONDS)
        await call(priority=-MOST_PRIORITY, deadline=None)


@pytest.mark.asyncio
@pytest.mark.parametrize("door", ["infer", "batched().infer"])
@pytest.mark.parametrize("hostile", ["priority", "deadline"])
async def test_who_asks_beside_a_hostile_caller_has_the_answer(door: str, hostile: str) -> None:
    """All of sixteen, whichever way the hostile one errs; and closing returns."""
    async with asyncio.timeout(30):
        async with Runtime("simulated", options=RuntimeOptions(max_in_flight=2)) as rt:
            loaded = await rt.load(negated())
            async with loaded.batched(max_batch=4) as batch:
                ask: Any = loaded.infer if door == "infer" else batch.infer

                async def caller(index: int) -> Any:
                    return (await ask({"x": X * index}))["y"]

                for value in NEITHER.values():
                    innocent = [asyncio.ensure_future(caller(i)) for i in range(8)]
                    await asyncio.sleep(0)
                    with pytest.raises(ArgumentError):
                        await ask({"x": X}, **{hostile: value})
                    innocent += [asyncio.ensure_future(caller(i)) for i in range(8, 16)]
                    for index, y in enumerate(await asyncio.gather(*innocent)):
                        np.testing.assert_array_equal(-X * index, y)


def test_threads_are_refused_alike() -> None:
    """Whoever owns the loop."""
    with load_sync(negated(), "host") as loaded:
        for value in NEITHER.values():
            with pytest.raises(ArgumentError, match="priority"):
                loaded.infer_sync({"x": X}, priority=value)
            with pytest.raises(ArgumentError, match="deadline"):
                loaded.infer_sync({"x": X}, deadline=value)
        assert loaded.infer_sync({"x": X})["y"].shape == X.shape


def fields(record: type) -> list[tuple[str, Any]]:
    return [(f.name, f.default) for f in attrs.fields(record)]  # type: ignore[arg-type]


@pytest.mark.parametrize("record", [RuntimeOptions, BatchOptions])
def test_an_option_that_there_cannot_be_is_refused(record: type) -> None:
    """Every field of the records, whatever it is; None where that is not its default, too."""
    for field, default in fields(record):
        fits = {"a text", "None"} if field == "cache_dir" else {"a text"} if field == "policy" else set()
        fits |= {"a list"} if field == "buckets" else {"None"} if field == "idle_release_s" else set()
        fits |= {"True"} if isinstance(default, bool) or field in ("spin", "branches", "check_hazards") else set()
        for name, value in {**NEITHER, "-1": -1, "None": None}.items():
            if name in fits or (value is None and default is None):
                record(**{field: value})
                continue
            if field == "policy":
                with pytest.raises(ArgumentError, match="policy"):
                    Runtime("host", options=RuntimeOptions(policy=value))
                continue
            with pytest.raises((ArgumentError, asyncrt.PrecisionError), match=field):
                record(**{field: value})


def test_a_mechanism_that_there_is_not_is_refused_with_those_there_are() -> None:
    """And so is one text, whose letters would be many wrong names."""
    with pytest.raises(ArgumentError, match="without has 'no_skip', which is not the name of a mechanism") as unknown:
        RuntimeOptions(without={"no_skip"})
    with pytest.raises(ArgumentError, match="without must be a set of names, got the text 'skip'") as text:
        RuntimeOptions(without="skip")

    assert [name for name in MECHANISMS if name not in unknown.value.detail] == []
    assert "without={'skip'}" in text.value.hint


def test_mechanisms_may_come_in_any_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever order: the options are equal, and say the same."""
    names = ["pool", "views", "pool"]
    ways = [set(names), names, tuple(names), iter(names), dict.fromkeys(names).keys()]

    monkeypatch.delenv("ASYNCRT_WITHOUT")
    found = [RuntimeOptions(without=way) for way in ways]

    assert [o.without for o in found] == [frozenset({"pool", "views"})] * len(ways)
    assert {repr(o) for o in found} == {repr(found[0])}
    assert "without={'pool', 'views'}" in repr(found[0])


def test_a_mechanism_goes_with_what_it_builds_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has to know which: plans are not made by recipe where none is kept, for instance."""
    monkeypatch.delenv("ASYNCRT_WITHOUT")
    without = RuntimeOptions(without={"replay"})

    gone = {name for name in MECHANISMS if not without.uses(name)}

    assert gone == {"replay", "recipes", "next_plan", "prepared_launches", "direct", "one_launch", "own_cores"}
    assert [name for name in MECHANISMS if not RuntimeOptions().uses(name)] == []


def test_the_environment_adds_mechanisms_to_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """To those that the program names; an unknown one is an error there as well."""
    monkeypatch.setenv("ASYNCRT_WITHOUT", "pool, views")

    assert RuntimeOptions(without={"replay"}).without == {"pool", "views", "replay"}
    monkeypatch.setenv("ASYNCRT_WITHOUT", "pole")
    with pytest.raises(ArgumentError, match="pole"):
        RuntimeOptions()


def test_options_take_the_numbers_of_numpy_and_keep_pythons() -> None:
    """So that they are written to a file and read again."""
    numbers: dict[str, Any] = {"max_batch": np.int32(4), "max_delay": np.float64(0.5), "buckets": np.array([8, 2])}
    options = BatchOptions(**numbers)

    assert BatchOptions(max_batch=4, max_delay=0.5, buckets=(2, 8)) == options
    assert [int, float, int] == [type(options.max_batch), type(options.max_delay), type((options.buckets or ())[0])]
    assert RuntimeOptions(memory_limit=MOST_COUNT).memory_limit == MOST_COUNT


@pytest.mark.asyncio
async def test_what_a_runtime_and_a_model_are_made_with_is_checked() -> None:
    """Before anything is opened."""
    for name, value in {**NEITHER, "0": 0, "1025": 1025, "2.0": 2.0}.items():
        with pytest.raises(ArgumentError, match="streams must be an integer from 1 to 1024"):
            Runtime("host", streams=value)
        with pytest.raises(ArgumentError, match="options must be RuntimeOptions or None"):
            Runtime("host", options=value)
        if not isinstance(value, str):
            with pytest.raises(ArgumentError, match="device must be"):
                Runtime(value)
        with pytest.raises((ArgumentError, AsyncrtError)):
            load_sync(negated(), "host", streams=value)
        assert name
    async with Runtime("host", streams=np.int64(2)) as rt:
        loaded, zero = await rt.load(summed()), 0
        for value in {**NEITHER, "0": zero, "half": Fraction(1, 2)}.values():
            with pytest.raises(ArgumentError, match="max_batch must be an integer of at least 1"):
                loaded.sequences(max_batch=value)
            with pytest.raises(ArgumentError, match="max_batch must be an integer of at least 1"):
                loaded.batched(max_batch=value)
            with pytest.raises(ArgumentError, match="max_delay must be a number from 0 to 1000000000"):
                loaded.batched(max_delay=-1e-9 if value is zero else value)
            with pytest.raises(ArgumentError, match="ageing_s must be a number from 1e-06 to 1000000000"):
                loaded.batched(ageing_s=value)


def test_a_file_that_holds_no_options_is_refused(tmp_path: Path) -> None:
    """Whatever it holds instead."""
    path = tmp_path / "options.json"
    for text in ("", "{", "[1]", '{"max_batch": "a"}', '{"max_batch": NaN}', '{"max_batch": 0}', '{"batch": 1}'):
        path.write_text(text)
        with pytest.raises(ArgumentError):
            BatchOptions.read(path)
