"""What the importer takes: the forms that exporters write, and tensors beside the file."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import defs, numpy_helper

from asyncrt.errors import ModelFormatError, ModelLimitError
from asyncrt.graph.importer import FLAGS
from asyncrt.kernels.registry import operators
from asyncrt.options import RuntimeOptions

from .models import compute, f32, info, model, names, node, program

X = np.arange(6, dtype=np.float32).reshape(2, 3)
W = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize("opset", range(1, defs.onnx_opset_version() + 1))
def test_every_opset_is_read(opset: int) -> None:
    """Axes are an attribute of Unsqueeze first and an input later; the node tells its opset."""
    axes = {"axes": [0]} if opset < 13 else {}
    inputs = ["x"] if opset < 13 else ["x", "axes"]
    nodes = [node("Unsqueeze", inputs, ["y"], **axes)]
    source = model(nodes, [f32("x", 2, 3)], ["y"], {"axes": np.array([0])}, opset=opset)

    built = program(source)

    assert [n.attributes.opset for n in built.nodes] == [opset]
    assert compute(built, {"x": X})[0].shape == (1, 2, 3)


def test_nodes_in_any_order_are_taken() -> None:
    """Producers come before readers, whatever the file's order."""
    nodes = [node("Neg", ["b"], ["y"]), node("Exp", ["a"], ["b"]), node("Relu", ["x"], ["a"])]

    assert names(program(model(nodes, [f32("x", "n")], ["y"]))) == ["Relu", "Exp", "Neg"]


def test_an_initializer_that_is_also_an_input_is_a_constant() -> None:
    """IR version 3 lists every initializer among the inputs; the caller need not give it."""
    source = model([node("MatMul", ["x", "w"], ["y"])], [f32("x", 2, 3), f32("w", 3, "m")], ["y"], {"w": W})
    source.ir_version = 3

    built = program(source)

    assert [built.values[i].name for i in built.inputs] == ["x"]
    np.testing.assert_array_equal(compute(built, {"x": X})[0], X @ W)


def test_an_input_or_a_constant_may_be_an_output() -> None:
    """Neither needs a node."""
    built = program(model([], [f32("x", 2, 3)], ["x", "w"], {"w": W}))

    assert built.nodes == ()
    for expected, got in zip((X, W), compute(built, {"x": X}), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_names_may_be_any_text() -> None:
    """Slashes, spaces, quotes, braces and letters of any alphabet."""
    odd = ["/model/layers.0/Add:0", "a b\t'c'\"d\"", "{0}%s\\", "größe→形", "#0", "n#0"]
    nodes = [node("Neg", [a], [b], name=a) for a, b in itertools.pairwise(odd)]

    built = program(model(nodes, [f32(odd[0], 2, 3)], [odd[-1]]))

    assert [n.name for n in built.nodes] == odd[:-1]
    np.testing.assert_array_equal(compute(built, {odd[0]: X})[0], -X)


def test_nodes_of_one_name_are_taken() -> None:
    """Names of nodes are for people; two nodes of one name, both with an output left out, are two nodes."""
    nodes = [
        node("LayerNormalization", ["x", "s"], ["a", "", "i"], name="ln"),
        node("LayerNormalization", ["a", "s"], ["b", "", "j"], name="ln"),
        node("Add", ["i", "j"], ["y"]),
    ]

    built = program(model(nodes, [f32("x", 2, 3)], ["b", "y"], {"s": np.ones(3, np.float32)}))

    assert [n.name for n in built.nodes] == ["ln", "ln", "Add_2"]


def test_outputs_left_out_at_the_end_are_not_there() -> None:
    """A Dropout without its mask only passes its input on, however that is written."""
    built = program(model([node("Dropout", ["x"], ["y", ""])], [f32("x", 2)], ["y"]))

    assert [len(n.outputs) for n in built.nodes] == [1]


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        (onnx.TensorProto.FLOAT, [1.5, -2.0]),
        (onnx.TensorProto.DOUBLE, [1.5, -2.0]),
        (onnx.TensorProto.FLOAT16, [1.5, -2.0]),
        (onnx.TensorProto.BFLOAT16, [1.5, -2.0]),
        (onnx.TensorProto.INT8, [-128, 127]),
        (onnx.TensorProto.UINT8, [0, 255]),
        (onnx.TensorProto.UINT16, [0, 65535]),
        (onnx.TensorProto.INT32, [-(1 << 31), 5]),
        (onnx.TensorProto.UINT32, [0, (1 << 32) - 1]),
        (onnx.TensorProto.INT64, [-(1 << 63), 5]),
        (onnx.TensorProto.UINT64, [0, (1 << 64) - 1]),
        (onnx.TensorProto.BOOL, [True, False]),
    ],
)
@pytest.mark.parametrize("raw", [False, True])
def test_tensors_of_every_dtype_are_read(dtype: int, values: list[Any], raw: bool) -> None:
    """In the field of their type or as bytes."""
    numpy_type = onnx.helper.tensor_dtype_to_np_dtype(dtype)
    array = np.array(values, numpy_type)
    tensor = numpy_helper.from_array(array, "w") if raw else onnx.helper.make_tensor("w", dtype, [2], values)
    source = model([], [f32("x")], ["w"])
    source.graph.initializer.append(tensor)

    (got,) = compute(program(source), {"x": X})

    assert got.dtype == numpy_type
    np.testing.assert_array_equal(got, array)


def test_any_byte_but_zero_is_true() -> None:
    """To kernels, true is 1; in a file it may be any byte."""
    source = model([], [f32("x")], ["w"])
    source.graph.initializer.add(name="w", data_type=onnx.TensorProto.BOOL, dims=[4], raw_data=b"\x00\x01\x02\xff")

    (got,) = compute(program(source), {"x": X})

    assert got.view(np.uint8).tolist() == [0, 1, 1, 1]


def test_dims_that_exporters_call_by_a_question_mark_need_not_be_equal() -> None:
    """It says that a dim may have any size, not that all that have it are one."""
    built = program(model([node("Relu", ["x"], ["y"])], [f32("x", "?", "?"), f32("z", "n", "n")], ["y"]))

    assert [str(built.values[i].layout) for i in built.inputs] == ["float32[x.0,x.1]", "float32[n,n]"]
    np.testing.assert_array_equal(compute(built, {"x": X, "z": X})[0], X.clip(0))


def test_a_negative_dim_of_an_input_is_a_dynamic_one() -> None:
    """Some exporters write -1 for what is not known."""
    source = model([node("Relu", ["x"], ["y"])], [f32("x", -1, 3)], ["y"])
    built = program(source)

    assert str(built.values[built.inputs[0]].layout) == "float32[x.0,3]"


# Tensors beside the file.


def _external(folder: Path, **fields: str) -> Path:
    """A model that adds a tensor `w` of 12 floats from the file ``weights.bin``, 16 bytes from its start."""
    (folder / "weights.bin").write_bytes(b"\xee" * 16 + W.tobytes() + b"\xee" * 16)
    source = model([node("MatMul", ["x", "w"], ["y"])], [f32("x", "n", 3)], ["y"])
    tensor = source.graph.initializer.add(name="w", data_type=onnx.TensorProto.FLOAT, dims=[3, 4])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in ({"location": "weights.bin", "offset": "16", "length": "48"} | fields).items():
        tensor.external_data.add(key=key, value=value)
    path = folder / "model.onnx"
    path.write_bytes(source.SerializeToString())
    return path


def test_external_data_is_read_where_it_lies(tmp_path: Path) -> None:
    """Offset and length are honoured."""
    (got,) = compute(program(_external(tmp_path)), {"x": X})

    np.testing.assert_array_equal(got, X @ W)


def test_external_data_in_a_folder_below_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path is relative to the model, not to where the program runs; it may be given relatively too."""
    path = _external(tmp_path, location="data/weights.bin")
    (tmp_path / "data").mkdir()
    (tmp_path / "weights.bin").rename(tmp_path / "data" / "weights.bin")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    assert names(program(path)) == ["MatMul"]
    assert names(program("../model.onnx")) == ["MatMul"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"location": "../weights.bin"}, "outside"),
        ({"location": "a/../../weights.bin"}, "outside"),
        ({"location": "/etc/hostname"}, "outside"),
        ({"location": ""}, "outside"),
        ({"location": "none.bin"}, "not beside the model"),
        ({"location": "."}, "not beside the model"),
        ({"location": "a\0b"}, "cannot be read"),
        ({"location": "x" * 5000}, "cannot be read"),
        ({"offset": "80"}, "bytes 80 to 128 of 80"),
        ({"offset": "-1"}, "bytes -1"),
        ({"offset": "many"}, "cannot be read"),
        ({"length": "47"}, "needs 48 bytes"),
        ({"length": "1000000000000"}, "needs 48 bytes"),
        ({"offset": "33"}, "bytes 33 to 81 of 80"),
    ],
)
def test_external_data_that_is_not_there_is_an_error(tmp_path: Path, fields: dict[str, str], message: str) -> None:
    """Nothing outside the model's folder is read, and no byte that the file does not have."""
    (tmp_path / "weights.bin").write_bytes(bytes(64))
    (tmp_path / "models").mkdir()

    with pytest.raises(ModelFormatError, match=f"initializer 'w' .*{message}"):
        program(_external(tmp_path / "models", **fields))


def test_a_link_that_leads_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    """A link inside the folder is as good as a file; one that leads elsewhere is as bad as a path that does."""
    (tmp_path / "models").mkdir()
    path = _external(tmp_path / "models", location="link.bin")
    link = tmp_path / "models" / "link.bin"

    link.symlink_to(tmp_path / "models" / "weights.bin")
    assert names(program(path)) == ["MatMul"]

    link.unlink()
    (tmp_path / "secret.bin").write_bytes(bytes(80))
    link.symlink_to(tmp_path / "secret.bin")
    with pytest.raises(ModelFormatError, match="outside"):
        program(path)


def test_external_data_of_a_model_without_a_path_is_an_error_with_a_hint(tmp_path: Path) -> None:
    """Bytes do not say where they came from."""
    path = _external(tmp_path)

    for source in (path.read_bytes(), onnx.load(path, load_external_data=False)):
        with pytest.raises(ModelFormatError, match="not given as a path") as caught:
            program(source)
        assert "path" in caught.value.hint


def test_external_data_counts_as_the_model(tmp_path: Path) -> None:
    """A small file may name much data; all of it counts, also where tensors share it."""
    path = _external(tmp_path)
    source = onnx.load(path, load_external_data=False)
    del source.graph.initializer[0].external_data[1:]
    source.graph.initializer[0].dims[:] = [3, 1 << 14]
    (tmp_path / "weights.bin").write_bytes(bytes(12 << 14))
    source.graph.initializer.add().CopyFrom(source.graph.initializer[0])
    source.graph.initializer[1].name = "w2"
    path.write_bytes(source.SerializeToString())

    assert names(program(path, RuntimeOptions(max_model_bytes=2 * (12 << 14)))) == ["MatMul"]
    with pytest.raises(ModelLimitError, match="'w2' has 393216 bytes"):
        program(path, RuntimeOptions(max_model_bytes=2 * (12 << 14) - 1))


def test_a_model_given_in_memory_is_not_changed() -> None:
    """The caller's model is only read."""
    source = model([node("Neg", ["a"], ["y"]), node("Exp", ["x"], ["a"])], [f32("x", "n"), info("z", 7, None)], ["y"])
    before = source.SerializeToString(deterministic=True)
    program(source)

    assert source.SerializeToString(deterministic=True) == before


NUMBERS = {
    "axis", "batch_axis", "batch_dims", "block_size", "blocksize", "default_int64", "dtype", "end", "group",
    "hidden_size", "k", "kv_num_heads", "left_window_size", "max_map", "num_groups", "num_heads", "num_outputs",
    "output_datatype", "output_dtype", "output_height", "output_width", "p", "precision", "q_num_heads",
    "qk_matmul_output_mode", "right_window_size", "rotary_embedding_dim", "sample_size", "sampling_ratio", "seed",
    "size", "softmax_precision", "start", "stash_type", "time_axis", "to", "value_int",
}  # fmt: skip
"""Attributes of one int that are more than yes or no."""


def test_every_attribute_of_one_int_is_a_flag_or_a_number() -> None:
    """A flag that the importer does not know would be yes or no at some other number, as each operator likes."""
    known = [defs.get_schema(name, domain) for domain, name in operators() if defs.has(name, domain)]
    ints = {a.name for schema in known for a in schema.attributes.values() if a.type == defs.OpSchema.AttrType.INT}

    assert ints == FLAGS | NUMBERS
    assert not FLAGS & NUMBERS


def test_of_an_initializer_that_is_written_twice_the_last_is_used() -> None:
    """Exporters write such files, and ONNX Runtime takes them with a warning."""
    source = model([node("Add", ["x", "w"], ["y"])], [f32("x", 2, 3)], ["y"], {"w": X})
    source.graph.initializer.append(numpy_helper.from_array(2 * X, "w"))

    np.testing.assert_array_equal(compute(program(source), {"x": X})[0], 3 * X)


def test_wrong_shapes_beside_the_inputs_are_ignored() -> None:
    """What a file says of its values and outputs is a hint; only dtypes must be right, as in ONNX Runtime."""
    source = model([node("Relu", ["x"], ["t"]), node("Neg", ["t"], ["y"])], [f32("x", "n", 3)], [f32("y", 7)])
    source.graph.value_info.append(f32("t", 1, 2, 3))

    np.testing.assert_array_equal(compute(program(source), {"x": X})[0], -X)


def test_the_first_files_do_not_say_their_opset() -> None:
    """Before IR version 3 there was one opset alone."""
    source = model([node("Reshape", ["x"], ["y"], shape=[3, 2])], [f32("x", 2, 3)], ["y"])
    source.ir_version = 2
    del source.opset_import[:]

    np.testing.assert_array_equal(compute(program(source), {"x": X})[0], X.reshape(3, 2))
