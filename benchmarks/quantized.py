"""What does a model become when it is quantised dynamically, as `onnxruntime.quantization.quantize_dynamic` does it?

Each MatMul by a constant becomes DynamicQuantizeLinear of its left side, once for all its readers, MatMulInteger, and
what makes floats of the sums. Weights are symmetric, with a scale for each column.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .measure import Array


def quantized(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with 8-bit weights where it multiplies by constants."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    weights = {t.name: t for t in graph.initializer}
    nodes: list[onnx.NodeProto] = []
    levels: dict[str, str] = {}
    added: dict[str, Array] = {"quantized.zero": np.array(0, np.int8)}
    for node in graph.node:
        weight = weights.get(node.input[1]) if node.op_type == "MatMul" else None
        if weight is None or len(weight.dims) != 2 or weight.data_type != TensorProto.FLOAT:
            nodes.append(node)
            continue
        left, right, made = node.input[0], weight.name, node.output[0]
        if left not in levels:
            levels[left] = f"{left}.quantized"
            outputs = [f"{left}.{part}" for part in ("quantized", "scale", "zero")]
            nodes.append(helper.make_node("DynamicQuantizeLinear", [left], outputs, name=f"{left}.quantize"))
        if f"{right}.quantized" not in added:
            added[f"{right}.quantized"], added[f"{right}.scale"] = columns(numpy_helper.to_array(weight))
        factors = [levels[left], f"{right}.quantized", f"{left}.zero", "quantized.zero"]
        nodes += [
            helper.make_node("MatMulInteger", factors, [f"{made}.sums"], name=node.name),
            helper.make_node("Cast", [f"{made}.sums"], [f"{made}.float"], name=f"{made}.cast", to=TensorProto.FLOAT),
            helper.make_node("Mul", [f"{left}.scale", f"{right}.scale"], [f"{made}.scale"], name=f"{made}.scales"),
            helper.make_node("Mul", [f"{made}.float", f"{made}.scale"], [made], name=f"{made}.scaled"),
        ]
    del graph.node[:]
    graph.node.extend(nodes)
    read = {name for node in nodes for name in node.input}
    kept = [t for t in graph.initializer if t.name in read]
    del graph.initializer[:]
    graph.initializer.extend([*kept, *(numpy_helper.from_array(array, name) for name, array in added.items())])
    return result


def columns(matrix: Array) -> tuple[Array, Array]:
    """Return a ``[K, N]`` matrix as int8, and the scale of each column."""
    scale = np.maximum(np.abs(matrix).max(axis=0), np.float32(1e-12)) / np.float32(127)
    return np.rint(matrix / scale).astype(np.int8), scale.astype(np.float32)
