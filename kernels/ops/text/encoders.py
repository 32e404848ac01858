"""Texts as numbers, and numbers as texts: labels, categories, one-hot rows. Looked up in a table, on the host.

Source: ONNX ai.onnx.ml LabelEncoder-4, OneHotEncoder-1, CategoryMapper-1; ONNX Runtime for what they leave open.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from asyncrt.errors import ModelFormatError, ShapeError
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.operator import TURN, Example, Operator
from asyncrt.kernels.ops._texts import example
from asyncrt.kernels.shapes import same_shape
from asyncrt.kinds import nbytes_of
from asyncrt.layout import FLOAT32, INT64, STRING, Array, DataType, Shape, dtype_of

_NAN = object()  # any NaN is the same key
_KINDS = {"tensor": None, "strings": STRING, "int64s": INT64, "floats": FLOAT32}
_DEFAULTS = {"strings": ("default_string", "_Unused"), "int64s": ("default_int64", -1), "floats": ("default_float", -0.0)}


def _key(value: Any) -> Hashable:
    return _NAN if value != value else value


def _side(attributes: Attributes, name: str) -> tuple[list[Any], DataType, str]:
    """Return a label encoder's keys or values, their dtype, and the attribute's ending."""
    for kind, dtype in _KINDS.items():
        given = attributes.get(f"{name}_{kind}")
        if given is None or (kind != "tensor" and not len(given)):
            continue
        if kind == "tensor":
            found = dtype_of(given.dtype)
            assert found is not None
            return given.reshape(-1).tolist(), found, kind
        assert dtype is not None
        return np.asarray(given, dtype.numpy).tolist(), dtype, kind
    raise ModelFormatError(f"it has no {name}")


def _default(attributes: Attributes, kind: str, dtype: DataType) -> Any:
    """Return what a text or number gets that is no key."""
    if kind == "tensor":
        tensor = attributes.get("default_tensor")
        return "_Unused" if tensor is None and dtype is STRING else _number(tensor, dtype)
    name, otherwise = _DEFAULTS[kind]
    return attributes.get(name, otherwise)


def _number(tensor: Array | None, dtype: DataType) -> Any:
    if tensor is None:
        return -0.0 if dtype.is_float else -1
    return tensor.reshape(-1).tolist()[0]


def _looked_up(x: Array, table: dict[Hashable, Any], otherwise: Any, dtype: DataType) -> Array:
    found = [table.get(_key(element), otherwise) for element in x.reshape(-1).tolist()]
    return np.array(found, dtype.numpy).reshape(x.shape)


def _encode(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    """The first of equal keys counts."""
    x = inputs[0]
    assert x is not None
    (keys, _, _), (values, dtype, kind) = _side(attributes, "keys"), _side(attributes, "values")
    if len(keys) != len(values):
        raise ShapeError(f"{len(keys)} keys and {len(values)} values")
    table = dict(zip(map(_key, reversed(keys)), reversed(values), strict=True))
    return (_looked_up(x, table, _default(attributes, kind, dtype), dtype),)


def _encoded_type(attributes: Attributes, inputs: Sequence[DataType | None], outputs: int) -> tuple[DataType]:
    return (_side(attributes, "values")[1],)


def _map_category(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x = inputs[0]
    assert x is not None
    names, numbers = attributes.get("cats_strings", ()), attributes.get("cats_int64s", ())
    if len(names) != len(numbers):
        raise ShapeError(f"{len(names)} texts and {len(numbers)} numbers")
    if x.dtype == STRING.numpy:
        table: dict[Hashable, Any] = dict(zip(names, numbers, strict=True))
        return (_looked_up(x, table, attributes.get("default_int64", -1), INT64),)
    table = dict(zip(numbers, names, strict=True))
    return (_looked_up(x, table, attributes.get("default_string", "_Unused"), STRING),)


def _mapped_type(attributes: Attributes, inputs: Sequence[DataType | None], outputs: int) -> tuple[DataType]:
    return (INT64 if inputs[0] is STRING else STRING,)


def _one_hot_shape(call: Call) -> tuple[Shape]:
    return ((*call.shape(0), len(call.attributes.get("cats_strings", ()))),)


def _one_hot(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x = inputs[0]
    assert x is not None
    names = attributes.get("cats_strings", ())
    place = {name: i for i, name in reversed(list(enumerate(names)))}
    rows = np.zeros((x.size, len(names)), np.float32)
    for row, text in enumerate(x.reshape(-1).tolist()):
        if text in place:
            rows[row, place[text]] = 1
        elif not attributes.get("zeros", 1):
            raise ShapeError(f"{text!r} is none of the categories, and zeros=0 allows no other")
    return (rows.reshape(*x.shape, len(names)),)


def _table_nbytes(call: Call) -> int:
    """For each element a turn, what it is and what it becomes; for each entry of the table as much."""
    entries = sum(len(v) for v in call.attributes.values() if isinstance(v, tuple))
    tensors = sum(v.size for v in call.attributes.values() if isinstance(v, np.ndarray))
    each = max([TURN, *map(_length, _texts(call.attributes))])
    width = len(call.attributes.get("cats_strings", ())) * 4 if call.attributes.get("zeros") is not None else 0
    given = sum([2 * nbytes_of(a) for a in call.values if a is not None])
    return given + math.prod(call.shape(0)) * (2 * each + width) + 2 * TURN * (entries + tensors)


def _texts(attributes: Attributes) -> Iterable[str]:
    lists: list[Sequence[Any]] = [v for v in attributes.values() if isinstance(v, tuple)]
    lists += [v.reshape(-1).tolist() for v in attributes.values() if isinstance(v, np.ndarray)]
    return (v for v in itertools.chain(*lists) if isinstance(v, str))


_length: Callable[[str], int] = len
_WORDS = example([["b", "a", "c"], ["a", "d", ""]])

OPERATORS = (
    Operator(
        name="LabelEncoder",
        domain="ai.onnx.ml",
        infer=same_shape,
        reference=_encode,
        types=_encoded_type,
        host_nbytes=_table_nbytes,
        examples=(
            Example((_WORDS,), {"keys_strings": ("a", "b"), "values_int64s": (1, 2), "default_int64": 7}, opset=4),
            Example((_WORDS,), {"keys_strings": ("a", "b"), "values_floats": (1.5, 2.0)}, opset=4),
            Example(
                (np.array([1, 2, 3], np.int64),),
                {"keys_int64s": (1, 2), "values_strings": ("one", "two"), "default_string": "?"},
                opset=4,
            ),
        ),
    ),
    Operator(
        name="CategoryMapper",
        domain="ai.onnx.ml",
        infer=same_shape,
        reference=_map_category,
        types=_mapped_type,
        host_nbytes=_table_nbytes,
        examples=(
            Example((_WORDS,), {"cats_strings": ("a", "b"), "cats_int64s": (1, 2)}, opset=1),
            Example(
                (np.array([1, 2, 3], np.int64),), {"cats_strings": ("a", "b"), "cats_int64s": (1, 2)}, opset=1
            ),
        ),
    ),
    Operator(
        name="OneHotEncoder",
        domain="ai.onnx.ml",
        infer=_one_hot_shape,
        reference=_one_hot,
        host_nbytes=_table_nbytes,
        examples=(Example((_WORDS,), {"cats_strings": ("a", "b", "d")}, opset=1),),
    ),
)
