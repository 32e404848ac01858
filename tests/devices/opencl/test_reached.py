"""The driver's callbacks reach the event loop: in order, once each, and whenever they come."""

from __future__ import annotations

import ctypes
import gc
import os
import queue
import select
import threading
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import attrs
import numpy as np
import pytest

from asyncrt.devices.find import open_device
from asyncrt.devices.opencl import device as opencl
from asyncrt.devices.opencl.arguments import loader
from asyncrt.devices.opencl.device import OpenCLDevice, OpenCLMark
from asyncrt.devices.opencl.reached import TRUSTED, Inbox, Watch
from asyncrt.errors import DeviceCommandError

_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
_SET = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class Driver:
    """Notes which events it is to call back for, and does so when it is told to."""

    def __init__(self, *, at_once: bool = False, refuses: bool = False) -> None:
        self._callbacks: dict[int, tuple[Any, int]] = {}
        self._at_once, self._refuses = at_once, refuses
        self._set = _SET(self._set_callback)

    def _set_callback(self, event: int, at: int, callback: int, data: int) -> int:
        assert at == 0  # CL_COMPLETE
        if self._refuses:
            return -6  # CL_OUT_OF_HOST_MEMORY
        self._callbacks[event] = _CALLBACK(callback), data
        if self._at_once:
            self.reach(event)
        return 0

    def inbox(self, module: ModuleType) -> Inbox:
        return Inbox(module, ctypes.cast(self._set, ctypes.c_void_p).value or 0)

    def reach(self, event: int, status: int = 0) -> None:
        callback, data = self._callbacks.pop(event)
        callback(event, status, data)


class Mark:
    """One that says when it is waited for and let go of."""

    def __init__(self, number: int) -> None:
        self.event = SimpleNamespace(int_ptr=number)
        self.waited = self.forgotten = 0

    def wait(self) -> None:
        self.waited += 1

    def forget(self, failed: bool) -> None:
        self.forgotten += 1


def readable(inbox: Inbox) -> bool:
    return bool(select.select([inbox.file], [], [], 0)[0])


def test_marks_are_told_of_in_their_order(reached: ModuleType) -> None:
    """Whatever order the driver calls back in; of another stream each for itself."""
    driver, told = Driver(), list[int]()
    inbox = driver.inbox(reached)
    first, second = Watch(inbox), Watch(inbox)
    marks = [Mark(n) for n in range(1, 6)]
    for mark in marks[:4]:
        first.watch(mark, lambda error, m=mark: told.append(m.event.int_ptr))  # type: ignore[misc]
    second.watch(marks[4], lambda error: told.append(5))

    seen = []
    for event in (3, 5, 1, 2, 4):
        driver.reach(event)
        inbox.collect()
        seen.append(list(told))

    assert seen == [[], [5], [5, 1], [5, 1, 2, 3], [5, 1, 2, 3, 4]]
    assert [m.forgotten for m in marks] == [1] * 5
    assert [m.waited for m in marks] == [0] * 5


def test_the_file_is_readable_while_there_is_something_to_collect(reached: ModuleType) -> None:
    """Once for all that has come; and after it was collected for what comes then."""
    driver = Driver()
    inbox, told = driver.inbox(reached), list[BaseException | None]()
    watch = Watch(inbox)
    for n in range(1, 5):
        watch.watch(Mark(n), told.append)

    states = [readable(inbox)]
    for events in ((1, 2, 3), (4,)):
        for event in events:
            driver.reach(event)
        states.append(readable(inbox))
        inbox.collect()
        states.append(readable(inbox))

    assert states == [False, True, False, True, False]
    assert told == [None] * 4


def test_a_failed_command_is_told_with_its_status(reached: ModuleType) -> None:
    """The marks behind it have their own."""
    driver = Driver()
    inbox, told = driver.inbox(reached), list[BaseException | None]()
    watch = Watch(inbox)
    watch.watch(Mark(1), told.append)
    watch.watch(Mark(2), told.append)

    driver.reach(1, -14)
    driver.reach(2)
    inbox.collect()

    assert isinstance(told[0], DeviceCommandError)
    assert told[0].detail == "status -14"
    assert told[1] is None


def test_a_mark_may_be_reached_while_it_is_given_to_the_driver(reached: ModuleType) -> None:
    """Then it calls back at once, and the loop hears of it as always."""
    driver = Driver(at_once=True)
    inbox, told = driver.inbox(reached), list[BaseException | None]()

    Watch(inbox).watch(Mark(1), told.append)
    before = list(told)
    assert readable(inbox)
    inbox.collect()

    assert before == []
    assert told == [None]


def test_what_the_driver_takes_no_callback_for_is_waited_for(reached: ModuleType) -> None:
    """It is out of memory then, and whoever waits must hear of it all the same."""
    driver = Driver(refuses=True)
    inbox, told, mark = driver.inbox(reached), list[BaseException | None](), Mark(1)

    Watch(inbox).watch(mark, told.append)
    inbox.collect()

    assert told == [None]
    assert mark.waited == 1


def test_closing_tells_of_all_and_nothing_twice(reached: ModuleType) -> None:
    """What the driver says afterwards is old."""
    driver = Driver()
    inbox, told = driver.inbox(reached), list[BaseException | None]()
    watch, marks = Watch(inbox), [Mark(n) for n in range(1, 4)]
    for mark in marks:
        watch.watch(mark, told.append)
    driver.reach(1)
    inbox.collect()

    watch.finish()
    driver.reach(3)
    inbox.collect()
    driver.reach(2)
    inbox.collect()

    assert told == [None] * 3
    assert [m.waited for m in marks] == [0, 1, 1]


def test_the_driver_may_call_back_when_all_is_over(reached: ModuleType) -> None:
    """What it writes to is there until then, and not any longer."""
    driver = Driver()
    inbox = driver.inbox(reached)
    watch, file = Watch(inbox), os.dup(inbox.file)
    watch.watch(Mark(1), lambda error: None)
    watch.watch(Mark(2), lambda error: None)
    number = inbox.file
    del inbox, watch
    gc.collect()

    driver.reach(1)
    os.fstat(number)
    driver.reach(2)

    assert select.select([file], [], [], 0)[0] == [file]
    os.close(file)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


def test_reports_of_many_threads_are_all_collected(reached: ModuleType) -> None:
    """While they come: each once, and none is left when the last has come."""
    driver = Driver()
    inbox, told = driver.inbox(reached), list[int]()
    watches = [Watch(inbox) for _ in range(4)]
    for n in range(4000):
        watches[n % 4].watch(Mark(n + 1), lambda error, n=n: told.append(n))  # type: ignore[misc]

    def reach(first: int) -> None:
        for n in range(first, 4000, 4):
            driver.reach(n + 1)

    threads = [threading.Thread(target=reach, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    while len(told) < 4000:
        assert select.select([inbox.file], [], [], 30)[0]
        inbox.collect()
    for thread in threads:
        thread.join()

    assert not readable(inbox)
    assert [[n for n in told if n % 4 == first] for first in range(4)] == [list(range(f, 4000, 4)) for f in range(4)]


@pytest.fixture
def device(reached: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenCLDevice]:
    """One whose driver is trusted with callbacks; the tests that take it are why."""
    functions = loader()
    assert functions is not None
    address = ctypes.cast(functions["clSetEventCallback"], ctypes.c_void_p).value or 0
    monkeypatch.setattr(opencl, "open_inbox", lambda: Inbox(reached, address))
    device = open_device(None)
    assert isinstance(device, OpenCLDevice)
    platform, kind = next(iter(TRUSTED))
    if (device.info.platform, device.info.kind) != (platform, kind):
        device.close()
        pytest.skip(f"{device.info.platform} is not trusted with callbacks")
    yield device
    device.close()


def test_a_driver_reports_what_is_reached(device: OpenCLDevice) -> None:
    """In order, and what the commands wrote is there by then."""
    streams = [device.open_stream() for _ in range(2)]
    reports = device.reports(streams)
    assert reports is not None
    found = [np.zeros(1000, np.int32) for _ in range(20)]
    memory, told = [device.allocate(4000) for _ in streams], list[tuple[int, list[int], BaseException | None]]()
    for n, target in enumerate(found):
        stream, block = streams[n % 2], memory[n % 2]
        stream.write(block, 0, np.full(1000, n + 1, np.int32))
        stream.read(block, 0, target)
        stream.when_reached(
            stream.mark(), lambda error, n=n: told.append((n, sorted(set(found[n].tolist())), error))  # type: ignore[misc]
        )

    while len(told) < 20:
        assert select.select([reports.file], [], [], 30)[0]
        reports.collect()

    expected = [(n, [n + 1], None) for n in range(20)]
    assert [[t for t in told if t[0] % 2 == s] for s in (0, 1)] == [expected[::2], expected[1::2]]


def test_a_driver_reports_what_has_failed(device: OpenCLDevice) -> None:
    """Here a command that waits for one that never came to be."""
    stream, told = device.open_stream(), list[BaseException | None]()
    reports = device.reports([stream])
    assert reports is not None
    never = opencl.cl.UserEvent(device.context)  # type: ignore[attr-defined]
    stream.wait_for([OpenCLMark(never, [])])
    stream.when_reached(stream.mark(), told.append)

    never.set_status(-1)
    assert select.select([reports.file], [], [], 30)[0]
    reports.collect()

    assert [type(error) for error in told] == [DeviceCommandError]


@pytest.mark.parametrize(("platform", "kind"), [("Portable Computing Language", "cpu"), ("NVIDIA CUDA", "gpu")])
def test_drivers_that_are_not_trusted_have_threads_wait(platform: str, kind: str, device: OpenCLDevice) -> None:
    """PoCL tells of a failure as of a success, and NVIDIA's driver tells late."""
    stream, told = device.open_stream(), queue.SimpleQueue[BaseException | None]()
    device.info = attrs.evolve(device.info, platform=platform, kind=kind)
    answer = device.reports([stream])

    stream.when_reached(stream.mark(), told.put)

    assert answer is None
    assert told.get(timeout=30) is None


def test_wrapped_streams_have_threads_wait(device: OpenCLDevice) -> None:
    """As those of a device that notes what is launched: what they pass on is not the device's to know."""
    streams: list[Any] = [device.open_stream(), SimpleNamespace(index=1)]

    answer = device.reports(streams)

    told = queue.SimpleQueue[BaseException | None]()
    streams[0].when_reached(streams[0].mark(), told.put)
    assert answer is None
    assert told.get(timeout=30) is None
