"""Plans of shapes that were never seen, by the formulas of others."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import ModuleType

import attrs
import numpy as np
import pytest

from asyncrt import Runtime, RuntimeOptions
from asyncrt.devices.opencl.record import pack_record
from asyncrt.dims import Dim
from asyncrt.errors import AsyncrtError
from asyncrt.layout import FLOAT32, Array, Layout
from asyncrt.memory.host import HostBudget
from asyncrt.runtime.cooperative import finished
from asyncrt.runtime.model import Model
from asyncrt.runtime.plan import recipe as recipes
from asyncrt.runtime.plan.chunk_plan import ChunkPlan, PlanStep, start_state
from asyncrt.runtime.plan.likely_sizes import CLOSER_SIZES, sample_layouts
from asyncrt.runtime.plan.plan_cache import Plans, same
from asyncrt.runtime.plan.planner import prepare_chunk
from asyncrt.runtime.plan.step_table import StepRecipe, step_table
from asyncrt.runtime.plan.tools import new_memo
from asyncrt.runtime.request.network import Network

from ...builders import i64, model, node
from ...kernels.matmul.test_gpu_regimes import MMA
from ...paths import off
from ...zoo import BY_RECIPE, ZooModel, zoo
from ..sequences.test_sequence import attention, fed_back

OPTIONS = RuntimeOptions(warm=False)
WITHOUT = RuntimeOptions(warm=False, without={"recipes"})
EYE = {"w": np.eye(6, 8, dtype=np.float32)}
SIZES = (1, 2, 3, 4, 7, 8, 9, 16, 17, 24, 33, 40, 70)


def network(loaded: Model) -> Network:
    return loaded.network


def shapes(loaded: Model, count: int) -> Iterator[tuple[list[Layout], dict[int, Array]]]:
    """Layouts of inputs in which every named dim has some size, equal ones included."""
    program = network(loaded).program
    rng = random.Random(5)
    for _ in range(count):
        sizes: dict[str | None, int] = {}
        layouts = []
        for id in program.inputs:
            dtype, shape = program.values[id].layout
            assert dtype is not None
            assert shape is not None
            dims = [sizes.setdefault(d.name, rng.choice(SIZES)) if isinstance(d, Dim) else d for d in shape]
            layouts.append(Layout(dtype, tuple(dims)))
        values = {
            id: np.ones(layout.shape, layout.dtype.numpy)
            for id, layout in zip(program.inputs, layouts, strict=True)
            if id in program.value_inputs
        }
        yield layouts, values


def walked(loaded: Model, layouts: list[Layout], values: dict[int, Array]) -> ChunkPlan:
    net = network(loaded)
    return prepare_chunk(net.program, net.program.chunks[0], start_state(net.program, layouts, values), net.tools)


@pytest.mark.asyncio
@pytest.mark.parametrize("source", [pytest.param(m, id=m.name) for m in zoo()])
async def test_a_recipe_gives_the_plan_that_planning_gives(source: ZooModel) -> None:
    """Launch for launch and number for number, wherever it gives one; also recipes that are not trusted yet."""
    async with Runtime(options=OPTIONS) as rt:
        loaded = await rt.load(source.path)
        net = network(loaded)
        known: list[recipes.Recipe] = []
        compared = 0
        for layouts, values in shapes(loaded, 25):
            try:
                expected = walked(loaded, layouts, values)
            except AsyncrtError:
                continue  # these sizes do not fit the model
            sizes = recipes.sizes_of(layouts, recipes.dynamic_axes(net.program))
            if len(net.program.chunks) > 1 or values:
                continue
            made = [plan for r in known if (plan := r.plan(sizes, tuple)) is not None]
            assert all(same(expected, plan) for plan in made), layouts
            compared += len(made)
            if not made:
                found = finished(recipes.make_recipe(net.program, layouts, values, (), net.tools))
                if found is not None:
                    known.append(found)
                    own = found.plan(sizes, tuple)
                    assert own is not None
                    assert same(expected, own)
    assert compared > 0 or source.name not in BY_RECIPE


def _chain(rows: str = "n") -> object:
    """A product, views, a Concat in place and element-wise nodes."""
    nodes = [
        node("a = MatMul(x, w)"), node("b = Transpose(a)", perm=[1, 0]), node("c = Neg(b)"), node("d = Exp(b)"),
        node("e = Concat(c, d)", axis=0), node("s = Shape(x)"), node("r = Gather(s, zero)"),
        node("f = Unsqueeze(r, first)"), node("g = Expand(one, f)"), node("h = Mul(e, g)"), node("y = Softmax(h)"),
    ]  # fmt: skip
    constants = {"w": np.eye(6, 8, dtype=np.float32), "zero": np.array(0, np.int64), "first": i64(0),
                 "one": np.full(1, 2, np.float32)}
    return model(nodes, [f"x f32[{rows},6]"], ["y"], constants)


@pytest.mark.asyncio
async def test_new_shapes_are_planned_by_recipe_and_give_the_same_bytes() -> None:
    """After a few shapes most plans come from recipes; explain() tells of such an inference what it tells of any."""
    async with Runtime(options=OPTIONS) as rt, Runtime(options=WITHOUT) as plain:
        loaded, other = await rt.load(_chain()), await plain.load(_chain())
        plans = network(loaded).plans
        for n in range(9, 60):
            x = np.random.default_rng(n).standard_normal((n, 6)).astype(np.float32)
            out, expected = await loaded.infer({"x": x}), await other.infer({"x": x})
            assert expected["y"].tobytes() == out["y"].tobytes()
            assert other.explain().to_json() == loaded.explain().to_json()
        by_recipe, counted = plans.by_recipe, rt.statistics()
        without = plain.statistics()

    assert by_recipe > 40
    assert (counted.launches, counted.skipped, counted.plans) == (without.launches, without.skipped, without.plans)


@pytest.mark.asyncio
async def test_a_group_does_not_tie_a_recipe_to_a_value_that_its_parts_may_leave_open() -> None:
    """The length is added and something is chosen in one kernel, as where the mask of a decoder is made."""
    nodes = [
        node("s = Shape(x)"), node("r = Gather(s, zero)"), node("a = Add(i, r)"), node("b = Unsqueeze(a, first)"),
        node("c = LessOrEqual(j, b)"), node("y = Where(c, x, far)"),
    ]  # fmt: skip
    constants = {"zero": np.array(0, np.int64), "first": i64(1), "far": np.float32(-1e4)}
    source = model(nodes, ["x f32[n,6]", "i i64[n]", "j i64[n,6]"], ["y"], constants)
    async with Runtime(options=OPTIONS) as rt:
        loaded = await rt.load(source)
        for n in range(9, 40):
            x, i = np.random.default_rng(n).standard_normal((n, 6)).astype(np.float32), np.arange(n)
            j = np.random.default_rng(n).integers(0, 3 * n, (n, 6))
            out = await loaded.infer({"x": x, "i": i, "j": j})
            np.testing.assert_array_equal(np.where(j <= (i + n)[:, None], x, np.float32(-1e4)), out["y"])
        parts = {record.node for record in loaded.explain() if record.decision == "fused"}

    assert len(parts) == 3
    assert network(loaded).plans.by_recipe > 20


@pytest.mark.asyncio
async def test_a_recipe_that_is_wrong_is_found_out_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its plans are compared first; after one that differs, the model is planned without recipes."""
    true = recipes.Recipe.plan

    def wrong(self: recipes.Recipe, *arguments: object) -> ChunkPlan | None:
        plan = true(self, *arguments)  # type: ignore[arg-type]
        if plan is None:
            return None
        steps = tuple(s._replace(grid=tuple(n + 1 for n in s.grid)) for s in plan.steps)
        return recipes.attrs.evolve(plan, steps=steps)

    monkeypatch.setattr(recipes.Recipe, "plan", wrong)
    async with Runtime(options=OPTIONS) as rt:
        loaded = await rt.load(_chain())
        for n in range(9, 15):
            x = np.random.default_rng(n).standard_normal((n, 6)).astype(np.float32)
            out = await loaded.infer({"x": x})
            assert np.isfinite(out["y"]).all()
        plans = network(loaded).plans

    assert not plans.follows
    assert plans.by_recipe == 0


@pytest.mark.asyncio
async def test_steps_of_a_sequence_are_planned_by_recipe() -> None:
    """A cache that grows by a token is a new shape each step; also past the room that was kept ahead."""
    async with Runtime(options=OPTIONS) as rt:
        loaded = await rt.load(attention())
        steps = [np.random.default_rng(i).standard_normal((1, 1, 6)).astype(np.float32) for i in range(150)]
        async with loaded.sequence() as sequence:
            got = [(await sequence.infer({"x": x}))["y"] for x in steps]
            by_recipe = network(loaded).plans.by_recipe
        expected = await fed_back(loaded, steps)

    assert [e.tobytes() for e in expected] == [y.tobytes() for y in got]
    assert by_recipe > 120


@pytest.mark.asyncio
async def test_plans_of_a_growing_cache_share_the_launches_that_its_length_does_not_change() -> None:
    """Launches that are made of the same numbers are the same objects."""
    w = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    source = model(
        [
            node("present = Concat(past, x)", axis=1),
            node("hidden = MatMul(x, w)"),
            node("sum = ReduceSum(present, axis)", keepdims=1),
            node("y = Add(hidden, sum)"),
        ],
        ["past f32[b,p,8]", "x f32[b,1,8]"],
        ["present", "y"],
        {"w": w, "axis": i64(1)},
    )
    steps = [np.random.default_rng(i).standard_normal((1, 1, 8)).astype(np.float32) for i in range(60)]
    async with Runtime(options=attrs.evolve(OPTIONS, check_hazards=False)) as rt:
        loaded = await rt.load(source)
        async with loaded.sequence({"past": "present"}) as sequence:
            outputs = [(await sequence.infer({"x": x}))["y"] for x in steps]
        before, after = [plan for plan in network(loaded).plans if plan.shared][-2:]
    shared = [a is b for a, b in zip(before.steps, after.steps, strict=True)]
    assert 0 < sum(shared) == after.shared < len(shared)
    expected = [x @ w + np.sum(steps[: i + 1], axis=0) for i, x in enumerate(steps)]
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.asyncio
async def test_values_that_decide_have_recipes_of_their_own() -> None:
    """A slice whose bounds come with the request: other bounds are another recipe."""
    nodes = [node("a = Neg(x)"), node("b = Slice(a, starts, ends)"), node("y = Softmax(b)")]
    source = model(nodes, ["x f32[n,m]", "starts i64[1]", "ends i64[1]"], ["y"])
    async with Runtime(options=OPTIONS) as rt, Runtime(options=WITHOUT) as plain:
        loaded, other = await rt.load(source), await plain.load(source)
        for n in range(8, 30):
            for start, end in ((0, 5), (2, 100), (0, 1 << 40)):
                x = np.random.default_rng(n).standard_normal((n, 2 * n)).astype(np.float32)
                given = {"x": x, "starts": i64(start), "ends": i64(end)}
                out, expected = await loaded.infer(given), await other.infer(given)
                assert expected["y"].tobytes() == out["y"].tobytes()
        by_recipe = network(loaded).plans.by_recipe

    assert by_recipe > 30


@pytest.mark.asyncio
@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("check_hazards", [True, False])
async def test_an_input_of_any_rank_beside_one_with_names_is_run(check_hazards: bool, warm: bool) -> None:
    """Its dims are none that a recipe could know of, so every shape is planned."""
    beside = model([node("m = MatMul(x, w)"), node("y = Relu(m)")], ["x f32", "w f32[k,n]"], ["y"])
    alone = model([node("y = Softmax(x)")], ["x f32"], ["y"])
    both = model([node("y = Reshape(x, s)")], ["x f32[n,m]", "s i64"], ["y"])
    random = np.random.default_rng(0)
    async with Runtime(options=RuntimeOptions(warm=warm, check_hazards=check_hazards)) as rt:
        first, second, third = [await rt.load(source) for source in (beside, alone, both)]
        for shape in [(3, 4), (2, 3, 4), (5, 1, 3, 4), *[(n, 4) for n in range(1, 40)], (7, 3, 4), (4,)]:
            x, w = random.standard_normal(shape, np.float32), random.standard_normal((4, 1 + shape[0]), np.float32)
            product = (await first.infer({"x": x, "w": w}))["y"]
            rows = (await second.infer({"x": x}))["y"]
            assert rows.shape == x.shape
            np.testing.assert_allclose(np.maximum(x @ w, 0), product, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(np.ones(shape[:-1]), rows.sum(axis=-1), rtol=1e-5)
            turned = w.shape[::-1]
            assert np.array_equal(w.reshape(turned), (await third.infer({"x": w, "s": i64(*turned)}))["y"])
        followed = [network(m).plans.by_recipe for m in (first, second, third)]

    assert followed == [0, 0, 0]


@pytest.mark.asyncio
async def test_recipes_are_bounded_whatever_decides() -> None:
    """Thousands of bounds, each of them new: no kind of values is remembered for nothing, and few recipes are made."""
    nodes = [node("a = Neg(x)"), node("y = Slice(a, starts, ends)")]
    async with Runtime(options=OPTIONS) as rt:
        loaded = await rt.load(model(nodes, ["x f32[n,m]", "starts i64[1]", "ends i64[1]"], ["y"]))
        plans = network(loaded).plans
        for n in range(400):
            x = np.ones((n % 9 + 3, 4), np.float32)
            out = await loaded.infer({"x": x, "starts": i64(n % 3), "ends": i64(10 + n)})
            assert out["y"].shape == (len(x) - n % 3, 4)

    assert sum(plans.recipe_counts) <= 48
    assert len(plans.recipe_counts) <= 48


def _pictures() -> object:
    """A detector in small: its layers see pictures of a half, a quarter and an eighth, and meet again."""
    rng = np.random.default_rng(3)
    nodes = [
        node("a = Conv(x, w0, b0)", strides=[2, 2], pads=[1, 1, 1, 1]), node("b = Relu(a)"),
        node("c = Conv(b, w1)", pads=[1, 1, 1, 1], group=16), node("d = Conv(c, w2, b2)"), node("e = HardSwish(d)"),
        node("f = Conv(e, w3)", strides=[2, 2], pads=[2, 2, 2, 2], group=24), node("g = Conv(f, w4, b2)"),
        node("p = MaxPool(g)", kernel_shape=[2, 2], strides=[2, 2]), node("q = Conv(p, w5, b2)", pads=[1, 1, 1, 1]),
        node("s = GlobalAveragePool(q)"), node("t = Conv(s, w4, b2)"), node("u = Sigmoid(t)"), node("v = Mul(q, u)"),
        node("r = Resize(v, none, twice)", mode="nearest"), node("m = Add(r, g)"), node("n = Concat(m, r)", axis=1),
        node("o = ConvTranspose(n, w6)", strides=[2, 2]), node("z = Conv(o, w7)", pads=[1, 1, 1, 1]),
        node("y = Sigmoid(z)"),
    ]  # fmt: skip
    shapes = {
        "w0": (16, 3, 3, 3), "b0": (16,), "w1": (16, 1, 3, 3), "w2": (24, 16, 1, 1), "b2": (24,), "w3": (24, 1, 5, 5),
        "w4": (24, 24, 1, 1), "w5": (24, 24, 3, 3), "w6": (48, 8, 2, 2), "w7": (1, 8, 3, 3),
    }  # fmt: skip
    constants: dict[str, Array] = {k: rng.standard_normal(s).astype(np.float32) for k, s in shapes.items()}
    constants |= {"none": np.empty(0, np.float32), "twice": np.array([1, 1, 2, 2], np.float32)}
    return model(nodes, ["x f32[n,3,h,w]"], ["y"], constants)


@pytest.mark.asyncio
@pytest.mark.parametrize("winograd", [True, False])
async def test_few_recipes_give_the_plans_of_pictures_of_all_sizes(winograd: bool) -> None:
    """Tiles, grids and kernels follow from the size by arithmetic, so that no size between is a case of its own.

    What is left is whether a small picture's convolutions are worth a transform. Tiles of plain ones are as wide as
    suits the size, and each width is a kernel.
    """
    async with Runtime(options=attrs.evolve(OPTIONS, without=off(winograd=winograd))) as rt:
        loaded = await rt.load(_pictures())
        net = network(loaded)
        rng, known = random.Random(7), []
        kernels: dict[recipes.Recipe, set[str]] = {}
        for _ in range(60):
            sizes = (1, 8 * rng.randrange(9, 80), 8 * rng.randrange(9, 80))
            layouts = [Layout(FLOAT32, (sizes[0], 3, *sizes[1:]))]
            recipe = next((r for r in known if r.plan(sizes, tuple) is not None), None)
            if recipe is None:
                recipe = finished(recipes.make_recipe(net.program, layouts, {}, (), net.tools))
                assert recipe is not None
                known.append(recipe)
            made = recipe.plan(sizes, tuple)
            assert made is not None
            assert same(walked(loaded, layouts, {}), made), sizes
            kernels.setdefault(recipe, set()).update(kernel.name for kernel in made.kernels)

    assert len(known) <= 3
    assert winograd or not rt.info.is_cpu or max(map(len, kernels.values())) > len(made.kernels)


@pytest.mark.asyncio
async def test_processors_of_a_gpu_make_no_classes_of_pictures() -> None:
    """How many positions a group has, of those of a picture, depends on how many processors there are: one formula says
    it for all sizes, and the kernel of each number."""
    async with Runtime(options=OPTIONS) as rt:
        net = network(await rt.load(_pictures()))
        tools = attrs.evolve(net.tools, traits=MMA, memo=new_memo())
        rng, known, kernels = random.Random(7), list[recipes.Recipe](), set[str]()
        for _ in range(40):
            sizes = (1, 8 * rng.randrange(9, 80), 8 * rng.randrange(9, 80))
            layouts = [Layout(FLOAT32, (sizes[0], 3, *sizes[1:]))]
            recipe = next((r for r in known if r.plan(sizes, tuple) is not None), None)
            if recipe is None:
                recipe = finished(recipes.make_recipe(net.program, layouts, {}, (), tools))
                assert recipe is not None
                known.append(recipe)
            made = recipe.plan(sizes, tuple)
            plans = Plans(net.program, tools, replay=False, recipes=False, nbytes=1)
            planned = finished(plans.first(None, layouts, {}, (), HostBudget(tools.host_limit)))
            assert made is not None
            assert same(planned.plan, made), sizes
            kernels |= {kernel.name.rsplit("_", 1)[0] for kernel in made.kernels}

    assert len(known) <= 2
    assert {"conv1x1_stream8x32", "conv1x1_stream8x16", "conv1x1_stream8x8"} <= kernels


@pytest.mark.asyncio
async def test_small_pictures_are_planned_by_recipe_or_by_planning_but_never_wrongly() -> None:
    """Rows that are shorter than a tile are where decisions differ, and planes that are a few vectors."""
    async with Runtime(options=OPTIONS) as rt:
        loaded = await rt.load(_pictures())
        net = network(loaded)
        known: list[recipes.Recipe] = []
        for sizes in [(n, 8 * h, 8 * w) for n in (1, 2) for h in (1, 2, 3, 5, 8) for w in (1, 2, 3, 4, 7, 9)]:
            layouts = [Layout(FLOAT32, (sizes[0], 3, *sizes[1:]))]
            expected = walked(loaded, layouts, {})
            made = [plan for r in known if (plan := r.plan(sizes, tuple)) is not None]
            assert all(same(expected, plan) for plan in made), sizes
            if not made:
                recipe = finished(recipes.make_recipe(net.program, layouts, {}, (), net.tools))
                assert recipe is not None
                known.append(recipe)

    assert 2 < len(known) < 40


def _scales() -> object:
    """A backbone: at each of five scales a convolution of 3 × 3 cells, one of channels alone and one of 1 × 1."""
    rng, nodes, constants, before = np.random.default_rng(4), [], {}, ("x", 3)
    for scale, channels in enumerate((16, 24, 48, 96, 128)):
        for kind, size, group, stride in (("c", 3, 1, 2), ("d", 5, channels, 1), ("p", 1, 1, 1)):
            name, pad = f"{kind}{scale}", size // 2
            filters = rng.standard_normal((channels, before[1] if group == 1 else 1, size, size))
            constants[f"w_{name}"] = filters.astype(np.float32)
            made = f"{name} = Conv({before[0]}, w_{name})"
            nodes.append(node(made, strides=[stride, stride], pads=[pad] * 4, group=group))
            before = (name, channels)
    return model([*nodes, node(f"y = Relu({before[0]})")], ["x f32[n,3,h,w]"], ["y"], constants)  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_recipes_of_likely_sizes_are_compared_until_they_are_trusted() -> None:
    """Where decisions change, too, a size that was not planned finds one that may be used at once."""
    async with Runtime(options=OPTIONS) as rt:
        net = network(await rt.load(_scales()))
        with net.plans.scouting() as scout:
            scout.likely()
        pictures = sample_layouts(net.program, [size for size in CLOSER_SIZES if len(size) == 3])
        for layouts in pictures:
            finished(scout.first(None, layouts, {}, (), HostBudget(1 << 30), runs=False, learns=False))

        assert scout.by_recipe == len(pictures)


def _rows_of_what_meets_again() -> object:
    """Loading does not know the shape of a sum, because only multiples of 2 fit; rows are counted from it."""
    nodes = [
        node("a = MaxPool(x)", kernel_shape=[2, 2], strides=[2, 2]), node("r = Resize(a, none, twice)", mode="nearest"),
        node("m = Add(r, x)"), node("s = Shape(m)"), node("s32 = Cast(s)", to=6), node("h = Slice(s32, two, three)"),
        node("w = Slice(s32, three, four)"), node("hw = Mul(h, w)"), node("rows = Cast(hw)", to=7),
        node("to = Concat(minus, rows)", axis=0), node("flat = Reshape(m, to)"), node("count = Squeeze(rows)"),
        node("end = Cast(count)", to=1), node("numbers = Range(zero, end, one)"), node("y = Mul(flat, numbers)"),
    ]  # fmt: skip
    constants = {
        "none": np.empty(0, np.float32), "twice": np.array([1, 1, 2, 2], np.float32), "minus": i64(-1),
        "two": i64(2), "three": i64(3), "four": i64(4), "zero": np.float32(0), "one": np.float32(1),
    }  # fmt: skip
    return model(nodes, ["x f32[n,3,h,w]"], ["y"], constants)  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_shape_arithmetic_that_only_requests_can_do_costs_neither_a_read_back_nor_recipes() -> None:
    """It runs on the host while a request is planned; a recipe has it as formulas, floats that count included."""
    async with Runtime(options=OPTIONS) as rt:
        loaded = await rt.load(_rows_of_what_meets_again())
        net = network(loaded)
        plans = net.plans
        for size in range(20, 60, 2):
            x = np.random.default_rng(size).standard_normal((1, 3, size, 2 * size - 8)).astype(np.float32)
            out = await loaded.infer({"x": x})
            pooled = x.reshape(3, size // 2, 2, size - 4, 2).max(axis=(2, 4))
            total = x + pooled.repeat(2, axis=1).repeat(2, axis=2)
            rows = total.reshape(3, -1)
            np.testing.assert_array_equal(rows * np.arange(rows.shape[1], dtype=np.float32), out["y"])

    assert len(net.program.chunks) == 1
    assert plans.by_recipe > 12


@pytest.mark.asyncio
async def test_a_recipe_is_used_for_what_it_was_compared_at_and_for_other_sizes_of_what_has_varied() -> None:
    """At once for the sizes that it was made from; then for its rows in batches of any size, until rows have varied."""
    async with Runtime(options=OPTIONS) as rt:
        loaded = await rt.load(model([node("a = MatMul(x, w)"), node("y = Softmax(a)")], ["x f32[b,n,6]"], ["y"], EYE))
        plans = network(loaded).plans
        by_recipe = []
        for batch, rows in [(20, 9), (20, 9), (30, 9), (40, 9), (50, 9), (50, 10), (60, 11)]:
            layouts = [Layout(FLOAT32, (batch, rows, 6))]
            finished(plans.first(None, layouts, {}, (), HostBudget(1 << 30), runs=False))
            by_recipe.append(plans.by_recipe)

    assert by_recipe == [0, 1, 1, 1, 2, 2, 3]


@pytest.mark.asyncio
async def test_launches_that_are_put_together_in_c_are_those_that_python_puts_together(steps: ModuleType) -> None:
    """All of them and some of them, kernels that a number chooses among them; a size that does not fit is an error."""
    async with Runtime(options=attrs.evolve(OPTIONS, without=off(winograd=False))) as rt:
        loaded = await rt.load(_pictures())
        net = network(loaded)
        layouts = [Layout(FLOAT32, (1, 3, 320, 320))]
        in_c, in_python = [finished(recipes.make_recipe(net.program, layouts, {}, (), net.tools)) for _ in range(2)]
        assert in_c is not None
        assert in_python is not None
        if in_c.table is None:
            pytest.skip("nothing was built in C, or the device has other records")
        in_c.table, in_python.table = in_c.table._replace(fill=steps.fill), None
        compared = 0
        for sizes in [(1, high, wide) for high in range(256, 680, 64) for wide in range(256, 680, 32)]:
            made, expected = in_c.plan(sizes, tuple), in_python.plan(sizes, tuple)
            assert (made is None) == (expected is None)
            if made is not None and expected is not None:
                assert same(expected, made)
                compared += 1
        too_large = in_c.plan((1, 320, 1 << 40), tuple), in_python.plan((1, 320, 1 << 40), tuple)

    assert compared > 20
    assert too_large == (None, None)


def test_a_table_of_numbers_that_are_not_there_is_refused(steps: ModuleType) -> None:
    """Rather than memory of others."""
    one = StepRecipe(7, "kernel", (0,), None, (), -1, (0,), (0,), (1,), (0,), ())
    other = StepRecipe(8, "kernel {}".format, (0,), (1,), (0,), 1, (-1,), (0,), (), (0,), ())
    table = step_table((one, other), 2, pack_record)
    if table is None:
        pytest.skip("nothing was built in C")
    table, made, base = table._replace(fill=steps.fill), [None, None], (256, 0)

    assert table.put(made, 0, 2, (3, 4), base, None) == 0
    first, second = made
    assert table.put(made, 0, 2, (3, 4), base, ((3, 4), base)) == 2
    assert table.put(made, 0, 2, (3, 4), (512, 0), ((3, 4), base)) == 1
    assert made[1] is second
    assert table.put(made, 0, 2, (3, 5), base, ((3, 4), base)) == 0
    assert made[1].kernel == "kernel 5"
    for begin, end, numbers, before in (
        (0, 3, (3, 4), None), (-1, 2, (3, 4), None), (0, 2, (3,), None), (1, 2, (), None), (0, 1, (3, 4), ((3,), base))
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"there are no|not there|another recipe"):
            table.put(made, begin, end, numbers, base, before)
    with pytest.raises(OverflowError, match="32 bits"):
        table.put(made, 0, 2, (3, 1 << 31), base, None)

    assert first == PlanStep(7, "kernel", (0,), pack_record((259,), (4,)), (3,), None, (), None, (4,), ())
    assert second == PlanStep(8, "kernel 4", (0,), pack_record((3,), ()), (3,), (1,), (), None, (), (0,))
