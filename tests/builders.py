"""Small models, built in a line or two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from asyncrt.layout import Array

_TYPES = {
    "f32": 1, "u8": 2, "i8": 3, "u16": 4, "i16": 5, "i32": 6, "i64": 7, "bool": 9, "f16": 10, "f64": 11, "u32": 12,
    "u64": 13, "bf16": 16,
}  # fmt: skip


def value(text: str) -> onnx.ValueInfoProto:
    """Return a value from ``"x f32[batch,3]"``; without brackets its rank is unknown."""
    name, kind = text.split()
    if "[" not in kind:
        return helper.make_tensor_value_info(name, _TYPES[kind], None)
    dtype, dims = kind.rstrip("]").split("[")
    shape = [int(d) if d.isdigit() else d for d in dims.split(",") if d]
    return helper.make_tensor_value_info(name, _TYPES[dtype], shape)


def node(text: str, **attributes: Any) -> onnx.NodeProto:
    """Return a node from ``"y, z = Split(x, sizes)"``; an empty name between commas is an absent input."""
    outputs, call = text.split(" = ")
    operator, arguments = call.rstrip(")").split("(")
    given = {k: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for k, v in attributes.items()}
    names = [a.strip() for a in arguments.split(",")] if arguments else []
    return helper.make_node(operator, names, [o.strip() for o in outputs.split(",")], **given)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[str],
    outputs: Sequence[str],
    constants: Mapping[str, Array] | None = None,
    *,
    opset: int = 18,
) -> onnx.ModelProto:
    """Return a model; inputs as for `value`, outputs by name."""
    tensors = [numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()]
    results = [onnx.ValueInfoProto(name=o) for o in outputs]
    graph = helper.make_graph(list(nodes), "test", [value(i) for i in inputs], results, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def i64(*values: int) -> Array:
    """Return a vector of int64."""
    return np.array(values, np.int64)
