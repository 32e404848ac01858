"""Which networks with random weights are measured, and what are they made of?

They are written down as PyTorch's exporter writes them in inference mode: normalisations folded into convolutions,
GELU in pieces, attention as products and a Softmax.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from .measure import Array, Inputs
from .models import Graph, value

# --- ResNet -----------------------------------------------------------------------------------------------------------

RESNET_50 = (3, 4, 6, 3)
"""Bottleneck blocks in each stage."""


def resnet(
    stages: Sequence[int] = RESNET_50, width: int = 64, classes: int = 1000, dtype: type[np.floating[Any]] = np.float32
) -> onnx.ModelProto:
    """Return ResNet-50, or a smaller one; `image` has any batch, height and width, `logits` are its classes."""
    g = Graph(dtype)
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))

    def convolve(x: str, given: int, made: int, size: int, stride: int = 1, gain: float = 1.0) -> str:
        kernel = g.weights(made, given, size, size, deviation=gain * math.sqrt(2 / (given * size * size)))
        bias = g.weights(made, deviation=0.1)
        pads = [size // 2] * 4
        return g.add("Conv", x, kernel, bias, kernel_shape=[size, size], strides=[stride, stride], pads=pads)

    x = g.add("Relu", convolve("image", 3, width, 7, 2))
    x = g.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = width
    for stage, blocks in enumerate(stages):
        inner = width << stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            y = g.add("Relu", convolve(x, channels, inner, 1))
            y = g.add("Relu", convolve(y, inner, inner, 3, stride))
            y = convolve(y, inner, 4 * inner, 1, gain=0.3)  # so that the sums do not grow from block to block
            shortcut = x if block else convolve(x, channels, 4 * inner, 1, stride, gain=0.7)
            x = g.add("Relu", g.add("Add", y, shortcut))
            channels = 4 * inner
    x = g.add("Flatten", g.add("GlobalAveragePool", x))
    weights, bias = g.weights(classes, channels, deviation=channels**-0.5), g.weights(classes, deviation=0.1)
    g.add("Gemm", x, weights, bias, outputs=["logits"], transB=1)
    images = value("image", "batch", 3, "height", "width", dtype=kind)
    return g.model([images], [value("logits", "batch", classes, dtype=kind)])


def image(batch: int, height: int, width: int, dtype: type[np.floating[Any]] = np.float32) -> Inputs:
    """Return a request to `resnet()`."""
    random = np.random.default_rng((batch, height, width))
    return {"image": random.standard_normal((batch, 3, height, width), np.float32).astype(dtype)}


# --- an encoder -------------------------------------------------------------------------------------------------------

ENCODER_LAYERS, ENCODER_HIDDEN, ENCODER_WORDS, ENCODER_POSITIONS = 6, 384, 30522, 512
ENCODER_HEAD = 32
"""Width of each of its heads."""


def encoder(
    dtype: type[np.floating[Any]] = np.float32, layers: int = ENCODER_LAYERS, hidden: int = ENCODER_HIDDEN,
    words: int = ENCODER_WORDS,
) -> onnx.ModelProto:  # fmt: skip
    """Return a BERT of the size of MiniLM; constants are in the order in which `torch_peers.Encoder` takes them."""
    g = Graph(dtype)
    size = ENCODER_HEAD
    heads = hidden // size
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))

    def linear(x: str, given: int, made: int) -> str:
        weights, bias = g.weights(given, made, deviation=given**-0.5), g.weights(made, deviation=0.02)
        return g.add("Add", g.add("MatMul", x, weights), bias)

    def normalize(x: str) -> str:
        scale = g.constant(np.ones(hidden, dtype))
        return g.add("LayerNormalization", x, scale, g.weights(hidden, deviation=0.02), axis=-1, epsilon=1e-5)

    def scalar(number: float) -> str:
        return g.constant(np.array(number, dtype))

    def split_heads(x: str) -> str:
        return g.add("Transpose", g.add("Reshape", x, g.constant([0, 0, heads, size])), perm=[0, 2, 1, 3])

    embedded = g.add("Gather", g.weights(words, hidden, deviation=0.5), "input_ids")
    positions = g.weights(ENCODER_POSITIONS, hidden, deviation=0.5)
    length = g.add("Shape", "input_ids", start=1, end=2)
    own = g.add("Slice", positions, g.constant([0]), length, g.constant([0]))
    x = normalize(g.add("Add", embedded, own))
    seen = g.add("Cast", g.add("Unsqueeze", "attention_mask", g.constant([1, 2])), to=kind)
    unseen = g.add("Mul", g.add("Sub", scalar(1), seen), scalar(float(np.finfo(dtype).min)))
    for _ in range(layers):
        query, key, content = (split_heads(linear(x, hidden, hidden)) for _ in range(3))
        scores = g.add("MatMul", query, g.add("Transpose", key, perm=[0, 1, 3, 2]))
        scores = g.add("Add", g.add("Mul", scores, scalar(size**-0.5)), unseen)
        mixed = g.add("MatMul", g.add("Softmax", scores, axis=-1), content)
        joined = g.add("Reshape", g.add("Transpose", mixed, perm=[0, 2, 1, 3]), g.constant([0, 0, hidden]))
        x = normalize(g.add("Add", x, linear(joined, hidden, hidden)))
        h = linear(x, hidden, 4 * hidden)
        erf = g.add("Erf", g.add("Div", h, scalar(math.sqrt(2))))
        h = g.add("Mul", g.add("Mul", h, g.add("Add", erf, scalar(1))), scalar(0.5))
        x = normalize(g.add("Add", x, linear(h, 4 * hidden, hidden)))
    g.add("Identity", x, outputs=["hidden"])
    tokens = [value(name, "batch", "length", dtype=TensorProto.INT64) for name in ("input_ids", "attention_mask")]
    return g.model(tokens, [value("hidden", "batch", "length", hidden, dtype=kind)])


# --- a decoder --------------------------------------------------------------------------------------------------------

LAYERS, HIDDEN, HEADS, VOCABULARY = 6, 384, 6, 50257
POSITIONS = 1024
_WORDS = 50  # ids of tokens below this are fed, whatever the size of the vocabulary


def decoder(
    layers: int = LAYERS, hidden: int = HIDDEN, heads: int = HEADS, vocabulary: int = VOCABULARY,
    dtype: type[np.floating[Any]] = np.float32,
) -> onnx.ModelProto:  # fmt: skip
    """Return a decoder shaped as GPT-2; it takes and gives keys and values as `past.N.key` and `present.N.key`.

    Constants are in the order in which `torch_peers.Decoder` takes them.
    """
    g = Graph(dtype)
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    size = hidden // heads

    def linear(x: str, given: int, made: int) -> str:
        product = g.add("MatMul", x, g.weights(given, made, deviation=given**-0.5))
        return g.add("Add", product, g.weights(made, deviation=0.02))

    def normalize(x: str) -> str:
        scale, bias = g.constant(np.ones(hidden, dtype)), g.weights(hidden, deviation=0.02)
        return g.add("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-5)

    def scalar(number: float) -> str:
        return g.constant(np.array(number, dtype))

    def split_heads(x: str) -> str:
        return g.add("Transpose", g.add("Reshape", x, g.constant([0, 0, heads, size])), perm=[0, 2, 1, 3])

    embedded = g.add("Gather", g.weights(vocabulary, hidden, deviation=0.02), "input_ids")
    x = g.add("Add", embedded, g.add("Gather", g.weights(POSITIONS, hidden, deviation=0.02), "position_ids"))
    # attention_mask is 1 where there is a key; no query sees what is behind it. Both are counted along the mask, not by
    # position_ids, as exporters do it: then a shorter text may be filled up at its beginning.
    seen = g.add("Unsqueeze", g.add("Cast", "attention_mask", to=TensorProto.BOOL), g.constant([1, 2]))
    one = g.constant(np.array(1, np.int64))
    total, new = (g.add("Squeeze", g.add("Shape", name, start=1, end=2)) for name in ("attention_mask", "input_ids"))
    keys = g.add("Range", g.constant(np.array(0, np.int64)), total, one)
    queries = g.add("Unsqueeze", g.add("Range", g.add("Sub", total, new), total, one), g.constant([1]))
    past = g.add("LessOrEqual", keys, queries)
    mask = g.add("Where", g.add("And", seen, past), scalar(0.0), scalar(float(np.finfo(dtype).min)))
    for layer in range(layers):
        qkv = linear(normalize(x), hidden, 3 * hidden)
        q = g.add("Split", qkv, g.constant([hidden] * 3), outputs=3, axis=2)
        query, key, new = (split_heads(name) for name in (q, f"{q}.1", f"{q}.2"))
        key = g.add("Concat", f"past.{layer}.key", key, outputs=[f"present.{layer}.key"], axis=2)
        new = g.add("Concat", f"past.{layer}.value", new, outputs=[f"present.{layer}.value"], axis=2)
        scores = g.add("MatMul", query, g.add("Transpose", key, perm=[0, 1, 3, 2]))
        scores = g.add("Add", g.add("Mul", scores, scalar(size**-0.5)), mask)
        mixed = g.add("MatMul", g.add("Softmax", scores, axis=-1), new)
        joined = g.add("Reshape", g.add("Transpose", mixed, perm=[0, 2, 1, 3]), g.constant([0, 0, hidden]))
        x = g.add("Add", x, linear(joined, hidden, hidden))
        h = linear(normalize(x), hidden, 4 * hidden)
        cube = g.add("Mul", g.add("Pow", h, scalar(3.0)), scalar(0.044715))
        tanh = g.add("Tanh", g.add("Mul", g.add("Add", h, cube), scalar(math.sqrt(2 / math.pi))))
        h = g.add("Mul", g.add("Mul", h, scalar(0.5)), g.add("Add", tanh, scalar(1.0)))
        x = g.add("Add", x, linear(h, 4 * hidden, hidden))
    g.add("MatMul", normalize(x), g.weights(hidden, vocabulary, deviation=0.02), outputs=["logits"])
    caches = [f"{layer}.{kind}" for layer in range(layers) for kind in ("key", "value")]
    tokens = [value(name, "batch", "new", dtype=TensorProto.INT64) for name in ("input_ids", "position_ids")]
    return g.model(
        [*tokens, value("attention_mask", "batch", "total", dtype=TensorProto.INT64)]
        + [value(f"past.{name}", "batch", heads, "past", size, dtype=kind) for name in caches],
        [value("logits", "batch", "new", vocabulary, dtype=kind)]
        + [value(f"present.{name}", "batch", heads, "total", size, dtype=kind) for name in caches],
    )


def outputs(model: bytes) -> list[str]:
    """Return the names of a model's outputs, in order."""
    return [output.name for output in onnx.load_from_string(model).graph.output]


def state(past: Mapping[str, object]) -> dict[str, str]:
    """Return for each input of a decoder's cache the output that it is in the next step."""
    return {name: name.replace("past", "present", 1) for name in past}


def cache(model: onnx.ModelProto, length: int) -> Inputs:
    """Return a cache of *length* tokens for `decoder()`, of random keys and values."""
    random = np.random.default_rng(0)
    filled: dict[str, Array] = {}
    for i in model.graph.input:
        if i.name.startswith("past."):
            _, heads, _, size = (dim.dim_value for dim in i.type.tensor_type.shape.dim)
            dtype = onnx.helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type)
            filled[i.name] = random.standard_normal((1, heads, length, size), np.float32).astype(dtype)
    return filled


def next_token(length: int) -> Inputs:
    """Return what `decoder()` takes beside a cache of *length* tokens: one token more."""
    return {
        "input_ids": np.array([[length % _WORDS]]),
        "position_ids": np.array([[length]]),
        "attention_mask": np.ones((1, length + 1), np.int64),
    }
