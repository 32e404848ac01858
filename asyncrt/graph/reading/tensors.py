"""The arrays of a model's tensors, in the file itself or beside it; nothing outside the model's folder is read."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from asyncrt.errors import ModelError, ModelFormatError, ModelTypeError
from asyncrt.layout import BOOL, UINT8, Array, DataType, dtype_from_onnx
from asyncrt.options import RuntimeOptions

from . import mapped
from .limits import check_rank, check_size


class TensorReader:
    """Reads tensors and keeps count of their bytes.

    Args:
        folder: Where external data may lie; None if the model did not come from a file.

    Attributes:
        other_files: Whether tensors lay there.
    """

    def __init__(self, folder: Path | None, options: RuntimeOptions) -> None:
        self._folder = folder
        self._options = options
        self._nbytes = 0
        self.other_files = False
        self._files: dict[Path, mapped.MappedFile | None] = {}

    def read(self, tensor: onnx.TensorProto, what: str, raw: Array | None = None) -> Array:
        """Return the array of *tensor*, which may be a part of a file; see `mapped.py`.

        Args:
            what: What it is, for messages: "initializer 'w'".
            raw: Its bytes, where it does not have them itself.
        """
        dtype = dtype_from_onnx(tensor.data_type)
        if dtype is None:
            raise ModelTypeError(f"{what} has dtype {dtype_name(tensor.data_type)}, which asyncrt lacks")
        shape = tuple(tensor.dims)
        if any(d < 0 for d in shape):
            raise ModelFormatError(f"{what} has a negative dim: {list(shape)}")
        check_rank(len(shape), what, self._options.max_rank)
        nbytes = math.prod(shape) * dtype.itemsize
        self._nbytes += nbytes
        check_size(self._nbytes, self._options, f"the model's data up to {what}")
        try:
            if dtype.bits in (2, 4):
                array = self._packed(tensor, what, raw, dtype, math.prod(shape))
            elif tensor.data_location == onnx.TensorProto.EXTERNAL:
                array = self._external(tensor, what, nbytes, dtype)
            elif raw is not None or tensor.HasField("raw_data"):
                raw = np.frombuffer(tensor.raw_data, np.uint8) if raw is None else raw
                if raw.nbytes != nbytes:
                    raise ModelFormatError(f"{what} of shape {list(shape)} needs {nbytes} bytes, it has {raw.nbytes}")
                array = np.frombuffer(raw, dtype.numpy)
            else:
                array = numpy_helper.to_array(tensor)
            array = np.ascontiguousarray(array).astype(dtype.numpy, copy=False).reshape(shape)
        except ModelError:
            raise
        except Exception as error:  # NumPy and onnx refuse with many classes
            raise ModelFormatError(f"{what} does not hold the data of its shape", detail=str(error)) from error
        if dtype is BOOL:
            array = array.view(np.uint8) != 0  # a byte may be anything in a file; to kernels true is 1
        return array

    def _packed(self, tensor: onnx.TensorProto, what: str, raw: Array | None, dtype: DataType, count: int) -> Array:
        """Return elements of which a byte has several, the first one in its lowest bits."""
        nbytes = -(-count * dtype.bits // 8)
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            data = self._external(tensor, what, nbytes, UINT8)
        elif raw is not None or tensor.HasField("raw_data"):
            data = np.frombuffer(tensor.raw_data, np.uint8) if raw is None else raw
        else:
            return np.asarray(numpy_helper.to_array(tensor))
        if data.nbytes != nbytes:
            raise ModelFormatError(f"{what} of shape {list(tensor.dims)} needs {nbytes} bytes, it has {data.nbytes}")
        shifts = np.arange(0, 8, dtype.bits, dtype=np.uint8)
        bits = ((data[:, None] >> shifts) & np.uint8((1 << dtype.bits) - 1)).reshape(-1)[:count]
        if dtype.name.startswith("float"):
            return bits.view(dtype.numpy)
        sign = 1 << (dtype.bits - 1) if dtype.name.startswith("int") else 0
        return ((bits.astype(np.int8) ^ sign) - sign).astype(dtype.numpy)

    def _external(self, tensor: onnx.TensorProto, what: str, nbytes: int, dtype: DataType) -> Array:
        fields = {entry.key: entry.value for entry in tensor.external_data}
        location = fields.get("location", "")
        self.other_files = True
        if self._folder is None:
            raise ModelFormatError(
                f"{what} lies in the external file '{location}', and the model was not given as a path",
                hint="load the model by its path, or put its tensors inside it",
            )
        try:
            path = (self._folder / location).resolve()
            offset, length = int(fields.get("offset", "0")), int(fields.get("length", str(nbytes)))
            if not location or Path(location).is_absolute() or not path.is_relative_to(self._folder):
                raise ModelFormatError(
                    f"{what} names the external file '{location}', outside the model's folder",
                    hint="put the file itself, not a link to it, beside the model",
                )
            if not path.is_file():
                raise ModelFormatError(f"{what} lies in '{location}', which is not beside the model")
            size = path.stat().st_size
            if length != nbytes or offset < 0 or offset + length > size:
                raise ModelFormatError(
                    f"{what} needs {nbytes} bytes of '{location}'; "
                    f"it names bytes {offset} to {offset + length} of {size}"
                )
            if path not in self._files:
                self._files[path] = mapped.map_file(path) if self._options.uses("map_files") else None
            file = self._files[path]
            if file is not None and length >= mapped.LEAST:
                return np.frombuffer(memoryview(file)[offset : offset + length], dtype.numpy)
            with path.open("rb") as f:
                f.seek(offset)
                return np.frombuffer(f.read(length), dtype.numpy)
        except (OSError, ValueError) as error:
            if isinstance(error, ModelError):
                raise
            raise ModelFormatError(f"{what} cannot be read from '{location}'", detail=str(error)) from error


def dtype_name(number: int) -> str:
    """Return the name of a number of `onnx.TensorProto.DataType`, also of those that asyncrt lacks."""
    try:
        return str(onnx.TensorProto.DataType.Name(number)).lower()
    except ValueError:
        return str(number)
