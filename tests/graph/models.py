"""Small models in one line, and what a program computes, without a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from asyncrt.graph.build import build_program
from asyncrt.graph.ir import Program
from asyncrt.kernels.call import Call
from asyncrt.kernels.operator import evaluate
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, layout_of
from asyncrt.options import RuntimeOptions

TRAITS = DeviceTraits(features=frozenset({"fp64", "fp16"}))
OPTIONS = RuntimeOptions()
FLOAT, INT64, BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL

node = helper.make_node
info = helper.make_tensor_value_info


def f32(name: str, *dims: int | str | None) -> onnx.ValueInfoProto:
    """A float32 input or output."""
    return info(name, FLOAT, list(dims))


def i64(name: str, *dims: int | str | None) -> onnx.ValueInfoProto:
    """An int64 input or output."""
    return info(name, INT64, list(dims))


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[str | onnx.ValueInfoProto],
    constants: Mapping[str, Any] = {},
    *,
    opset: int = 18,
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """A model; outputs may be names, whose types are then not declared."""
    tensors = [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()]
    declared = [onnx.ValueInfoProto(name=o) if isinstance(o, str) else o for o in outputs]
    graph = helper.make_graph(nodes, "test", inputs, declared, tensors)
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)


def program(source: Any, options: RuntimeOptions = OPTIONS) -> Program:
    """Build what a runtime would."""
    return build_program(source, TRAITS, options)


def compute(built: Program, feeds: Mapping[str, Array]) -> list[Array]:
    """What a program's outputs are, node by node by the operators' references."""
    values = {v.id: v.constant for v in built.values if v.constant is not None}
    values |= {i: feeds[built.values[i].name] for i in built.inputs}
    for n in built.nodes:
        inputs = [None if i is None else values[i] for i in n.inputs]
        layouts = tuple(None if a is None else layout_of(a) for a in inputs)
        call = Call(n.name, n.attributes, layouts, tuple(inputs), (), n.output_types)
        for output, dtype, result in zip(n.outputs, n.output_types, evaluate(n.operator, call, inputs), strict=False):
            values[output] = np.asarray(result, dtype.numpy)
    return [values[o] for o in built.outputs]


def names(built: Program) -> list[str]:
    """The operators that are left to run, in order."""
    return [n.operator.name for n in built.nodes]
