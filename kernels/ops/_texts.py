"""Numbers as texts, and texts as numbers, as ONNX Runtime writes and reads them.  Source: ONNX Cast-25."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from asyncrt.errors import ShapeError
from asyncrt.layout import BOOL, FLOAT32, STRING, Array, DataType, whole_numbers

from ..codegen.conversion import cast

_SHOWN = 60  # characters of a text in a message


def example(texts: Any) -> Array:
    """Return an array of texts for an operator's examples; NumPy before 2.0 has it of objects, and no operator of them."""
    return np.array(texts, STRING.numpy if STRING.numpy.kind == "T" else object)


def as_texts(x: Array) -> Array:
    """Return numbers as texts; texts stay."""
    if x.dtype == STRING.numpy:
        return x
    digits = 17 if x.dtype == np.float64 else 8
    floats = x.dtype.kind not in "iub"
    written = [_float(float(v), digits) if floats else str(int(v)) for v in x.reshape(-1)]
    return np.array(written, STRING.numpy).reshape(x.shape)


def _float(value: float, digits: int) -> str:
    if math.isnan(value):
        return "NaN"
    return format(value, f".{digits}g") if math.isfinite(value) else "INF" if value > 0 else "-INF"


def of_texts(x: Array, target: DataType) -> Array:
    """Return texts as numbers.

    Raises:
        ShapeError: One is no number, or none that the dtype has.
    """
    read = [_number(text, target) for text in x.reshape(-1).tolist()]
    if target.is_integer or target is BOOL:
        return np.array(read, target.numpy).reshape(x.shape)
    wide = np.array(read, np.float64)
    return cast(wide.astype(np.float32) if target is FLOAT32 else wide, target.numpy).reshape(x.shape)


def _number(text: str, target: DataType) -> Any:
    try:
        if not target.is_integer and target is not BOOL:
            return float(text)
        value, (least, most) = int(text), whole_numbers(target)
    except ValueError as error:
        raise ShapeError(f"{text[:_SHOWN]!r} is no {target}") from error
    if not least <= value <= most:
        raise ShapeError(f"{text[:_SHOWN]} is no {target}, which has {least} to {most}")
    return value
