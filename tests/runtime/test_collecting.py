"""Full garbage collections: put off while a request is there, done when none is, and never lost."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from asyncrt import Runtime, RuntimeOptions
from asyncrt.runtime import collecting

from ..builders import model, node

OPTIONS = RuntimeOptions(collect_when_idle=True)
NETWORK = model([node("y = Tanh(x)")], ["x f32[n]"], ["y"])


@pytest.fixture
def full() -> Iterator[list[str]]:
    """The full collections that there were, by who began them."""
    found: list[str] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "start" and info["generation"] == 2:
            found.append("collected")

    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)


def grow_old(times: int = 40) -> None:
    """What would have made Python collect all: that many collections of younger objects, as it counts them."""
    for _ in range(times):
        gc.collect(1)


@pytest.mark.asyncio
async def test_they_wait_until_no_request_is_there(full: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """They are due after a request like after any other work; the loop does one once it is quiet."""
    monkeypatch.setattr(collecting, "QUIET_S", 0.0)
    async with Runtime("host", options=OPTIONS) as rt:
        loaded = await rt.load(NETWORK)
        await rt._dispatcher.admit(0)
        full.clear()
        grow_old()
        await loaded.infer({"x": np.ones(3, np.float32)})
        before = list(full)
        rt._dispatcher.end(0)
        for _ in range(20):
            await asyncio.sleep(0)

    assert before == []
    assert full == ["collected"]


@pytest.mark.asyncio
async def test_a_request_that_comes_puts_it_off(full: list[str]) -> None:
    """There was not enough rest."""
    async with Runtime("host", options=OPTIONS) as rt:
        await rt.load(NETWORK)
        await rt._dispatcher.admit(0)
        grow_old()
        rt._dispatcher.end(0)
        full.clear()
        collector = rt._collector
        assert collector is not None
        assert collector._timer is not None

        await rt._dispatcher.admit(1)

        assert collector._timer is None
        rt._dispatcher.end(1)
    assert full == []


@pytest.mark.asyncio
async def test_a_process_that_never_rests_is_collected_all_the_same(
    full: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a while, at the next request."""
    async with Runtime("host", options=OPTIONS) as rt:
        await rt._dispatcher.admit(0)
        grow_old()
        full.clear()
        await rt._dispatcher.admit(1)
        early = list(full)
        monkeypatch.setattr(collecting, "PATIENCE_S", -1.0)
        await rt._dispatcher.admit(2)
        for request in range(3):
            rt._dispatcher.end(request)

    assert early == []
    assert full == ["collected"]


@pytest.mark.asyncio
async def test_the_process_is_left_as_it_was() -> None:
    """Whichever of several runtimes closes last; without the option nothing is changed."""
    before = gc.get_threshold()
    async with Runtime("host"):
        assert before == gc.get_threshold()
    one, other = Runtime("host", options=OPTIONS), Runtime("host", options=OPTIONS)
    await one.open()
    await other.open()
    meanwhile = gc.get_threshold()
    await one.close()
    after_one = gc.get_threshold()
    await other.close()

    assert meanwhile[:2] == before[:2]
    assert meanwhile[2] > 10**6
    assert after_one == meanwhile
    assert before == gc.get_threshold()
