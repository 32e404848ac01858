"""Indices that point at no element: the request that has one is told which, and nobody else notices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import onnx
import pytest
import pytest_asyncio
from onnx import helper

import asyncrt.debug
from asyncrt import IndexOutOfRange, Runtime, RuntimeOptions, ShapeError, Sharing
from asyncrt.layout import Array
from asyncrt.runtime.execute import prepared_launches as preset
from asyncrt.runtime.model import Model
from asyncrt.runtime.plan.chunk_plan import ChunkPlan
from asyncrt.runtime.plan.memory_plan import TOGETHER

from ..builders import i64, model, node
from ..paths import off
from ..second_opinion import onnxruntime_session

DEVICES = [pytest.param(d, id=d or "opencl") for d in ("simulated", "host", None)]
WATCHED = [pytest.param(True, id="checked"), pytest.param(False, id="unchecked")]


def options(**changes: Any) -> RuntimeOptions:
    return RuntimeOptions(**{"warm": False, **changes})


@pytest_asyncio.fixture(params=DEVICES)
async def rt(request: pytest.FixtureRequest) -> AsyncIterator[Runtime]:
    async with Runtime(request.param, streams=2, options=options()) as runtime:
        yield runtime
        assert runtime.statistics().memory.leases == 0
    assert runtime.statistics().memory.leases == 0


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def plans(loaded: Model) -> list[ChunkPlan]:
    return list(loaded.network.plans)


@attrs.frozen
class Case:
    """A node that takes indices, good inputs, and what the indices may be.

    Attributes:
        node: Its input ``i`` has the indices.
        dtypes: That those may have.
    """

    name: str
    node: onnx.NodeProto
    inputs: Mapping[str, Array]
    least: int
    most: int | None
    dtypes: tuple[type, ...] = (np.int64,)
    opset: int = 18

    def __str__(self) -> str:
        return self.name

    @property
    def input(self) -> int:
        return list(self.node.input).index("i")

    def outside(self, dtype: type) -> list[int]:
        """Return indices that are out of range."""
        limits = np.iinfo(dtype)
        above = [] if self.most is None else [self.most + 1, limits.max]
        return [self.least - 1, limits.min, *above]


X = floats(5, 3)
_BOTH = (np.int32, np.int64)
_POSITIONS = np.array([[0, 6, 2], [3, 1, 5]])
CASES = [
    Case("gather", node("y = Gather(x, i)"), {"x": X, "i": np.array([[0, -5], [4, 2]])}, -5, 4, _BOTH),
    Case("columns", node("y = Gather(x, i)", axis=1), {"x": X, "i": np.array([[0, -3], [1, 2]])}, -3, 2, _BOTH),
    Case("elements", node("y = GatherElements(x, i)"), {"x": X, "i": np.array([[4, 1, -5]])}, -5, 4, _BOTH),
    Case("tuples", node("y = GatherND(x, i)"), {"x": X, "i": np.array([[4], [-5]])}, -5, 4),
    Case("one", node("y = Gather(x, i)"), {"x": X[:1], "i": np.array([[0, -1]])}, -1, 0, _BOTH),
    Case("one each", node("y = GatherElements(x, i)"), {"x": X[:1], "i": np.array([[0, -1, 0]])}, -1, 0, _BOTH),
    Case("one tuple", node("y = GatherND(x, i)"), {"x": X[:1], "i": np.array([[0], [-1]])}, -1, 0),
    Case("nothing of each", node("y = Gather(x, i)"), {"x": X[:, :0], "i": np.array([[0, 1]])}, -5, 4, _BOTH),
    *(
        Case(
            f"scatter {mode}", node("y = ScatterElements(x, i, u)", reduction=mode),
            {"x": X, "i": np.array([[4, 1, -5], [0, 1, 2]]), "u": floats(2, 3, seed=1)}, -5, 4, _BOTH,
        )
        for mode in ("none", "add")
    ),
    *(
        Case(
            f"rows {mode}", node("y = ScatterND(x, i, u)", reduction=mode),
            {"x": X, "i": np.array([[4], [-5]]), "u": floats(2, 3, seed=1)}, -5, 4,
        )
        for mode in ("none", "add")
    ),
    Case(
        "cache", node("y = TensorScatter(x, u, i)", axis=1, mode="linear"),
        {"x": floats(2, 6, 3), "u": floats(2, 2, 3, seed=1), "i": np.array([0, 4])}, 0, 4, opset=24,
    ),
    Case(
        "ring", node("y = TensorScatter(x, u, i)", axis=1, mode="circular"),
        {"x": floats(2, 6, 3), "u": floats(2, 2, 3, seed=1), "i": np.array([5, 40])}, 0, None, opset=24,
    ),
    Case(
        "rotary", node("y = RotaryEmbedding(x, c, s, i)"),
        {"x": floats(2, 2, 3, 8), "c": floats(7, 4), "s": floats(7, 4, seed=1), "i": _POSITIONS}, 0, 6, opset=23,
    ),
    Case(
        "reverse", node("y = ReverseSequence(x, i)", time_axis=0, batch_axis=1),
        {"x": X, "i": np.array([5, 0, 1])}, 0, 5,
    ),
    Case(
        "recurrent", node("y = GRU(x, w, r, , i)", hidden_size=4),
        {"x": floats(3, 2, 5), "w": floats(1, 12, 5), "r": floats(1, 12, 4), "i": np.array([3, 0])}, 0, 3, (np.int32,),
    ),
    Case(
        "attention", node("y = Attention(q, x, x, , , , i)"),
        {"q": floats(2, 1, 3, 8), "x": floats(2, 1, 7, 8), "i": np.array([7, 1])}, 0, 7, opset=24,
    ),
    Case("products", node("y = CumProd(x, i)"), {"x": X, "i": np.array(1)}, -2, 1, _BOTH, opset=26),
    Case(
        "unpool", node("y = MaxUnpool(x, i)", kernel_shape=[2, 2], strides=[2, 2]),
        {"x": floats(1, 1, 2, 2), "i": np.array([[[[5, 7], [13, 15]]]])}, 0, 15, opset=11,
    ),
    Case(
        "regions", node("y = RoiAlign(x, r, i)"),
        {"x": floats(2, 1, 4, 4), "r": np.ones((2, 4), np.float32), "i": np.array([1, 0])}, 0, 1, opset=16,
    ),
    Case(
        "likelihood", node("y = NegativeLogLikelihoodLoss(x, i)"),
        {"x": X, "i": np.array([2, 0, 1, 2, 0])}, 0, 2, _BOTH, opset=13,
    ),
    Case(
        "entropy", node("y = SoftmaxCrossEntropyLoss(x, i)", ignore_index=-7),
        {"x": X, "i": np.array([2, 0, -7, 2, 0])}, 0, 2, _BOTH, opset=13,
    ),
]  # fmt: skip
_CODES = {np.dtype(np.int32): 6, np.dtype(np.int64): 7, np.dtype(np.float32): 1}


def built(case: Case, inputs: Mapping[str, Array], *, calculated: bool) -> onnx.ModelProto:
    """Return a model of the case's node, whose dims are a request's; alone, or with indices that are calculated."""
    own = onnx.NodeProto()
    own.CopyFrom(case.node)
    own.name = "the node"
    nodes = [own]
    if calculated:
        nodes.insert(0, helper.make_node("Sub", ["given", "zero"], ["i"]))
    names = {("given" if calculated and name == "i" else name): array for name, array in inputs.items()}
    infos = [
        helper.make_tensor_value_info(name, _CODES[a.dtype], [f"{name}{axis}" for axis in range(a.ndim)])
        for name, a in names.items()
    ]
    zero = [onnx.numpy_helper.from_array(np.zeros((), inputs["i"].dtype), "zero")] if calculated else []
    graph = helper.make_graph(nodes, case.name, infos, [onnx.ValueInfoProto(name=n) for n in own.output], zero)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", case.opset)], ir_version=10)


def with_index(inputs: Mapping[str, Array], position: int, index: int) -> dict[str, Array]:
    """Return inputs with another index at a position of theirs."""
    changed = inputs["i"].copy()
    changed.reshape(-1)[position] = index
    return {**inputs, "i": changed}


def given(inputs: Mapping[str, Array], *, calculated: bool) -> dict[str, Array]:
    return {("given" if calculated and name == "i" else name): array for name, array in inputs.items()}


# Every operator.


@pytest.mark.asyncio
@pytest.mark.parametrize("watched", WATCHED)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES, ids=str)
async def test_an_index_out_of_range_is_an_error_that_says_where(case: Case, device: str | None, watched: bool) -> None:
    """Whether it is given or calculated; what comes before and after it is exact."""
    async with Runtime(device, options=options(check_hazards=watched)) as rt:
        for dtype in case.dtypes:
            good = {**case.inputs, "i": case.inputs["i"].astype(dtype)}
            last = good["i"].size - 1
            for calculated in (False, True):
                loaded = await rt.load(built(case, good, calculated=calculated))
                expected = await loaded.infer(given(good, calculated=calculated))

                for index in case.outside(dtype):
                    with pytest.raises(IndexOutOfRange, match=rf"'the node': index {index} is out of range") as caught:
                        await loaded.infer(given(with_index(good, last, index), calculated=calculated))
                    error = caught.value
                    assert isinstance(error, ShapeError | IndexError)
                    assert (error.node, error.input, error.position) == ("the node", case.input, last)
                    assert (error.index, error.least, error.most) == (index, case.least, case.most)
                again = await loaded.infer(given(good, calculated=calculated))

                assert expected["y"].tobytes() == again["y"].tobytes()
        assert rt.statistics().memory.leases == 0


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_refused_is_what_onnx_runtime_refuses(case: Case) -> None:
    """A second opinion on every limit: the least and the greatest are taken, and nothing beyond."""
    if case.name == "products":
        pytest.skip("ONNX Runtime has no CumProd")
    for dtype in case.dtypes:
        good = {**case.inputs, "i": case.inputs["i"].astype(dtype)}
        session = onnxruntime_session(built(case, good, calculated=False))
        at_limits = [case.least, case.least if case.most is None else case.most]
        for index in at_limits:
            session.run(None, with_index(good, 0, index))

        # It writes the losses as GatherElements, which counts negative classes from the last.
        below = [] if case.node.op_type.endswith("Loss") else [case.least - 1]
        for index in (*below, *([] if case.most is None else [case.most + 1])):
            with pytest.raises(Exception, match="ONNXRuntimeError"):
                session.run(None, with_index(good, 0, index))


# What plans have for it.


def embedding(rows: int = 10, width: int = 4) -> onnx.ModelProto:
    """Rows of a table, doubled."""
    return model(
        [node("e = Gather(table, ids)"), node("y = Add(e, e)")], ["ids i64[batch,seq]"], ["y"],
        {"table": floats(rows, width)},
    )  # fmt: skip


@pytest.mark.asyncio
@pytest.mark.parametrize("device", DEVICES)
async def test_what_is_looked_at_costs_no_command_more(device: str | None) -> None:
    """The findings go up with the inputs and come down with a result; of indices that the host knows there are none."""
    ids = np.array([[1, 2, 3]])
    commands, blocks = [], []
    async with Runtime(device, options=options(check_hazards=True)) as rt:
        loaded = await rt.load(embedding())
        known = await rt.load(model([node("y = Gather(x, i)")], ["x f32[a,b]"], ["y"], {"i": i64(3, 0, 1)}))
        without = await rt.load(model([node("y = Tanh(x)")], ["x f32[a,b]"], ["y"]))
        for one, inputs in ((loaded, {"ids": ids}), (known, {"x": floats(4, 2)}), (without, {"x": floats(4, 2)})):
            await one.infer(inputs)  # which brings constants
            with asyncrt.debug.recording(rt) as log:
                await one.infer(inputs)
            labels = [str(getattr(entry, "label", "")) for entry in log]
            commands.append([sum(what in label for label in labels) for what in ("a write", "a read", "a fill")])
            blocks += [plan.block is None for plan in plans(one)]

    assert commands == [[1, 1, 0]] * 3
    assert blocks == [False, True, True]


@pytest.mark.asyncio
async def test_results_of_any_size_come_beside_what_was_found(rt: Runtime) -> None:
    """Those that travel with it, larger ones, several, and one that is there twice: each in memory of its own."""
    wide = TOGETHER // 4 // 8
    nodes = [node("small = Gather(table, ids)"), node("large = Gather(others, ids)"), node("same = Identity(small)")]
    table, others = floats(10, 3), floats(10, wide, seed=1)
    constants = {"table": table, "others": others}
    loaded = await rt.load(model(nodes, ["ids i64[batch,seq]"], ["small", "large", "same"], constants))
    alone = await rt.load(model(nodes[1:2], ["ids i64[batch,seq]"], ["large"], {"others": others}))

    for length in (1, 8, 9, 700):  # inputs that travel together, and one that is too large for that
        ids = np.random.default_rng(length).integers(-10, 10, (1, length))
        got = await loaded.infer({"ids": ids})
        large = await alone.infer({"ids": ids})
        got["same"] += 1

        assert table[ids].tobytes() == got["small"].tobytes()
        assert others[ids].tobytes() == got["large"].tobytes() == large["large"].tobytes()
        bad = ids.copy()
        bad[0, -1] = 10
        for one in (loaded, alone):
            with pytest.raises(IndexOutOfRange, match="index 10"):
                await one.infer({"ids": bad})


@pytest.mark.asyncio
async def test_a_constant_index_out_of_range_is_found_before_anything_is_launched(rt: Runtime) -> None:
    """It names the node; a size that fits it is served."""
    source = model([node("t = Tanh(x)"), node("y = Gather(t, i)")], ["x f32[a,b]"], ["y"], {"i": i64(0, 5, 1)})
    loaded = await rt.load(source)
    launches = rt.statistics().launches

    with pytest.raises(IndexOutOfRange, match=r"'Gather_1': index 5 is out of range: it must be from -4 to 3"):
        await loaded.infer({"x": X[:4]})
    assert launches == rt.statistics().launches
    got = await loaded.infer({"x": floats(6, 2)})

    np.testing.assert_allclose(np.tanh(floats(6, 2))[[0, 5, 1]], got["y"], rtol=1e-5)


@pytest.mark.asyncio
async def test_of_several_nodes_the_first_is_named(rt: Runtime) -> None:
    """What the second was given comes from the first, which went on with an index in range."""
    nodes = [node("j = Gather(numbers, i)"), node("k = Add(j, far)"), node("y = Gather(table, k)")]
    constants = {"numbers": i64(0, 1, 2), "far": i64(3), "table": X}
    loaded = await rt.load(model(nodes, ["i i64[a,b]"], ["y"], constants))

    with pytest.raises(IndexOutOfRange, match="'Gather_0': index 7"):
        await loaded.infer({"i": np.array([[0, 7]])})
    with pytest.raises(IndexOutOfRange, match="'Gather_2': index 5"):
        await loaded.infer({"i": np.array([[0, 2]])})


# Whichever way a request takes.


async def refused(loaded: Model, inputs: Mapping[str, Array], node: str, index: int) -> None:
    with pytest.raises(IndexOutOfRange, match=rf"'{node}': index {index} "):
        await loaded.infer(inputs)


@pytest.mark.asyncio
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("native", [True, False], ids=["native", "python"])
async def test_replayed_preset_and_made_by_recipe(
    device: str | None, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A good request and a bad one in turns, at sizes seen often and at sizes never seen."""
    monkeypatch.setattr(preset, "OFTEN", 1)
    table = floats(10, 4)
    async with Runtime(device, options=options(check_hazards=False, without=off(native_submit=native))) as rt:
        loaded = await rt.load(embedding())
        for length in (3, 4, 3, 5, 6, 7, 3, 3, 3, 3, 8, 9, 11, 16, 17, 3):
            ids = np.random.default_rng(length).integers(-10, 10, (1, length))
            bad = ids.copy()
            bad[0, length // 2] = -11
            for _ in range(2):
                np.testing.assert_array_equal(2 * table[ids], (await loaded.infer({"ids": ids}))["y"])
                await refused(loaded, {"ids": bad}, "Gather_0", -11)

        if device is None:
            assert loaded.network.plans.by_recipe > 0
        if device != "host":
            assert rt.statistics().presets.replays > 0
        assert rt.statistics().replays > 0


@pytest.mark.asyncio
@pytest.mark.parametrize("watched", WATCHED)
@pytest.mark.parametrize("device", DEVICES)
async def test_branches_side_by_side(device: str | None, watched: bool) -> None:
    """Each launch has a finding of its own, so that those which look at indices do not wait for each other."""
    nodes = [node("a = Gather(t, i)"), node("b = Tanh(a)"), node("c = Gather(u, j)"), node("d = Tanh(c)")]
    source = model([*nodes, node("y = Add(b, d)")], ["i i64[n,m]", "j i64[n,m]"], ["y"], {"t": X, "u": floats(6, 3)})
    good, bad = np.array([[0, -5]]), np.array([[0, 6]])
    async with Runtime(device, streams=3, options=options(branches=True, check_hazards=watched)) as rt:
        loaded = await rt.load(source)
        for _ in range(12):
            expected = np.tanh(X[good]) + np.tanh(floats(6, 3)[good])
            np.testing.assert_allclose(expected, (await loaded.infer({"i": good, "j": good}))["y"], rtol=1e-5)
            await refused(loaded, {"i": bad, "j": good}, "Gather_0", 6)
            await refused(loaded, {"i": good, "j": bad}, "Gather_2", 6)
            await refused(loaded, {"i": bad, "j": bad}, "Gather_0", 6)

        assert all(plan.lanes is not None and plan.lanes.width > 1 for plan in plans(loaded))


@pytest.mark.asyncio
async def test_a_value_that_decides_is_not_trusted(rt: Runtime) -> None:
    """A size taken by an index out of range shapes nothing: the chunk that it is for is not launched."""
    nodes = [node("size = Gather(sizes, i)"), node("row = Reshape(size, flat)"), node("y = Expand(x, row)")]
    constants = {"sizes": i64(3, 4, 5), "flat": i64(1)}
    loaded = await rt.load(model(nodes, ["i i64[a,b]", "x f32[1]"], ["y"], constants))
    x = floats(1)

    for _ in range(3):
        got = await loaded.infer({"i": np.array([[1]]), "x": x})
        chunks = len(plans(loaded))
        await refused(loaded, {"i": np.array([[3]]), "x": x}, "Gather_0", 3)

        assert got["y"].shape == (4,)
        assert len(plans(loaded)) == chunks == len(loaded.network.program.chunks) == 2


def _graph(nodes: Sequence[onnx.NodeProto], inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[str]) -> Any:
    return helper.make_graph(list(nodes), "body", list(inputs), [onnx.ValueInfoProto(name=o) for o in outputs])


@pytest.mark.asyncio
@pytest.mark.parametrize("watched", WATCHED)
@pytest.mark.parametrize("device", DEVICES)
async def test_inside_if_loop_and_scan(device: str | None, watched: bool) -> None:
    """The node inside is named, and what comes after is served; the shape of what a Loop carries is not known."""
    info = helper.make_tensor_value_info
    taken = _graph([node("z = Gather(x, i)")], [], ["z"])
    other = _graph([node("z2 = Identity(x)")], [], ["z2"])
    either = node("y = If(c)", then_branch=taken, else_branch=other)
    trip = [info("t", 7, []), info("go", 9, []), info("v", 1, None)]
    body = _graph([node("g = Identity(go)"), node("w = Gather(x, i)"), node("v2 = Add(v, w)")], trip, ["g", "v2"])
    loop = node("y = Loop(n, , x)", body=body)
    state = [info("s", 1, None), info("e", 7, None)]
    each = _graph([node("s2 = Identity(s)"), node("o = Gather(x, e)")], state, ["s2", "o"])
    scan = node("last, y = Scan(x, i)", body=each, num_scan_inputs=1)
    models: list[tuple[onnx.ModelProto, dict[str, Array], str]] = [
        (model([either], ["x f32[a,b]", "i i64[c,d]", "c bool[]"], ["y"]), {"c": np.array(True)}, "then/Gather_0"),
        (model([loop], ["x f32[a,b]", "i i64[c]", "n i64[]"], ["y"]), {"n": np.array(2)}, "body/Gather_1"),
        (model([scan], ["x f32[a,b]", "i i64[c,d]"], ["y"]), {}, "body/Gather_1"),
    ]
    async with Runtime(device, options=options(check_hazards=watched)) as rt:
        for source, more, inside in models:
            loaded = await rt.load(source)
            good = np.arange(5) if "n" in more else np.array([[0, -5], [1, 2]])
            bad = good.copy()
            bad.reshape(-1)[-1] = 5
            expected = await loaded.infer({"x": X, "i": good, **more})

            with pytest.raises(IndexOutOfRange, match=rf"{inside}': index 5 "):
                await loaded.infer({"x": X, "i": bad, **more})
            again = await loaded.infer({"x": X, "i": good, **more})

            assert expected["y"].tobytes() == again["y"].tobytes()


# Its neighbours.


@pytest.mark.asyncio
async def test_requests_beside_it_are_exact(rt: Runtime) -> None:
    """Half of them have a bad index, some are cancelled; each gets what is its own, and nothing is left."""
    loaded = await rt.load(embedding())
    table = floats(10, 4)

    async def one(number: int) -> None:
        ids = np.random.default_rng(number).integers(-10, 10, (1, 3 + number % 5))
        if number % 2:
            ids[0, number % 3] = 10 + number
            await refused(loaded, {"ids": ids}, "Gather_0", 10 + number)
        else:
            np.testing.assert_array_equal(2 * table[ids], (await loaded.infer({"ids": ids}))["y"])

    tasks = [asyncio.create_task(one(number)) for number in range(40)]
    for turn, task in enumerate(tasks[::5]):
        for _ in range(turn % 4):
            await asyncio.sleep(0)
        task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)

    assert [o for o in outcomes if o is not None and not isinstance(o, asyncio.CancelledError)] == []
    assert sum(o is None for o in outcomes) >= 32


@pytest.mark.asyncio
async def test_members_of_its_batch_are_exact(rt: Runtime) -> None:
    """Whoever it was with is run again alone; it is told where in its own request the index is."""
    loaded = await rt.load(embedding())
    table = floats(10, 4)
    async with loaded.batched(max_delay=0.05) as batched:
        given = [np.random.default_rng(number).integers(-10, 10, (1, 5)) for number in range(12)]
        for number in (3, 4, 9):
            given[number][0, number % 5] = 10 + number
        got = await asyncio.gather(*(batched.infer({"ids": ids}) for ids in given), return_exceptions=True)

        assert batched.statistics().members >= 12
    for number, (ids, outcome) in enumerate(zip(given, got, strict=True)):
        if number in (3, 4, 9):
            assert isinstance(outcome, IndexOutOfRange)
            assert (outcome.index, outcome.position) == (10 + number, number % 5)
        else:
            assert not isinstance(outcome, BaseException)
            np.testing.assert_array_equal(2 * table[ids], outcome["y"])


def decoder() -> onnx.ModelProto:
    """Rows of a table are appended to a past, and summed."""
    nodes = [
        node("e = Gather(table, ids)"), node("present.key = Concat(past_key_values.key, e)", axis=1),
        node("y = ReduceSum(present.key, axes)", keepdims=0),
    ]  # fmt: skip
    past = "past_key_values.key f32[batch,past,4]"
    constants = {"table": floats(10, 4), "axes": i64(1)}
    return model(nodes, ["ids i64[batch,seq]", past], ["y", "present.key"], constants)


def summed(table: Array, ids: Sequence[int]) -> Array:
    return np.asarray(table[list(ids)].sum(0)[None], np.float32)


@pytest.mark.asyncio
@pytest.mark.parametrize("watched", WATCHED)
@pytest.mark.parametrize("device", DEVICES)
async def test_a_step_that_fails_leaves_the_sequence_where_it_was(device: str | None, watched: bool) -> None:
    """It may be tried again with another index, as if nothing had been; also past the room that was kept."""
    table, taken = floats(10, 4), [1, 2, 3]
    async with Runtime(device, options=options(check_hazards=watched)) as rt:
        loaded = await rt.load(decoder())
        async with loaded.sequence() as sequence:
            with pytest.raises(IndexOutOfRange, match="index 10"):
                await sequence.infer({"ids": np.array([[1, 10, 3]])})
            await sequence.infer({"ids": np.array([taken])})
            for step in range(140):
                if step % 3 == 0:
                    with pytest.raises(IndexOutOfRange, match=r"'Gather_0': index -11 is"):
                        await sequence.infer({"ids": np.array([[-11]])})
                taken.append(step % 10)
                got = await sequence.infer({"ids": np.array([[step % 10]])})

                np.testing.assert_allclose(summed(table, taken), got["y"], rtol=1e-4, atol=1e-4)
        assert rt.statistics().memory.leases == 0


@pytest.mark.asyncio
async def test_a_step_of_a_group_fails_alone(rt: Runtime) -> None:
    """Those that run with it are exact, also while it is tried out whether they may, and go on as one after that."""
    table = floats(10, 4)
    loaded = await rt.load(decoder())
    async with loaded.sequences() as group:
        sequences = [group.sequence() for _ in range(4)]
        taken: list[list[int]] = [[] for _ in sequences]
        for step in range(6):
            ids = [(step + number) % 10 for number in range(4)]
            bad = step % 4
            given = [{"ids": np.array([[10 + step if number == bad else ids[number]]])} for number in range(4)]
            steps = [sequence.infer(inputs) for sequence, inputs in zip(sequences, given, strict=True)]
            got = await asyncio.gather(*steps, return_exceptions=True)

            for number, outcome in enumerate(got):
                if number == bad:
                    assert isinstance(outcome, IndexOutOfRange)
                    assert (outcome.index, outcome.position) == (10 + step, 0)
                    outcome = await sequences[number].infer({"ids": np.array([[ids[number]]])})
                assert not isinstance(outcome, BaseException)
                taken[number].append(ids[number])
                np.testing.assert_allclose(summed(table, taken[number]), outcome["y"], rtol=1e-4, atol=1e-5)
        assert group.sharing is not None
        assert group.sharing.sharing is Sharing.EQUAL_LENGTH
        assert group.statistics().inferences < group.statistics().steps
