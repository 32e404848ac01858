"""Several nodes as one kernel: the same results as one after the other, and one after the other where shapes say so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import onnx
import pytest

from asyncrt import Model, Runtime, RuntimeOptions
from asyncrt.layout import Array
from asyncrt.mechanisms import Mechanism

from ...builders import i64, model, node
from ...paths import off
from ...zoo import ZooModel, some, zoo

CLOSE = {"rtol": 2e-6, "atol": 2e-6}  # another order of adding; elements at the end of a row without vectors
EXACT = {"rtol": 0, "atol": 0}
HALVES = {"rtol": 4e-3, "atol": 4e-3}  # those between the parts of a group are not rounded


@attrs.frozen
class Case:
    """A model of one group.

    Attributes:
        allowed: Shapes of its inputs for which it is one kernel.
        forbidden: Shapes for which it is not.
        why: What `explain()` says then.
        tolerance: Between fused and not.
        launches: Of the one kernel, with those that prepare what it reads.
    """

    nodes: Sequence[onnx.NodeProto]
    inputs: Sequence[str]
    allowed: Mapping[str, tuple[int, ...]]
    constants: Mapping[str, Array] = {}
    forbidden: Mapping[str, tuple[int, ...]] = {}
    why: str = ""
    tolerance: Mapping[str, float] = CLOSE
    launches: int = 1

    def model(self) -> onnx.ModelProto:
        return model(self.nodes, self.inputs, ["y"], self.constants)


def random(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Array:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape)).astype(dtype)


def given(case: Case, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    kinds = {"f32": np.float32, "f16": np.float16, "u8": np.uint8, "i64": np.int64, "bool": np.bool_}
    feeds: dict[str, Array] = {}
    for number, text in enumerate(case.inputs):
        name, kind = text.split()
        drawn = random(*shapes[name], seed=number)
        dtype = kinds[kind.split("[")[0]]
        drawn = drawn > 0 if dtype is np.bool_ else np.abs(drawn * 3) if dtype in (np.int64, np.uint8) else drawn
        feeds[name] = drawn.astype(dtype)
    return feeds


NORM = [
    node("m = ReduceMean(x, axes)"),
    node("d = Sub(x, m)"),
    node("q = Pow(d, two)"),
    node("v = ReduceMean(q, axes)"),
    node("e = Add(v, epsilon)"),
    node("s = Sqrt(e)"),
]
GELU = [
    node("q = Div(x, root)"),
    node("e = Erf(q)"),
    node("f = Add(e, one)"),
    node("g = Mul(x, f)"),
    node("y = Mul(g, half)"),
]
ATTENTION = [
    node("t = Transpose(k)", perm=[0, 2, 3, 1]),
    node("p = MatMul(q, t)"),
    node("s = Div(p, root)"),
    node("b = Add(s, m)"),
    node("u = Softmax(b)", axis=-1),
    node("o = MatMul(u, v)"),
    node("y = Transpose(o)", perm=[0, 2, 1, 3]),
]
FOLDED = [
    node("f = Reshape(k, folding)"), node("r = Transpose(f)", perm=[0, 2, 1]), node("t = Reshape(r, unfolding)"),
    node("c = Mul(q, half)"), node("d = Mul(t, half)"), node("p = MatMul(c, d)"), node("b = Add(p, m)"),
    node("u = Softmax(b)", axis=-1), node("n = IsNaN(u)"), node("w = Where(n, zero, u)"), node("y = MatMul(w, v)"),
]  # fmt: skip
HEADS = ["q f32[a,h,s,16]", "k f32[a,n,h,16]", "v f32[a,h,n,24]", "m f32[c,1,s,l]"]
NUMBERS = {
    "axes": i64(-1), "two": np.float32(2), "epsilon": np.float32(1e-5), "one": np.float32(1), "half": np.float32(0.5),
    "root": np.float32(2**0.5),
    "three": np.float32(3), "c": np.float32(0.044715), "steep": np.float32((2 / np.pi) ** 0.5),
    "scale": random(40, seed=5), "bias": random(40, seed=6), "w": random(24, 40, seed=7), "far": np.float32(-1e4),
}  # fmt: skip
FILTERS = {
    "filters": random(20, 4, 3, 3, seed=8), "shift": random(20, seed=9), "cell": random(20, 4, 1, 1, seed=10),
    "planes": random(4, 1, 3, 3, seed=11), "back": random(4, 12, 2, 2, dtype=np.float16),
    "factors": random(20, 1, 1, seed=13),
    "zero": np.float32(0), "six": np.float32(6),
}  # fmt: skip
WIDE = {"x": (2, 3, 40)}
BROADCAST = "has fewer elements than the result"

CASES = {
    "attention": Case(
        ATTENTION, HEADS, {"q": (2, 3, 5, 16), "k": (2, 7, 3, 16), "v": (2, 3, 7, 24), "m": (2, 1, 5, 7)}, NUMBERS,
        {"q": (2, 3, 5, 16), "k": (2, 7, 3, 16), "v": (2, 3, 7, 24), "m": (2, 1, 5, 1)},
        "the mask has no element for each key",
    ),
    "attention of long sequences, and a mask that makes a batch of it": Case(
        ATTENTION, HEADS, {"q": (1, 3, 70, 16), "k": (1, 90, 3, 16), "v": (1, 3, 90, 24), "m": (1, 1, 70, 90)}, NUMBERS,
        {"q": (1, 3, 70, 16), "k": (1, 90, 3, 16), "v": (1, 3, 90, 24), "m": (2, 1, 70, 90)},
        "the mask makes [2,3,70,90] of scores of [1,3,70,90]",
    ),
    "attention without heads, mask and scale": Case(
        [
            node("t = Transpose(k)", perm=[0, 2, 1]), node("p = MatMul(q, t)"), node("w = Softmax(p)", axis=2),
            node("y = MatMul(w, v)"),
        ],
        ["q f32[a,s,16]", "k f32[a,n,16]", "v f32[a,n,24]"], {"q": (2, 5, 16), "k": (2, 7, 16), "v": (2, 7, 24)},
    ),
    "attention of halves, scaled by a product": Case(
        [*ATTENTION[:2], node("s = Mul(factor, p)"), *ATTENTION[3:6], node("y = Transpose(o)", perm=[0, 1, 2, 3])],
        [h.replace("f32", "f16") for h in HEADS],
        {"q": (2, 3, 5, 16), "k": (2, 7, 3, 16), "v": (2, 3, 7, 24), "m": (1, 1, 5, 7)},
        {"factor": np.float16(0.25)}, tolerance={"rtol": 3e-3, "atol": 3e-3},
    ),
    "attention with folded heads, scaled beforehand, and looked through for NaN": Case(
        FOLDED, ["q f32[2,3,s,8]", "k f32[2,3,n,d]", "v f32[2,3,14,24]", "m f32[c,1,s,14]"],
        {"q": (2, 3, 5, 8), "k": (2, 3, 14, 8), "v": (2, 3, 14, 24), "m": (2, 1, 5, 14)},
        {"half": NUMBERS["half"], "zero": np.float32(0), "folding": i64(-1, 14, 8), "unfolding": i64(2, 3, 8, 14)},
        {"q": (2, 3, 5, 8), "k": (2, 3, 7, 16), "v": (2, 3, 14, 24), "m": (2, 1, 5, 14)},
        "reshapes of the keys do more than fold their heads",
    ),
    "layer normalization": Case(
        [*NORM, node("n = Div(d, s)"), node("t = Mul(n, scale)"), node("y = Add(t, bias)")],
        ["x f32[a,b,40]"], WIDE, NUMBERS,
    ),
    "layer normalization with a reciprocal, and its constants first": Case(
        [*NORM, node("r = Reciprocal(s)"), node("n = Mul(d, r)"), node("t = Mul(scale, n)"), node("y = Add(bias, t)")],
        ["x f32[a,b,40]"], WIDE, NUMBERS,
    ),
    "layer normalization by an input that may enlarge it": Case(
        [*NORM, node("n = Div(d, s)"), node("t = Mul(n, z)"), node("y = Add(t, bias)")],
        ["x f32[a,b,40]", "z f32[c,1,40]"], {"x": (3, 3, 40), "z": (1, 1, 40)}, NUMBERS,
        {"x": (1, 3, 40), "z": (3, 1, 40)}, "the result is float32[3,3,40], what is normalised float32[1,3,40]",
    ),
    "root mean square normalization": Case(
        [node("q = Mul(x, x)"), *NORM[3:6], node("n = Div(x, s)"), node("y = Mul(n, scale)")],
        ["x f32[a,b,40]"], WIDE, NUMBERS,
    ),
    "root mean square normalization of halves in float": Case(
        [
            node("u = Cast(x)", to=1), node("q = Pow(u, two)"), *NORM[3:6], node("n = Div(u, s)"),
            node("h = Cast(n)", to=10), node("y = Mul(h, gain)"),
        ],
        ["x f16[a,b,40]"], WIDE, {**NUMBERS, "gain": random(40, dtype=np.float16)},
        tolerance={"rtol": 2e-3, "atol": 2e-3},
    ),
    "gelu": Case(GELU, ["x f32[a,b,40]"], WIDE, NUMBERS),
    "gelu by tanh": Case(
        [
            node("p = Pow(x, three)"), node("q = Mul(c, p)"), node("r = Add(x, q)"), node("s = Mul(steep, r)"),
            node("t = Tanh(s)"), node("u = Add(one, t)"), node("v = Mul(x, u)"), node("y = Mul(half, v)"),
        ],
        ["x f32[a,b,40]"], WIDE, NUMBERS,
    ),
    "silu of halves": Case(
        [node("s = Sigmoid(x)"), node("p = Mul(x, s)"), node("y = Add(p, x)")],
        ["x f16[a,b,40]"], WIDE, tolerance=HALVES,
    ),
    "a mask from integers": Case(
        [node("f = Cast(m)", to=1), node("s = Sub(one, f)"), node("t = Mul(s, far)"), node("y = Add(x, t)")],
        ["x f32[a,b,40]", "m i64[a,1,40]"], {"x": (2, 3, 40), "m": (2, 1, 40)}, NUMBERS, tolerance=EXACT,
    ),
    "conditions": Case(
        [
            node("l = Less(x, z)"), node("n = Not(l)"), node("o = Or(n, m)"), node("p = Where(o, x, far)"),
            node("r = Relu(p)"), node("t = Clip(r, half, two)"), node("u = Max(t, z)"), node("y = IsNaN(u)"),
        ],
        ["x f32[a,b,40]", "z f32[a,1,40]", "m bool[40]"], {"x": (2, 3, 40), "z": (2, 1, 40), "m": (40,)}, NUMBERS,
        tolerance=EXACT,
    ),
    "a part that is smaller and dear": Case(
        [node("e = Exp(x)"), node("y = Mul(e, z)")],
        ["x f32[a,b]", "z f32[c,b]"], {"x": (3, 40), "z": (3, 40)}, {}, {"x": (1, 40), "z": (3, 40)}, BROADCAST,
    ),
    "a product with bias and residual": Case(
        [node("p = MatMul(x, w)"), node("b = Add(bias, p)"), node("y = Add(b, z)")],
        ["x f32[a,b,24]", "z f32[c,b,40]"], {"x": (2, 3, 24), "z": (2, 3, 40)}, NUMBERS,
        {"x": (1, 3, 24), "z": (2, 3, 40)}, "the result is larger than the product", tolerance=EXACT,
    ),
    "a product with bias and gelu": Case(
        [node("p = MatMul(h, w)"), node("x = Add(p, bias)"), *GELU],
        ["h f32[a,b,24]"], {"h": (2, 5, 24)}, NUMBERS,
    ),
    "a product of inputs, scaled and masked": Case(
        [
            node("t = Transpose(k)", perm=[0, 2, 1]), node("p = MatMul(q, t)"), node("s = Mul(p, half)"),
            node("y = Add(s, m)"),
        ],
        ["q f32[a,b,24]", "k f32[a,c,24]", "m f32[a,1,c]"], {"q": (2, 3, 24), "k": (2, 7, 24), "m": (2, 1, 7)},
        {"half": NUMBERS["half"]}, tolerance=EXACT,
    ),
    "a Gemm with an activation": Case(
        [node("g = Gemm(x, w, bias)", alpha=0.5), node("y = Tanh(g)")],
        ["x f32[a,24]"], {"x": (5, 24)}, NUMBERS,
    ),
    "a convolution with a residual connection and an activation": Case(
        [node("c = Conv(x, filters, shift)"), node("a = Add(c, z)"), node("y = Relu(a)")],
        ["x f32[a,4,h,w]", "z f32[c,20,i,j]"], {"x": (2, 4, 7, 9), "z": (2, 20, 5, 7)}, FILTERS,
        {"x": (1, 4, 7, 9), "z": (2, 20, 5, 7)}, "the result is larger than the product", tolerance=EXACT,
    ),
    "a convolution of one cell, bent and scaled for each channel": Case(
        [node("c = Conv(x, cell)"), node("r = Relu(c)"), node("a = Mul(r, factors)"), node("y = Clip(a, zero, six)")],
        ["x f32[a,4,h,w]"], {"x": (2, 4, 5, 7)}, FILTERS, tolerance=EXACT,
    ),
    "a convolution of each channel with silu": Case(
        [node("c = Conv(x, planes)", group=4), node("s = Sigmoid(c)"), node("y = Mul(c, s)")],
        ["x f32[a,4,h,w]"], {"x": (2, 4, 7, 21)}, FILTERS,
    ),
    "a convolution of integers with a bias of integers, scaled and bent": Case(
        [
            node("c = ConvInteger(x, bytes)"), node("b = Add(c, whole)"), node("f = Cast(b)", to=1),
            node("a = Mul(f, half)"), node("s = Sigmoid(a)"), node("y = Mul(a, s)"),
        ],
        ["x u8[a,4,h,w]"], {"x": (2, 4, 7, 21)},
        {
            "bytes": (random(20, 4, 3, 3, seed=14) * 20).astype(np.int8), "half": NUMBERS["half"],
            "whole": (random(1, 20, 1, 1, seed=15) * 50).astype(np.int32),
        },
        launches=2,
    ),
    "a bias that becomes integers": Case(
        [node("d = Div(x, z)"), node("f = Floor(d)"), node("i = Cast(f)", to=6), node("y = Sub(i, two)")],
        ["x f32[a,37]", "z f32[1]"], {"x": (2, 37), "z": (1,)}, {"two": np.int32(2)}, tolerance=EXACT,
    ),
    "a transposed convolution with an activation": Case(
        [node("c = ConvTranspose(x, back)"), node("y = Tanh(c)")],
        ["x f16[a,4,h,w]"], {"x": (1, 4, 5, 6)}, FILTERS, tolerance={"rtol": 2e-3, "atol": 2e-3},
    ),
    "a convolution of halves": Case(
        [node("c = Conv(x, halves)"), node("b = Add(c, z)"), node("y = Mul(b, b)")],
        ["x f16[a,4,h,w]", "z f16[k]"], {"x": (1, 4, 6, 6), "z": (4,)},
        {"halves": random(5, 4, 3, 3, dtype=np.float16)}, tolerance=HALVES,
    ),
    "a product of halves": Case(
        [node("p = MatMul(x, z)"), node("b = Add(p, h)"), node("y = Mul(b, b)")],
        ["x f16[a,24]", "z f16[24,b]", "h f16[b]"], {"x": (5, 24), "z": (24, 33), "h": (33,)}, tolerance=HALVES,
    ),
    "halves that the model rounds itself": Case(
        [node("s = Exp(x)"), node("h = Cast(s)", to=10), node("w = Cast(h)", to=1),
         node("y = Sub(s, w)")],
        ["x f32[a,b,40]"], WIDE, tolerance=EXACT,
    ),
    "gelu across a Reshape that makes rows of a batch": Case(
        [node("x = Add(h, bias)"), node("t = Tanh(x)"), node("r = Reshape(t, rows)"), node("y = Mul(r, z)")],
        ["h f32[a,b,40]", "z f32[c,40]"], {"h": (2, 3, 40), "z": (6, 40)}, {**NUMBERS, "rows": i64(-1, 40)},
    ),
    "operands that are read in the shapes that they were given": Case(
        [
            node("p = Mul(x, z)"), node("t = Transpose(p)", perm=[1, 0, 2]), node("s = Add(t, u)"),
            node("e = Unsqueeze(s, first)"), node("y = Sub(e, bias)"),
        ],
        ["x f32[a,b,40]", "z f32[a,b,1]", "u f32[b,a,40]"],
        {"x": (1, 3, 40), "z": (1, 3, 1), "u": (3, 1, 40)}, {**NUMBERS, "first": i64(0)},
        tolerance=EXACT,
    ),
    "a product, and an activation in another shape": Case(
        [
            node("p = MatMul(x, w)"), node("b = Add(p, bias)"), node("r = Reshape(b, heads)"),
            node("m = Mul(r, z)"), node("y = Tanh(m)"),
        ],
        ["x f32[a,b,24]", "z f32[c,1,5,8]"], {"x": (2, 3, 24), "z": (2, 1, 5, 8)},
        {**NUMBERS, "heads": i64(0, 0, 5, 8)},
    ),
    "a product of heads, and a mask for each batch of them": Case(
        [node("p = MatMul(x, w)"), node("r = Reshape(p, batches)"), node("y = Add(r, z)")],
        ["x f32[a,3,24]", "z f32[b,1,3,40]"], {"x": (2, 3, 24), "z": (1, 1, 3, 40)},
        {**NUMBERS, "batches": i64(-1, 2, 3, 40)}, {"x": (4, 3, 24), "z": (2, 1, 3, 40)},
        "no strides say where a result of", tolerance=EXACT,
    ),
    "a product behind a Slice that may keep all": Case(
        [node("p = MatMul(x, w)"), node("r = Slice(p, zeros, tens, ones)"), node("y = Add(r, bias)")],
        ["x f32[a,b,24]"], {"x": (2, 7, 24)},
        {**NUMBERS, "zeros": i64(0), "tens": i64(10), "ones": i64(1)}, {"x": (2, 17, 24)},
        "moves data for these shapes or values", tolerance=EXACT,
    ),
    "a smaller value that is given a shape and broadcast": Case(
        [node("n = Neg(z)"), node("r = Unsqueeze(n, last)"), node("s = Sub(x, r)"), node("y = Relu(s)")],
        ["x f32[a,b,40]", "z f32[a,b]"], {"x": (2, 3, 40), "z": (2, 3)}, {"last": i64(2)}, tolerance=EXACT,
    ),
}  # fmt: skip


def as_it_says(*others: Mechanism) -> RuntimeOptions:
    """Return options for a model that is carried out in the dtypes that it says, without *others* as well."""
    return RuntimeOptions(warm=False, without={"widen_floats", *others})


async def results(
    case: Case, device: str | None, feeds: Sequence[dict[str, Array]], *without: Mechanism
) -> list[Array]:
    async with Runtime(device, options=as_it_says(*without)) as rt:
        loaded = await rt.load(case.model())
        return [(await loaded.infer(f))["y"] for f in feeds]


def decisions(loaded: Model) -> list[str]:
    return [n.decision for n in loaded.explain() if n.decision not in ("host", "skipped", "view")]


@pytest.mark.asyncio
@pytest.mark.parametrize("case", [pytest.param(c, id=name) for name, c in CASES.items()])
async def test_a_group_is_one_kernel_and_gives_what_its_parts_give(case: Case) -> None:
    """The last node ran and the others are fused into it; `explain()` says so."""
    feeds = given(case, case.allowed)

    async with Runtime(options=as_it_says()) as rt:
        loaded = await rt.load(case.model())
        fused = (await loaded.infer(feeds))["y"]
        explained = [n for n in loaded.explain() if n.decision != "view"]
        launches = rt.statistics().launches
    apart = await results(case, None, [feeds], "fuse")

    assert launches == (case.launches if rt.info.is_cpu else 1)  # GPUs gather element by element: nothing is prepared
    assert ["fused"] * (len(explained) - 1) + ["ran"] == [n.decision for n in explained]
    assert {f"fused into {explained[-1].node}"} == {n.why for n in explained[:-1]}
    assert len({n.implementation for n in explained}) == 1
    assert apart[0].dtype == fused.dtype
    np.testing.assert_allclose(fused.astype(np.float64), apart[0].astype(np.float64), **case.tolerance)


@pytest.mark.asyncio
@pytest.mark.parametrize("product", [False, True])
async def test_halves_between_the_parts_of_a_group_are_not_rounded(product: bool) -> None:
    """So a group is nearer to what exact numbers give than its parts one after the other."""
    first = node("p = MatMul(x, z)" if product else "p = Mul(x, x)")
    nodes = [first, node("q = Add(p, h)"), node("r = Mul(q, q)"), node("y = Add(r, h)")]
    case = Case(nodes, ["x f16[a,24]", "z f16[24,b]", "h f16[b]"], {"x": (64, 24), "z": (24, 24), "h": (24,)})
    feeds = given(case, case.allowed)
    x, z, h = (feeds[name].astype(np.float64) for name in "xzh")
    exact = np.square((x @ z if product else x * x) + h) + h

    fused, apart = [(await results(case, None, [feeds], *how))[0] for how in ((), ("fuse",))]

    off = [float(np.sqrt(np.mean(np.square((y - exact) / np.abs(exact).max())))) for y in (fused, apart)]
    assert off[0] < 0.8 * off[1]


@pytest.mark.asyncio
@pytest.mark.parametrize("case", [pytest.param(c, id=name) for name, c in CASES.items() if c.forbidden])
async def test_a_shape_that_forbids_it_gives_the_plan_without_it_and_the_next_one_may_fuse_again(case: Case) -> None:
    """Whether nodes are fused is decided for each shape, and does not depend on the requests before."""
    allowed, forbidden = given(case, case.allowed), given(case, case.forbidden)
    found: list[tuple[Array, list[str], str]] = []

    async with Runtime(options=RuntimeOptions(warm=False)) as rt:
        loaded = await rt.load(case.model())
        for feeds in (allowed, forbidden, allowed, forbidden):
            result = (await loaded.infer(feeds))["y"]
            found.append((result, decisions(loaded), " ".join(n.why for n in loaded.explain())))
    apart = await results(case, None, [allowed, forbidden], "fuse")

    nodes = len(case.nodes)
    for (result, decided, why), fused in zip(found, (True, False, True, False), strict=True):
        expected = apart[0] if fused else apart[1]
        if fused:
            assert decided == ["fused"] * (nodes - 1) + ["ran"]
        else:
            assert len(decided) > 1
            assert set(decided) == {"ran"}
        assert (case.why in why) is not fused
        if fused:
            np.testing.assert_allclose(result, expected, **case.tolerance)
        else:
            assert result.tobytes() == expected.tobytes()


@pytest.mark.asyncio
@pytest.mark.parametrize("device", ["host", "simulated"])
async def test_devices_that_take_no_kernels_run_the_parts(device: str) -> None:
    """With and without fusion the bytes are the same, and no node is said to be fused."""
    for case in CASES.values():
        feeds = [given(case, shapes) for shapes in (case.allowed, case.forbidden) if shapes]
        async with Runtime(device, options=as_it_says()) as rt:
            loaded = await rt.load(case.model())
            with_it = [(await loaded.infer(f))["y"] for f in feeds]
            assert "fused" not in decisions(loaded)
        without = await results(case, device, feeds, "fuse")

        assert [a.tobytes() for a in with_it] == [a.tobytes() for a in without]


@pytest.mark.asyncio
async def test_what_others_read_is_not_hidden_in_a_kernel() -> None:
    """A value that is an output, that another node takes, or whose shape is asked for, is made."""
    nodes = [
        node("a = Exp(x)"), node("b = Neg(a)"), node("c = Sqrt(a)"),
        node("d = Abs(b)"), node("s = Shape(d)"), node("e = Tanh(d)"), node("f = Expand(k, s)"), node("y = Add(e, f)"),
    ]  # fmt: skip
    source = model(nodes, ["x f32[n]"], ["y", "c", "b"], {"k": np.float32(2)})
    x = random(40)

    async with Runtime(options=RuntimeOptions(warm=False)) as rt:
        loaded = await rt.load(source)
        outputs = await loaded.infer({"x": x})
        decided = {n.operator: n.decision for n in loaded.explain()}

    assert {"Exp": "ran", "Neg": "ran", "Sqrt": "ran", "Abs": "ran"}.items() <= decided.items()
    wide = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(outputs["y"], np.tanh(wide) + 2, rtol=1e-5)
    np.testing.assert_allclose(outputs["b"], -wide, rtol=1e-5)
    np.testing.assert_allclose(outputs["c"], np.sqrt(wide), rtol=1e-5)


@pytest.mark.asyncio
async def test_a_gate_of_each_channel_is_calculated_by_its_own_product() -> None:
    """One number for each channel is not calculated for each element, nor by a kernel of its own."""
    channels = 12
    nodes = [
        node("g = GlobalAveragePool(x)"), node("c = Conv(g, w, b)"), node("s = Sigmoid(c)"), node("y = Mul(x, s)"),
    ]  # fmt: skip
    constants = {"w": random(channels, channels, 1, 1), "b": random(channels, seed=1)}
    feeds = {"x": random(2, channels, 5, 6, seed=2)}

    async with Runtime(options=RuntimeOptions(warm=False)) as runtime:
        gated = await runtime.load(model(nodes, [f"x f32[n,{channels},h,w]"], ["y"], constants))
        got = (await gated.infer(feeds))["y"]
        explanation = gated.explain()

    mean = feeds["x"].mean((2, 3))
    gate = 1 / (1 + np.exp(-(mean @ constants["w"][:, :, 0, 0].T + constants["b"])))
    np.testing.assert_allclose(got, feeds["x"] * gate[:, :, None, None], **CLOSE)
    assert {n.operator: n.decision for n in explanation} == {
        "GlobalAveragePool": "ran", "Conv": "fused", "Sigmoid": "ran", "Mul": "ran",
    }  # fmt: skip


@pytest.mark.asyncio
async def test_what_skips_leave_of_a_group_is_not_fused() -> None:
    """If all parts but one are skipped, the one runs as it would without the others, with skips on and off."""
    nodes = [node("a = Mul(x, h)"), node("b = Add(a, k)"), node("y = Exp(b)")]
    source = model(nodes, ["x f32[n]", "h f32[]", "k f32[]"], ["y"])
    plain = {"x": random(40), "h": np.float32(3), "k": np.float32(2)}
    bytes_of: list[bytes] = []

    for skip in (True, False):
        async with Runtime(options=RuntimeOptions(warm=False, without=off(skip=skip))) as rt:
            loaded = await rt.load(source)
            bytes_of.append((await loaded.infer({k: np.asarray(v) for k, v in plain.items()}))["y"].tobytes())

    assert bytes_of[0] == bytes_of[1]


@pytest.mark.asyncio
@pytest.mark.parametrize("length", [5, 70])
async def test_a_query_that_sees_no_key_is_what_a_softmax_makes_of_it(length: int) -> None:
    """A row of which all scores are minus infinity is NaN, fused or not; all other rows are not."""
    case = CASES["attention"]
    shapes = {"q": (1, 2, length, 16), "k": (1, 40, 2, 16), "v": (1, 2, 40, 24), "m": (1, 1, length, 40)}
    feeds = given(case, shapes)
    feeds["m"][:, :, 2] = -np.inf

    fused, apart = [(await results(case, None, [feeds], *off(fuse=fuse)))[0] for fuse in (True, False)]

    assert np.isnan(apart[:, 2]).all()
    assert not np.isnan(np.delete(apart, 2, axis=1)).any()
    np.testing.assert_allclose(fused, apart, **CLOSE)


@pytest.mark.asyncio
@pytest.mark.parametrize("length", [1, 5, 70])
async def test_where_weights_are_looked_through_for_nan_a_row_of_them_weighs_nothing(length: int) -> None:
    """A query of NaN gives zeros, and so does one that sees no key, fused or not; values of infinity make them NaN."""
    checked = [node("n = IsNaN(u)"), node("z = Where(n, zero, u)"), node("o = MatMul(z, v)")]
    nodes = [*ATTENTION[:5], *checked, ATTENTION[6]]
    case = Case(nodes, HEADS, {}, {**NUMBERS, "zero": np.float32(0)})
    shapes = {"q": (1, 2, length, 16), "k": (1, 150, 2, 16), "v": (1, 2, 150, 24), "m": (1, 1, length, 150)}
    unseen, unknown = given(case, shapes), given(case, shapes)
    unseen["m"][:, :, 0] = -np.inf
    unknown["q"][:, :, 0, 3] = np.nan
    beyond = {**unknown, "v": unknown["v"].copy()}
    beyond["v"][:, 1, 149, 0] = np.inf

    feeds = [unseen, unknown, beyond]
    fused, apart = [await results(case, None, feeds, *off(fuse=fuse)) for fuse in (True, False)]

    assert not apart[0][:, 0].any()
    assert not apart[1][:, 0].any()
    assert np.isnan(apart[2][:, 0, 1, 0]).all()
    for a, b in zip(fused, apart, strict=True):
        np.testing.assert_allclose(a, b, **CLOSE)


@pytest.mark.asyncio
async def test_attention_is_found_where_loading_knows_no_shape() -> None:
    """Queries are a sum whose shape only a request has, as all layers of a model but the first may be."""
    nodes = [node("q = Add(x, z)"), *ATTENTION]
    source = model(nodes, ["x f32[a,h,s,16]", "z f32[b,1,i,16]", *HEADS[1:]], ["y"], {"root": NUMBERS["root"]})
    shapes = {"x": (2, 3, 5, 16), "z": (2, 1, 1, 16), "k": (2, 7, 3, 16), "v": (2, 3, 7, 24), "m": (2, 1, 5, 7)}
    feeds = {name: random(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}

    async with Runtime(options=RuntimeOptions(warm=False)) as rt:
        loaded = await rt.load(source)
        await loaded.infer(feeds)
        last = [n for n in loaded.explain() if n.decision == "ran"][-1]

    assert last.implementation.startswith("attention")


@pytest.mark.asyncio
async def test_what_moves_data_in_a_group_parts_it_only_there() -> None:
    """On both sides of it, nodes are still one kernel, and so they are across others that move nothing; bit for bit."""
    nodes = [
        node("a = Mul(x, bias)"), node("b = Identity(a)"), node("c = Add(b, bias)"),
        node("d = Transpose(c)", perm=[1, 0, 2]),
        node("e = Mul(d, bias)"), node("f = Identity(e)"), node("g = Sub(f, bias)"), node("y = Neg(g)"),
    ]  # fmt: skip
    source = model(nodes, ["x f32[a,b,40]"], ["y"], {"bias": NUMBERS["bias"]})
    found: list[list[tuple[bytes, int]]] = []

    for switched in ((), {"skip"}, {"fuse"}):
        async with Runtime(options=RuntimeOptions(warm=False, without=switched)) as rt:
            loaded = await rt.load(source)
            one: list[tuple[bytes, int]] = []
            for batch in (1, 2, 1):
                before = rt.statistics().launches
                outputs = await loaded.infer({"x": random(batch, 3, 40)})
                one.append((outputs["y"].tobytes(), rt.statistics().launches - before))
            found.append(one)

    together, run_all, apart = found
    assert [b for b, _ in together] == [b for b, _ in run_all] == [b for b, _ in apart]
    assert [n for _, n in together] == [1, 2, 1]  # the transposition is a view that its reader takes
    assert [n for _, n in run_all] == [1, 3, 1]
    assert [n for _, n in apart] == [5, 5, 5]


@pytest.mark.asyncio
async def test_a_value_that_is_taken_in_two_orders_is_not_fused() -> None:
    """What one node takes as it is and another one broadcast anew has no single place under the result."""
    nodes = [node("a = Neg(x)"), node("r = Reshape(a, other)"), node("y = Add(a, r)")]
    source = model(nodes, ["x f32[1,n]", "other i64[2]"], ["y"])
    feeds = [{"x": random(1, 6), "other": i64(*shape)} for shape in ((1, 6), (6, 1), (1, 6))]

    async with Runtime(options=RuntimeOptions(warm=False)) as rt:
        loaded = await rt.load(source)
        outputs: list[Array] = []
        why: list[bool] = []
        for feed in feeds:
            outputs.append((await loaded.infer(feed))["y"])
            why.append("in another order" in " ".join(n.why for n in loaded.explain()))

    for feed, output in zip(feeds, outputs, strict=True):
        np.testing.assert_array_equal(output, -feed["x"] - feed["x"].reshape(feed["other"]))
    assert why == [False, True, False]


@pytest.mark.asyncio
async def test_a_group_without_elements_is_empty() -> None:
    """Nothing is launched, and the result has its shape."""
    case = CASES["gelu"]

    async with Runtime(options=RuntimeOptions(warm=False)) as rt:
        loaded = await rt.load(case.model())
        outputs = await loaded.infer({"x": np.empty((0, 3, 40), np.float32)})
        launches = rt.statistics().launches

    assert outputs["y"].shape == (0, 3, 40)
    assert launches == 0
    assert {"empty"} == {n.decision for n in loaded.explain()}


@pytest.mark.asyncio
@pytest.mark.parametrize("zoo_model", [pytest.param(m, id=m.name) for m in some(zoo(), 2)])
@pytest.mark.usefixtures("shared_programs")
async def test_exported_models_give_the_same_without_fusion(zoo_model: ZooModel) -> None:
    """Floats differ by what another order of adding makes, in models with a normalisation in pieces; nothing else."""
    feeds = [zoo_model.inputs(case) for case in range(zoo_model.cases)]
    found: list[list[dict[str, Array]]] = []
    launches: list[int] = []

    for fuse in (True, False):
        async with Runtime(options=RuntimeOptions(without=off(fuse=fuse), warm=False)) as rt:
            loaded = await rt.load(zoo_model.path)
            found.append([await loaded.infer(f) for f in feeds])
            launches.append(rt.statistics().launches)

    assert launches[0] <= launches[1]
    for together, apart in zip(*found, strict=True):
        for name, array in apart.items():
            if array.dtype.kind == "f":
                np.testing.assert_allclose(together[name], array, rtol=1e-4, atol=1e-5)
            else:
                np.testing.assert_array_equal(together[name], array)
