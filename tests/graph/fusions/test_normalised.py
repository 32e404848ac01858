"""A block of a decoder: on a GPU the normalisation of few rows is part of the product that alone reads it."""

from __future__ import annotations

import itertools

import attrs
import numpy as np
import onnx
import pytest

from asyncrt import Runtime, RuntimeOptions
from asyncrt.layout import FLOAT16, FLOAT32, Array, Layout
from asyncrt.memory.hazards import overlap
from asyncrt.memory.host import HostBudget
from asyncrt.runtime.cooperative import finished
from asyncrt.runtime.explain.explain import Explanation
from asyncrt.runtime.plan.accesses import touches
from asyncrt.runtime.plan.plan_cache import Plans
from asyncrt.runtime.plan.tools import new_memo

from ...builders import model, node
from ...kernels.matmul.test_gpu_regimes import LARGE, MMA
from .ran import APART, ran

WIDE, MADE = 96, 40


def block(dtype: str, *outputs: str) -> onnx.ModelProto:
    """Return rows that are normalised, multiplied, shifted and cut off at 0, twice; with further *outputs*."""
    number, rng = {"f16": np.float16, "f32": np.float32}[dtype], np.random.default_rng(0)
    shapes = {"s": (WIDE,), "t": (WIDE,), "w": (WIDE, MADE), "b": (MADE,), "u": (MADE,), "v": (24, MADE), "c": (24,)}
    constants = {name: rng.standard_normal(shape).astype(number) for name, shape in shapes.items()}
    nodes = [
        node("normal = LayerNormalization(x, s, t)", epsilon=1e-3),
        node("p = MatMul(normal, w)"),
        node("q = Add(p, b)"),
        node("h = Relu(q)"),
        node("flat = Reshape(h, size)"),
        node("again = RMSNormalization(flat, u)", epsilon=1e-3),
        node("y = Gemm(again, v, c)", transB=1),
    ]
    constants["size"] = np.array([-1, MADE], np.int64)
    return model(nodes, [f"x {dtype}[n,words,{WIDE}]"], ["y", *outputs], constants, opset=23)


async def run(
    made: onnx.ModelProto, x: Array, without: frozenset[str] = frozenset()
) -> tuple[Array, Explanation, bool]:
    """Return the result, what became of each node, and whether a processor did it."""
    result, explanation, info = await ran(made, x, without)
    return result, explanation, info.is_cpu


def normalised(explanation: Explanation) -> int:
    """Return how many products normalise their rows."""
    return sum("of normalised rows" in n.implementation for n in explanation if n.decision == "ran")


@pytest.mark.asyncio
@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize(("words", "few"), [(1, True), (7, True), (40, False)])
async def test_few_rows_are_normalised_by_the_product_that_reads_them(dtype: str, words: int, few: bool) -> None:
    """One kernel of a GPU normalises, multiplies and calculates what follows; many rows, and processors, have two."""
    x = np.random.default_rng(1).standard_normal((1, words, WIDE)).astype("float16" if dtype == "f16" else "float32")

    got, explanation, on_processor = await run(block(dtype), x)
    apart, _, _ = await run(block(dtype), x, APART)

    tolerance = 4e-3 if dtype == "f16" else 1e-5
    np.testing.assert_allclose(got, apart, rtol=tolerance, atol=tolerance * np.abs(apart).max())
    assert normalised(explanation) == (0 if on_processor or not few else 2)


@pytest.mark.asyncio
async def test_normalised_rows_that_others_read_are_stored() -> None:
    """An output of the graph between a normalisation and its product keeps them apart; the others are one."""
    x = np.random.default_rng(1).standard_normal((1, 2, WIDE), np.float32)

    _, explanation, on_processor = await run(block("f32", "normal"), x)

    assert normalised(explanation) == (0 if on_processor else 1)


@pytest.mark.asyncio
@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize(("words", "launches"), [(1, 2), (40, 4)])
async def test_a_gpu_launches_one_kernel_for_few_rows(dtype: str, words: int, launches: int) -> None:
    """Seen in the plan that any machine makes for it: of two normalisations and two products."""
    async with Runtime(options=RuntimeOptions(warm=False, without={"widen_floats"})) as rt:
        net = (await rt.load(block(dtype))).network
        tools = attrs.evolve(net.tools, traits=MMA if dtype == "f16" else LARGE, memo=new_memo())
        plans = Plans(net.program, tools, replay=False, recipes=False, nbytes=1)
        layouts = [Layout({"f16": FLOAT16, "f32": FLOAT32}[dtype], (1, words, WIDE))]

        plan = finished(plans.first(None, layouts, {}, (), HostBudget(tools.host_limit))).plan

    assert len(plan.steps) == launches


@pytest.mark.asyncio
@pytest.mark.parametrize(("words", "launches"), [(7, 2), (23, 2), (40, 4)])
async def test_a_product_keeps_the_rows_that_it_normalises_for_others(words: int, launches: int) -> None:
    """Tensor cores do so with few rows; what a group still reads is nowhere where another one writes."""
    async with Runtime(options=RuntimeOptions(warm=False, without={"widen_floats"})) as rt:
        net = (await rt.load(block("f16", "normal"))).network
        traits = attrs.evolve(MMA, local_memory=1 << 17)
        tools = attrs.evolve(net.tools, traits=traits, memo=new_memo(), origins=True)
        plans = Plans(net.program, tools, replay=False, recipes=False, nbytes=1)
        work = plans.first(None, [Layout(FLOAT16, (1, words, WIDE))], {}, (), HostBudget(tools.host_limit))
        plan = finished(work).plan

    assert len(plan.steps) == launches
    told = [r.how for r in plan.known_records() if r.node.operator.name == "LayerNormalization"]
    assert [", by" in how for how in told] == [launches == 2]
    for step in plan.steps:
        ours = [touch for touch, buffer in zip(touches(step), step.buffers, strict=True) if buffer == plan.chunk]
        read, written = ([t.region for t in ours if t.write is write] for write in (False, True))
        assert not any(overlap(one, other) for one in read for other in written)
        assert not any(overlap(one, other) for one, other in itertools.combinations(written, 2))
