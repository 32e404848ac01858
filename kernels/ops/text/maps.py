"""Maps: made of rows of scores, and made into rows. A sequence of maps is what classifiers of scikit-learn give.

Source: ONNX ai.onnx.ml ZipMap-1, DictVectorizer-1, CastMap-1; ONNX Runtime for what they leave open.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrt.dims import Dim
from asyncrt.errors import ModelFormatError, ShapeError
from asyncrt.kernels.call import Attributes, Call, ValueUnknown
from asyncrt.kernels.operator import TURN, Example, Operator
from asyncrt.kinds import element_of, held, map_of, nbytes_of, sequence_of
from asyncrt.layout import FLOAT32, INT64, STRING, Array, DataType, Shape, show_shape

_CAST = {"TO_FLOAT": FLOAT32, "TO_STRING": STRING, "TO_INT64": INT64}


def _labels(attributes: Attributes) -> tuple[Sequence[Any], DataType]:
    texts = attributes.get("classlabels_strings", ())
    return (texts, STRING) if texts else (attributes.get("classlabels_int64s", ()), INT64)


def _one_value(call: Call) -> tuple[Shape]:
    return ((),)


def _zip(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x, (labels, _) = inputs[0], _labels(attributes)
    assert x is not None
    rows = x.reshape(1, -1) if x.ndim == 1 else x
    if rows.ndim != 2 or rows.shape[1] != len(labels):
        raise ShapeError(f"{len(labels)} labels for scores {show_shape(x.shape)}")
    return (held(tuple([dict(zip(labels, row, strict=True)) for row in rows.tolist()])),)


def _zip_type(attributes: Attributes, inputs: Sequence[DataType | None], outputs: int) -> tuple[DataType]:
    return (sequence_of(map_of(_labels(attributes)[1], FLOAT32)),)


def _zip_nbytes(call: Call) -> int:
    return 2 * TURN * (1 + sum([a.size for a in call.values if a is not None]))


def _row(call: Call) -> tuple[Shape]:
    return ((1, len(_vocabulary(call.attributes))),)


def _vocabulary(attributes: Attributes) -> Sequence[Any]:
    found: Sequence[Any] = attributes.get("string_vocabulary", ()) or attributes.get("int64_vocabulary", ())
    return found


def _vectorize(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    """Keys that are not there give 0, or an empty text."""
    x = inputs[0]
    assert x is not None
    found, words = x.item(), _vocabulary(attributes)
    texts = any(isinstance(value, str) for value in found.values())
    return (np.array([[found.get(word, "" if texts else 0) for word in words]], object if texts else None),)


def _vectorized_type(attributes: Attributes, inputs: Sequence[DataType | None], outputs: int) -> tuple[DataType]:
    element = element_of(inputs[0], "map")
    if element is None:
        raise ModelFormatError(f"it takes a map, not {inputs[0]}")
    return (element,)


def _cast_shape(call: Call) -> tuple[Shape]:
    if call.attributes.get("map_form", "DENSE") == "SPARSE":
        return ((1, call.attributes.get("max_map", 1)),)
    raise ValueUnknown(f"'{call.name}': as many columns as the map has keys")


def _cast(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    """Values in the order of their keys; where the form is sparse, each in the column of its key."""
    x = inputs[0]
    assert x is not None
    found: dict[int, Any] = x.item()
    dtype, most = _CAST[attributes.get("cast_to", "TO_FLOAT")], attributes.get("max_map", 1)
    if attributes.get("map_form", "DENSE") == "DENSE":
        values = [found[key] for key in sorted(found)]
    elif any(not 0 <= key < most for key in found):
        raise ShapeError(f"a key of {sorted(found)[:8]} is outside 0 to {most - 1} (max_map)")
    else:
        values = [found.get(key, "" if dtype is STRING else 0) for key in range(most)]
    return (np.array([[_as(value, dtype) for value in values]], dtype.numpy).reshape(1, len(values)),)


def _as(value: Any, dtype: DataType) -> Any:
    try:
        if dtype is STRING:
            return value if isinstance(value, str) else f"{value:f}"
        return float(value) if dtype is FLOAT32 else int(float(value))
    except ValueError as error:
        raise ShapeError(f"{value!r} is no {dtype}") from error


def _cast_type(attributes: Attributes, inputs: Sequence[DataType | None], outputs: int) -> tuple[DataType]:
    return (_CAST[attributes.get("cast_to", "TO_FLOAT")],)


def _map_nbytes(call: Call) -> int:
    given = sum([2 * nbytes_of(a) for a in call.values if a is not None])
    most = call.attributes.get("max_map", 1)
    return given + TURN * (len(_vocabulary(call.attributes)) + (0 if isinstance(most, Dim) else max(most, 0)))


_SCORES = np.array([[0.25, 0.75], [1.0, 0.0]], np.float32)

OPERATORS = (
    Operator(
        name="ZipMap", domain="ai.onnx.ml", infer=_one_value, reference=_zip, types=_zip_type, host_nbytes=_zip_nbytes,
        examples=(
            Example((_SCORES,), {"classlabels_strings": ("no", "yes")}, opset=1),
            Example((_SCORES,), {"classlabels_int64s": (3, 5)}, opset=1),
        ),
    ),
    Operator(
        name="DictVectorizer", domain="ai.onnx.ml", infer=_row, reference=_vectorize, types=_vectorized_type,
        host_nbytes=_map_nbytes,
        examples=(
            Example(({"a": 1.5, "c": 2.0},), {"string_vocabulary": ("a", "b", "c")}, opset=1),
            Example(({3: 1.5, 4: 2.0},), {"int64_vocabulary": (4, 3, 1)}, opset=1),
        ),
    ),
    Operator(
        name="CastMap", domain="ai.onnx.ml", infer=_cast_shape, reference=_cast, types=_cast_type,
        host_nbytes=_map_nbytes,
        examples=(
            Example(({3: 1.5, 0: 2.0},), {"cast_to": "TO_STRING"}, opset=1),
            Example(({3: 1.5, 0: 2.0},), {"map_form": "SPARSE", "max_map": 5}, opset=1),
        ),
    ),
)  # fmt: skip
