"""A request from the body of a POST, and the body of its answer: JSON, and raw tensors behind it; pure functions.

Whether there are raw tensors is told by the header Inference-Header-Content-Length alone: clients send any
Content-Type, or none.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from asyncrt.arguments import shown
from asyncrt.layout import Array, layout_of
from asyncrt.serve.errors import BadRequest, TooLarge, UnknownEncoding
from asyncrt.serve.protocol.datatypes import check_shape, datatype, from_json, from_raw, name_of, to_json, to_raw
from asyncrt.serve.protocol.messages import InferRequest, InferResponse, Parameters, check_id

JSON_LENGTH = "inference-header-content-length"
_MOST_TENSORS = 4096
_WINDOWS = {"gzip": 31, "deflate": 47}  # of zlib: with gzip's header; with zlib's header or gzip's


def decompressed(body: bytes, encoding: str, most: int) -> bytes:
    """Return a body that came in that Content-Encoding.

    Raises:
        UnknownEncoding: It is neither gzip nor deflate.
        TooLarge: It has more than *most* bytes; no more than those were made.
        BadRequest: It is not what its encoding says.
    """
    if encoding in ("", "identity"):
        return body
    if encoding not in _WINDOWS:
        raise UnknownEncoding(f"bodies may be encoded by gzip or deflate, not by {shown(encoding)}")
    work = zlib.decompressobj(_WINDOWS[encoding])
    try:
        found = work.decompress(body, most)
    except zlib.error as error:
        raise BadRequest(f"the body is not {encoding}") from error
    if work.unconsumed_tail:
        raise TooLarge(f"the body has more than {most} bytes when it is decoded")
    if not work.eof:
        raise BadRequest(f"the body ends before its {encoding} does")
    return found


def json_length(header: str | None, body: int) -> int:
    """Return how many bytes of a body of that many are JSON, going by the header that says so."""
    if header is None:
        return body
    if not (header.isascii() and header.isdigit() and len(header) < 20 and int(header) <= body):
        raise BadRequest(f"{JSON_LENGTH} must be a number of bytes up to the body's {body}, got {shown(header)}")
    return int(header)


def parse_json(text: bytes | memoryview) -> dict[str, Any]:
    """Return the object that a body is."""
    try:
        found = json.loads(bytes(text))
    except RecursionError as error:
        raise BadRequest("the body is nested too deeply") from error
    except ValueError as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise BadRequest(f"the body must be an object, got {shown(found)}")
    return found


def parse_infer(body: bytes, header: str | None) -> InferRequest:
    """Return the request that a body is.

    Args:
        header: Inference-Header-Content-Length, if there was one.

    Raises:
        BadRequest: It says what is wrong, and where.
    """
    length = json_length(header, len(body))
    view = memoryview(body)
    return request_of(parse_json(view[:length]), view[length:])


def request_of(found: Mapping[str, Any], raw: memoryview = memoryview(b"")) -> InferRequest:  # noqa: B008  # it is empty
    """Return the request that an object is, with the bytes behind it."""
    inputs, used = _inputs(found, raw)
    if used != len(raw):
        raise BadRequest(f"there are {len(raw) - used} bytes behind the last tensor")
    parameters = Parameters.of(_object(found, "parameters", "the request"))
    return InferRequest(inputs, _outputs(found), check_id(found.get("id", "")), parameters)


def _object(found: Mapping[str, Any], key: str, what: str) -> dict[str, Any]:
    given = found.get(key) or {}
    if not isinstance(given, dict):
        raise BadRequest(f"{key} of {what} must be an object, got {shown(given)}")
    return given


def _objects(found: Mapping[str, Any], key: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the tensors of a list by name, each name once."""
    given = found.get(key) or []
    if not isinstance(given, list) or len(given) > _MOST_TENSORS or not all(isinstance(t, dict) for t in given):
        raise BadRequest(f"{key} must be a list of up to {_MOST_TENSORS} objects, got {shown(given)}")
    names = [t.get("name") for t in given]
    wrong = next((n for n in names if not isinstance(n, str)), None)
    if wrong is not None or None in names:
        raise BadRequest(f"each of {key} must have a name, got {shown(wrong)}")
    if len(set(names)) < len(names):
        raise BadRequest(f"{key} has a name twice")
    return [(str(t["name"]), t) for t in given]


def _inputs(found: Mapping[str, Any], raw: memoryview) -> tuple[dict[str, Array], int]:
    """Return the inputs, and how many of the raw bytes they are."""
    arrays: dict[str, Array] = {}
    used = 0
    for name, tensor in _objects(found, "inputs"):
        what = f"input {shown(name)}"
        dtype, shape = datatype(tensor.get("datatype"), what), check_shape(tensor.get("shape"), what)
        size = _object(tensor, "parameters", what).get("binary_data_size")
        if size is None:
            arrays[name] = from_json(dtype, shape, tensor.get("data"), what)
            continue
        if type(size) is not int or not 0 <= size <= len(raw) - used:
            raise BadRequest(
                f"binary_data_size of {what} is {shown(size)}, and {len(raw) - used} bytes are left",
                hint=f"raw tensors follow the JSON, and the header {JSON_LENGTH} says where they begin",
            )
        arrays[name] = from_raw(dtype, shape, raw[used : used + size], what)
        used += size
    return arrays, used


def _outputs(found: Mapping[str, Any]) -> dict[str, bool | None]:
    wanted: dict[str, bool | None] = {}
    for name, tensor in _objects(found, "outputs"):
        parameters = _object(tensor, "parameters", f"output {shown(name)}")
        if parameters.get("classification"):
            raise BadRequest("there is no classification of outputs; ask for the output itself")
        binary = parameters.get("binary_data")
        if not (binary is None or isinstance(binary, bool)):
            raise BadRequest(f"binary_data of output {shown(name)} must be true or false, got {shown(binary)}")
        wanted[name] = binary
    return wanted


def format_infer(response: InferResponse, request: InferRequest) -> tuple[list[bytes | memoryview], int | None]:
    """Return the parts of the answer's body, and how many bytes of it are JSON if raw tensors follow."""
    parts: list[bytes | memoryview] = []
    text = json.dumps(_answer(response, request.is_binary, parts), separators=(",", ":")).encode()
    return [text, *parts], len(text) if parts else None


def answer_of(response: InferResponse) -> dict[str, Any]:
    """Return an answer as an object, without raw tensors."""
    return _answer(response, lambda name: False, [])


def _answer(
    response: InferResponse, is_binary: Callable[[str], bool], parts: list[bytes | memoryview]
) -> dict[str, Any]:
    outputs = [_described(name, array, is_binary(name), parts) for name, array in response.outputs.items()]
    answer = {"model_name": response.model, "model_version": response.version, "outputs": outputs}
    return {"id": response.id, **answer} if response.id else answer


def _described(name: str, array: Array, binary: bool, parts: list[bytes | memoryview]) -> dict[str, Any]:
    shown_as = {"name": name, "datatype": name_of(layout_of(array).dtype), "shape": list(array.shape)}
    if not binary:
        return {**shown_as, "data": to_json(array)}
    raw = to_raw(array)
    parts.append(raw)
    return {**shown_as, "parameters": {"binary_data_size": len(raw)}}
