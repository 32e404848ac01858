"""Results of products that are quantised and dequantised again before they are stored, in vectors and one by one."""

from __future__ import annotations

import numpy as np
import pytest

from asyncrt import Runtime, RuntimeOptions
from asyncrt.layout import Array

from ...builders import model, node

NODES = [node("p = MatMul(a, b)"), node("q = QuantizeLinear(p, s, z)"), node("y = DequantizeLinear(q, s, z)")]


async def outcome(inputs: dict[str, Array], zero: Array, without: set[str]) -> tuple[bytes, int]:
    """Return the bytes of the result, and how many nodes ran as a kernel of their own."""
    loaded = model(NODES, ["a f32[h,m,k]", "b f32[h,k,n]"], ["y"], {"s": np.float32(0.07), "z": zero})
    async with Runtime(options=RuntimeOptions(warm=False, without=without)) as rt:
        found = await rt.load(loaded)
        result = (await found.infer(inputs))["y"]
        return result.tobytes(), rt.statistics().launches


@pytest.mark.asyncio
@pytest.mark.parametrize("zero", [np.uint8(128), np.int8(-3)], ids=["uint8", "int8"])
@pytest.mark.parametrize("columns", [31, 32, 40, 48, 80, 400])
async def test_they_are_those_of_three_kernels(columns: int, zero: Array, users_path: None) -> None:
    """Bit for bit, whether the last columns are a whole panel, half of one, or some others; rounded to nearest even."""
    random = np.random.default_rng(columns)
    inputs = {
        "a": random.standard_normal((3, 21, 16)).astype(np.float32),
        "b": random.standard_normal((3, 16, columns)).astype(np.float32),
    }
    inputs["a"][0, 0] = np.inf  # the largest and the least that the integers have
    inputs["a"][1, 1] = 0

    fused, once = await outcome(inputs, np.asarray(zero), set())
    apart, more = await outcome(inputs, np.asarray(zero), {"fuse"})

    assert fused == apart
    assert once == 1 < more


@pytest.mark.asyncio
async def test_integer_products_are_chosen_by_numbers_that_have_no_vectors(users_path: None) -> None:
    """64-bit integers say which scaled results stay: bit for bit what the steps give one after the other."""
    nodes = [
        node("p = MatMulInteger(a, w)"), node("f = Cast(p)", to=1), node("v = Mul(f, scale)"),
        node("e = Equal(group, wanted)"), node("y = Where(e, v, none)"),
    ]  # fmt: skip
    random = np.random.default_rng(5)
    constants = {
        "w": random.integers(0, 256, (24, 64)).astype(np.uint8), "scale": np.float32(0.01),
        "wanted": np.int64(1), "none": np.float32(-1),
    }  # fmt: skip
    inputs = {"a": random.integers(0, 256, (7, 24)).astype(np.uint8), "group": np.arange(64) % 3}
    loaded, results = model(nodes, ["a u8[m,k]", "group i64[n]"], ["y"], constants), []
    for without in (set[str](), {"fuse"}):
        async with Runtime(options=RuntimeOptions(warm=False, without=without)) as rt:
            found = await rt.load(loaded)
            results.append(((await found.infer(inputs))["y"].tobytes(), rt.statistics().launches))

    (fused, once), (apart, more) = results
    assert fused == apart
    assert once == 1 < more
