"""Scenarios that no other test had, as a mutant showed; and the mutants themselves."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from asyncrt import Runtime, RuntimeOptions

from ..builders import i64, model, node
from .mutants import MUTANTS, ROOT, found_by


@pytest.mark.asyncio
@pytest.mark.parametrize("spec", ["simulated", None], ids=lambda d: d or "opencl")
async def test_an_alias_that_a_later_chunk_reads_keeps_its_source(spec: str | None) -> None:
    """Its source is read by nobody else, so that the memory would be given to what comes next in the chunk.

    `b` is `a`, skipped; the second chunk, whose shape the first computes, reads `b` after many others wanted memory.
    """
    nodes = [
        node("a = Neg(x)"),
        node("b = Reshape(a, flat)"),
        *(node(f"w{i} = {'Exp' if i % 2 else 'Abs'}({'x' if i == 0 else f'w{i - 1}'})") for i in range(6)),
        node("m = ReduceMax(w5)", keepdims=0),
        node("n = Cast(m)", to=7),
        node("r = Range(zero, n, one)"),
        node("c = Cast(r)", to=1),
        node("k = Unsqueeze(c, front)"),
        node("y = Add(b, k)"),
    ]
    constants = {"flat": i64(-1, 1), "zero": np.array(0, np.int64), "one": np.array(1, np.int64), "front": i64(0)}
    x = np.random.default_rng(0).uniform(0.1, 0.5, (20, 30)).astype(np.float32)
    async with Runtime(spec, options=RuntimeOptions(warm=False, without={"fuse"})) as rt:
        loaded = await rt.load(model(nodes, ["x f32[n,m]"], ["y"], constants))
        out = (await loaded.infer({"x": x}))["y"]
        decisions = {n.operator: n.decision for n in loaded.explain()}

    assert decisions["Reshape"] == "skipped"
    assert out.shape[1] > 0
    np.testing.assert_array_equal(-x.reshape(-1, 1) + np.arange(out.shape[1], dtype=np.float32), out)


@pytest.mark.asyncio
@pytest.mark.parametrize("spec", ["simulated", None], ids=lambda d: d or "opencl")
async def test_what_the_host_calculated_is_joined_with_what_a_kernel_did(spec: str | None) -> None:
    """A shape travels with the other small values of the host, so it cannot be made where it belongs in the result."""
    nodes = [
        node("s = Shape(x)"),
        node("a = Neg(x)"),
        node("i = Cast(a)", to=7),
        node("f = Reshape(i, flat)"),
        node("y = Concat(f, s, f)", axis=0),
        node("z = Neg(y)"),
    ]
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    async with Runtime(spec, options=RuntimeOptions(warm=False)) as rt:
        loaded = await rt.load(model(nodes, ["x f32[n,m]"], ["z", "y"], {"flat": i64(-1)}))
        out = await loaded.infer({"x": x})

    values = -x.reshape(-1).astype(np.int64)
    np.testing.assert_array_equal(np.concatenate([values, [2, 3], values]), out["y"])
    np.testing.assert_array_equal(-out["y"], out["z"])


def test_every_mutant_stands_where_it_says() -> None:
    """Its text is in its file once, it changes it, and the tests that should find it exist."""
    for mutant in MUTANTS:
        assert (ROOT / mutant.file).read_text(encoding="utf-8").count(mutant.text) == 1, mutant.name
        assert mutant.instead != mutant.text, mutant.name
        assert all((ROOT / test.split("::")[0]).exists() for test in mutant.tests), mutant.name


def test_a_mutant_is_found() -> None:
    """By the test that is named, in a copy: the sources stay as they are."""
    (mutant,) = (m for m in MUTANTS if m.name.startswith("waits: of two events"))
    before = (ROOT / mutant.file).read_bytes()

    assert "test_events" in (found_by(mutant) or "")
    assert None is found_by(attrs.evolve(mutant, instead=mutant.text))
    assert before == (ROOT / mutant.file).read_bytes()
