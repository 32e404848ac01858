"""Tiny launches that are held back until all are enqueued: they start then, whatever goes wrong in between."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from asyncrt.devices.base import PreparedLaunch
from asyncrt.devices.opencl import device as opencl
from asyncrt.devices.opencl.device import OpenCLDevice
from asyncrt.devices.opencl.gate import GAINS, Gate, are_tiny, find_gate
from asyncrt.devices.opencl.submit import DriverCall, python_submitter
from asyncrt.errors import DeviceCommandError, OutOfDeviceMemory
from asyncrt.kernels.codegen.source import kernel
from asyncrt.layout import FLOAT32

MEMORY = -6  # CL_OUT_OF_HOST_MEMORY
ADD = kernel("held_add", (("x", FLOAT32, "rw"),), ("n",), "x[get_global_id(0)] += n;")


class Driver:
    """The functions of a gate, which note what they are asked, and refuse what they are told to."""

    def __init__(self, *refused: str) -> None:
        self.seen: list[str] = []
        self._refused = refused

    def gate(self) -> Gate:
        return Gate(0xC, self._create, self._wait, self._set, lambda event: self._note("release"))

    def _note(self, what: str) -> int:
        self.seen.append(what)
        return MEMORY if what in self._refused else 0

    def _create(self, context: int, status: None) -> int | None:
        assert context == 0xC
        return None if self._note("create") else 0xE

    def _wait(self, queue: int, count: int, events: ctypes.Array[ctypes.c_void_p], event: None) -> int:
        assert events[:] == [0xE]
        return self._note("wait")

    def _set(self, event: int, status: int) -> int:
        assert (event, status) == (0xE, 0)
        return self._note("set")


def launches(device: OpenCLDevice, count: int, grid: tuple[int, ...] = (1,)) -> list[PreparedLaunch]:
    """Launches that each add one to what is in the first memory."""
    built = device.build([ADD], None)[0][ADD]
    return [(built, (0,), device.pack((0,), (1,)), grid, None, ())] * count


def noting(driver: Driver, monkeypatch: pytest.MonkeyPatch, refused: int | None = None) -> None:
    """Let the driver see launches, too, and refuse one."""

    class Noting:
        releases_gil = runs = False

        def __init__(self) -> None:
            submitter = python_submitter()
            assert submitter is not None
            self.arguments, self.set_records = submitter.arguments, submitter.set_records

        def calls(self, calls: Sequence[DriverCall]) -> Noting:
            self._count = len(calls)
            return self

        def submit(self, queue: int, stop: bytearray | None = None) -> tuple[int, int]:
            driver.seen.append("launches")
            return (self._count, 0) if refused is None else (refused, -54)

    monkeypatch.setattr(opencl, "native_submitter", Noting)


@pytest.mark.parametrize(
    ("grids", "tiny"),
    [
        ([(1, 1)] * 16, True), ([(1,), (3,)] * 8, True), ([(1,)] * 15 + [(18,)], False), ([(1,)] * 15, False),
        ([(2, 2)] * 100, False),
    ],
)  # fmt: skip
def test_launches_are_tiny_that_have_two_work_items_on_average(grids: list[tuple[int, ...]], tiny: bool) -> None:
    """And so many that a thread could go to sleep between them."""
    assert are_tiny([(None, (), b"", grid, None, ()) for grid in grids]) is tiny


@pytest.mark.parametrize(("refused", "ends"), [(None, True), (3, False)])
def test_the_gate_is_open_when_all_are_enqueued(
    refused: int | None, ends: bool, device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the driver refuses one of the launches: those before it are behind the gate."""
    driver = Driver()
    noting(driver, monkeypatch, refused)
    monkeypatch.setattr(device, "gate", driver.gate())
    prepared = device.prepare(launches(device, 16), [device.allocate(64)])
    assert prepared is not None
    error = ""

    try:
        prepared.launch(device.open_stream())
    except DeviceCommandError as refusal:
        error = refusal.message

    assert driver.seen == ["create", "wait", "launches", "set", "release"]
    assert error == ("" if ends else f"the driver refused kernel {ADD.name} over (1,)")


@pytest.mark.parametrize(
    ("refused", "seen"),
    [("create", ["create", "launches"]), ("wait", ["create", "wait", "release", "launches"])],
)
def test_a_gate_that_cannot_be_shut_is_done_without(
    refused: str, seen: list[str], device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It only makes things faster."""
    driver = Driver(refused)
    noting(driver, monkeypatch)
    monkeypatch.setattr(device, "gate", driver.gate())
    prepared = device.prepare(launches(device, 16), [device.allocate(64)])
    assert prepared is not None

    prepared.launch(device.open_stream())

    assert driver.seen == seen


def test_a_gate_that_does_not_open_is_an_error(device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is behind it would never run, so whoever waits for it has to hear of that."""
    driver = Driver("set")
    noting(driver, monkeypatch)
    monkeypatch.setattr(device, "gate", driver.gate())
    prepared = device.prepare(launches(device, 16), [device.allocate(64)])
    assert prepared is not None

    with pytest.raises(OutOfDeviceMemory, match="no memory left while opening a gate"):
        prepared.launch(device.open_stream())

    assert driver.seen[-1] == "release"


@pytest.mark.parametrize("case", ["few", "large", "long"])
def test_the_device_begins_at_once_where_nothing_is_gained(
    case: str, device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With few launches, or large ones, or so many that it would wait for long."""
    driver = Driver()
    monkeypatch.setattr(device, "gate", driver.gate())
    monkeypatch.setattr(opencl, "LONG_CPU", 20)
    monkeypatch.setattr(opencl, "LONG_GPU", 20)
    count = {"few": 15, "long": 20}.get(case, 16)
    found = launches(device, count, (8,) if case == "large" else (1,))
    prepared = device.prepare(found, [device.allocate(64)])
    assert prepared is not None
    if case == "long" and not prepared.long:
        pytest.skip("no loop in C was built, and the one in Python is never left to a thread")

    prepared.launch(device.open_stream())

    assert driver.seen == []


@pytest.mark.parametrize("hold", [True, False])
def test_held_launches_run_in_their_order(
    hold: bool, device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind what was enqueued before them, and before what comes after: again and again, held or not."""
    stream, memory, found = device.open_stream(), device.allocate(64), np.zeros((3, 1), np.float32)
    if not hold:
        monkeypatch.setattr(device, "gate", None)
    prepared = device.prepare(launches(device, 100), [memory])
    assert prepared is not None

    for value, target in zip((0.0, 10.0, 20.0), found, strict=True):
        stream.write(memory, 0, np.array([value], np.float32))
        prepared.launch(stream)
        stream.read(memory, 0, target)
        stream.mark().wait()

    assert found[:, 0].tolist() == [100.0, 110.0, 120.0]


def test_there_is_a_gate_where_the_driver_was_tried(device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may not like user events, and without the loader there is nobody to ask."""
    known: Any = (device.info.platform, device.info.kind)
    context = device.context.int_ptr

    there = find_gate("Intel(R) OpenCL", "cpu", context)
    other = find_gate("Portable Computing Language", "cpu", context)
    monkeypatch.setattr("asyncrt.devices.opencl.gate.loader", lambda: None)
    without = find_gate("Intel(R) OpenCL", "cpu", context)

    assert there is not None
    assert there.context == context
    assert [other, without] == [None, None]
    assert (device.gate is not None) == (known in GAINS)
