"""Steps between quantised values that depend on one of them become a table: which do, and what it gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncrt.devices.opencl.dot_product import Dots
from asyncrt.layout import Array

from ....builders import model, node
from ....second_opinion import onnxruntime_gives
from .test_products import DEVICES, integers, multiplies_integers, outcome

pytestmark = pytest.mark.usefixtures("shared_programs")

CONSTANTS = {
    "s": np.float32(0.05), "z": np.uint8(117), "t": np.float32(1 / 255), "y0": np.uint8(0), "three": np.float32(3),
    "u": np.float32(0.03), "zy": np.uint8(20), "si": np.float32(0.02), "zi": np.int8(-3), "none": np.float32(0),
    "six": np.float32(6), "sixth": np.float32(1 / 6),
}  # fmt: skip
PLAIN = node("d = DequantizeLinear(x, s, z)")
TABLES = {
    "a sigmoid": [PLAIN, node("a = Sigmoid(d)"), node("y = QuantizeLinear(a, t, y0)")],
    "signed results": [PLAIN, node("a = Tanh(d)"), node("y = QuantizeLinear(a, si, zi)")],
    "x times its sigmoid": [
        PLAIN, node("a = Sigmoid(d)"), node("b = QuantizeLinear(a, t, y0)"), node("c = DequantizeLinear(b, t, y0)"),
        node("e = DequantizeLinear(x, s, z)"), node("m = Mul(e, c)"), node("y = QuantizeLinear(m, u, zy)"),
    ],
    "a hard swish in six steps": [
        PLAIN, node("a = Add(d, three)"), node("b = Clip(a, none, six)"), node("c = QuantizeLinear(b, u, y0)"),
        node("e = DequantizeLinear(c, u, y0)"), node("f = Mul(d, e)"), node("g = Mul(f, sixth)"),
        node("h = HardSwish(g)"), node("y = QuantizeLinear(h, u, zy)"),
    ],
}  # fmt: skip
TABLES["steps that are cheap, but quantised between"] = [
    PLAIN, node("a = Mul(d, three)"), node("b = QuantizeLinear(a, s, z)"), node("c = DequantizeLinear(b, s, z)"),
    node("e = Relu(c)"), node("y = QuantizeLinear(e, u, zy)"),
]  # fmt: skip
OTHERS = {
    "two values": [
        PLAIN, node("e = DequantizeLinear(w, s, z)"), node("a = Sigmoid(e)"), node("m = Mul(d, a)"),
        node("y = QuantizeLinear(m, u, zy)"),
    ],
    "a number for each column": [
        PLAIN, node("a = Sigmoid(d)"), node("m = Mul(a, row)"), node("y = QuantizeLinear(m, u, zy)"),
    ],
    "what costs less than a walk through memory": [PLAIN, node("a = Relu(d)"), node("y = QuantizeLinear(a, u, zy)")],
}  # fmt: skip


def _given(nodes: Any) -> Any:
    constants = {**CONSTANTS, "row": np.linspace(0.5, 2, 40, dtype=np.float32)}
    return model(nodes, ["x u8[n,k]", "w u8[n,40]"], ["y"], constants, opset=19)


@pytest.mark.asyncio
@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d or "opencl")
@pytest.mark.parametrize("case", TABLES)
async def test_what_depends_on_one_byte_is_looked_up(case: str, device: str | None) -> None:
    """At most one step from ONNX Runtime for all values, in rows of every length; without tables the same."""
    loaded = _given(TABLES[case])
    every = np.arange(256).astype(np.uint8)
    given = every.reshape(1, 256), every[:201].reshape(3, 67)
    requests = [{"x": x, "w": integers(np.uint8, len(x), 40)} for x in given]

    got, operators = await outcome(loaded, requests, device)
    plain, calculated = await outcome(loaded, requests, device, without={"quantized_steps"})

    assert operators.count("ByteTable") == multiplies_integers(device)
    assert "ByteTable" not in calculated
    for request, ours, apart in zip(requests, got, plain, strict=True):
        _within_one_step(ours, onnxruntime_gives(loaded, request)["y"])
        _within_one_step(ours, apart)


@pytest.mark.asyncio
@pytest.mark.parametrize("case", OTHERS)
async def test_what_depends_on_more_is_calculated(case: str) -> None:
    """Two values, numbers for each column, and what is cheap."""
    loaded = _given(OTHERS[case])
    request = {"x": integers(np.uint8, 7, 40), "w": integers(np.uint8, 7, 40, seed=1)}

    (got,), operators = await outcome(loaded, [request], None)

    assert "ByteTable" not in operators
    _within_one_step(got, onnxruntime_gives(loaded, request)["y"])


def _within_one_step(ours: Array, theirs: Array) -> None:
    assert ours.dtype == theirs.dtype
    np.testing.assert_allclose(ours.astype(np.int32), theirs.astype(np.int32), rtol=0, atol=1)


@pytest.mark.asyncio
async def test_tables_are_looked_up_with_and_without_an_instruction_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes; a processor that has none takes one after the other."""
    loaded = _given(TABLES["a sigmoid"])
    request = {"x": integers(np.uint8, 5, 1000), "w": integers(np.uint8, 5, 40)}
    (best,), _ = await outcome(loaded, [request], None)

    monkeypatch.setattr(Dots, "_lookup_option", lambda self, macro, run: b"")
    (plain,), _ = await outcome(loaded, [request], None)

    np.testing.assert_array_equal(best, plain)
