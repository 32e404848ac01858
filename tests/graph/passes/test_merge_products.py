"""Products of one value with several constants are one where their results are cut into heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest

from asyncrt import Runtime, RuntimeOptions
from asyncrt.layout import Array

from ...builders import i64, model, node

DEVICES = ("simulated", "host", None)


def drawn(*shape: int, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def heads(name: str, biased: bool) -> list[onnx.NodeProto]:
    """A product, its bias, and heads cut out of the result."""
    first = [node(f"{name}0 = MatMul(x, w{name})")]
    if biased:
        first += [node(f"{name}1 = Add(b{name}, {name}0)")]
    return [
        *first, node(f"{name}2 = Reshape({name}{int(biased)}, heads)"),
        node(f"{name}3 = Transpose({name}2)", perm=[0, 2, 1, 3]),
    ]  # fmt: skip


SCORES = [node("t = Transpose(k3)", perm=[0, 1, 3, 2]), node("s = MatMul(q3, t)"), node("u = Softmax(s)", axis=-1)]
CONSTANTS: dict[str, Array] = {
    "wq": drawn(24, 32, seed=1), "wk": drawn(24, 32, seed=2), "wv": drawn(24, 40, seed=3), "bq": drawn(32, seed=4),
    "bk": drawn(32, seed=5), "bv": drawn(40, seed=6), "heads": i64(0, 0, 4, -1), "wide": i64(0, 0, -1),
}  # fmt: skip


def attention(*, biased: bool = True) -> list[onnx.NodeProto]:
    made = [n for name in "qkv" for n in heads(name, biased)]
    return [*made, *SCORES, node("o = MatMul(u, v3)"), node("p = Transpose(o)", perm=[0, 2, 1, 3]),
            node("y = Reshape(p, wide)")]  # fmt: skip


async def outcome(
    nodes: Sequence[onnx.NodeProto],
    constants: Mapping[str, Array],
    device: str | None,
    outputs: Sequence[str] = ("y",),
    **options: Any,
) -> tuple[list[bytes], list[str]]:
    """Return what two requests give, and the names of the products."""
    async with Runtime(device, options=RuntimeOptions(warm=False, **options)) as rt:
        loaded = await rt.load(model(nodes, ["x f32[b,s,24]"], outputs, constants))
        results: list[bytes] = []
        for rows in (1, 9):
            results += [a.tobytes() for a in (await loaded.infer({"x": drawn(2, rows, 24, seed=rows)})).values()]
        names = [n.node for n in loaded.explain() if n.operator == "MatMul"]
    return results, names


@pytest.mark.asyncio
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d or "opencl")
async def test_queries_keys_and_values_are_one_product(device: str | None, biased: bool) -> None:
    """With the bytes of three."""
    nodes = attention(biased=biased)

    together, one = await outcome(nodes, CONSTANTS, device)
    _, apart = await outcome(nodes, CONSTANTS, device, without={"fuse"})
    seen, three = await outcome(nodes, CONSTANTS, device, ("y", "q0", "k0"))

    assert len(one) == 3
    assert len(apart) == len(three) == 5
    assert together == seen[::3]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("nodes", "constants", "outputs"),
    [
        (attention(), CONSTANTS, ("y", "q0", "k0")),
        (attention(), CONSTANTS, ("y", "q1", "k1")),
        ([*attention(), node("n = Neg(q1)"), node("m = Neg(k1)")], CONSTANTS, ("y", "n", "m")),
        ([*attention(), node("g = ReduceSum(x)", keepdims=0), node("n = Add(wq, g)"), node("m = Add(bk, g)")],
         CONSTANTS, ("y", "n", "m")),
        (attention(), {**CONSTANTS, "bq": drawn(1, 32, seed=4), "bk": drawn(1, 1, 32, seed=5)}, ("y",)),
    ],
    ids=["products are results", "sums are results", "others read them", "others read the constants", "other shapes"],
)
async def test_what_others_need_stays_as_it_is(
    nodes: Sequence[onnx.NodeProto], constants: Mapping[str, Array], outputs: Sequence[str]
) -> None:
    """Only one product is left that could be merged, so none is."""
    seen, names = await outcome(nodes, constants, None, outputs)
    plain, all_ = await outcome(nodes, constants, None, outputs, without={"fuse"})

    assert len(names) == len(all_) == 5
    for got, want in zip(seen, plain, strict=True):
        a, b = np.frombuffer(got, np.float32), np.frombuffer(want, np.float32)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
