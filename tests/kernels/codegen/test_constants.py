"""Numbers of a model that are arguments of kernels: models that differ in them alone share kernels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from asyncrt import Runtime, RuntimeOptions
from asyncrt.kernels.codegen import constants
from asyncrt.kernels.codegen.literals import literal
from asyncrt.kernels.fusion import expression
from asyncrt.layout import FLOAT32, FLOAT64

from ...builders import model, node

X = np.random.default_rng(3).standard_normal((2, 12, 9, 20)).astype(np.float32) * 4
WEIGHTS = np.random.default_rng(4).standard_normal((24, 12, 3, 3)).astype(np.float32)


def test_what_a_compiler_makes_cheaper_stays_in_the_text() -> None:
    """Zeros, powers of two, what is no finite number, and doubles; all others have names, in their order."""
    plain = [literal(v, FLOAT32) for v in (0.0, -0.0, 1, -1, 0.5, -64, np.inf, np.nan)]
    kept = ", ".join([*plain, literal(0.1, FLOAT64), "a0", "3.0f"])

    assert (f"{kept} + k1 * k2 - k1", (7.0, -1.5, 3.0)) == constants.lift(
        f"{kept} + {literal(-1.5, FLOAT32)} * {literal(3, FLOAT32)} - {literal(-1.5, FLOAT32)}", (7.0,)
    )


def test_numbers_that_do_not_fit_a_record_stay_in_the_text() -> None:
    """Any number of constants can be written: those beyond the most that are arguments are literals as before."""
    written = [literal(v + 0.1, FLOAT32) for v in range(constants.MOST + 2)]

    text, numbers = constants.lift(" ".join(written))

    assert [f"k{i}" for i in range(constants.MOST)] + written[constants.MOST :] == text.split()
    assert len(numbers) == constants.MOST


def test_arguments_are_the_bits_of_the_numbers() -> None:
    """They travel as signed sizes of 32 bits."""
    assert constants.bits((1.5, -1.5)) == (0x3FC00000, -0x40400000)


def _behind(product: onnx.NodeProto, c: float) -> onnx.ModelProto:
    """A product, and after it what has five numbers."""
    steps = [
        product, node("r = Relu(p)"), node("s = Div(r, scale)"), node("t = Clip(s, low, high)"),
        node("y = LeakyRelu(t)", alpha=c / 9),
    ]  # fmt: skip
    return _model(steps, scale=c, low=-c / 3, high=c * 5)


def _chain(c: float) -> onnx.ModelProto:
    steps = ["r = Relu(x)", "s = Mul(r, scale)", "t = Add(s, term)"]
    return _model([*map(node, steps), node("y = HardSigmoid(t)", alpha=c / 7)], scale=c, term=-c)


def _model(nodes: list[onnx.NodeProto], **numbers: float) -> onnx.ModelProto:
    weights = {
        "w": WEIGHTS, "rows": WEIGHTS.reshape(-1, 24)[:20], "single": WEIGHTS[:12, :1],
        "turned": np.ascontiguousarray(WEIGHTS.swapaxes(0, 1)),
    }  # fmt: skip
    return model(nodes, ["x f32[n,12,h,w_]"], ["y"], weights | {k: np.array(v, np.float32) for k, v in numbers.items()})


MODELS: dict[str, Callable[[float], onnx.ModelProto]] = {
    "an activation alone": lambda c: _model([node("y = LeakyRelu(x)", alpha=c)]),
    "a line alone": lambda c: _model([node("y = HardSigmoid(x)", alpha=c, beta=c + 0.1)]),
    "a chain": _chain,
    "behind a convolution": lambda c: _behind(node("p = Conv(x, w)"), c),
    "behind a depthwise convolution": lambda c: _behind(node("p = Conv(x, single)", group=12), c),
    "behind a transposed convolution": lambda c: _behind(node("p = ConvTranspose(x, turned)", strides=[2, 2]), c),
    "behind a product": lambda c: _behind(node("p = MatMul(x, rows)"), c),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("name", MODELS)
async def test_models_that_differ_in_numbers_alone_share_their_kernels(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one builds none, and its results are bit for bit those of kernels with its numbers in their text."""
    made = [MODELS[name](c) for c in (0.3, 1.7)]
    counts: list[int] = []

    async with Runtime(options=RuntimeOptions(warm=False)) as rt:
        found = []
        for proto in made:
            found.append(await (await rt.load(proto)).infer({"x": X}))
            counts.append(rt.statistics().kernels.kernels)
        monkeypatch.setattr(constants, "MOST", 0)
        monkeypatch.setattr(expression, "composed", expression.composed.__wrapped__)  # what it gave is remembered
        expected = [await (await rt.load(proto)).infer({"x": X}) for proto in made]
        counts.append(rt.statistics().kernels.kernels)

    assert counts[0] == counts[1] < counts[2]
    assert [e["y"].tobytes() for e in expected] == [f["y"].tobytes() for f in found]
