"""Plans that are one launch: the same results bit for bit, and step by step again where groups do not meet.

Where there is PTX, groups meet behind each step; without it each takes what is left of a step.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any

import attrs
import numpy as np
import pytest
import pytest_asyncio

from asyncrt import DeviceStalledError, Runtime, RuntimeOptions, load_sync
from asyncrt.devices.base import Allocation
from asyncrt.kernels.impl import KernelSource
from asyncrt.kernels.persistent.table import LAYOUT, ROW_NBYTES
from asyncrt.kernels.persistent.walker import Function, Walker, function_of
from asyncrt.layout import Array
from asyncrt.mechanisms import Mechanism
from asyncrt.runtime.execute import one_launch, prepared_launches
from asyncrt.runtime.execute.one_launch import OneLaunch
from asyncrt.runtime.execute.prepared_launches import Trial, better_folded
from asyncrt.runtime.execute.specialise import OFTEN
from asyncrt.runtime.loop.marks import StreamMarks
from asyncrt.runtime.model import Model
from asyncrt.runtime.plan.chunk_plan import PlanStep
from asyncrt.runtime.request import session
from asyncrt.runtime.request.callers_thread import usual
from benchmarks import networks

from ...builders import model, node
from ..request.test_control_flow import body

WEIGHTS = np.random.default_rng(0).standard_normal((16, 24)).astype(np.float32)
SOURCE = model(
    [
        node("t = Transpose(x)", perm=[0, 2, 1]), node("m = MatMul(t, w)"), node("s = Softmax(m)"), node("y = Neg(s)"),
        node("z = ReduceMean(s)", axes=[1]),
    ],
    ["x f32[a,16,b]"], ["y", "z"], {"w": WEIGHTS}, opset=13,
)  # fmt: skip


class Folding:
    """The device of tests, as one that folds launches: without PTX into kernels of as many groups as it is told."""

    def __init__(self, device: Any, units: int = 1) -> None:
        self._device = device
        self.lanes, self.ptx, self.space = (device.lanes if device.ptx else 1), device.ptx, 24 << 10
        units = device.info.compute_units if device.ptx else units
        self.info = attrs.evolve(device.info, compute_units=units)
        self.addresses, self.holding, self.find_by = device.addresses, device.holding, device.find_by
        self.gave_up = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def read_now(self, allocation: Allocation, nbytes: int) -> bytes:
        found = bytearray(self._device.read_now(allocation, nbytes))
        if self.gave_up:
            found[4] = 1
        return bytes(found)


@pytest_asyncio.fixture
async def rt() -> AsyncIterator[Runtime]:
    """A runtime whose plans are folded from the second request on."""
    options = RuntimeOptions(warm=False, without={"fuse", "direct"})
    async with Runtime(streams=1, options=options) as runtime:
        own = runtime.session
        assert own.presets is not None
        own.presets.one = OneLaunch(Folding(own.device), own.kernels, 1)
        own.presets.one.often, own.presets.one.gains_beside = 1, True
        yield runtime
        await own.presets.one.building.close()


def one_of(rt: Runtime) -> OneLaunch:
    presets = rt.session.presets
    assert presets is not None
    assert presets.one is not None
    return presets.one


def apart(runtime: Runtime, *, ptx: bool) -> OneLaunch:
    """Return what folds a runtime's launches as on a GPU or on a processor, which its requests know nothing of."""
    own = runtime.session
    folding = Folding(own.device)
    folding.ptx = ptx
    return OneLaunch(folding, own.kernels, 1)


def asked_for(one: OneLaunch, monkeypatch: pytest.MonkeyPatch) -> list[frozenset[KernelSource]]:
    """Return what comes to hold the kernels that walkers are wanted of; none is built."""
    wanted: list[frozenset[KernelSource]] = []

    async def build(sources: frozenset[KernelSource]) -> None:
        wanted.append(sources)

    monkeypatch.setattr(one, "_build", build)
    return wanted


def given(size: int, seed: int) -> dict[str, Array]:
    return {"x": np.random.default_rng(seed).standard_normal((2, 16, size)).astype(np.float32)}


def launches(rt: Runtime) -> list[int]:
    """Return how many launches each set of prepared ones is, in the order in which they were used last."""
    presets = rt.session.presets
    assert presets is not None
    plans = sorted(presets._plans.values(), key=lambda plan: plan.last)  # noqa: SLF001
    return [1 if s.one is not None else plan.size for plan in plans for s in plan.sets.values()]


async def two(loaded: Model, size: int, seed: int) -> list[dict[str, Array]]:
    """Ask twice at once: a plan is folded where requests are beside each other."""
    return list(await asyncio.gather(*[loaded.infer(given(size, seed)) for _ in range(2)]))


async def folded(rt: Runtime, loaded: Model, size: int, sets: int = 1) -> None:
    """Ask until the plan of a size is folded, and so are as many sets of launches as that makes."""
    for _ in range(20):
        await two(loaded, size, 0)
        if launches(rt).count(1) >= sets:
            return
        building = one_of(rt).building.task
        if building is not None:
            await building
    raise AssertionError(f"the plan of size {size} is not folded: {launches(rt)}")


def same(a: dict[str, Array], b: dict[str, Array]) -> bool:
    return all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.asyncio
@pytest.mark.parametrize("ptx", [True, False])
async def test_a_gpu_has_the_kernel_of_likely_sizes_when_a_model_is_ready(
    ptx: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has all that their steps need, so that no size that comes waits for another; a processor's cores build
    nothing ahead."""
    async with Runtime(streams=1, options=RuntimeOptions(without={"fuse"})) as runtime:
        own = runtime.session
        assert own.presets is not None
        one = own.presets.one = apart(runtime, ptx=ptx)
        wanted = asked_for(one, monkeypatch)
        loaded = await runtime.load(SOURCE)
        await loaded.ready()
        ahead = list(wanted)
        for size in (1, 16, 40):
            await two(loaded, size, 0)

    assert len(ahead) == ptx
    if ptx:
        assert all(sources <= ahead[0] for sources in wanted)


@pytest.mark.asyncio
async def test_a_plan_that_comes_again_is_one_launch_and_gives_the_same_bits(rt: Runtime) -> None:
    """Its kernel serves the plans of other sizes, too."""
    loaded = await rt.load(SOURCE)
    expected = {size: await loaded.infer(given(size, size)) for size in (3, 40)}

    for sets, size in enumerate((3, 40), 1):
        await folded(rt, loaded, size, sets)

        for _ in range(3):
            assert all(same(result, expected[size]) for result in await two(loaded, size, size))
    assert launches(rt).count(1) >= 2
    assert len(one_of(rt).tables) == 2


@pytest.mark.asyncio
async def test_what_a_gpu_builds_ahead_has_the_functions_of_plans_that_are_not_one_launch(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plans that need nothing else are not among those for which it is built, and would miss them."""
    async with Runtime(streams=1, options=RuntimeOptions(warm=False, without={"fuse"})) as runtime:
        own = runtime.session
        one = apart(runtime, ptx=True)
        wanted = asked_for(one, monkeypatch)
        loaded = await runtime.load(SOURCE)
        await loaded.infer(given(5, 1))
        assert own.presets is not None
        plan = next(iter(own.presets._plans)).plan  # noqa: SLF001
        first, *rest = (step.kernel for step in plan.steps)
        monkeypatch.setattr(one_launch, "function_of", lambda source: None if source is first else function_of(source))
        await one.build_ahead([plan])

    assert wanted == [frozenset(rest) - {first}]


@pytest.mark.asyncio
async def test_a_processor_builds_the_kernel_of_the_likeliest_size_for_other_processes(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    """They find it in the folder; for requests of its own a plan has to come often first."""
    async with Runtime(streams=1, options=RuntimeOptions(warm=False, without={"fuse"})) as runtime:
        own = runtime.session
        if not own.device.info.is_cpu:
            pytest.skip("a GPU's kernels have barriers, which a processor's do not")
        one = apart(runtime, ptx=False)
        wanted = asked_for(one, monkeypatch)
        loaded = await runtime.load(SOURCE)
        for size in (5, 40):
            await loaded.infer(given(size, 1))
        assert own.presets is not None
        plans = [bound.plan for bound in own.presets._plans]  # noqa: SLF001
        await one.build_ahead(plans)
        assert wanted == []
        await one.build_for_others(plans)

    assert wanted == [frozenset(step.kernel for step in plans[0].steps)]


@pytest.mark.asyncio
@pytest.mark.parametrize("ptx", [True, False])
async def test_a_processor_has_a_kernel_of_more_functions_built_for_one_plan(
    monkeypatch: pytest.MonkeyPatch, ptx: bool
) -> None:
    """On a GPU a kernel serves several plans, and is built when a model is loaded: there they have to be few."""
    async with Runtime(streams=1, options=RuntimeOptions(warm=False, without={"fuse"})) as runtime:
        own = runtime.session
        if not own.device.info.is_cpu:
            pytest.skip("its grids are others")
        monkeypatch.setattr(one_launch, "_MOST_KERNELS", 1)
        one = apart(runtime, ptx=ptx)
        wanted = asked_for(one, monkeypatch)
        loaded = await runtime.load(SOURCE)
        await loaded.infer(given(3, 1))
        assert own.presets is not None
        (plan,) = own.presets._plans  # noqa: SLF001

        assert one.fold(plan, alone=True) is None
        for _ in range(3):
            await asyncio.sleep(0)

    assert [len(sources) > 1 for sources in wanted] == ([] if ptx else [True])


@pytest.mark.asyncio
async def test_what_is_too_long_for_one_launch_has_no_kernel_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU carries out large batches step by step: their kernels are not even looked at."""
    async with Runtime(streams=1, options=RuntimeOptions(warm=False, without={"fuse"})) as runtime:
        own = runtime.session
        if not own.device.info.is_cpu:
            pytest.skip("its grids are others")
        one = apart(runtime, ptx=True)
        monkeypatch.setattr(one_launch, "MOST_GROUP", 1)
        wanted = asked_for(one, monkeypatch)
        loaded = await runtime.load(SOURCE)
        for size in (40_000, 3):
            await loaded.infer(given(size, 1))
        assert own.presets is not None
        large, small = own.presets._plans  # noqa: SLF001

        counts = []
        for plan in (large, small):
            assert one.fold(plan, alone=True) is None
            for _ in range(3):
                await asyncio.sleep(0)
            counts.append(len(wanted))

    assert counts == [0, 1]


@pytest.mark.asyncio
async def test_a_new_size_is_one_launch_on_its_callers_thread_at_once(
    users_path: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the kernel is there and a recipe gives the plan: nothing of it goes from thread to thread, and it gives the
    bits of launches. What may take too long goes the general way."""
    async with Runtime(streams=1, options=RuntimeOptions(without={"fuse", "one_launch"})) as plain:
        other = await plain.load(SOURCE)
        expected = {size: await other.infer(given(size, size)) for size in (40, 44, 48, 50)}
    async with Runtime(streams=1, options=RuntimeOptions(without={"fuse"})) as runtime:
        own = runtime.session
        assert own.presets is not None
        one = own.presets.one = OneLaunch(Folding(own.device), own.kernels, 1)
        one.often, one.gains_beside = 0, True
        monkeypatch.setattr(one, "gains", lambda steps, seconds: True)
        loaded = await runtime.load(SOURCE)
        await loaded.ready()
        general, infer = list[Any](), loaded.network.infer

        async def noted(*inputs: Any, **options: Any) -> Any:
            general.append(inputs)
            return await infer(*inputs, **options)

        monkeypatch.setattr(loaded.network, "infer", noted)
        monkeypatch.setattr(usual, "BRIEF_S", 0.5)  # however slow a machine is
        for _ in range(20):
            assert same(await loaded.infer(given(50, 50)), expected[50])
            if one.building.task is not None:
                await one.building.task
        before, plans = len(general), runtime.statistics().plans
        for size in (44, 40):
            assert same(await loaded.infer(given(size, size)), expected[size])
        assert len(general) == before
        assert runtime.statistics().plans == plans + 2
        assert launches(runtime)[-2:] == [1, 1]
        monkeypatch.setattr(usual, "BRIEF_S", 0.0)
        assert same(await loaded.infer(given(48, 48)), expected[48])

    assert len(general) == before + 1


@pytest.mark.asyncio
@pytest.mark.parametrize("units", [2, 3, 64])
async def test_groups_that_share_steps_do_each_part_once(
    rt: Runtime, units: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many groups there are, and however late one begins; and again with what the launch before left."""
    own = rt.session
    assert own.presets is not None
    if one_of(rt)._folds.ptx:  # noqa: SLF001
        pytest.skip("there groups meet")
    own.presets.one = OneLaunch(Folding(own.device, units), own.kernels, 1)
    own.presets.one.often = 1
    monkeypatch.setattr(prepared_launches, "better_folded", lambda one, steps: True)
    monkeypatch.setattr(one_launch, "_LONG_STEP_S", 1.0)
    wanted = list[int]()
    fold = own.presets.one.fold

    def noted(bound: Any, *, alone: bool, asks: bool) -> Any:
        launch = fold(bound, alone=alone, asks=asks)
        wanted.append(0 if launch is None else launch[3][0])
        return launch

    monkeypatch.setattr(own.presets.one, "fold", noted)
    loaded = await rt.load(SOURCE)
    expected = await loaded.infer(given(40, 2))
    for _ in range(20):
        await loaded.infer(given(40, 3))
        building = own.presets.one.building.task
        if building is not None:
            await building

    results = [await loaded.infer(given(40, 2)) for _ in range(50)]

    assert 1 < max(wanted) <= units
    assert launches(rt).count(1) >= 1
    assert all(same(result, expected) for result in results)


@pytest.mark.asyncio
async def test_iterations_of_a_loop_are_one_launch_on_a_processor(
    users_path: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a loop carries stays on the device from one to the next; all of them have one plan, which comes often."""
    turned = node("r = Transpose(s)", perm=[1, 0])
    nodes = [node("m = MatMul(v, w)"), node("s = Softmax(m)"), turned, node("t = Tanh(r)")]
    monkeypatch.setattr(one_launch, "_LONG_STEP_S", 1.0)
    loop = node("y, rows = Loop(n,, x)", body=body(nodes, ["v f32[16,16]"], "c t s"))
    square = np.random.default_rng(1).standard_normal((16, 16)).astype(np.float32)
    source = model([loop], ["x f32[16,16]", "n i64[]"], ["y", "rows"], {"w": square})
    inputs = {"x": square.T.copy(), "n": np.array(40, np.int64)}
    results = []
    for without in ({"one_launch"}, set[Mechanism]()):
        async with Runtime(options=RuntimeOptions(warm=False, without={*without, "fuse"})) as runtime:
            one = runtime.session.presets.one if runtime.session.presets is not None else None
            if one is not None and not one.shares:
                pytest.skip("a GPU begins them as fast as their groups would meet")
            loaded = await runtime.load(source)
            for _ in range(60):
                results.append(await loaded.infer(inputs))
                if one is not None and one.building.task is not None:
                    await one.building.task
            folded = 1 in launches(runtime)

    assert folded
    assert all(same(result, results[0]) for result in results)


@pytest.mark.asyncio
@pytest.mark.parametrize("without", [set[Mechanism](), {"direct"}])
async def test_lengths_of_a_sequence_are_one_launch_on_a_processor(
    without: set[Mechanism], users_path: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its table is that of one length at a time, to and fro where sequences take turns; they give the bits of launches.

    Beside each other, and until the device has passed all that it was given, they are launched; and so is a plan whose
    constants lie elsewhere.
    """
    monkeypatch.setattr(one_launch, "_LONG_STEP_S", 1.0)
    monkeypatch.setattr(prepared_launches, "better_folded", lambda one, steps: True)
    turned: list[bool] = []
    turn = OneLaunch.turn

    def noted(*given: Any) -> bool:
        dispatcher = runtime.session.dispatcher
        assert dispatcher.in_flight <= 1
        assert not dispatcher.marks.pending
        turned.append(turn(*given))
        return turned[-1]

    monkeypatch.setattr(OneLaunch, "turn", noted)
    network, tokens = networks.decoder(2, 32, 2, 60), [networks.next_token(length) for length in range(60)]

    async def decode(loaded: Model) -> list[bytes]:
        async with loaded.sequence() as sequence:
            return [(await sequence.infer(token))["logits"].tobytes() for token in tokens]

    async with Runtime(streams=1, options=RuntimeOptions(warm=False, without={*without, "one_launch"})) as runtime:
        expected = await decode(await runtime.load(network))
    async with Runtime(streams=1, options=RuntimeOptions(warm=False, without=without)) as runtime:
        one = one_of(runtime)
        if not one.shares:
            pytest.skip("a GPU begins its launches as fast as their groups would meet")
        loaded = await runtime.load(network)
        assert await decode(loaded) == expected
        assert one.building.task is not None
        await one.building.task
        assert await decode(loaded) == expected
        begun = len(turned)
        async with loaded.sequence() as ahead, loaded.sequence() as behind:
            for token in tokens[:20]:
                await ahead.infer(token)
            for place in range(40):
                for sequence, at in ((ahead, place + 20), (behind, place)):
                    assert (await sequence.infer(tokens[at]))["logits"].tobytes() == expected[at]
        alternating = len(turned) - begun
        beside = await asyncio.gather(decode(loaded), decode(loaded))
        with monkeypatch.context() as patched:
            patched.setattr(StreamMarks, "__len__", lambda marks: 1)  # as behind a request that was cancelled
            before = len(turned)
            assert await decode(loaded) == expected
            assert len(turned) == before
        presets = runtime.session.presets
        assert presets is not None
        tables = [p.family.folded[1] for p in presets._plans.values() if p.family and p.family.folded]  # noqa: SLF001
        bound = next(iter(presets._plans))  # noqa: SLF001
        kernel, buffers, *rest = bound.steps[0]
        elsewhere: Any = (kernel, (object(),) * len(buffers), *rest)
        assert not turn(one, tables[0], attrs.evolve(bound, steps=(elsewhere, *bound.steps[1:])))

    assert begun > len(tokens) // 2
    assert alternating > 80  # of 100 steps; one whose memory grows has other launches
    assert all(turned)
    assert beside == [expected, expected]


@pytest.mark.asyncio
async def test_a_table_made_in_c_is_that_of_python(rows: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Byte for byte, for any work-groups, buffers, records and local memory; where Python makes none, C makes none."""
    assert rows.LAYOUT == LAYOUT
    monkeypatch.setattr(one_launch, "_native_rows", lambda: rows.rows)
    draw, made, refused = Random(0), 0, 0
    async with Runtime(streams=1, options=RuntimeOptions(warm=False)) as runtime:
        folding: Any = Folding(runtime.session.device)
        folding.ptx, folding.lanes, folding.space = True, 32, 8192
        folding.addresses, folding.holding = (lambda memory: [m.address for m in memory]), (lambda table: table)
        one = OneLaunch(folding, runtime.session.kernels, 1)
        sources = [KernelSource(f"k{i}", "", (), 0) for i in range(4)]
        monkeypatch.setattr(one_launch, "function_of", lambda source: Function("", 0))
        walks = Walker(sources[0], {s: i for i, s in enumerate(sources)}, (0, 16, 1024, 4096), 256, 8192, 8)
        one._walkers.put(frozenset(sources), (walks, "kernel"))  # noqa: SLF001
        for case in range(400):
            bound = any_plan(draw, sources, odd=case % 4 == 3)
            native, python = one._native_table(bound), one._table_and_rows(bound)  # noqa: SLF001

            assert (native is None) == (python is None)
            assert native is None or python is None or native == python[0]
            made, refused = made + (native is not None), refused + (native is None)
            if native is not None:
                assert len(bytes(native.memory)) == len(bound.steps) * ROW_NBYTES  # type: ignore[call-overload]

    assert made > 200
    assert refused > 20


def any_plan(draw: Random, sources: Sequence[KernelSource], *, odd: bool) -> Any:
    """Return a bound plan of some steps; one of an odd one may be none that a kernel walks."""
    steps: list[PlanStep] = []
    launched: list[Any] = []
    for _ in range(draw.randrange(3, 9)):
        others = draw.randrange(3)
        group = (draw.choice((32, 64, 256)), *[1] * others)
        grid = tuple([draw.randrange(1, 9) * size for size in group])
        given = draw.choice((None, group, group))
        drawn = [draw.randrange(9) for _ in range(draw.randrange(1, 6))]
        buffers = tuple([n if n < 3 else SimpleNamespace(address=n << 36) for n in drawn])
        record = draw.randbytes(8 * draw.randrange(1, 20))
        local = tuple([draw.randrange(900) for _ in range(draw.randrange(3))])
        if odd and not draw.randrange(4):
            grid, given = (grid[0] + 7, *grid[1:]), group
        if odd and not draw.randrange(4):
            local = (9000,)
        steps.append(PlanStep(0, draw.choice(sources), (), record, grid, given, local))
        launched.append(("kernel", buffers, record, grid, given, local))
    numbers = tuple(sorted({b for launch in launched for b in launch[1] if isinstance(b, int)}))
    return SimpleNamespace(plan=SimpleNamespace(steps=tuple(steps)), steps=tuple(launched), numbers=numbers)


@pytest.mark.asyncio
async def test_a_plan_of_long_steps_gains_nothing_and_is_launched(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its launches take little of its time, and the kernel would take a processor seconds to build."""
    if not one_of(rt).shares:
        pytest.skip("a GPU's launches take what they take")
    monkeypatch.setattr(one_launch, "_LONG_STEP_S", 0.0)
    loaded = await rt.load(SOURCE)

    for _ in range(prepared_launches.OFTEN + 3):
        await loaded.infer(given(7, 1))

    assert one_of(rt).building.task is None
    assert 1 not in launches(rt)


@pytest.mark.asyncio
async def test_requests_beside_each_other_are_told_apart(rt: Runtime) -> None:
    """Each launch has the memory of its own request."""
    loaded = await rt.load(SOURCE)
    expected = [await loaded.infer(given(5, seed)) for seed in range(8)]
    await folded(rt, loaded, 5)

    got = await asyncio.gather(*[loaded.infer(given(5, seed)) for seed in range(8)])

    assert [same(a, b) for a, b in zip(got, expected, strict=True)] == [True] * 8


@pytest.mark.asyncio
async def test_groups_that_wait_in_vain_fail_their_request_alone(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets a typed error; from then on the steps of every plan are launched one by one."""
    loaded = await rt.load(SOURCE)
    expected = await loaded.infer(given(7, 1))
    await folded(rt, loaded, 7)
    monkeypatch.setattr(session, "PATIENCE_S", 0.0)
    monkeypatch.setattr(one_launch, "PATIENCE_S", 0.0)
    folds: Any = one_of(rt)._folds  # noqa: SLF001
    folds.gave_up = True

    with pytest.raises(DeviceStalledError, match="waited"):
        await two(loaded, 7, 1)
    await loaded.infer(given(7, 1))

    for _ in range(prepared_launches.OFTEN + 2):
        assert all(same(result, expected) for result in await two(loaded, 7, 1))
    assert one_of(rt).stalled
    assert 1 not in launches(rt)


@pytest.mark.asyncio
async def test_what_is_not_a_function_is_launched_step_by_step(
    rt: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan with one such kernel is not folded, and gives what it gave."""
    found: list[str] = []

    def function_of(source: Any) -> None:
        found.append(source.name)

    monkeypatch.setattr(one_launch, "function_of", function_of)
    loaded = await rt.load(SOURCE)

    results = [await two(loaded, 6, 2) for _ in range(prepared_launches.OFTEN + 3)]

    assert found
    assert all(same(r, results[0][0]) for both in results for r in both)
    assert 1 not in launches(rt)


@pytest.mark.asyncio
async def test_one_work_item_does_the_work_of_a_group_whose_items_do_not_wait_for_each_other(rt: Runtime) -> None:
    """On a CPU, the tables of a Resize are made by work-groups of 64."""
    nodes = [node("a = Neg(x)"), node("r = Resize(a, , s)", mode="linear"), node("b = Exp(r)"), node("y = Neg(b)")]
    scales = {"s": np.array([1, 1, 1.5, 1.5], np.float32)}
    loaded = await rt.load(model(nodes, ["x f32[1,2,h,w]"], ["y"], scales, opset=13))
    x = {"x": np.random.default_rng(3).standard_normal((1, 2, 6, 8)).astype(np.float32)}

    expected = await loaded.infer(x)

    results = []
    for _ in range(20):
        results += await asyncio.gather(loaded.infer(x), loaded.infer(x))
        building = one_of(rt).building.task
        if building is not None:
            await building

    assert all(same(r, expected) for r in results)
    assert 1 in launches(rt)


@pytest.mark.asyncio
async def test_groups_whose_work_items_wait_for_each_other_are_launched_where_there_is_one_item(rt: Runtime) -> None:
    """They cannot be carried out one after the other; with PTX they meet."""
    loaded = await rt.load(SOURCE)
    await loaded.infer(given(5, 1))
    presets = rt.session.presets
    assert presets is not None
    step = next(iter(presets._plans)).plan.steps[0]  # noqa: SLF001
    assert isinstance(step.kernel, KernelSource)
    waits = attrs.evolve(step.kernel, text=step.kernel.text + "// barrier(CLK_LOCAL_MEM_FENCE);")

    one = one_of(rt)
    found = [one._shape(step._replace(kernel=waits, grid=(n, 1, 1), group=(n, 1, 1))) for n in (1, 64)]  # noqa: SLF001

    assert found[0] is not None or one._folds.ptx  # noqa: SLF001
    assert (found[1] is not None) == one._folds.ptx  # noqa: SLF001


@pytest.mark.asyncio
@pytest.mark.parametrize("brief", [False, True])
async def test_beside_others_only_a_brief_plan_is_one_launch_on_a_processor(
    rt: Runtime, brief: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of several groups would keep cores that wait, and one of one group would leave cores idle."""
    one = one_of(rt)
    if not one.shares:
        pytest.skip("a GPU's launches take what they take")
    one.gains_beside = False
    monkeypatch.setattr(one_launch, "_BRIEF_S", 1.0 if brief else 0.0)
    monkeypatch.setattr(one_launch, "_LONG_STEP_S", 1.0)
    fold, company = one.fold, list[bool]()

    def noted(bound: Any, *, alone: bool, asks: bool) -> Any:
        company.append(not alone)
        return fold(bound, alone=alone, asks=asks)

    monkeypatch.setattr(one, "fold", noted)
    monkeypatch.setattr(Trial, "took", lambda self, seconds: _tried(self, 1e-4))
    loaded = await rt.load(SOURCE)
    expected = await loaded.infer(given(5, 1))
    for _ in range(100):  # alone, until both ways were tried
        await loaded.infer(given(5, 1))
        if one.building.task is not None:
            await one.building.task

    for _ in range(10):
        assert all(same(result, expected) for result in await two(loaded, 5, 1))

    assert any(company) == brief


def _tried(trial: Trial, seconds: float) -> None:
    trial.times, trial.seconds = trial.times + 1, seconds


def test_a_plan_that_is_alone_goes_the_way_that_took_less() -> None:
    """Both are tried first; what was fast once is doubted in the end, in far fewer than one of a hundred uses."""
    one, steps = Trial(), Trial()
    ways = []
    for _ in range(12):
        way = better_folded(one, steps)
        ways.append(way)
        (one if way else steps).took(3e-4 if way else 2e-4)

    assert ways == [True, False] * 5 + [False, False]

    tried = 0
    for _ in range(10_000):
        tried += better_folded(one, steps)
        (one if better_folded(one, steps) else steps).took(2e-4)
    assert 10 < tried < 20  # one of so many uses shows whether it is still the slower way

    for _ in range(100):
        steps.took(9e-4)
    assert better_folded(one, steps)


def test_what_was_in_the_way_once_does_not_count() -> None:
    """A way whose first measurements were disturbed is not taken for slow, and one that was lucky once not for fast."""
    trial = Trial()
    for seconds in (40e-3, *[2e-4, 3e-4] * 20, 1e-4, *[2e-4, 3e-4] * 10):
        trial.took(seconds)

    assert 1.9e-4 < trial.seconds < 2.5e-4


def test_callers_without_an_event_loop_begin_what_runs_beside(users_path: None) -> None:
    """Requests on their caller's thread ask for the one launch, and for kernels of their sizes, as any do."""
    options = RuntimeOptions(warm=False, specialise=True, without={"fuse"})
    with load_sync(SOURCE, options=options) as sync:
        expected = sync.infer_sync(given(9, 9))
        for _ in range(2 * OFTEN):
            assert same(sync.infer_sync(given(9, 9)), expected)
        assert same(sync.submit(given(9, 9)).result(), expected)  # the loop has had its turn
        own = sync._background.runtime.session  # noqa: SLF001
        assert own.specialiser is not None
        assert own.specialiser.trying.task is not None
