"""Constant: a value that is an attribute.  Source: ONNX Constant-21.

Loading makes every Constant a constant of the program, so none is left to run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asyncrt.errors import UnsupportedOperatorError
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.operator import Example, Operator
from asyncrt.layout import FLOAT32, INT64, STRING, Array, DataType, Shape, dtype_of

_TYPED = {
    "value_float": FLOAT32, "value_floats": FLOAT32, "value_int": INT64, "value_ints": INT64,
    "value_string": STRING, "value_strings": STRING,
}  # fmt: skip


def _value(attributes: Attributes) -> Array:
    if "value" in attributes:
        value: Array = attributes["value"]
        return value
    for name, dtype in _TYPED.items():
        if name in attributes:
            return np.array(attributes[name], dtype.numpy)
    given = ", ".join(sorted(attributes)) or "no attribute"
    raise UnsupportedOperatorError(f"a Constant with {given}: asyncrt takes value, {', '.join(_TYPED)}")


def infer(call: Call) -> tuple[Shape]:
    return (_value(call.attributes).shape,)


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    return (_value(attributes).copy(),)


def types(attributes: Attributes, inputs: Sequence[DataType | None], outputs: int) -> tuple[DataType]:
    value = _value(attributes)
    dtype = dtype_of(value.dtype)
    if dtype is None:
        raise UnsupportedOperatorError(f"a Constant of dtype {value.dtype}, which asyncrt does not have")
    return (dtype,)


OPERATOR = Operator(
    name="Constant",
    infer=infer,
    reference=reference,
    types=types,
    examples=(
        Example((), {"value": np.arange(6, dtype=np.float32).reshape(2, 3)}),
        Example((), {"value": np.array(True)}),
        Example((), {"value": np.array([1, 2], np.float16)}),
        Example((), {"value_float": 1.5}),
        Example((), {"value_floats": (1.5, -2.0)}),
        Example((), {"value_int": 7}),
        Example((), {"value_ints": (7, -1, 0)}),
        Example((), {"value_strings": ("a", "")}),
    ),
)
