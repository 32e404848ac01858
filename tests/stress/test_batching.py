"""A short form of the storm of batched requests, and the memory that many shapes take."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest

from asyncrt import Runtime, RuntimeOptions
from asyncrt.devices.simulated import SimulatedDevice

from .. import virtual_loop
from .batching import canary, request, storm


@pytest.mark.parametrize("seed", range(6))
def test_nobody_gets_what_is_not_its_own(seed: int, either_path: str) -> None:
    """Neither a byte of another request nor of the padding, which is NaN; and nobody waits for ever.

    Who is cancelled while it waits is never launched, who fails does so alone, and nothing is left behind.
    """
    told = virtual_loop.run(storm(seed, 300))

    statistics = told.statistics
    assert statistics is not None
    assert sum(told.counts.values()) == 300
    assert told.counts["answered"] > 75
    assert told.prepared > 0
    assert {"cancelled", "erred", "failed"} <= set(told.counts)
    assert "refused for ever" not in told.counts
    assert sum(statistics.reasons.values()) == statistics.executions < statistics.members


@pytest.mark.slow
def test_ten_thousand_callers_are_all_told() -> None:
    """The same, with as many of them; a hundred thousand are in the long form."""
    told = virtual_loop.run(storm(0, 10_000))

    assert told.statistics is not None
    assert sum(told.counts.values()) == 10_000
    assert told.counts["answered"] > 5_000
    assert told.statistics.padding > 0


def test_a_storm_is_the_same_again() -> None:
    """What became of each, and of each batch."""
    one, other = virtual_loop.run(storm(1, 200)), virtual_loop.run(storm(1, 200))

    assert one == other


def test_many_shapes_take_no_more_and_more_memory() -> None:
    """Neither on the device, where the second half needs what the first did, nor in what is remembered of shapes."""

    async def run(count: int) -> list[int]:
        held: list[int] = []
        options = RuntimeOptions(warm=False, idle_release_s=None)
        async with Runtime(SimulatedDevice(0), streams=2, options=options) as rt:
            loaded = await rt.load(canary())
            chance = random.Random(0)
            async with loaded.batched(pad_values={"x": np.nan}) as batched:
                for begin in range(0, count, 20):
                    shapes = [(chance.randrange(1, 42), chance.randrange(1, 4)) for _ in range(20)]
                    await asyncio.gather(*(
                        batched.infer(request(begin + i, length, rows, 3)) for i, (length, rows) in enumerate(shapes)
                    ))  # fmt: skip
                    memory = rt.statistics().memory
                    held.append(memory.active + memory.held)
        return held

    held = virtual_loop.run(run(1000))

    assert max(held[25:]) <= 1.5 * max(held[:25])
