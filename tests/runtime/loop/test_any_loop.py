"""Requests, cancellation and closing, on asyncio's loop, on uvloop's and on trio's: the same promises everywhere."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import numpy as np
import pytest

from asyncrt import DeadlineExceeded, InputError, ModelError, Runtime, RuntimeClosedError, RuntimeOptions
from asyncrt.devices.faults import Fault
from asyncrt.devices.simulated import SimulatedDevice
from asyncrt.errors import DeviceCommandError, DeviceLostError
from asyncrt.runtime.loop.trio_bridge import Elsewhere

from ...builders import model, node
from ...stress.scenarios import as_bytes, assert_clean, expected, given, two_chunks

ROOMY = RuntimeOptions(warm=False)
CUMULATED = model(
    [node("y = Add(x, past)"), node("present = Identity(y)")], ["x f32[n]", "past f32[n]"], ["y", "present"]
)


def _missing(package: str) -> Any:
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"{package} is not installed")


LOOPS = [
    pytest.param(("asyncio", {}), id="asyncio"),
    pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop", marks=_missing("uvloop")),
    pytest.param(("trio", {}), id="trio", marks=_missing("trio")),
]
Run = Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine function on a loop of its own; no thread of ours may be left, and nothing may hang."""
    backend, options = request.param

    def run(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        async def bounded() -> Any:
            with anyio.fail_after(30):
                return await main()

        before = {*threading.enumerate()}
        result = anyio.run(bounded, backend=backend, backend_options=options)
        left = {t.name for t in {*threading.enumerate()} - before}
        left.discard("asyncrt-compile")  # the first build of a process begins it, for all runtimes
        assert [name for name in left if name.startswith("asyncrt-")] == []
        return result

    return run


@pytest.mark.parametrize("spec", [None, "host", "simulated"], ids=lambda d: d or "opencl")
def test_many_requests_at_once(run: Run, spec: str | None) -> None:
    """Each has its own result, whatever the order."""

    async def main() -> dict[int, np.ndarray[Any, Any]]:
        found: dict[int, np.ndarray[Any, Any]] = {}
        async with Runtime(spec, streams=3) as rt:
            loaded = await rt.load(model([node("t = Tanh(x)"), node("y = Neg(t)")], ["x f32[n]"], ["y"]))

            async def request(rows: int) -> None:
                found[rows] = (await loaded.infer({"x": np.full(rows, rows, np.float32)}))["y"]

            async with anyio.create_task_group() as group:
                for rows in range(1, 25):
                    group.start_soon(request, rows)
            assert rt.statistics().requests == 24
        return found

    found = run(main)

    for rows, y in found.items():
        np.testing.assert_allclose(np.full(rows, -np.tanh(rows)), y, rtol=1e-6)
    assert len(found) == 24


def test_errors_are_the_callers_own(run: Run) -> None:
    """A wrong model, wrong inputs, a deadline and a closed runtime raise what they raise on asyncio."""

    async def main() -> None:
        async with Runtime("simulated") as rt:
            with pytest.raises(ModelError):
                await rt.load(b"nothing")
            loaded = await rt.load(two_chunks())
            with pytest.raises(InputError, match="x"):
                await loaded.infer({"x": np.ones(3, np.float32)})
            with pytest.raises(DeadlineExceeded):
                await loaded.infer({"x": given(1)}, deadline=0)
            assert expected(1) == as_bytes(await loaded.infer({"x": given(1)}, deadline=60))
        with pytest.raises(RuntimeClosedError):
            await loaded.infer({"x": given(1)})
        with pytest.raises(RuntimeClosedError):
            await rt.open()
        await rt.close()

    run(main)


def test_a_deadline_that_is_due_at_once_is_one(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """Deadlines of less than the resolution of a loop are kept like others, beside longer ones."""

    async def main() -> int:
        late = 0
        async with Runtime("simulated") as rt:
            loaded = await rt.load(two_chunks())

            async def request(deadline: float) -> None:
                nonlocal late
                try:
                    assert expected(1) == as_bytes(await loaded.infer({"x": given(1)}, deadline=deadline))
                except DeadlineExceeded:
                    late += 1

            for _ in range(50):
                async with anyio.create_task_group() as group:
                    for deadline in (3e-4, 2e-4, 60.0, 1e-4):
                        group.start_soon(request, deadline)
        return late

    late = run(main)

    assert late <= 150
    assert caplog.messages == []


def test_a_runtime_that_cannot_be_opened_leaves_nothing(run: Run) -> None:
    """The error says what was wanted."""

    async def main() -> None:
        with pytest.raises(Exception, match="opencl:77:0"):
            async with Runtime("opencl:77:0"):
                pass

    run(main)


@pytest.mark.parametrize("turns", range(0, 24, 2))
def test_a_cancelled_request_leaves_nothing_and_disturbs_nobody(run: Run, turns: int) -> None:
    """Its caller goes on, its neighbours are exact, and its memory is back in the end."""
    device = SimulatedDevice(turns)

    async def main() -> None:
        outcomes: dict[int, dict[str, bytes]] = {}
        async with Runtime(device, streams=3, options=ROOMY) as rt:
            loaded = await rt.load(two_chunks())

            async def request(index: int, scope: anyio.CancelScope) -> None:
                with scope:
                    outcomes[index] = as_bytes(await loaded.infer({"x": given(index)}))

            cancelled = anyio.CancelScope()
            async with anyio.create_task_group() as group:
                for index in range(4):
                    group.start_soon(request, index, cancelled if index == 1 else anyio.CancelScope())
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                cancelled.cancel()
            outcomes.pop(1, None)
            assert {index: expected(index) for index in (0, 2, 3)} == outcomes
            assert expected(1) == as_bytes(await loaded.infer({"x": given(1)}))
        assert_clean(rt, device)

    run(main)


def test_time_runs_out(run: Run) -> None:
    """`anyio.fail_after` and `move_on_after` end a request that waits, also where they have ended before it began."""

    async def main() -> None:
        async with Runtime(SimulatedDevice(), options=RuntimeOptions(max_in_flight=1)) as rt:
            loaded = await rt.load(two_chunks())

            async def hold() -> None:
                await rt.session.dispatcher.admit(0)

            if rt.elsewhere is None:
                await hold()
            else:
                await rt.elsewhere.call(hold)
            with pytest.raises(TimeoutError):
                with anyio.fail_after(0.01):
                    await loaded.infer({"x": given(0)})
            with anyio.move_on_after(0) as scope:
                await loaded.infer({"x": given(0)})
            assert scope.cancelled_caught
            assert rt.statistics().launches == 0

            async def release() -> None:
                rt.session.dispatcher.end(0)

            await (release() if rt.elsewhere is None else rt.elsewhere.call(release))
            assert rt.statistics().cancelled >= 1

    run(main)


@pytest.mark.parametrize("shielded", [False, True])
def test_who_is_cancelled_while_closing_leaves_its_scope_when_that_is_done(run: Run, shielded: bool) -> None:
    """The scope knows that it was cancelled by itself, so that what comes behind it goes on."""
    device = SimulatedDevice(5)
    rt = Runtime(device, streams=2, options=ROOMY)
    behind: list[str] = []

    async def main() -> None:
        with anyio.CancelScope() as scope:
            async with rt:
                loaded = await rt.load(two_chunks())
                assert as_bytes(await loaded.infer({"x": given(0)})) == expected(0)
                scope.cancel()
                if shielded:
                    with anyio.CancelScope(shield=True):
                        await rt.close()
        behind.append(repr(rt))

    run(main)

    assert len(behind) == 1
    assert "closed" in behind[0]
    assert_clean(rt, device)


@pytest.mark.parametrize("turns", [0, 1, 2, 5, 10])
def test_closing_waits_for_requests_and_cannot_be_cut_short(run: Run, turns: int) -> None:
    """Who is cancelled in `close()` or on the way out of `async with` waits on; nothing is left half closed."""
    device = SimulatedDevice(turns)
    rt = Runtime(device, streams=2, options=ROOMY)
    outcomes: list[dict[str, bytes]] = []

    async def main() -> None:
        with anyio.CancelScope() as scope:
            async with rt:
                loaded = await rt.load(two_chunks())

                async def request(index: int) -> None:
                    with anyio.CancelScope(shield=True):
                        outcomes.append(as_bytes(await loaded.infer({"x": given(index)})))

                async with anyio.create_task_group() as group:
                    group.start_soon(request, 0)
                    group.start_soon(request, 0)
                    for _ in range(turns):
                        await anyio.lowlevel.checkpoint()
                    scope.cancel()
                    await anyio.lowlevel.checkpoint()  # however far the requests are, on a thread of their own
        assert scope.cancelled_caught

    run(main)

    assert [expected(0)] * 2 == outcomes
    assert_clean(rt, device)


def test_a_failure_is_told_to_its_request_alone(run: Run) -> None:
    """A command that fails, and then a device that is lost: who waits is told, and closing returns."""
    device = SimulatedDevice(1)

    async def main() -> None:
        async with Runtime(device, options=ROOMY) as rt:
            loaded = await rt.load(two_chunks())
            assert expected(0) == as_bytes(await loaded.infer({"x": given(0)}))
            device.faults.lose(Fault("device", 1, DeviceCommandError))
            with pytest.raises(DeviceLostError):
                await loaded.infer({"x": given(0)})

    run(main)


def test_steps_of_a_group_run_together(run: Run) -> None:
    """Eight callers, three steps each: far fewer inferences, and each has its own sums."""

    async def main() -> tuple[dict[int, list[list[float]]], int]:
        found: dict[int, list[list[float]]] = {}
        async with Runtime("simulated", options=ROOMY) as rt:
            loaded = await rt.load(CUMULATED)
            async with loaded.sequences({"past": "present"}) as sequences:

                async def caller(number: int) -> None:
                    async with sequences.sequence() as sequence:
                        steps = [await sequence.infer({"x": np.full(1, number, np.float32)}) for _ in range(3)]
                        found[number] = [step["y"].tolist() for step in steps]

                async with anyio.create_task_group() as group:
                    for number in range(8):
                        group.start_soon(caller, number)
                return found, sequences.statistics().inferences

    found, inferences = run(main)

    assert found == {number: [[number], [2.0 * number], [3.0 * number]] for number in range(8)}
    assert inferences < 24


def test_sequences_keep_their_state(run: Run) -> None:
    """Steps of two sequences at once, one of which is cancelled and tried again."""

    async def main() -> None:
        async with Runtime(SimulatedDevice(), options=ROOMY) as rt:
            loaded = await rt.load(CUMULATED)
            one, ones = np.ones(3, np.float32), np.zeros(3, np.float32)
            async with loaded.sequence({"past": "present"}) as sequence, loaded.sequence({"past": "present"}) as other:
                first = await sequence.infer({"x": one, "past": ones})
                await other.infer({"x": 5 * one, "past": ones})
                with anyio.move_on_after(0) as soon:
                    await sequence.infer({"x": one})
                second = await sequence.infer({"x": one})
                beside = await other.infer({"x": one})
            np.testing.assert_array_equal(one, first["y"])
            # It may have been done before it was cancelled; where it was cancelled, nothing has changed.
            np.testing.assert_array_equal((2 if soon.cancelled_caught else 3) * one, second["y"])
            np.testing.assert_array_equal(6 * one, beside["y"])
            assert rt.statistics().memory.leases == 0

    run(main)


@_missing("trio")
def test_what_is_done_when_its_caller_is_cancelled_is_not_lost() -> None:
    """On trio as on asyncio: a call that ended well gives its result; the caller's next checkpoint raises."""

    async def done() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "done"

    async def main() -> list[str]:
        elsewhere, got = Elsewhere(), list[str]()
        with anyio.CancelScope() as scope:
            scope.cancel()
            got.append(await elsewhere.call(done))
            await anyio.lowlevel.checkpoint()
            got.append("went on")
        assert scope.cancelled_caught
        await elsewhere.close()
        return got

    assert anyio.run(main, backend="trio") == ["done"]


def test_requests_of_different_callers_are_batched(run: Run) -> None:
    """Each gets its rows."""

    async def main() -> None:
        async with Runtime("host") as rt:
            loaded = await rt.load(model([node("y = Neg(x)")], ["x f32[n,4]"], ["y"]))
            async with loaded.batched(max_batch=8) as batched:

                async def request(index: int) -> None:
                    y = (await batched.infer({"x": np.full((1, 4), index, np.float32)}))["y"]
                    np.testing.assert_array_equal(np.full((1, 4), -index, np.float32), y)

                async with anyio.create_task_group() as group:
                    for index in range(6):
                        group.start_soon(request, index)
            assert batched.statistics().members == 6

    run(main)


def test_a_trace_is_written(run: Run, tmp_path: Path) -> None:
    """With the requests made meanwhile; an exception in the block comes through, and another one can be taken."""

    async def main() -> None:
        async with Runtime(SimulatedDevice()) as rt:
            loaded = await rt.load(two_chunks())
            with pytest.raises(ZeroDivisionError):
                async with rt.trace(tmp_path / "never.json"):
                    raise ZeroDivisionError
            with anyio.CancelScope() as scope:
                async with rt.trace(tmp_path / "cancelled.json"):
                    scope.cancel()
                    await anyio.lowlevel.checkpoint()
            async with rt.trace(tmp_path / "trace.json"):
                await loaded.infer({"x": given(0)})
            assert (await loaded.profile({"x": given(0)})).counts["ran"] > 0

    run(main)

    names = {event["name"] for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]}
    assert any("Tanh" in name for name in names), names
    assert not (tmp_path / "never.json").exists()


def test_other_threads_may_infer_meanwhile(run: Run) -> None:
    """`infer_sync` reaches the runtime's loop, wherever that is."""

    async def main() -> None:
        async with Runtime("host") as rt:
            loaded = await rt.load(two_chunks())
            x = given(0)
            out = await anyio.to_thread.run_sync(lambda: loaded.infer_sync({"x": x}))
            again = await loaded.infer({"x": x})
            assert as_bytes(out) == as_bytes(again)

    run(main)
