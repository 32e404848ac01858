"""Nodes mean inside of an If or a Loop what they mean outside, although less is known there; sparse constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from asyncrt import Runtime, RuntimeOptions
from asyncrt.layout import Array

from ..builders import i64, model, node
from ..second_opinion import onnxruntime_gives

RANDOM = np.random.default_rng(11)


def f32(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def microsoft(text: str, **attributes: Any) -> onnx.NodeProto:
    made = node(text, **attributes)
    made.domain = "com.microsoft"
    return made


def classical(text: str, **attributes: Any) -> onnx.NodeProto:
    made = node(text, **attributes)
    made.domain = "ai.onnx.ml"
    return made


TABLE = RANDOM.integers(0, 255, (6, 16), dtype=np.uint8)

NODES: dict[str, tuple[onnx.NodeProto, dict[str, Array], dict[str, Array], int]] = {
    "a volume": (
        node("y = GridSample(x, grid)", mode="linear"), {"x": f32(1, 2, 3, 4, 5), "grid": f32(1, 2, 3, 2, 3)}, {}, 20
    ),
    "an image": (
        node("y = GridSample(x, grid)", mode="linear"), {"x": f32(1, 2, 4, 5), "grid": f32(1, 3, 2, 2)}, {}, 20
    ),
    "columns of one row": (
        classical("y = ArrayFeatureExtractor(x, columns)"), {"x": f32(5)}, {"columns": i64(3, 0)}, 20
    ),
    "columns of several rows": (
        classical("y = ArrayFeatureExtractor(x, columns)"), {"x": f32(2, 5)}, {"columns": i64(3, 0)}, 20
    ),
    "keys and values of an encoder": (
        microsoft("y = MultiHeadAttention(x, k, v)", num_heads=2),
        {"x": f32(1, 3, 8), "k": f32(1, 2, 5, 4), "v": f32(1, 2, 5, 4)}, {}, 20,
    ),
    "rows of a table of four bits": (
        microsoft("y = GatherBlockQuantized(table, x, scales)", bits=4, block_size=16, quantize_axis=1),
        {"x": i64(4, 0, 5)}, {"table": TABLE, "scales": f32(6, 2)}, 20,
    ),
    "a slope for each channel": (node("y = PRelu(x, slope)"), {"x": f32(2, 3, 4)}, {"slope": f32(3)}, 6),
    "scales that are known": (
        node("y = Upsample(x, s)"), {"x": f32(1, 1, 4, 5)}, {"s": np.array([1, 1, 2, 1.5], np.float32)}, 9
    ),
}  # fmt: skip


def _outside(call: onnx.NodeProto, inputs: dict[str, Array], constants: dict[str, Array], opset: int) -> Any:
    made = model([call], [], ["y"], constants, opset=opset)
    for name, array in inputs.items():
        dims = [f"{name}_{axis}" for axis in range(array.ndim)]
        made.graph.input.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), dims))
    if call.domain:
        made.opset_import.append(helper.make_opsetid(call.domain, 3 if call.domain == "ai.onnx.ml" else 1))
    return made


def _graph(made: onnx.ModelProto, name: str, nodes: list[onnx.NodeProto], inputs: list[str], outputs: list[str]) -> Any:
    infos = [onnx.ValueInfoProto(name=i) for i in inputs]
    return helper.make_graph([*nodes, *made.graph.node], name, infos, [onnx.ValueInfoProto(name=o) for o in outputs])


def _in_a_branch(made: onnx.ModelProto) -> None:
    """The branch that is taken depends on a float that the request brings, which no plan knows."""
    taken = _graph(made, "then", [], [], ["y"])
    other = helper.make_graph([node("z = Constant()", value=f32(1))], "else", [], [onnx.ValueInfoProto(name="z")])
    del made.graph.node[:]
    made.graph.node.extend([
        node("largest = ReduceMax(float)", keepdims=0), node("so = Greater(largest, zero)"),
        helper.make_node("If", ["so"], ["y"], then_branch=taken, else_branch=other),
    ])  # fmt: skip
    made.graph.initializer.append(numpy_helper.from_array(np.zeros((), np.float32), "zero"))
    made.graph.input.append(helper.make_tensor_value_info("float", 1, ["n"]))


def _in_a_loop(made: onnx.ModelProto) -> None:
    """What the node takes first goes through the Loop; the rest is taken from outside."""
    for inner in made.graph.node:
        inner.input[:] = ["carried" if name == "x" else name for name in inner.input]
    nodes = [node("on = Identity(go)"), node("same = Identity(carried)")]
    body = _graph(made, "body", nodes, ["i", "go", "carried"], ["on", "same", "y"])
    del made.graph.node[:]
    made.graph.node.append(helper.make_node("Loop", ["trips", "", "x"], ["last", "every"], body=body))
    made.graph.node.append(node("y = Gather(every, last_one)", axis=0))
    made.graph.initializer.extend([
        numpy_helper.from_array(i64(2).reshape(()), "trips"), numpy_helper.from_array(i64(-1).reshape(()), "last_one")
    ])  # fmt: skip


def _of_any_rank(made: onnx.ModelProto) -> None:
    """The file says no rank of any input."""
    for info in made.graph.input:
        info.type.tensor_type.ClearField("shape")


@pytest.mark.asyncio
@pytest.mark.parametrize("place", [_in_a_branch, _in_a_loop, _of_any_rank])
async def test_a_node_gives_inside_what_it_gives_outside(place: Callable[[onnx.ModelProto], None]) -> None:
    """Where rules that rewrite it ask how many axes an input has, or what a constant is."""
    async with Runtime("host", options=RuntimeOptions(warm=False)) as rt:
        for what, (call, inputs, constants, opset) in NODES.items():
            outside = _outside(call, inputs, constants, opset)
            if (place, what) == (_of_any_rank, "keys and values of an encoder"):
                continue  # its rule must be told
            expected = (await (await rt.load(outside)).infer(inputs))["y"]
            place(outside)
            feeds = {**inputs, "float": np.ones(2, np.float32)} if place is _in_a_branch else inputs

            got = (await (await rt.load(outside)).infer(feeds))["y"]

            np.testing.assert_array_equal(got, expected, err_msg=what)


def _sparse(dims: list[int], indices: Array, values: Array) -> onnx.SparseTensorProto:
    return onnx.SparseTensorProto(
        dims=dims, indices=numpy_helper.from_array(indices), values=numpy_helper.from_array(values, "s")
    )


@pytest.mark.asyncio
@pytest.mark.parametrize("indices", [i64(1, 5), np.array([[0, 1], [1, 2]])], ids=["counted", "by axis"])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.float16, np.uint8])
async def test_sparse_constants_are_what_onnxruntime_makes_of_them(indices: Array, dtype: Any) -> None:
    """As an initializer and as a Constant's value; with linear indices, or one for each axis."""
    sparse = _sparse([2, 3], indices, np.array([3, 4], dtype))
    x = np.ones((2, 1), dtype)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    async with Runtime("host", options=RuntimeOptions(warm=False)) as rt:
        for nodes in ([], [helper.make_node("Constant", [], ["s"], sparse_value=sparse)]):
            source = model([*nodes, node("y = Where(c, x, s)")], ["c bool[2,3]"], ["y"])
            source.graph.input.append(helper.make_tensor_value_info("x", kind, ["n", 1]))
            if not nodes:
                source.graph.sparse_initializer.append(sparse)
            feeds = {"x": x, "c": np.array([[1, 0, 0], [0, 0, 0]], bool)}
            expected = onnxruntime_gives(source, feeds)["y"]

            np.testing.assert_array_equal((await (await rt.load(source)).infer(feeds))["y"], expected)
