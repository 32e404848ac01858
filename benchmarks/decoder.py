"""A decoder of a chosen size with random weights, as exporters write them: a cache of keys and values in and out."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .measure import Array

VOCABULARY = 2000


class _Graph:
    """Nodes and constants; each method appends a node and returns its output's name."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(0)

    def add(self, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        name = output or f"{operator.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name=name, **attributes))
        return name

    def constant(self, value: Any, dtype: type = np.float32) -> str:
        name = f"c{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weights(self, *shape: int) -> str:
        drawn: Array = self._random.standard_normal(shape) / np.sqrt(shape[0])
        return self.constant(drawn)

    def normalized(self, x: str, hidden: int) -> str:
        return self.add("LayerNormalization", x, self.constant(np.ones(hidden)), self.constant(np.zeros(hidden)))


def decoder(layers: int, hidden: int, heads: int) -> onnx.ModelProto:
    """Return the model: `input_ids`, `attention_mask` and `position_ids` to `logits`, and the cache of each layer."""
    g = _Graph()
    size = hidden // heads
    total = g.add("Cast", "attention_mask", to=TensorProto.FLOAT)
    lifted = g.add("Unsqueeze", total, g.constant([1, 2], np.int64))
    bias = g.add("Mul", g.add("Sub", lifted, g.constant(1)), g.constant(1e9))
    words = g.add("Gather", g.weights(VOCABULARY, hidden), "input_ids")
    x = g.add("Add", words, g.add("Gather", g.weights(1024, hidden), "position_ids"))
    split = g.constant([0, 0, heads, size], np.int64)
    joined = g.constant([0, 0, hidden], np.int64)
    for layer in range(layers):
        y = g.normalized(x, hidden)
        heads_of = [g.add("Reshape", g.add("MatMul", y, g.weights(hidden, hidden)), split) for _ in range(3)]
        query, key, value = (g.add("Transpose", h, perm=[0, 2, 1, 3]) for h in heads_of)
        keys = g.add("Concat", f"past_key_values.{layer}.key", key, axis=2, output=f"present.{layer}.key")
        values = g.add("Concat", f"past_key_values.{layer}.value", value, axis=2, output=f"present.{layer}.value")
        scores = g.add("MatMul", query, g.add("Transpose", keys, perm=[0, 1, 3, 2]))
        scaled = g.add("Add", g.add("Mul", scores, g.constant(size**-0.5)), bias)
        mixed = g.add("Transpose", g.add("MatMul", g.add("Softmax", scaled, axis=-1), values), perm=[0, 2, 1, 3])
        x = g.add("Add", x, g.add("MatMul", g.add("Reshape", mixed, joined), g.weights(hidden, hidden)))
        wide = g.add("Relu", g.add("MatMul", g.normalized(x, hidden), g.weights(hidden, 4 * hidden)))
        x = g.add("Add", x, g.add("MatMul", wide, g.weights(4 * hidden, hidden)))
    g.add("MatMul", g.normalized(x, hidden), g.weights(hidden, VOCABULARY), output="logits")
    dims = {"input_ids": ["batch", "seq"], "attention_mask": ["batch", "total"], "position_ids": ["batch", "seq"]}
    inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, shape) for n, shape in dims.items()]
    caches = [f"{layer}.{part}" for layer in range(layers) for part in ("key", "value")]
    past = ["batch", heads, "past", size]
    inputs += [helper.make_tensor_value_info(f"past_key_values.{c}", TensorProto.FLOAT, past) for c in caches]
    outputs = [onnx.ValueInfoProto(name=n) for n in ("logits", *(f"present.{c}" for c in caches))]
    graph = helper.make_graph(g.nodes, "decoder", inputs, outputs, g.tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
