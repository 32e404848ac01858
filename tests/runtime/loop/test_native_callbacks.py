"""Requests that hear of the device through the driver's callbacks give what those give that a thread waits for."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from asyncrt import Runtime, RuntimeOptions
from asyncrt.devices.opencl import device as opencl
from asyncrt.devices.opencl.arguments import loader
from asyncrt.devices.opencl.reached import TRUSTED, Inbox
from asyncrt.layout import Array

from ...builders import model, node

WEIGHTS = np.random.default_rng(0).standard_normal((16, 24)).astype(np.float32)
SOURCE = model([node("m = MatMul(x, w)"), node("y = Softmax(m)")], ["x f32[n,16]"], ["y"], {"w": WEIGHTS})


@pytest.fixture
def inboxes(reached: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[Inbox]:
    """Those that devices report to."""
    library, opened = loader(), list[Inbox]()
    assert library is not None
    address = ctypes.cast(library["clSetEventCallback"], ctypes.c_void_p).value or 0

    def open_inbox() -> Inbox:
        opened.append(Inbox(reached, address))
        return opened[-1]

    monkeypatch.setattr(opencl, "open_inbox", open_inbox)
    return opened


def given(rows: int) -> dict[str, Array]:
    return {"x": np.random.default_rng(rows).standard_normal((rows, 16)).astype(np.float32)}


def waiting() -> set[str]:
    """The threads that wait on streams."""
    return {t.name for t in threading.enumerate() if t.name.startswith("asyncrt-opencl:")}


def trusted(rt: Runtime) -> bool:
    return (rt.info.platform, rt.info.kind) in TRUSTED


async def open_runtime(**changes: Any) -> Runtime:
    rt = Runtime(streams=2, options=RuntimeOptions(**changes))
    await rt.open()
    return rt


@pytest.mark.asyncio
async def test_results_are_the_same_whoever_tells_of_them(inboxes: list[Inbox]) -> None:
    """Fifty requests at once, again and again; only the constants' stream keeps its thread."""
    found, threads = [], []
    for on in (False, True):
        rt = await open_runtime(native_callbacks=on)
        loaded = await rt.load(SOURCE)
        results = []
        for _ in range(3):
            results += await asyncio.gather(*(loaded.infer(given(1 + n % 7)) for n in range(50)))
        found.append([r["y"].tobytes() for r in results])
        threads.append(len(waiting()))
        uses = trusted(rt)
        await rt.close()

    assert found[0] == found[1]
    assert len(inboxes) == (1 if uses else 0)
    assert threads == [3, 1 if uses else 3]
    assert waiting() == set()


@pytest.mark.asyncio
async def test_a_runtime_may_be_closed_with_requests_in_flight(inboxes: list[Inbox]) -> None:
    """Those that were cancelled among them; nobody listens to the file any more."""
    rt = await open_runtime(native_callbacks=True)
    loaded = await rt.load(SOURCE)
    tasks = [asyncio.ensure_future(loaded.infer(given(1 + n % 7))) for n in range(20)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()

    await rt.close()
    results = await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(r) for r in results] == [asyncio.CancelledError, dict] * 10
    assert [asyncio.get_running_loop().remove_reader(inbox.file) for inbox in inboxes] == [False] * len(inboxes)
    assert rt.statistics().memory.leases == 0


@pytest.mark.asyncio
async def test_two_runtimes_hear_of_their_own(inboxes: list[Inbox]) -> None:
    """On one loop, and one of them closed while the other goes on."""
    first, second = await open_runtime(native_callbacks=True), await open_runtime(native_callbacks=True)
    one, other = await first.load(SOURCE), await second.load(SOURCE)
    expected = await one.infer(given(3))

    both = await asyncio.gather(one.infer(given(3)), other.infer(given(3)))
    await first.close()
    after = await other.infer(given(3))
    await second.close()

    assert [expected["y"].tobytes()] * 3 == [r["y"].tobytes() for r in (*both, after)]
