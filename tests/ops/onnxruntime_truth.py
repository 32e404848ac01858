"""Compare an operator with onnxruntime, where onnx's own evaluator is not to be trusted or has no such operator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper

from asyncrt.kernels.operator import Example
from asyncrt.kernels.registry import find_operator
from asyncrt.layout import Array, layout_of

from ..second_opinion import onnxruntime_session
from .run import arrays, assert_close, best_device, make_call, reference, run_impl, traits_of


def onnxruntime_outputs(name: str, example: Example, outputs: list[Array]) -> list[Array]:
    """Run a model of one node; *outputs* say which dtypes to expect."""
    inputs = arrays(example)
    names = ["" if a is None else f"x{i}" for i, a in enumerate(inputs)]
    results = [f"y{i}" for i in range(len(outputs))]
    attributes = {k: list(v) if isinstance(v, tuple) else v for k, v in example.attributes.items()}
    node = helper.make_node(name, names, results, **attributes)
    given = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, inputs, strict=True)
        if a is not None
    ]
    wanted = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(o.dtype), None)
        for n, o in zip(results, outputs, strict=True)
    ]
    graph = helper.make_graph([node], "example", given, wanted)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", example.opset or 21)])
    model.ir_version = min(onnx.IR_VERSION, 10)
    session = onnxruntime_session(model)
    feeds = {n: a for n, a in zip(names, inputs, strict=True) if a is not None}
    return [np.asarray(r) for r in session.run(None, feeds)]


def check_with_onnxruntime(name: str, example: Example) -> None:
    """The reference gives what onnxruntime gives, and the kernels what the reference gives."""
    operator = find_operator("", name)
    assert operator is not None
    mine = reference(operator, example, arrays(example))
    check_with(onnxruntime_outputs(name, example, mine), name, example)


def check_with(truth: Sequence[Array], name: str, example: Example) -> None:
    """The reference gives the truth, and the kernels what the reference gives."""
    operator = find_operator("", name)
    assert operator is not None
    inputs = arrays(example)
    mine = reference(operator, example, inputs)
    for i, (e, g) in enumerate(zip(truth, mine, strict=True)):
        assert_close(e, g, f"{name} output {i} of the reference")
    if operator.implement is None:
        return
    call = make_call(operator, example, inputs, mine, constant=False)
    impl = operator.implement(call, traits_of(best_device()))
    for i, (e, g) in enumerate(zip(mine, run_impl(impl, call, inputs), strict=True)):
        assert layout_of(g).dtype is call.outputs[i].dtype
        assert_close(e, g, f"{name} output {i} by {impl.name}")
