"""Exporter-made models with dynamic shapes against ONNX Runtime, and against ourselves with each mechanism off."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import asyncrt
from asyncrt import RuntimeOptions
from asyncrt.layout import Array

from ..zoo import ZooModel, assert_equal, zoo

MODELS = [pytest.param(m, id=m.name) for m in zoo()]


@pytest.mark.asyncio
@pytest.mark.parametrize("model", MODELS)
async def test_every_case_equals_onnx_runtime_alone_and_eight_at_a_time(model: ZooModel) -> None:
    """One loaded model runs all its cases, forth and back with other inputs, then eight at once: all are right.

    Outputs are compared only after everything ran, so that memory handed out twice would show.
    """
    order = [(c, 0) for c in range(model.cases)] + [(c, 1) for c in reversed(range(model.cases))]
    given = [model.inputs(case, salt) for case, salt in order]
    before = [{k: v.copy() for k, v in g.items()} for g in given]

    async with asyncrt.Runtime() as rt:
        loaded = await rt.load(model.path)
        alone = [await loaded.infer(g) for g in given]
        together: list[dict[str, Array]] = []
        for start in range(0, len(given), 8):
            together += await asyncio.gather(*(loaded.infer(g) for g in given[start : start + 8]))
        statistics = rt.statistics()

    for g, b, a, t, (case, _) in zip(given, before, alone, together, order, strict=True):
        expected = model.expected(g)
        assert_equal(expected, a, model, f"case {case} alone")
        assert_equal(expected, t, model, f"case {case} with others")
        assert all(np.array_equal(g[k], b[k]) for k in b), "an input was changed"
    assert statistics.memory.leases == 0
    assert statistics.memory.active == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("model", MODELS)
async def test_each_mechanism_off_gives_the_same_bytes(model: ZooModel) -> None:
    """Results with skips, views, replay, the pool, several streams and so on are bit for bit those without."""
    given = [model.inputs(c) for c in (*range(model.cases), *range(model.cases))]
    variants = {
        "all on": (RuntimeOptions(), 2),
        "skip off": (RuntimeOptions(skip=False, warm=False), 2),
        "views off": (RuntimeOptions(views=False, warm=False), 2),
        "in place off": (RuntimeOptions(in_place=False, warm=False), 2),
        "replay off": (RuntimeOptions(replay=False, warm=False), 2),
        "pinned off": (RuntimeOptions(pinned=False, warm=False), 2),
        "pool off": (RuntimeOptions(pool=False, warm=False), 2),
        "branches side by side": (RuntimeOptions(branches=True, max_in_flight=1, warm=False), 4),
        "preallocation off": (RuntimeOptions(preallocate=False, warm=False), 2),
        "one stream": (RuntimeOptions(warm=False), 1),
    }

    results: dict[str, list[dict[str, Array]]] = {}
    for name, (options, streams) in variants.items():
        async with asyncrt.Runtime(streams=streams, options=options) as rt:
            loaded = await rt.load(model.path)
            results[name] = list(await asyncio.gather(*(loaded.infer(g) for g in given)))
            if name == "skip off":
                assert rt.statistics().skipped == 0

    for name, outputs in results.items():
        for case, (expected, got) in enumerate(zip(results["all on"], outputs, strict=True)):
            for key, array in expected.items():
                assert array.tobytes() == got[key].tobytes(), f"{name}: case {case % model.cases}, output {key}"
