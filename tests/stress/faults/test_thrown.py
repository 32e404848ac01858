"""What decides raises something, at any of its lines: the one request that it happens to is told, and others go on.

As in the tests of faults a run is repeated with the exception elsewhere, until every line has raised.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import numpy as np
import pytest

import asyncrt
from asyncrt import DeadlineExceeded, InternalError, Overloaded, Runtime, RuntimeOptions
from asyncrt.devices.simulated import SimulatedDevice
from asyncrt.runtime.batching import batched as batching
from asyncrt.runtime.batching.pad_safety import check_pad_safety
from asyncrt.scheduler.policies import policy_names

from ... import virtual_loop
from ...builders import model, node
from ...zoo import some
from ..batching import canary, request
from ..scenarios import (
    ROOMY,
    SPREAD,
    TIGHT,
    Outcome,
    assert_clean,
    cancel_when_launched,
    expected,
    nothing_unseen,
    run,
    settled,
    several,
)
from .thrown import Injected, Place, Thrower, places

DECIDES = ("/scheduler/state.py", "/scheduler/queue.py", "/scheduler/policies/", "/scheduler/batching/")
LOOKS = {"check", "story", "__repr__", "statistics", "idle"}  # and changes nothing
#: Functions of the loop's side that carry out what was decided, and what they rely on.
CARRY_OUT = {
    "/runtime/loop/dispatcher.py": {"_carry_out", "_answer", "_reach", "_elapse", "_set_alarm"},
    "/runtime/loop/pending_request.py": {"comes_after"},
    "/runtime/loop/turns.py": {"settle"},
    "/runtime/loop/shortage.py": {"resolve", "_pending"},
    "/asyncrt/events.py": {"advance"},
}


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """The log has thousands of what is thrown; a test looks at the newest."""
    with caplog.at_level(logging.CRITICAL + 1, logger="asyncrt"):
        yield


def decides(file: str, function: str) -> bool:
    return any(part in file for part in DECIDES) and function not in LOOKS


def batches(file: str, function: str) -> bool:
    return "/scheduler/batching/" in file and decides(file, function)


def carries_out(file: str, function: str) -> bool:
    return any(file.endswith(name) and function in functions for name, functions in CARRY_OUT.items())


def both(file: str, function: str) -> bool:
    return decides(file, function) or carries_out(file, function)


def thrown_from_everywhere(
    scenario: Callable[[Thrower], Any],
    times: tuple[float, ...],
    wanted: Callable[[str, str], bool] = both,
    *,
    always: bool = False,
    each: int = 1,
) -> Iterator[tuple[tuple[Place, int], Any]]:
    """One run for each line, and for each of *times* that it runs; gives what became of each.

    Args:
        each: Take each second, third and so on of them, as `some` does.
    """
    counting = Thrower(wanted)
    scenario(counting)
    for at in some(places(counting.met, times), each):
        thrower = Thrower(wanted, at, always)
        try:
            outcome = scenario(thrower)
        except BaseException as error:
            error.add_note(f"thrown at {at}")
            raise
        assert thrower.thrown == 1 or (always and thrower.thrown), at
        yield at, outcome


# Requests.


def requests(options: RuntimeOptions) -> Callable[[Thrower], Outcome]:
    """Several at once, of which two are cancelled and one is late, and then one after the other."""

    async def main(thrower: Thrower) -> Outcome:
        device = SimulatedDevice(3, memory=1 << 20, spreads=True)
        rt = Runtime(device, streams=3, options=options)
        with nothing_unseen():
            async with asyncio.timeout(10):
                await rt.open()
                cancel_when_launched(rt, {3, 6}.__contains__)
                try:
                    with thrower.armed():
                        outcome = await several(rt, deadlines=(None, None, None, None, 0.0, 1e9))
                finally:
                    await rt.close()
                await settled()
        assert_clean(rt, device)
        return outcome

    return lambda thrower: run(main(thrower))


def assert_only_one_met_it(outcome: Outcome, at: object) -> None:
    """All others have what they always have, or what was to become of them."""
    met = 0
    for index, got in enumerate([*outcome.before, *outcome.together, *outcome.after], -len(outcome.before)):
        if isinstance(got, dict):
            assert expected(index) == got, (at, index)
        elif isinstance(got, InternalError):
            assert isinstance(got.__cause__, Injected), at
            met += 1
        else:
            assert isinstance(got, asyncio.CancelledError | DeadlineExceeded), (at, got)
    assert met <= 1, (at, met)


@pytest.mark.parametrize("policy", policy_names())
def test_whatever_a_policy_raises_only_one_request_meets(policy: str) -> None:
    """At each of its lines: others are exact, and closing returns."""
    met = 0
    scenario = requests(attrs.evolve(ROOMY, policy=policy))
    for at, outcome in thrown_from_everywhere(scenario, (0.0, 0.6), lambda file, _: f"/{policy}.py" in file):
        assert_only_one_met_it(outcome, at)
        met += any(isinstance(e, InternalError) for e in outcome.errors)

    assert met > 9


@pytest.mark.parametrize(
    ("options", "times", "each"),
    [
        pytest.param(TIGHT, (0.0,), 1, id="tight"),
        pytest.param(TIGHT, (0.4, 0.8, 1.0), 5, id="tight, later", marks=pytest.mark.slow),
        pytest.param(ROOMY, (0.0, 0.6), 5, id="roomy", marks=pytest.mark.slow),
        pytest.param(SPREAD, (0.0, 0.6), 5, id="spread", marks=pytest.mark.slow),
    ],
)
def test_whatever_the_scheduler_raises_only_one_request_meets(
    options: RuntimeOptions, times: tuple[float, ...], each: int
) -> None:
    """At each of its lines, and at those that carry out what it says: others are exact, and closing returns."""
    told = Counter[bool]()
    scenario = requests(attrs.evolve(options, policy="auto"))
    for at, outcome in thrown_from_everywhere(scenario, times, each=each):
        assert_only_one_met_it(outcome, at)
        told[any(isinstance(e, InternalError) for e in outcome.errors)] += 1

    assert told[True] > 20, told
    assert sum(told.values()) > 50, told


@pytest.mark.slow
def test_what_the_scheduler_raises_each_time_hangs_nobody() -> None:
    """All are told that asked for what it cannot do, sooner or later; and closing returns."""
    wanted = lambda file, function: file.endswith("/scheduler/state.py") and decides(file, function)  # noqa: E731
    scenario = requests(ROOMY)
    failed = 0
    for _, outcome in thrown_from_everywhere(scenario, (0.0,), wanted, always=True, each=2):
        for index, got in enumerate([*outcome.together, *outcome.after]):
            if isinstance(got, dict):
                assert expected(index) == got
            else:
                assert isinstance(got, asyncio.CancelledError | asyncrt.AsyncrtError), got
        failed += len(outcome.errors)

    assert failed > 50


def test_what_happened_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """With the traceback, and the request's own error has it as its cause."""
    with caplog.at_level(logging.ERROR, logger="asyncrt"):
        at, outcome = next(thrown_from_everywhere(requests(ROOMY), (0.0,), lambda _, function: function == "_admit"))

    (error,) = [e for e in outcome.errors if isinstance(e, InternalError)]
    assert "asyncrt itself failed: Injected: state.py" in str(error), at
    assert "the scheduler failed" in caplog.text
    assert "Injected" in caplog.text


# Batched requests.

SAMPLES = [request(number, 3 + number, 1 + number, number) for number in range(2)]
"""What tells whether they may be padded: nothing is thrown there, and drawn ones take longer than what decides."""


def batched(seed: int) -> Callable[[Thrower], list[Any]]:
    """Callers of several shapes; some leave, some are late, and one fails where it runs."""

    async def main(thrower: Thrower) -> list[Any]:
        device = SimulatedDevice(seed)
        rt = Runtime(device, streams=1, options=RuntimeOptions(warm=False))
        with nothing_unseen():
            await rt.open()
            waits = (await rt.load(canary())).batched(
                max_batch=4, max_delay=0.001, pad_values={"x": np.nan}, samples=SAMPLES
            )
            await waits.open()
            assert waits.pad_safety.padded == ("seq",)
            with thrower.armed():
                async with asyncio.timeout(1000):
                    callers: list[asyncio.Future[Any]] = []
                    for number in range(14):
                        inputs = request(number, 3 + number % 3, 1 + number % 2, 11 if number == 5 else number % 9)
                        deadline = {3: 0.0002, 9: 10.0}.get(number)
                        callers.append(asyncio.ensure_future(waits.infer(inputs, deadline=deadline)))
                        for _ in range(number if number in (4, 11) else 0):
                            await asyncio.sleep(0)
                    callers[7].cancel()
                    outcomes = await asyncio.gather(*callers, return_exceptions=True)
                    last = asyncio.gather(waits.infer(request(14, 3, 1, 5)), return_exceptions=True)
                    outcomes += await last
                    await waits.close()
            await rt.close()
            await settled()
        assert_clean(rt, device)
        return outcomes

    return lambda thrower: virtual_loop.run(main(thrower))


@pytest.fixture
def _padding_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run finds out about padding holds for all that follow."""
    found: list[Any] = []

    async def once(*given: Any, **more: Any) -> Any:
        if not found:
            found.append(await check_pad_safety(*given, **more))
        return found[0]

    monkeypatch.setattr(batching, "check_pad_safety", once)
    batched(1)(Thrower(decides))


def assert_own(number: int, got: Any) -> bool:
    """A caller has what is its own, or knows why not; returns whether it met what was thrown."""
    key = number % 9
    if isinstance(got, dict):
        x = request(number, 3 + number % 3, 1 + number % 2, key)["x"] if number < 14 else request(14, 3, 1, 5)["x"]
        y = (x + 1) * 2
        assert y.tobytes() == got["y"].tobytes(), number
        assert (y + np.float32(key)).tobytes() == got["z"].tobytes(), number
        return False
    if isinstance(got, InternalError | Injected):  # its own form is made before anybody is told of it
        return True
    allowed: dict[int, tuple[type[BaseException], ...]] = {
        3: (DeadlineExceeded, Overloaded), 5: (asyncrt.AsyncrtError,), 7: (asyncio.CancelledError,),
    }  # fmt: skip
    assert isinstance(got, allowed.get(number, ())), (number, got)
    return False


@pytest.mark.usefixtures("_padding_is_known")
@pytest.mark.parametrize(
    ("wanted", "times", "each"),
    [(batches, (0.0,), 1), pytest.param(decides, (0.0, 0.5), 7, marks=pytest.mark.slow)],
    ids=["first", "later"],
)
def test_whatever_batching_raises_only_one_caller_meets(
    wanted: Callable[[str, str], bool], times: tuple[float, ...], each: int
) -> None:
    """At each line of what decides who runs with whom: others have what is theirs, and closing returns."""
    told = Counter[int]()
    for at, outcomes in thrown_from_everywhere(batched(1), times, wanted, each=each):
        met = sum(assert_own(number, got) for number, got in enumerate(outcomes))
        assert met <= 1, at
        told[met] += 1

    assert told[1] > 20, told
    assert sum(told.values()) > 80, told


# Groups of sequences.

PUTS_TOGETHER = {
    "/scheduler/queue.py": {"push", "take", "discard", "_remove", "__iter__"},
    "/runtime/sequences/group.py": {"_next", "_say"},
    "/runtime/sequences/shared_step.py": {"key", "_any_length"},
    "/runtime/sequences/shared_safety.py": {"result", "_alone", "_together"},
}


def puts_together(file: str, function: str) -> bool:
    return any(file.endswith(name) and function in functions for name, functions in PUTS_TOGETHER.items())


def steps(thrower: Thrower) -> tuple[int, list[list[float]]]:
    """Four sequences of three steps at once; a step that is told of what was thrown is tried again."""
    nodes = [node("y = Add(x, past)"), node("present = Identity(y)")]
    summed = model(nodes, ["x f32[n,2]", "past f32[n,2]"], ["y", "present"])

    async def main() -> tuple[int, list[list[float]]]:
        device = SimulatedDevice(2)
        met = 0
        with nothing_unseen():
            async with asyncio.timeout(10):
                rt = Runtime(device, streams=2, options=ROOMY)
                await rt.open()
                loaded = await rt.load(summed)

                async def caller(number: int) -> list[float]:
                    nonlocal met
                    found: list[float] = []
                    async with group.sequence() as sequence:
                        while len(found) < 3:
                            try:
                                x = np.full((1, 2), number, np.float32)
                                found.append(float((await sequence.infer({"x": x}, deadline=100.0))["y"][0, 0]))
                            except (InternalError, Injected):
                                met += 1
                    return found

                async with loaded.sequences(max_batch=3) as group:
                    with thrower.armed():
                        found = await asyncio.gather(*(caller(number) for number in range(4)))
                await rt.close()
                await settled()
        assert_clean(rt, device)
        return met, list(found)

    return run(main())


def test_whatever_a_group_raises_only_one_step_meets() -> None:
    """At each line of what puts steps together: its state is what it was, and the others' are as ever."""
    runs = 0
    for at, (met, found) in thrown_from_everywhere(steps, (0.0, 0.7), puts_together):
        assert met <= 1, at
        assert [[number, 2.0 * number, 3.0 * number] for number in range(4)] == found, at
        runs += 1

    assert runs > 60
