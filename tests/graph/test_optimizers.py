"""One step of an optimiser gives what onnx's reference gives, of several tensors, in the first step and later."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from asyncrt.errors import UnsupportedOperatorError

from .models import compute, f32, i64, model, node, program

PREVIEW = "ai.onnx.preview.training"
CASES: list[tuple[str, int, dict[str, Any]]] = [
    ("Momentum", 1, {"mode": "standard", "norm_coefficient": 0.01, "alpha": 0.9, "beta": 0.7}),
    ("Momentum", 1, {"mode": "nesterov", "norm_coefficient": 0.01, "alpha": 0.9, "beta": 0.7}),
    ("Adagrad", 1, {"norm_coefficient": 0.01, "epsilon": 1e-3, "decay_factor": 0.2}),
    ("Adam", 2, {"norm_coefficient": 0.01, "alpha": 0.9, "beta": 0.8, "epsilon": 1e-3, "norm_coefficient_post": 0.1}),
]


@pytest.mark.parametrize(("op", "states", "attributes"), CASES)
@pytest.mark.parametrize("steps", [0, 3])
def test_a_step_of_an_optimiser(op: str, states: int, attributes: dict[str, Any], steps: int) -> None:
    """Two tensors at once; each output is as ONNX orders them."""
    rng = np.random.default_rng(4)
    names = [f"{kind}{i}" for kind in ["x", "g", *"vw"[:states]] for i in range(2)]
    outputs = [f"y{i}" for i in range(2 * (1 + states))]
    feeds: dict[str, Any] = {n: rng.random(3).astype(np.float32) for n in names}
    feeds |= {"r": np.array(0.1, np.float32), "t": np.array(steps)}
    made = node(op, ["r", "t", *names], outputs, domain=PREVIEW, **attributes)
    source = model([made], [f32("r"), i64("t"), *(f32(n, 3) for n in names)], outputs)
    source.opset_import.append(helper.make_opsetid(PREVIEW, 1))

    got = compute(program(source), feeds)

    for e, g in zip(ReferenceEvaluator(source).run(None, feeds), got, strict=True):
        np.testing.assert_allclose(g, e, rtol=1e-4, atol=1e-6)


def test_tensors_without_their_state_are_refused() -> None:
    """Inputs come in whole groups."""
    made = node("Adam", ["r", "t", "x", "g", "v"], ["y0", "y1", "y2"], domain=PREVIEW)
    source = model([made], [f32("r"), i64("t"), *(f32(n, 3) for n in "xgv")], ["y0"])
    source.opset_import.append(helper.make_opsetid(PREVIEW, 1))

    with pytest.raises(UnsupportedOperatorError, match="3 inputs for 4 of each tensor"):
        program(source)
