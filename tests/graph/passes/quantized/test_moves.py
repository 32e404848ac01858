"""Steps that only move quantised values: which of them move integers, and what they give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ....builders import model, node
from ....second_opinion import onnxruntime_gives
from .test_products import DEVICES, integers, multiplies_integers, outcome

pytestmark = pytest.mark.usefixtures("shared_programs")

CONSTANTS = {
    "s": np.float32(0.05), "z": np.uint8(117), "t": np.float32(0.06), "perm": np.array([0, 2, 1, 3]),
    "shape": np.array([0, -1]), "none": np.array([0]), "two": np.array([2]), "rows": np.array([1, 0, 1]),
    "less": np.float32(-0.05), "signed": np.int8(0),
}  # fmt: skip
READ = [node("d = DequantizeLinear(x, s, z)")]
WRITE = [node("y = QuantizeLinear(m, s, z)")]
MOVES: dict[str, list[Any]] = {
    "Transpose": [*READ, node("m = Transpose(d)", perm=[0, 2, 1, 3]), *WRITE],
    "Reshape": [*READ, node("m = Reshape(d, shape)"), *WRITE],
    "Slice": [*READ, node("m = Slice(d, none, two, two)"), *WRITE],
    "Gather": [*READ, node("m = Gather(d, rows)", axis=1), *WRITE],
    "MaxPool": [*READ, node("m = MaxPool(d)", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]), *WRITE],
    "Concat": [*READ, node("e = DequantizeLinear(w, s, z)"), node("m = Concat(d, e)", axis=1), *WRITE],
    "two of them": [
        *READ, node("a = Transpose(d)", perm=[0, 2, 1, 3]), node("b = QuantizeLinear(a, s, z)"),
        node("c = DequantizeLinear(b, s, z)"), node("m = Reshape(c, shape)"), *WRITE,
    ],
}  # fmt: skip
OTHERS: dict[str, list[Any]] = {
    "another scale": [*READ, node("m = Transpose(d)"), node("y = QuantizeLinear(m, t, z)")],
    "another dtype": [*READ, node("m = Transpose(d)"), node("y = QuantizeLinear(m, s, signed)")],
    "a sum": [*READ, node("m = AveragePool(d)", kernel_shape=[2, 2]), *WRITE],
    "a largest one of negative scales": [
        node("d = DequantizeLinear(x, less, z)"), node("m = MaxPool(d)", kernel_shape=[2, 2]),
        node("y = QuantizeLinear(m, less, z)"),
    ],
    "floats are read elsewhere, too": [
        *READ, node("m = Transpose(d)"), node("q = QuantizeLinear(m, s, z)"), node("e = DequantizeLinear(q, s, z)"),
        node("y = Sub(m, e)"),
    ],
    "one operand of another scale": [
        *READ, node("e = DequantizeLinear(w, t, z)"), node("m = Concat(d, e)", axis=1), *WRITE,
    ],
}  # fmt: skip


async def _found(nodes: list[Any], device: str | None, **options: Any) -> tuple[Any, list[str], Any]:
    loaded = model(nodes, ["x u8[2,3,h,w]", "w u8[2,1,h,w]"], ["y"], CONSTANTS, opset=19)
    request = {"x": integers(np.uint8, 2, 3, 9, 11), "w": integers(np.uint8, 2, 1, 9, 11, seed=1)}
    (got,), operators = await outcome(loaded, [request], device, **options)
    return got, operators, onnxruntime_gives(loaded, request)["y"]


@pytest.mark.asyncio
@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d or "opencl")
@pytest.mark.parametrize("case", MOVES)
async def test_integers_are_moved(case: str, device: str | None) -> None:
    """Bit for bit what dequantising and quantising again gives, and what ONNX Runtime gives; no float is made."""
    got, operators, theirs = await _found(MOVES[case], device)
    plain, written, _ = await _found(MOVES[case], device, without={"quantized_steps"})

    assert ("DequantizeLinear" not in operators) == multiplies_integers(device)
    assert "DequantizeLinear" in written
    np.testing.assert_array_equal(theirs, got)
    np.testing.assert_array_equal(plain, got)


@pytest.mark.asyncio
@pytest.mark.parametrize("case", OTHERS)
async def test_what_changes_levels_is_calculated_as_written(case: str) -> None:
    """Another scale or dtype, sums (which may be a step apart), scales of another order, floats with other readers."""
    got, operators, theirs = await _found(OTHERS[case], None)

    assert "DequantizeLinear" in operators
    np.testing.assert_allclose(theirs.astype(np.float32), got.astype(np.float32), rtol=0, atol=case == "a sum")
