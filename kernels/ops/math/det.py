"""Det: determinants of square matrices. It runs on the host.  Source: ONNX Det-22."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.shapes import check
from asyncrt.layout import Array, Shape


def infer(call: Call) -> tuple[Shape]:
    shape = call.shape(0)
    check(call, len(shape) >= 2, "its input must have at least two axes")
    check(call, shape[-1] is shape[-2] or shape[-1] == shape[-2], f"{shape[-2]} × {shape[-1]} is not square")
    return (shape[:-2],)


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x: Any = inputs[0]
    return (np.asarray(np.linalg.det(x.astype(np.float64))).astype(x.dtype),)


OPERATOR = Operator(
    name="Det",
    infer=infer,
    reference=reference,
    examples=(Example(("f32[3,3]",)), Example(("f32[2,5,4,4]",)), Example(("f64[1,1]",)), Example(("f32[0,2,2]",))),
)
