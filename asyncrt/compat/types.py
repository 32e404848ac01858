"""How does ONNX Runtime write a type? As ONNX's schemas do: `tensor(float)`, `seq(map(int64,tensor(float)))`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from .errors import Refused

STRING: int = onnx.TensorProto.STRING


def element_name(number: int) -> str:
    """Return the name of an element type: ``float``, ``int64``."""
    return str(onnx.TensorProto.DataType.Name(number)).lower()


def tensor_type(number: int) -> str:
    """Return ``tensor(float)``."""
    return f"tensor({element_name(number)})"


def type_string(proto: onnx.TypeProto) -> str:
    """Return a type of a model's input or output as ONNX Runtime writes it; nothing if the model says none."""
    kind = proto.WhichOneof("value")
    if kind == "tensor_type":
        return tensor_type(proto.tensor_type.elem_type) if proto.tensor_type.elem_type else ""
    if kind == "sparse_tensor_type":
        return f"sparse_tensor({element_name(proto.sparse_tensor_type.elem_type)})"
    if kind == "sequence_type":
        return f"seq({type_string(proto.sequence_type.elem_type)})"
    if kind == "optional_type":
        return f"optional({type_string(proto.optional_type.elem_type)})"
    if kind == "map_type":
        return f"map({element_name(proto.map_type.key_type)},{type_string(proto.map_type.value_type)})"
    return ""


def number_of(dtype: npt.DTypeLike) -> int:
    """Return ONNX's number of a NumPy dtype.

    Raises:
        Refused: ONNX has no such dtype.
    """
    found = np.dtype(dtype)
    if found.kind in "OUST":
        return STRING
    try:
        return int(helper.np_dtype_to_tensor_dtype(found.newbyteorder("=")))
    except (KeyError, ValueError) as error:
        raise Refused(f"Numpy_type {found} can't be converted to MLDataType.") from error


def dtype_of(number: int) -> np.dtype[Any]:
    """Return the NumPy dtype of ONNX's number of it; texts are objects.

    Raises:
        Refused: There is no such number.
    """
    if number == STRING:
        return np.dtype(object)
    try:
        dtype: np.dtype[Any] = np.dtype(helper.tensor_dtype_to_np_dtype(number))
    except (KeyError, ValueError) as error:
        raise Refused(f"No corresponding Numpy type for Tensor Type. {number}") from error
    return dtype


def dtype_named(type: str) -> np.dtype[Any]:
    """Return the NumPy dtype of a tensor of a type, such as ``tensor(float)``."""
    number: int = onnx.TensorProto.DataType.Value(type.removeprefix("tensor(").removesuffix(")").upper())
    return dtype_of(number)


def element_dtype(element: Any) -> np.dtype[Any]:
    """Return the dtype of what programs name an element type by: a NumPy type, its name, or ONNX's number."""
    dtype: np.dtype[Any] = dtype_of(element) if isinstance(element, int) else np.dtype(element)
    return dtype
