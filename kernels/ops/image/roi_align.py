"""RoiAlign: each region of an image, pooled over samples between its elements to a fixed size.

Samples are interpolated linearly; `max` takes the greatest of the four weighted neighbours of all samples. A region whose
height or width is no finite number gives NaN. A work-item pools one cell of a region, for all channels; samples outside
of the image, of which a large region may have any number, are passed by.

Source: ONNX RoiAlign-22.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from asyncrt.dims import Dim
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.source import EACH_ROUNDED, compute_type
from asyncrt.kernels.impl import Impl, inp, out
from asyncrt.kernels.indices import Indices, clamped
from asyncrt.kernels.operator import TURN, Example, Operator
from asyncrt.kernels.patterns.walk import WalkedBuffer, walk
from asyncrt.kernels.shapes import check
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT64, INT64, Array, DataType, Shape

_Wide = npt.NDArray[np.float64]
_CHANNELS = 16  # that a work-item pools at a time


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
    """Where the samples along one axis lie that may be inside, ``[outs, samples]`` each.

    Attributes:
        inside: Whether a sample is; the others are 0.
        many: Samples of a cell, with those that surely are outside.
    """

    low: npt.NDArray[np.intp]
    high: npt.NDArray[np.intp]
    low_weight: _Wide
    high_weight: _Wide
    inside: npt.NDArray[np.bool_]
    many: float


def _samples(start: Any, length: Any, outs: int, ratio: int, size: int) -> _Samples:
    """Return the samples of an axis; where they lie, and how many there are, is calculated in *start*'s dtype."""
    kind = start.dtype.type
    step = length / kind(outs)
    count = kind(ratio) if ratio > 0 else np.maximum(np.ceil(step), kind(0))
    begins = start + np.arange(outs, dtype=kind) * step
    apart = step / np.maximum(count, kind(1))
    first, end = np.zeros(outs), np.full(outs, float(count))
    if apart > 0:
        first = np.clip(np.floor((-1 - begins) / apart - 1), 0, count).astype(np.float64)
        end = np.clip(np.ceil((size - begins) / apart + 1), first, count).astype(np.float64)
    numbers = first[:, None] + np.arange(int(np.max(end - first, initial=0)))
    places = begins[:, None] + (numbers.astype(kind) + kind(0.5)) * step / np.maximum(count, kind(1))
    inside = (numbers < end[:, None]) & (places >= -1) & (places <= size)
    at: _Wide = np.clip(places, 0, size - 1).astype(np.float64)
    low = np.minimum(np.floor(at).astype(np.intp), size - 1)
    high = np.minimum(low + 1, size - 1)
    ahead = at - low
    return _Samples(low, high, 1.0 - ahead, ahead, inside, float(count))


def _halves(attributes: Attributes) -> bool:
    """Whether coordinates are those of elements' centres, which are a half less than those of regions."""
    default = "half_pixel" if attributes.opset >= 16 else "output_half_pixel"
    return bool(attributes.get("coordinate_transformation_mode", default) == "half_pixel")


def indices(call: Call) -> Indices:
    return Indices(2, ((0, call.shape(0)[0] - 1),))


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x, rois, batches = (i for i in inputs if i is not None)
    half = _halves(attributes)
    height, width = attributes.get("output_height", 1), attributes.get("output_width", 1)
    ratio = attributes.get("sampling_ratio", 0)
    kind: Any = np.float64 if x.dtype == np.float64 else np.float32
    greatest = attributes.get("mode", "avg") == "max"
    y = np.zeros((rois.shape[0], x.shape[1], height, width), np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        corners: Any = rois.astype(kind) * kind(attributes.get("spatial_scale", 1.0)) - kind(0.5 if half else 0)
    for index, (corner, batch) in enumerate(zip(corners, batches.tolist(), strict=True)):
        x1, y1, x2, y2 = corner
        with np.errstate(over="ignore", invalid="ignore"):
            high, wide = y2 - y1, x2 - x1
        if not (np.isfinite(high) and np.isfinite(wide)):
            y[index] = math.nan
            continue
        least = kind(-math.inf if half else 1)
        rows = _samples(y1, max(high, least), height, ratio, x.shape[2])
        columns = _samples(x1, max(wide, least), width, ratio, x.shape[3])
        pooled, samples = rows.low.shape[1] * columns.low.shape[1], rows.many * columns.many
        if not pooled:
            continue
        image, inside = x[batch].astype(np.float64), rows.inside[:, None, :, None] & columns.inside[None, :, None, :]
        seen = (
            image[:, r[:, None, :, None], c[None, :, None, :]] * (rw[:, None, :, None] * cw[None, :, None, :])
            for r, rw in ((rows.low, rows.low_weight), (rows.high, rows.high_weight))
            for c, cw in ((columns.low, columns.low_weight), (columns.high, columns.high_weight))
        )
        parts = [np.where(inside, part, 0) for part in seen]
        if greatest:
            most = np.max(np.stack(parts), axis=(0, -1, -2))
            y[index] = np.maximum(most, 0) if pooled < samples else most
        else:
            y[index] = np.sum(sum(parts), axis=(-1, -2)) / samples
    return (y.astype(x.dtype),)


def implement(call: Call, traits: DeviceTraits) -> Impl:
    attributes, dtype = call.attributes, call.dtype(0)
    (images, channels, high, wide), (regions, _, rows, columns) = call.shape(0), call.outputs[0].shape
    scale, known = float(attributes.get("spatial_scale", 1.0)), call.value(2) is not None
    launch = walk(
        "roi_align",
        _pooled(dtype, scale, greatest=attributes.get("mode", "avg") == "max", known=known),
        (regions, rows * columns),
        (
            WalkedBuffer("x", inp(0), dtype, "r"), WalkedBuffer("corners", inp(1), dtype, "r"),
            WalkedBuffer("index", inp(2), INT64, "r"), WalkedBuffer("y", out(0), dtype, "w"),
        ),
        traits,
        looks=not known,
        offsets=(("r", (1, 0)), ("cell", (0, 1))),
        ints=(
            ("images", images), ("C", channels), ("H", high), ("W", wide), ("rows", rows), ("columns", columns),
            ("ratio", attributes.get("sampling_ratio", 0)), ("scale_bits", int(np.float32(scale).view(np.int32))),
            ("halved", int(_halves(attributes))),
        ),
        work=16 * channels,
    )  # fmt: skip
    return Impl("a cell of a region", () if launch is None else (launch,))


def _pooled(dtype: DataType, scale: float, *, greatest: bool, known: bool) -> str:
    """Return statements that pool a cell. Places are calculated as the reference does it, each operation rounded: how
    many samples there are hangs on it.

    Args:
        known: Whether the images' indices are known to be in range.
    """
    t, name = compute_type(dtype), dtype.name
    seen = [f"w{i} * LOAD({name}, x, p{i} + k * H * W)" for i in range(4)]
    if greatest:
        start, end = "-INFINITY", "if (many < rest && a[k] < 0) a[k] = 0;"
        add = "{ " + " ".join(f"v = {v}; if (v > a[k] || v != v) a[k] = v;" for v in seen) + " }"
    else:
        start, end, add = "0", "a[k] /= rest;", f"a[k] += {' + '.join(seen)};"
    corners = " ".join(
        f"const {t} {n} = LOAD({name}, corners, r * 4 + {i}) * scale - ({t})(halved ? 0.5f : 0.0f);"
        for i, n in enumerate(("x1", "y1", "x2", "y2"))
    )
    return f"""{{
{EACH_ROUNDED}
      long b = index[r];
      {clamped("b", "images", "r", known=known)}
      const int row = cell / columns, column = cell - row * columns;
      const {t} scale = {f"{scale!r}" if dtype is FLOAT64 else "as_float(scale_bits)"};
      {corners}
      const int finite = isfinite(x2 - x1) && isfinite(y2 - y1);
      {_axis(t, "h", "y", "H", "rows", "row")}
      {_axis(t, "w", "x", "W", "columns", "column")}
      const {t} rest = n_h * n_w;
      for (int c0 = 0; c0 < C; c0 += {_CHANNELS}) {{
        const int first = ((int)b * C + c0) * H * W, count = min({_CHANNELS}, C - c0);
        {t} a[{_CHANNELS}], many = 0{", v" if greatest else ""};
        for (int k = 0; k < count; k++) a[k] = {start};
        for (int i = from_h; i < until_h; i++) {{
          {_sample(t, "h", "i", "H")}
          for (int j = from_w; j < until_w; j++) {{
            {_sample(t, "w", "j", "W")}
            const {t} w0 = (1 - ahead_h) * (1 - ahead_w), w1 = (1 - ahead_h) * ahead_w;
            const {t} w2 = ahead_h * (1 - ahead_w), w3 = ahead_h * ahead_w;
            const int p0 = first + low_h * W + low_w, p1 = first + low_h * W + high_w;
            const int p2 = first + high_h * W + low_w, p3 = first + high_h * W + high_w;
            for (int k = 0; k < count; k++) {add}
            many++;
          }}
        }}
        for (int k = 0; k < count; k++) {{
          if (rest > 0) {{ {end} }} else a[k] = 0;
          STORE({name}, y, ((r * C + c0 + k) * rows + row) * columns + column, finite ? a[k] : NAN);
        }}
      }}
    }}"""


def _axis(t: str, a: str, corner: str, size: str, outs: str, at: str) -> str:
    """Return statements that find the samples of a cell along an axis, and which of them may be in the image."""
    return f"""const {t} length_{a} = halved ? {corner}2 - {corner}1 : fmax({corner}2 - {corner}1, ({t})1);
      const {t} bin_{a} = length_{a} / ({t}){outs}, base_{a} = {corner}1 + ({t}){at} * bin_{a};
      const {t} n_{a} = ratio > 0 ? ({t})ratio : fmax(ceil(bin_{a}), ({t})0), apart_{a} = bin_{a} / fmax(n_{a}, ({t})1);
      int from_{a} = 0, until_{a} = finite ? convert_int_sat(n_{a}) : 0;
      if (apart_{a} > 0) {{
        from_{a} = clamp(convert_int_sat((-1 - base_{a}) / apart_{a} - 1), 0, until_{a});
        until_{a} = clamp(convert_int_sat(({size} - base_{a}) / apart_{a} + 1), from_{a}, until_{a});
      }}"""


def _sample(t: str, a: str, number: str, size: str) -> str:
    """Return statements that find the neighbours of a sample along an axis, and go on if it is outside."""
    return f"""const {t} place_{a} = base_{a} + (({t}){number} + ({t})0.5f) * bin_{a} / fmax(n_{a}, ({t})1);
          if (place_{a} < -1 || place_{a} > {size}) continue;
          const {t} at_{a} = clamp(place_{a}, ({t})0, ({t})({size} - 1));
          const int low_{a} = (int)at_{a}, high_{a} = min(low_{a} + 1, {size} - 1);
          const {t} ahead_{a} = at_{a} - low_{a};"""


def host_nbytes(call: Call) -> int:
    """What all samples of a region that may be inside see in the four corners around each; the result; an image in
    float64. Samples are more than half an element apart, unless the model says how many there are."""
    x, (result,) = call.shape(0), infer(call)
    ratio, samples = call.attributes.get("sampling_ratio", 0), 1
    for outs, size in zip(result[2:], x[2:], strict=True):
        samples *= outs * (ratio if ratio > 0 else 2 * size + 6)
    return 8 * (12 * x[1] * samples + 16 * samples + math.prod(x[1:]) + math.prod(result)) + TURN * result[0]


_ROIS = np.array([[0.3, 0.7, 9.2, 7.9], [2, 3, 4.6, 4.1], [5.2, 1.1, 9.9, 9.7]], np.float32)
_BATCHES = np.array([0, 1, 1], np.int64)
_FAR = np.array([[-30, -20, 40, 50], [3, 3, 2, 2], [7, 8, 7, 8], [20, 20, 30, 30]], np.float32)

OPERATOR = Operator(
    name="RoiAlign",
    infer=infer,
    reference=reference,
    implement=implement,
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
        Example(("f32[1,37,9,8]", _FAR, np.zeros(4, np.int64)), {"output_height": 3, "output_width": 3}, opset=16),
        Example(
            ("f32[1,3,9,8]", _FAR, np.zeros(4, np.int64)),
            {"output_height": 2, "output_width": 3, "mode": "max", "sampling_ratio": 3},
            opset=16,
        ),
    ),
)
