"""Sessions: what they say of a model, what a run gives, and which exception a program gets."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ..builders import model, node
from .api import CONSTANT, DEFAULT, RELU, SUM, described, gives, raised, session

X = np.array([[-1, 0, 1], [2, -2, 3]], np.float32)
PAIR = np.array([1, 2])
Y = [[0, 0, 1], [2, 0, 3]]


def test_a_session_says_what_its_model_takes_and_gives(ort: Any) -> None:
    """Names, types and shapes; dims have their sizes or their names."""
    made = session(ort, RELU)

    assert described(made.get_inputs()) == [("x", "tensor(float)", ["batch", 3]), ("i", "tensor(int64)", [2])]
    assert described(made.get_outputs()) == [("y", "tensor(float)", ["batch", 3]), ("z", "tensor(int64)", [])]
    assert str(made.get_inputs()[0]) == "NodeArg(name='x', type='tensor(float)', shape=['batch', 3])"
    assert made.get_overridable_initializers() == []


def test_a_session_has_the_attributes_that_programs_read_in_spite_of_their_names(ort: Any, tmp_path: Path) -> None:
    """insightface, for one, prints `_providers`, and kokoro-onnx reads `_model_path`."""
    onnx.save(RELU, tmp_path / "m.onnx")
    made = session(ort, str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])

    read = {name: getattr(made, f"_{name}") for name in ("providers", "provider_options", "model_path", "model_meta")}
    metas = [getattr(made, f"_{name}") for name in ("inputs_meta", "outputs_meta", "overridable_initializers")]
    assert read["providers"] == ["CPUExecutionProvider"]
    assert read["provider_options"] == {"CPUExecutionProvider": {}}
    assert read["model_path"] == str(tmp_path / "m.onnx")
    assert read["model_meta"].graph_name == made.get_modelmeta().graph_name
    assert [described(m) for m in metas] == [described(made.get_inputs()), described(made.get_outputs()), []]


def test_outputs_of_which_the_file_says_nothing_are_inferred(ort: Any) -> None:
    """Without a type, without a shape, and with names for some dims; dims without a name are None."""
    info = helper.make_tensor_value_info
    nodes = [node("y = Relu(a)"), node("z = Relu(b)"), node("u = Relu(b)"), node("v = Transpose(c)")]
    outputs = [helper.make_empty_tensor_value_info("y"), info("z", 1, None), info("u", 1, ["q", None, None])]
    outputs += [info("v", 1, None)]
    inputs = [info("a", 1, ["k"]), info("b", 1, [None, "n", 3]), info("c", 1, ["r", 2])]
    graph = helper.make_graph(nodes, "inferred", inputs, outputs)
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)

    made = session(ort, source)

    assert [arg.shape for arg in made.get_inputs()] == [["k"], [None, "n", 3], ["r", 2]]
    assert described(made.get_outputs()) == [
        ("y", "tensor(float)", ["k"]),
        ("z", "tensor(float)", [None, "n", 3]),
        ("u", "tensor(float)", ["q", "n", 3]),
        ("v", "tensor(float)", [2, "r"]),
    ]


NUMBERS = (1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13)


@pytest.mark.parametrize("number", NUMBERS, ids=[TensorProto.DataType.Name(n) for n in NUMBERS])
def test_types_are_called_what_onnx_calls_them(number: int, ort: Any) -> None:
    """And an array of such a type comes out as it went in."""
    info = helper.make_tensor_value_info
    graph = helper.make_graph([node("y = Identity(x)")], "same", [info("x", number, [2])], [info("y", number, [2])])
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    dtype = helper.tensor_dtype_to_np_dtype(number)
    names = {1: "float", 10: "float16", 11: "double"}

    made = session(ort, source)

    expected = names.get(number, dtype.name)
    assert [arg.type for arg in (*made.get_inputs(), *made.get_outputs())] == [f"tensor({expected})"] * 2
    given = np.array([0, 1], dtype)
    (result,) = made.run(None, {"x": given})
    assert (result.dtype, result.tolist()) == (given.dtype, given.tolist())


def test_a_session_says_what_the_model_says_of_itself(ort: Any) -> None:
    """Programs keep dictionaries and labels in the metadata of their models."""
    source = onnx.ModelProto()
    source.CopyFrom(RELU)
    source.graph.doc_string = "of a graph"
    helper.set_model_props(source, {"names": "a\nb", "task": "detect"})

    meta = session(ort, source).get_modelmeta()

    assert (meta.producer_name, meta.graph_name, meta.domain, meta.version) == ("me", "positive", "of.mine", 7)
    assert (meta.description, meta.graph_description) == ("a model", "of a graph")
    assert meta.custom_metadata_map == {"names": "a\nb", "task": "detect"}


@pytest.mark.parametrize(
    ("names", "expected"),
    [(None, [Y, 3]), ([], [Y, 3]), (["z"], [3]), (("z", "y"), [3, Y]), (["z", "z"], [3, 3])],
)
def test_a_run_gives_the_outputs_that_were_named(names: Any, expected: list[Any], ort: Any) -> None:
    """In the order of their names; without names, all of them in the model's order."""
    outputs = session(ort, RELU).run(names, {"x": X, "i": PAIR})

    assert [output.tolist() for output in outputs] == expected


@pytest.mark.parametrize("options", [False, True])
@pytest.mark.parametrize(
    ("feed", "expected"),
    [
        ({"x": X}, ("ValueError", "Required inputs (['i']) are missing from input feed (['x']).")),
        ({"x": X, "i": PAIR, "k": X}, ("InvalidArgument", "Invalid input name: k")),
        (
            {"x": X.astype(np.float64), "i": PAIR},
            ("InvalidArgument", "Actual: (tensor(double)) , expected: (tensor(float))"),
        ),
        (
            {"x": X, "i": PAIR.astype(np.int32)},
            ("InvalidArgument", "Actual: (tensor(int32)) , expected: (tensor(int64))"),
        ),
        (
            {"x": np.array(["a"]), "i": PAIR},
            ("InvalidArgument", "Actual: (tensor(string)) , expected: (tensor(float))"),
        ),
        ({"x": X[0], "i": PAIR}, ("InvalidArgument", "Invalid rank for input: x Got: 1 Expected: 2")),
        (
            {"x": X[:, :2], "i": PAIR},
            ("InvalidArgument", "input: x for the following indices\n index: 1 Got: 2 Expected: 3"),
        ),
        ({"x": X, "i": 3}, ("RuntimeError", "Unable to handle object of type <class 'int'>")),
        ({"x": (1, 2), "i": PAIR}, ("RuntimeError", "a single numpy array for input 'x'")),
        ({"x": [["a", "b", "c"]], "i": PAIR}, ("RuntimeError", "Could not create tensor from given input list")),
        ([X, PAIR], ("AttributeError", "'list' object has no attribute 'keys'")),
    ],
)
def test_a_feed_that_does_not_fit_is_refused(feed: Any, expected: tuple[str, str], options: bool, ort: Any) -> None:
    """With the class that programs catch, and with the words in which ONNX Runtime says what is wrong."""
    made = session(ort, RELU)
    given = ort.RunOptions() if options else None

    name, text = raised(ort, lambda: made.run(None, feed, given))

    assert name == expected[0]
    assert expected[1] in text
    assert gives(made, {"x": X, "i": PAIR}) == [Y, 3]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((["q"],), ("InvalidArgument", "Invalid output name:q")),
        (("z",), ("TypeError", "")),
        (([3],), ("TypeError", "")),
        ((None, 3), ("TypeError", "")),
    ],
)
def test_outputs_and_options_that_there_are_not_are_refused(
    arguments: tuple[Any, ...], expected: tuple[str, str], ort: Any
) -> None:
    """A name that no output has, a text instead of names, and what are no options."""
    made = session(ort, RELU)

    name, text = raised(ort, lambda: made.run(arguments[0], {"x": X, "i": PAIR}, *arguments[1:]))

    assert name == expected[0]
    assert expected[1] in text


def test_a_feed_may_be_lists_and_values(ort: Any) -> None:
    """Lists of numbers become what the model takes; arrays need not be contiguous, and batches may be empty."""
    made = session(ort, RELU)
    value = ort.OrtValue.ortvalue_from_numpy(X)

    assert gives(made, {"x": X.tolist(), "i": [1, 2]}) == [Y, 3]
    assert gives(made, {"x": value, "i": PAIR}) == [Y, 3]
    assert gives(made, {"x": np.asfortranarray(X), "i": PAIR}) == [Y, 3]
    assert gives(made, {"x": X[:0], "i": PAIR}) == [[], 3]


def test_dims_of_one_name_may_differ(ort: Any) -> None:
    """Exporters give dims equal names that are not equal; ONNX Runtime holds inputs to sizes alone."""
    made = session(ort, SUM)

    assert gives(made, {"a": np.ones(1, np.float32), "b": np.ones(3, np.float32)}) == [[2, 2, 2]]
    assert gives(made, {"a": np.ones(2, np.float32), "b": np.ones(2, np.float32)}) == [[2, 2]]
    name, _ = raised(ort, lambda: gives(made, {"a": np.ones(2, np.float32), "b": np.ones(3, np.float32)}))
    assert name == "Fail"


def test_an_input_that_is_declared_a_scalar_may_have_any_shape(ort: Any) -> None:
    """ONNX Runtime takes no dims for no statement."""
    made = session(ort, model([node("y = Neg(x)")], ["x f32[]"], ["y"]))

    assert gives(made, {"x": np.array(1, np.float32)}) == [-1]
    assert gives(made, {"x": np.array([1, 2], np.float32)}) == [[-1, -2]]


def test_a_run_may_replace_an_initializer_that_is_an_input(ort: Any) -> None:
    """Without it the default holds, before and after; it is held to its type and shape."""
    made = session(ort, DEFAULT)
    x, k = np.zeros((1, 3), np.float32), np.full(3, 9, np.float32)

    assert described(made.get_inputs()) == [("x", "tensor(float)", ["batch", 3])]
    assert described(made.get_overridable_initializers()) == [("k", "tensor(float)", [3])]
    assert gives(made, {"x": x}) == [[[1, 2, 3]]]
    assert gives(made, {"x": x, "k": k}) == [[[9, 9, 9]]]
    assert gives(made, {"x": x}) == [[[1, 2, 3]]]
    for wrong in (k[:1], k.astype(np.float64)):
        assert raised(ort, lambda k=wrong: gives(made, {"x": x, "k": k}))[0] == "InvalidArgument"
    fixed = session(ort, CONSTANT)
    assert raised(ort, lambda: gives(fixed, {"x": x, "k": k}))[0] == "InvalidArgument"


def test_a_model_is_read_from_paths_and_bytes(ort: Any, tmp_path: Path) -> None:
    """A text, an object that is a path, and the bytes of a file."""
    path = tmp_path / "model.onnx"
    path.write_bytes(RELU.SerializeToString())

    for source in (str(path), path, path.read_bytes()):
        assert gives(session(ort, source), {"x": X, "i": PAIR}) == [Y, 3]


def test_what_is_no_model_is_refused(ort: Any, tmp_path: Path) -> None:
    """No file, a folder, an empty file, other bytes, half a file, and what is neither a path nor bytes."""
    broken, empty = tmp_path / "broken.onnx", tmp_path / "empty.onnx"
    broken.write_bytes(b"hello world")
    empty.touch()
    expected = [
        (tmp_path / "nothing.onnx", "NoSuchFile"),
        (tmp_path, "InvalidProtobuf"),
        (broken, "InvalidProtobuf"),
        (b"hello world", "InvalidProtobuf"),
        (RELU.SerializeToString()[:50], "InvalidProtobuf"),
        (empty, "InvalidArgument"),
        (b"", "InvalidArgument"),
        ("", "TypeError"),
        (bytearray(RELU.SerializeToString()), "TypeError"),
        (3, "TypeError"),
    ]

    assert [raised(ort, lambda s=source: session(ort, s))[0] for source, _ in expected] == [e for _, e in expected]
    assert raised(ort, lambda: session(ort, RELU, 3))[0] == "TypeError"


def test_a_graph_that_is_wrong_is_refused(ort: Any) -> None:
    """Operators and domains that there are not, types and shapes that do not fit, cycles."""
    inputs = ["x f32[2,3]", "w f32[2,3]"]
    expected = [
        (model([node("y = Nothing(x)")], inputs, ["y"]), "InvalidGraph"),
        (model([helper.make_node("Relu", ["x"], ["y"], domain="of.mine")], inputs, ["y"]), "InvalidGraph"),
        (model([node("y = And(x, x)")], inputs, ["y"]), "InvalidGraph"),
        (model([node("y = MatMul(x, w)")], inputs, ["y"]), "Fail"),
        (model([node("y = Add(x, z)"), node("z = Relu(y)")], inputs, ["y"]), "Fail"),
        (model([node("y = Relu(x)"), node("y = Relu(x)")], inputs, ["y"]), "Fail"),
    ]

    assert [raised(ort, lambda s=source: session(ort, s))[0] for source, _ in expected] == [e for _, e in expected]


def test_values_that_do_not_fit_a_node_are_told_in_their_run(ort: Any) -> None:
    """An index out of range is an argument's fault."""
    made = session(ort, model([node("y = Gather(x, i)")], ["x f32[n]", "i i64[m]"], ["y"]))
    x = np.ones(2, np.float32)

    assert raised(ort, lambda: gives(made, {"x": x, "i": np.array([7])}))[0] == "InvalidArgument"
    assert gives(made, {"x": x, "i": np.array([1])}) == [[1]]


def test_many_threads_run_one_session(ort: Any) -> None:
    """Each gets the answer to its own feed."""
    made = session(ort, RELU)

    def work(n: int) -> bool:
        x = np.full((n % 7 + 1, 3), n, np.float32)
        return bool((made.run(["y"], {"x": x, "i": PAIR})[0] == x).all())

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(64)))


def test_a_run_that_nobody_waits_for_calls_back(ort: Any) -> None:
    """With the outputs and what the program gave along, or with what went wrong; missing inputs are told at once."""
    made = session(ort, RELU)
    told: list[tuple[Any, ...]] = []
    done = threading.Semaphore(0)

    def callback(results: Any, given: Any, status: str) -> None:
        told.append((given, [np.asarray(r).tolist() for r in results], status))
        done.release()

    for feed, given in (({"x": X, "i": PAIR}, "good"), ({"x": X[:, :2], "i": PAIR}, "bad")):
        made.run_async(None, feed, callback, given)
        assert done.acquire(timeout=60)

    assert told[0] == ("good", [Y, 3], "")
    assert told[1][:2] == ("bad", [])
    assert "Got: 2 Expected: 3" in told[1][2]
    assert raised(ort, lambda: made.run_async(None, {"x": X}, callback, None))[0] == "ValueError"


def test_a_run_that_is_told_to_end_does(ort: Any) -> None:
    """Before it begins, and while it loops; the session runs on."""
    step = helper.make_graph(
        [node("go = Identity(more)"), node("t = Max(s, x)")],
        "step",
        [helper.make_tensor_value_info(n, t, s) for n, t, s in (("k", 7, []), ("more", 9, []), ("s", 1, ["n"]))],
        [helper.make_tensor_value_info("go", 9, []), helper.make_tensor_value_info("t", 1, ["n"])],
    )
    loop = helper.make_node("Loop", ["count", "", "x"], ["y"], body=step)
    made = session(ort, model([loop], ["count i64[]", "x f32[n]"], ["y"]))
    options = ort.RunOptions()
    x = np.ones(2, np.float32)

    def run(count: int) -> Any:
        return made.run(None, {"count": np.array(count), "x": x}, options)[0].tolist()

    assert run(2) == [1, 1]
    timer = threading.Timer(0.2, setattr, (options, "terminate", True))
    timer.start()
    assert raised(ort, lambda: run(1 << 40))[0] == "Fail"
    timer.join()
    assert raised(ort, lambda: run(2)) == (
        "Fail",
        "[ONNXRuntimeError] : 1 : FAIL : Exiting due to terminate flag being set to true.",
    )
    options.terminate = False
    assert run(2) == [1, 1]


def test_a_profile_is_a_trace_that_viewers_read(ort: Any, tmp_path: Path) -> None:
    """It has a name of its own with the program's prefix, and is written once."""
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    made = session(ort, RELU, options)
    made.run(None, {"x": X, "i": PAIR})

    path = made.end_profiling()

    assert path.startswith(str(tmp_path / "profile_"))
    assert json.loads(Path(path).read_text())
    assert made.get_profiling_start_time_ns() > 0
    assert session(ort, RELU).end_profiling() == ""


def test_providers_that_are_not_there_are_warned_of(ort: Any) -> None:
    """The session runs all the same, by the provider that is always there."""
    with pytest.warns(UserWarning, match="Specified provider 'CUDAExecutionProvider' is not in available"):
        made = session(ort, RELU, providers=["CUDAExecutionProvider", ("CPUExecutionProvider", {"a": 1})])

    assert made.get_providers() == ["CPUExecutionProvider"]
    assert made.get_provider_options() == {"CPUExecutionProvider": {}}
    made.set_providers(["CPUExecutionProvider"], [{}])
    assert gives(made, {"x": X, "i": PAIR}) == [Y, 3]
    for wrong in (
        {"providers": {"CPUExecutionProvider"}},
        {"providers": [3]},
        {"providers": ["CPUExecutionProvider"], "provider_options": []},
    ):
        assert raised(ort, lambda w=wrong: session(ort, RELU, **w, enable_fallback=0))[0] == "ValueError"
