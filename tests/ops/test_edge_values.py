"""Every operator with every edge of its dtypes: kernels give what the reference gives, which is what folding gives.

The cases come from the examples in the registry, so that a new operator is among them.
"""

from __future__ import annotations

import contextlib
import functools
import zlib
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import defs

from asyncrt.devices.base import Device
from asyncrt.errors import KernelBuildError
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.decide import Run, decide
from asyncrt.kernels.indices import FINDING
from asyncrt.kernels.operator import Example, Operator, evaluate
from asyncrt.kernels.registry import operators
from asyncrt.layout import DATA_TYPES, FLOAT64, Array, DataType, layout_of

from .run import arrays as arrays_of
from .run import (
    assert_close,
    best_device,
    build,
    build_examples,
    make_call,
    of_numbers,
    reference,
    run_impl,
    traits_of,
    variants,
)

BY_NAME = sorted((o for o in operators().values() if o.implement is not None), key=lambda o: o.name)
_SIZE = 1 << 20  # elements of a result; examples have a few thousand

#: What is left open (docs/precision.md): inputs whose elements meet zeros of padding, or weights of what is not seen.
_MEETS_NOTHING = {("Conv", 1), ("ConvTranspose", 0), ("ConvTranspose", 1), ("Attention", 2), ("Attention", 5)}
#: Sums of squares, which are 0 in float32 where their elements are tiny, and not in the reference's float64.
_SQUARES = {"LpNormalization"}


def _edges(dtype: np.dtype[Any]) -> dict[str, list[float]]:
    """Values that a dtype's arithmetic has something to say about, by what they have in common."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return {"limits": [int(limits.min), int(limits.max)], "small": [0, 1, max(int(limits.min), -1)]}
    if dtype == np.bool_:
        return {}
    floats = ml_dtypes.finfo(dtype)
    return {
        "nan": [np.nan],
        "inf": [np.inf],
        "-inf": [-np.inf],
        "zeros": [0.0, -0.0],
        "tiny": [float(floats.smallest_subnormal), -float(floats.smallest_subnormal)],
        "huge": [float(floats.max), float(floats.min)],
    }


def _cases(operator: Operator, example: Example) -> Iterator[tuple[str, list[Array | None]]]:
    """The example's inputs with some elements of one of them replaced by edges."""
    given = arrays_of(example)
    for position, array in enumerate(given):
        if array is None or not array.size:
            continue
        for name, values in _edges(array.dtype).items():
            if name == "huge" or (position in operator.shape_infer_dependencies and name in ("limits", "tiny")):
                continue  # a sum of the greatest is how it is rounded; and sizes are for other tests
            random = np.random.default_rng(zlib.crc32(f"{operator.name} {position} {name}".encode()))
            chosen = random.random(array.size) < 0.3
            chosen[random.integers(array.size)] = True
            changed = array.copy().reshape(-1)
            changed[chosen] = random.choice(np.array(values, dtype=array.dtype), int(chosen.sum()))
            yield (
                f"input {position}: {array.dtype.name} {name}",
                [*given[:position], changed.reshape(array.shape), *given[position + 1 :]],
            )


def _expected(operator: Operator, example: Example, inputs: list[Array | None]) -> list[Array] | None:
    """What a node of constants becomes; None if it is refused, whatever for: the node is named."""
    layouts = tuple(None if a is None else layout_of(a) for a in inputs)
    attributes = Attributes(example.attributes, example.opset or 21, example.outputs)
    some = next(layout.dtype for layout in layouts if layout is not None)
    call = Call("example", attributes, layouts, tuple(inputs), (), (some,) * example.outputs)
    try:
        return [np.asarray(r) for r in evaluate(operator, call, inputs)][: example.outputs]
    except Exception:
        return None


def _calls(
    operator: Operator, example: Example, inputs: list[Array | None], expected: list[Array] | None, device: Device
) -> list[Call]:
    """Return what kernels are asked for, without constants and with them; nothing where the host gives it."""
    first = inputs[0]
    if expected is None or not operator.has_kernel(None if first is None else layout_of(first).dtype):
        return []
    wide = any(a is not None and a.dtype == np.float64 for a in (*inputs, *expected))
    if wide and "fp64" not in device.info.features:
        return []
    constants = (False, True) if operator.value_hints else (False,)
    calls = [make_call(operator, example, inputs, expected, constant=constant) for constant in constants]
    return [
        call for call in calls
        if sum(o.count for o in call.outputs) <= _SIZE and isinstance(decide(operator, call, skip=False), Run)
    ]  # fmt: skip


def _check(operator: Operator, example: Example, what: str, inputs: list[Array | None], device: Device) -> bool:
    expected = _expected(operator, example, inputs)
    calls = _calls(operator, example, inputs, expected, device)
    for call in calls:
        assert operator.implement is not None
        assert expected is not None
        finding = np.zeros(FINDING.shape, np.int32)
        got = run_impl(operator.implement(call, traits_of(device)), call, inputs, finding)
        assert not finding[0], f"{operator.name}, {what}: a kernel refused an index that the reference took"
        for number, (e, g) in enumerate(zip(expected, got, strict=True)):
            if "tiny" in what:  # a step between may leave float32 where the reference's does not
                keep = np.isfinite(e.astype(np.float64)) & np.isfinite(g.astype(np.float64))
                e, g = np.where(keep, e, 0).astype(e.dtype), np.where(keep, g, 0).astype(g.dtype)
            assert_close(e, g, f"{operator.name}, {what}, output {number}, constants={any(call.constants)}")
    return bool(calls)


@pytest.mark.parametrize("operator", BY_NAME, ids=lambda o: o.name)
def test_kernels_give_at_the_edges_what_folding_gives(
    operator: Operator, device: Device
) -> None:
    """Zeros, infinities, NaN, the limits of integers: one meaning, wherever a node is carried out."""
    build_examples(operator, *variants())
    for number, example in enumerate(operator.examples):
        if not of_numbers(given := arrays_of(example)) or not of_numbers(reference(operator, example, given)):
            continue
        for what, inputs in _cases(operator, example):
            position = int(what.split(":")[0].removeprefix("input "))
            if operator.name in _SQUARES and what.endswith("tiny"):
                continue
            if (operator.name, position) in _MEETS_NOTHING and what.rpartition(" ")[2] in ("nan", "inf", "-inf"):
                continue
            _check(operator, example, f"example {number}, {what}", inputs, device)


def _same_type(operator: Operator) -> tuple[list[DataType], int] | None:
    """The dtypes that an operator's first inputs may have, all the same, and how many such inputs there are."""
    schema = defs.get_schema(operator.name, 22, operator.domain)
    formals = schema.inputs
    wanted = formals[0].type_str
    allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}.get(wanted, (wanted,))
    names = {"float": "float32", "double": "float64"}
    types = {s.removeprefix("tensor(").removesuffix(")") for s in allowed}
    count = sum(f.type_str == wanted for f in formals)
    found = [t for t in DATA_TYPES if t.name in {names.get(s, s) for s in types}]
    return (found, count) if count == len(formals) and count <= 2 else None


ELEMENTWISE = [
    pytest.param(operator, dtype, count, id=f"{operator.name}-{dtype}")
    for operator in BY_NAME
    if operator.expression is not None and operator.domain == "" and defs.has(operator.name, 22)
    for types, count in [_same_type(operator) or ([], 0)]
    for dtype in types
    if dtype.numpy.kind != "b" and operator.has_kernel(dtype)
]


_ATTRIBUTES: dict[str, tuple[dict[str, Any], ...]] = {
    "BitShift": ({"direction": "LEFT"}, {"direction": "RIGHT"}),
    "Cast": tuple({"to": t.onnx} for t in DATA_TYPES),
    "Mod": ({"fmod": 1}, {"fmod": 0}),
}


def _pairs(operator: Operator, dtype: DataType, count: int) -> Iterator[tuple[Example, list[Array | None]]]:
    """Each edge of a dtype beside each other, for every choice of attributes."""
    edges = [v for values in _edges(dtype.numpy).values() for v in values] + [1, 2, 3, 7]
    values = np.array([*edges, -2, -1.5] if dtype.is_float else edges, dtype.numpy)
    pairs = (np.repeat(values, values.size), np.tile(values, values.size))
    for chosen in _ATTRIBUTES.get(operator.name, ({},)):
        yield Example((), chosen, opset=22), list(pairs[:count])


@functools.cache
def _build_pairs(operator: Operator) -> None:
    """Build what calculates the pairs of all dtypes."""
    impls = []
    types, count = _same_type(operator) or ([], 0)
    for dtype in types:
        for example, inputs in _pairs(operator, dtype, count):
            expected = _expected(operator, example, inputs)
            for call in _calls(operator, example, inputs, expected, best_device()):
                assert operator.implement is not None
                impls.append(operator.implement(call, traits_of(best_device())))
    with contextlib.suppress(KernelBuildError):  # the test of its dtype raises it again
        build(impls)


@pytest.mark.parametrize(("operator", "dtype", "count"), ELEMENTWISE)
def test_each_edge_meets_each_other(
    operator: Operator, dtype: DataType, count: int, device: Device
) -> None:
    """Element by element, in every dtype that ONNX allows: divisions by 0, the least integer over -1, 0 times inf."""
    _build_pairs(operator)
    checked = [
        _check(operator, example, f"{dtype} {example.attributes}", inputs, device)
        for example, inputs in _pairs(operator, dtype, count)
    ]

    assert any(checked) or (dtype is FLOAT64 and "fp64" not in device.info.features)
