"""Kernels and constants that leave their caches while requests need them: results never know."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from asyncrt import Runtime, RuntimeOptions
from asyncrt.runtime.model import Model

from ..zoo import ZooModel, zoo

MODELS = {m.name: m for m in zoo()}


async def every_case(loaded: Model, spec: ZooModel) -> list[dict[str, np.ndarray]]:
    """The outputs of every case, one after the other and then all at once."""
    inputs = [spec.inputs(case) for case in range(spec.cases)]
    alone = [await loaded.infer(i) for i in inputs]
    return alone + list(await asyncio.gather(*(loaded.infer(i) for i in inputs)))


@pytest.mark.asyncio
async def test_a_cache_of_two_kernels_serves_a_model_of_many() -> None:
    """Plans hold their kernels; those of plans that left are built again."""
    spec = MODELS["gpt2_kv_ts14"]
    results, evicted = [], []
    for entries in (4096, 2):
        options = RuntimeOptions(impl_cache_entries=entries, plan_entries=2, disk_cache=False)
        async with Runtime(options=options) as rt:
            results.append(await every_case(await rt.load(spec.path), spec))
            statistics = rt.statistics().kernels
            assert statistics.kernels <= entries
            evicted.append(statistics.evictions)

    assert evicted[0] == 0 < evicted[1]
    for whole, small in zip(*results, strict=True):
        assert {n: a.tobytes() for n, a in whole.items()} == {n: a.tobytes() for n, a in small.items()}
