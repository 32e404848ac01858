"""What a tensor looks like: its dtype and its shape. No bytes, no device.

The same `Layout` serves a request, where every dim is an int, and loading, where a dim may be a `Dim`
(a *partial shape*). A shape of None is one of unknown rank; a request never sees it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import attrs
import ml_dtypes
import numpy as np
import numpy.typing as npt

from asyncrt.dims import Dim

Array: TypeAlias = npt.NDArray[Any]
Shape: TypeAlias = tuple[int, ...]
PartialShape: TypeAlias = tuple[int | Dim, ...]


@attrs.frozen(eq=False)
class DataType:
    """An element type; each exists once, so that identity is equality.

    Attributes:
        name: As in ONNX's documentation, in lower case: ``float32``.
        numpy: The NumPy dtype.
        c: The OpenCL C type it is stored as.
        onnx: The number of the type in `onnx.TensorProto`.
        bits: Of an element in a file, for the narrow types; else 0.
    """

    name: str
    numpy: np.dtype[np.generic]
    c: str
    onnx: int
    bits: int = 0
    itemsize: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "itemsize", self.numpy.itemsize)

    def __repr__(self) -> str:
        return self.name

    @property
    def is_float(self) -> bool:
        return self in (FLOAT16, BFLOAT16, FLOAT32, FLOAT64)

    @property
    def is_narrow(self) -> bool:
        """Whether it is one of the narrow types."""
        return self.bits > 0

    @property
    def is_on_host(self) -> bool:
        """Whether no kernel takes it."""
        return self.bits > 0 or self.numpy.kind in "OT"

    @property
    def is_integer(self) -> bool:
        return self.numpy.kind in "iu"


FLOAT32 = DataType("float32", np.dtype(np.float32), "float", 1)
UINT8 = DataType("uint8", np.dtype(np.uint8), "uchar", 2)
INT8 = DataType("int8", np.dtype(np.int8), "char", 3)
UINT16 = DataType("uint16", np.dtype(np.uint16), "ushort", 4)
INT16 = DataType("int16", np.dtype(np.int16), "short", 5)
INT32 = DataType("int32", np.dtype(np.int32), "int", 6)
INT64 = DataType("int64", np.dtype(np.int64), "long", 7)
BOOL = DataType("bool", np.dtype(np.bool_), "uchar", 9)
FLOAT16 = DataType("float16", np.dtype(np.float16), "half", 10)
FLOAT64 = DataType("float64", np.dtype(np.float64), "double", 11)
UINT32 = DataType("uint32", np.dtype(np.uint32), "uint", 12)
UINT64 = DataType("uint64", np.dtype(np.uint64), "ulong", 13)
BFLOAT16 = DataType("bfloat16", np.dtype(ml_dtypes.bfloat16), "ushort", 16)

DATA_TYPES: tuple[DataType, ...] = (
    FLOAT32, UINT8, INT8, UINT16, INT16, INT32, INT64, BOOL, FLOAT16, FLOAT64, UINT32, UINT64, BFLOAT16,
)  # fmt: skip

def _narrow(name: str, numpy: str, number: int, bits: int = 8) -> DataType:
    found = getattr(ml_dtypes, numpy, None)
    return DataType(name, np.dtype(np.void if found is None else found), "uchar", number, bits)


NARROW_TYPES: tuple[DataType, ...] = tuple(
    t
    for t in (
        _narrow("float8e4m3fn", "float8_e4m3fn", 17), _narrow("float8e4m3fnuz", "float8_e4m3fnuz", 18),
        _narrow("float8e5m2", "float8_e5m2", 19), _narrow("float8e5m2fnuz", "float8_e5m2fnuz", 20),
        _narrow("uint4", "uint4", 21, 4), _narrow("int4", "int4", 22, 4), _narrow("float4e2m1", "float4_e2m1fn", 23, 4),
        _narrow("float8e8m0", "float8_e8m0fnu", 24), _narrow("uint2", "uint2", 25, 2), _narrow("int2", "int2", 26, 2),
    )
    if t.numpy.itemsize == 1  # an older ml_dtypes has not all of them
)  # fmt: skip
"""Types of 8 bits and fewer that kernels do not take: nodes that have to do with them run on the host. Each element has
a byte of its own in memory; files pack those of fewer bits."""

OBJECT = np.dtype(object)
_TEXTS: Any = getattr(np.dtypes, "StringDType", lambda: np.dtype(np.void))()
STRING = DataType("string", _TEXTS, "", 8)
"""Texts, which only the host has. An older NumPy than 2.0 has no arrays of them."""

_EVERY = (*DATA_TYPES, *NARROW_TYPES, *([STRING] if STRING.numpy.kind == "T" else []))
_BY_NUMPY = {t.numpy: t for t in _EVERY}
_BY_ONNX = {t.onnx: t for t in _EVERY}
_BY_NAME = {t.name: t for t in _EVERY}


def dtype_of(dtype: npt.DTypeLike) -> DataType | None:
    """Return the `DataType` of a NumPy dtype, or None if asyncrt has none."""
    return _BY_NUMPY.get(np.dtype(dtype))


def dtype_from_onnx(number: int) -> DataType | None:
    """Return the `DataType` of a number of `onnx.TensorProto.DataType`, or None if asyncrt has none."""
    return _BY_ONNX.get(number)


def dtype_named(name: str) -> DataType:
    """Return the `DataType` of that name; `KeyError` if asyncrt has none."""
    return _BY_NAME[name]


class Layout(NamedTuple):
    """A dtype and a shape, row-major and dense."""

    dtype: DataType
    shape: Shape

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def count(self) -> int:  # type: ignore[override]  # tuple.count, which nobody asks of a layout
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype.name}{show_shape(self.shape)}"


_WHOLE = {FLOAT16: 11, BFLOAT16: 8, FLOAT32: 24, FLOAT64: 53}  # bits of a number that is written out


def whole_numbers(dtype: DataType) -> tuple[int, int]:
    """Return the least and the greatest whole number between which *dtype* has all."""
    if dtype in _WHOLE:
        most = 1 << _WHOLE[dtype]
        return -most, most
    if dtype is BOOL:
        return 0, 1
    limits = np.iinfo(dtype.name)
    return int(limits.min), int(limits.max)


class PartialLayout(NamedTuple):
    """A dtype and a partial shape: what is known of a tensor before a request. Both may be unknown."""

    dtype: DataType | None
    shape: PartialShape | None

    def __str__(self) -> str:
        return f"{self.dtype or '?'}{show_shape(self.shape)}"

    @property
    def is_static(self) -> bool:
        return self.shape is not None and not any(isinstance(d, Dim) for d in self.shape)


def layout_of(array: Array) -> Layout:
    """Return the layout of a NumPy array whose dtype asyncrt has."""
    return Layout(_BY_NUMPY[array.dtype], array.shape)


def show_shape(shape: Iterable[object] | None) -> str:
    """Return ``[2,seq,8]``, or ``[...]`` for an unknown rank."""
    return "[...]" if shape is None else "[" + ",".join(str(d) for d in shape) + "]"


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a dense tensor of *shape*."""
    strides, step = [0] * len(shape), 1
    for axis in range(len(shape) - 1, -1, -1):
        strides[axis] = step
        step = step * shape[axis]
    return tuple(strides)
