"""Subnormal weights of products and convolutions are zeros on CPUs; nothing else is another number."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from asyncrt import Runtime, RuntimeOptions
from asyncrt.graph.passes.flush_weights import flushed
from asyncrt.layout import Array

from ...builders import model, node
from ...ops.run import workbench

DEVICES = ("simulated", "host", None)
TINY = np.float32(1e-40)


def drawn(*shape: int, seed: int = 0) -> Array:
    """Numbers of which some are subnormal."""
    random = np.random.default_rng(seed)
    numbers = random.standard_normal(shape).astype(np.float32)
    return np.where(random.random(shape) < 0.3, numbers * TINY, numbers)


def zeroed(array: Array) -> Array:
    return np.where(np.abs(array) < np.finfo(np.float32).smallest_normal, np.float32(0), array)


async def outcome(loaded: onnx.ModelProto, request: dict[str, Array], device: str | None, **options: Any) -> Array:
    async with Runtime(device, options=RuntimeOptions(warm=False, check_hazards=True, **options)) as rt:
        return (await (await rt.load(loaded)).infer(request))["y"]


def flushes(device: str | None) -> bool:
    return device is not None or workbench().device.info.is_cpu


@pytest.mark.asyncio
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "generic"])
@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d or "opencl")
@pytest.mark.parametrize(
    ("nodes", "inputs", "shapes"),
    [
        ([node("a = MatMul(x, v)"), node("b = Relu(a)"), node("y = Gemm(b, w, c)", transB=1)], "x f32[s,70]",
         {"x": (5, 70), "v": (70, 600), "w": (45, 600), "c": (45,)}),
        ([node("a = Conv(x, v, c)", pads=[1, 1, 1, 1]), node("y = ConvTranspose(a, w)", strides=[2, 2])],
         "x f32[n,3,h,w]", {"x": (1, 3, 9, 21), "v": (18, 3, 3, 3), "w": (18, 2, 2, 2), "c": (18,)}),
    ],
    ids=["products", "convolutions"],
)  # fmt: skip
async def test_results_are_those_of_zeros_in_their_place(
    nodes: list[onnx.NodeProto], inputs: str, shapes: dict[str, tuple[int, ...]], packed: bool, device: str | None
) -> None:
    """Bit for bit where they are flushed, and within what a float can tell of the plain sums in any case."""
    arrays = {name: drawn(*shape, seed=seed) for seed, (name, shape) in enumerate(shapes.items())}
    x, constants = {"x": zeroed(arrays.pop("x"))}, arrays
    before = {name: zeroed(array) for name, array in constants.items()}
    without = set() if packed else {"packed_weights"}

    got = await outcome(model(nodes, [inputs], ["y"], constants), x, device, without=without)
    want = await outcome(model(nodes, [inputs], ["y"], before), x, device, without=without)
    kept = await outcome(model(nodes, [inputs], ["y"], constants), x, device, without={*without, "flush_weights"})

    if flushes(device):
        assert got.tobytes() == want.tobytes()
    np.testing.assert_allclose(got, kept, rtol=0, atol=1e-6 * float(np.abs(kept).max()))


@pytest.mark.asyncio
@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d or "opencl")
async def test_what_else_reads_them_finds_them(device: str | None) -> None:
    """A subnormal weight is a zero to the product alone; and the model's own where that is switched off."""
    weights = np.full((4, 4), TINY, np.float32)
    weights[:, 3] = 1
    nodes = [node("p = MatMul(x, w)"), node("q = Mul(w, large)"), node("y = Concat(p, q)", axis=0)]
    loaded = model(nodes, ["x f32[s,4]"], ["y"], {"w": weights, "large": np.float32(1e38)})
    x = {"x": np.full((2, 4), 1e30, np.float32)}

    got = await outcome(loaded, x, device)
    kept = await outcome(loaded, x, device, without={"flush_weights"})

    np.testing.assert_array_equal(got[2:], weights * np.float32(1e38))
    np.testing.assert_array_equal(kept[2:], got[2:])
    product = np.float32(4e30) * TINY
    np.testing.assert_allclose(kept[:2, :3], np.full((2, 3), product), rtol=1e-5)
    np.testing.assert_allclose(got[:2, :3], np.full((2, 3), 0 if flushes(device) else product), rtol=1e-5)


@pytest.mark.asyncio
@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d or "opencl")
async def test_weights_that_are_all_tiny_stay(device: str | None) -> None:
    """What they are multiplied with may be so large that nothing else is in the sums."""
    loaded = model([node("y = MatMul(x, w)")], ["x f32[s,4]"], ["y"], {"w": np.full((4, 4), TINY, np.float32)})

    got = await outcome(loaded, {"x": np.full((2, 4), 1e30, np.float32)}, device)

    np.testing.assert_allclose(got, np.full((2, 4), np.float32(4e30) * TINY), rtol=1e-5)


def test_numbers_that_are_normal_stay() -> None:
    """Zeros, infinities and NaN among them; and an array without subnormal numbers is no other one."""
    least = np.finfo(np.float32).smallest_normal
    plain = np.array([0.0, -0.0, least, -least, 1.0, np.inf, -np.inf, np.nan], np.float32)
    mixed = np.concatenate([plain, np.array([TINY, -TINY, np.nextafter(least, np.float32(0))], np.float32)])

    got = flushed(mixed)

    assert flushed(plain) is None
    assert flushed(np.zeros((0, 3), np.float32)) is None
    assert flushed(mixed[8:]) is None
    assert got is not None
    assert got[:8].tobytes() == plain.tobytes()
    np.testing.assert_array_equal(got[8:], 0)
