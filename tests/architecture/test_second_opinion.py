"""Which second opinion is asked: one that is the same on every processor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from ..builders import model, node
from ..second_opinion import INTEGER_PRODUCTS, onnxruntime_session, reference_gives

PRODUCTS = {
    "ConvInteger": "y = ConvInteger(x, x)",
    "MatMulInteger": "y = MatMulInteger(x, x)",
    "QLinearConv": "y = QLinearConv(x, s, z, x, s, z, s, z)",
    "QLinearMatMul": "y = QLinearMatMul(x, s, z, x, s, z, s, z)",
}


@pytest.mark.parametrize("operator", sorted(INTEGER_PRODUCTS))
def test_onnx_runtime_is_not_asked_for_products_of_integers(operator: str) -> None:
    """Nor where they are in a subgraph."""
    product = node(PRODUCTS[operator])
    inner = helper.make_graph([product], "inner", [], [onnx.ValueInfoProto(name="y")])
    choice = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)

    for source in (model([product], ["x u8[4,4]"], ["y"]), model([choice], ["c bool[]", "x u8[4,4]"], ["y"])):
        with pytest.raises(ValueError, match=f"{operator}: ONNX Runtime's sums saturate"):
            onnxruntime_session(source)


def test_the_reference_adds_products_exactly() -> None:
    """The largest of unsigned and signed bytes, of which two do not fit 16 bits."""
    source = model([node("y = MatMulInteger(a, b)")], ["a u8[1,64]", "b i8[64,1]"], ["y"])
    given = {"a": np.full((1, 64), 255, np.uint8), "b": np.full((64, 1), -128, np.int8)}

    assert reference_gives(source, given)["y"].tolist() == [[-255 * 128 * 64]]


def test_no_test_asks_onnx_runtime_in_another_way() -> None:
    """`second_opinion.py` is where sessions are made, and `compat/api.py` those of which the API is asked."""
    made = "Inference" + "Session("  # not what is in this file
    folder = Path(__file__).parents[1]

    found = [str(p.relative_to(folder)) for p in sorted(folder.rglob("*.py")) if made in p.read_text()]

    assert found == ["compat/api.py", "compat/test_install.py", "second_opinion.py"]
