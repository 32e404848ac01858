"""Results that stay views of their inputs, and inputs of a Concat that are made where they belong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
import pytest_asyncio

from asyncrt import Model, Runtime, RuntimeOptions
from asyncrt.layout import Array

from ...builders import i64, model, node

DEVICES = ("simulated", "host", None)


@pytest_asyncio.fixture(params=DEVICES, ids=lambda d: d or "opencl")
async def rt(request: pytest.FixtureRequest) -> AsyncIterator[Runtime]:
    async with Runtime(request.param, streams=2, options=RuntimeOptions(warm=False)) as runtime:
        yield runtime
    assert runtime.statistics().memory.leases == 0


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def became(loaded: Model) -> dict[str, str]:
    """What became of each node of the last request, by its operator; the last of equal ones counts."""
    return {n.operator: n.decision for n in loaded.explain()}


async def launches(rt: Runtime, loaded: Model, **inputs: Array) -> tuple[int, dict[str, Array]]:
    """How many kernels a request takes, and what it gives."""
    before = rt.statistics().launches
    out = await loaded.infer(inputs)
    return rt.statistics().launches - before, out


@pytest.mark.asyncio
async def test_an_element_wise_reader_takes_a_view(rt: Runtime) -> None:
    """Transpose, Slice with steps, Expand and Split in a row cost no launch; the one reader does all of it."""
    nodes = [
        node("a = Neg(x)"),
        node("b = Transpose(a)", perm=[1, 0, 2]),
        node("c = Slice(b, starts, ends, axes, steps)"),
        node("d, e = Split(c, sizes)", axis=2),
        node("f = Expand(e, wide)"),
        node("y = Add(f, d)"),
    ]
    constants = {
        "starts": i64(1), "ends": i64(100), "axes": i64(1), "steps": i64(2), "sizes": i64(3, 1), "wide": i64(5, 1, 3),
    }  # fmt: skip
    loaded = await rt.load(model(nodes, ["x f32[5,5,4]"], ["y"], constants))
    x = floats(5, 5, 4)

    count, out = await launches(rt, loaded, x=x)

    moved = -x.transpose(1, 0, 2)[:, 1::2]
    np.testing.assert_array_equal(moved[..., 3:] + moved[..., :3], out["y"])
    assert count == 2
    views = ("Transpose", "Slice", "Split", "Expand")
    assert {"Neg": "ran", "Add": "ran", **dict.fromkeys(views, "view")} == became(loaded)


@pytest.mark.asyncio
async def test_a_reader_without_strides_gets_a_view_written_out_once(rt: Runtime) -> None:
    """Two such readers share the copy, and an element-wise reader after them takes it as well."""
    nodes = [
        node("a = Neg(x)"),
        node("b = Transpose(a)", perm=[1, 0]),
        node("c = Softmax(b)", axis=1),
        node("d = Softmax(b)", axis=0),
        node("y = Sum(b, c, d)"),
    ]
    loaded = await rt.load(model(nodes, ["x f32[n,m]"], ["y"]))
    x = floats(7, 4)

    count, out = await launches(rt, loaded, x=x)

    t = np.exp(-x.T.astype(np.float64))
    np.testing.assert_allclose(-x.T + t / t.sum(1, keepdims=True) + t / t.sum(0), out["y"], rtol=1e-5)
    (transposed,) = (n for n in loaded.explain() if n.operator == "Transpose")
    assert (transposed.decision, transposed.implementation) == ("ran", "copy")
    if rt.device.info.takes_source:
        assert count == 5


@pytest.mark.asyncio
async def test_a_reshape_of_a_view_is_a_view_where_strides_say_it(rt: Runtime) -> None:
    """Heads split further stay a view; heads merged back do not, and are written out first."""
    nodes = [
        node("a = Neg(x)"),
        node("b = Transpose(a)", perm=[0, 2, 1, 3]),
        node("c = Reshape(b, shape)"),
        node("y = Neg(c)"),
    ]
    split = await rt.load(model(nodes, ["x f32[2,5,3,4]"], ["y"], {"shape": i64(2, 3, 5, 2, 2)}))
    merged = await rt.load(model(nodes, ["x f32[2,5,3,4]"], ["y"], {"shape": i64(2, 15, 4)}))
    x = floats(2, 5, 3, 4)

    counts = []
    for loaded, shape in ((split, (2, 3, 5, 2, 2)), (merged, (2, 15, 4))):
        count, out = await launches(rt, loaded, x=x)
        counts.append(count)
        np.testing.assert_array_equal(x.transpose(0, 2, 1, 3).reshape(shape), out["y"])

    assert counts == [2, 3]
    assert became(split) == {"Neg": "ran", "Transpose": "view", "Reshape": "view"}
    assert became(merged) == {"Neg": "ran", "Transpose": "ran", "Reshape": "skipped"}


@pytest.mark.asyncio
async def test_a_view_that_comes_back_to_its_own_order_is_a_skip(rt: Runtime) -> None:
    """A transpose there and a transpose back are the input's bytes."""
    nodes = [
        node("a = Neg(x)"),
        node("b = Transpose(a)", perm=[1, 2, 0]),
        node("c = Transpose(b)", perm=[2, 0, 1]),
        node("y = Softmax(c)"),
    ]
    loaded = await rt.load(model(nodes, ["x f32[a,b,c]"], ["y"]))
    x = floats(2, 3, 5)

    count, out = await launches(rt, loaded, x=x)

    e = np.exp(-x.astype(np.float64))
    np.testing.assert_allclose(e / e.sum(-1, keepdims=True), out["y"], rtol=1e-5)
    assert [n.decision for n in loaded.explain() if n.operator == "Transpose"] == ["view", "skipped"]
    if rt.device.info.takes_source:
        assert count == 2


@pytest.mark.asyncio
async def test_views_that_leave_their_chunk_are_written_out(rt: Runtime) -> None:
    """A graph output, and a value that a later chunk reads after the host has read a count."""
    nodes = [
        node("a = Neg(x)"),
        node("b = Transpose(a)", perm=[1, 0]),
        node("found = NonZero(flags)"),
        node("count = Shape(found)"),
        node("last = Gather(count, one)"),
        node("wide = Unsqueeze(last, zero)"),
        node("filled = ConstantOfShape(wide)"),
        node("total = ReduceSum(filled)", keepdims=0),
        node("y = Add(b, total)"),
    ]
    constants = {"one": np.array(1, np.int64), "zero": i64(0)}
    loaded = await rt.load(model(nodes, ["x f32[n,m]", "flags bool[k]"], ["y", "b"], constants))
    x, flags = floats(3, 4), np.array([True, False, True])

    out = await loaded.infer({"x": x, "flags": flags})

    np.testing.assert_array_equal(-x.T, out["b"])
    np.testing.assert_array_equal(-x.T, out["y"])


@pytest.mark.asyncio
async def test_matrix_products_take_views_whose_rows_are_contiguous(rt: Runtime) -> None:
    """Heads of queries and of keys are read where they lie; the result is that of written-out heads, bit for bit."""
    nodes = [
        node("q = MatMul(x, wq)"), node("q4 = Reshape(q, heads)"), node("qh = Transpose(q4)", perm=[0, 2, 1, 3]),
        node("v = MatMul(x, wv)"), node("v4 = Reshape(v, heads)"), node("vh = Transpose(v4)", perm=[0, 2, 1, 3]),
        node("k = MatMul(x, wv)"), node("k4 = Reshape(k, heads)"), node("kt = Transpose(k4)", perm=[0, 2, 3, 1]),
        node("s = MatMul(qh, kt)"), node("p = Softmax(s)"), node("y = MatMul(p, vh)"),
    ]  # fmt: skip
    constants = {"wq": floats(24, 32, seed=1), "wv": floats(24, 32, seed=2), "heads": i64(0, 0, 4, 8)}
    source = model(nodes, ["x f32[b,s,24]"], ["y"], constants)
    loaded = await rt.load(source)
    x = floats(2, 9, 24)

    out = await loaded.infer({"x": x})
    async with Runtime(rt.device.info.spec, options=RuntimeOptions(warm=False, without={"views"})) as plain:
        expected = await (await plain.load(source)).infer({"x": x})

    assert expected["y"].tobytes() == out["y"].tobytes()
    decisions = {n.output_names[0]: n.decision for n in loaded.explain()}
    assert decisions["qh"] == decisions["vh"] == "view"


@pytest.mark.asyncio
@pytest.mark.parametrize("rows", [1, 3, 12])
@pytest.mark.parametrize("packed", [False, True], ids=["heads on an axis", "heads in a row"])
async def test_attention_takes_views_of_its_heads_and_of_what_is_cached(
    rt: Runtime, rows: int, packed: bool
) -> None:
    """One matrix holds queries, keys and values, and the cache has its axes in another order; bit for bit."""
    heads = [node(f"{n}h = Transpose({n}4)", perm=[0, 2, 1, 3]) for n in "qkv"]
    lying = [node(f"{n}4 = Reshape({n}, heads)") for n in "qkv"] + heads
    given = "q, k, v" if packed else "qh, kh, vh"
    kinds = {"q_num_heads": 4, "kv_num_heads": 4} if packed else {}
    nodes = [
        node("all = MatMul(x, w)"), node("q, k, v = Split(all)", axis=2, num_outputs=3), *([] if packed else lying),
        node("n = Neg(cache)"), node("past = Transpose(n)", perm=[1, 2, 0, 3]),
        node(f"y, pk, pv = Attention({given}, , past, past)", is_causal=1, **kinds),
    ]  # fmt: skip
    constants = {"w": floats(24, 96, seed=1), "heads": i64(0, 0, 4, 8)}
    source = model(nodes, ["x f32[b,s,24]", "cache f32[p,b,4,8]"], ["y", "pk", "pv"], constants, opset=23)
    loaded = await rt.load(source)
    inputs = {"x": floats(2, rows, 24), "cache": floats(5, 2, 4, 8)}

    out = await loaded.infer(inputs)
    async with Runtime(rt.device.info.spec, options=RuntimeOptions(warm=False, without={"views"})) as plain:
        expected = await (await plain.load(source)).infer(inputs)

    decisions = {n.output_names[0]: n.decision for n in loaded.explain()}
    viewed = {"q", "past"} | (set() if packed else {"qh", "kh", "vh"})
    assert {decisions[name] for name in viewed} <= {"view", "skipped"}
    assert decisions["past"] == "view"
    for name, value in expected.items():
        assert value.tobytes() == out[name].tobytes()


# Concat in place.


def _branches(*lengths: int, axis: int = 0) -> onnx.ModelProto:
    """One kernel for each branch of that many columns, all laid side by side, and a reader."""
    nodes = [node(f"b{i} = Gather(x, rows{i})", axis=0) for i in range(len(lengths))]
    nodes += [node(f"c{i} = Neg(b{i})") for i in range(len(lengths))]
    nodes += [node(f"all = Concat({', '.join(f'c{i}' for i in range(len(lengths)))})", axis=axis), node("y = Abs(all)")]
    rows = {f"rows{i}": np.arange(n, dtype=np.int64)[::-1] * 2 % 5 for i, n in enumerate(lengths)}
    return model(nodes, ["x f32[5,m]"], ["y"], rows)


@pytest.mark.asyncio
async def test_producers_write_into_the_result_of_a_concat(rt: Runtime) -> None:
    """No copy is launched, and the bytes are those of copying."""
    loaded = await rt.load(_branches(3, 2, 4))
    x = floats(5, 6)

    count, out = await launches(rt, loaded, x=x)

    rows = np.concatenate([np.arange(n)[::-1] * 2 % 5 for n in (3, 2, 4)])
    np.testing.assert_array_equal(np.abs(x[rows]), out["y"])
    (concat,) = (n for n in loaded.explain() if n.operator == "Concat")
    assert concat.implementation == "in place, 3 of 3 inputs"
    assert count == 6 + 1


@pytest.mark.asyncio
async def test_concats_cascade(rt: Runtime) -> None:
    """The part of a part is written where it ends up; each value is right for its other readers too."""
    nodes = [
        node("a = Neg(x)"), node("b = Abs(x)"), node("c = Exp(x)"), node("d = Sqrt(b)"),
        node("ab = Concat(a, b)", axis=0), node("abc = Concat(c, ab)", axis=0), node("all = Concat(abc, d)", axis=0),
        node("y = Neg(all)"), node("z = Softmax(ab)"), node("w = Neg(b)"),
    ]  # fmt: skip
    loaded = await rt.load(model(nodes, ["x f32[n,m]"], ["y", "z", "w", "ab"]))
    x = floats(3, 4)

    _count, out = await launches(rt, loaded, x=x)

    ab = np.concatenate([-x, np.abs(x)])
    np.testing.assert_allclose(-np.concatenate([np.exp(x), ab, np.sqrt(np.abs(x))]), out["y"], rtol=1e-6)
    np.testing.assert_allclose(np.exp(ab) / np.exp(ab).sum(-1, keepdims=True), out["z"], rtol=1e-5)
    np.testing.assert_array_equal(-np.abs(x), out["w"])
    np.testing.assert_array_equal(ab, out["ab"])
    assert [n.implementation for n in loaded.explain() if n.operator == "Concat"] == ["in place, 2 of 2 inputs"] * 3


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("call", "expected", "in_place"),
    [
        ("all = Concat(a, a)", lambda x: [-x, -x], 1),  # a tensor is at one place
        ("all = Concat(a, part)", lambda x: [-x, -x[:2]], 1),  # an alias of part of it is copied from there
        ("all = Concat(a, w)", lambda x: [-x, np.ones((2, 4))], 1),  # a constant is copied
        ("all = Concat(x, a)", lambda x: [x, -x], 1),  # an input that travels with others is copied
        ("all = Concat(a, turned)", lambda x: [-x, -x[::-1]], 1),  # what was written out is a tensor
    ],
)
async def test_what_cannot_be_in_place_is_copied(
    rt: Runtime, call: str, expected: Callable[[Array], Sequence[Array]], in_place: int
) -> None:
    """And only that; a tensor that is one of the inputs twice is copied the second time."""
    nodes = [node("a = Neg(x)"), node("part = Slice(a, zero, two)"), node("turned = Slice(a, end, far, zero, back)")]
    nodes += [node(call, axis=0), node("y = Neg(all)")]
    constants: dict[str, Any] = {
        "zero": i64(0), "two": i64(2), "end": i64(-1), "far": i64(-100), "back": i64(-1),
        "w": np.ones((2, 4), np.float32),
    }  # fmt: skip
    loaded = await rt.load(model(nodes, ["x f32[4,4]"], ["y"], constants))
    x = floats(4, 4)

    out = await loaded.infer({"x": x})

    np.testing.assert_array_equal(-np.concatenate(expected(x)), out["y"])
    (concat,) = (n for n in loaded.explain() if n.operator == "Concat")
    assert concat.implementation.startswith(("in place, 1", "in place, 2")), concat


@pytest.mark.asyncio
async def test_a_large_input_is_uploaded_to_its_part(rt: Runtime) -> None:
    """A tensor that a request brings need not be copied on the device."""
    loaded = await rt.load(model([node("a = Neg(x)"), node("y = Concat(x, a)", axis=0)], ["x f32[n,64]"], ["y"]))
    x = floats(40, 64)

    count, out = await launches(rt, loaded, x=x)

    np.testing.assert_array_equal(np.concatenate([x, -x]), out["y"])
    assert count == 1


@pytest.mark.asyncio
async def test_a_concat_along_an_inner_axis_copies(rt: Runtime) -> None:
    """Its parts are not one piece of memory each, until the axes before it are units."""
    nodes = [node("a = Neg(x)"), node("b = Abs(x)"), node("c = Concat(a, b)", axis=1), node("y = Neg(c)")]
    loaded = await rt.load(model(nodes, ["x f32[n,m]"], ["y"]))

    how = []
    for n in (3, 1, 2, 1):
        x = floats(n, 5)
        out = await loaded.infer({"x": x})
        np.testing.assert_array_equal(-np.concatenate([-x, np.abs(x)], 1), out["y"])
        how.append(next(e.implementation for e in loaded.explain() if e.operator == "Concat"))

    assert [h.startswith("in place") for h in how] == [False, True, False, True]


@pytest.mark.asyncio
async def test_many_requests_at_once_do_not_see_each_others_parts(rt: Runtime) -> None:
    """Shapes at which the Concat is in place, and shapes at which views come and go, side by side."""
    nodes = [
        node("a = Neg(x)"), node("t = Transpose(a)", perm=[1, 0]), node("b = Abs(t)"), node("e = Exp(t)"),
        node("c = Concat(b, e)", axis=1), node("y = Neg(c)"),
    ]  # fmt: skip
    loaded = await rt.load(model(nodes, ["x f32[n,m]"], ["y"]))
    given = [floats(n, m, seed=i) for i, (n, m) in enumerate([(1, 5), (5, 1), (3, 4), (2, 2)] * 6)]

    results = await asyncio.gather(*(loaded.infer({"x": x}) for x in given))

    for x, out in zip(given, results, strict=True):
        np.testing.assert_allclose(-np.concatenate([np.abs(x.T), np.exp(-x.T)], 1), out["y"], rtol=1e-6)
