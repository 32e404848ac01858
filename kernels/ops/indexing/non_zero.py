"""NonZero: the coordinates of the elements that are not zero, in row-major order.  Source: ONNX NonZero-13."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrt.kernels.call import Attributes, Call, ValueUnknown
from asyncrt.kernels.operator import Example, Operator
from asyncrt.layout import Array, Shape


def infer(call: Call) -> tuple[Shape]:
    value = call.value(0)
    if value is None:
        raise ValueUnknown(f"'{call.name}': how many elements are not zero is not known while loading")
    return ((value.ndim, int(np.count_nonzero(value))),)


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x: Any = inputs[0]
    if x.ndim == 0:  # no coordinates, unlike NumPy's
        return (np.zeros((0, int(np.count_nonzero(x))), np.int64),)
    return (np.array(np.nonzero(x), np.int64),)


def host_nbytes(call: Call) -> int:
    """The coordinates as NumPy gives them, and as one array. They are counted: most elements may be zero."""
    ((rank, found),) = infer(call)
    return 16 * rank * found


OPERATOR = Operator(
    name="NonZero",
    infer=infer,
    reference=reference,
    host_nbytes=host_nbytes,
    shape_infer_dependencies=(0,),
    examples=(
        Example((np.array([[1, 0, 2], [0, 0, 3]], np.float32),)),
        Example((np.array([[True, False], [True, True]]),)),
        Example((np.zeros((2, 3), np.int64),)),
        Example(("i64[5]",)),
    ),
)
