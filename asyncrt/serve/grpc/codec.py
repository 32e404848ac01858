"""A request from a message of gRPC, and an answer as one; pure functions.

Tensors come as raw bytes, all of them or none, or as typed contents; answers have raw bytes, as other servers' have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

from asyncrt.arguments import shown
from asyncrt.layout import Array, DataType, layout_of
from asyncrt.serve.errors import BadRequest
from asyncrt.serve.protocol.datatypes import check_shape, datatype, from_raw, name_of, narrowed, to_raw
from asyncrt.serve.protocol.messages import InferRequest, InferResponse, Parameters, check_id

from .stubs import Message, pb

#: Where the protocol has the elements of each datatype.
_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}


def parameters_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of parameters, of whichever kind each is."""
    found = {}
    for name, parameter in given.items():
        kind = parameter.WhichOneof("parameter_choice")
        if kind is not None:
            found[name] = getattr(parameter, kind)
    return found


def parse_infer(message: Message, remaining_s: float | None = None) -> InferRequest:
    """Return the request that a message is.

    Args:
        remaining_s: Seconds that its caller waits, if it has said so.

    Raises:
        BadRequest: It says what is wrong, and where.
    """
    asked = Parameters.of(parameters_of(message.parameters))
    if remaining_s is not None and (asked.timeout_s is None or remaining_s < asked.timeout_s):
        asked = attrs.evolve(asked, timeout_s=max(remaining_s, 1e-6))
    names = [tensor.name for tensor in message.inputs]
    wanted = [tensor.name for tensor in message.outputs]
    if len(set(names)) < len(names) or len(set(wanted)) < len(wanted):
        raise BadRequest("inputs or outputs have a name twice")
    if any("classification" in tensor.parameters for tensor in message.outputs):
        raise BadRequest("there is no classification of outputs; ask for the output itself")
    return InferRequest(_inputs(message), dict.fromkeys(wanted), check_id(message.id), asked)


def _inputs(message: Message) -> dict[str, Array]:
    raws = message.raw_input_contents
    if raws and len(raws) != len(message.inputs):
        raise BadRequest(f"there are {len(message.inputs)} inputs and {len(raws)} raw_input_contents")
    arrays: dict[str, Array] = {}
    for i, tensor in enumerate(message.inputs):
        what = f"input {shown(tensor.name)}"
        dtype, shape = datatype(tensor.datatype, what), check_shape(list(tensor.shape), what)
        if raws:
            if tensor.HasField("contents"):
                raise BadRequest(f"{what} has contents, and there are raw_input_contents")
            arrays[tensor.name] = from_raw(dtype, shape, raws[i], what)
        else:
            arrays[tensor.name] = _typed(dtype, shape, tensor.contents, what)
    return arrays


def _typed(dtype: DataType, shape: tuple[int, ...], contents: Message, what: str) -> Array:
    field = _CONTENTS.get(name_of(dtype))
    if field is None:
        raise BadRequest(f"{what} is {name_of(dtype)}, which has no typed contents; send raw_input_contents")
    values = getattr(contents, field)
    expected = math.prod(shape)
    if len(values) != expected:
        raise BadRequest(f"{what} has {len(values)} {field}; {name_of(dtype)}{list(shape)} has {expected}")
    found: Array = np.array(values).reshape(shape)
    return narrowed(dtype, found, what) if dtype.is_integer else found.astype(dtype.numpy)


def format_infer(response: InferResponse) -> Message:
    """Return an answer as a message."""
    message = pb.ModelInferResponse(model_name=response.model, model_version=response.version, id=response.id)
    for name, array in response.outputs.items():
        message.outputs.add(name=name, datatype=name_of(layout_of(array).dtype), shape=array.shape)
        message.raw_output_contents.append(bytes(to_raw(array)))
    return message
