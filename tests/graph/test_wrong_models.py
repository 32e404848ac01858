"""Every way a model can be wrong ends in the `ModelError` that says so, and names where."""

from __future__ import annotations

import os
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from asyncrt.errors import (
    ModelError,
    ModelFormatError,
    ModelLimitError,
    ModelTypeError,
    UnsupportedOperatorError,
)
from asyncrt.options import RuntimeOptions

from .models import BOOL, FLOAT, f32, i64, info, model, node, program

ATTRIBUTE = onnx.AttributeProto


def _simple(*nodes: onnx.NodeProto, **more: Any) -> onnx.ModelProto:
    return model(nodes or [node("Relu", ["x"], ["y"])], [f32("x", "n", 4)], ["y"], **more)


def _changed(change: Callable[[onnx.ModelProto], object]) -> onnx.ModelProto:
    """A good model with one thing made wrong."""
    source = _simple(node("MatMul", ["x", "w"], ["t"]), node("Relu", ["t"], ["y"]), constants=WEIGHT)
    change(source)
    return source


WEIGHT = {"w": np.ones((4, 4), np.float32)}


# Nodes.


@pytest.mark.parametrize(
    ("error", "message", "nodes"),
    [
        (UnsupportedOperatorError, "bad: .* no operator Foo", [node("Foo", ["x"], ["y"], name="bad")]),
        (
            UnsupportedOperatorError,
            "bad: .* no operator Relu of domain 'com.acme'",
            [node("Relu", ["x"], ["y"], name="bad", domain="com.acme")],
        ),
        (UnsupportedOperatorError, "opset 18 has no attribute 'x'", [node("Relu", ["x"], ["y"], name="bad", x=1)]),
        (ModelFormatError, "bad: .*'axis' should be INT", [node("Softmax", ["x"], ["y"], name="bad", axis=1.0)]),
        (ModelFormatError, "bad: Concat needs .* 'axis'", [node("Concat", ["x", "x"], ["y"], name="bad")]),
        (ModelFormatError, "bad: Cast needs .* 'to'", [node("Cast", ["x"], ["y"], name="bad")]),
        (ModelTypeError, "bad: ", [node("Cast", ["x"], ["y"], name="bad", to=99)]),
        (
            ModelFormatError,
            "bad: attribute 'keepdims' should be 0 or 1, it is 255",
            [node("ReduceMax", ["x"], ["y"], name="bad", keepdims=255)],
        ),
        (ModelFormatError, "bad: MatMul takes 2 inputs, it has 1", [node("MatMul", ["x"], ["y"], name="bad")]),
        (ModelFormatError, "bad: Relu takes 1 inputs, it has 2", [node("Relu", ["x", "x"], ["y"], name="bad")]),
        (ModelFormatError, "bad: Relu takes 1 outputs, it has 2", [node("Relu", ["x"], ["y", "z"], name="bad")]),
        (ModelFormatError, "bad: Relu takes 1 outputs, it has 0", [node("Relu", ["x"], [], name="bad")]),
        (ModelFormatError, "bad: Gemm takes 2 to 3 inputs", [node("Gemm", ["x"] * 4, ["y"], name="bad")]),
        (ModelFormatError, "bad: Concat takes at least 1", [node("Concat", [], ["y"], name="bad", axis=0)]),
        (ModelFormatError, "bad: input 0 .* is missing", [node("MatMul", ["", "x"], ["y"], name="bad")]),
        (ModelFormatError, "bad: input 1 .* is missing", [node("Concat", ["x", "", "x"], ["y"], name="bad", axis=0)]),
        (ModelTypeError, "bad: input 0 .* is float32; it takes bool", [node("Not", ["x"], ["y"], name="bad")]),
        (ModelTypeError, "bad: input 1 .* is int64, .* is float32", [node("Add", ["x", "i"], ["y"], name="bad")]),
        (
            ModelTypeError,
            "bad: input 2 .* is int64, .* is float32",
            [node("Concat", ["x", "x", "i"], ["y"], name="bad", axis=0)],
        ),
        (ModelFormatError, "bad takes 'z', which nothing", [node("Relu", ["z"], ["y"], name="bad")]),
        (ModelFormatError, "'y' .* made by no node", [node("Relu", ["x"], ["z"])]),
        (ModelFormatError, "cycle through Relu_0", [node("Relu", ["y"], ["y"])]),
        (
            ModelFormatError,
            "cycle through (a|b)$",
            [
                node("Neg", ["q"], ["y"], name="behind"),
                node("Relu", ["p"], ["q"], name="a"),
                node("Relu", ["q"], ["p"], name="b"),
            ],
        ),
        (
            ModelFormatError,
            "'y' is defined twice, the second time by bad",
            [node("Relu", ["x"], ["y"]), node("Exp", ["x"], ["y"], name="bad")],
        ),
        (ModelFormatError, "'x' is defined twice, the second time by bad", [node("Exp", ["x"], ["x"], name="bad")]),
        (ModelFormatError, "'y' is defined twice", [node("Dropout", ["x"], ["y", "y"])]),
    ],
)
def test_a_wrong_node_is_named(error: type[ModelError], message: str, nodes: list[onnx.NodeProto]) -> None:
    """The class tells what kind of wrong, the message which node and what was expected."""
    with pytest.raises(error, match=message) as caught:
        program(model(nodes, [f32("x", "n", 4), i64("i", "n", 4)], ["y"]))

    assert type(caught.value) is error


def test_levels_are_of_a_type_that_holds_some() -> None:
    """QuantizeLinear to floats is refused where it stands, not by a device that carries it out."""
    wrong = node("QuantizeLinear", ["x", "s"], ["y"], name="bad", output_dtype=FLOAT)

    with pytest.raises(ModelTypeError, match=r"bad: .*float32, which holds no levels"):
        program(_simple(wrong, constants={"s": np.float32(1)}, opset=21))


def _attribute(**fields: Any) -> Callable[[onnx.ModelProto], object]:
    def change(source: onnx.ModelProto) -> None:
        source.graph.node[1].op_type = "Softmax"
        source.graph.node[1].attribute.add(name="axis", **fields)

    return change


def _sequence(proto: onnx.TypeProto) -> None:
    proto.Clear()
    proto.sequence_type.elem_type.tensor_type.elem_type = FLOAT


def _opset(*versions: int) -> Callable[[onnx.ModelProto], object]:
    def change(source: onnx.ModelProto) -> None:
        del source.opset_import[:]
        for version in versions:
            source.opset_import.add(version=version)

    return change


@pytest.mark.parametrize(
    ("error", "message", "change"),
    [
        (ModelFormatError, "which opset", lambda m: m.ClearField("opset_import")),
        (UnsupportedOperatorError, "opset 0; asyncrt reads 1 to", _opset(0)),
        (UnsupportedOperatorError, "opset 9999", _opset(9999)),
        (ModelFormatError, "opsets 17 and 18", _opset(17, 18)),
        (ModelFormatError, "no ONNX graph", lambda m: m.graph.ClearField("output")),
        (ModelFormatError, "no ONNX graph", lambda m: m.ClearField("graph")),
        (ModelFormatError, "'x' is defined twice", lambda m: m.graph.input.append(m.graph.input[0])),
        (ModelFormatError, "input .* no name", lambda m: m.graph.input.add().type.CopyFrom(m.graph.input[0].type)),
        (ModelTypeError, r"is seq\(float32\); it takes", lambda m: _sequence(m.graph.input[0].type)),
        (ModelTypeError, r"'y' is float32, declared as seq\(float32\)", lambda m: _sequence(m.graph.output[0].type)),
        (
            ModelTypeError,
            "'x' has dtype optional_type, which asyncrt lacks",
            lambda m: m.graph.input[0].type.optional_type.elem_type.tensor_type.SetInParent(),
        ),
        (
            ModelTypeError,
            "'x' has dtype map_type, which asyncrt lacks",
            lambda m: m.graph.input[0].type.map_type.value_type.tensor_type.SetInParent(),
        ),
        (UnsupportedOperatorError, "'x' is a value without a type", lambda m: m.graph.input[0].ClearField("type")),
        (ModelTypeError, "is string; it takes", lambda m: _elem(m.graph.input[0], onnx.TensorProto.STRING)),
        (ModelTypeError, "'x' has dtype undefined", lambda m: _elem(m.graph.input[0], 0)),
        (ModelTypeError, "'x' has dtype 4711", lambda m: _elem(m.graph.input[0], 4711)),
        (ModelTypeError, "'y' is float32, declared as int64", lambda m: _elem(m.graph.output[0], 7)),
        (ModelTypeError, "'w' has dtype complex64", lambda m: _set(m, data_type=onnx.TensorProto.COMPLEX64)),
        (ModelFormatError, "'w' .* needs 256 bytes", lambda m: _set(m, data_type=onnx.TensorProto.STRING)),
        (ModelFormatError, "'w' .* needs 64 bytes, it has 63", lambda m: _set(m, raw_data=b"\0" * 63)),
        (ModelFormatError, "'w' .* needs 64 bytes, it has 65", lambda m: _set(m, raw_data=b"\0" * 65)),
        (ModelFormatError, "'w' has a negative dim", lambda m: _set(m, dims=[-4, -4])),
        (ModelFormatError, "'w' does not hold", lambda m: _typed(m, [1.0, 2.0])),
        (ModelLimitError, "'w' has rank 9", lambda m: _set(m, dims=[1] * 9)),
        (ModelLimitError, "'x' has rank 9", lambda m: m.graph.input[0].CopyFrom(f32("x", *"abcdefghi"))),
        (ModelLimitError, "max_model_bytes", lambda m: _set(m, dims=[1 << 40, 1 << 20])),
        (ModelFormatError, "'w' .* needs .* it has 64", lambda m: _set(m, dims=[1 << 20, 1 << 10])),
        (
            ModelFormatError,
            "'s' of shape .* has 1 values, and indices of shape",
            lambda m: m.graph.sparse_initializer.add().values.CopyFrom(onnx.TensorProto(name="s")),
        ),
        (ModelFormatError, "is that of a function, 'k'", _attribute(type=ATTRIBUTE.INT, ref_attr_name="k")),
        (ModelFormatError, "'axis' should be INT", _attribute(type=ATTRIBUTE.INTS, ints=[1])),
        (ModelFormatError, "given twice", lambda m: (_attribute(type=2, i=1)(m), _attribute(type=2, i=1)(m))),
        (ModelTypeError, "'w' is int64, its initializer float32", lambda m: m.graph.input.append(i64("w", 4, 4))),
        (ModelFormatError, r"'w' is \[4,5\]", lambda m: m.graph.input.append(f32("w", 4, 5))),
        (ModelFormatError, r"'w' is \[4\]", lambda m: m.graph.input.append(f32("w", 4))),
    ],
)
def test_a_wrong_model_is_refused(
    error: type[ModelError], message: str, change: Callable[[onnx.ModelProto], object]
) -> None:
    """What the file says of itself is checked before anything relies on it."""
    with pytest.raises(error, match=message) as caught:
        program(_changed(change).SerializeToString())

    assert type(caught.value) is error


def _elem(value: onnx.ValueInfoProto, number: int) -> None:
    value.type.tensor_type.elem_type = number


def _set(source: onnx.ModelProto, dims: list[int] | None = None, **fields: Any) -> None:
    tensor = source.graph.initializer[0]
    for name, value in fields.items():
        setattr(tensor, name, value)
    if dims is not None:
        tensor.dims[:] = dims


def _typed(source: onnx.ModelProto, values: list[float]) -> None:
    source.graph.initializer[0].ClearField("raw_data")
    source.graph.initializer[0].float_data[:] = values


def test_tensors_of_dims_never_seen_allocate_nothing() -> None:
    """A file of a few bytes may declare a tensor of a terabyte; loading it takes no memory."""
    source = _changed(lambda m: (_set(m, dims=[1 << 20, 1 << 18]), _typed(m, [])))
    tracemalloc.start()
    try:
        with pytest.raises(ModelError):
            program(source, RuntimeOptions(max_model_bytes=1 << 60))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 1 << 20


def test_a_model_of_more_nodes_than_allowed_is_refused() -> None:
    """Nodes of graphs inside nodes count as the others do, and those of functions as often as they are called."""
    branch = helper.make_graph([node("Neg", ["x"], ["z"])], "b", [], [info("z", FLOAT, ["n", 4])])
    held = node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    source = _simple(held, constants={"c": np.array(True)})

    assert program(source, RuntimeOptions(max_nodes=3)).outputs
    with pytest.raises(ModelLimitError, match=r"has 3 nodes; RuntimeOptions\.max_nodes is 2"):
        program(source, RuntimeOptions(max_nodes=2))


def test_axes_without_number_are_refused_at_once() -> None:
    """What a list of axes costs grows as the list does: a million took minutes."""
    axes = np.arange(300_000)
    source = _simple(node("Unsqueeze", ["x", "a"], ["y"]), constants={"a": axes})
    begun = time.process_time()

    with pytest.raises(ModelLimitError, match="rank 300002"):
        program(source)

    assert time.process_time() - begun < 5


def test_a_cut_off_constant_names_its_node() -> None:
    """Tensors in attributes are checked like those of the graph."""
    bad = onnx.TensorProto(data_type=FLOAT, dims=[3], raw_data=b"\0\0")
    source = _simple(node("Constant", [], ["c"], name="bad", value=bad), node("Add", ["x", "c"], ["y"]))

    with pytest.raises(ModelFormatError, match=r"attribute 'value' of bad .* needs 12 bytes, it has 2"):
        program(source)


def test_an_attribute_without_sense_names_its_node() -> None:
    """The value of ConstantOfShape is one element; a tensor without any is of the right type and wrong."""
    empty = onnx.numpy_helper.from_array(np.zeros(0, np.float32))
    source = _simple(node("Shape", ["x"], ["s"]), node("ConstantOfShape", ["s"], ["y"], name="bad", value=empty))

    with pytest.raises(ModelFormatError, match="bad: ConstantOfShape"):
        program(source)


@pytest.mark.parametrize("depth", [40, 3_000])
def test_graphs_nested_deeply_are_an_error_not_a_crash(depth: int) -> None:
    """Neither protobuf's nor Python's stack is the limit."""
    source = _simple()
    graph = source.graph
    for _ in range(depth):
        branch = graph.node.add(op_type="If", input=["c"], output=["o"]).attribute.add()
        branch.name, branch.type = "then_branch", ATTRIBUTE.GRAPH
        graph = branch.g

    with pytest.raises(ModelFormatError, match="graphs in graphs"):
        program(source)


def test_unreadable_names_are_an_error() -> None:
    """A name that is not UTF-8 is no name."""
    data = _simple(node("Relu", ["x"], ["zebra"]), node("Neg", ["zebra"], ["y"])).SerializeToString()

    with pytest.raises(ModelFormatError, match="UTF-8"):
        program(data.replace(b"zebra", b"\xff\xfe\xfd\xfc\xfb"))


# Files.


@pytest.mark.parametrize("data", [b"", b"not onnx", b"\x89PNG\r\n\x1a\n", b"PK\x03\x04", os.urandom(0) + bytes(100)])
def test_what_is_no_model_is_refused(data: bytes, tmp_path: Path) -> None:
    """As bytes and as a file; the message says which file."""
    path = tmp_path / "thing.onnx"
    path.write_bytes(data)

    with pytest.raises(ModelFormatError, match="the given bytes"):
        program(data)
    with pytest.raises(ModelFormatError, match=r"thing\.onnx"):
        program(path)


def test_files_that_cannot_be_read_raise_what_python_raises(tmp_path: Path) -> None:
    """A path that is wrong is no wrong model."""
    with pytest.raises(FileNotFoundError, match="nothing"):
        program(tmp_path / "nothing.onnx")
    with pytest.raises(IsADirectoryError):
        program(str(tmp_path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """Reading a pipe that nobody writes would never return."""
    os.mkfifo(tmp_path / "pipe.onnx")

    with pytest.raises(ModelFormatError, match="not a regular file"):
        program(tmp_path / "pipe.onnx")


def test_a_model_larger_than_allowed_is_not_read(tmp_path: Path) -> None:
    """`max_model_bytes` holds for files, bytes and the tensors of a model in memory."""
    source = _simple(node("Add", ["x", "w"], ["y"]), constants={"w": np.ones(4, np.float32)})
    path = tmp_path / "model.onnx"
    onnx.save(source, path)

    for given_as in (source, source.SerializeToString(), path):
        with pytest.raises(ModelLimitError, match="max_model_bytes is 15"):
            program(given_as, RuntimeOptions(max_model_bytes=15))


# Bytes cut and flipped.


def _varied() -> bytes:
    """A small model with some of everything: attributes of many types, typed data, a subgraph, a function."""
    function = helper.make_function(
        "own", "F", ["a"], ["b"], [node("LeakyRelu", ["a"], ["b"], alpha=0.1)], [helper.make_opsetid("", 18)]
    )
    weights = helper.make_tensor("v", FLOAT, [2, 2], [1.0, 2.0, 3.0, 4.0])
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "i"], ["g"], axis=0),
        node("Concat", ["g", "m"], ["r"], axis=0),
        node("Constant", [], ["c"], value=weights),
        node("Constant", [], ["k"], value_floats=[1.0, 2.0]),
        node("MatMul", ["x", "c"], ["p"]),
        node("Add", ["p", "k"], ["q"]),
        node("F", ["q"], ["f"], domain="own"),
        node("Transpose", ["f"], ["t"], perm=[1, 0]),
        node("Reshape", ["t", "r"], ["u"]),
        node("ReduceSum", ["u", "axes"], ["y"], keepdims=0),
    ]
    constants = {"i": np.array([0]), "m": np.array([-1]), "axes": np.array([1])}
    source = model(nodes, [f32("x", "n", 2)], [f32("y", None)], constants, functions=[function], domains=["own"])
    return bytes(source.SerializeToString())


VARIED = _varied()


def _load(data: bytes) -> None:
    try:
        built = program(data, RuntimeOptions(max_model_bytes=1 << 20, max_folded_bytes=1 << 16))
    except ModelError:
        return
    assert built.outputs


def test_the_model_that_is_damaged_below_is_good() -> None:
    """Otherwise the damage would prove nothing."""
    assert len(program(VARIED).nodes) > 5


def test_a_model_cut_anywhere_is_a_model_or_an_error() -> None:
    """Every length of the file."""
    for length in range(len(VARIED)):
        _load(VARIED[:length])


@given(st.lists(st.tuples(st.integers(0, len(VARIED) - 1), st.integers(0, 255)), min_size=1, max_size=4))
@settings(max_examples=600)
def test_a_model_with_wrong_bytes_is_a_model_or_an_error(changes: list[tuple[int, int]]) -> None:
    """Any bytes replaced by any others: a program or a `ModelError`, nothing else."""
    data = bytearray(VARIED)
    for place, byte in changes:
        data[place] = byte

    _load(bytes(data))


@given(st.integers(0, len(VARIED)), st.integers(0, len(VARIED)), st.binary(max_size=12))
@settings(max_examples=300)
def test_a_model_with_other_parts_is_a_model_or_an_error(start: int, end: int, between: bytes) -> None:
    """Parts left out, doubled or replaced."""
    _load(VARIED[:start] + between + VARIED[end:])


@given(st.binary(max_size=200))
@settings(max_examples=200)
def test_any_bytes_are_a_model_or_an_error(data: bytes) -> None:
    """Bytes that never were a model."""
    _load(data)


def test_a_wrong_dtype_of_an_input_is_told_with_what_is_taken() -> None:
    """The message lists the dtypes that would do."""
    with pytest.raises(ModelTypeError, match="it takes bool"):
        program(model([node("And", ["x", "x"], ["y"])], [f32("x", "n")], ["y"]))
    assert program(model([node("And", ["x", "x"], ["y"])], [info("x", BOOL, ["n"])], ["y"])).outputs
