"""Types of 8 bits and fewer: read from files, converted, quantised and back, on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from asyncrt.errors import ModelFormatError
from asyncrt.layout import NARROW_TYPES, DataType

from ...graph.models import compute, f32, model, node, program

EDGES = np.array(
    [
        0,
        -0.0,
        0.25,
        0.5,
        0.75,
        1,
        -1,
        1.5,
        2.5,
        3.5,
        -2.5,
        6,
        7,
        8,
        -8,
        15,
        16,
        100,
        240,
        300,
        -448,
        480,
        6e4,
        1e6,
        1e-3,
    ],
    np.float32,
)
FLOATS = [t for t in NARROW_TYPES if t.name.startswith("float8e") and t.name != "float8e8m0"]
PACKED = [t for t in NARROW_TYPES if t.bits < 8]


def _cast(x: Any, to: int, back: bool = True, **attributes: Any) -> onnx.ModelProto:
    nodes = [node("Cast", ["x"], ["t"], to=to, **attributes), node("Cast", ["t"], ["y"], to=1)]
    return model(nodes if back else nodes[:1], [f32("x", "n")], ["y" if back else "t"], opset=25)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("saturate", [0, 1])
def test_a_float_of_8_bits_is_what_onnx_says(dtype: DataType, saturate: int) -> None:
    """Rounded to the nearest; what is beyond the type saturates, or becomes infinite or NaN."""
    x = np.concatenate([EDGES, np.float32([np.inf, -np.inf, np.nan])])
    source = _cast(x, dtype.onnx, saturate=saturate)
    (expected,) = ReferenceEvaluator(source).run(None, {"x": x})

    (got,) = compute(program(source), {"x": x})

    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", PACKED, ids=str)
@pytest.mark.parametrize("raw", [True, False])
def test_elements_that_share_a_byte_are_read(dtype: DataType, raw: bool) -> None:
    """The first of them has its lowest bits; a last byte may be half empty."""
    whole = np.arange(-8, 8) if dtype.name == "int4" else np.arange(-2, 2) if dtype.name == "int2" else np.arange(16)
    values = (whole % (4 if dtype.name == "uint2" else 16) if dtype.name[0] == "u" else whole % 7)[:11]
    values = whole[:11] if dtype.name.startswith("int") else values
    tensor = numpy_helper.from_array(values.astype(np.float32).astype(dtype.numpy), "w")
    if not raw:
        tensor = onnx.helper.make_tensor("w", dtype.onnx, [len(values)], values.astype(np.float32))
    source = model([node("Cast", ["w"], ["y"], to=1)], [f32("x", 1)], ["y"], opset=25)
    source.graph.initializer.append(tensor)

    (got,) = compute(program(source), {"x": EDGES[:1]})

    np.testing.assert_array_equal(got, numpy_helper.to_array(tensor).astype(np.float32))
    tensor.raw_data = b"\0" * 99
    source.graph.initializer[0].CopyFrom(tensor)
    if raw:
        with pytest.raises(ModelFormatError, match="it has 99"):
            program(source)


@pytest.mark.parametrize("dtype", [t for t in NARROW_TYPES if t.name != "float8e8m0"], ids=str)
def test_what_is_quantised_comes_back_within_a_step(dtype: DataType) -> None:
    """And what is beyond the type is its greatest or least."""
    nodes = [
        node("QuantizeLinear", ["x", "s"], ["q"], output_dtype=dtype.onnx),
        node("DequantizeLinear", ["q", "s"], ["y"]),
    ]
    source = model(nodes, [f32("x", "n")], ["y"], {"s": np.float32(0.5)}, opset=25)
    (expected,) = ReferenceEvaluator(source).run(None, {"x": EDGES})

    (got,) = compute(program(source), {"x": EDGES})

    np.testing.assert_array_equal(got, expected)
