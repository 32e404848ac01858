"""If, Loop and Scan: what ONNX Runtime gives, for whatever shapes and however many at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
import pytest_asyncio
from onnx import helper, numpy_helper

from asyncrt import (
    ModelFormatError,
    ModelTypeError,
    OutOfDeviceMemory,
    Runtime,
    RuntimeOptions,
    ShapeError,
)
from asyncrt.layout import Array

from ...builders import i64, model, node, value
from ...onnx_suite import OPENCL, node_cases, run_case
from ...paths import EXACT, on_path
from ...second_opinion import onnxruntime_gives

DEVICES = (None, "host", "simulated")
ZERO, ONE = np.array(0, np.int64), np.array(1, np.int64)


@pytest_asyncio.fixture(params=DEVICES, ids=lambda d: d or "opencl")
async def rt(request: pytest.FixtureRequest) -> AsyncIterator[Runtime]:
    """A runtime on each device, of which nothing may be left behind."""
    async with Runtime(request.param, options=RuntimeOptions(warm=False)) as runtime:
        yield runtime
    statistics = runtime.statistics()
    assert statistics.in_flight == 0
    assert (statistics.memory.leases, statistics.memory.active, statistics.memory.held) == (0, 0, 0)


def graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[str],
    outputs: Sequence[str],
    constants: Mapping[str, Any] | None = None,
) -> onnx.GraphProto:
    """A subgraph."""
    tensors = [numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()]
    results = [onnx.ValueInfoProto(name=o) for o in outputs]
    return helper.make_graph(list(nodes), "inside", [value(i) for i in inputs], results, tensors)


def branch(*nodes: str, outputs: str, constants: Mapping[str, Any] | None = None) -> onnx.GraphProto:
    """A branch of an If."""
    return graph([node(n) for n in nodes], [], outputs.split(), constants)


def identities(nodes: Sequence[onnx.NodeProto]) -> None:
    """Let subgraphs make each output by a node of its own, without which ONNX Runtime refuses them or is wrong."""
    for inner in (a.g for n in nodes for a in n.attribute if a.type == onnx.AttributeProto.GRAPH):
        identities(inner.node)
        for index, output in enumerate(inner.output):
            made = f"{output.name}_{index}_{id(output)}"
            inner.node.append(helper.make_node("Identity", [output.name], [made]))
            output.name = made


def truth(source: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """What ONNX Runtime gives."""
    source = onnx.ModelProto.FromString(source.SerializeToString())
    identities(source.graph.node)
    return onnxruntime_gives(source, feeds)


async def agrees(rt: Runtime, source: onnx.ModelProto, *requests: Mapping[str, Any]) -> None:
    """Assert that requests, one after the other and then all at once, give what ONNX Runtime gives."""
    loaded = await rt.load(source)
    alone = [await loaded.infer(r) for r in requests]
    together = await asyncio.gather(*(loaded.infer(r) for r in requests))
    for request, a, t in zip(requests, alone, together, strict=True):
        for name, expected in truth(source, request).items():
            assert (expected.dtype, expected.shape) == (a[name].dtype, a[name].shape), name
            if expected.dtype.kind == "f":
                np.testing.assert_allclose(a[name], expected, rtol=1e-5, atol=1e-6)
            else:
                np.testing.assert_array_equal(a[name], expected)
            assert a[name].tobytes() == t[name].tobytes(), name


def f32(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# If.


def reduce_or_keep() -> onnx.ModelProto:
    """The outputs' shapes and ranks depend on the branch, and the condition on what the device computes."""
    choose = node(
        "y, z = If(c)",
        then_branch=branch("s = ReduceSum(a, axis)", "t = Neg(a)", outputs="s t", constants={"axis": i64(1)}),
        else_branch=branch("r = Reshape(a, flat)", outputs="r x", constants={"flat": i64(-1)}),
    )
    choose.name = "choose"
    nodes = [node("a = Tanh(x)"), node("m = ReduceMax(x)", keepdims=0), node("c = Greater(m, limit)"), choose]
    nodes += [node("out = Exp(y)"), node("kept = Sub(z, a)")]
    return model(nodes, ["x f32[n,m]"], ["out", "kept"], {"limit": np.float32(5)})


@pytest.mark.asyncio
async def test_an_if_gives_what_its_branch_gives_whatever_its_shape(rt: Runtime) -> None:
    """The condition comes from a kernel; each branch has outputs of another rank, and what follows uses them."""
    low, high = f32(3, 4), f32(3, 4, seed=1) + 10

    await agrees(rt, reduce_or_keep(), {"x": low}, {"x": high}, {"x": f32(1, 7)}, {"x": low}, {"x": f32(5, 2) + 9})


@pytest.mark.asyncio
async def test_branches_in_branches_take_values_from_two_levels_out(rt: Runtime) -> None:
    """An inner branch uses an input, a constant and a node's output of the model, and one of the outer branch."""
    inner = node(
        "i = If(d)",
        then_branch=branch("p = Add(x, a)", "q = Mul(p, w)", outputs="q"),
        else_branch=branch("p = Sub(b, w)", outputs="p"),
    )
    outer = node(
        "y = If(c)",
        then_branch=graph([node("b = Neg(a)"), inner, node("t = Add(i, b)")], [], ["t"]),
        else_branch=branch(outputs="w"),
    )
    source = model(
        [node("a = Exp(x)"), outer], ["x f32[n]", "c bool[]", "d bool[]"], ["y"], {"w": np.float32([2])}
    )
    yes, no = np.array(True), np.array(False)

    await agrees(rt, source, *({"x": f32(n), "c": c, "d": d} for n in (3, 1) for c in (yes, no) for d in (yes, no)))


@pytest.mark.asyncio
@pytest.mark.parametrize("taken", [True, False])
async def test_an_if_with_a_constant_condition_is_its_branch(taken: bool) -> None:
    """Where loading knows the condition, also by computing it, no If is left, and nothing is cut."""
    choose = node(
        "y, z = If(c)",
        then_branch=branch("t = Exp(a)", outputs="t t"),
        else_branch=branch(outputs="a k", constants={"k": np.float32([7])}),
    )
    choose.name = "choose"
    nodes = [node("a = Neg(x)"), node("r = Shape(x)"), node("c = Equal(r, wanted)"), choose, node("w = Add(y, z)")]
    source = model(nodes, ["x f32[3]"], ["w", "z"], {"wanted": i64(3 if taken else 4)})
    x = f32(3)

    async with Runtime("simulated") as rt:
        await agrees(rt, source, {"x": x})
        loaded = await rt.load(source)
        await loaded.infer({"x": x})
        explained = loaded.explain()

    assert "If" not in {n.operator for n in explained}
    assert ("choose/then/Exp_0" in {n.node for n in explained}) is taken


@pytest.mark.asyncio
async def test_a_branch_that_cannot_work_does_not_matter_until_it_is_taken(rt: Runtime) -> None:
    """Exporters guard a Squeeze by an If; only the request that takes the wrong branch fails, and is told where."""
    choose = node(
        "y = If(c)",
        then_branch=branch("s = Squeeze(x, axis)", outputs="s", constants={"axis": i64(0)}),
        else_branch=branch("e = Exp(x)", outputs="e"),
    )
    choose.name = "guard"
    loaded = await rt.load(model([choose], ["x f32[3,n]", "c bool[]"], ["y"]))
    x = f32(3, 2)

    with pytest.raises(ShapeError, match="'guard/then/Squeeze_0'"):
        await loaded.infer({"x": x, "c": np.array(True)})
    out = await loaded.infer({"x": x, "c": np.array(False)})

    np.testing.assert_allclose(out["y"], np.exp(x), rtol=1e-5)


# Loop.


def body(
    nodes: Sequence[str | onnx.NodeProto],
    inputs: Sequence[str],
    outputs: str,
    constants: Mapping[str, Any] | None = None,
) -> onnx.GraphProto:
    """A Loop's body: after the iteration `i` and the condition `c` come *inputs*."""
    made = [node(n) if isinstance(n, str) else n for n in nodes]
    return graph(made, ["i i64[]", "c bool[]", *inputs], outputs.split(), constants)


@pytest.mark.asyncio
async def test_a_factorial_counts_its_trips(rt: Runtime) -> None:
    """The trip count comes with the request; zero and negative ones pass the initial value through."""
    nodes = ["k = Add(i, one)", "p2 = Mul(p, k)", "c2 = Identity(c)"]
    loop = node("f, all = Loop(n,, one)", body=body(nodes, ["p i64[]"], "c2 p2 p2"))
    source = model([loop], ["n i64[]"], ["f", "all"], {"one": ONE})

    await agrees(rt, source, *({"n": np.array(n, np.int64)} for n in (5, 1, 0, -3, 12, 5)))


@pytest.mark.asyncio
async def test_carried_values_may_grow(rt: Runtime) -> None:
    """Fibonacci numbers by Concat: the shape of a carried value is another in every iteration."""
    nodes = [
        "last = Gather(v, minus)", "before = Gather(v, minus2)", "next = Add(last, before)", "v2 = Concat(v, next)",
    ]  # fmt: skip
    made = [node(n, axis=0) if "Concat" in n else node(n) for n in nodes]
    inside = body([*made, "c2 = Identity(c)", "size = Shape(v2)"], ["v f32[2]"], "c2 v2 next size")
    loop = node("v, nexts, sizes = Loop(n, yes, start)", body=inside)
    constants = {"start": np.float32([0, 1]), "minus": i64(-1), "minus2": i64(-2), "yes": np.array(True)}
    source = model([loop, node("y = Neg(v)")], ["n i64[]"], ["y", "nexts", "sizes"], constants)

    await agrees(rt, source, *({"n": np.array(n, np.int64)} for n in (6, 0, 1, 9)))


@pytest.mark.asyncio
@pytest.mark.parametrize("limit", ["", "n"])
async def test_a_loop_ends_when_the_device_says_so(rt: Runtime, limit: str) -> None:
    """The condition is computed by kernels from floats, with a trip count besides and without one."""
    nodes = ["x2 = Mul(x, half)", "m = ReduceMax(x2)", "c2 = Greater(m, limit)"]
    inside = body([node(n, keepdims=0) if "Reduce" in n else node(n) for n in nodes], ["x f32[k]"], "c2 x2 m")
    loop = node(f"y, maxima = Loop({limit}, go, x)", body=inside)
    constants = {"half": np.float32(0.5), "limit": np.float32(1)}
    source = model([loop], ["x f32[k]", "go bool[]", "n i64[]"], ["y", "maxima"], constants)
    if not limit:
        del source.graph.input[2]
    sizes = ((100, True), (3, True), (2, True), (50, False))
    requests = [{"x": np.array([s, 1, 2], np.float32), "go": np.array(go)} for s, go in sizes]
    for request in requests:
        if limit:
            request["n"] = np.array(4, np.int64)

    await agrees(rt, source, *requests)


@pytest.mark.asyncio
async def test_what_is_carried_unchanged_is_taken_from_outside(rt: Runtime) -> None:
    """Weights among it are constants of the body; what the node gives of it are its inputs, after no trip as well."""
    nodes = ["h = MatMul(v, w)", "v2 = Tanh(h)", "s2 = Identity(s)", "r = Add(v2, s)", "c2 = Identity(c)"]
    inside = body(nodes, ["v f32[2,2]", "w f32[2,2]", "s f32[k,2]"], "c2 v2 w s2 r")
    loop = node("y, weights, same, rows = Loop(n,, x, start, x)", body=inside)
    sums = [node("t2 = Add(t, e)"), node("o = Mul(t, g)")]
    each = graph(sums, ["t f32[2]", "g f32[2]", "e f32[2]"], ["t2", "g", "o"])
    scan = node("last, kept, many = Scan(zero, one, y)", body=each, num_scan_inputs=1)
    outputs = ["y", "weights", "same", "rows", "last", "kept", "many"]
    constants = {"start": f32(2, 2, seed=3), "zero": np.zeros(2, np.float32), "one": np.ones(2, np.float32)}
    source = model([loop, scan], ["x f32[2,2]", "n i64[]"], outputs, constants)

    await agrees(rt, source, *({"x": f32(2, 2), "n": np.array(n, np.int64)} for n in (3, 0, 1)))
    program = (await rt.load(source)).network.program
    inner = {n.operator.name: n.subgraphs[0].program for n in program.nodes if n.subgraphs}
    assert inner["Loop"] is not None
    assert inner["Scan"] is not None
    assert [len(inner[name].outputs) for name in ("Loop", "Scan")] == [3, 2]  # type: ignore[union-attr]
    weights = {v.name: v.constant for v in inner["Loop"].values if v.constant is not None}
    np.testing.assert_array_equal(constants["start"], weights["w"])


@pytest.mark.asyncio
async def test_names_inside_hide_those_outside(rt: Runtime) -> None:
    """A body's input, initializer and node bear names of the model; outside, these stay what they were."""
    inside = body(["a = Add(x, w)", "y = Mul(a, x)"], ["x f32[k]"], "c y", {"w": np.float32([3])})
    nodes = [node("a = Neg(x)"), node("z = Loop(n,, a)", body=inside), node("y = Add(a, z)"), node("o = Sub(x, w)")]
    source = model(nodes, ["x f32[k]", "n i64[]"], ["y", "o", "a"], {"w": np.float32([10])})

    # ONNX Runtime forbids some of these names twice, so the truth is written out.
    loaded = await rt.load(source)
    x = f32(4)
    out = await loaded.infer({"x": x, "n": np.array(2, np.int64)})
    z = -x
    for _ in range(2):
        z = (z + np.float32(3)) * z

    np.testing.assert_allclose(out["y"], z - x, rtol=1e-5)
    np.testing.assert_array_equal(out["o"], x - 10)
    np.testing.assert_array_equal(out["a"], -x)


@pytest.mark.asyncio
async def test_a_loop_in_a_loop_with_an_if_in_it(rt: Runtime) -> None:
    """Three levels: the innermost takes the iterations of both loops, an input of the model and a carried value."""
    choose = node(
        "s2 = If(odd)",
        then_branch=branch("t = Add(s, x)", outputs="t"),
        else_branch=branch("u = Mul(s, w)", "e = Sub(u, outer)", outputs="e"),
    )
    steps = [node("both = Add(i, j)"), node("rest = Mod(both, two)"), node("odd = Cast(rest)", to=9), choose]
    inner = graph([*steps, node("d2 = Identity(d)")], ["j i64[]", "d bool[]", "s f32[k]"], ["d2", "s2", "s2"])
    looped = node("t, each = Loop(i,, v)", body=inner)
    outside = [node("outer = Cast(i)", to=1), looped, node("total = ReduceSum(each)", keepdims=0)]
    loop = node("y, totals = Loop(n,, x)", body=body([*outside, "c2 = Identity(c)"], ["v f32[k]"], "c2 t total"))
    source = model(
        [loop], ["x f32[k]", "n i64[]"], ["y", "totals"], {"w": np.float32([0.5]), "two": np.array(2, np.int64)}
    )

    await agrees(rt, source, *({"x": f32(k), "n": np.array(n, np.int64)} for k, n in ((3, 4), (1, 2), (5, 0), (2, 5))))


@pytest.mark.asyncio
async def test_what_is_passed_through_may_be_anything(rt: Runtime) -> None:
    """Outputs of a body that are captured, constants, its own inputs, or one value twice."""
    inside = body([], ["v f32[k]", "u f32[k]"], "c u v w x u u", {"w": np.float32([1, 2])})
    loop = node("a, b, p, q, r, s = Loop(n, go, x, y)", body=inside)
    source = model([loop], ["x f32[k]", "y f32[k]", "n i64[]", "go bool[]"], ["a", "b", "p", "q", "r", "s"])

    requests = [{"x": f32(3), "y": f32(3, seed=1), "n": np.array(n, np.int64), "go": np.array(True)} for n in (3, 1)]
    await agrees(rt, source, *requests)
    out = await (await rt.load(source)).infer({**requests[0], "n": ZERO})

    shapes = {"a": (3,), "b": (3,), "p": (0, 2), "q": (0, 3), "r": (0, 3), "s": (0, 3)}
    assert {k: v.shape for k, v in out.items()} == shapes  # as one iteration would have made them


@pytest.mark.asyncio
async def test_what_iterations_collect_must_be_of_one_shape(rt: Runtime) -> None:
    """A scan output that changes its shape is an error naming the node and both shapes."""
    inside = body([node("v2 = Concat(v, v)", axis=0)], ["v f32[k]"], "c v2 v2")
    loop = node("y, all = Loop(n,, x)", body=inside)
    loop.name = "double"
    loaded = await rt.load(model([loop], ["x f32[k]", "n i64[]"], ["y", "all"]))

    with pytest.raises(ShapeError, match=r"'double': output 2 .* \[2\] .* \[4\]"):
        await loaded.infer({"x": f32(1), "n": np.array(2, np.int64)})
    out = await loaded.infer({"x": f32(1), "n": ONE})

    assert out["all"].shape == (1, 2)


@pytest.mark.asyncio
async def test_shape_arithmetic_from_outside_is_what_the_request_makes_it(rt: Runtime) -> None:
    """Loading takes a slice without its last element for one shorter than its axis; of an empty axis it is not."""
    nodes = ["double = Mul(s, two)", "e = Expand(w, double)", "q = ReduceSum(x)", "v2 = Add(v, q)"]
    inside = body(nodes, ["v f32[k]"], "c v2 e", {"two": i64(2), "w": np.float32([1])})
    outside = [node("t = Slice(x, first, last)"), node("s = Shape(t)"), node("y, all = Loop(n,, x)", body=inside)]
    source = model(outside, ["x f32[k]", "n i64[]"], ["y", "all", "s"], {"first": i64(0), "last": i64(-1)})

    await agrees(rt, source, *({"x": f32(k), "n": np.array(2, np.int64)} for k in (5, 1, 0, 3)))


# Scan.


@pytest.mark.asyncio
@pytest.mark.parametrize("backward", [0, 1])
@pytest.mark.parametrize(("axis", "out_axis"), [(0, 0), (1, 1), (-1, -1), (1, 0)])
async def test_cumulative_sums_along_any_axis_in_both_directions(
    rt: Runtime, axis: int, out_axis: int, backward: int
) -> None:
    """Scan over an axis, forward and backward, collecting along another; two inputs and two outputs."""
    inside = graph(
        [node("s2 = Add(s, e)"), node("r = Identity(s2)"), node("p = Mul(s2, f)")],
        ["s f32[m]", "e f32[m]", "f f32[m]"],
        ["s2", "r", "p"],
    )
    scan = node(
        "last, sums, products = Scan(start, x, z)", body=inside, num_scan_inputs=2, scan_input_axes=[axis, axis],
        scan_input_directions=[backward, 0], scan_output_axes=[out_axis, 0], scan_output_directions=[0, backward],
    )  # fmt: skip
    source = model([scan], ["start f32[m]", "x f32[a,b]", "z f32[a,b]"], ["last", "sums", "products"])

    def request(a: int, b: int) -> dict[str, Array]:
        m = a if axis else b
        return {"start": f32(m, seed=2), "x": f32(a, b), "z": f32(a, b, seed=1)}

    await agrees(rt, source, request(3, 4), request(1, 5), request(5, 1), request(3, 4))


@pytest.mark.asyncio
async def test_a_scan_of_nothing_collects_nothing(rt: Runtime) -> None:
    """Sequences without elements: states pass through, and collected tensors keep their other dims."""
    inside = graph([node("s2 = Add(s, e)")], ["s f32[m]", "e f32[m]"], ["s2", "s2"])
    scan = node("last, sums = Scan(start, x)", body=inside, num_scan_inputs=1, scan_output_axes=[1])
    loaded = await rt.load(model([scan], ["start f32[m]", "x f32[n,m]"], ["last", "sums"]))

    out = await loaded.infer({"start": f32(3), "x": f32(0, 3)})

    np.testing.assert_array_equal(out["last"], f32(3))
    assert out["sums"].shape == (3, 0)


@pytest.mark.asyncio
async def test_a_scan_goes_over_texts(rt: Runtime) -> None:
    """Each is a tensor of texts, also where it has no axes."""
    body = helper.make_graph(
        [node("y = StringConcat(t, x)")], "body", [onnx.ValueInfoProto(name="x")], [onnx.ValueInfoProto(name="y")]
    )
    source = model([helper.make_node("Scan", ["x"], ["y"], body=body, num_scan_inputs=1)], [], ["y"], opset=20)
    source.graph.initializer.append(helper.make_tensor("t", onnx.TensorProto.STRING, [], [b"it is "]))
    source.graph.input.append(helper.make_tensor_value_info("x", onnx.TensorProto.STRING, ["n"]))
    loaded = await rt.load(source)

    for texts in (["one", "two", ""], []):
        got = (await loaded.infer({"x": np.array(texts, object)}))["y"]

        assert got.tolist() == [f"it is {text}" for text in texts]


@pytest.mark.asyncio
@pytest.mark.parametrize("trips", [0, 2])
async def test_what_no_iteration_makes_has_the_rank_that_iterations_make(rt: Runtime, trips: int) -> None:
    """Not that of the file, which may say another one: here the body's output is a sum, and declared a vector."""
    source = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        g (int64 m, float[n] x) => (y) {
          last, y = Loop (m, , x) <body = b (int64 i, bool go, float[n] v) => (bool on, float[n] w, float[3] sum) {
            on = Identity (go) w = Add (v, v) sum = ReduceSum <keepdims = 0> (v) }> }"""
    )

    got = (await (await rt.load(source)).infer({"m": np.array(trips), "x": np.ones(4, np.float32)}))["y"]

    np.testing.assert_array_equal(got, np.array([4, 8], np.float32)[:trips])


@pytest.mark.asyncio
async def test_sequences_of_a_scan_are_of_one_length(rt: Runtime) -> None:
    """Otherwise the request fails with both lengths."""
    inside = graph([node("p = Add(e, f)")], ["e f32[]", "f f32[]"], ["p"])
    scan = node("y = Scan(a, b)", body=inside, num_scan_inputs=2)
    scan.name = "both"
    loaded = await rt.load(model([scan], ["a f32[n]", "b f32[m]"], ["y"]))

    with pytest.raises(ShapeError, match=r"'both': .* lengths 2, 3"):
        await loaded.infer({"a": f32(2), "b": f32(3)})


# Many at once.


def powers() -> onnx.ModelProto:
    """Multiply by a matrix n times; what follows takes the result."""
    inside = body(["u = MatMul(v, a)", "v2 = Tanh(u)", "c2 = Identity(c)"], ["v f32[k,k]"], "c2 v2 v2")
    loop = node("y, all = Loop(n,, x)", body=inside)
    loop.name = "power"
    return model([node("a = Sin(x)"), loop, node("z = Add(y, a)")], ["x f32[k,k]", "n i64[]"], ["z", "all"])


@pytest.mark.asyncio
async def test_eight_at_once_with_other_trip_counts_are_bit_equal_to_alone(rt: Runtime) -> None:
    """Loops of other lengths and sizes in flight at the same time never see each other."""
    loaded = await rt.load(powers())
    requests = [{"x": f32(4 + n % 3, 4 + n % 3, seed=n), "n": np.array(n, np.int64)} for n in (7, 3, 0, 12, 1, 5, 9, 2)]

    alone = [await loaded.infer(r) for r in requests]
    for _ in range(3):
        together = await asyncio.gather(*(loaded.infer(r) for r in requests))

        for a, t in zip(alone, together, strict=True):
            assert {k: v.tobytes() for k, v in a.items()} == {k: v.tobytes() for k, v in t.items()}
    for request, a in zip(requests, alone, strict=True):
        np.testing.assert_allclose(a["z"], truth(powers(), request)["z"], rtol=1e-4, atol=1e-5)


@pytest.mark.asyncio
async def test_loops_cancelled_in_the_middle_leave_nothing_and_disturb_nobody(rt: Runtime) -> None:
    """At whatever point a loop is cancelled, its memory comes back, and the others' results are exact."""
    loaded = await rt.load(powers())
    requests = [{"x": f32(5, 5, seed=n), "n": np.array(n, np.int64)} for n in range(12)]
    expected = [await loaded.infer(r) for r in requests]

    for steps in (1, 4, 9, 16, 25, 60):
        tasks = [asyncio.ensure_future(loaded.infer(r)) for r in requests]
        for _ in range(steps):
            await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)

        for i, (e, r) in enumerate(zip(expected, results, strict=True)):
            if isinstance(r, asyncio.CancelledError):
                assert i % 2 == 0
            else:
                assert isinstance(r, dict), r
                assert {k: v.tobytes() for k, v in e.items()} == {k: v.tobytes() for k, v in r.items()}
    assert rt.statistics().in_flight == 0


@pytest.mark.asyncio
async def test_a_loop_without_an_end_can_be_cancelled_and_lets_others_go_on(rt: Runtime) -> None:
    """A body that never waits for a device does not take the event loop for itself."""
    inside = body(["k = Add(s, one)"], ["s i64[]"], "c k")
    loop = node("y = Loop(, go, n)", body=inside)
    loaded = await rt.load(model([loop], ["n i64[]", "go bool[]"], ["y"], {"one": ONE}))
    endless = asyncio.ensure_future(loaded.infer({"n": ZERO, "go": np.array(True)}))

    out = await loaded.infer({"n": ZERO, "go": np.array(False)})
    endless.cancel()
    await asyncio.wait([endless])

    assert endless.cancelled()
    assert out["y"] == 0


@pytest.mark.asyncio
async def test_a_long_loop_holds_no_more_memory_than_a_short_one() -> None:
    """What an iteration leases is given back when it is done."""
    async with Runtime("simulated", options=RuntimeOptions(warm=False)) as rt:
        loaded = await rt.load(powers())
        x = f32(8, 8)
        await loaded.infer({"x": x, "n": np.array(3, np.int64)})
        before = rt.statistics().memory.allocated
        await loaded.infer({"x": x, "n": np.array(40, np.int64)})

        assert rt.statistics().memory.allocated == before


@pytest.mark.asyncio
async def test_a_repeated_request_plans_nothing_anew(rt: Runtime) -> None:
    """Plans of bodies are kept like those of the model; neither captured nor carried floats are part of their keys."""
    loaded = await rt.load(powers())
    await loaded.infer({"x": f32(4, 4), "n": np.array(3, np.int64)})
    before = rt.statistics().plans
    await loaded.infer({"x": f32(4, 4, seed=1), "n": np.array(3, np.int64)})

    assert rt.statistics().plans == before


def gathering() -> onnx.ModelProto:
    """A loop that adds up the rows of a large tensor from outside, at a position that it counts itself."""
    nodes = ["p2 = Add(p, one)", "row = Gather(big, p)", "v2 = Add(v, row)", "c2 = Less(p2, n)", "r = Neg(v2)"]
    inside = body(nodes, ["p i64[]", "v f32[m]"], "c2 p2 v2 r", {"one": ONE})
    loop = node("count, y, rows = Loop(,, start, zeros)", body=inside)
    make = [node("big = Exp(x)"), node("first = Gather(x, start)"), node("zeros = Sub(first, first)"), loop]
    return model(make, ["x f32[k,m]", "n i64[]"], ["y", "rows"], {"start": ZERO})


@pytest.mark.asyncio
async def test_a_count_of_iterations_is_in_no_plan(rt: Runtime) -> None:
    """However many rows are gathered: the second iteration takes the plan of the first, or one without the upload."""
    loaded = await rt.load(gathering())
    x = f32(40, 300)
    await loaded.infer({"x": x, "n": np.array(2, np.int64)})
    before = rt.statistics().plans
    out = await loaded.infer({"x": x, "n": np.array(40, np.int64)})

    assert rt.statistics().plans - before <= 2
    np.testing.assert_allclose(out["y"], np.exp(x).sum(0), rtol=1e-4)


@pytest.mark.asyncio
async def test_what_a_body_takes_from_outside_goes_up_once(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or twice, where it runs more than once: the first iteration may be the only one."""
    source, x = gathering(), f32(40, 300)
    loaded = await rt.load(source)
    await agrees(rt, source, *({"x": x, "n": np.array(n, np.int64)} for n in (40, 1, 2)))
    written = 0
    for stream in rt.session.dispatcher.streams:
        write = stream.write

        def counted(memory: Any, offset: int, array: Array, write: Any = write) -> None:
            nonlocal written
            written += array.nbytes >= x.nbytes
            write(memory, offset, array)

        monkeypatch.setattr(stream, "write", counted)
    await loaded.infer({"x": x, "n": np.array(40, np.int64)})

    assert written == 3  # the model's input, the first iteration's, and the others'


# What one is told.


@pytest.mark.asyncio
async def test_explain_lists_what_ran_inside(rt: Runtime) -> None:
    """Each node's inner nodes follow it under its name; the node says what was decided."""
    loaded = await rt.load(reduce_or_keep())
    await loaded.infer({"x": f32(2, 2) + 10})
    high = {n.node: n for n in loaded.explain()}
    await loaded.infer({"x": f32(2, 2)})
    low = {n.node: n for n in loaded.explain()}

    assert {"choose", "choose/then/ReduceSum_0", "choose/then/Neg_1"} <= set(high)
    assert (high["choose"].decision, high["choose"].why) == ("host", "the then branch")
    assert [k for k in low if k.startswith("choose/")] == ["choose/else/Reshape_0"]
    assert (low["choose"].decision, low["choose"].outputs) == ("skipped", ("float32[4]", "float32[2,2]"))
    assert "the else branch passes it on" in str(loaded.explain())


@pytest.mark.asyncio
async def test_explain_says_how_often_a_loop_ran() -> None:
    """And lists the nodes of the last iteration, once."""
    async with Runtime("simulated") as rt:
        loaded = await rt.load(powers())
        await loaded.infer({"x": f32(2, 2), "n": np.array(3, np.int64)})
        explained = loaded.explain()

    (loop,) = (n for n in explained if n.operator == "Loop")
    assert loop.why == "3 iterations"
    assert [n.node for n in explained if n.node.startswith("power/")] == [
        "power/body/MatMul_0", "power/body/Tanh_1", "power/body/Identity_2",
    ]  # fmt: skip


@pytest.mark.asyncio
async def test_an_error_inside_names_the_node_outside_and_the_one_inside(rt: Runtime) -> None:
    """A carried value that outgrows what it is added to."""
    inside = body([node("v2 = Concat(v, v)", axis=0), "s = Add(v2, w)"], ["v f32[k]"], "c v2 s")
    loop = node("y, all = Loop(n,, x)", body=inside)
    loop.name = "grow"
    loaded = await rt.load(model([loop], ["x f32[k]", "w f32[m]", "n i64[]"], ["y"]))

    with pytest.raises(ShapeError, match="'grow/body/Add_1'"):
        await loaded.infer({"x": f32(2), "w": f32(3), "n": ONE})


@pytest.mark.asyncio
async def test_an_error_of_the_device_inside_names_the_node_outside() -> None:
    """Memory that an iteration does not find; the next request is served."""
    async with Runtime("simulated", options=RuntimeOptions(memory_limit=200_000, warm=False)) as rt:
        loaded = await rt.load(powers())

        with pytest.raises(OutOfDeviceMemory, match=r"in 'power': .* within the limit"):
            await loaded.infer({"x": f32(150, 150), "n": ONE})
        out = await loaded.infer({"x": f32(5, 5), "n": ONE})

    assert out["all"].shape == (1, 5, 5)


@pytest.mark.asyncio
async def test_shapes_computed_from_what_a_loop_counts_need_no_device() -> None:
    """The result of a loop is on the host, so that a shape made of it launches nothing."""
    loop = node("f = Loop(n,, one)", body=body(["p2 = Mul(p, two)"], ["p i64[]"], "c p2", {"two": np.array(2)}))
    after = [node("m = Add(f, one)"), node("r = Reshape(m, flat)"), node("y = Expand(x, r)")]
    source = model([loop, *after], ["x f32[1]", "n i64[]"], ["y"], {"one": ONE, "flat": i64(-1)})
    async with Runtime("simulated", options=RuntimeOptions(warm=False)) as rt:
        await agrees(rt, source, *({"x": f32(1), "n": np.array(n, np.int64)} for n in (3, 0, 5)))
        loaded = await rt.load(source)
        await loaded.infer({"x": f32(1), "n": np.array(3, np.int64)})

        decisions = {n.operator: n.decision for n in loaded.explain() if "/" not in n.node}

    assert decisions == {"Loop": "host", "Add": "host", "Reshape": "host", "Expand": "ran"}


@pytest.mark.asyncio
@pytest.mark.parametrize("opset", [11, 13, 16, 19, 21])
async def test_every_opset_has_the_same_control_flow(opset: int) -> None:
    """If, Loop and Scan of every version that is read."""
    choose = node("a = If(c)", then_branch=branch("t = Neg(x)", outputs="t"), else_branch=branch(outputs="x"))
    loop = node("b = Loop(n,, a)", body=body(["w = Add(v, x)"], ["v f32[k]"], "c w"))
    scan = node("y = Scan(b)", body=graph([node("f = Exp(e)")], ["e f32[]"], ["f"]), num_scan_inputs=1)
    source = model([choose, loop, scan], ["x f32[k]", "c bool[]", "n i64[]"], ["y"], opset=opset)

    async with Runtime("simulated") as rt:
        await agrees(rt, source, {"x": f32(3), "c": np.array(True), "n": np.array(2, np.int64)})


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "changed", [RuntimeOptions(without={name}) for name in EXACT] + [RuntimeOptions(warm=False)], ids=str
)
async def test_each_mechanism_off_gives_the_same_bytes(changed: RuntimeOptions) -> None:
    """Control flow relies on none of them."""
    requests = [{"x": f32(4 + n % 3, 4 + n % 3, seed=n), "n": np.array(n, np.int64)} for n in range(5)]
    results: list[list[dict[str, bytes]]] = []
    for options in (RuntimeOptions(), on_path(changed)):
        async with Runtime(options=options) as rt:
            loaded = await rt.load(powers())
            outputs = await asyncio.gather(*(loaded.infer(r) for r in requests))
        results.append([{k: v.tobytes() for k, v in o.items()} for o in outputs])

    assert results[0] == results[1]


@pytest.mark.asyncio
async def test_a_condition_is_one_element() -> None:
    """A condition of several elements is refused, naming the node."""
    choose = node("y = If(c)", then_branch=branch(outputs="x"), else_branch=branch(outputs="x"))
    choose.name = "choose"
    async with Runtime("simulated") as rt:
        loaded = await rt.load(model([choose], ["x f32[n]", "c bool[k]"], ["y"]))

        with pytest.raises(ShapeError, match=r"'choose': its condition is one element, got \[2\]"):
            await loaded.infer({"x": f32(2), "c": np.array([True, False])})


def _wrong_loop(inside: onnx.GraphProto) -> onnx.NodeProto:
    loop = node("y = Loop(n,, x)", body=inside)
    loop.name = "bad"
    return loop


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("nodes", "kind", "message"),
    [
        ([_wrong_loop(body([], [], "c"))], ModelFormatError, "bad/body takes 2 inputs, its node gives it 3"),
        ([_wrong_loop(body([], ["v f32[k]"], "c"))], ModelFormatError, "bad: Loop's body has 1 outputs; 1 are used"),
        ([_wrong_loop(body([], ["v f32[k]"], "v v"))], ModelFormatError, "bad: .* a condition, of dtype bool"),
        ([_wrong_loop(body([], ["v f32[k]"], "c i"))], ModelTypeError, "bad: carried value 0 is float32 and int64"),
        ([_wrong_loop(body([], ["v f64[k]"], "c v"))], ModelTypeError, "bad/body is float32, declared as float64"),
        (
            [_wrong_loop(body(["s = SequenceConstruct(v)"], ["v f32[k]"], "c s"))],
            ModelTypeError, r"carried value 0 is float32 and seq\(float32\)",
        ),
        ([_wrong_loop(body(["w = Add(v, q)"], ["v f32[k]"], "c w"))], ModelFormatError, "bad takes 'q'"),
        (
            [node("y = Scan(x)", body=graph([], ["e f32[]"], ["e"]), num_scan_inputs=2)],
            ModelFormatError, "num_scan_inputs is 2",
        ),
        (
            [node("y = Scan(x)", body=graph([], ["e f32[]"], ["e"]), num_scan_inputs=1, scan_input_directions=[2])],
            ModelFormatError, "a direction is 0",
        ),
        (
            [node("y = Scan(x)", body=graph([], ["e f32[]"], ["e"]), num_scan_inputs=1, scan_input_axes=[1])],
            ModelFormatError, "axis 1 of a tensor of rank 1",
        ),
        (
            [node("y = If(t)", then_branch=branch(outputs="x"), else_branch=branch(outputs="n"))],
            ModelTypeError, "output 0 is float32 and int64",
        ),
    ],
)  # fmt: skip
async def test_subgraphs_that_do_not_fit_are_refused(
    nodes: list[onnx.NodeProto], kind: type[Exception], message: str
) -> None:
    """Loading says which node, and what is wrong with the graph in it."""
    async with Runtime("simulated") as rt:
        with pytest.raises(kind, match=message):
            await rt.load(model(nodes, ["x f32[k]", "n i64[]", "t bool[]"], ["y"]))


def test_onnx_own_tests_pass_unless_they_want_sequences() -> None:
    """Those of its node tests that hold an If, a Loop or a Scan."""
    chosen = []
    for case in node_cases():
        assert case.model is not None
        proto = case.model
        if {n.op_type for n in proto.graph.node} & {"If", "Loop", "Scan"}:
            for opset in proto.opset_import:
                if opset.domain == "" and opset.version in (9, 10):
                    opset.version = 11  # the same Scan
            chosen.append(case)

    outcomes = [run_case(case, OPENCL) for case in chosen]

    assert [o for o in outcomes if o.result == "failed"] == []
    assert {o.name for o in outcomes if o.result == "passed"} >= {
        "test_if", "test_loop11", "test_scan9_sum", "test_scan9_multi_state", "test_scan9_scalar",
        "test_range_float_type_positive_delta_expanded",
    }  # fmt: skip
