"""How do tensors look on the wire? Names of datatypes, raw bytes and JSON, to arrays and back; pure functions.

Raw tensors are little-endian and row-major. Numbers in JSON must be what their datatype can hold: nothing is truncated,
rounded to an integer or parsed from a text.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from asyncrt import layout
from asyncrt.arguments import shown
from asyncrt.errors import ModelTypeError
from asyncrt.layout import Array, DataType
from asyncrt.serve.errors import BadRequest

Raw: TypeAlias = bytes | bytearray | memoryview

_NAMES = {
    "BOOL": layout.BOOL,
    "UINT8": layout.UINT8,
    "UINT16": layout.UINT16,
    "UINT32": layout.UINT32,
    "UINT64": layout.UINT64,
    "INT8": layout.INT8,
    "INT16": layout.INT16,
    "INT32": layout.INT32,
    "INT64": layout.INT64,
    "FP16": layout.FLOAT16,
    "FP32": layout.FLOAT32,
    "FP64": layout.FLOAT64,
    "BF16": layout.BFLOAT16,
}
DATATYPES = tuple(_NAMES)
_OF = {dtype: name for name, dtype in _NAMES.items()}
_MOST_AXES = 32
_LARGEST = (1 << 62) - 1  # elements
assert sys.byteorder == "little", "raw tensors are little-endian, and taken as they are"


def name_of(dtype: DataType) -> str:
    """Return the protocol's name of a dtype.

    Raises:
        ModelTypeError: It has none.
    """
    if dtype not in _OF:
        raise ModelTypeError(f"tensors of the server cannot be {dtype}", hint=f"they are {', '.join(_NAMES)}")
    return _OF[dtype]


def datatype(name: Any, what: str) -> DataType:
    """Return the dtype of that name.

    Args:
        what: Which tensor it is, for messages.
    """
    found = _NAMES.get(name) if isinstance(name, str) else None
    if found is None:
        hint = "models have no tensors of texts here" if name == "BYTES" else ""
        raise BadRequest(f"{what} has the datatype {shown(name)}; there are {', '.join(_NAMES)}", hint=hint)
    return found


def check_shape(shape: Any, what: str) -> tuple[int, ...]:
    """Return a shape as the protocol has it, a list of sizes."""
    if isinstance(shape, Sequence) and not isinstance(shape, str) and len(shape) <= _MOST_AXES:
        sizes = tuple(shape)
        # Without those of 0: an array without elements may not have axes of any size either.
        if all(type(s) is int and s >= 0 for s in sizes) and math.prod(filter(None, sizes)) <= _LARGEST:
            return sizes
    raise BadRequest(f"the shape of {what} must be up to {_MOST_AXES} sizes, got {shown(shape)}")


def from_raw(dtype: DataType, shape: tuple[int, ...], raw: Raw, what: str) -> Array:
    """Return the array of raw bytes, which it is a view of where they are aligned."""
    expected = math.prod(shape) * dtype.itemsize
    if len(raw) != expected:
        raise BadRequest(f"{what} has {len(raw)} bytes; {name_of(dtype)}{list(shape)} has {expected}")
    array: Array = np.frombuffer(raw, np.uint8)
    if dtype is layout.BOOL and array.size and array.max() > 1:
        raise BadRequest(f"{what} is BOOL and has bytes other than 0 and 1")
    array = array.view(dtype.numpy).reshape(shape)
    return array if array.flags.aligned else array.copy()  # a tensor may begin anywhere in a body


def to_raw(array: Array) -> memoryview:
    """Return an array's bytes."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).data


def from_json(dtype: DataType, shape: tuple[int, ...], data: Any, what: str) -> Array:
    """Return the array of numbers in JSON, nested as the shape is, or flat."""
    if not isinstance(data, list):
        raise BadRequest(f"the data of {what} must be a list, got {shown(data)}")
    try:
        found = np.array(data) if data else np.empty(0, dtype.numpy)
    except (ValueError, OverflowError) as error:
        raise BadRequest(f"the data of {what} is no array of numbers: its lists differ in length") from error
    if found.size != math.prod(shape) or (found.ndim > 1 and found.shape != shape):
        raise BadRequest(f"the data of {what} is of shape {list(found.shape)}, but its shape says {list(shape)}")
    return _converted(dtype, found, data, what).reshape(shape)


def _converted(dtype: DataType, found: Array, data: Any, what: str) -> Array:
    if not found.size:
        return found.astype(dtype.numpy)
    if dtype is layout.BOOL and found.dtype.kind == "b":
        return found
    if dtype.is_integer and found.dtype.kind in "iufO":
        return _integers(dtype, found, data, what)
    if dtype.is_float and found.dtype.kind in "iuf":
        with np.errstate(over="ignore"):
            numbers = found.astype(dtype.numpy)
        if np.isfinite(found).all() and not np.isfinite(numbers.astype(np.float64)).all():
            raise BadRequest(f"the data of {what} has numbers beyond the range of {name_of(dtype)}")
        return numbers
    raise BadRequest(f"the data of {what} must be {name_of(dtype)}, but is not")


def _integers(dtype: DataType, found: Array, data: Any, what: str) -> Array:
    if found.dtype.kind not in "iu":  # integers of more than 63 bits beside others become floats, or objects
        found = np.array(data, dtype=object).reshape(-1)
        if not all(type(x) is int for x in found):
            raise BadRequest(f"the data of {what} must be {name_of(dtype)}, but not all of it are integers")
    return narrowed(dtype, found, what)


def narrowed(dtype: DataType, found: Array, what: str) -> Array:
    """Return integers as that dtype.

    Raises:
        BadRequest: It cannot hold one of them.
    """
    bits = 8 * dtype.itemsize
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if dtype.numpy.kind == "i" else (0, (1 << bits) - 1)
    if found.size and not least <= int(found.min()) <= int(found.max()) <= most:
        raise BadRequest(f"the data of {what} has numbers beyond the range of {name_of(dtype)}")
    return found.astype(dtype.numpy)


def to_json(array: Array) -> list[Any]:
    """Return an array's elements in one flat list; narrow floats as the numbers that they are."""
    flat = array.reshape(-1)
    if flat.dtype.itemsize == 2 and flat.dtype.kind not in "iu":
        flat = flat.astype(np.float32)
    found: list[Any] = flat.tolist()
    return found
