"""One thread calls the compiler of a driver that keeps memory for each thread which called it."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from asyncrt.devices.find import open_device
from asyncrt.devices.opencl import device as opencl_device
from asyncrt.devices.opencl.compiling.one_thread import OneThread, compiling_thread
from asyncrt.devices.opencl.device import OpenCLDevice
from asyncrt.errors import KernelBuildError
from asyncrt.kernels.impl import KernelSource


def test_all_calls_are_made_on_one_thread() -> None:
    """Whoever asks; each has its own answer."""
    thread = OneThread("one")

    with ThreadPoolExecutor(4) as callers:
        answers = list(callers.map(lambda number: thread.call(lambda: (number, threading.get_ident())), range(4)))

    assert [number for number, _ in answers] == [0, 1, 2, 3]
    assert len({ident for _, ident in answers}) == 1


def test_what_is_brief_goes_before_what_may_take_long() -> None:
    """Each kind in the order in which it was asked for; what has begun is not stopped."""
    thread, begun, goes_on, order = OneThread("one"), threading.Event(), threading.Event(), list[str]()

    def first() -> None:
        begun.set()
        goes_on.wait()
        order.append("first")

    calls = (("long", False), ("longer", False), ("brief", True), ("briefer", True))
    with ThreadPoolExecutor(1 + len(calls)) as callers:
        callers.submit(thread.call, first)
        begun.wait()
        for number, (name, brief) in enumerate(calls, 1):
            callers.submit(thread.call, functools.partial(order.append, name), brief=brief)
            while thread._calls.qsize() < number:  # type: ignore[union-attr]  # noqa: SLF001  # until it stands in line
                pass
        goes_on.set()

    assert order == ["first", "brief", "briefer", "long", "longer"]


def test_an_error_is_raised_where_it_was_asked_for() -> None:
    """And the thread goes on with the next call."""
    thread = OneThread("one")

    with pytest.raises(ZeroDivisionError):
        thread.call(lambda: 1 // 0)

    assert thread.call(lambda: "there") == "there"


FORKED = """
import os
from asyncrt.devices.opencl.drivers import INTEL_CPU
from asyncrt.devices.opencl.compiling.one_thread import compiling_thread
compiling_thread(*INTEL_CPU).call(lambda: None)
child = os.fork()
if child == 0:
    os._exit(compiling_thread(*INTEL_CPU).call(lambda: 42))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="it takes a system that forks")
def test_a_process_that_was_forked_has_a_thread_of_its_own() -> None:
    """The other's is not there; to wait for it would take for ever."""
    command = [sys.executable, "-W", "ignore", "-c", FORKED]

    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip() == "42"


def test_devices_that_come_and_go_compile_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where their driver refuses a text, which is told as ever."""
    found: set[int] = set()
    program = opencl_device._Program

    class Noted:
        def __init__(self, *given: Any) -> None:
            self._program = program(*given)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._program, name)

        def _build(self, *given: Any) -> Any:
            found.add(threading.get_ident())
            return self._program._build(*given)

    def compile_some(device: Any) -> None:
        assert isinstance(device, OpenCLDevice)
        device.compile("kernel void one(global float* x) { x[0] = 1; }")
        with pytest.raises(KernelBuildError, match="there_is_no_such_thing"):
            device.compile("kernel void refused(global float* x) { x[0] = there_is_no_such_thing; }")

    with contextlib.ExitStack() as stack:
        devices = [stack.enter_context(contextlib.closing(open_device(None))) for _ in range(3)]
        if compiling_thread(devices[0].info.platform, devices[0].info.kind) is None:
            pytest.skip("this driver keeps nothing for a thread")
        monkeypatch.setattr(opencl_device, "_Program", Noted)
        with ThreadPoolExecutor(3) as callers:
            list(callers.map(compile_some, devices))

    assert len(found) == 1


def test_devices_that_come_and_go_load_on_that_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """One program or many, with native code or without; what is no program is refused as ever."""
    found: set[int] = set()
    source = KernelSource("one", "kernel void one(global float* x) { x[0] = 1; }", (), 0)
    program, load_all = opencl_device._Program, opencl_device.load_all

    class Noted(program):  # type: ignore[valid-type, misc]
        def _build(self, *given: Any) -> Any:
            found.add(threading.get_ident())
            return super()._build(*given)

    def noted(*given: Any) -> Any:
        found.add(threading.get_ident())
        loads = load_all()
        assert loads is not None
        return loads(*given)

    def load_some(device: Any) -> None:
        load = device._load  # noqa: SLF001  # where all programs come through
        assert load(binary) is not None
        assert load(b"no program") is None
        device.load_ahead([(binary, "one")])
        assert load(binary, "one") is not None

    with contextlib.ExitStack() as stack:
        devices: list[Any] = [stack.enter_context(contextlib.closing(open_device(None))) for _ in range(3)]
        thread = compiling_thread(devices[0].info.platform, devices[0].info.kind)
        if thread is None:
            pytest.skip("this driver keeps nothing for a thread")
        _, binary = devices[0].build([source], None)
        assert binary is not None
        monkeypatch.setattr(opencl_device, "_Program", Noted)
        monkeypatch.setattr(opencl_device, "load_all", lambda: None if load_all() is None else noted)
        with ThreadPoolExecutor(3) as callers:
            list(callers.map(load_some, devices))

    assert found == {thread.call(threading.get_ident)}
