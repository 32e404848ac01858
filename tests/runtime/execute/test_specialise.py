"""Specialised kernels while requests run: they come by themselves, are named, and change no result."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from asyncrt import Runtime, RuntimeOptions
from asyncrt.devices.base import Kernel
from asyncrt.runtime.execute.specialise import OFTEN, Specialiser, Timings
from asyncrt.runtime.model import Model
from asyncrt.runtime.plan.bound_plan import BoundPlan

from ...builders import model, node

OFF = [(None, {}), (None, {"specialise": True, "without": {"replay"}}), ("host", {"specialise": True})]
WEIGHTS = np.random.default_rng(0).standard_normal((16, 40)).astype(np.float32)
NODES = [node("t = Transpose(x)", perm=[0, 2, 1]), node("m = MatMul(t, w)"), node("y = Softmax(m)")]
SOURCE = model(NODES, ["x f32[a,16,b]"], ["y"], {"w": WEIGHTS})


def given(size: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(size).standard_normal((2, 16, size)).astype(np.float32)}


def implementations(loaded: Model) -> dict[str, str]:
    return {n.operator: n.implementation for n in loaded.explain()}


def specialiser_of(rt: Runtime, special_s: float | None, build_s: float = 1e-9) -> Specialiser:
    """The runtime's, made to think that builds cost *build_s* and a specialised launch *special_s* of 1; None fails."""
    specialiser = rt.session.specialiser
    assert specialiser is not None
    specialiser.variants.build_s = build_s
    specialiser.variants.built = lambda seconds: None  # type: ignore[method-assign]

    async def measure(bound: BoundPlan, index: int, special: Kernel) -> Timings | None:
        return None if special_s is None else ([1.0] * 3, [special_s] * 3)

    specialiser.measure = measure
    return specialiser


async def settle(specialiser: Specialiser) -> None:
    await asyncio.sleep(0)  # the loop's next turn begins it
    if specialiser.trying.task is not None:
        await specialiser.trying.task


def runtime() -> Runtime:
    return Runtime(options=RuntimeOptions(specialise=True, without={"views"}))


@pytest.mark.asyncio
async def test_a_plan_that_is_replayed_often_gets_faster_kernels() -> None:
    """Later requests use them, `explain()` says so, and results are the same bytes."""
    async with runtime() as rt:
        loaded = await rt.load(SOURCE)
        specialiser = specialiser_of(rt, special_s=0.5)
        first = await loaded.infer(given(5))
        before = implementations(loaded)
        for _ in range(OFTEN):
            await loaded.infer(given(5))
        await settle(specialiser)
        last = await loaded.infer(given(5))
        last = await loaded.infer(given(5))
        after = implementations(loaded)

    assert all(not how.endswith("specialised") for how in before.values())
    assert {operator: f"{how}, specialised" for operator, how in before.items()} == after
    np.testing.assert_array_max_ulp(first["y"], last["y"], maxulp=2)


@pytest.mark.asyncio
async def test_kernels_that_gain_nothing_stay_as_they_are() -> None:
    """And are not built again for other sizes."""
    async with runtime() as rt:
        loaded = await rt.load(SOURCE)
        specialiser = specialiser_of(rt, special_s=1.0)
        built = []
        for size in (5, 6):
            for _ in range(OFTEN + 2):
                await loaded.infer(given(size))
            await settle(specialiser)
            built.append(rt.statistics().kernels.kernels)
        how = implementations(loaded)

    assert built[0] == built[1]
    assert all(not h.endswith("specialised") for h in how.values())
    assert specialiser.generation == 0


@pytest.mark.asyncio
async def test_products_of_other_rows_share_the_variant() -> None:
    """The number of rows stays an argument; what is specialised for its size is not."""
    async with runtime() as rt:
        loaded = await rt.load(SOURCE)
        specialiser = specialiser_of(rt, special_s=0.5)
        for _ in range(OFTEN + 1):
            await loaded.infer(given(17))
        await settle(specialiser)
        await loaded.infer(given(18))
        result = await loaded.infer(given(18))
        how = implementations(loaded)

    e = np.exp(given(18)["x"].transpose(0, 2, 1) @ WEIGHTS)
    if rt.info.is_cpu:
        assert how["MatMul"].endswith("specialised")
    assert not how["Transpose"].endswith("specialised")
    np.testing.assert_allclose(result["y"], e / e.sum(-1, keepdims=True), rtol=1e-4)


@pytest.mark.asyncio
@pytest.mark.parametrize(("device", "options"), OFF)
async def test_nothing_is_specialised_where_it_is_off(device: str | None, options: dict[str, Any]) -> None:
    """By default, without plans to be replayed, and on devices that build no kernels."""
    async with Runtime(device, options=RuntimeOptions(**options)) as rt:
        assert rt.session.specialiser is None


@pytest.mark.asyncio
async def test_what_is_measured_is_measured_on_the_device() -> None:
    """On memory that is given back, with whatever result; requests that come meanwhile are served."""
    async with runtime() as rt:
        loaded = await rt.load(SOURCE)
        specialiser = specialiser_of(rt, special_s=None)
        specialiser.measure = specialiser.measure_on_device
        expected = await loaded.infer(given(5))
        for _ in range(OFTEN):
            await loaded.infer(given(5))
        during = await asyncio.gather(*(loaded.infer(given(5)) for _ in range(20)))
        await settle(specialiser)
        after = await loaded.infer(given(5))

    assert specialiser.variants.done
    for outputs in (*during, after):
        np.testing.assert_array_max_ulp(expected["y"], outputs["y"], maxulp=2)


@pytest.mark.asyncio
async def test_closing_ends_a_measurement() -> None:
    """Without an error, and without waiting for all that was to be measured."""
    async with runtime() as rt:
        loaded = await rt.load(SOURCE)
        specialiser = specialiser_of(rt, special_s=None)
        specialiser.measure = specialiser.measure_on_device
        for _ in range(OFTEN + 1):
            await loaded.infer(given(5))
        await asyncio.sleep(0)  # the loop's next turn begins it
        task = specialiser.trying.task

    assert task is not None
    assert task.done()
