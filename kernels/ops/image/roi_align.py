"""RoiAlign: each region of an image, pooled over samples between its elements to a fixed size. Runs on the host.

Samples are interpolated linearly; `max` takes the greatest of the four weighted neighbours of all samples.

Source: ONNX RoiAlign-22.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from asyncrt.dims import Dim
from asyncrt.errors import ShapeError
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.indices import Indices
from asyncrt.kernels.operator import TURN, Example, Operator
from asyncrt.kernels.shapes import check
from asyncrt.layout import Array, Shape

_Wide = npt.NDArray[np.float64]


def infer(call: Call) -> tuple[Shape]:
    x, rois, batches = call.shape(0), call.shape(1), call.shape(2)
    check(call, len(x) == 4, f"the data must have four axes, it has {len(x)}")
    check(call, len(rois) == 2 and len(batches) == 1, "regions must be [count, 4], with one batch index each")
    check(call, isinstance(rois[1], Dim) or rois[1] == 4, f"a region has {rois[1]} numbers, it must have 4")
    if not isinstance(rois[0], Dim) and not isinstance(batches[0], Dim):
        check(call, rois[0] == batches[0], f"{rois[0]} regions and {batches[0]} batch indices")
    check(call, all(isinstance(d, Dim) or d > 0 for d in x[2:]), f"there is nothing to sample in {list(x)}")
    mode = call.attributes.get("mode", "avg")
    check(call, mode in ("avg", "max"), f"mode {mode!r} is not known")
    height, width = call.attributes.get("output_height", 1), call.attributes.get("output_width", 1)
    check(call, height > 0 and width > 0, f"the output's size {height} × {width} is not positive")
    return ((rois[0], x[1], height, width),)


class _Samples(NamedTuple):
    """Where the samples along one axis lie: ``[outs, samples]`` each; samples outside weigh nothing."""

    low: npt.NDArray[np.intp]
    high: npt.NDArray[np.intp]
    low_weight: _Wide
    high_weight: _Wide


def _samples(start: float, length: float, outs: int, ratio: int, size: int) -> _Samples:
    step = length / outs
    samples = ratio if ratio > 0 else max(0, math.ceil(step))
    at = start + np.arange(outs)[:, None] * step + (np.arange(samples) + 0.5) * step / max(samples, 1)
    outside = (at < -1.0) | (at > size)
    at = np.clip(at, 0, size - 1)
    low = np.minimum(np.floor(at).astype(np.intp), size - 1)
    high = np.minimum(low + 1, size - 1)
    ahead = at - low
    return _Samples(low, high, np.where(outside, 0.0, 1.0 - ahead), np.where(outside, 0.0, ahead))


def indices(call: Call) -> Indices:
    return Indices(2, ((0, call.shape(0)[0] - 1),))


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x, rois, batches = (i for i in inputs if i is not None)
    default = "half_pixel" if attributes.opset >= 16 else "output_half_pixel"
    half = attributes.get("coordinate_transformation_mode", default) == "half_pixel"
    height, width = attributes.get("output_height", 1), attributes.get("output_width", 1)
    ratio, scale = attributes.get("sampling_ratio", 0), float(attributes.get("spatial_scale", 1.0))
    if not np.isfinite(rois.astype(np.float64) * scale).all():
        raise ShapeError("RoiAlign: not all regions are finite")
    greatest = attributes.get("mode", "avg") == "max"
    y = np.zeros((rois.shape[0], x.shape[1], height, width), np.float64)
    for index, (roi, batch) in enumerate(zip(rois.astype(np.float64), batches.tolist(), strict=True)):
        x1, y1, x2, y2 = (float(v) for v in roi * scale - (0.5 if half else 0.0))
        least = -math.inf if half else 1.0
        rows = _samples(y1, max(y2 - y1, least), height, ratio, x.shape[2])
        columns = _samples(x1, max(x2 - x1, least), width, ratio, x.shape[3])
        if 0 in (rows.low.shape[1], columns.low.shape[1]):
            continue
        image = x[batch].astype(np.float64)
        parts = [
            image[:, r[:, None, :, None], c[None, :, None, :]] * (rw[:, None, :, None] * cw[None, :, None, :])
            for r, rw in ((rows.low, rows.low_weight), (rows.high, rows.high_weight))
            for c, cw in ((columns.low, columns.low_weight), (columns.high, columns.high_weight))
        ]
        y[index] = np.max(np.stack(parts), axis=(0, -1, -2)) if greatest else np.mean(sum(parts), axis=(-1, -2))
    return (y.astype(x.dtype),)


def host_nbytes(call: Call) -> int:
    """What all samples of the largest region see in the four corners around each; the result; an image in float64."""
    x, rois, (result,) = call.shape(0), call.value(1), infer(call)
    ratio, scale = call.attributes.get("sampling_ratio", 0), float(call.attributes.get("spatial_scale", 1.0))
    samples = 1
    for outs, low in zip(result[2:], (1, 0), strict=True):
        taken = ratio
        if ratio <= 0:
            assert rois is not None
            wide = rois.astype(np.float64)
            length = float(np.nanmax((wide[:, low + 2] - wide[:, low]) * scale, initial=1.0))
            taken = math.ceil(length / outs) + 1 if math.isfinite(length) else 1
        samples *= outs * max(taken, 1)
    return 8 * (12 * x[1] * samples + 16 * samples + math.prod(x[1:]) + math.prod(result)) + TURN * result[0]


_ROIS = np.array([[0.3, 0.7, 9.2, 7.9], [2, 3, 4.6, 4.1], [5.2, 1.1, 9.9, 9.7]], np.float32)
_BATCHES = np.array([0, 1, 1], np.int64)

OPERATOR = Operator(
    name="RoiAlign",
    infer=infer,
    reference=reference,
    indices=indices,
    host_nbytes=host_nbytes,
    examples=(
        Example(
            ("f32[2,3,10,12]", _ROIS, _BATCHES),
            {"output_height": 3, "output_width": 2, "sampling_ratio": 2},
            opset=16,
        ),
        Example(
            ("f32[2,3,10,12]", _ROIS, _BATCHES),
            {"output_height": 4, "output_width": 5, "spatial_scale": 0.7},
            opset=16,
        ),
        Example(
            ("f32[2,3,10,12]", _ROIS, _BATCHES),
            {"output_height": 2, "output_width": 2, "coordinate_transformation_mode": "output_half_pixel"},
            opset=16,
        ),
        Example(("f32[2,3,10,12]", _ROIS, _BATCHES), {"output_height": 3, "output_width": 3, "mode": "max"}, opset=16),
    ),
)
