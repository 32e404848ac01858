"""A node that was run is skipped next, or the other way round: for every operator that may be skipped.

For each operator a small model, with a kernel that makes its data, and one that reads its result. Requests go from run
to run, to skip, and back; one after the other and all at once. What comes out is bit for bit what comes out of a
runtime that never skips, and of one that plans every request anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest

from asyncrt import Model, Runtime, RuntimeOptions
from asyncrt.kernels.registry import operators
from asyncrt.layout import Array
from asyncrt.mechanisms import Mechanism

from ...builders import i64, model, node
from ...zoo import some


class Scenario(NamedTuple):
    """A node, ``y = Operator(x, ...)``, a request that runs it and one that skips it."""

    call: str
    run: Mapping[str, Any]
    skip: Mapping[str, Any]
    inputs: Sequence[str] = ("s f32[a,b,c]",)
    constants: Mapping[str, Array] = {}
    attributes: Mapping[str, Any] = {}
    opset: int = 18
    kernel: str = "Neg"  # makes the data and reads the result


def f32(*shape: int) -> Array:
    """Different numbers of both signs, the first of them 0, of which the producer makes -0.0."""
    values = np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)
    if values.size:
        values.flat[0] = 0.0
    return values


def _shapes(run: Sequence[int], skip: Sequence[int]) -> dict[str, Any]:
    """Two requests that differ in their only input's shape."""
    dims = ",".join(f"d{i}" for i in range(len(run)))
    return {"run": {"s": f32(*run)}, "skip": {"s": f32(*skip)}, "inputs": (f"s f32[{dims}]",)}


def _values(shape: Sequence[int], kind: str, run: Array, skip: Array) -> dict[str, Any]:
    """Two requests that differ in the value of a second input, not in its shape."""
    x = f32(*shape)
    dims = ",".join(f"d{i}" for i in range(len(shape)))
    return {"run": {"s": x, "v": run}, "skip": {"s": x, "v": skip}, "inputs": (f"s f32[{dims}]", f"v {kind}")}


def _operand(
    call: str, number: Any, kind: str = "f32", kernel: str = "Neg", **attributes: Any
) -> Scenario:
    """An operand that changes nothing; in the request that is run, the data are repeated to its shape."""
    random = np.random.default_rng(3)
    small, large = ((random.standard_normal(s) * 9).astype(np.asarray(number).dtype) for s in ((1, 3), (2, 3)))
    small[0, 0] = large[0, 0] = 0
    k = np.full((2, 1), number)
    return Scenario(call, {"s": small}, {"s": large}, (f"s {kind}[a,b]",), {"k": k}, attributes, kernel=kernel)


SCENARIOS: dict[str, Scenario] = {
    "Transpose": Scenario("Transpose(x)", **_shapes((2, 3, 4), (1, 3, 1)), attributes={"perm": [0, 2, 1]}),
    "Slice": Scenario(
        "Slice(x, v, ends, axes)",
        **_values((2, 4), "i64[1]", i64(1), i64(0)),
        constants={"ends": i64(9), "axes": i64(1)},
    ),
    "Slice step": Scenario(
        "Slice(x, zero, ends, zero, v)",
        **_values((4, 2), "i64[1]", i64(2), i64(1)),
        constants={"zero": i64(0), "ends": i64(9)},
    ),
    "Split": Scenario("Split(x, v)", **_shapes((3, 4), (1, 4)), constants={"v": i64(3, 1)}, attributes={"axis": 1}),
    "Concat": Scenario(
        "Concat(x, t)",
        {"s": f32(2, 3), "t": f32(2, 1)},
        {"s": f32(2, 3), "t": f32(2, 0)},
        ("s f32[a,b]", "t f32[a,c]"),
        attributes={"axis": 1},
    ),
    "Expand": Scenario("Expand(x, v)", **_values((1, 3), "i64[2]", i64(4, 3), i64(1, 1))),
    "Tile": Scenario("Tile(x, v)", **_values((2, 3), "i64[2]", i64(2, 1), i64(1, 1))),
    "Pad": Scenario("Pad(x, v)", **_values((2, 3), "i64[4]", i64(0, 1, 1, 0), i64(0, 0, 0, 0))),
    "Resize": Scenario("Resize(x, , , v)", **_values((2, 3), "i64[2]", i64(4, 6), i64(2, 3))),
    "Gather": Scenario("Gather(x, v)", **_values((3, 2), "i64[n]", i64(2, 1, 0), i64(0, 1, 2))),
    "GatherElements": Scenario("GatherElements(x, v)", **_values((3,), "i64[n]", i64(2, 1, 0), i64(0, 1, 2))),
    "GatherND": Scenario(
        "GatherND(x, w)",
        **_shapes((3, 2), (2, 2)),
        constants={"w": np.array([[[0, 0], [0, 1]], [[1, 0], [-1, -1]]], np.int64)},
    ),
    "ScatterND": Scenario(
        "ScatterND(x, i, u)",
        {"s": f32(3, 2), "i": np.array([[1]], np.int64), "u": f32(1, 2)},
        {"s": f32(3, 2), "i": np.zeros((0, 1), np.int64), "u": f32(0, 2)},
        ("s f32[a,b]", "i i64[n,1]", "u f32[n,b]"),
    ),
    "ScatterElements": Scenario(
        "ScatterElements(x, i, u)",
        {"s": f32(3), "i": i64(1, 0, 0), "u": -f32(3)},
        {"s": f32(3), "i": i64(0, 1, 2), "u": -f32(3)},
        ("s f32[a]", "i i64[n]", "u f32[n]"),
    ),
    "Compress": Scenario(
        "Compress(x, v)",
        **_values((4, 2), "bool[4]", np.array([True, False, False, True]), np.array([False, True, True, False])),
        attributes={"axis": 0},
    ),
    "Where": Scenario(
        "Where(c, x, k)",
        **_shapes((1, 3), (2, 3)),
        constants={"c": np.array([True]), "k": np.zeros((2, 3), np.float32)},
    ),
    "ReduceSum": Scenario("ReduceSum(x, axis)", **_shapes((2, 3), (1, 3)), constants={"axis": i64(0)}),
    "ReduceMean": Scenario("ReduceMean(x, axis)", **_shapes((2, 3), (2, 1)), constants={"axis": i64(1)}),
    "ReduceMax": Scenario("ReduceMax(x, axis)", **_shapes((2, 3), (1, 3)), constants={"axis": i64(0)}),
    "ReduceMin": Scenario("ReduceMin(x, axis)", **_shapes((2, 3), (1, 3)), constants={"axis": i64(0)}),
    "ReduceProd": Scenario("ReduceProd(x, axis)", **_shapes((2, 3), (2, 1)), constants={"axis": i64(-1)}),
    "AveragePool": Scenario(
        "AveragePool(x)", **_shapes((1, 2, 5), (1, 2, 1)), attributes={"kernel_shape": [3], "pads": [1, 1]}
    ),
    "MaxPool": Scenario(
        "MaxPool(x)", **_shapes((1, 2, 5), (1, 2, 1)), attributes={"kernel_shape": [3], "pads": [1, 1]}
    ),
    "GlobalAveragePool": Scenario("GlobalAveragePool(x)", **_shapes((1, 2, 3), (1, 2, 1))),
    "GlobalMaxPool": Scenario("GlobalMaxPool(x)", **_shapes((1, 2, 3), (1, 2, 1))),
    "DepthToSpace": Scenario("DepthToSpace(x)", **_shapes((1, 8, 2, 2), (1, 4, 1, 1)), attributes={"blocksize": 2}),
    "SpaceToDepth": Scenario("SpaceToDepth(x)", **_shapes((1, 1, 4, 4), (1, 1, 2, 2)), attributes={"blocksize": 2}),
    "CumSum": Scenario("CumSum(x, axis)", **_shapes((3, 2), (1, 2)), constants={"axis": np.array(0, np.int64)}),
    "CumProd": Scenario("CumProd(x, v)", **_values((3, 1), "i64[]", np.array(0), np.array(1)), opset=26),
    "Trilu": Scenario("Trilu(x, v)", **_values((3, 3), "i64[]", np.array(0), np.array(-2))),
    "Einsum": Scenario("Einsum(x)", **_shapes((2, 3), (1, 3)), attributes={"equation": "ij->ji"}),
    "ReverseSequence": Scenario("ReverseSequence(x, v)", **_values((3, 2), "i64[2]", i64(3, 1), i64(1, 0))),
    "Clip": Scenario(
        "Clip(x, v)",
        {"s": np.arange(-3, 3, dtype=np.int32), "v": np.array(0, np.int32)},
        {"s": np.arange(-3, 3, dtype=np.int32), "v": np.array(-(2**31), np.int32)},
        ("s i32[a]", "v i32[]"),
        kernel="BitwiseNot",
    ),
    "Add": _operand("Add(x, k)", np.float32(-0.0)),
    "Sub": _operand("Sub(x, k)", np.float32(0)),
    "Mul": _operand("Mul(k, x)", np.float32(1)),
    "Div": _operand("Div(x, k)", np.float32(1)),
    "Pow": _operand("Pow(x, k)", np.float32(1)),
    "Max": _operand("Max(x, k)", np.float32(-np.inf)),
    "Min": _operand("Min(k, x)", np.float32(np.inf)),
    "Sum": _operand("Sum(x, k, k)", np.float32(-0.0)),
    "Equal": _operand("Equal(x, k)", np.bool_(True), "bool", "Not"),
    "And": _operand("And(x, k)", np.bool_(True), "bool", "Not"),
    "Or": _operand("Or(k, x)", np.bool_(False), "bool", "Not"),
    "Xor": _operand("Xor(x, k)", np.bool_(False), "bool", "Not"),
    "BitwiseAnd": _operand("BitwiseAnd(x, k)", np.int32(-1), "i32", "BitwiseNot"),
    "BitwiseOr": _operand("BitwiseOr(k, x)", np.int32(0), "i32", "BitwiseNot"),
    "BitwiseXor": _operand("BitwiseXor(x, k)", np.int32(0), "i32", "BitwiseNot"),
    "BitShift": _operand("BitShift(x, k)", np.uint8(0), "u8", "BitwiseNot", direction="LEFT"),
    "CenterCropPad": Scenario("CenterCropPad(x, v)", **_values((2, 4), "i64[2]", i64(2, 2), i64(2, 4))),
    "TensorScatter": Scenario(
        "TensorScatter(x, u)",
        {"s": f32(2, 4, 3), "u": f32(2, 1, 3)},
        {"s": f32(2, 4, 3), "u": f32(2, 0, 3)},
        ("s f32[a,b,c]", "u f32[a,n,c]"),
        opset=24,
    ),
}


#: Operators for which loading knows: they are always skipped, or never.
DECIDED_BY_LOADING = {
    "BitCast", "Cast", "CastLike", "Dropout", "Flatten", "Identity", "Mean", "PRelu", "Reshape", "Squeeze", "Unsqueeze",
}  # fmt: skip

SEQUENCE = ("run", "run", "skip", "skip", "run", "skip", "run")


def _model(scenario: Scenario) -> onnx.ModelProto:
    """s → kernel → x → the node → y → kernel → z; another reader of x takes memory meanwhile."""
    second = ", y2" if scenario.call.startswith("Split") else ""
    nodes = [
        node(f"x = {scenario.kernel}(s)"),
        node(f"y{second} = {scenario.call}", **scenario.attributes),
        node(f"o = {scenario.kernel}(x)"),
        node(f"z = {scenario.kernel}(y)"),
    ]
    outputs = ["o", "z"] + (["y2"] if second else [])
    return model(nodes, scenario.inputs, outputs, scenario.constants, opset=scenario.opset)


async def _request(loaded: Model, scenario: Scenario, which: str) -> dict[str, bytes]:
    out = await loaded.infer(scenario.run if which == "run" else scenario.skip)
    return {name: array.tobytes() for name, array in out.items()}


async def _outcomes(device: str | None, streams: int, without: Iterable[str] = ()) -> dict[str, list[dict[str, bytes]]]:
    """What every scenario's sequence of requests gives; the same whether one after the other or all at once."""
    results: dict[str, list[dict[str, bytes]]] = {}
    async with Runtime(device, streams=streams, options=RuntimeOptions(warm=False, without={"fuse", *without})) as rt:
        for name, scenario in SCENARIOS.items():
            loaded = await rt.load(_model(scenario))
            found: list[dict[str, bytes]] = []
            for which in SEQUENCE:
                found.append(await _request(loaded, scenario, which))
                became = next(n for n in loaded.explain() if n.operator == name.split()[0])
                if which == "skip" and rt.options.uses("skip"):
                    expected = {"skipped"}
                else:
                    expected = {"ran", "view"} if rt.options.uses("views") else {"ran"}
                assert became.decision in expected, (name, which, became)
            together = await asyncio.gather(*(_request(loaded, scenario, which) for which in SEQUENCE * 2))
            assert found * 2 == list(together), name
            results[name] = found
        assert rt.statistics().memory.leases == 0
    return results


WAYS: Sequence[tuple[int, set[Mechanism]]] = [
    (2, set()), (1, set()), (2, {"replay"}), (2, {"pool"}), (2, {"views"}), (2, {"in_place"}),
]  # fmt: skip
"""On how many streams, and without what."""


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("device", "ways"),
    [("simulated", WAYS), ("host", some(WAYS, 2, 1)), (None, some(WAYS, 2))],
    ids=["simulated", "host", "opencl"],
)
@pytest.mark.usefixtures("shared_programs")
async def test_skips_come_and_go_and_no_byte_changes(
    device: str | None, ways: Sequence[tuple[int, set[Mechanism]]]
) -> None:
    """Run to run, run to skip, skip to run, skip to skip: with every mechanism off the bytes are the same."""
    expected = await _outcomes(device, 1, without={"skip", "replay"})

    for streams, without in ways:
        assert expected == await _outcomes(device, streams, without=without), (streams, without)


def test_every_operator_with_a_skip_rule_has_a_scenario() -> None:
    """An operator that is added needs a line in the table, or is decided by loading."""
    viewed = {o.name for o in operators().values() if o.views is not None}

    assert viewed == DECIDED_BY_LOADING | {name.split()[0] for name in SCENARIOS}
