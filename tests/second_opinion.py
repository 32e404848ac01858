"""ONNX Runtime and onnx's reference as second opinions on what a model gives, and which of them to ask.

On x86 processors without VNNI, products of unsigned and signed bytes in ONNX Runtime are added in pairs that saturate
in 16 bits, so what it gives depends on where it runs; onnx's reference calculates integers exactly. With its
optimisations on, ONNX Runtime makes such products of dequantised floats too, so they are off.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

from asyncrt.layout import Array

INTEGER_PRODUCTS = frozenset({"ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul"})


def onnxruntime_session(source: onnx.ModelProto) -> Any:
    """Return a session of ONNX Runtime that carries a model out node by node, on one thread.

    Raises:
        ValueError: The model multiplies integers: ask `reference_gives()`.
    """
    products = sorted(INTEGER_PRODUCTS & set(_operators(source)))
    if products:
        raise ValueError(f"{', '.join(products)}: ONNX Runtime's sums saturate on some processors; ask onnx.reference")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(source.SerializeToString(), options, providers=["CPUExecutionProvider"])


def onnxruntime_gives(source: onnx.ModelProto, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return the outputs that ONNX Runtime has, by name."""
    session = onnxruntime_session(source)
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def reference_gives(source: onnx.ModelProto, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return the outputs that onnx's reference has, by name; in integers they are exact on every processor."""
    names = [o.name for o in source.graph.output]
    return dict(zip(names, ReferenceEvaluator(source).run(names, dict(inputs)), strict=True))


def _operators(source: onnx.ModelProto) -> Iterable[str]:
    """Yield the operators of a model, those of its subgraphs and functions included."""
    waiting = [source.graph.node, *(f.node for f in source.functions)]
    while waiting:
        for node in waiting.pop():
            yield node.op_type
            for attribute in node.attribute:
                waiting += [g.node for g in (*attribute.graphs, attribute.g)]  # one that is absent is empty
