"""bfloat16 weights: what is rounded, that nothing else is, and that it does not depend on the kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

import asyncrt
from asyncrt import PrecisionError, Runtime, RuntimeOptions
from asyncrt.kernels.matmul.bf16_weights import rounded
from asyncrt.layout import Array

from ...builders import model, node
from ...ops.run import workbench
from ...paths import off

DEVICES = ("simulated", "host", None)


def drawn(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


async def outcome(
    loaded: onnx.ModelProto, requests: Sequence[Mapping[str, Array]], device: str | None, **options: Any
) -> tuple[list[Array], asyncrt.RuntimeStatistics, list[str]]:
    """Return output y of each request, what is held then, and how the nodes of the last request ran."""
    given = RuntimeOptions(warm=False, check_hazards=True, **options)
    async with Runtime(device, options=given) as rt:
        found = await rt.load(loaded)
        results = [(await found.infer(r))["y"] for r in requests]
        return results, rt.statistics(), [n.implementation for n in found.explain()]


LINEAR = [node("a = MatMul(x, v)"), node("b = Relu(a)"), node("y = Gemm(b, w, c)", transB=1)]
CONVOLUTIONS = [node("a = Conv(x, v, c)", pads=[1, 1, 1, 1]), node("y = ConvTranspose(a, w)", strides=[2, 2])]


@pytest.mark.asyncio
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "generic"])
@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d or "opencl")
@pytest.mark.parametrize(
    ("nodes", "inputs", "constants", "shapes"),
    [
        (LINEAR, "x f32[s,70]", {"v": drawn(70, 600), "w": drawn(45, 600, seed=1), "c": drawn(45, seed=2)},
         [(1, 70), (2, 70), (5, 70), (131, 70)]),
        (CONVOLUTIONS, "x f32[n,3,h,w]", {"v": drawn(18, 3, 3, 3), "w": drawn(18, 2, 2, 2), "c": drawn(18, seed=2)},
         [(1, 3, 9, 21), (2, 3, 4, 4)]),
    ],
    ids=["products", "convolutions"],
)  # fmt: skip
async def test_results_are_those_of_the_model_whose_weights_were_rounded_before(
    nodes: Sequence[onnx.NodeProto],
    inputs: str,
    constants: Mapping[str, Array],
    shapes: Sequence[tuple[int, ...]],
    device: str | None,
    packed: bool,
) -> None:
    """For one row and for many, bit for bit on CPUs, whichever kernel carries it out; biases are not rounded.

    A GPU reads more of narrow weights at once, and adds in another order.
    """
    requests = [{"x": drawn(*shape, seed=9)} for shape in shapes]
    switched = off(packed_weights=packed)
    before = {**constants, "v": rounded(constants["v"]), "w": rounded(constants["w"])}

    got, _, _ = await outcome(
        model(nodes, [inputs], ["y"], constants), requests, device, precision="bf16", without=switched
    )
    want, _, _ = await outcome(model(nodes, [inputs], ["y"], before), requests, device, without=switched)
    wide, _, _ = await outcome(model(nodes, [inputs], ["y"], constants), requests, device, without=switched)

    if device is not None or workbench().device.info.is_cpu:
        assert [a.tobytes() for a in got] == [a.tobytes() for a in want]
    for a, b, c in zip(got, want, wide, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6 * float(np.abs(c).max()))
        assert np.abs(a - c).max() > 1e-4 * float(np.abs(c).max())  # so that not to round would be seen
    assert all((a != b).any() for a, b in zip(got, wide, strict=True))


@pytest.mark.asyncio
async def test_weights_of_products_take_half_the_memory() -> None:
    """On the device, which has no other copy of them."""
    loaded = model(LINEAR, ["x f32[s,64]"], ["y"], {"v": drawn(64, 640), "w": drawn(64, 640), "c": drawn(64)})
    request = [{"x": drawn(3, 64)}]

    _, narrow, _ = await outcome(loaded, request, None, precision="bf16")
    _, wide, _ = await outcome(loaded, request, None)

    bias = 64 * 4
    assert wide.weights.nbytes - bias == 2 * (narrow.weights.nbytes - bias)


@pytest.mark.asyncio
@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d or "opencl")
async def test_what_else_reads_a_weight_reads_it_as_it_is(device: str | None) -> None:
    """An embedding that is also the last layer's matrix is rounded for the product alone."""
    weights = drawn(8, 40)
    nodes = [node("e = Gather(w, i)"), node("p = MatMul(x, w)"), node("y = Concat(e, p)", axis=0)]
    loaded = model(nodes, ["x f32[s,8]", "i i64[n]"], ["y"], {"w": weights})
    x, i = np.eye(8, dtype=np.float32), np.array([3, 1])

    (got,), _, _ = await outcome(loaded, [{"x": x, "i": i}], device, precision="bf16")

    np.testing.assert_array_equal(weights[i], got[:2])
    np.testing.assert_array_equal(rounded(weights), got[2:])


@pytest.mark.asyncio
@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d or "opencl")
async def test_weights_in_a_branch_are_rounded_too(device: str | None) -> None:
    """A node inside an If multiplies as one outside."""
    weights = drawn(8, 40)
    then = onnx.helper.make_graph(
        [node("a = MatMul(x, w)")], "then", [], [onnx.ValueInfoProto(name="a")],
        [onnx.numpy_helper.from_array(weights, "w")],
    )  # fmt: skip
    other = onnx.helper.make_graph([node("b = Neg(x)")], "else", [], [onnx.ValueInfoProto(name="b")])
    branch = onnx.helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    loaded = model([branch], ["x f32[8,8]", "c bool[]"], ["y"])
    request = {"x": np.eye(8, dtype=np.float32), "c": np.array(True)}

    (got,), _, _ = await outcome(loaded, [request], device, precision="bf16")

    np.testing.assert_array_equal(rounded(weights), got)


def test_rounding_goes_to_the_nearest_and_keeps_what_is_finite_finite() -> None:
    """Ties go to the even one; numbers beyond the largest bfloat16 become it; infinities and NaN stay."""
    one = np.float32(1)
    halfway, above = one + np.float32(2**-8), one + np.float32(2**-8 + 2**-20)
    given = np.array([halfway, above, -above, 3.4e38, -3.4e38, np.inf, np.nan, 0.0, 1e-40], np.float32)

    got = rounded(given)

    largest = float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)
    tiny = float(np.float32(1e-40).astype(ml_dtypes.bfloat16))
    next_one = 1 + 2**-7
    expected = np.array([1, next_one, -next_one, largest, -largest, np.inf, np.nan, 0, tiny], np.float32)
    np.testing.assert_array_equal(expected, got)


@pytest.mark.asyncio
@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d or "opencl")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
async def test_a_model_written_in_bfloat16_is_calculated_so(device: str | None, precision: str) -> None:
    """Its products are rounded to bfloat16 where they end, whatever the precision of float32 weights."""
    weights, x = drawn(8, 40).astype(ml_dtypes.bfloat16), drawn(3, 8).astype(ml_dtypes.bfloat16)
    nodes = [node("xb = Cast(x)", to=16), node("p = MatMul(xb, w)"), node("y = Add(p, p)")]

    (got,), _, _ = await outcome(
        model(nodes, ["x f32[s,8]"], ["y"], {"w": weights}), [{"x": x.astype(np.float32)}], device, precision=precision
    )

    product = x.astype(np.float64) @ weights.astype(np.float64)
    expected = (2 * product.astype(ml_dtypes.bfloat16).astype(np.float32)).astype(ml_dtypes.bfloat16)
    assert got.dtype == expected.dtype
    np.testing.assert_allclose(got.astype(np.float32), expected.astype(np.float32), rtol=2**-7)


@pytest.mark.parametrize("word", ["bf15", "", "int8", None])
def test_an_unknown_precision_is_refused_with_those_there_are(word: Any) -> None:
    """Before anything is opened."""
    with pytest.raises(PrecisionError, match="must be one of fp32, bf16") as caught:
        RuntimeOptions(precision=word)

    assert repr(word) in caught.value.message
    assert "precision.md" in caught.value.hint
