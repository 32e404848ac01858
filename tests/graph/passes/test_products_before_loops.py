"""Products of a sequence's elements in a Loop are one product before it, where each element has its turn once."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from asyncrt import Runtime, RuntimeOptions
from asyncrt.graph.ir import Program
from asyncrt.layout import Array

from ...builders import i64, model, node, value
from ...second_opinion import onnxruntime_gives
from ..models import program

RANDOM = np.random.default_rng(0)
WEIGHTS = {
    "w": RANDOM.standard_normal((12, 20), np.float32),
    "r": RANDOM.standard_normal((20, 20), np.float32) / 8,
    "start": i64(0).reshape(()),
    "none": np.zeros((1, 20), np.float32),
    "one": i64(1).reshape(()),
    "two": i64(2).reshape(()),
    "first": i64(0),
}


def loop(
    *before: str, index: str = "t", grows: str = "next = Add(t, one)", axis: int = 0, weights: str = "w"
) -> onnx.NodeProto:
    """A recurrent layer over ``x``: in each iteration a product of one of its elements, and one of its own result.

    Args:
        before: Nodes that make the index.
        index: Of the element; ``i`` is the iteration's number, ``t`` is carried on.
        grows: Makes what is carried on.
    """
    nodes = [
        *map(node, before),
        node(f"element = Gather(x, {index})", axis=axis),
        node(f"given = MatMul(element, {weights})"),
        node("kept = MatMul(h, r)"),
        node("sum = Add(given, kept)"),
        node("state = Tanh(sum)"),
        node("out = Identity(state)"),
        node(grows),
        node("go = Less(next, most)"),
    ]
    inputs = [value(v) for v in ("i i64[]", "c bool[]", "t i64[]", "h f32[batch,20]")]
    outputs = [onnx.ValueInfoProto(name=o) for o in ("go", "next", "state", "out")]
    body = onnx.helper.make_graph(nodes, "body", inputs, outputs)
    first = node("last, state_, y = Loop(trips, , start, none)", body=0)
    first.attribute[0].CopyFrom(onnx.helper.make_attribute("body", body))
    return first


def recurrent(layer: onnx.NodeProto, signal: str = "f32[time,batch,12]", **constants: Array) -> onnx.ModelProto:
    """A model of that layer, which goes round *trips* times, or until what it carries on is *most*."""
    return model([layer], [f"x {signal}", "trips i64[]", "most i64[]"], ["y"], {**WEIGHTS, **constants})


def operators(built: Program) -> list[str]:
    return [n.operator.name for n in built.nodes]


LIFTED = ["MatMul", "Loop"]


@pytest.mark.parametrize(
    ("layer", "signal"),
    [
        (loop(), "f32[time,batch,12]"),
        (loop(grows="next = Add(one, t)"), "f32[time,batch,12]"),
        (loop(index="i"), "f32[time,batch,12]"),
        (loop("k = Unsqueeze(t, first)", "j = Squeeze(k, first)", index="j"), "f32[time,batch,12]"),
        (loop(axis=1), "f32[batch,time,12]"),
        (loop(), "f32[time,12]"),
    ],
    ids=["carried", "one first", "number", "in other words", "axis", "vectors"],
)
def test_a_product_of_the_element_whose_turn_it_is_comes_before_the_loop(layer: onnx.NodeProto, signal: str) -> None:
    """The body takes its element of the result, and nothing of the sequence."""
    built = program(recurrent(layer, signal))
    body = built.nodes[-1].subgraphs[0].program

    assert operators(built) == LIFTED
    assert body is not None
    assert operators(body).count("MatMul") == 1
    assert operators(body).count("Gather") == 1
    assert len(body.inputs) == 4 + 2  # what it multiplied, and how far it goes


@pytest.mark.parametrize(
    ("layer", "signal", "constants"),
    [
        (loop(grows="next = Add(t, two)"), "f32[time,batch,12]", {}),
        (loop(grows="next = Mul(t, two)"), "f32[time,batch,12]", {}),
        (loop("k = Mul(t, t)", index="k"), "f32[time,batch,12]", {}),
        (loop(), "f32[time,batch,depth]", {}),
        (loop(weights="given_w"), "f32[time,batch,12]", {}),
        (loop(), "f32[time,batch,1]", {"w": np.ones((1, 20), np.float32)}),
    ],
    ids=["two at a time", "twofold", "squared", "a depth that may not fit", "weights of a request", "much wider"],
)
def test_products_of_other_elements_stay_in_the_loop(
    layer: onnx.NodeProto, signal: str, constants: dict[str, Any]
) -> None:
    """An element may come again, or never; weights may differ; a product may be far larger than what it is made of."""
    source = recurrent(layer, signal, **constants)
    source.graph.input.append(value("given_w f32[12,20]"))

    assert operators(program(source)) == ["Loop"]


@pytest.mark.asyncio
@pytest.mark.parametrize("trips", [7, 3, 1, 0])
async def test_a_loop_gives_what_it_gave(trips: int) -> None:
    """The same bits as with the products inside, also if it ends early or does not go round at all."""
    source = recurrent(loop())
    x = np.random.default_rng(trips).standard_normal((7, 3, 12), np.float32)
    inputs = {"x": x, "trips": np.array(100 if trips else 0), "most": np.array(trips)}
    async with Runtime() as rt, Runtime(options=RuntimeOptions(without={"fuse"})) as plain:
        loaded, other = await rt.load(source), await plain.load(source)
        for _ in range(2):
            y, expected = (await loaded.infer(inputs))["y"], (await other.infer(inputs))["y"]

            np.testing.assert_array_equal(expected, y)
    if trips:
        np.testing.assert_allclose(onnxruntime_gives(source, inputs)["y"], y, rtol=0, atol=1e-5)
