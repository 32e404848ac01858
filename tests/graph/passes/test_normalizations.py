"""Batch normalisations that no product takes into its weights: a product and a sum, calculated with what is around."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx
import pytest

from asyncrt import Runtime, RuntimeOptions
from asyncrt.layout import Array

from ...builders import model, node

CHANNELS = 24
NORMAL = node("n = BatchNormalization(r, scale, shift, mean, variance)", epsilon=1e-3)


def drawn(*shape: int) -> Array:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def statistics(**others: Array) -> dict[str, Array]:
    return {
        "scale": drawn(CHANNELS) + 2, "shift": drawn(1, CHANNELS)[0], "mean": drawn(2, CHANNELS)[1],
        "variance": np.abs(drawn(3, CHANNELS)[2]) + 0.1,
    } | others  # fmt: skip


class Case(NamedTuple):
    """Nodes from ``x`` to ``y``, and how many kernels they are."""

    nodes: list[onnx.NodeProto]
    constants: dict[str, Array]
    x: str
    shape: tuple[int, ...]
    kernels: int


CASES = {
    "between a convolution with its activation and a residual": Case(
        [node("c = Conv(x, w)"), node("r = Relu(c)"), NORMAL, node("y = Add(n, c)")],
        statistics(w=drawn(CHANNELS, 6, 1, 1)), "x f32[b,6,h,w]", (2, 6, 7, 9), 1,
    ),
    "behind the activation of a convolution": Case(
        [node("c = Conv(x, w)"), node("r = Relu(c)"), NORMAL, node("y = Neg(n)")],
        statistics(w=drawn(CHANNELS, 6, 3)), "x f32[b,6,t]", (2, 6, 31), 1,
    ),
    "behind the activation of a product": Case(
        [node("c = Gemm(x, w)"), node("r = LeakyRelu(c)"), NORMAL, node("y = Neg(n)")],
        statistics(w=drawn(5, CHANNELS)), "x f32[b,5]", (7, 5), 1,
    ),
    "in front of an activation": Case(
        [node("r = Neg(x)"), NORMAL, node("y = Relu(n)")],
        statistics(), f"x f32[b,{CHANNELS},h,w]", (2, CHANNELS, 5, 7), 1,
    ),
    "of channels that only a request knows": Case(
        [node("r = Neg(x)"), NORMAL, node("y = Relu(n)")], statistics(), "x f32[b,c,h,w]", (2, CHANNELS, 5, 7), 3,
    ),
    "whose factor is no finite number": Case(
        [node("r = Neg(x)"), NORMAL, node("y = Relu(n)")],
        statistics(scale=np.full(CHANNELS, 3e38, np.float32), variance=np.zeros(CHANNELS, np.float32)),
        f"x f32[b,{CHANNELS}]", (3, CHANNELS), 3,
    ),
}  # fmt: skip


async def outcome(case: Case, device: str | None, without: set[str]) -> tuple[Array, set[str], int]:
    """Return the result, the operators that there were, and how many kernels."""
    loaded = model(case.nodes, [case.x], ["y"], case.constants)
    async with Runtime(device, options=RuntimeOptions(warm=False, without=without)) as rt:
        found = await rt.load(loaded)
        result = (await found.infer({"x": drawn(*case.shape)}))["y"]
        return result, {n.operator for n in found.explain()}, rt.statistics().launches


@pytest.mark.asyncio
@pytest.mark.parametrize("device", [None, "host"])
@pytest.mark.parametrize("case", [pytest.param(c, id=name) for name, c in CASES.items()])
async def test_they_are_part_of_a_kernel_where_they_are_of_constants(
    case: Case, device: str | None, users_path: None
) -> None:
    """The results are those of a kernel for each node, but for the rounding of one more product."""
    fused, operators, kernels = await outcome(case, device, set())
    apart, _, _ = await outcome(case, device, {"fuse"})

    np.testing.assert_allclose(fused, apart, rtol=2e-5, atol=2e-5)
    assert ("BatchNormalization" in operators) is (case.kernels == 3)
    assert device or kernels == case.kernels


def branch(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
    return onnx.helper.make_graph(list(nodes), name, [], [onnx.ValueInfoProto(name="y")])


@pytest.mark.asyncio
@pytest.mark.parametrize("wanted", [True, False])
async def test_in_a_branch_they_are_calculated_where_it_is_taken_alone(wanted: bool, users_path: None) -> None:
    """What they are written as is in the branches that they are in: what is not taken has nothing to normalise."""
    inside = [node("r = Relu(x)"), node("y = BatchNormalization(r, scale, shift, mean, variance)", epsilon=1e-3)]
    chosen = onnx.helper.make_node(
        "If", ["p"], ["y"], then_branch=branch("then", *inside), else_branch=branch("else", node("y = Tanh(x)"))
    )
    loaded = model([chosen], [f"x f32[b,{CHANNELS}]", "p bool[]"], ["y"], statistics())
    inputs, results, launches = {"x": drawn(3, CHANNELS), "p": np.array(wanted)}, [], []
    for without in (set[str](), {"fuse"}):
        async with Runtime(options=RuntimeOptions(warm=False, without=without)) as rt:
            results.append((await (await rt.load(loaded)).infer(inputs))["y"])
            launches.append(rt.statistics().launches)

    np.testing.assert_allclose(*results, rtol=2e-5, atol=2e-5)
    assert launches == [1, 2 if wanted else 1]
