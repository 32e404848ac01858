"""MaxRoiPool: the maximum in each cell of a grid over regions of an image. It runs on the host.

A region is ``(batch, x1, y1, x2, y2)``, both corners inside it, in coordinates that `spatial_scale` multiplies; it is
cut into cells that may overlap by one row or column. A cell outside the image is 0.

Source: ONNX MaxRoiPool-22.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrt.errors import IndexOutOfRange, ShapeError
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.operator import TURN, Example, Operator
from asyncrt.kernels.shapes import check
from asyncrt.layout import Array, Shape


def infer(call: Call) -> tuple[Shape]:
    x, rois, pooled = call.shape(0), call.shape(1), call.attributes.get("pooled_shape", ())
    check(call, len(x) == 4, "its input must have 4 axes")
    check(call, len(rois) == 2 and rois[1] == 5, "regions must have shape [N,5]")
    check(call, len(pooled) == 2 and min(pooled) > 0, "pooled_shape must have 2 elements above 0")
    return ((rois[0], x[1], *pooled),)


def _cells(low: float, high: float, scale: float, cells: int, length: int) -> list[slice]:
    """Return the indices of each cell of a region from *low* to *high* of an axis of *length*."""
    start, end = (int(np.floor(abs(v * scale) + 0.5) * (1 if v >= 0 else -1)) for v in (low, high))
    step = max(end - start + 1, 1) / cells
    edges = [(int(np.floor(c * step)) + start, int(np.ceil((c + 1) * step)) + start) for c in range(cells)]
    return [slice(min(max(a, 0), length), min(max(b, 0), length)) for a, b in edges]


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x: Any = inputs[0]
    rois: Any = inputs[1]
    height, width = attributes["pooled_shape"]
    scale = attributes.get("spatial_scale", 1.0)
    y = np.zeros((len(rois), x.shape[1], height, width), x.dtype)
    for n, (batch, x1, y1, x2, y2) in enumerate(rois.astype(np.float64).tolist()):
        if not np.isfinite([x1 * scale, y1 * scale, x2 * scale, y2 * scale]).all():
            raise ShapeError(f"region {n} of MaxRoiPool is not finite")
        if not 0 <= batch < len(x):
            raise IndexOutOfRange("", 1, 5 * n, batch, 0, len(x) - 1)
        rows = _cells(y1, y2, scale, height, x.shape[2])
        columns = _cells(x1, x2, scale, width, x.shape[3])
        for i, row in enumerate(rows):
            for j, column in enumerate(columns):
                cell = x[int(batch), :, row, column]
                if cell.size:
                    y[n, :, i, j] = cell.max(axis=(1, 2))
    return (y,)


def host_nbytes(call: Call) -> int:
    """The result, twice; a region is walked cell by cell."""
    (result,) = infer(call)
    return 2 * call.dtype(0).itemsize * math.prod(result) + TURN * result[0] * math.prod(result[2:])


_ROIS = np.array([[0, 0, 0, 3, 3], [1, 2, 1, 7, 5], [0, 4, 4, 4, 4], [1, 5, 0, 20, 3]], np.float32)

OPERATOR = Operator(
    name="MaxRoiPool",
    infer=infer,
    reference=reference,
    host_nbytes=host_nbytes,
    examples=(
        Example(("f32[2,3,6,8]", _ROIS), {"pooled_shape": (2, 3)}, opset=11),
        Example(("f32[2,3,6,8]", _ROIS), {"pooled_shape": (3, 2), "spatial_scale": 0.5}, opset=22),
    ),
)
