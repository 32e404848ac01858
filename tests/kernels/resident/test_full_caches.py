"""Kernels and constants that leave their caches while requests need them: results never know."""

from __future__ import annotations

import asyncio
import gc

import numpy as np
import pytest

from asyncrt import Runtime, RuntimeOptions
from asyncrt.layout import Array
from asyncrt.runtime.model import Model

from ...builders import model, node
from ...zoo import ZooModel, zoo

MODELS = {m.name: m for m in zoo()}


async def every_case(loaded: Model, spec: ZooModel) -> list[dict[str, Array]]:
    """The outputs of every case, one after the other and then all at once."""
    inputs = [spec.inputs(case) for case in range(spec.cases)]
    alone = [await loaded.infer(i) for i in inputs]
    return alone + list(await asyncio.gather(*(loaded.infer(i) for i in inputs)))


def contents(results: list[dict[str, Array]]) -> list[dict[str, bytes]]:
    return [{name: array.tobytes() for name, array in outputs.items()} for outputs in results]


@pytest.mark.asyncio
async def test_a_cache_of_few_kernels_serves_a_model_of_many() -> None:
    """Plans hold their kernels; those of plans that left are built again."""
    spec = MODELS["skip_two_branches_mid_dynamo18"]
    results, evicted, room = [], list[int](), 1 << 28
    for _ in range(2):
        options = RuntimeOptions(kernel_cache_bytes=room, plan_bytes=1, without={"disk_cache"})
        async with Runtime(options=options) as rt:
            results.append(await every_case(await rt.load(spec.path), spec))
            statistics = rt.statistics().kernels
            assert statistics.nbytes <= room
            evicted.append(statistics.evictions)
            room = statistics.nbytes // 4

    assert evicted[0] == 0 < evicted[1]
    assert contents(results[0]) == contents(results[1])


@pytest.mark.asyncio
@pytest.mark.parametrize("device", ["simulated", "host", None], ids=lambda d: d or "opencl")
async def test_constants_that_leave_come_again(device: str | None) -> None:
    """Where there is room for none but those in use, one chunk's leave for another's, while both are run at once."""
    a, b = np.eye(8, dtype=np.float32), np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    nodes = [node("s = MatMul(x, a)"), node("i = NonZero(s)"), node("t = Transpose(i)"), node("f = Cast(t)", to=1)]
    source = model([*nodes, node("y = MatMul(f, b)")], ["x f32[r,8]"], ["y"], {"a": a, "b": b})
    given = [np.eye(rows, 8, dtype=np.float32) for rows in (1, 5, 2, 7, 5, 1)]
    async with Runtime(device, streams=2, options=RuntimeOptions(weights_bytes=1)) as rt:
        loaded = await rt.load(source)
        alone = [(await loaded.infer({"x": x}))["y"] for x in given]
        together = [o["y"] for o in await asyncio.gather(*(loaded.infer({"x": x}) for x in given))]
        statistics = loaded.network.weights.statistics()

    expected = [np.stack(np.nonzero(x), 1).astype(np.float32) @ b for x in given]
    assert statistics.evictions > 10
    for e, first, second in zip(expected, alone, together, strict=True):
        np.testing.assert_array_equal(first, e)
        np.testing.assert_array_equal(second, e)


@pytest.mark.asyncio
async def test_constants_of_a_request_that_was_cancelled_stay_until_the_device_has_passed_it() -> None:
    """Its plan may be unbound meanwhile; what was enqueued reads them all the same."""
    async with Runtime("simulated", streams=1) as rt:
        source = model([node("y = MatMul(x, c)")], ["x f32[n,2]"], ["y"], {"c": np.eye(2, dtype=np.float32)})
        loaded = await rt.load(source)
        network, given = loaded.network, {"x": np.zeros((3, 2), np.float32)}
        await loaded.infer(given)
        running = asyncio.ensure_future(loaded.infer(given))
        while not rt.session.dispatcher.busy:  # noqa: ASYNC110  # the clock must not run on
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        del running  # with the frames of its traceback
        gc.collect()
        held = network.weights.make_room()
        while rt.session.dispatcher.busy:
            await rt.session.dispatcher.progress()
        left = network.weights.make_room()

    assert (held, left) == (False, True)
