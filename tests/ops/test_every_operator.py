"""Each operator, on its own examples: kernels against reference, reference against onnx's own."""

from __future__ import annotations

import inspect

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import RuntimeImplementationError
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NotImplementedByRuntime

from asyncrt.graph.onnx_types import proto_of
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.registry import operators
from asyncrt.kinds import shown_to_caller
from asyncrt.layout import STRING, PartialLayout

from ..second_opinion import onnxruntime_session
from .run import (
    arrays,
    assert_close,
    assert_same,
    build_examples,
    host_only,
    make_call,
    reference,
    run_impl,
    type_of,
    variants,
)

CASES = [
    pytest.param(operator, example, id=f"{operator.name}-{index}")
    for operator in sorted(operators().values(), key=lambda o: o.name)
    for index, example in enumerate(operator.examples)
]

# Onnx's evaluator gives a vector, ONNX Runtime and the converters a row.
_AS_ONNXRUNTIME = {"DictVectorizer"}


@pytest.mark.parametrize(("operator", "example"), CASES)
def test_kernels_agree_with_the_reference(operator: Operator, example: Example) -> None:
    """An operator's kernels give what its NumPy reference gives, whether its inputs are constants or not."""
    inputs = arrays(example)
    expected = reference(operator, example, inputs)
    if operator.implement is None or host_only(operator, inputs, expected):
        pytest.skip(host_only(operator, inputs, expected))
    build_examples(operator, *variants())
    for constant, traits in variants():
        call = make_call(operator, example, inputs, expected, constant=constant)
        impl = operator.implement(call, traits)
        got = run_impl(impl, call, inputs)

        for i, (e, g) in enumerate(zip(expected, got, strict=True)):
            what = f"{operator.name} output {i} constant={constant} packed={traits.packed_weights} by {impl.name}"
            assert_close(e, g, what)


@pytest.mark.parametrize(("operator", "example"), CASES)
def test_references_agree_with_onnx(operator: Operator, example: Example) -> None:
    """An operator's reference gives what onnx's reference evaluator gives."""
    inputs = arrays(example)
    if any(a is not None and a.dtype.name == "bfloat16" for a in inputs):
        pytest.skip("onnx's evaluator does not take NumPy's bfloat16 as an input")
    if operator.domain == "asyncrt":
        pytest.skip("asyncrt's own, tested as what is written with it: tests/graph/test_classical.py")
    opset = example.opset or 21
    names = ["" if a is None else f"x{i}" for i, a in enumerate(inputs)]
    outputs = [f"y{i}" for i in range(example.outputs)]
    attributes = {
        k: onnx.numpy_helper.from_array(v) if isinstance(v, np.ndarray) else list(v) if isinstance(v, tuple) else v
        for k, v in example.attributes.items()
    }
    node = helper.make_node(operator.name, names, outputs, domain=operator.domain, **attributes)
    infos = [
        onnx.ValueInfoProto(name=n, type=proto_of(PartialLayout(type_of(given, a), a.shape)))
        for n, given, a in zip(names, example.inputs, inputs, strict=True)
        if a is not None
    ]
    graph = helper.make_graph([node], "example", infos, [onnx.ValueInfoProto(name=o) for o in outputs])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(operator.domain, opset)])
    feeds = {
        n: shown_to_caller(type_of(given, a), a)
        for n, given, a in zip(names, example.inputs, inputs, strict=True)
        if a is not None
    }
    try:
        if operator.name in _AS_ONNXRUNTIME:
            raise NotImplementedError
        theirs = ReferenceEvaluator(model).run(None, feeds)
    except (RuntimeImplementationError, NotImplementedError, ValueError) as error:
        # onnx has no reference of it, does not know it, or not with such an attribute
        if isinstance(error, ValueError) and "coordinate_transformation_mode" not in str(error):
            raise
        model.ir_version = 10
        try:
            session = onnxruntime_session(model)
        except NotImplementedByRuntime:
            pytest.skip("neither onnx nor ONNX Runtime has it")
        theirs = session.run(None, feeds)

    for i, (e, g) in enumerate(zip(theirs, reference(operator, example, inputs), strict=True)):
        what = f"{operator.name} output {i}"
        if g.dtype == object:
            assert_same(e, g.item(), what)
            continue
        e = np.asarray(e)
        if operator.types is not None and g.dtype == np.float64:  # of a map's floats, whose dtype its type says
            g = g.astype(e.dtype)
        assert_close(e.astype(g.dtype) if g.dtype == STRING.numpy else e, g, what)


def test_every_operator_has_examples() -> None:
    """No operator goes untested."""
    missing = [o.name for o in operators().values() if not o.examples]

    assert missing == []


def test_every_operator_file_says_its_source() -> None:
    """Each file of `kernels/ops` begins with what the operator means and where that is written."""
    for operator in operators().values():
        module = inspect.getmodule(operator.infer)
        assert module is not None
        assert module.__doc__, operator.name
