"""Optionals: a value that may be absent. What is surely there may stand in the place of one that may be.

Source: ONNX Optional-15, OptionalGetElement-18, OptionalHasElement-18.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrt.errors import ModelTypeError, ShapeError
from asyncrt.kernels.call import Attributes, Call, ValueUnknown
from asyncrt.kernels.operator import TURN, Example, Operator
from asyncrt.kinds import ValueType, element_of, held, nbytes_of, optional_of
from asyncrt.layout import Array, DataType, Shape


def _one_value(call: Call) -> tuple[Shape]:
    return ((),)


def _inside(call: Call) -> tuple[Shape]:
    dtype = call.dtype(0)
    if element_of(dtype, "optional") is None:
        return (call.shape(0),)
    raise ValueUnknown(f"'{call.name}': the shape of an optional's element is known when the optional is")


def _nbytes(call: Call) -> int:
    return TURN + sum([nbytes_of(a) for a in call.values if a is not None])


def _element(array: Array) -> Any:
    """Return an array, or what a sequence or a map holds."""
    return array.item() if array.dtype.kind == "O" else array


def _make(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    return (held([_element(x) for x in inputs[:1] if x is not None]),)


def _get(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x = inputs[0]
    assert x is not None
    value = _element(x)
    if not isinstance(value, list):
        return (x,)
    if not value:
        raise ShapeError("the optional has no element", hint="ask OptionalHasElement first")
    return (value[0] if isinstance(value[0], np.ndarray) else held(value[0]),)


def _has(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x = inputs[0] if inputs else None
    return (np.asarray(x is not None and not _is_nothing(_element(x))),)


def _is_nothing(value: Any) -> bool:
    return isinstance(value, list) and not value


def _made_type(attributes: Attributes, inputs: Sequence[DataType | None], outputs: int) -> tuple[DataType]:
    given = inputs[0] if inputs else None
    element = given or attributes.get("type")
    if element is None:
        raise ModelTypeError("an Optional without an input needs the attribute 'type', of a type that asyncrt has")
    return (optional_of(element),)


def _got_type(attributes: Attributes, inputs: Sequence[DataType | None], outputs: int) -> tuple[DataType]:
    given = inputs[0]
    if given is None:
        raise ModelTypeError("the type of an optional is not known")
    return (given.element if isinstance(given, ValueType) and given.kind == "optional" else given,)


_X = np.arange(6, dtype=np.float32).reshape(2, 3)

OPERATORS = (
    Operator(
        name="Optional", infer=_one_value, reference=_make, types=_made_type, host_nbytes=_nbytes,
        examples=(Example((_X,)), Example(((_X, _X),))),
    ),
    Operator(
        name="OptionalGetElement", infer=_inside, reference=_get, types=_got_type, host_nbytes=_nbytes,
        examples=(Example(([_X],)), Example((_X,), opset=18)),
    ),
    Operator(
        name="OptionalHasElement", infer=_one_value, reference=_has, host_nbytes=_nbytes,
        examples=(Example(([_X],)), Example(([],)), Example((_X,), opset=18)),
    ),
)  # fmt: skip
