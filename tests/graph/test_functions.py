"""Functions: a model's own, and the bodies that ONNX gives to operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from asyncrt.errors import ModelError, ModelFormatError, ModelLimitError, UnsupportedOperatorError
from asyncrt.graph import importer
from asyncrt.kernels.registry import find_operator
from asyncrt.layout import Array

from .models import compute, f32, info, model, names, node, program

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)


def _function(
    name: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    nodes: Sequence[onnx.NodeProto],
    attributes: Sequence[str] = (),
    defaults: Mapping[str, Any] = {},
    opset: int = 18,
) -> onnx.FunctionProto:
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)]
    protos = [helper.make_attribute(k, v) for k, v in defaults.items()]
    return helper.make_function("own", name, inputs, outputs, nodes, opsets, attributes, protos)


def _own(op: str, inputs: Sequence[str], outputs: Sequence[str], /, **attributes: Any) -> onnx.NodeProto:
    return node(op, inputs, outputs, domain="own", **attributes)


def _model(
    nodes: Sequence[onnx.NodeProto], functions: Sequence[onnx.FunctionProto], outputs: Sequence[Any] = ("y",)
) -> onnx.ModelProto:
    return model(nodes, [f32("x", "n", 4)], outputs, functions=functions, domains=["own"])


def _assert_like_onnx(source: onnx.ModelProto, feeds: Mapping[str, Array]) -> None:
    expected = ReferenceEvaluator(source).run(None, dict(feeds))
    for e, g in zip(expected, compute(program(source), feeds), strict=True):
        np.testing.assert_allclose(g, e, rtol=1e-5, atol=1e-6)


def _refers(op: str, inputs: Sequence[str], outputs: Sequence[str], **references: str) -> onnx.NodeProto:
    made = node(op, inputs, outputs)
    for name, (reference, kind) in {k: v.split(":") for k, v in references.items()}.items():
        attribute = made.attribute.add(name=name, ref_attr_name=reference)
        attribute.type = onnx.AttributeProto.AttributeType.Value(kind)
    return made


# A model's own.

TWICE = _function("Twice", ["a"], ["b"], [node("Add", ["a", "a"], ["t"]), node("Identity", ["t"], ["b"])])
FOUR_TIMES = _function("FourTimes", ["a"], ["b"], [_own("Twice", ["a"], ["t"]), _own("Twice", ["t"], ["b"])])


def test_functions_of_functions_are_written_out() -> None:
    """A function used several times, inside another, is what its nodes are; names do not meet."""
    source = _model([_own("FourTimes", ["x"], ["t"], name="f"), _own("Twice", ["t"], ["y"])], [TWICE, FOUR_TIMES])

    _assert_like_onnx(source, {"x": X})
    assert [n.name for n in program(source).nodes][:2] == ["f/Twice_0/Add_0", "f/Twice_0/Identity_1"]


def test_names_of_a_body_do_not_meet_the_models() -> None:
    """The model's own value is called what a body's value would be called; both are right."""
    nodes = [_own("Twice", ["x"], ["z"], name="f"), node("Neg", ["x"], ["f/t"]), node("Mul", ["z", "f/t"], ["y"])]

    _assert_like_onnx(_model(nodes, [TWICE]), {"x": X})


def test_attributes_are_put_in() -> None:
    """A body refers to attributes of the call: given ones, defaults, and ones that the call leaves out."""
    body = [
        _refers("LeakyRelu", ["a"], ["l"], alpha="slope:FLOAT"),
        _refers("Softmax", ["l"], ["s"], axis="axis:INT"),
        _refers("Elu", ["s"], ["b"], alpha="none:FLOAT"),
    ]
    function = _function("F", ["a"], ["b"], body, ["slope", "none"], {"axis": 0})
    nodes = [_own("F", ["x"], ["p"], slope=0.3), _own("F", ["x"], ["q"], slope=0.1, axis=1)]
    source = _model(nodes, [function], ["p", "q"])

    slopes = [n.attributes["alpha"] for n in program(source).nodes if n.operator.name == "LeakyRelu"]

    assert slopes == pytest.approx([0.3, 0.1])
    assert [n.attributes["axis"] for n in program(source).nodes if n.operator.name == "Softmax"] == [0, 1]
    assert {n.attributes["alpha"] for n in program(source).nodes if n.operator.name == "Elu"} == {1.0}


def test_an_input_that_the_call_leaves_out_is_absent_in_the_body() -> None:
    """An optional input of an operator in the body is absent if the function's input is."""
    function = _function("G", ["a", "b", "c"], ["y"], [node("Gemm", ["a", "b", "c"], ["y"], transB=1)])

    for inputs in (["x", "x", ""], ["x", "x"]):
        (got,) = compute(program(_model([_own("G", inputs, ["y"])], [function])), {"x": X})

        np.testing.assert_allclose(got, X @ X.T, rtol=1e-5)


def test_outputs_that_the_call_leaves_out_are_dead() -> None:
    """Only what is used of a function runs."""
    function = _function("Two", ["a"], ["p", "q"], [node("Exp", ["a"], ["p"]), node("Neg", ["a"], ["q"])])

    assert names(program(_model([_own("Two", ["x"], ["", "y"])], [function]))) == ["Neg"]
    assert names(program(_model([_own("Two", ["x"], ["y"])], [function]))) == ["Exp"]


def test_a_body_keeps_its_opset() -> None:
    """Softmax means another thing before opset 13; a body of opset 11 still means that."""
    function = _function("Old", ["a"], ["b"], [node("Softmax", ["a"], ["b"])], opset=11)
    nodes = [_own("Old", ["x"], ["t"]), node("Softmax", ["t"], ["y"])]

    built = program(_model(nodes, [function]))

    assert [(n.attributes.opset, n.attributes["axis"]) for n in built.nodes] == [(11, 1), (18, -1)]


def test_a_body_in_any_order_is_taken() -> None:
    """As in a model, nodes are brought into order."""
    function = _function("F", ["a"], ["b"], [node("Exp", ["t"], ["b"]), node("Neg", ["a"], ["t"])])

    assert names(program(_model([_own("F", ["x"], ["y"])], [function]))) == ["Neg", "Exp"]


def test_a_function_comes_before_an_operator_of_its_name() -> None:
    """A model may bring its own meaning of a standard operator."""
    own = helper.make_function("", "Relu", ["a"], ["b"], [node("Neg", ["a"], ["b"])], [helper.make_opsetid("", 18)])

    assert names(program(_model([node("Relu", ["x"], ["y"])], [own]))) == ["Neg"]


def test_a_function_in_a_subgraph_is_written_out() -> None:
    """What an If runs are standard operators."""
    branch = helper.make_graph([_own("FourTimes", ["x"], ["r"])], "b", [], [onnx.ValueInfoProto(name="r")])
    choose = node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    source = model(
        [choose], [f32("x", "n"), info("c", onnx.TensorProto.BOOL, ["one"])], ["y"],
        functions=[FOUR_TIMES, TWICE], domains=["own"],
    )  # fmt: skip

    (only,) = program(source).nodes

    assert [sub.label for sub in only.subgraphs] == ["then", "else"]
    for sub in only.subgraphs:
        assert sub.program is not None
        assert names(sub.program) == ["Add", "Identity"] * 2
        assert all(n.name.startswith(f"If_0/{sub.label}/") for n in sub.program.nodes)


def test_a_subgraph_in_a_body_takes_the_calls_values() -> None:
    """Names inside a body's subgraph are renamed like the others, those that it defines itself too."""
    branch = helper.make_graph([node("Neg", ["t"], ["y"])], "b", [], [onnx.ValueInfoProto(name="y")])
    body = [node("Exp", ["a"], ["t"]), node("If", ["c"], ["b"], then_branch=branch, else_branch=branch)]
    source = model(
        [_own("F", ["x", "c"], ["y"], name="f")], [f32("x", "n"), info("c", onnx.TensorProto.BOOL, ["one"])], ["y"],
        functions=[_function("F", ["a", "c"], ["b"], body)], domains=["own"],
    )  # fmt: skip

    built = program(source)
    choose = built.nodes[1]
    then = choose.subgraphs[0].program

    assert [built.values[v].name for v in choose.captures] == ["f/t"]
    assert then is not None
    assert [then.values[v].name for v in then.inputs] == ["f/t"]
    assert then.values[then.outputs[0]].name != "y"


@pytest.mark.parametrize(
    ("functions", "nodes", "message"),
    [
        ([_function("F", ["a"], ["b"], [_own("F", ["a"], ["b"])])], [_own("F", ["x"], ["y"])], "F .* uses itself"),
        (
            [
                _function("F", ["a"], ["b"], [_own("G", ["a"], ["b"])]),
                _function("G", ["a"], ["b"], [_own("F", ["a"], ["b"])]),
            ],
            [_own("F", ["x"], ["y"])],
            "uses itself",
        ),
        ([TWICE, TWICE], [_own("Twice", ["x"], ["y"])], "own:Twice twice"),
        ([TWICE], [_own("Twice", ["x", "x"], ["y"], name="f")], "f: .* 1 inputs, got 2"),
        ([TWICE], [_own("Twice", ["x"], ["y", "z"], name="f")], "f: .* 1 outputs, got 2"),
        ([_function("F", ["a"], ["b"], [node("Neg", ["a"], ["c"])])], [_own("F", ["x"], ["y"], name="f")], "f: .*'b'"),
        ([_function("F", ["a"], ["a"], [])], [_own("F", ["x"], ["y"], name="f")], "f: .*'a'"),
        ([_function("F", ["a"], ["b"], [node("Neg", ["z"], ["b"])])], [_own("F", ["x"], ["y"], name="f")], "f: .*'z'"),
        ([_function("F", ["a"], ["b"], [node("Neg", ["b"], ["b"])])], [_own("F", ["x"], ["y"], name="f")], "cycle"),
        (
            [_function("F", ["a"], ["b"], [node("Neg", ["a"], ["b"]), node("Exp", ["a"], ["b"])])],
            [_own("F", ["x"], ["y"], name="f")],
            "twice",
        ),
        (
            [_function("F", ["a"], ["b"], [node("Neg", ["a"], ["a"]), node("Exp", ["a"], ["b"])])],
            [_own("F", ["x"], ["y"], name="f")],
            "f: .*'a' twice",
        ),
    ],
)
def test_a_function_that_contradicts_itself_is_refused(
    functions: list[onnx.FunctionProto], nodes: list[onnx.NodeProto], message: str
) -> None:
    """Whatever is wrong with a body or its call, the message names the call or the function."""
    with pytest.raises(ModelFormatError, match=message):
        program(_model(nodes, functions))


def test_an_attribute_that_a_function_lacks_is_refused() -> None:
    """It would be ignored without a word."""
    with pytest.raises(UnsupportedOperatorError, match=r"f: .*'slope'"):
        program(_model([_own("Twice", ["x"], ["y"], name="f", slope=1.0)], [TWICE]))


def test_functions_that_multiply_are_not_written_out() -> None:
    """Twenty functions that each use the one before it ten times are 10**20 nodes: refused at once."""
    functions = [_function("F0", ["a"], ["b"], [node("Neg", ["a"], ["b"])])]
    for level in range(1, 21):
        chain = [_own(f"F{level - 1}", [f"t{i}" if i else "a"], [f"t{i + 1}" if i < 9 else "b"]) for i in range(10)]
        functions.append(_function(f"F{level}", ["a"], ["b"], chain))

    with pytest.raises(ModelLimitError, match="max_nodes is 262144"):
        program(_model([_own("F20", ["x"], ["y"])], functions))


def test_a_long_chain_of_functions_is_an_error_not_a_crash() -> None:
    """Five thousand functions, each using the next, are more than the importer follows."""
    functions = [_function(f"F{i}", ["a"], ["b"], [_own(f"F{i + 1}", ["a"], ["b"])]) for i in range(5000)]

    with pytest.raises(ModelError):
        program(_model([_own("F0", ["x"], ["y"])], functions))


# Bodies of ONNX's schemas.


def _only_own_operators(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    """As if asyncrt did not have the operators *missing*, and onnx no evaluator."""
    monkeypatch.setattr(importer, "find_operator", lambda d, n: None if n in missing else find_operator(d, n))
    monkeypatch.setattr(importer, "evaluated", lambda schema: None)


def _needs(op: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_operator("", op) is None, reason=f"its body needs {op}")


@pytest.mark.parametrize(
    ("op", "opset", "attributes"),
    [
        ("Relu", 18, {}),
        ("Softmax", 18, {"axis": 0}),
        ("LogSoftmax", 18, {}),
        ("Celu", 18, {"alpha": 1.5}),
        pytest.param("Elu", 18, {}, marks=_needs("Where")),
        pytest.param("Selu", 18, {}, marks=_needs("Where")),
        ("HardSigmoid", 18, {"beta": 0.4}),
        ("HardSwish", 18, {}),
        pytest.param("LeakyRelu", 18, {}, marks=_needs("Where")),
        pytest.param("ThresholdedRelu", 18, {"alpha": 0.5}, marks=_needs("Where")),
        ("Softplus", 18, {}),
        ("Softsign", 18, {}),
        ("Mish", 18, {}),
        ("Gelu", 20, {"approximate": "tanh"}),
        ("Gelu", 20, {}),
        ("ReduceL1", 18, {}),
        ("ReduceLogSum", 18, {}),
        ("ReduceSumSquare", 18, {"keepdims": 0}),
        ("MeanVarianceNormalization", 18, {"axes": [0, 1]}),
        ("Swish", 24, {"alpha": 0.5}),
        ("Clip", 18, {}),
    ],
)
def test_an_operator_is_what_its_body_says(
    op: str, opset: int, attributes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an operator of its own, a node runs as the nodes of ONNX's body, with onnx's result."""
    _only_own_operators(monkeypatch, op)
    x = np.abs(X) + 0.1 if op == "ReduceLogSum" else X
    source = model([node(op, ["x"], ["y"], name="n", **attributes)], [f32("x", "n", 4)], ["y"], opset=opset)

    built = program(source)

    needs = [n.operator.name for n in built.nodes if n.operator.name == op]
    assert needs == []
    assert built.nodes[0].name.startswith("n/")
    (expected,) = ReferenceEvaluator(source).run(None, {"x": x})
    np.testing.assert_allclose(compute(built, {"x": x})[0], expected, rtol=1e-5, atol=1e-6)


@_needs("Slice")
def test_a_body_may_depend_on_the_inputs_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    """LayerNormalization's body computes in the dtype that its attribute and inputs ask for."""
    _only_own_operators(monkeypatch, "LayerNormalization")
    nodes = [node("LayerNormalization", ["x", "scale", "bias"], ["y"], name="ln", epsilon=1e-3)]
    constants = {"scale": np.arange(4, dtype=np.float32), "bias": np.ones(4, np.float32)}
    source = model(nodes, [f32("x", "n", 4)], ["y"], constants)

    _assert_like_onnx(source, {"x": X})


def test_a_body_of_bodies_is_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator in a body may itself have only a body."""
    _only_own_operators(monkeypatch, "LogSoftmax", "ReduceLogSumExp", "ReduceLogSum", "Softmax", "Swish")
    source = model([node("Swish", ["x"], ["t"]), node("LogSoftmax", ["t"], ["y"])], [f32("x", "n", 4)], ["y"], opset=24)

    _assert_like_onnx(source, {"x": X})


def test_a_body_uses_the_newest_version_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its nodes have the opset it was written for, which may be older than the model's."""
    _only_own_operators(monkeypatch, "Softmax")
    for opset, expected in ((13, 13), (17, 13), (18, 18), (22, 18)):
        source = model([node("Softmax", ["x"], ["y"])], [f32("x", "n", 4)], ["y"], opset=opset)

        assert {n.attributes.opset for n in program(source).nodes} == {expected}


def test_a_missing_operator_of_a_body_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message leads from the model's node to the operator that is missing."""
    _only_own_operators(monkeypatch, "Softplus", "Exp")
    source = model([node("Softplus", ["x"], ["y"], name="n")], [f32("x", "n")], ["y"])

    with pytest.raises(UnsupportedOperatorError, match=r"n/Exp.*: asyncrt has no operator Exp"):
        program(source)


def test_a_node_is_checked_before_its_body_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnx's builders of bodies trust the node; wrong ones must not reach them."""
    _only_own_operators(monkeypatch, "Softmax", "Celu", "Clip")
    monkeypatch.setattr(importer, "schema_body", lambda *a: pytest.fail("asked for a body"))

    with pytest.raises(ModelFormatError, match="1 inputs"):
        program(model([node("Softmax", ["x", "x"], ["y"])], [f32("x", "n")], ["y"]))
    with pytest.raises(UnsupportedOperatorError, match="no attribute 'beta'"):
        program(model([node("Celu", ["x"], ["y"], beta=1.0)], [f32("x", "n")], ["y"]))
    with pytest.raises(ModelError, match="input 0"):
        program(model([node("Clip", ["x"], ["y"])], [info("x", onnx.TensorProto.BOOL, ["n"])], ["y"]))


def test_a_body_that_onnx_writes_for_a_node_may_have_any_names_inside() -> None:
    """Exporters put slashes and dots into names; onnx writes such a body as a text, in which they are no words."""
    inside = helper.make_graph(
        [node("Mul", ["/a.0/scores", "/a.0/half"], ["/a.0/scaled"])], "score_mod",
        [f32("/a.0/scores", "b", "h", "l", "s")], [f32("/a.0/scaled", "b", "h", "l", "s")],
        [numpy_helper.from_array(np.array(0.5, np.float32), "/a.0/half")],
    )  # fmt: skip
    attention = helper.make_node("FlexAttention", ["q", "k", "v"], ["y"], domain="ai.onnx.preview", score_mod=inside)
    shapes = [f32(name, 1, 1, 2, 4) for name in "qkv"]
    built = program(model([attention], shapes, ["y"], opset=25, domains=["ai.onnx.preview"]))
    q, k, v = (np.random.default_rng(i).standard_normal((1, 1, 2, 4)).astype(np.float32) for i in range(3))

    (got,) = compute(built, {"q": q, "k": k, "v": v})

    weights = np.exp(q @ k.swapaxes(2, 3) / 2 * 0.5)
    np.testing.assert_allclose(got, weights / weights.sum(-1, keepdims=True) @ v, rtol=1e-5)
