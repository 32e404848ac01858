"""How is a model changed before it is loaded, where a program says so? Each function changes the model it is given."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from asyncrt.compat.errors import Fail, error


def fix_dims(model: onnx.ModelProto, sizes: Mapping[str, int], denoted: Mapping[str, int]) -> None:
    """Give dims of inputs and outputs their sizes, by their names or denotations."""
    for info in (*model.graph.input, *model.graph.output):
        for dim in info.type.tensor_type.shape.dim:
            size = sizes.get(dim.dim_param) if dim.dim_param else denoted.get(dim.denotation)
            if size is not None:
                dim.dim_value = size


def set_initializers(model: onnx.ModelProto, values: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Give initializers other values, or names that nodes read without one.

    Raises:
        Fail: An initializer has another dtype or shape.
    """
    there = {tensor.name: tensor for tensor in model.graph.initializer}
    for name, value in values.items():
        tensor = numpy_helper.from_array(np.ascontiguousarray(value), name)
        before = there.get(name)
        if before is None:
            model.graph.initializer.append(tensor)
            continue
        if (before.data_type, list(before.dims)) != (tensor.data_type, list(tensor.dims)):
            raise error(
                Fail,
                f"initializer '{name}' is {onnx.TensorProto.DataType.Name(before.data_type)}{list(before.dims)},"
                f" the given one {value.dtype}{list(value.shape)}",
            )
        before.CopyFrom(tensor)


def make_inputs(model: onnx.ModelProto, names: Collection[str]) -> None:
    """Make inputs without a default of those that have one."""
    graph = model.graph
    kept = [tensor for tensor in graph.initializer if tensor.name not in names]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def loosen(model: onnx.ModelProto) -> None:
    """Let inputs have what ONNX Runtime lets them: dims of one name that differ, and any shape where none is said."""
    for info in model.graph.input:
        tensor = info.type.tensor_type
        for dim in tensor.shape.dim:
            dim.ClearField("dim_param")
        if not tensor.shape.dim:
            tensor.ClearField("shape")
