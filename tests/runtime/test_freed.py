"""What is closed or unloaded is freed with whoever has it last: nobody has to wait for a garbage collection."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from asyncrt import Model, Runtime

from ..builders import model, node

X = np.ones((3, 4), np.float32)
WEIGHTS = np.arange(16, dtype=np.float32).reshape(4, 4)
PRODUCT = model([node("p = MatMul(x, w)"), node("y = Relu(p)")], ["x f32[n,4]"], ["y"], {"w": WEIGHTS})
SUM = model([node("y = Add(x, past)"), node("present = Identity(y)")], ["x f32[n,4]", "past f32[n,4]"],
            ["y", "present"])  # fmt: skip


@pytest.fixture(autouse=True)
def _without_collections() -> Iterator[None]:
    """Python collects nothing by itself meanwhile."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def used(loaded: Model, summed: Model) -> None:
    """Ask in every way there is."""
    await loaded.ready()
    for rows in (1, 2, 3, 3, 3):
        await loaded.infer({"x": X[:rows]})
    asked = asyncio.create_task(loaded.infer({"x": X}))
    await asyncio.sleep(0)
    asked.cancel()
    await asyncio.wait([asked])
    async with summed.sequence() as sequence:
        for _ in range(3):
            await sequence.infer({"x": X})
    async with loaded.batched(max_batch=2) as batched:
        await asyncio.gather(*(batched.infer({"x": X[:rows]}) for rows in (1, 2, 3)))
    loaded.explain()


def parts_of(model: Model) -> dict[str, weakref.ref[Any]]:
    """Return what finds the parts of a model that hold memory, as long as they live."""
    network = model.network.latest
    return {
        "network": weakref.ref(network),
        "program": weakref.ref(network.program),
        "plans": weakref.ref(network.plans),
        "constants": weakref.ref(network.weights),
    }


def alive(parts: dict[str, weakref.ref[Any]]) -> list[str]:
    return [name for name, find in parts.items() if find() is not None]


@pytest.mark.asyncio
@pytest.mark.parametrize("device", ["host", "simulated", None])
async def test_a_closed_runtime_is_freed_at_once(device: str | None) -> None:
    """Its device, its kernels, its models with their plans and constants, however they were used."""
    rt = Runtime(device)
    async with rt:
        loaded, summed = await rt.load(PRODUCT), await rt.load(SUM)
        await used(loaded, summed)
        session = rt.session
        parts = parts_of(loaded) | {
            "session": weakref.ref(session),
            "device": weakref.ref(session.device),
            "kernels": weakref.ref(session.kernels),
            "dispatcher": weakref.ref(session.dispatcher),
            "pool": weakref.ref(session.pool),
        }
        del session

    del rt, loaded, summed
    await asyncio.sleep(0)  # a turn in which the loop lets go of what it has called

    assert alive(parts) == []


@pytest.mark.asyncio
@pytest.mark.parametrize("device", ["host", "simulated", None])
async def test_an_unloaded_model_is_freed_at_once(device: str | None) -> None:
    """Its runtime goes on and holds nothing of it."""
    async with Runtime(device) as rt:
        loaded, summed = await rt.load(PRODUCT), await rt.load(SUM)
        await used(loaded, summed)
        parts = parts_of(loaded)

        await rt.unload(loaded)
        del loaded
        await asyncio.sleep(0)

        assert alive(parts) == []
        np.testing.assert_array_equal(2 * X, (await summed.infer({"x": X, "past": X}))["y"])


@pytest.mark.asyncio
async def test_who_still_has_an_unloaded_model_has_little_of_it() -> None:
    """No plan, no constant on the device, nothing by which plans would be made."""
    async with Runtime() as rt:
        loaded, summed = await rt.load(PRODUCT), await rt.load(SUM)
        await used(loaded, summed)
        plans = loaded.network.latest.plans
        had = len(plans), plans.recipe_counts

        await rt.unload(loaded)

        assert had[0] > 0 < sum(had[1])
        assert (len(plans), plans.recipe_counts, rt.statistics().weights_nbytes) == (0, [], 0)
        assert list(loaded.inputs) == ["x"]
