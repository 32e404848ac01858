"""Values that are no tensors of numbers: texts, sequences, optionals and maps; their types, and how they are held.

Such a value is a tensor to all that goes between nodes, one that only the host holds. Texts are NumPy's `StringDType`.
A sequence, an optional or a map is one element of dtype object: a tuple of what is in a sequence, a list of one or
none for an optional, a dict for a map. It has no dims, so shapes, plans and subgraphs treat it as they do a scalar.
"""

from __future__ import annotations

import functools
from typing import Any

import attrs
import numpy as np

from asyncrt.layout import OBJECT, STRING, Array, DataType


@attrs.frozen(eq=False, repr=False)
class ValueType(DataType):
    """The type of a sequence, an optional or a map; each exists once, as dtypes do.

    Attributes:
        kind: "seq", "optional" or "map".
        element: The type of what it holds.
        key: The dtype of a map's keys.
    """

    kind: str = ""
    element: DataType = STRING
    key: DataType | None = None


@functools.cache
def _type(kind: str, element: DataType, key: DataType | None = None) -> ValueType:
    inside = element.name if key is None else f"{key.name}, {element.name}"
    return ValueType(f"{kind}({inside})", OBJECT, "", 0, kind=kind, element=element, key=key)


def sequence_of(element: DataType) -> ValueType:
    """Return the type of a sequence of these."""
    return _type("seq", element)


def optional_of(element: DataType) -> ValueType:
    """Return the type of what may be absent."""
    return _type("optional", element)


def map_of(key: DataType, element: DataType) -> ValueType:
    """Return the type of a map; what it holds are numbers or texts, not tensors."""
    return _type("map", element, key)


def is_plain(dtype: DataType | None) -> bool:
    """Whether a value of the type is a tensor of numbers, which a device could hold."""
    return dtype is None or dtype.numpy.kind not in "OT"


def element_of(dtype: DataType | None, kind: str) -> DataType | None:
    """Return what a sequence, an optional or a map (as *kind* says) holds; None if *dtype* is none of these."""
    return dtype.element if isinstance(dtype, ValueType) and dtype.kind == kind else None


def fits(dtype: DataType | None, declared: DataType | None) -> bool:
    """Whether a value of a type may be where a file declares another: what is there may be said to be optional."""
    return dtype is declared or (dtype is not None and element_of(declared, "optional") is dtype)


# Values as they are held.


def held(value: tuple[Any, ...] | list[Any] | dict[Any, Any]) -> Array:
    """Return a sequence, an optional or a map as values are held."""
    array = np.empty((), object)
    array[()] = value
    return array


def nbytes_of(array: Array) -> int:
    """Return how many bytes a value keeps, with what its elements refer to; a view is not copied for it."""
    if array.dtype.kind == "T":
        return array.nbytes + sum([len(text) for text in array.flat])
    return array.nbytes + (sum(map(_held_nbytes, array.reshape(-1).tolist())) if array.dtype.kind == "O" else 0)


def _held_nbytes(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return nbytes_of(value) + _OBJECT
    if isinstance(value, tuple | list):
        return sum(map(_held_nbytes, value))
    return 2 * _OBJECT * len(value) if isinstance(value, dict) else _OBJECT


_OBJECT = 64  # bytes of a small object of Python's


# Values as callers get them.


def shown_to_caller(dtype: DataType | None, array: Array) -> Any:
    """Return a value as callers get it: lists, dicts, None, and arrays of their own; texts are of dtype object."""
    if not isinstance(dtype, ValueType):
        return array.astype(object) if dtype is STRING else array
    return _out(dtype, array.item())


def _out(dtype: DataType, value: Any) -> Any:
    if not isinstance(dtype, ValueType):
        return value.astype(object) if dtype is STRING else np.array(value)
    match dtype.kind:
        case "seq":
            return [_out(dtype.element, each) for each in value]
        case "optional":
            return _out(dtype.element, value[0]) if value else None
    return dict(value)
