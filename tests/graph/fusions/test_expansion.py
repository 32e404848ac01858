"""A block of a phone's network: two of its convolutions as one kernel, where its picture and the processor suit it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from asyncrt.layout import Array
from asyncrt.runtime.explain.explain import Explanation

from ...builders import model, node
from .ran import APART, ran

GIVEN, MADE = 8, 40
WIDE = 512  # floats in registers, with which both are carried out together


def block(activation: str, *outputs: str) -> onnx.ModelProto:
    """Return many channels made of few, each looked at by itself, and few made of those; with further *outputs*."""
    rng = np.random.default_rng(0)
    shapes = {"w": (MADE, GIVEN, 1, 1), "b": (MADE,), "f": (MADE, 1, 3, 3), "v": (GIVEN, MADE, 1, 1)}
    constants = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    nodes = [
        node("c = Conv(x, w, b)"),
        node(f"d = {activation}(c)"),
        node("e = Conv(d, f)", group=MADE, pads=[1, 1, 1, 1]),
        node("g = HardSigmoid(e)"),
        node("h = Mul(e, g)"),
        node("y = Conv(h, v)"),
    ]
    return model(nodes, [f"x f32[n,{GIVEN},h,w]"], ["y", *outputs], constants)


async def run(
    made: onnx.ModelProto, x: Array, without: frozenset[str] = frozenset()
) -> tuple[Array, Explanation, bool]:
    """Return the result, what became of each node, and whether the device has registers for both at once."""
    result, explanation, info = await ran(made, x, without)
    return result, explanation, info.is_cpu and info.registers.capacity >= WIDE


def picture(high: int, wide: int) -> Array:
    return np.random.default_rng(1).standard_normal((2, GIVEN, high, wide), np.float32)


@pytest.mark.asyncio
@pytest.mark.parametrize("activation", ["LeakyRelu", "HardSwish", "Sigmoid"])
async def test_what_lies_between_two_convolutions_is_not_stored(activation: str) -> None:
    """One kernel makes it, looks at it, and calculates what follows; the result keeps every bit."""
    x = picture(15, 28)

    got, explanation, wide = await run(block(activation), x)
    apart, _, _ = await run(block(activation), x, APART)

    assert got.tobytes() == apart.tobytes()
    if wide:
        assert explanation.counts["fused"] == 4
        assert any("expanded" in n.implementation for n in explanation)


@pytest.mark.asyncio
async def test_rows_that_fill_no_tile_leave_each_convolution_with_what_follows_it() -> None:
    """Two kernels do then what one does elsewhere."""
    x = picture(15, 20)

    got, explanation, wide = await run(block("LeakyRelu"), x)
    apart, _, _ = await run(block("LeakyRelu"), x, APART)

    assert got.tobytes() == apart.tobytes()
    if wide:
        assert explanation.counts["fused"] == 3
        assert not any("expanded" in n.implementation for n in explanation)


@pytest.mark.asyncio
async def test_what_others_read_is_stored() -> None:
    """An output of the graph between the two convolutions keeps them apart."""
    _, explanation, _ = await run(block("LeakyRelu", "d"), picture(15, 28))

    assert not any("expanded" in n.implementation for n in explanation)
