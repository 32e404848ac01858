"""Models of a few nodes, for tests of what surrounds the operators."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import TensorProto, helper


def make(nodes: Sequence[onnx.NodeProto], inputs: dict[str, str], outputs: Sequence[str]) -> onnx.ModelProto:
    """Return a model.

    Args:
        inputs: dtype and dims by name, e.g. ``{"x": "float batch 4"}``.
    """
    infos = []
    for name, text in inputs.items():
        dtype, *dims = text.split()
        shape = [int(d) if d.isdigit() else d for d in dims]
        infos.append(helper.make_tensor_value_info(name, TensorProto.DataType.Value(dtype.upper()), shape))
    graph = helper.make_graph(list(nodes), "tiny", infos, [onnx.ValueInfoProto(name=o) for o in outputs])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def double() -> onnx.ModelProto:
    """y[n] = x[n] + x[n]"""
    return make([helper.make_node("Add", ["x", "x"], ["y"])], {"x": "float n"}, ["y"])
