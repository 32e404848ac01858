"""The ways in which runtimes that skip nodes were found to give wrong results, each as a scenario."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence

import numpy as np
import pytest
import pytest_asyncio

from asyncrt import Model, Runtime, RuntimeOptions
from asyncrt.layout import Array

from ..builders import i64, model, node


@pytest_asyncio.fixture(params=("simulated", None), ids=lambda d: d or "opencl")
async def rt(request: pytest.FixtureRequest) -> AsyncIterator[Runtime]:
    """Two streams, so that what is not ordered by events may happen in any order."""
    async with Runtime(request.param, streams=2, options=RuntimeOptions(warm=False)) as runtime:
        yield runtime
    assert runtime.statistics().memory.leases == 0


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def decision(loaded: Model, operator: str) -> str:
    """What became of the only node of *operator* in the last request."""
    (found,) = (n.decision for n in loaded.explain() if n.operator == operator)
    return found


@pytest.mark.asyncio
async def test_a_reader_behind_a_skip_waits_for_every_producer(rt: Runtime) -> None:
    """Hazard: a group of events keeps only its newest member, so that a reader starts before the others are done.

    A skipped node lies behind each of four producers of different length; their common reader needs all of them.
    """
    lengths = (9, 1, 5, 2)
    nodes = []
    for k, length in enumerate(lengths):
        names = ["x", *(f"p{k}_{i}" for i in range(length))]
        nodes += [node(f"{b} = Neg({a})") for a, b in itertools.pairwise(names)]
        nodes += [node(f"t{k} = Transpose({names[-1]})", perm=[1, 0])]
    loaded = await rt.load(model([*nodes, node("y = Concat(t0, t1, t2, t3)", axis=0)], ["x f32[n,m]"], ["y"]))
    given = [floats(1, 50, seed=i) for i in range(8)]

    results = await asyncio.gather(*(loaded.infer({"x": x}) for x in given))

    for x, out in zip(given, results, strict=True):
        np.testing.assert_array_equal(np.concatenate([(-1.0) ** n * x.T for n in lengths]), out["y"])


@pytest.mark.asyncio
async def test_a_skipped_node_passes_on_all_it_depends_on(rt: Runtime) -> None:
    """Hazard: skipping a node drops the events of its inputs, also of the one that is not its source.

    The skipped Concat has a source and an empty input from elsewhere; its reader sees the source complete.
    """
    nodes = [
        node("a = Exp(x)"),
        node("b = Neg(e)"),
        node("c = Concat(a, b)", axis=0),
        node("d = Identity(c)"),
        node("y = Log(d)"),
    ]
    loaded = await rt.load(model(nodes, ["x f32[n,m]", "e f32[k,m]"], ["y"]))
    x = floats(200, 7)

    out = await loaded.infer({"x": x, "e": floats(0, 7)})
    both = await loaded.infer({"x": x, "e": -np.ones((1, 7), np.float32)})

    np.testing.assert_allclose(out["y"], x, atol=1e-5)
    np.testing.assert_allclose(both["y"], np.concatenate([x, np.zeros((1, 7))]), atol=1e-5)


@pytest.mark.asyncio
async def test_what_one_shape_needed_does_not_stay_for_the_next(rt: Runtime) -> None:
    """Hazard: padding, capacity or restrictions only ever grow from request to request.

    A large request, then small ones whose pads, offsets and sizes all differ, then the large one again.
    """
    nodes = [
        node("a = Neg(x)"),
        node("p = Pad(a, pads)"),
        node("s = Slice(p, starts, ends)"),
        node("y = Neg(s)"),
    ]
    inputs = ["x f32[n]", "pads i64[2]", "starts i64[1]", "ends i64[1]"]
    loaded = await rt.load(model(nodes, inputs, ["y"]))
    sequence = [(5000, 7, 3, 2, 4000), (3, 0, 0, 0, 3), (3, 1, 0, 0, 9), (1, 0, 2, 1, 2), (5000, 7, 3, 2, 4000)]

    for n, before, after, start, end in sequence * 2:
        x = floats(n)
        out = await loaded.infer({"x": x, "pads": i64(before, after), "starts": i64(start), "ends": i64(end)})
        np.testing.assert_array_equal(np.pad(x, (before, after))[start:end], out["y"])


@pytest.mark.asyncio
async def test_a_decision_is_taken_anew_when_its_producer_is_skipped(rt: Runtime) -> None:
    """Hazard: where the producer is skipped, the decision of the request before is kept.

    Two transposes in a row; each is skipped in some requests and a view in others, in every combination.
    """
    nodes = [
        node("a = Neg(x)"),
        node("b = Transpose(a)", perm=[1, 0, 2]),
        node("c = Transpose(b)", perm=[0, 2, 1]),
        node("y = Neg(c)"),
    ]
    loaded = await rt.load(model(nodes, ["x f32[p,q,r]"], ["y", "a"]))  # what is an output is not fused
    wanted = {
        (1, 3, 1): ["skipped", "skipped"],
        (1, 3, 4): ["skipped", "skipped"],
        (2, 3, 1): ["view", "view"],
        (2, 1, 3): ["skipped", "view"],
        (3, 2, 4): ["view", "view"],
        (3, 1, 1): ["skipped", "skipped"],
    }

    for first in wanted:
        for second in wanted:
            for shape in (first, second):
                x = floats(*shape)
                out = await loaded.infer({"x": x})
                np.testing.assert_array_equal(x.transpose(1, 2, 0), out["y"])
                assert wanted[shape] == [n.decision for n in loaded.explain() if n.operator == "Transpose"], shape


@pytest.mark.asyncio
async def test_a_value_that_changes_without_a_shape_changes_the_decision(rt: Runtime) -> None:
    """Hazard: a skip that depends on a value is kept because no shape changed.

    A beam search: the indices are the identity in one step, an order in the next. Older results keep their values,
    and the data are untouched. This is also the lifecycle of an output that is an alias in every other request.
    """
    loaded = await rt.load(model([node("y = Gather(x, i)")], ["x f32[n,m]", "i i64[k]"], ["y"]))
    x = floats(6, 5)
    kept = x.copy()
    orders = [i64(*range(6)), i64(*reversed(range(6))), i64(*range(6)), i64(5, 4, 3, 2, 1, 0), i64(0, 1, 2, 3, 4, 5)]

    results = []
    for order in orders:
        results.append((await loaded.infer({"x": x, "i": order}))["y"])
        assert ("skipped" if order[0] == 0 else "ran") == decision(loaded, "Gather")

    np.testing.assert_array_equal(kept, x)
    for order, result in zip(orders, results, strict=True):
        np.testing.assert_array_equal(kept[order], result)
        assert not np.shares_memory(result, x)


@pytest.mark.asyncio
async def test_shapes_of_a_request_are_not_seen_by_the_one_before(rt: Runtime) -> None:
    """Hazard: the record of shapes that kernels read is written anew while an earlier request still reads it."""
    nodes = [node("a = Transpose(x)", perm=[0, 2, 1]), node("b = Softmax(a)", axis=-1), node("y = Transpose(b)")]
    loaded = await rt.load(model(nodes, ["x f32[p,q,r]"], ["y"]))
    shapes = [(2, 3, 4), (4, 3, 2), (1, 30, 8), (8, 1, 30), (2, 12, 1), (24, 1, 1)] * 5
    alone = {s: (await loaded.infer({"x": floats(*s)}))["y"] for s in shapes}

    together = await asyncio.gather(*(loaded.infer({"x": floats(*s)}) for s in shapes))

    for shape, out in zip(shapes, together, strict=True):
        assert alone[shape].tobytes() == out["y"].tobytes(), shape


@pytest.mark.asyncio
async def test_weights_are_those_of_their_own_layout(rt: Runtime) -> None:
    """Hazard: a cache of packed weights recycles an entry that another layout or another constant made."""
    w, v = floats(8, 8, seed=1), floats(8, 8, seed=2)
    nodes = [node("a = MatMul(x, w)"), node("b = Gemm(a, w)", transB=1), node("y = MatMul(b, v)")]
    loaded = await rt.load(model(nodes, ["x f32[n,8]"], ["y"], {"w": w, "v": v}))

    for n in (1, 2, 17, 1, 64, 2):
        x = floats(n, 8, seed=n)
        out = await loaded.infer({"x": x})
        np.testing.assert_allclose(out["y"], x @ w @ w.T @ v, rtol=2e-4, atol=2e-4)


@pytest.mark.asyncio
async def test_an_alias_keeps_what_concurrent_requests_may_not_take(rt: Runtime) -> None:
    """Hazard: the bytes behind an alias are given away while a reader of the alias is still to come.

    Requests of all kinds at once; between the producer and the reader behind the skips others want its memory.
    """
    nodes = [
        node("a = Exp(x)"),
        node("b = Transpose(a)", perm=[1, 0]),
        node("c = Reshape(b, flat)"),
        *(node(f"w{i} = Neg({'x' if i == 0 else f'w{i - 1}'})") for i in range(5)),
        node("y = Neg(c)"),
        node("z = Identity(w4)"),
    ]
    loaded = await rt.load(model(nodes, ["x f32[n,m]"], ["y", "z"], {"flat": i64(-1)}))
    given = [floats(*shape, seed=i) for i, shape in enumerate([(1, 512), (16, 32), (512, 1), (32, 16)] * 8)]

    results = await asyncio.gather(*(loaded.infer({"x": x}) for x in given))

    for x, out in zip(given, results, strict=True):
        np.testing.assert_allclose(out["y"], -np.exp(x).T.reshape(-1), rtol=1e-5)
        np.testing.assert_array_equal(-x, out["z"])


LIFECYCLES: dict[str, tuple[str, list[Sequence[int]], Sequence[int] | None]] = {
    "broadcast to 1×2×3": ("Expand(x, to)", [(1, 2, 3), (1, 1, 3)], (1, 2, 3)),
    "resample to 2×3": ("Resize(x, , , to)", [(2, 3), (1, 6)], (2, 3)),
    "reorder": ("Identity(x)", [(2, 3), (1, 6)], None),
    "permute": ("Transpose(x)", [(1, 1, 3), (1, 2, 3)], None),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("name", LIFECYCLES)
async def test_an_output_that_is_an_alias_now_and_then_is_always_the_callers_own(rt: Runtime, name: str) -> None:
    """Hazard: an output bound to an alias in one request shows the next request's bytes.

    Skip, run, skip, run: after each step all earlier outputs still hold their values, and the inputs are untouched.
    """
    call, shapes, to = LIFECYCLES[name]
    attributes = {"perm": [0, 2, 1]} if name == "permute" else {"nearest_mode": "floor"} if to == (2, 3) else {}
    dims = ",".join("abc"[: len(shapes[0])])
    constants = {} if to is None else {"to": i64(*to)}
    loaded = await rt.load(model([node(f"y = {call}", **attributes)], [f"x f32[{dims}]"], ["y"], constants))
    async with Runtime(rt.info.spec, options=RuntimeOptions(without={"skip"}, warm=False)) as plain:
        other = await plain.load(model([node(f"y = {call}", **attributes)], [f"x f32[{dims}]"], ["y"], constants))
        given = [floats(*shape, seed=i) for i, shape in enumerate(shapes * 4)]
        expected = [(await other.infer({"x": x}))["y"].copy() for x in given]
    kept = [x.copy() for x in given]

    results = []
    for step, x in enumerate(given):
        results.append((await loaded.infer({"x": x}))["y"])
        assert ("ran" if step % 2 and name != "reorder" else "skipped") == loaded.explain().nodes[0].decision
        for e, r in zip(expected, results, strict=False):
            assert e.tobytes() == r.tobytes()

    for x, k in zip(given, kept, strict=True):
        np.testing.assert_array_equal(k, x)


@pytest.mark.asyncio
async def test_how_one_request_grew_does_not_size_another(rt: Runtime) -> None:
    """Hazard: the history of shapes belongs to a request, the buffers to the network, and they do not fit each other.

    One caller's sizes grow, another's shrink, a third's jump, in turns and at once: memory that was given with room, or
    without, is never too small for what comes next, and nobody sees another's bytes.
    """
    nodes = [node("a = Neg(x)"), node("b = Transpose(a)", perm=[1, 0]), node("y = Softmax(b)")]
    loaded = await rt.load(model(nodes, ["x f32[n,m]"], ["y"]))
    rising, falling, jumping = range(8, 40, 4), range(60, 28, -4), (3, 50, 1, 44, 2, 61, 5, 33)
    given = [floats(n, 16, seed=i) for turn in zip(rising, falling, jumping, strict=True) for i, n in enumerate(turn)]

    alone = [(await loaded.infer({"x": x}))["y"] for x in given]
    together = await asyncio.gather(*(loaded.infer({"x": x}) for x in given))

    for x, one, other in zip(given, alone, together, strict=True):
        e = np.exp(-x.T.astype(np.float64))
        np.testing.assert_allclose(e / e.sum(-1, keepdims=True), one, rtol=1e-5)
        assert one.tobytes() == other["y"].tobytes()


@pytest.mark.asyncio
async def test_a_fusion_that_one_shape_forbids_is_there_for_the_next(rt: Runtime) -> None:
    """Hazard: a node that was unfused for one shape stays unfused, or a fused one stays fused where it may not be.

    The sum is larger than the product for some requests; they come between others, in every order.
    """
    weights = np.random.default_rng(1).standard_normal((6, 5)).astype(np.float32)
    nodes = [node("p = MatMul(x, w)"), node("s = Add(p, b)"), node("y = Relu(s)")]
    loaded = await rt.load(model(nodes, ["x f32[n,6]", "b f32[k,5]"], ["y"], {"w": weights}))
    cases = [(4, 4), (1, 3), (4, 1), (1, 1), (1, 7)]

    for first, second in itertools.permutations(cases, 2):
        for n, k in (first, second, first):
            x, b = floats(n, 6), floats(k, 5, seed=2)
            out = await loaded.infer({"x": x, "b": b})
            np.testing.assert_allclose(np.maximum(x @ weights + b, 0), out["y"], rtol=1e-5, atol=1e-5)
            fused = [d.decision for d in loaded.explain()]
            assert fused == (["fused", "fused", "ran"] if rt.info.takes_source and n >= k else ["ran"] * 3), (n, k)


@pytest.mark.asyncio
async def test_bytes_in_order_are_asked_for_and_no_format(rt: Runtime) -> None:
    """Hazard: a transpose is skipped by its dims although the tensor lies in a blocked or a strided format.

    The input of the second transpose is a view: only unit axes move, and it is no skip of the bytes below.
    """
    nodes = [
        node("a = Neg(x)"),
        node("b = Transpose(a)", perm=[2, 0, 1]),
        node("c = Transpose(b)", perm=[1, 0, 2]),
        node("y = Softmax(c)"),
    ]
    loaded = await rt.load(model(nodes, ["x f32[p,q,r]"], ["y"]))

    for shape in ((1, 4, 3), (1, 4, 1), (1, 1, 3), (2, 4, 1)):
        x = floats(*shape)
        out = await loaded.infer({"x": x})
        e = np.exp(-x.transpose(2, 0, 1).transpose(1, 0, 2).astype(np.float64))
        np.testing.assert_allclose(e / e.sum(-1, keepdims=True), out["y"], rtol=1e-5)
