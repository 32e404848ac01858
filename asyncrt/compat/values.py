"""What is an `OrtValue` here? An array of the host, or what else a model takes and gives, with its type.

One class stands for `onnxruntime.OrtValue` and for the one of the C API inside it.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .devices import OrtMemoryInfo, check_on_host
from .errors import NotImplemented as Missing
from .errors import Refused, WrongType, WrongValue, error
from .types import STRING, dtype_of, element_dtype, number_of, tensor_type

_ONLY_TENSORS = "Only OrtValues that are Tensors are currently supported"


class OrtValue:
    """A tensor, or another value of a model. Tensors share their memory with the array that they are made from.

    Args:
        ortvalue: Another one, whose value this has as well.
    """

    __slots__ = ("__weakref__", "_number", "_type", "_value")
    _value: Any
    _type: str
    _number: int | None

    def __init__(self, ortvalue: OrtValue, numpy_obj: Any = None, session: Any = None) -> None:
        if not isinstance(ortvalue, OrtValue):
            raise WrongValue("`Provided ortvalue` needs to be of type `OrtValue`")
        self._value, self._type, self._number = ortvalue._value, ortvalue._type, ortvalue._number

    @classmethod
    def of(cls, value: Any, type: str = "", number: int | None = None) -> OrtValue:
        """Return what holds *value*; of an array that is the array itself.

        Args:
            type: As ONNX Runtime writes it, if it is not that of an array.
            number: ONNX's number of the element type, if it is not the array's.
        """
        self = cls.__new__(cls)
        if isinstance(value, np.ndarray):
            number = number_of(value.dtype) if number is None else number
            type = tensor_type(number)
        self._value, self._type, self._number = value, type, number
        return self

    @classmethod
    def ortvalue_from_numpy(
        cls, numpy_obj: Any, /, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        check_on_host(device_type)
        if not isinstance(numpy_obj, np.ndarray) or numpy_obj.dtype.kind in "OUST":
            raise Refused("Creation of OrtValues is currently only supported from non-string numpy arrays")
        return cls.of(np.asarray(numpy_obj, order="C"))

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data: np.ndarray[Any, Any], /, onnx_element_type: int) -> OrtValue:
        dtype = dtype_of(onnx_element_type)
        if data.dtype.itemsize != dtype.itemsize:
            raise Refused(f"Items size in the incoming array: {data.dtype.itemsize}, of the type: {dtype.itemsize}")
        return cls.of(data.view(dtype), number=onnx_element_type)

    @classmethod
    def ortvalue_from_shape_and_type(
        cls,
        shape: Sequence[int],
        element_type: Any,
        device_type: str = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
        memory_info: OrtMemoryInfo | None = None,
    ) -> OrtValue:
        if memory_info is None:
            check_on_host(device_type)
        if any(size < 0 for size in shape):
            raise Refused(f"Tensor shape.Size() must be >= 0, got {list(shape)}")
        dtype = element_dtype(element_type)
        return cls.of(np.zeros(tuple(shape), dtype), number=element_type if isinstance(element_type, int) else None)

    @classmethod
    def ort_value_from_sparse_tensor(cls, sparse_tensor: Any) -> OrtValue:
        raise error(Missing, "there are no sparse tensors here")

    @classmethod
    def from_dlpack(cls, data: Any, /) -> OrtValue:
        """Return what shares the memory of a tensor of another library, or of a capsule."""
        if isinstance(data, OrtValue):
            return cls(data)
        return cls.of(np.from_dlpack(data if hasattr(data, "__dlpack__") else _Capsule(data)))

    def as_sparse_tensor(self) -> Any:
        raise Refused("the OrtValue holds no sparse tensor")

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return the tensor, which shares its memory."""
        if not isinstance(self._value, np.ndarray):
            raise Refused(_ONLY_TENSORS)
        return self._value

    def to_python(self) -> Any:
        """Return what `InferenceSession.run()` takes and returns: an array, a list, a dict or None."""
        return self._value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = self.numpy()
        if copy is not None:
            return np.array(array, dtype=dtype, copy=copy)
        return array if dtype is None else np.asarray(array, dtype=dtype)

    def __dlpack__(self, *, stream: Any = None, **options: Any) -> Any:
        return self.numpy().__dlpack__(**options)

    def to_dlpack(self) -> Any:
        return self.numpy().__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, number = self.numpy().__dlpack_device__()
        return int(kind), number

    def update_inplace(self, data: np.ndarray[Any, Any] | OrtValue) -> None:
        """Copy *data* into the tensor's memory."""
        if isinstance(data, OrtValue):
            data = data.numpy()
        if not isinstance(data, np.ndarray):
            raise WrongType("data must be a numpy.ndarray or an OrtValue.")
        own = self.numpy()
        if data.shape != own.shape:
            raise Refused("The input size of numpy arrays does not match the size of the OrtValue.")
        if data.dtype != own.dtype:
            raise Refused(f"expected an array of {own.dtype}, got one of {data.dtype}")
        np.copyto(own, data)

    def data_ptr(self) -> int:
        return int(self.numpy().ctypes.data)

    def device_name(self) -> str:
        return "cpu"

    def shape(self) -> list[int]:
        return list(self.numpy().shape)

    def data_type(self) -> str:
        return self._type

    def element_type(self) -> int:
        if self._number is None:
            raise Refused(_ONLY_TENSORS)
        return self._number

    def tensor_size_in_bytes(self) -> int:
        if self._number == STRING:
            raise Refused("texts have no size in bytes")
        return int(self.numpy().nbytes)

    def has_value(self) -> bool:
        return self._value is not None

    def is_tensor(self) -> bool:
        return isinstance(self._value, np.ndarray)

    def is_sparse_tensor(self) -> bool:
        return False

    def is_tensor_sequence(self) -> bool:
        return isinstance(self._value, list)

    def _get_c_value(self) -> OrtValue:
        return self

    @property
    def _ortvalue(self) -> OrtValue:
        return self


class OrtValueVector(list[OrtValue]):
    """Several of them."""

    push_back = list.append

    def reserve(self, count: int) -> None:
        """Nothing has to be done for it."""

    def shrink_to_fit(self) -> None:
        """Nothing has to be done for it."""

    def element_type_at(self, index: int) -> int:
        return self[index].element_type()

    def dlpack_at(self, index: int) -> Any:
        return self[index].to_dlpack()


class SparseTensor:
    """What sparse tensors are in ONNX Runtime. There are none here."""

    def __init__(self, *values: Any) -> None:
        raise error(Missing, "there are no sparse tensors here")

    @classmethod
    def sparse_coo_from_numpy(cls, *values: Any) -> SparseTensor:
        return cls(*values)

    @classmethod
    def sparse_csr_from_numpy(cls, *values: Any) -> SparseTensor:
        return cls(*values)


class _Capsule:
    """A capsule of DLPack, as an object that gives it; it lies in the host's memory."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **options: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def at_address(address: int, element: Any, shape: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return memory of the caller's as an array."""
    dtype = element_dtype(element)
    nbytes = math.prod(shape) * dtype.itemsize
    memory = np.ctypeslib.as_array((ctypes.c_byte * nbytes).from_address(address))
    array: np.ndarray[Any, Any] = memory.view(dtype).reshape(tuple(shape))
    return array


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: Any = None) -> None:
    """Copy each of some tensors into another."""
    for source, target in zip(src, dst, strict=True):
        target.update_inplace(source)
