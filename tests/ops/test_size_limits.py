"""Every operator at tensors of 2^31 elements and more: planning refuses what its kernels cannot index, and no less."""

from __future__ import annotations

import functools
import math

import pytest

from asyncrt.devices.opencl.record import pack_record
from asyncrt.errors import ModelError, SizeLimitError
from asyncrt.graph.build import build_program
from asyncrt.kernels.operator import Operator
from asyncrt.kernels.reach import MOST
from asyncrt.kernels.registry import operators
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32, Layout
from asyncrt.options import RuntimeOptions
from asyncrt.runtime.plan.chunk_plan import ChunkPlan, start_state
from asyncrt.runtime.plan.planner import Tools, prepare_chunk
from asyncrt.runtime.plan.recipe import dynamic_axes, sizes_of

from ..builders import i64, model, node
from .huge import CPU, GPU, MANY, Atom, Scaled, largest, most_elements
from .run import arrays, of_numbers, reference

#: Operators of ours that no model of one node has; what they stand for is tested where they are made.
_INNER = "asyncrt"
KERNELS = [
    pytest.param(o, id=o.name)
    for o in sorted(operators().values(), key=lambda o: o.name)
    if o.implement is not None and o.domain != _INNER
]


@functools.cache
def _growing(operator: Operator, traits: DeviceTraits) -> list[tuple[Scaled, tuple[Atom, ...], int]]:
    """The operator's examples, as far as they can be made as large as one likes, and how large that is."""
    found: list[tuple[Scaled, tuple[Atom, ...], int]] = []
    for example in operator.examples:
        if not of_numbers(inputs := arrays(example)) or not of_numbers(reference(operator, example, inputs)):
            continue
        for constants in (False, True):
            try:
                scaled = Scaled(operator, example, constants=constants)
            except ModelError:  # an example of what only kernels take
                continue
            group = scaled.growing(traits)
            if group is not None:
                found.append((scaled, group, largest(scaled, group, traits)))
    return found


@pytest.mark.parametrize("traits", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("operator", KERNELS)
def test_planning_refuses_what_kernels_cannot_index_and_nothing_smaller(
    operator: Operator, traits: DeviceTraits
) -> None:
    """Each example grows until one element more is refused: up to there every tensor, size and group of work-items is
    within 32 bits, and from there on some tensor is not. No operator with kernels is left out."""
    cases = _growing(operator, traits)

    assert cases, "none of its examples grows: the rule has not been seen to hold for it"
    for scaled, group, times in cases:
        plan = scaled.plan(group, times, traits)
        with pytest.raises(SizeLimitError, match=r"kernels (index|count)|32 bits"):
            scaled.plan(group, times + 1, traits)
        assert most_elements(plan) <= MOST
        for step in plan.steps:
            groups = [n // g for n, g in zip(step.grid, step.group or (1,) * len(step.grid), strict=True)]
            assert all(n < 1 << 31 for n in groups), step
            assert math.prod(step.grid) < 1 << 63


@pytest.mark.parametrize("traits", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("operator", KERNELS)
def test_no_recipe_gives_a_plan_that_planning_would_refuse(operator: Operator, traits: DeviceTraits) -> None:
    """A recipe that was made at small sizes, or just below what kernels index, gives none beyond it."""
    for scaled, group, times in _growing(operator, traits):
        for made_at in (3, 1000, times):
            recipe = scaled.recipe(group, made_at, traits)
            if recipe is None or scaled.program.value_inputs:
                continue  # it has something that is no formula, or is for the values that it was made with
            axes = dynamic_axes(scaled.program)
            for beyond in (times + 1, 2 * times, 5 * times, MANY):
                assert recipe.plan(sizes_of(scaled.layouts(group, beyond)[0], axes), tuple) is None
            assert recipe.plan(sizes_of(scaled.layouts(group, made_at)[0], axes), tuple) is not None


def test_a_view_counts_as_far_as_its_elements_lie_apart() -> None:
    """A few columns of a wide tensor are few elements, and lie over all of it; by themselves they may be read."""
    nodes = [node("few = Slice(x, zero, ten, ones)"), node("y = Tanh(few)")]
    constants = {"zero": i64(0), "ten": i64(10), "ones": i64(1)}
    source = model(nodes, ["x f32[rows,columns]"], ["y"], constants)
    program = build_program(source, CPU, RuntimeOptions(without={"disk_cache"}))
    tools = Tools(CPU, takes_source=True, pack=pack_record)

    def plan(columns: int) -> ChunkPlan:
        state = start_state(program, [Layout(FLOAT32, (50_000, columns))], {})
        return prepare_chunk(program, program.chunks[0], state, tools)

    fits = MOST // 50_000
    assert len(plan(fits).steps) == 1
    with pytest.raises(SizeLimitError, match=r"float32\[50000,10\], reaches over 4,599,908,010 elements"):
        plan(92_000)
