"""A decoder as exporters of generative models write it, on a device: 4-bit weights, grouped queries and their cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper

import asyncrt.onnx_backend as backend
from asyncrt.layout import Array

from ...graph.models import f32, model, node
from ...onnx_suite import OPENCL
from ...second_opinion import onnxruntime_session

HEADS, SHARED, SIZE, WIDE = 4, 2, 16, 64
RNG = np.random.default_rng(7)
MS = "com.microsoft"


def _product(x: str, y: str, columns: int, held: dict[str, Any]) -> onnx.NodeProto:
    held[f"{y}.w"] = RNG.integers(0, 256, (columns, WIDE // 32, 16)).astype(np.uint8)
    held[f"{y}.s"] = (RNG.random(columns * WIDE // 32) * 0.02).astype(np.float32)
    names = [x, f"{y}.w", f"{y}.s"]
    return node("MatMulNBits", names, [y], domain=MS, N=columns, K=WIDE, bits=4, block_size=32)


def _decoder() -> onnx.ModelProto:
    held: dict[str, Any] = {"g": np.ones(WIDE, np.float32), "cos": RNG.random((40, SIZE // 2)).astype(np.float32)}
    held |= {"sin": RNG.random((40, SIZE // 2)).astype(np.float32), "one": np.array([1]), "at": np.array(1)}
    nodes = [
        node("SimplifiedLayerNormalization", ["x", "g"], ["h"], epsilon=1e-6),
        _product("h", "qkv", (HEADS + 2 * SHARED) * SIZE, held),
        node("ReduceSum", ["mask", "one"], ["count"], keepdims=0),
        node("Sub", ["count", "one"], ["last"]),
        node("Cast", ["last"], ["seqlens"], to=onnx.TensorProto.INT32),
        node("Shape", ["mask"], ["dims"]),
        node("Gather", ["dims", "at"], ["long"]),
        node("Cast", ["long"], ["total"], to=onnx.TensorProto.INT32),
        node(
            "GroupQueryAttention", ["qkv", "", "", "pk", "pv", "seqlens", "total", "cos", "sin"], ["a", "nk", "nv"],
            domain=MS, num_heads=HEADS, kv_num_heads=SHARED, do_rotary=1,
        ),
        _product("a", "o", WIDE, held),
        node("SkipSimplifiedLayerNormalization", ["x", "o", "g"], ["y", "", "", "s"], domain=MS, epsilon=1e-6),
    ]  # fmt: skip
    cache = [f32(name, "batch", SHARED, "past", SIZE) for name in ("pk", "pv")]
    mask = helper.make_tensor_value_info("mask", onnx.TensorProto.INT64, ["batch", "total"])
    inputs = [f32("x", "batch", "length", WIDE), mask, *cache]
    return model(nodes, inputs, ["y", "s", "nk", "nv"], held, opset=18, domains=[MS])


def _feeds(length: int, past: int, keys: Array, values: Array) -> dict[str, Array]:
    x = RNG.standard_normal((1, length, WIDE)).astype(np.float32)
    return {"x": x, "mask": np.ones((1, past + length), np.int64), "pk": keys, "pv": values}


def test_a_prompt_and_tokens_after_it_are_what_onnxruntime_gives() -> None:
    """Each step's cache is what the next one takes, on the device with every node that can be there."""
    source = _decoder()
    theirs, mine = onnxruntime_session(source), backend.prepare(source, OPENCL)
    keys = values = np.zeros((1, SHARED, 0, SIZE), np.float32)
    try:
        for past, length in ((0, 5), (5, 1), (6, 1), (7, 1)):
            feeds = _feeds(length, past, keys, values)
            expected = theirs.run(None, feeds)

            got = mine.run(feeds)

            for e, g in zip(expected, got, strict=True):
                np.testing.assert_allclose(g, e, 2e-4, 2e-4)
            keys, values = expected[2:]
    finally:
        mine.close()
