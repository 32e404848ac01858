"""What scales and shifts the channels of a product: part of its weights where it can be, and nodes where it cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import numpy as np
import onnx
import pytest

from asyncrt import Runtime, RuntimeOptions
from asyncrt.layout import Array

from ...builders import model, node
from ...paths import off

SPREAD = np.random.default_rng(1)


def drawn(*shape: int, dtype: type = np.float32) -> Array:
    return SPREAD.standard_normal(shape).astype(dtype)


def statistics(channels: int, dtype: type = np.float32) -> dict[str, Array]:
    return {
        "scale": drawn(channels, dtype=dtype), "shift": drawn(channels, dtype=dtype),
        "mean": drawn(channels, dtype=dtype), "variance": np.linspace(0.25, 2, channels).astype(dtype),
    }  # fmt: skip


@attrs.frozen
class Case:
    """A model, whether what follows its product becomes part of the weights, and what is given to it."""

    nodes: Sequence[onnx.NodeProto]
    constants: Mapping[str, Array]
    x: tuple[int, ...]
    folded: bool = True
    outputs: Sequence[str] = ("y",)
    given: Sequence[str] = ()
    dtype: type = np.float32

    def model(self) -> onnx.ModelProto:
        kind = {np.float32: "f32", np.float64: "f64", np.float16: "f16"}[self.dtype]
        dims = ",".join(["n", str(self.x[1]), *(f"d{i}" for i, _ in enumerate(self.x[2:]))])
        inputs = [f"x {kind}[{dims}]", *(f"{name} {kind}[{self.constants[name].size}]" for name in self.given)]
        constants = {k: v for k, v in self.constants.items() if k not in self.given}
        return model(self.nodes, inputs, self.outputs, constants)

    def inputs(self) -> dict[str, Array]:
        return {"x": drawn(*self.x, dtype=self.dtype), **{name: self.constants[name] for name in self.given}}


NORMAL = node("y = BatchNormalization(c, scale, shift, mean, variance)", epsilon=1e-3)
BIASED = {"filters": drawn(20, 4, 3, 3), "bias": drawn(20), **statistics(20)}
PLAIN = [node("c = Conv(x, filters, bias)"), NORMAL]

SCALE, SHIFT = drawn(20, 1, 1), drawn(1, 20, 1, 1)
SCALED = [node("s = Mul(scale, c)"), node("y = Add(s, shift)")]
ROWS = {"matrix": drawn(4, 20), "turned": drawn(20, 4), "bias": drawn(20), "scale": drawn(20), "shift": drawn(1, 20)}

LINES = {"BatchNormalization", "Mul", "Div", "Add", "Sub"}

CASES = {
    "with a bias": Case(PLAIN, BIASED, (2, 4, 7, 9)),
    "without a bias, and padded": Case(
        [node("c = Conv(x, filters)", pads=[1, 1, 1, 1]), NORMAL], BIASED, (2, 4, 7, 9)
    ),
    "in groups": Case(
        [node("c = Conv(x, filters)", group=2), NORMAL], {"filters": drawn(6, 2, 3), **statistics(6)}, (1, 4, 11)
    ),
    "of doubles": Case(
        [node("c = Conv(x, filters)"), NORMAL],
        {"filters": drawn(6, 4, 2, dtype=np.float64), **statistics(6, np.float64)}, (1, 4, 11), dtype=np.float64,
    ),
    "of halves": Case(
        [node("c = Conv(x, filters)"), NORMAL],
        {"filters": drawn(6, 4, 2, dtype=np.float16), **statistics(6, np.float16)}, (1, 4, 11), False, dtype=np.float16,
    ),
    "whose convolution others take too": Case([*PLAIN, node("z = Relu(c)")], BIASED, (2, 4, 7, 9), False, ("y", "z")),
    "whose convolution is an output": Case(PLAIN, BIASED, (2, 4, 7, 9), False, ("y", "c")),
    "whose statistics are inputs": Case(PLAIN, BIASED, (2, 4, 7, 9), False, given=("mean",)),
    "of what is no number": Case(PLAIN, BIASED | {"shift": np.full(20, np.inf, np.float32)}, (2, 4, 7, 9), False),
    "a learned scale and shift": Case(
        [node("c = Conv(x, filters, bias)"), *SCALED], {**BIASED, "scale": SCALE, "shift": SHIFT}, (2, 4, 7, 9)
    ),
    "one number for all channels": Case(
        [node("c = Conv(x, filters)"), node("s = Div(c, scale)"), node("y = Sub(shift, s)")],
        {"filters": drawn(20, 4, 3, 3), "scale": np.array([3], np.float32), "shift": np.array(2, np.float32)},
        (2, 4, 7, 9),
    ),
    "a scale behind a normalisation": Case(
        [*PLAIN[:1], node("b = BatchNormalization(c, scale, shift, mean, variance)"), node("y = Mul(b, slope)")],
        BIASED | {"slope": SCALE}, (2, 4, 7, 9),
    ),
    "behind a transposed convolution in groups": Case(
        [node("c = ConvTranspose(x, filters)", group=2, strides=[2, 2]), *SCALED[:1], node("y = Sub(s, shift)")],
        {"filters": drawn(4, 10, 3, 3), "scale": SCALE, "shift": SHIFT}, (2, 4, 7, 9),
    ),
    "behind a product with a bias": Case(
        [node("c = Gemm(x, turned, bias)", transB=1, alpha=0.5, beta=2.0), *SCALED],
        ROWS, (5, 4),
    ),
    "a normalisation behind a product": Case(
        [node("c = Gemm(x, matrix)"), NORMAL], {"matrix": ROWS["matrix"], **statistics(20)}, (5, 4)
    ),
    "a scale behind a product without a bias": Case(
        [node("c = MatMul(x, matrix)"), node("y = Div(c, scale)")], ROWS, (5, 4)
    ),
    "for each row of a product": Case(
        [node("c = Gemm(x, matrix)"), node("y = Mul(c, scale)")], ROWS | {"scale": drawn(5, 1)}, (5, 4), False
    ),
    "for each position": Case(
        [node("c = Conv(x, filters)"), node("y = Mul(c, scale)")], BIASED | {"scale": drawn(7)}, (2, 4, 7, 9), False
    ),
    "that makes more channels of one": Case(
        [node("c = Conv(x, filters)"), node("y = Mul(c, scale)")],
        {"filters": drawn(1, 4, 3, 3), "scale": SCALE}, (2, 4, 7, 9), False,
    ),
    "that gives the result another axis": Case(
        [node("c = Gemm(x, matrix)"), node("y = Mul(c, scale)")], ROWS | {"scale": drawn(1, 1, 20)}, (5, 4), False
    ),
    "that divides by the result": Case(
        [node("c = Conv(x, filters)"), node("y = Div(scale, c)")], BIASED | {"scale": SCALE}, (2, 4, 7, 9), False
    ),
    "that leaves nothing of the weights": Case(
        [node("c = MatMul(x, matrix)"), node("y = Mul(c, scale)")],
        {"matrix": 1e-20 * drawn(4, 20), "scale": np.array(1e-20, np.float32)}, (5, 4), False,
    ),
    "in a branch": Case(
        [
            node("s = ReduceSum(x)", keepdims=0), node("p = Greater(s, zero)"),
            onnx.helper.make_node(
                "If", ["p"], ["y"],
                then_branch=onnx.helper.make_graph(PLAIN, "then", [], [onnx.ValueInfoProto(name="y")]),
                else_branch=onnx.helper.make_graph(PLAIN, "else", [], [onnx.ValueInfoProto(name="y")]),
            ),
        ],
        BIASED | {"zero": np.array(0, np.float32)}, (2, 4, 7, 9),
    ),
}  # fmt: skip


@pytest.mark.asyncio
@pytest.mark.parametrize("device", [None, "host"])
@pytest.mark.parametrize("case", [pytest.param(c, id=name) for name, c in CASES.items()])
async def test_what_scales_channels_is_part_of_the_weights_where_that_changes_rounding_alone(
    case: Case, device: str | None
) -> None:
    """The results are those of all nodes, and where they are one, nothing is left but the product."""
    feeds = case.inputs()
    found: dict[bool, dict[str, Array]] = {}
    operators: dict[bool, list[str]] = {}

    for fuse in (True, False):
        options = RuntimeOptions(without=off(fuse=fuse, widen_floats=False), warm=False)
        async with Runtime(device, options=options) as rt:
            loaded = await rt.load(case.model())
            found[fuse] = await loaded.infer(feeds)
            operators[fuse] = [n.operator for n in loaded.explain()]

    assert not LINES.isdisjoint(operators[False])
    assert LINES.isdisjoint(", ".join(operators[True]).split(", ")) is case.folded
    for name, array in found[False].items():
        np.testing.assert_allclose(found[True][name], array, rtol=2e-5, atol=2e-5, equal_nan=True)
