"""Window functions, and the matrix that turns a spectrum into mel bands. They run on the host.

The Nth of N elements of a periodic window would be the first again; of a symmetric window the last equals the first.

Source: ONNX HannWindow-17, HammingWindow-17, BlackmanWindow-17, MelWeightMatrix-17.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrt.errors import ShapeError, UnsupportedOperatorError
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.operator import TURN, Example, Operator
from asyncrt.kernels.shapes import check
from asyncrt.layout import FLOAT32, Array, DataType, Shape, dtype_from_onnx


def _dtype(attributes: Attributes) -> DataType:
    number = attributes.get("output_datatype", FLOAT32.onnx)
    dtype = dtype_from_onnx(number)
    if dtype is None:
        raise UnsupportedOperatorError(f"output_datatype {number} is not supported")
    return dtype


def types(attributes: Attributes, inputs: Sequence[DataType | None], outputs: int) -> Sequence[DataType]:
    return (_dtype(attributes),)


def infer(call: Call) -> tuple[Shape]:
    size = call.ints(0)[0]
    check(call, size >= 0, f"a window of {size} elements")
    return ((size,),)


def _reference(weights: tuple[float, ...], attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    """The sum of ``weights[k] * cos(2 pi k n / N)``."""
    length: Any = inputs[0]
    size = int(length.reshape(-1)[0])
    period = max(size if attributes.get("periodic", 1) else size - 1, 1)
    phase = 2 * np.pi * np.arange(size) / period
    total = sum(w * np.cos(k * phase) for k, w in enumerate(weights))
    return (np.asarray(total).astype(_dtype(attributes).numpy),)


def _window_nbytes(call: Call) -> int:
    """The phases, the cosines of one after the other, and their sum, in float64."""
    ((size,),) = infer(call)
    return 8 * 6 * size


def _mel_infer(call: Call) -> tuple[Shape]:
    return ((call.ints(1)[0] // 2 + 1, call.ints(0)[0]),)


def _mel_reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    """Each band is a triangle over the spectrum's bins; its corners are evenly spaced on the mel scale."""
    bands, length, rate, low, high = (float(i.reshape(-1)[0]) for i in inputs if i is not None)
    if bands < 0 or length < 0 or rate == 0 or not (-700 < low < math.inf and -700 < high < math.inf):
        raise ShapeError(f"{bands:g} mel bands of {length:g} samples at {rate:g} a second, from {low:g} to {high:g}")
    bins = int(length) // 2 + 1
    first, last = (2595 * math.log10(1 + f / 700) for f in (low, high))
    mels = first + np.arange(int(bands) + 2) * ((last - first) / (int(bands) + 2))
    corners = np.floor((length + 1) * 700 * (10 ** (mels / 2595) - 1) / rate).astype(np.int64)
    if len(corners) and not 0 <= corners.min() <= corners.max() < bins:
        raise ShapeError(f"mel bands reach beyond the {bins} bins of a spectrum")
    y = np.zeros((bins, int(bands)))
    for band, (left, centre, right) in enumerate(zip(corners, corners[1:], corners[2:], strict=False)):
        if left == centre:
            y[centre, band] = 1
        else:
            y[left : centre + 1, band] = np.arange(centre - left + 1) / (centre - left)
        if right > centre:
            y[centre:right, band] = (right - np.arange(centre, right)) / (right - centre)
    return (y.astype(_dtype(attributes).numpy),)


def _mel_nbytes(call: Call) -> int:
    """The matrix in float64 and in its dtype, what its largest band takes, and the corners of the bands."""
    ((bins, bands),) = _mel_infer(call)
    return 8 * (2 * max(bins, 0) * max(bands, 0) + 4 * max(bins, 0)) + (TURN + 64) * max(bands, 0)


def _i64(value: int) -> Array:
    return np.array(value, np.int64)


def _f32(value: float) -> Array:
    return np.array(value, np.float32)


_EXAMPLES = (
    Example((_i64(10),), opset=17),
    Example((_i64(11),), {"periodic": 0}, opset=17),
    Example((np.array(7, np.int32),), {"output_datatype": 11}, opset=17),
    Example((_i64(1),), opset=17),
)
OPERATORS = (
    *(
        Operator(
            name=name,
            infer=infer,
            reference=functools.partial(_reference, weights),
            host_nbytes=_window_nbytes,
            shape_infer_dependencies=(0,),
            types=types,
            examples=_EXAMPLES,
        )
        for name, weights in (
            ("HannWindow", (0.5, -0.5)),
            ("HammingWindow", (25 / 46, -21 / 46)),
            ("BlackmanWindow", (0.42, -0.5, 0.08)),
        )
    ),
    Operator(
        name="MelWeightMatrix",
        infer=_mel_infer,
        reference=_mel_reference,
        host_nbytes=_mel_nbytes,
        shape_infer_dependencies=(0, 1),
        types=types,
        examples=(
            Example((_i64(8), _i64(16), _i64(8192), _f32(0), _f32(4096)), opset=17),
            Example((_i64(4), _i64(64), _i64(16000), _f32(100), _f32(7000)), {"output_datatype": 11}, opset=17),
        ),
    ),
)
