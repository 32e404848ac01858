"""Convolutions, pools, interpolation and recurrent layers where onnx's own reference falls short of the standard.

The truth here is onnxruntime; the kernels for GPUs are run too, on whatever device there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import onnx
import pytest
from onnx import helper

from asyncrt.dims import Dim, Undetermined
from asyncrt.errors import ShapeError
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.registry import operators
from asyncrt.layout import FLOAT32, Array, Layout

from ...second_opinion import onnxruntime_session
from ..run import arrays, assert_close, best_device, build_examples, make_call, reference, run_impl, traits_of

FAMILY = (
    "Conv", "ConvTranspose", "BatchNormalization", "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool", "MaxPool",
    "AveragePool", "LpPool", "Resize", "InstanceNormalization", "LRN", "GridSample", "LSTM", "GRU", "RNN",
)  # fmt: skip


def operator(name: str) -> Operator:
    return operators()["", name]


def small(example: Example) -> list[Array | None]:
    """Return the example's inputs, floats scaled down so that states stay tame."""
    return [a * np.float32(0.3) if a is not None and a.dtype == np.float32 else a for a in arrays(example)]


def theirs(name: str, example: Example, inputs: Sequence[Array | None]) -> list[Array]:
    names = ["" if a is None else f"x{i}" for i, a in enumerate(inputs)]
    outputs = [f"y{i}" for i in range(example.outputs)]
    attributes = {k: list(v) if isinstance(v, tuple) else v for k, v in example.attributes.items()}
    node = helper.make_node(name, names, outputs, **attributes)
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, inputs, strict=True)
        if a is not None
    ]
    graph = helper.make_graph([node], "case", infos, [onnx.ValueInfoProto(name=o) for o in outputs])
    opset = helper.make_opsetid("", example.opset or 21)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=10)
    session = onnxruntime_session(model)
    return list(session.run(None, {n: a for n, a in zip(names, inputs, strict=True) if a is not None}))


def check_kernels(name: str, example: Example, inputs: Sequence[Array | None], kinds: Sequence[str]) -> None:
    """Run the kernels for each class of device, with inputs as constants and not, against the reference."""
    it = operator(name)
    assert it.implement is not None
    expected = reference(it, example, inputs)
    for kind in kinds:
        for constant in (False, True):
            call = make_call(it, example, inputs, expected, constant=constant)
            impl = it.implement(call, attrs.evolve(traits_of(best_device()), kind=kind))
            got = run_impl(impl, call, inputs)
            for i, (e, g) in enumerate(zip(expected, got, strict=True)):
                assert_close(e, g, f"{name} output {i} kind={kind} constant={constant} by {impl.name}")


@pytest.mark.parametrize("name", FAMILY)
def test_kernels_for_gpus_agree_with_the_reference(name: str) -> None:
    """The examples' results do not depend on the class of device that kernels are chosen for."""
    it, traits = operator(name), attrs.evolve(traits_of(best_device()), kind="gpu")
    build_examples(it, (False, traits), (True, traits))
    for example in it.examples:
        check_kernels(name, example, arrays(example), ("gpu",))


@pytest.mark.parametrize("strides", [(1, 1), (2, 2), (1, 3)])
def test_maxima_of_infinities_and_nan(strides: tuple[int, int]) -> None:
    """A NaN is the greatest of every window that it is in; where there is nothing else, minus infinity is."""
    x = np.random.default_rng(0).standard_normal((1, 2, 9, 90)).astype(np.float32)
    x[0, 0, ::4, ::23] = np.nan
    x[0, 1] = -np.inf
    attributes = {"kernel_shape": (3, 3), "strides": strides, "pads": (1, 1, 1, 1)}

    check_kernels("MaxPool", Example((x,), attributes), [x], ("cpu", "gpu"))


_LENGTHS = np.array([2, 5, 1], np.int32)
_GRID = (np.random.default_rng(3).random((2, 4, 6, 2)) * 2.8 - 1.4).astype(np.float32)
_LSTM = ("f32[5,3,4]", "f32[2,24,4]", "f32[2,24,6]", "f32[2,48]", _LENGTHS, "f32[2,3,6]", "f32[2,3,6]", "f32[2,18]")
_GRU = ("f32[5,3,4]", "f32[1,60,4]", "f32[1,60,20]", "f32[1,120]", _LENGTHS, "f32[1,3,20]")
_RNN = ("f32[5,3,4]", "f32[2,37,4]", "f32[2,37,37]", "f32[2,74]", _LENGTHS)
_BOTH: dict[str, Any] = {"direction": "bidirectional"}

CASES: list[tuple[str, Example]] = [
    ("Conv", Example(
        ("f32[2,6,9,10]", "f32[34,3,3,2]", "f32[34]"), {"group": 2, "strides": (2, 3), "pads": (2, 0, 1, 1)})),
    ("Conv", Example(
        ("f32[1,4,9,9,8]", "f32[16,2,3,1,2]"), {"group": 2, "dilations": (2, 1, 3), "pads": (1, 0, 2, 1, 1, 0)})),
    ("Conv", Example(("f32[1,5,40]", "f32[8,5,5]"), {"strides": (3,), "pads": (4, 3)})),
    ("Conv", Example(("f32[1,8,11,12]", "f32[16,1,5,5]"), {"group": 8, "pads": (2, 2, 2, 2), "strides": (3, 3)})),
    ("ConvTranspose", Example(
        ("f32[2,4,5,4]", "f32[4,9,3,2]", "f32[18]"), {"group": 2, "strides": (3, 2), "pads": (1, 0, 1, 1)})),
    ("ConvTranspose", Example(("f32[1,3,6]", "f32[3,2,4]"), {"strides": (2,), "output_shape": (11,)})),
    ("ConvTranspose", Example(("f32[1,2,4,4]", "f32[2,8,3,3]"), {"auto_pad": "SAME_LOWER", "strides": (2, 2)})),
    ("BatchNormalization", Example(
        ("f32[4,9]", "f32[9]", "f32[9]", "f32[9]", np.linspace(0.2, 2, 9, dtype=np.float32)), opset=9)),
    ("MaxPool", Example(("f32[1,2,12,53]",), {"kernel_shape": (3, 2), "pads": (1, 0, 1, 1)})),
    ("MaxPool", Example(("f32[1,2,12,13]",), {"kernel_shape": (3, 2), "strides": (3, 2), "pads": (1, 0, 1, 1)}, 2)),
    ("MaxPool", Example(("u8[1,2,12,13]",), {"kernel_shape": (3, 3), "strides": (2, 1), "ceil_mode": 1})),
    ("MaxPool", Example(("f32[1,2,5,6,7]",), {"kernel_shape": (2, 2, 3), "storage_order": 1}, 2)),
    ("AveragePool", Example(
        ("f32[1,2,13,39]",),
        {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (0, 1, 1, 0), "ceil_mode": 1, "count_include_pad": 1})),
    ("AveragePool", Example(("f32[1,2,13,50]",), {"kernel_shape": (2, 3), "dilations": (2, 2), "pads": (1, 2, 0, 1)})),
    ("LpPool", Example(("f32[1,2,9,9]",), {"kernel_shape": (3, 2), "pads": (1, 0, 1, 1), "strides": (2, 2), "p": 3})),
    ("GlobalLpPool", Example(("f32[2,3,5,4]",), {"p": 1})),
    ("LRN", Example(("f32[2,9,3,4]",), {"size": 5, "alpha": 0.3})),
    ("GridSample", Example(("f32[2,3,5,7]", _GRID), {"mode": "bicubic", "padding_mode": "border"}, opset=16)),
    ("GridSample", Example(("f32[2,3,5,7]", _GRID), {"mode": "bilinear", "align_corners": 1}, opset=16)),
    ("LSTM", Example(_LSTM, {"hidden_size": 6, **_BOTH}, 3, opset=14)),
    ("LSTM", Example(_LSTM, {"hidden_size": 6, "input_forget": 1, **_BOTH}, 3, opset=14)),
    ("LSTM", Example(_LSTM, {"hidden_size": 6, "activations": ("HardSigmoid", "Softsign", "Relu") * 2,
                             "activation_alpha": (0.3, 0.1), "activation_beta": (0.4, 0.6), **_BOTH}, 3, opset=14)),
    ("GRU", Example(_GRU, {"hidden_size": 20, "direction": "reverse", "clip": 0.4}, 2, opset=14)),
    ("GRU", Example(_GRU, {"hidden_size": 20, "linear_before_reset": 1, "activations": ("Sigmoid", "LeakyRelu"),
                           "activation_alpha": (0.2,)}, 2, opset=14)),
    ("RNN", Example(_RNN, {"hidden_size": 37, "activations": ("Elu", "Softplus"), **_BOTH}, 2, opset=14)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "example"), [pytest.param(n, e, id=f"{n}-{i}") for i, (n, e) in enumerate(CASES)])
def test_agrees_with_onnxruntime(name: str, example: Example) -> None:
    """Reference and kernels give what onnxruntime gives."""
    inputs = small(example)
    expected = reference(operator(name), example, inputs)

    for i, (e, g) in enumerate(zip(theirs(name, example, inputs), expected, strict=True)):
        assert_close(e, g, f"{name} output {i}")
    check_kernels(name, example, inputs, ("cpu", "gpu"))


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_recurrent_layout_1_is_layout_0_with_the_batch_first(name: str) -> None:
    """Layout 1 only moves axes."""
    given = {"LSTM": _LSTM, "GRU": _GRU, "RNN": _RNN}[name]
    example = Example(given, dict(_BOTH) if name != "GRU" else {}, 2, opset=14)
    inputs = small(example)
    first = Example(given, {**example.attributes, "layout": 1}, 2, opset=14)
    moved = [
        None if a is None else np.ascontiguousarray(a.swapaxes(0, 1)) if i in (0, 5, 6) else a
        for i, a in enumerate(inputs)
    ]
    every, last = reference(operator(name), example, inputs)
    every1, last1 = reference(operator(name), first, moved)

    assert_close(every.transpose(2, 0, 1, 3), every1, f"{name} Y")
    assert_close(last.swapaxes(0, 1), last1, f"{name} Y_h")
    check_kernels(name, first, moved, ("cpu", "gpu"))


def _call(name: str, shapes: Sequence[tuple[Any, ...]], attributes: dict[str, Any], values: Sequence[Any] = ()) -> Call:
    layouts = tuple(Layout(FLOAT32, s) for s in shapes)
    known = tuple(values) + (None,) * (len(layouts) - len(values))
    return Call(name, Attributes(attributes, 21), layouts, known, (), (FLOAT32,), (False,) * len(layouts))


@pytest.mark.parametrize(
    ("name", "shapes", "attributes"),
    [
        ("Conv", [(1, 4, 5, 5), (8, 3, 3, 3)], {}),
        ("Conv", [(1, 3, 2, 2), (8, 3, 3, 3)], {}),
        ("Conv", [(1, 3, 5, 5), (8, 3, 3, 3)], {"pads": (1, 1)}),
        ("Conv", [(1, 3, 5, 5), (8, 3, 3, 3)], {"strides": (0, 1)}),
        ("ConvTranspose", [(1, 3, 5, 5), (4, 8, 3, 3)], {}),
        ("MaxPool", [(1, 3, 5, 5)], {}),
        ("MaxPool", [(1, 3, 5, 5)], {"kernel_shape": (2, 2), "auto_pad": "SAME"}),
        ("BatchNormalization", [(1, 3, 5)] + [(3,)] * 4, {"training_mode": 1}),
        ("BatchNormalization", [(1, 3, 5)] + [(4,)] * 4, {}),
        ("GridSample", [(1, 3, 5, 5, 5), (1, 2, 2, 2, 3)], {}),
        ("LSTM", [(5, 2, 3), (1, 16, 4), (1, 16, 4)], {}),
        ("RNN", [(5, 2, 3), (1, 4, 3), (1, 4, 4)], {"activations": ("Unheard",)}),
    ],
)
def test_what_does_not_fit_is_a_shape_error(name: str, shapes: Any, attributes: dict[str, Any]) -> None:
    """Shapes and attributes that do not fit raise the error that names the node."""
    with pytest.raises(ShapeError, match=f"'{name}'"):
        operator(name).infer(_call(name, shapes, attributes))


def test_symbolic_sizes_stay_exact() -> None:
    """Output sizes are expressions of the input's, wherever these say enough."""
    n, h, w = (Dim.named(x) for x in "nhw")
    conv = _call("Conv", [(n, 3, h, w), (8, 3, 3, 3)], {"pads": (1, 1, 1, 1)})
    scales = np.array([1, 1, 2, 0.5], np.float32)
    resize = _call("Resize", [(n, 3, h, 8), (0,), (4,)], {}, (None, None, scales))

    assert list(operator("Conv").infer(conv)[0]) == [n, 8, h, w]
    assert list(operator("Resize").infer(resize)[0]) == [n, 3, h * 2, 4]
    with pytest.raises(Undetermined):
        operator("Resize").infer(
            _call("Resize", [(n, 3, h, w), (0,), (4,)], {}, (None, None, scales * np.float32(1.3)))
        )


def test_a_scale_that_is_a_rounded_quotient_is_exact() -> None:
    """A scale of one third, which float32 rounds up, still takes every third element."""
    x = np.arange(9, dtype=np.float32)
    attributes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    example = Example((x, None, np.array([1 / 3], np.float32)), attributes)

    assert reference(operator("Resize"), example, arrays(example))[0].tolist() == [0, 3, 6]
    check_kernels("Resize", example, arrays(example), ("cpu", "gpu"))
