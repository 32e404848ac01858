"""Tensors of which a file holds only what is not zero: the nodes that make them, which loading folds.

So what is judged before it is made anywhere is judged here: ten bytes can ask for more zeros than any memory holds.

Source: ONNX's SparseTensorProto, whose indices count elements or have one number for each axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from asyncrt.errors import ModelFormatError


def dense(sparse: onnx.SparseTensorProto, output: str, title: str, fresh: Callable[[str], str]) -> list[onnx.NodeProto]:
    """Return the nodes that make *output*.

    Args:
        title: Of the tensor, for messages and for the names of the nodes.
        fresh: Makes a name that nothing else has.

    Raises:
        ModelFormatError: Its indices do not fit its dims and values.
    """
    dims, places = list(sparse.dims), list(sparse.indices.dims)
    count = math.prod(sparse.values.dims)
    if any(d < 0 for d in dims):
        raise ModelFormatError(f"{title} has a negative dim: {dims}")
    if places not in ([count], [count, len(dims)]):
        raise ModelFormatError(f"{title} of shape {dims} has {count} values, and indices of shape {places}")
    linear = len(places) == 1
    nodes: list[onnx.NodeProto] = []

    def add(op: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        name = name or fresh(f"{title}/{op}")
        nodes.append(helper.make_node(op, list(inputs), [name], f"{title}/{op}_{len(nodes)}", **attributes))
        return name

    def numbers(*values: int) -> str:
        return add("Constant", value=numpy_helper.from_array(np.array(values, np.int64)))

    shape = numbers(*dims)
    try:
        zero = numpy_helper.from_array(np.zeros(1, helper.tensor_dtype_to_np_dtype(sparse.values.data_type)))
    except (KeyError, ValueError, TypeError) as error:
        raise ModelFormatError(f"{title} has a dtype that it cannot have") from error
    zeros = add("ConstantOfShape", numbers(math.prod(dims)) if linear else shape, value=zero)
    indices, values = add("Constant", value=sparse.indices), add("Constant", value=sparse.values)
    values = add("Reshape", values, numbers(-1))
    if not linear:
        add("ScatterND", zeros, indices, values, name=output)
        return nodes
    flat = add("ScatterND", zeros, add("Unsqueeze", indices, numbers(1)), values)
    add("Reshape", flat, shape, name=output)
    return nodes
