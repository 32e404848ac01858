"""A node gives the same whether loading folds it, the host calculates it or a kernel; what is refused names it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from asyncrt import AsyncrtError, ModelLimitError, Runtime, RuntimeOptions, ShapeError
from asyncrt.kernels.operator import Operator
from asyncrt.kernels.registry import operators
from asyncrt.layout import Array

from ..builders import i64, model, node
from ..paths import EXACT
from .run import arrays, assert_close, of_numbers, reference

NAN, INF = float("nan"), float("inf")
LEAST = -(2**63)


def _node_of(
    name: str,
    inputs: dict[str, Array],
    attributes: dict[str, Any],
    constants: frozenset[str],
    opset: int = 21,
    outputs: int = 1,
    *,
    fixed: bool = False,
) -> onnx.ModelProto:
    """A model of one node, in which some inputs are constants and all others of any size, or of a fixed one."""
    made = [f"y{i}" for i in range(outputs)]
    given = {k: list(v) if isinstance(v, tuple) else v for k, v in attributes.items()}
    given = {k: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for k, v in given.items()}
    graph = helper.make_graph(
        [helper.make_node(name, list(inputs), made, name="the_node", **given)],
        "one",
        [
            helper.make_tensor_value_info(
                n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape if fixed else [f"{n}{i}" for i in range(a.ndim)]
            )
            for n, a in inputs.items()
            if n not in constants
        ],
        [onnx.ValueInfoProto(name=o) for o in made],
        [numpy_helper.from_array(a, n) for n, a in inputs.items() if n in constants],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


async def _run(rt: Runtime, source: onnx.ModelProto, feeds: dict[str, Array]) -> dict[str, Array]:
    return await (await rt.load(source)).infer(feeds)


def _ints(dtype: Any, *values: int) -> Array:
    return np.array(values, dtype)


def _floats(*values: float) -> Array:
    return np.array(values, np.float32)


_IMAGE = np.arange(1, 10, dtype=np.float32).reshape(1, 1, 3, 3)
_MATRIX = np.arange(1, 7, dtype=np.float32).reshape(2, 3)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("expected", "name", "inputs", "attributes"),
    [
        ([0, 0, -128, 3], "Div", (_ints(np.int8, 7, 0, -128, 7), _ints(np.int8, 0, 0, -1, 2)), {}),
        ([0, 0, LEAST, -3], "Div", (_ints(np.int64, 7, 0, LEAST, 7), _ints(np.int64, 0, 0, -1, -2)), {}),
        ([0, 0, 0, -1], "Mod", (_ints(np.int32, 7, 0, -(2**31), 7), _ints(np.int32, 0, 0, -1, -2)), {}),
        ([0, 1], "Mod", (_ints(np.uint8, 7, 7), _ints(np.uint8, 0, 2)), {"fmod": 1}),
        ([LEAST, 0, 0, -1, 0], "Pow", (_ints(np.int64, 2, 2, 0, -1, 7), _ints(np.int64, 63, 64, -1, -3, -2)), {}),
        ([-(2**31), 49, 129], "Pow", (_ints(np.int32, 2, 7, 7), _floats(31, 2, 2.5)), {}),
        ([2**64 - 1, 0, 2**63, 2**63, 2**63], "Cast", (_floats(-1.5, INF, -INF, NAN, 2**63),), {"to": 13}),
        ([-(2**31)] * 4 + [-1], "Cast", (_floats(NAN, INF, -INF, 3e9, -1.5),), {"to": 6}),
        ([0, 0, 44, 255], "Cast", (_floats(NAN, INF, 300, -1.5),), {"to": 2}),
        ([LEAST, LEAST, 3_000_000_000], "Cast", (_floats(NAN, INF, 3e9),), {"to": 7}),
        ([INF, INF, NAN], "Cast", (_floats(65520, 1e30, NAN),), {"to": 10}),
        ([-1, 1, -1, NAN], "Clip", (_floats(-5, 5, -1, NAN), np.float32(-1), np.float32(1)), {}),
        ([2, 2, NAN], "Clip", (_floats(-5, 5, NAN), np.float32(3), np.float32(2)), {}),
        ([-5, 1, NAN], "Clip", (_floats(-5, 5, NAN), np.float32(NAN), np.float32(1)), {}),
        ([NAN, NAN, 2], "Max", (_floats(1, NAN, 2), _floats(NAN, 1, 1)), {}),
        ([0, 4, 0, 6, 0, 2], "GridSample", (
            _IMAGE, _floats(NAN, 0, -INF, 0, 0, NAN, INF, 0, NAN, INF, 0, -INF).reshape(1, 1, 6, 2)
        ), {"padding_mode": "border"}),
        ([0, 0, 0], "GridSample", (_IMAGE, _floats(NAN, 0, INF, 0, 0, -INF).reshape(1, 1, 3, 2)), {}),
        ([0, 0, 0], "GridSample", (
            _IMAGE, _floats(NAN, 0, INF, 0, 0, -INF).reshape(1, 1, 3, 2)
        ), {"padding_mode": "reflection", "mode": "cubic"}),
        ([1, 2, 3, 4, 5, 6], "Trilu", (_MATRIX, np.int64(LEAST)), {}),
        ([0] * 6, "Trilu", (_MATRIX, np.int64(2**63 - 1)), {}),
        ([0] * 6, "Trilu", (_MATRIX, np.int64(LEAST)), {"upper": 0}),
        ([0] * 6, "EyeLike", (_MATRIX,), {"k": LEAST}),
        ([], "HannWindow", (np.int64(0),), {}),
        ([NAN, NAN], "Softmax", (_floats(-INF, -INF).reshape(1, 2),), {}),
        ([0, 0, 255, 0], "QuantizeLinear", (_floats(NAN, -INF, INF, -9), np.float32(1), np.uint8(5)), {}),
        ([-128, -128, 127], "QuantizeLinear", (_floats(NAN, -INF, INF), np.float32(1), np.int8(5)), {}),
        ([170, 255, 0, 0], "DynamicQuantizeLinear", (_floats(1, 2, NAN, -1),), {}),
        ([-(2**31), -(2**31) + 1], "CumSum", (_ints(np.int32, -(2**31), 1), np.int64(0)), {}),
        ([2**31 - 1, -(2**31)], "CumSum", (_ints(np.int32, 2**31 - 1, 1), np.int64(0)), {}),
        ([0, 2, 2, -0.0], "Round", (_floats(0.5, 1.5, 2.5, -0.5),), {}),
        ([0, 0], "BitShift", (_ints(np.uint8, 1, 255), _ints(np.uint8, 8, 255)), {"direction": "LEFT"}),
        ([-INF], "ReduceMax", (np.zeros((1, 0), np.float32), i64(1)), {"keepdims": 0}),
        ([-(2**31)], "ReduceMax", (np.zeros((1, 0), np.int32), i64(1)), {"keepdims": 0}),
        ([1], "ArgMax", (_floats(1, NAN, 3, NAN),), {"keepdims": 0}),
        ([NAN, NAN, 1], "TopK", (_floats(1, NAN, NAN), i64(3)), {}),
        ([3, 2, 1], "Slice", (_floats(1, 2, 3), i64(2**63 - 1), i64(LEAST), i64(0), i64(-1)), {}),
        ([1], "Slice", (_floats(1, 2, 3), i64(0), i64(2**63 - 1), i64(0), i64(2**63 - 1)), {}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("device", [None, "host"])
async def test_edges_have_one_meaning(
    expected: list[float], name: str, inputs: tuple[Any, ...], attributes: dict[str, Any], device: str | None
) -> None:
    """What ONNX and C leave open is the same as a constant, on the host and on the device; docs/precision.md has it."""
    given = {f"x{i}": np.asarray(a) for i, a in enumerate(inputs)}
    outputs = 3 if name == "DynamicQuantizeLinear" else 2 if name == "TopK" else 1
    async with Runtime(device) as rt:
        for constants in (frozenset(given), frozenset[str]()):
            loaded = await rt.load(_node_of(name, given, attributes, constants, 21, outputs))
            got = (await loaded.infer({n: a for n, a in given.items() if n not in constants}))["y0"]

            np.testing.assert_array_equal(got.reshape(-1), np.array(expected, got.dtype), err_msg=str(constants))


REFUSED = [
    ("HannWindow", (np.int64(-4),), {}),
    ("Range", (np.int64(0), np.int64(5), np.int64(0)), {}),
    ("Range", (np.float32(0), np.float32(NAN), np.float32(1)), {}),
    ("OneHot", (i64(0), i64(-1), _floats(0, 1)), {}),
    ("OneHot", (_floats(0), _floats(NAN), _floats(0, 1)), {}),
    ("Pad", (_floats(1, 2, 3), i64(LEAST, 0)), {}),
    ("Pad", (_floats(1, 2, 3), i64(-2, -2)), {}),
    ("Resize", (_IMAGE, _floats(), _floats(1, 1, INF, 1)), {}),
    ("Resize", (_IMAGE, _floats(), _floats(1, 1, NAN, 1)), {}),
    ("Resize", (_IMAGE, _floats(), _floats(1, 1, 0, 1)), {}),
    ("Slice", (_floats(1, 2), i64(0), i64(2), i64(0), i64(0)), {}),
    ("MaxRoiPool", (_IMAGE, _floats(0, NAN, 0, 1, 1).reshape(1, 5)), {"pooled_shape": (1, 1)}),
    ("ArgMax", (np.zeros((1, 0), np.float32),), {"axis": 1}),
    ("ConstantOfShape", (i64(-1),), {}),
    ("Expand", (_floats(1, 2), i64(3)), {}),
    ("Col2Im", (np.zeros((1, 5, 5), np.float32), i64(5, 5), i64(-1, 5)), {}),
    ("ConvInteger", (np.zeros((1, 1, 4), np.uint8), np.zeros((1, 1, 2), np.uint8)), {"strides": (0,)}),
    ("ConvTranspose", (np.zeros((1, 1, 3), np.float32), np.zeros((1, 1, 3), np.float32)), {"output_shape": (2**40,)}),
    ("LpPool", (np.zeros((1, 1, 4), np.float32),), {"kernel_shape": (2,), "p": 0}),
    ("RNN", (np.zeros((1, 1, 1), np.float32),) * 3, {"hidden_size": 1, "clip": -1.5}),
    ("RNN", (np.zeros((1, 1, 1), np.float32),) * 3, {"hidden_size": 1, "clip": NAN}),
]


@pytest.mark.asyncio
@pytest.mark.parametrize(("name", "inputs", "attributes"), REFUSED)
@pytest.mark.parametrize("device", [None, "host"])
async def test_what_makes_no_sense_names_the_node(
    name: str, inputs: tuple[Any, ...], attributes: dict[str, Any], device: str | None
) -> None:
    """Values that an operator cannot take are refused as constants and as inputs, never by an error of Python's own."""
    given = {f"x{i}": np.asarray(a) for i, a in enumerate(inputs)}
    opset = 11 if name == "MaxRoiPool" else 21
    async with Runtime(device, options=RuntimeOptions(memory_limit=1 << 26)) as rt:
        for constants in (frozenset(given), frozenset[str]()):
            source = _node_of(name, given, attributes, constants, opset)
            with pytest.raises(AsyncrtError) as caught:
                await _run(rt, source, {n: a for n, a in given.items() if n not in constants})

            told = f"{caught.value} {caught.value.__cause__!r}"
            assert "the_node" in told or isinstance(caught.value, MemoryError), told


def _first_examples() -> list[Any]:
    return [
        pytest.param(o, id=o.name)
        for o in sorted(operators().values(), key=lambda o: o.name)
        if o.domain == "" and all(a is None or a.dtype.name != "bfloat16" for a in arrays(o.examples[0]))
        if of_numbers(arrays(o.examples[0]))
    ]


@pytest.mark.asyncio
async def test_a_node_of_constants_gives_what_it_gives_with_inputs() -> None:
    """Every operator's first example: folded while loading, and carried out in a request."""
    checked = 0
    async with Runtime() as rt:
        for case in _first_examples():
            (operator,) = case.values
            assert isinstance(operator, Operator)
            example = operator.examples[0]
            given = {f"x{i}": a for i, a in enumerate(arrays(example)) if a is not None}
            if len(given) < len(example.inputs) or not of_numbers(reference(operator, example, arrays(example))):
                continue
            results = []
            for constants in (frozenset(given), frozenset[str]()):
                attributes, opset = dict(example.attributes), example.opset or 21
                source = _node_of(operator.name, given, attributes, constants, opset, example.outputs, fixed=True)
                loaded = await rt.load(source)
                results.append(await loaded.infer({n: a for n, a in given.items() if n not in constants}))
            for name, folded in results[0].items():
                assert_close(folded, results[1][name], f"{operator.name} {name}")
            checked += 1

    assert checked > 100


@pytest.mark.asyncio
@pytest.mark.parametrize("rank", [9, 30, 64])
@pytest.mark.parametrize("device", [None, "host"])
async def test_a_rank_that_only_a_request_knows_has_the_same_limit(rank: int, device: str | None) -> None:
    """`max_rank` is a limit of values, not of what loading can see of them."""
    reshaped = model([node("y = Reshape(x, to)"), node("z = Neg(y)")], ["x f32[n]", "to i64[k]"], ["z"])
    given = model([node("z = Neg(x)")], ["x f32"], ["z"])
    async with Runtime(device) as rt:
        for source, feeds in (
            (reshaped, {"x": np.zeros(1, np.float32), "to": np.ones(rank, np.int64)}),
            (given, {"x": np.zeros((1,) * rank, np.float32)}),
        ):
            loaded = await rt.load(source)
            with pytest.raises(ModelLimitError, match=f"rank {rank}; RuntimeOptions.max_rank is 8"):
                await loaded.infer(feeds)
            fits = {n: a[:8] if n == "to" else a.reshape((1,) * min(a.ndim, 8)) for n, a in feeds.items()}
            assert (await loaded.infer(fits))["z"].ndim == 8


@pytest.mark.asyncio
@pytest.mark.parametrize("device", [None, "host"])
async def test_shape_arithmetic_keeps_the_lowest_bits(device: str | None) -> None:
    """What loading knows as a formula has no limits; where a request leaves int64 or int32, it wraps around still."""
    nodes = [
        node("shape = Shape(x)"),
        node("large = Mul(shape, factor)"),
        node("back = Div(large, factor)"),
        node("narrow = Cast(shape)", to=onnx.TensorProto.INT32),
        node("small = Mul(narrow, half)"),
    ]
    constants = {"factor": i64(2**61), "half": np.array([2**30], np.int32)}
    loaded_from = model(nodes, ["x f32[n]"], ["back", "small", "large"], constants)
    async with Runtime(device) as rt:
        loaded = await rt.load(loaded_from)
        for n in (1, 3, 4, 5, 8, 9, 1, 2, 3, 4):
            with np.errstate(over="ignore"):
                large = i64(n) * i64(2**61)
                small = np.array([n], np.int32) * np.array([2**30], np.int32)

            outputs = await loaded.infer({"x": np.zeros(n, np.float32)})

            back = large // 2**61 + ((large % 2**61 != 0) & (large < 0))
            assert (large.tolist(), back.tolist(), small.tolist()) == tuple(
                outputs[name].tolist() for name in ("large", "back", "small")
            ), n


@pytest.mark.asyncio
async def test_attributes_that_only_a_sign_tells_apart_are_told_apart() -> None:
    """0.0 equals -0.0: a second node's kernel is not the first one's, whichever comes first."""
    nodes = [node("y = LeakyRelu(x)", alpha=0.0), node("z = LeakyRelu(x)", alpha=-0.0)]
    x = np.array([-1.0, 2.0], np.float32)
    for order in (nodes, nodes[::-1]):
        async with Runtime() as rt:
            outputs = await (await rt.load(model(order, ["x f32[n]"], ["y", "z"]))).infer({"x": x})

        assert np.signbit(outputs["y"]).tolist() == [True, False]
        assert np.signbit(outputs["z"]).tolist() == [False, False]


@pytest.mark.asyncio
async def test_an_operator_that_trips_names_its_node() -> None:
    """An error of ours that was raised without a node's name gets it, as any other does."""
    inputs = {"x": _IMAGE, "rois": np.array([[0, 0, 0, INF, 1]], np.float32)}
    async with Runtime() as rt:
        loaded = await rt.load(_node_of("MaxRoiPool", inputs, {"pooled_shape": [2, 2]}, frozenset()))
        with pytest.raises(ShapeError, match=r"the_node.*is not finite"):
            await loaded.infer(inputs)


@pytest.mark.asyncio
@pytest.mark.parametrize("device", [None, "host"])
async def test_regions_that_are_not_finite_are_nan_and_disturb_no_others(device: str | None) -> None:
    """Nor does one of which most is outside of the image, however large it is."""
    rois = np.array(
        [[0, 0, INF, 1], [0, 0, 2, 2], [-1e9, 0, 1e9, 2], [0, np.nan, 1, 1], [-3e38, 0, 3e38, 2], [0, 0, 1e38, 2]],
        np.float32,
    )
    inputs = {"x": _IMAGE, "rois": rois, "batches": i64(*[0] * len(rois))}
    async with Runtime(device) as rt:
        loaded = await rt.load(_node_of("RoiAlign", inputs, {}, frozenset()))
        (y,) = (await loaded.infer(inputs)).values()

    assert np.isnan(y).all(axis=(1, 2, 3)).tolist() == [True, False, False, True, True, False]
    assert np.isfinite(y[[1, 2, 5]]).all()


def _edges_everywhere() -> onnx.ModelProto:
    """Nodes that may be skipped, fused, viewed or folded, on the way of values that arithmetic may trip over."""
    nodes = [
        node("turned = Transpose(x)", perm=[1, 0]),
        node("same = Mul(turned, one)"),
        node("added = Add(same, nothing)"),
        node("swish = LeakyRelu(added)", alpha=-0.0),
        node("soft = Softplus(swish)"),
        node("joined = Concat(soft, added)", axis=0),
        node("kept = Clip(joined, least)"),
        node("ratio = Div(kept, joined)"),
        node("product = MatMul(ratio, weights)"),
        node("gated = HardSigmoid(product)"),
        node("z = Neg(gated)"),
        node("whole = Cast(ratio)", to=onnx.TensorProto.INT32),
        node("parts = Div(whole, divisors)"),
    ]
    rng = np.random.default_rng(1)
    constants = {
        "one": np.float32(1),
        "nothing": np.float32(-0.0),
        "least": np.float32(-3e38),
        "weights": rng.standard_normal((16, 40)).astype(np.float32),
        "divisors": np.resize(np.array([0, -1, 3], np.int32), 16),
    }
    return model(nodes, ["x f32[16,n]"], ["added", "ratio", "z", "whole", "parts"], constants)


def _but_for_nan(array: Array) -> bytes:
    """The bytes, with every NaN the same: of its sign and payload nothing is promised."""
    return (np.where(np.isnan(array), np.float32(np.nan), array) if array.dtype.kind == "f" else array).tobytes()


@pytest.mark.asyncio
@pytest.mark.parametrize("off", [*EXACT, "fuse"])
async def test_edges_are_the_same_bytes_with_a_mechanism_off(off: str) -> None:
    """What is promised of ordinary numbers holds for zeros with signs, infinities and the ends of float32, too."""
    edges = np.array([NAN, INF, -INF, 0.0, -0.0, 1e-45, -1e-45, 3.4e38, -3.4e38, 1.0, -1.5, 0.5], np.float32)
    results: list[list[bytes]] = []
    for options in (RuntimeOptions(check_hazards=False), RuntimeOptions(without={off}, check_hazards=False)):
        given: list[bytes] = []
        async with Runtime(options=options) as rt:
            loaded = await rt.load(_edges_everywhere())
            for n in (1, 3, 17, 3, 64, 5, 3, 40):
                x = np.random.default_rng(n).choice(edges, (16, n))
                outputs = await loaded.infer({"x": x})
                given += [_but_for_nan(outputs[name]) for name in ("added", "ratio", "z", "whole", "parts")]
        results.append(given)

    assert results[0] == results[1]
