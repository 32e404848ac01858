"""AffineGrid: where the points of an evenly spaced grid go under affine maps, for GridSample. It runs on the host.

Along an axis the grid spans -1 to 1: with `align_corners` between the first and the last point's centres, else between
the outer edges of their cells. A single point is at 0.

Source: ONNX AffineGrid-20.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.shapes import check
from asyncrt.layout import Array, Shape


def infer(call: Call) -> tuple[Shape]:
    size, theta = call.ints(1), call.shape(0)
    check(call, len(size) in (4, 5), f"size must have 4 or 5 elements, it has {len(size)}")
    axes = len(size) - 2
    check(call, len(theta) == 3 and theta[1:] == (axes, axes + 1), f"theta must have shape [N,{axes},{axes + 1}]")
    check(call, theta[0] is size[0] or theta[0] == size[0], f"{theta[0]} maps for {size[0]} grids")
    return ((size[0], *size[2:], axes),)


def _points(count: int, corners: bool) -> Any:
    if count == 1:
        return np.zeros(1)
    return np.linspace(-1, 1, count) if corners else (2 * np.arange(count) + 1) / count - 1


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    theta: Any = inputs[0]
    size: Any = inputs[1]
    corners = bool(attributes.get("align_corners", 0))
    spaced = [_points(n, corners) for n in size.tolist()[2:]]
    mesh = np.meshgrid(*spaced, indexing="ij")
    points = np.stack([*reversed(mesh), np.ones_like(mesh[0])], axis=-1)
    y = np.einsum("nij,...j->n...i", theta.astype(np.float64), points)
    return (np.ascontiguousarray(y).astype(theta.dtype),)


def host_nbytes(call: Call) -> int:
    """The points of all axes, stacked and widened, then a grid for each map."""
    size = call.ints(1)
    points = math.prod(size[2:])
    return 8 * points * (4 * len(size) + 3 * size[0] * len(size))


OPERATOR = Operator(
    name="AffineGrid",
    infer=infer,
    reference=reference,
    host_nbytes=host_nbytes,
    shape_infer_dependencies=(1,),
    examples=(
        Example(("f32[2,2,3]", np.array([2, 3, 5, 6], np.int64)), opset=20),
        Example(("f32[2,2,3]", np.array([2, 3, 5, 6], np.int64)), {"align_corners": 1}, opset=20),
        Example(("f32[1,3,4]", np.array([1, 1, 2, 3, 4], np.int64)), opset=20),
        Example(("f32[1,3,4]", np.array([1, 1, 2, 3, 4], np.int64)), {"align_corners": 1}, opset=20),
    ),
)
