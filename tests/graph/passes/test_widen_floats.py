"""Models with products of narrow floats are float32 inside, on CPUs, and callers see what the model says."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

from asyncrt import Runtime, RuntimeOptions
from asyncrt.graph.build import build_program
from asyncrt.graph.ir import Program
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import BFLOAT16, FLOAT16, FLOAT32, Array

from ...builders import i64, model, node, value
from ...ops.run import workbench

KINDS = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
CPU, GPU = DeviceTraits("cpu"), DeviceTraits("gpu")


def drawn(dtype: np.dtype[Any], *shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(dtype)


def built(source: onnx.ModelProto, traits: DeviceTraits = CPU, **options: Any) -> Program:
    return build_program(source, traits, RuntimeOptions(**options))


def is_narrow(program: Program) -> bool:
    """Whether a product, or what a Loop or an If holds of them, is calculated in a narrow dtype."""
    inside = [sub.program for n in program.nodes for sub in n.subgraphs if sub.program is not None]
    here = [t in (FLOAT16, BFLOAT16) for n in program.nodes if n.operator.name != "Cast" for t in n.output_types]
    return any(here) or any(is_narrow(p) for p in inside)


async def asked(source: onnx.ModelProto, request: dict[str, Array], device: str | None, **options: Any) -> list[Array]:
    """Return the outputs, which have the names that the model says, in its order."""
    async with Runtime(device, options=RuntimeOptions(warm=False, check_hazards=True, **options)) as rt:
        outputs = await (await rt.load(source)).infer(request)
    assert list(outputs) == [output.name for output in source.graph.output]
    return list(outputs.values())


@pytest.mark.asyncio
@pytest.mark.parametrize("device", ["simulated", "host", None], ids=lambda d: d or "opencl")
@pytest.mark.parametrize("kind", KINDS)
async def test_results_are_those_of_float32_rounded_once(kind: str, device: str | None) -> None:
    """Inputs and outputs have the model's dtype, also one that is both, one that nobody reads, and a constant."""
    if device is None and not workbench().device.info.is_cpu:
        pytest.skip("a GPU calculates as the model says")
    dtype, inputs, outputs = KINDS[kind], ["x {}[n,3,5,7]", "unread {}[2]"], ["y", "b", "c", "x"]
    nodes = [
        node("a = MatMul(x, w)"), node("b = Tanh(a)"), node("y = Conv(b, f)", pads=[1, 1, 1, 1]),
        node("c = Identity(w)"),
    ]  # fmt: skip
    constants = {"w": drawn(dtype, 7, 9, seed=1), "f": drawn(dtype, 4, 3, 3, 3, seed=2)}
    request = {"x": drawn(dtype, 2, 3, 5, 7), "unread": drawn(dtype, 2)}

    source, wide = (
        model(nodes, [i.format(k) for i in inputs], outputs, {n: a.astype(t) for n, a in constants.items()}, opset=22)
        for k, t in ((kind, dtype), ("f32", np.dtype(np.float32)))
    )
    got = await asked(source, request, device)
    truth = await asked(wide, {name: array.astype(np.float32) for name, array in request.items()}, device)

    for e, g in zip(truth, got, strict=True):
        assert g.dtype == dtype
        np.testing.assert_array_equal(e.astype(dtype).astype(np.float32), g.astype(np.float32))


@pytest.mark.asyncio
async def test_graphs_inside_nodes_are_widened_with_what_they_capture() -> None:
    """A Loop carries float32 on, and an If in it gives it; both see constants and inputs of outside."""
    dtype = KINDS["f16"]
    then = helper.make_graph([node("t = MatMul(s, w)")], "then", [], [onnx.ValueInfoProto(name="t")])
    other = helper.make_graph([node("e = Add(s, x)")], "else", [], [onnx.ValueInfoProto(name="e")])
    body = helper.make_graph(
        [node("m = ReduceMean(s)", keepdims=0), node("p = Cast(m)", to=9),
         helper.make_node("If", ["p"], ["out"], then_branch=then, else_branch=other), node("go = Identity(cond)"),
         node("seen = Cast(out)", to=10)],
        "body", [value("i i64[]"), value("cond bool[]"), value("s f16[3,3]")],
        [onnx.ValueInfoProto(name=n) for n in ("go", "out", "seen")],
    )  # fmt: skip
    nodes = [helper.make_node("Loop", ["n", "", "x"], ["y", "all"], body=body)]
    source = model(nodes, ["x f16[3,3]", "n i64[]"], ["y", "all"], {"w": drawn(dtype, 3, 3, seed=1) * dtype.type(0.3)})
    x = drawn(dtype, 3, 3)

    got = await asked(source, {"x": x, "n": np.array(3)}, "host")
    kept = await asked(source, {"x": x, "n": np.array(3)}, "host", without={"widen_floats"})

    assert is_narrow(built(source, GPU))
    assert not is_narrow(built(source))
    for e, g in zip(kept, got, strict=True):
        assert g.dtype == dtype
        np.testing.assert_allclose(e.astype(np.float32), g.astype(np.float32), atol=4e-3)


SEEN = [
    pytest.param([node("y = MatMul(x, x)")], False, id="a product"),
    pytest.param([node("y = Softmax(x)")], True, id="nothing that gains"),
    pytest.param([node("a = MatMul(x, x)"), node("y = SequenceConstruct(a)")], True, id="a sequence"),
]


@pytest.mark.parametrize(("nodes", "stays"), SEEN)
def test_what_gains_nothing_or_holds_narrow_floats_otherwise_stays(nodes: list[onnx.NodeProto], stays: bool) -> None:
    """On a GPU every model stays as it is, and without the mechanism."""
    source = model(nodes, ["x f16[3,3]"], ["y"])

    assert is_narrow(built(source)) == stays
    assert is_narrow(built(source, GPU))
    assert is_narrow(built(source, without={"widen_floats"}))


def test_attributes_that_say_a_dtype_say_the_other() -> None:
    """Casts in between change nothing, and what makes a tensor makes one of float32."""
    nodes = [
        node("a = Cast(x)", to=10), node("z = ConstantOfShape(s)", value=np.ones(1, np.float16)),
        node("r = EyeLike(a)", dtype=10), node("b = MatMul(a, r)"), node("y = Add(b, z)"),
    ]  # fmt: skip
    source = model(nodes, ["x f32[n,3]"], ["y"], {"s": i64(1, 3)})

    program = built(source)

    assert not is_narrow(program)
    assert [v.layout.dtype for v in program.values if v.id in program.outputs] == [FLOAT16]
    assert [program.values[id].name for id in program.outputs] == ["y"]
    assert all(v.layout.dtype is FLOAT32 for v in program.values if v.name in ("a", "z", "r", "b"))
