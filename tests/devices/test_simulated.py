"""The simulated device: repeatable, and unforgiving."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from asyncrt.devices.find import open_device
from asyncrt.devices.simulated import POISON, SimulatedDevice
from asyncrt.errors import OutOfDeviceMemory


async def completions(seed: int) -> tuple[list[tuple[int, int]], float]:
    """Return the order in which the marks of four streams are reached, and when the last was."""
    device = SimulatedDevice(seed)
    streams = [device.open_stream() for _ in range(4)]
    memory = device.allocate(16)
    order: list[tuple[int, int]] = []
    done = asyncio.Event()

    def reached(stream: int, number: int) -> None:
        order.append((stream, number))
        if len(order) == 40:
            done.set()

    for number in range(10):
        for stream in streams:
            stream.fill(memory, 0, 16, 1)
            stream.when_reached(stream.mark(), lambda error, s=stream.index, n=number: reached(s, n))  # type: ignore[misc]
    await asyncio.wait_for(done.wait(), 10)
    return order, device.now


@pytest.mark.asyncio
async def test_the_same_seed_gives_the_same_run() -> None:
    """The same order of completions at the same times; each stream in order."""
    first, again = await completions(3), await completions(3)

    assert first == again
    for stream in range(4):
        assert list(range(10)) == [n for s, n in first[0] if s == stream]


@pytest.mark.asyncio
async def test_other_seeds_give_other_runs() -> None:
    """Many orders are met."""
    orders = {tuple((await completions(seed))[0]) for seed in range(10)}

    assert len(orders) == 10


def test_fresh_memory_holds_a_pattern() -> None:
    """Who reads what nobody wrote does not find zeros by luck; who reads what was given back finds another pattern."""
    device = SimulatedDevice()
    memory = device.allocate(64)
    fresh = memory.tolist()
    device.release(memory)

    assert fresh == [POISON] * 64
    assert not set(fresh) & set(memory.tolist())
    assert device.allocated == 0


def test_a_missing_wait_is_seen() -> None:
    """For most seeds a reader that does not wait for the writer on another stream finds other bytes."""
    missed = 0
    for seed in range(20):
        device = SimulatedDevice(seed)
        writer, reader = device.open_stream(), device.open_stream()
        memory = device.allocate(16)
        found = np.zeros(16, np.uint8)
        writer.fill(memory, 0, 16, 1)
        reader.read(memory, 0, found)
        device.close()
        missed += found.tolist() != [1] * 16

    assert missed == 20


def test_a_wait_for_what_never_comes_is_an_error() -> None:
    """A test must not hang."""
    device = SimulatedDevice()
    first, second = device.open_stream(), device.open_stream()
    memory = device.allocate(16)
    never = second.mark()
    second.commands.clear()
    first.wait_for([never])
    first.fill(memory, 0, 16, 1)

    with pytest.raises(RuntimeError, match="never be reached"):
        first.close()


def test_memory_is_counted() -> None:
    """Up to the limit; the error has the numbers."""
    device = SimulatedDevice(memory=100)
    kept = device.allocate(60)

    with pytest.raises(OutOfDeviceMemory, match="50 bytes asked, 60 of 100 in use"):
        device.allocate(50)
    device.release(kept)
    device.allocate(100)

    assert repr(device) == "<SimulatedDevice now=0.000000 launches=0 allocated=100>"


def test_its_spec_opens_it_again() -> None:
    """With the same seed."""
    for seed in (0, 12):
        spec = SimulatedDevice(seed).info.spec
        assert f"simulated (seed {seed})" == open_device(spec).info.name
