"""Every float attribute of every operator as a number that is hard to write: negative, -0.0, infinite, none at all.

The attributes are those of ONNX's schemas, so that a new operator's are among them.
"""

from __future__ import annotations

import contextlib
import functools
import math
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from onnx import defs, helper
from onnx.reference import ReferenceEvaluator

import asyncrt
from asyncrt.devices.base import Device
from asyncrt.errors import AsyncrtError, KernelBuildError
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.registry import operators
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, layout_of

from ..paths import off
from ..second_opinion import onnxruntime_session
from .run import arrays, best_device, build, make_call, reference, run_impl, traits_of

NUMBERS = (-1.5, -0.0, math.inf, -math.inf, math.nan)
_LISTS = ("activation_alpha", "activation_beta")
_KIND = defs.OpSchema.AttrType


def _float_attributes(operator: Operator) -> list[str]:
    if not defs.has(operator.name, operator.domain):
        return []  # of another domain than ONNX's
    schema = defs.get_schema(operator.name, operator.domain)
    return sorted(n for n, a in schema.attributes.items() if a.type in (_KIND.FLOAT, _KIND.FLOATS))


CASES = [
    pytest.param(operator, name, number, id=f"{operator.name}-{name}-{number}")
    for operator in sorted(operators().values(), key=lambda o: o.name)
    if operator.name != "Constant"  # no kernel
    for name in _float_attributes(operator)
    for number in NUMBERS
]


def _examples(operator: Operator, name: str, number: float) -> Iterator[Example]:
    """One example of each dtype with that attribute; of recurrent operators with activations that read it."""
    by_dtype: dict[Any, Example] = {}
    for example in operator.examples:
        by_dtype.setdefault(getattr(arrays(example)[0], "dtype", None), example)
    for example in by_dtype.values():
        attributes = {**example.attributes, name: number}
        if name in _LISTS:
            gates = {"LSTM": 3, "GRU": 2, "RNN": 1}[operator.name]
            directions = 2 if attributes.get("direction") == "bidirectional" else 1
            named = ("LeakyRelu", "HardSigmoid", "Affine")[:gates] * directions
            other = {n: (0.25,) * len(named) for n in _LISTS}
            attributes |= {"activations": named, **other, name: (number,) * len(named)}
        if name == "cubic_coeff_a":
            attributes["mode"] = "cubic"
        yield example._replace(attributes=attributes)


def _assert_same(expected: Array, got: Array, what: str) -> None:
    """The same numbers, but for rounding: some of these attributes leave a small difference of large numbers."""
    assert (expected.dtype, expected.shape) == (got.dtype, got.shape), what
    wide = (got.astype(np.float64), expected.astype(np.float64))
    np.testing.assert_allclose(*wide, rtol=5e-3, atol=5e-3, err_msg=what)


def _refused(operator: Operator, example: Example, inputs: list[Array | None]) -> bool:
    """Whether the operator says that the attribute makes no sense."""
    layouts = tuple(None if a is None else layout_of(a) for a in inputs)
    some = next(layout.dtype for layout in layouts if layout is not None)
    attributes = Attributes(example.attributes, example.opset or 21, example.outputs)
    try:
        operator.infer(Call("example", attributes, layouts, tuple(inputs), (), (some,) * example.outputs))
        with np.errstate(all="ignore"):
            reference(operator, example, inputs)
    except AsyncrtError:
        return True
    return False


class Asked(NamedTuple):
    """What a kernel gets, what it should give, and the call that it is chosen for."""

    inputs: list[Array | None]
    expected: list[Array]
    call: Call


def _asked(operator: Operator, name: str, number: float, device: Device) -> Iterator[Asked]:
    """Each example that kernels carry out, without constants and with them."""
    for example in _examples(operator, name, number):
        inputs = arrays(example)
        first = inputs[0]
        if _refused(operator, example, inputs) or first is None or not operator.has_kernel(layout_of(first).dtype):
            continue
        if any(a is not None and a.dtype == np.float64 for a in inputs) and "fp64" not in device.info.features:
            continue
        with np.errstate(all="ignore"):
            expected = reference(operator, example, inputs)
        for constant in (False, True):
            yield Asked(inputs, expected, make_call(operator, example, inputs, expected, constant=constant))


@functools.cache
def _build_numbers(operator: Operator, name: str) -> None:
    """Build the kernels for all numbers of an attribute; what fails, fails again in the test of its number."""
    device = best_device()
    for_gpus = DeviceTraits("gpu", features=traits_of(device).features)
    usual, gpu = [], []
    for number in NUMBERS:
        with contextlib.suppress(Exception):
            calls = [asked.call for asked in _asked(operator, name, number, device)]
            assert operator.implement is not None
            usual += [operator.implement(call, traits_of(device)) for call in calls]
            gpu += [operator.implement(call, for_gpus) for call in calls[-1:]]
    for impls in (usual, gpu):
        with contextlib.suppress(KernelBuildError):
            build(impls)


@pytest.mark.parametrize(("operator", "name", "number"), CASES)
def test_kernels_take_any_number_as_an_attribute(
    operator: Operator, name: str, number: float, device: Device
) -> None:
    """Kernels for CPUs give what the reference gives; those for GPUs are text that compiles, too."""
    if operator.implement is None:
        pytest.skip("runs on the host")
    _build_numbers(operator, name)
    call = None
    for inputs, expected, call in _asked(operator, name, number, device):
        got = run_impl(operator.implement(call, traits_of(device)), call, inputs)
        if not (device.info.is_cpu or math.isfinite(number)):
            continue  # what a GPU makes an integer of NaN is its own affair
        for i, (e, g) in enumerate(zip(expected, got, strict=True)):
            _assert_same(e, g, f"{operator.name} {dict(call.attributes)} output {i}, constants={any(call.constants)}")
    if call is None:
        return
    gpu = operator.implement(call, DeviceTraits("gpu", features=traits_of(device).features))
    build([gpu])


def _single(operator: Operator, example: Example, inputs: list[Array | None], *, then: str = "") -> onnx.ModelProto:
    """A model of one node, and of another one behind it."""
    names = ["" if a is None else f"x{i}" for i, a in enumerate(inputs)]
    outputs = [f"y{i}" for i in range(example.outputs)]
    attributes = {k: list(v) if isinstance(v, tuple) else v for k, v in example.attributes.items()}
    nodes = [helper.make_node(operator.name, names, outputs, name="the_node", **attributes)]
    if then:
        nodes.append(helper.make_node(then, outputs[:1], ["z"]))
        outputs = ["z"]
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, inputs, strict=True)
        if a is not None
    ]
    graph = helper.make_graph(nodes, "single", infos, [onnx.ValueInfoProto(name=o) for o in outputs])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", example.opset or 21)], ir_version=10)


def _onnxruntime(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Any] | None:
    try:
        return list(onnxruntime_session(model).run(None, feeds))
    except Exception:  # it refuses the number, or lacks the operator
        return None


def _onnx(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Any] | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return list(ReferenceEvaluator(model).run(None, feeds))
    except Exception:
        return None


_INFINITE = (math.inf, -math.inf)
_NO_NUMBERS = (*_INFINITE, math.nan)

#: What ONNX Runtime gives for reasons of its own.
_THEIRS: dict[tuple[str, str], tuple[tuple[float, ...], str]] = {
    ("Attention", "scale"): ((-1.5, math.nan), "takes its root; and NaN is how it says that there is none"),
    ("LRN", "alpha"): (_INFINITE, "takes squares from a running sum, inf from inf"),
    **{
        (kind, name): (_NO_NUMBERS, "its gates drop what is no number")
        for kind in ("GRU", "LSTM")
        for name in _LISTS
    },
}


#: Each draws numbers of its own: tests/graph/test_special.py has what can be said of them.
_RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}


def _theirs(operator: Operator, name: str, number: float) -> str:
    """Why they give something else; "" if they do not."""
    if operator.name in _RANDOM:
        return "draws other numbers"
    numbers, why = _THEIRS.get((operator.name, name), ((), ""))
    return why if any(n == number or (n != n and number != number) for n in numbers) else ""


@pytest.mark.parametrize(("operator", "name", "number"), CASES)
def test_references_take_any_number_as_others_do(operator: Operator, name: str, number: float) -> None:
    """The reference gives what ONNX Runtime gives or, where that refuses, onnx's own evaluator."""
    if operator.domain or _theirs(operator, name, number):
        pytest.skip(_theirs(operator, name, number) or "of another domain")
    example = next(_examples(operator, name, number))
    inputs = arrays(example)
    if _refused(operator, example, inputs):
        return
    model = _single(operator, example, inputs)
    feeds = {f"x{i}": a for i, a in enumerate(inputs) if a is not None}
    theirs = _onnxruntime(model, feeds) or _onnx(model, feeds)
    if theirs is None:
        pytest.skip("neither takes it")
    with np.errstate(all="ignore"):
        mine = reference(operator, example, inputs)

    for i, (e, g) in enumerate(zip(theirs, mine, strict=True)):
        _assert_same(np.asarray(e), g, f"{operator.name} {name}={number}, output {i}")


def _without_signs(array: Array) -> bytes:
    """An array's bytes, with the bits of every NaN the same: of those nothing is promised."""
    return np.where(np.isnan(array), np.float32(np.nan), array).astype(array.dtype).tobytes()


FUSED = [case for case in CASES if case.values[0].expression or case.values[0].with_epilogue]  # type: ignore[union-attr]


@pytest.mark.asyncio
async def test_fused_or_not_any_number_gives_the_same_bytes() -> None:
    """An operator with such an attribute, and a node behind it: `fuse` off changes no byte."""
    results: list[list[bytes]] = []
    for fuse in (True, False):
        options = asyncrt.RuntimeOptions(without=off(fuse=fuse))
        given: list[bytes] = []
        async with asyncrt.Runtime(options=options) as rt:
            for case in FUSED:
                operator, name, number = case.values
                assert isinstance(operator, Operator)
                example = next(_examples(operator, str(name), float(number)))  # type: ignore[arg-type]
                inputs = arrays(example)
                model = await rt.load(_single(operator, example, inputs, then="Neg"))
                outputs = await model.infer({f"x{i}": a for i, a in enumerate(inputs) if a is not None})
                given.append(_without_signs(outputs["z"]))
        results.append(given)

    assert len(FUSED) > 50
    for case, fused, apart in zip(FUSED, *results, strict=True):
        assert fused == apart, case.id
