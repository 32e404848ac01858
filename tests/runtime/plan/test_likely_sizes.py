"""Sizes that are guessed while a model is loaded cost little, and of ordinary models as much is learned as ever."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from asyncrt import Runtime, RuntimeOptions
from asyncrt.graph.build import build_program
from asyncrt.graph.ir import Chunk, Program
from asyncrt.kernels.call import Call
from asyncrt.kernels.operator import Operator, host_nbytes
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.runtime.plan import host_nodes
from asyncrt.runtime.plan.chunk_plan import ChunkPlan
from asyncrt.runtime.plan.likely_sizes import CLOSER_SIZES, NBYTES, SIZES, GuessAllowance, sample_layouts
from asyncrt.runtime.plan.plan_cache import Planned, Plans
from asyncrt.runtime.plan.tools import Tools

from ...builders import i64, model, node
from ...zoo import FOLDER

MIB = 1 << 20
OPTIONS = RuntimeOptions(without={"disk_cache"})

#: Models of one node on the host that looks at the values of inputs of any size, and a request of each.
GREEDY: dict[str, tuple[Any, dict[str, Any], tuple[int, ...]]] = {
    "NonZero of rank 4": (
        model([node("y = NonZero(x)")], ["x f32[a,b,c,d]"], ["y"]), {"x": np.ones((2,) * 4, np.float32)}, (4, 16)
    ),
    "NonZero of rank 5": (
        model([node("y = NonZero(x)")], ["x f32[a,b,c,d,e]"], ["y"]), {"x": np.ones((2,) * 5, np.float32)}, (5, 32)
    ),
    "MaxUnpool": (
        model(
            [node("y = MaxUnpool(x, i)", kernel_shape=[2, 2], strides=[2, 2])],
            ["x f32[a,b,c,d]", "i i64[a,b,c,d]"], ["y"],
        ),
        {"x": np.ones((1, 1, 2, 2), np.float32), "i": i64(5, 7, 13, 15).reshape(1, 1, 2, 2)}, (1, 1, 4, 4),
    ),
    "MaxUnpool with large windows": (
        model(
            [node("y = MaxUnpool(x, i)", kernel_shape=[2, 2], strides=[40, 40])],
            ["x f32[1,1,c,d]", "i i64[1,1,c,d]"], ["y"],
        ),
        {"x": np.ones((1, 1, 1, 1), np.float32), "i": i64(3).reshape(1, 1, 1, 1)}, (1, 1, 2, 2),
    ),
    "NonMaxSuppression": (
        model(
            [node("y = NonMaxSuppression(b, s, m)")], ["b f32[a,n,4]", "s f32[a,c,n]", "m i64[1]"], ["y"]
        ),
        {"b": np.ones((1, 3, 4), np.float32), "s": np.ones((1, 2, 3), np.float32), "m": i64(1)}, (2, 3),
    ),
    "Unique": (
        model([node("y, f, i, c = Unique(x)")], ["x f32[a,b,c,d]"], ["y"]), {"x": np.ones((2,) * 4, np.float32)}, (1,)
    ),
    "Compress": (
        model([node("y = Compress(x, c)", axis=0)], ["x f32[n,m]", "c bool[k]"], ["y"]),
        {"x": np.ones((2, 3), np.float32), "c": np.array([True, False])}, (1, 3),
    ),
}  # fmt: skip


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.asyncio
@pytest.mark.parametrize("name", GREEDY)
async def test_loading_takes_little_whatever_sizes_are_guessed(name: str, traced: None) -> None:
    """Not the gigabytes that 258 elements on every axis are; and the model serves requests."""
    source, given, shape = GREEDY[name]
    async with Runtime("simulated", options=OPTIONS) as rt:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        loaded = await rt.load(source)
        _, peak = tracemalloc.get_traced_memory()

        out = await loaded.infer(given)

    assert peak - before < 48 * MIB
    assert out["y"].shape == shape


@pytest.mark.asyncio
async def test_likely_sizes_stay_within_the_memory_limit(traced: None) -> None:
    """What is allowed for a guess is no more than a request may have."""
    source, given, shape = GREEDY["NonZero of rank 4"]
    async with Runtime("simulated", options=RuntimeOptions(memory_limit=MIB // 4, without={"disk_cache"})) as rt:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        loaded = await rt.load(source)
        _, peak = tracemalloc.get_traced_memory()

        out = await loaded.infer(given)

    assert peak - before < 4 * MIB
    assert out["y"].shape == shape


@pytest.mark.asyncio
@pytest.mark.parametrize("name", GREEDY)
async def test_what_a_guess_calculates_was_judged_before(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No node on the host is run whose bytes, turns of loops in Python among them, are more than a guess may have."""
    judged, evaluate = [], host_nodes.evaluate

    def noted(operator: Operator, call: Call, inputs: Any) -> Any:
        judged.append(host_nbytes(operator, call))
        return evaluate(operator, call, inputs)

    monkeypatch.setattr(host_nodes, "evaluate", noted)
    async with Runtime("simulated", options=OPTIONS) as rt:
        await rt.load(GREEDY[name][0])

    assert max(judged, default=0) <= NBYTES


class Clock:
    """Time that passes when it is looked at."""

    def __init__(self, step_s: float) -> None:
        self.now, self._step_s = 0.0, step_s

    def __call__(self) -> float:
        self.now += self._step_s
        return self.now


class CountedPlans(Plans):
    """Plans that know how many were made."""

    made = 0

    def _keep(self, chunk: Chunk, signature: Any, plan: ChunkPlan, on_host: int = 0) -> Planned:
        self.made += 1
        return super()._keep(chunk, signature, plan, on_host)


def planned(program: Program, allowance: GuessAllowance | None) -> tuple[int, frozenset[str]]:
    """How many sizes were planned for, and which kernels are needed for them."""
    tools = Tools(DeviceTraits("cpu", 2, 4096, frozenset({"fp64"})), True, lambda offsets, ints: (*offsets, *ints))
    plans = CountedPlans(program, tools, replay=True, recipes=True, nbytes=64 * MIB)
    needed = plans.likely(allowance)
    assert len(needed) <= plans.made
    return plans.made, frozenset(k.name for plan in needed for k in plan.kernels)


def compiled(path: Any) -> Program:
    return build_program(path, DeviceTraits("cpu", 2, 4096, frozenset({"fp64"})), OPTIONS)


@pytest.mark.parametrize("name", ["bert_ts13", "resnet_folded_ts17", "detector_nonzero_ts16", "lstm_tagger_ts14"])
def test_of_ordinary_models_all_sizes_are_planned_for(name: str) -> None:
    """As many, and the same kernels, as if guesses might cost whatever they like."""
    program = compiled(FOLDER / f"{name}.onnx")

    expected = planned(program, GuessAllowance(program, 1 << 40, Clock(0.0)))
    got = planned(program, None)

    assert got == expected
    assert got[0] > 20


def test_likely_sizes_end_when_their_time_is_over() -> None:
    """Loading goes on with what was planned by then; nothing is raised."""
    program = compiled(FOLDER / "bert_ts13.onnx")

    slow, _ = planned(program, GuessAllowance(program, 1 << 40, Clock(0.05)))
    none, kernels = planned(program, GuessAllowance(program, 1 << 40, Clock(1e6)))

    assert 0 < slow < len(SIZES)
    assert (none, kernels) == (0, frozenset())


def test_ones_are_made_for_inputs_whose_values_decide_if_they_are_few() -> None:
    """Judged by shapes: no array is made to find out that it is too large."""
    program = compiled(GREEDY["NonZero of rank 5"][0])
    allowance = GuessAllowance(program, 1 << 40)
    guesses = [(layouts[0].count, allowance.values(layouts)) for layouts in sample_layouts(program, SIZES)]

    made = [sum(a.size for a in values.values()) for _, values in guesses if values is not None]
    left_out = [count for count, values in guesses if values is None]

    assert 0 < max(made) <= 1 << 18 < min(left_out)


def test_closer_sizes_are_all_pictures_of_a_range_in_no_order_of_size() -> None:
    """Where there is time for some of them only, those are small and large, high and wide."""
    pictures = [size[1:] for size in CLOSER_SIZES if len(size) == 3]
    some = pictures[: len(pictures) // 8]

    assert sorted(pictures) == [(32 * high, 32 * wide) for high in range(3, 22) for wide in range(3, 22)]
    for axis in (0, 1):
        assert len({size[axis] for size in some}) > 15
    assert {min(size) > 320 for size in some} == {max(size) <= 320 for size in some} == {True, False}


def _detector() -> Any:
    """A network of stages of half the sides, as those for phones are: products, depthwise convolutions, products."""
    rng = np.random.default_rng(0)
    nodes, weights, at, channels = [], {}, "x", 3

    def conv(source: str, inputs: int, outputs: int, size: int, stride: int = 1, group: int = 1) -> str:
        name = f"v{len(nodes)}"
        weights[f"w{len(nodes)}"] = rng.standard_normal((outputs, inputs // group, size, size)).astype(np.float32)
        around = [size // 2] * 4
        text = f"{name} = Conv({source}, w{len(nodes)})"
        nodes.append(node(text, group=group, strides=[stride] * 2, pads=around, kernel_shape=[size] * 2))
        nodes.append(node(f"{name}r = HardSwish({name})"))
        return f"{name}r"

    for out in (16, 24, 40, 80, 112):
        if channels == 3:
            at = conv(at, channels, out, 3, 2)
        else:
            wide = conv(at, channels, 6 * channels, 1)
            wide = conv(wide, 6 * channels, 6 * channels, 5, 2, 6 * channels)
            at = conv(wide, 6 * channels, out, 1)
        channels = out
    nodes.append(node(f"y = Conv({conv(at, channels, 16, 3)}, last)", kernel_shape=[1, 1]))
    weights["last"] = rng.standard_normal((8, 16, 1, 1)).astype(np.float32)
    return model(nodes, ["x f32[1,3,h,w]"], ["y"], weights)


@pytest.mark.asyncio
@pytest.mark.slow
async def test_nearly_every_new_size_of_a_picture_is_planned_by_a_recipe_that_loading_has_left() -> None:
    """From 160 to 640 in steps of 32, as detectors take them; no kernel is built for one."""
    rng = np.random.default_rng(1)
    sizes = [(32 * int(high), 32 * int(wide)) for high, wide in rng.integers(5, 21, (40, 2))]
    async with Runtime() as rt:
        if not rt.info.is_cpu:
            pytest.skip("kernels of GPUs follow from other numbers")
        loaded = await rt.load(_detector().SerializeToString())
        await loaded.ready()
        before = rt.statistics()
        for size in dict.fromkeys(sizes):
            await loaded.infer({"x": np.zeros((1, 3, *size), np.float32)})
        after = rt.statistics()

    made = after.plans - before.plans
    assert after.by_recipe - before.by_recipe >= made - 4
    assert after.kernels_built == before.kernels_built
