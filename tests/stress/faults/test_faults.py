"""Every call to the device fails once, and from then on; every command ends in an error; the device is lost.

As SQLite does it: the n-th call fails, for n = 1, 2, 3, ... until a run ends without having come so far. Of sites with
many calls, neighbouring n take turns with both errors on both paths.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from asyncrt import (
    AsyncrtError,
    DeviceCommandError,
    DeviceError,
    DeviceLostError,
    KernelBuildError,
    OutOfDeviceMemory,
    Runtime,
    RuntimeOptions,
)
from asyncrt.devices.faults import CALLS, Fault
from asyncrt.devices.simulated import SimulatedDevice
from asyncrt.runtime import one_device

from ...paths import CHECKED
from ...zoo import some
from ..scenarios import (
    ROOMY,
    SPREAD,
    TIGHT,
    Outcome,
    cancel_when_launched,
    expected,
    given,
    nothing_unseen,
    opened,
    outcome_of,
    run,
    settled,
    several,
    two_chunks,
)

ERRORS: dict[str, list[type[DeviceError]]] = {
    "allocate": [OutOfDeviceMemory],
    "build": [KernelBuildError],
    "mark": [DeviceCommandError],
}
MANY = {"launch", "read", "command"}
NAMES = {TIGHT: "tight", ROOMY: "roomy", SPREAD: "spread"}
CASES = [
    pytest.param(
        site,
        error,
        persistent,
        options,
        id=f"{site} {error.__name__} {['once', 'always'][persistent]} {NAMES[options]}",
    )
    for site in (*CALLS, "command")
    if site != "fill"  # requests have none
    for error in ERRORS.get(site, [DeviceCommandError, OutOfDeviceMemory])
    for persistent in (False, True)
    for options in ([TIGHT, *([SPREAD] if site == "mark" else [])] if persistent else [TIGHT, ROOMY, SPREAD])
]


def runs(
    site: str, options: RuntimeOptions, each: int = 1, first: int = 0, **kind: object
) -> Iterator[tuple[Fault, Outcome]]:
    """One run for each n, or for `some`, until a run makes fewer calls."""
    for n in some(range(1, 10_000), each, first):
        fault = Fault(site, n, **kind)  # type: ignore[arg-type]
        device = SimulatedDevice(n % 5, memory=1 << 20, faults=[fault], spreads=True)
        try:
            outcome = run(one(device, options))
        except BaseException as error:
            error.add_note(f"with {fault!r} and seed {n % 5}")
            raise
        if device.faults.calls[site] < n:
            return
        yield fault, outcome


async def one(device: SimulatedDevice, options: RuntimeOptions) -> Outcome:
    async with opened(device, options) as rt:
        cancel_when_launched(rt, {3, 6}.__contains__)  # the first request launches two chunks
        return await several(rt, first=True)


def assert_each_exact_or_told(outcome: Outcome, fault: Fault) -> None:
    """A request gives what it always does, or an error that says what was injected."""
    for index, got in enumerate([*outcome.before, *outcome.together, *outcome.after], -len(outcome.before)):
        if isinstance(got, dict):
            assert expected(index) == got, (fault, index)
        elif not isinstance(got, asyncio.CancelledError):
            assert isinstance(got, DeviceError), (fault, got)
            assert "injected" in str(root_of(got)), (fault, got)


def root_of(error: BaseException) -> BaseException:
    """What was the cause of the cause."""
    return error if error.__cause__ is None else root_of(error.__cause__)


pytestmark = pytest.mark.usefixtures("either_path")


@pytest.mark.parametrize("options", NAMES, ids=NAMES.values())
def test_launches_are_prepared_where_nothing_fails(options: RuntimeOptions) -> None:
    """So that what fails in other tests fails there, too."""
    assert run(one(SimulatedDevice(0), options)).prepared >= 2


@pytest.mark.parametrize(("site", "error", "persistent", "options"), CASES)
def test_a_call_that_fails_is_told_to_whom_it_concerns(
    either_path: str, site: str, error: type[DeviceError], persistent: bool, options: RuntimeOptions
) -> None:
    """Others give exact results, nothing is left behind, nothing hangs; and what fails only once fails one request.

    A failed command takes what is behind it along, as drivers do; the requests that were hit run again.
    """
    met, each = 0, (4 if persistent else 2) if site in MANY else 1
    first = ((either_path == CHECKED) + each // 2 * (error is OutOfDeviceMemory)) % each
    for fault, outcome in runs(site, options, each, first, error=error, persistent=persistent):
        met += 1

        assert_each_exact_or_told(outcome, fault)
        if not persistent:
            assert len(outcome.errors) <= 1, (fault, outcome.errors)

    least = {"wait": {TIGHT: 1, ROOMY: 0}, "allocate": {SPREAD: 2}}.get(site, {}).get(options, 5)
    assert met >= least, "the fault was never met"


@pytest.mark.parametrize("hangs", [False, True], ids=["fails", "hangs"])
def test_a_lost_device_is_told_to_all_who_wait(either_path: str, hangs: bool) -> None:
    """Whatever was its last call: who waits is told in time, who comes later at once, and it can be closed."""
    lost = 0
    for fault, outcome in runs("device", TIGHT, 2, hangs ^ (either_path == CHECKED), hangs=hangs):
        assert_each_exact_or_told(outcome, fault)
        assert not outcome.after or isinstance(outcome.after[-1], DeviceError), fault
        lost += any(isinstance(e, DeviceLostError) for e in outcome.errors)

    assert lost > 25


@pytest.mark.asyncio
@pytest.mark.parametrize("who", ["the next request", "close()"])
async def test_a_device_that_says_nothing_any_more_is_found_out(who: str) -> None:
    """Requests wait for commands that never end, until somebody calls the device; if nobody does, `close()` does."""
    device = SimulatedDevice(3)
    rt = Runtime(device, streams=2, options=ROOMY)
    await rt.open()
    loaded = await rt.load(two_chunks())
    await loaded.infer({"x": given(0)})
    with nothing_unseen():
        waiting = [asyncio.create_task(outcome_of(loaded, i)) for i in range(3)]
        for _ in range(20):
            if rt.statistics().scheduler.running < 3:
                await asyncio.sleep(0)
        assert rt.statistics().scheduler.running == 3
        device.faults.lose(Fault("device", hangs=True))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not any(t.done() for t in waiting)

        if who == "the next request":
            assert isinstance(await outcome_of(loaded, 3), DeviceError)
            await asyncio.sleep(0)
            assert all(isinstance(t.result(), DeviceLostError) for t in waiting)
            with pytest.raises(DeviceLostError, match="takes no commands"):
                await rt.load(two_chunks())
        begun = time.monotonic()
        await rt.close()
        took = time.monotonic() - begun
        await settled()

    assert all(isinstance(t.result(), DeviceLostError) for t in waiting)
    assert took < 5
    assert rt.statistics().memory.leases == 0


@pytest.mark.asyncio
async def test_a_device_that_cannot_be_closed_is_left_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a lost device, even its closing may hang; the runtime's does not."""
    monkeypatch.setattr(one_device, "_PATIENCE_S", 0.2)
    release = threading.Event()

    class Stuck(SimulatedDevice):
        def close(self) -> None:
            assert release.wait(30)

    device = Stuck()
    rt = Runtime(device, streams=1, options=ROOMY)
    await rt.open()
    loaded = await rt.load(two_chunks())
    device.faults.lose(Fault("device", hangs=True))
    assert isinstance(await outcome_of(loaded, 0), DeviceError)

    begun = time.monotonic()
    await rt.close()
    took = time.monotonic() - begun
    release.set()

    assert took < 5
    with pytest.raises(AsyncrtError, match="closed"):
        await loaded.infer({"x": given(0)})


@pytest.mark.asyncio
async def test_a_stream_that_cannot_be_opened_leaves_no_runtime_half_open() -> None:
    """The device is closed, with the streams that it has."""
    opened_streams: list[object] = []

    class Few(SimulatedDevice):
        def open_stream(self, pinned=True, spin=None, native=True):  # type: ignore[no-untyped-def]
            if len(opened_streams) == 2:
                raise DeviceError("no more queues")
            opened_streams.append(stream := super().open_stream())
            return stream

        def close(self) -> None:
            super().close()
            opened_streams.clear()

    rt = Runtime(Few(), streams=3)

    with pytest.raises(DeviceError, match="no more queues"):
        await rt.open()

    assert opened_streams == []


def test_a_failing_run_repeats_exactly() -> None:
    """The same seed and fault give the same outcome after the same calls, whatever ran before."""

    def once() -> tuple[list[object], dict[str, int], float]:
        device = SimulatedDevice(2, memory=1 << 20, faults=[Fault("command", 30)], spreads=True)
        outcome = run(one(device, TIGHT))
        told: list[object] = [o if isinstance(o, dict) else repr(o) for o in (*outcome.together, *outcome.after)]
        return told, dict(device.faults.calls), device.now

    first = once()

    assert any("injected" in str(o) for o in first[0])
    for _ in range(5):
        assert first == once()
