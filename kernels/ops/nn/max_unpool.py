"""MaxUnpool: elements put back where MaxPool found them, with zeros elsewhere. It runs on the host.

Indices count in the shape that the window, strides and pads give; `output_shape` may make the output larger at the end.

Source: ONNX MaxUnpool-22.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrt.errors import ShapeError
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.indices import Indices
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.shapes import check, count
from asyncrt.layout import Array, Shape


def _pooled(attributes: Attributes, shape: Shape) -> Shape:
    """Return the shape that was pooled to *shape*."""
    window = attributes.get("kernel_shape", ())
    axes = len(window)
    strides = attributes.get("strides") or (1,) * axes
    pads = attributes.get("pads") or (0,) * (2 * axes)
    spatial = [
        (dim - 1) * strides[a] - pads[a] - pads[a + axes] + window[a] for a, dim in enumerate(shape[2:])
    ]
    return (*shape[:2], *spatial)


def infer(call: Call) -> tuple[Shape]:
    shape = call.shape(0)
    axes = len(shape) - 2
    check(call, axes > 0, "its input must have a batch, a channel and at least one spatial axis")
    for name, length in (("kernel_shape", axes), ("strides", axes), ("pads", 2 * axes)):
        given = call.attributes.get(name)
        check(call, len(given) == length if given else name != "kernel_shape", f"{name} must have {length} elements")
    if not call.has(2):
        return (_pooled(call.attributes, shape),)
    result = tuple(call.ints(2))
    check(call, len(result) == len(shape), f"output_shape must have {len(shape)} elements")
    return (result,)


def indices(call: Call) -> Indices:
    return Indices(1, ((0, count(_pooled(call.attributes, call.shape(0))) - 1),))


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x: Any = inputs[0]
    places: Any = inputs[1]
    wanted: Any = inputs[2] if len(inputs) > 2 else None
    pooled = _pooled(attributes, x.shape)
    flat = np.zeros(math.prod(pooled), x.dtype)
    if places.shape != x.shape:
        raise ShapeError(f"MaxUnpool takes an index for each element of {x.shape}, got {places.shape}")
    flat[places.reshape(-1)] = x.reshape(-1)
    y = flat.reshape(pooled)
    if wanted is None:
        return (y,)
    result = np.zeros(tuple(wanted.tolist()), x.dtype)
    if any(large < small for large, small in zip(result.shape, pooled, strict=True)):
        raise ShapeError(f"output_shape {result.shape} of MaxUnpool is smaller than {pooled}")
    result[tuple(slice(0, d) for d in pooled)] = y
    return (result,)


def host_nbytes(call: Call) -> int:
    """What is unpooled, that in the shape that is asked for, and which indices fit."""
    pooled, (result,) = _pooled(call.attributes, call.shape(0)), infer(call)
    return call.dtype(0).itemsize * (math.prod(pooled) + math.prod(result)) + 2 * math.prod(call.shape(1))


_INDICES = np.array([[[[5, 7], [13, 15]]]], np.int64)
_WINDOW = {"kernel_shape": (2, 2), "strides": (2, 2)}

OPERATOR = Operator(
    name="MaxUnpool",
    infer=infer,
    reference=reference,
    indices=indices,
    host_nbytes=host_nbytes,
    shape_infer_dependencies=(2,),
    examples=(
        Example(("f32[1,1,2,2]", _INDICES), _WINDOW, opset=11),
        Example(("f32[1,1,2,2]", _INDICES, np.array([1, 1, 5, 5], np.int64)), _WINDOW, opset=11),
        Example(("f16[1,2,3]", np.array([[[0, 2, 3], [5, 6, 8]]], np.int64)), {"kernel_shape": (3,)}, opset=22),
    ),
)
