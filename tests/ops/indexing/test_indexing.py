"""Indexing, scattering, selecting and reducing operators, beyond their examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from asyncrt.devices.base import Device
from asyncrt.dims import Dim, Undetermined
from asyncrt.errors import IndexOutOfRange, ShapeError
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.decide import Run, Skip, decide
from asyncrt.kernels.indices import FINDING, noted
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.registry import operators
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import BOOL, FLOAT32, INT64, Array, Layout

from ...second_opinion import onnxruntime_session
from ..run import arrays, assert_close, build_examples, make_call, reference, run_impl

MINE = (
    "Gather", "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceSumSquare", "ArgMax", "ArgMin", "GatherElements", "GatherND", "ScatterND",
    "ScatterElements", "Clip", "CumSum", "TopK", "OneHot", "Compress", "ReverseSequence", "Einsum", "Hardmax",
)  # fmt: skip


def named(name: str) -> Operator:
    return operators()[("", name)]


def traits_on(device: Device, kind: str) -> DeviceTraits:
    """Return what kernels of one class of devices are chosen for, which need not be the device's own."""
    return DeviceTraits(kind, 4, min(256, device.info.max_group), device.info.features)


def outputs_on(device: Device, kind: str, name: str, example: Example, expected: Sequence[Array]) -> list[Array]:
    """Run the kernels of one class of devices."""
    operator, inputs = named(name), arrays(example)
    call = make_call(operator, example, inputs, expected, constant=False)
    assert operator.implement is not None
    return run_impl(operator.implement(call, traits_on(device, kind)), call, inputs)


GPU_CASES = [
    pytest.param(name, example, id=f"{name}-{index}")
    for name in MINE
    for index, example in enumerate(named(name).examples)
]


@pytest.mark.parametrize(("name", "example"), GPU_CASES)
def test_gpu_kernels_agree_with_the_reference(name: str, example: Example, device: Device) -> None:
    """The kernels for GPUs are right on any device."""
    inputs = arrays(example)
    if any(a is not None and a.dtype == np.float64 for a in inputs) and "fp64" not in device.info.features:
        pytest.skip("the device has no float64")
    expected = reference(named(name), example, inputs)
    build_examples(named(name), (False, traits_on(device, "gpu")))

    got = outputs_on(device, "gpu", name, example, expected)

    for e, g in zip(expected, got, strict=True):
        assert_close(e, g, name)


def found_by(
    device: Device, kind: str, name: str, example: Example, expected: Sequence[Array]
) -> tuple[list[Array], tuple[int, int] | None]:
    """Run kernels as `outputs_on`; returns also position and index that one of them has noted."""
    operator, inputs, finding = named(name), arrays(example), np.zeros(FINDING.shape, np.int32)
    call = make_call(operator, example, inputs, expected, constant=False)
    assert operator.implement is not None
    impl = operator.implement(call, traits_on(device, kind))
    assert impl.looks_at_indices
    return run_impl(impl, call, inputs, finding), noted(finding)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_an_index_out_of_range_is_clamped_and_noted(kind: str, dtype: type, device: Device) -> None:
    """Nothing outside the data is read, whatever the indices are, and one that is out of range is told of."""
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for far in (3, -4, 2**31 - 1, -(2**31)) if dtype is np.int32 else (3, -4, 2**40, -(2**63), 2**63 - 1):
        at: Array = np.array([0, -3, far, 1], dtype)
        clamped = np.array([0, 0, 2 if far > 0 else 0, 1])
        pairs = np.stack([np.zeros(4, dtype), at], 1)
        for name, example, expected, position in (
            ("Gather", Example((x, at)), x[clamped], 2),
            ("Gather", Example((x[:, :1].copy(), at)), x[clamped, :1], 2),
            ("GatherElements", Example((x, at[:, None])), x[clamped, :1], 2),
            ("GatherND", Example((x, at[:, None])), x[clamped], 2),
            ("GatherND", Example((x.T[:, :3].copy(), pairs)), x.T[0, clamped], 5),
        ):
            if name == "GatherND" and dtype is np.int32:
                continue
            (got,), note = found_by(device, kind, name, example, [expected])

            assert note == (position, far), name
            np.testing.assert_array_equal(got, expected, err_msg=name)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("mode", ["none", "add"])
def test_an_update_out_of_range_is_left_out_and_noted(kind: str, mode: str, device: Device) -> None:
    """Nothing outside the data is written, whatever the indices are, and one that is out of range is told of."""
    x, updates = np.zeros((3, 4), np.float32), np.ones((3, 4), np.float32)
    expected = np.zeros((3, 4), np.float32)
    expected[[1, 2]] = 1
    for far in (3, -4, 2**40, -(2**63)):
        at = np.array([[-1], [far], [1]], np.int64)

        (rows,), note = found_by(device, kind, "ScatterND", Example((x, at, updates), {"reduction": mode}), [expected])

        assert note == (1, far)
        np.testing.assert_array_equal(rows, expected)
        pair = Example((x, np.array([[0, 1], [1, far], [0, 1]], np.int64), np.ones(3, np.float32)), {"reduction": mode})
        one = np.zeros((3, 4), np.float32)
        one[0, 1] = 2 if mode == "add" else 1
        (elements,), note = found_by(device, kind, "ScatterND", pair, [one])
        assert note is None if -4 <= far < 4 else note == (3, far)
        if note is not None:
            np.testing.assert_array_equal(elements, one)
        many = np.full(160, 1, np.int64)
        many[77] = far
        long = Example((x[:, 0].copy(), many, np.ones(160, np.float32)), {"reduction": mode})
        (line,), note = found_by(device, kind, "ScatterElements", long, [x[:, 0]])
        assert note == (77, far)
        np.testing.assert_array_equal(line, [0, 159 if mode == "add" else 1, 0])


def test_references_refuse_indices_out_of_range() -> None:
    """On the host a wrong index is the same error, with the same facts."""
    x = np.arange(3)
    for name, inputs in (
        ("Gather", [x, np.array([0, 3])]),
        ("GatherElements", [x, np.array([0, 3])]),
        ("GatherND", [x, np.array([[0], [3]])]),
        ("ScatterElements", [x, np.array([0, 3]), x[:2]]),
        ("ScatterND", [x, np.array([[0], [3]]), x[:2]]),
    ):
        with pytest.raises(IndexOutOfRange) as caught:
            named(name).reference(Attributes(), inputs)
        error = caught.value
        assert (error.input, error.position, error.index, error.least, error.most) == (1, 1, 3, -3, 2), name


@pytest.mark.parametrize("name", ["TopK", "ArgMax", "ArgMin", "ReduceMax"])
@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_nan_is_handled_as_by_numpy(name: str, kind: str, device: Device) -> None:
    """NaN is the most extreme value, and sorting with it neither loses nor repeats an element."""
    x = np.random.default_rng(1).integers(0, 50, (2, 700)).astype(np.float32)
    x[:, ::13] = np.nan
    more = {"TopK": (np.array([650], np.int64),), "ReduceMax": (np.array([1], np.int64),)}.get(name, ())
    example = Example((x, *more), {"axis": 1} if name != "ReduceMax" else {}, outputs=2 if name == "TopK" else 1)
    expected = reference(named(name), example, arrays(example))

    got = outputs_on(device, kind, name, example, expected)

    for e, g in zip(expected, got, strict=True):
        assert_close(e, g, name)


def test_log_sum_exp_of_infinities(device: Device) -> None:
    """An infinite maximum is not subtracted."""
    x = np.array([[-np.inf, -np.inf], [np.inf, 0], [-np.inf, 1]], np.float32)
    example = Example((x, np.array([1], np.int64)), {"keepdims": 0})
    for kind in ("cpu", "gpu"):
        (got,) = outputs_on(device, kind, "ReduceLogSumExp", example, [np.zeros(3, np.float32)])
        np.testing.assert_array_equal(got, np.array([-np.inf, np.inf, 1], np.float32))


def test_large_reductions(device: Device) -> None:
    """Every kernel of the Reduce family at sizes that fill its blocks, and not."""
    cases = (((3, 1025), [1]), ((1025, 3), [0]), ((5, 70, 33), [0, 2]), ((70, 5, 64), [0]), ((2, 300, 17), [1]))
    for shape, axes in cases:
        example = Example((f"f32[{','.join(map(str, shape))}]", np.array(axes, np.int64)))
        for name in ("ReduceSum", "ReduceMax", "ReduceL2", "ReduceLogSumExp"):
            expected = reference(named(name), example, arrays(example))
            for kind in ("cpu", "gpu"):
                (got,) = outputs_on(device, kind, name, example, expected)
                np.testing.assert_allclose(got, expected[0], rtol=1e-4, atol=1e-4)


def test_scatter_with_many_duplicates_is_deterministic(device: Device) -> None:
    """Updates of one place happen in their order."""
    random = np.random.default_rng(2)
    at = random.integers(0, 7, (500, 1))
    updates = random.standard_normal((500, 3)).astype(np.float32)
    for mode in ("none", "add", "mul", "max", "min"):
        example = Example((np.ones((7, 3), np.float32), at, updates), {"reduction": mode})
        expected = reference(named("ScatterND"), example, arrays(example))
        for kind in ("cpu", "gpu"):
            first, second = (outputs_on(device, kind, "ScatterND", example, expected)[0] for _ in range(2))
            np.testing.assert_array_equal(first, second)
            np.testing.assert_allclose(first, expected[0], rtol=1e-4, atol=1e-5)


# With onnxruntime, where onnx's evaluator is not exact.


def onnxruntime_outputs(name: str, inputs: Sequence[Array], attributes: dict[str, Any], opset: int = 18) -> list[Array]:
    names = [f"x{i}" for i in range(len(inputs))]
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, inputs, strict=True)
    ]
    node = helper.make_node(name, names, ["y"], **attributes)
    graph = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name="y")])
    inferred = onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    )
    session = onnxruntime_session(inferred)
    return list(session.run(None, dict(zip(names, inputs, strict=True))))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("center", [0, 1])
def test_non_max_suppression_is_that_of_onnxruntime(seed: int, center: int) -> None:
    """The same boxes in the same order, with ties and degenerate boxes."""
    random = np.random.default_rng(seed)
    boxes = random.random((2, 60, 4)).astype(np.float32)
    boxes[:, ::7, 2:] = boxes[:, ::7, :2]
    scores = (random.integers(0, 20, (2, 3, 60)) / 20).astype(np.float32)
    inputs = [
        boxes, scores, np.array([random.integers(1, 20)], np.int64),
        np.array([random.random()], np.float32), np.array([random.random() / 2], np.float32),
    ]  # fmt: skip
    attributes = {"center_point_box": center}
    (expected,) = onnxruntime_outputs("NonMaxSuppression", inputs, attributes)

    (got,) = named("NonMaxSuppression").reference(Attributes(attributes, 18), inputs)

    np.testing.assert_array_equal(got, expected)


def test_one_hot_is_that_of_onnxruntime() -> None:
    """Indices out of range give rows of off-values."""
    inputs = [np.array([-5, -4, -1, 0, 3, 4, 9], np.int64), np.array(4, np.int64), np.array([0, 1], np.float32)]
    (expected,) = onnxruntime_outputs("OneHot", inputs, {})

    (got,) = named("OneHot").reference(Attributes({}, 18), inputs)

    np.testing.assert_array_equal(got, expected)


def test_hardmax_before_opset_13_takes_the_axes_from_its_axis_as_one() -> None:
    """Opset 11 differs from opset 13."""
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    (expected,) = onnxruntime_outputs("Hardmax", [x], {"axis": 1}, opset=11)

    (got,) = named("Hardmax").reference(Attributes({"axis": 1}, 11), [x])

    np.testing.assert_array_equal(got, expected)


# While loading, and what is skipped.


def call_of(
    name: str, layouts: Sequence[Layout | None], values: Sequence[Array | None] = (), attributes: dict[str, Any] = {}  # noqa: B006
) -> Call:
    values = tuple(values) or (None,) * len(layouts)
    constants = (False,) * len(layouts)
    call = Call("node", Attributes(attributes, 21), tuple(layouts), tuple(values), (), (FLOAT32,), constants)
    layout = layouts[0]
    assert layout is not None
    shapes = named(name).infer(call)
    return call._replace(outputs=tuple(Layout(layout.dtype, tuple(s)) for s in shapes))


SEQ: Any = Dim.named("seq")


def test_symbolic_shapes_go_through_infer() -> None:
    """While loading, dims that are not known go where they belong."""
    x, rows = Layout(FLOAT32, (2, SEQ, 8)), Layout(INT64, (SEQ,))
    axes = np.array([1], np.int64)

    assert call_of("Gather", (Layout(FLOAT32, (100, 8)), rows)).outputs[0].shape == (SEQ, 8)
    assert call_of("ReduceSum", (x, Layout(INT64, (1,))), (None, axes)).outputs[0].shape == (2, 1, 8)
    assert call_of("ArgMax", (x,), attributes={"axis": 2, "keepdims": 0}).outputs[0].shape == (2, SEQ)
    assert call_of("Einsum", (x, x), attributes={"equation": "bik,bjk->bij"}).outputs[0].shape == (2, SEQ, SEQ)
    assert call_of("Clip", (x,)).outputs[0].shape == (2, SEQ, 8)
    assert call_of("OneHot", (rows, Layout(INT64, ()), Layout(FLOAT32, (2,))), (None, np.array(5), None)).outputs[
        0
    ].shape == (SEQ, 5)


def test_reductions_of_dynamic_axes_are_decided_at_runtime() -> None:
    """Whether an axis is a unit axis is for the request to tell."""
    call = call_of("ReduceSum", (Layout(FLOAT32, (2, SEQ)), Layout(INT64, (1,))), (None, np.array([1])))

    with pytest.raises(Undetermined):
        decide(named("ReduceSum"), call)


def test_gather_of_a_known_range_is_a_view() -> None:
    """Indices known on the host that are a dense range move nothing; an offset is kept."""
    x, three = Layout(FLOAT32, (5, 4)), Layout(INT64, (3,))

    def decision(*indices: int) -> object:
        return decide(named("Gather"), call_of("Gather", (x, three), (None, np.array(indices))))

    skipped = decision(1, 2, -2)
    assert isinstance(skipped, Skip)
    assert skipped.offsets == (16,)
    assert isinstance(decision(0, 2, 4), Run)
    assert isinstance(decision(3, 4, 5), Run)
    assert isinstance(decide(named("Gather"), call_of("Gather", (x, three))), Run)


def test_gather_of_symbolic_dims() -> None:
    """Shape arithmetic works on dims that are not known."""
    shape = np.array([2, SEQ, 8], dtype=object)

    (one,) = named("Gather").reference(Attributes(), [shape, np.array(1)])
    (two,) = named("Gather").reference(Attributes(), [shape, np.array([-1, 1])])
    (product,) = named("ReduceProd").reference(Attributes({"keepdims": 0}), [shape])

    assert one.shape == ()
    assert one.item() is SEQ
    assert two.tolist() == [8, SEQ]
    assert product.item() == 16 * SEQ


def test_wrong_shapes_are_shape_errors() -> None:
    """What does not fit names the node."""
    x, index = Layout(FLOAT32, (0, 4)), Layout(INT64, (3,))
    five = np.array(5, np.int64)
    cases: list[tuple[str, tuple[Layout, ...], tuple[Array | None, ...], dict[str, Any]]] = [
        ("Gather", (x, index), (), {}),
        ("Gather", (x, index), (), {"axis": 2}),
        ("GatherND", (Layout(FLOAT32, (2, 2)), index), (), {}),
        ("ArgMax", (x,), (), {}),
        ("TopK", (Layout(FLOAT32, (4,)), Layout(INT64, ())), (None, five), {}),
        ("CumSum", (x, Layout(INT64, ())), (None, five), {}),
        ("Einsum", (x, x), (), {"equation": "ij->ij"}),
        ("Einsum", (x,), (), {"equation": "ij->ik"}),
        ("ScatterND", (Layout(FLOAT32, (4,)), Layout(INT64, (1, 1)), Layout(FLOAT32, (2,))), (), {}),
        ("Compress", (Layout(FLOAT32, (2,)), Layout(BOOL, (3,))), (None, np.array([False, False, True])), {}),
        ("ReduceSum", (x, Layout(INT64, (2,))), (None, np.array([0, -2])), {}),
    ]
    for name, layouts, values, attributes in cases:
        with pytest.raises(ShapeError, match="'node'"):
            call_of(name, layouts, values, attributes)
