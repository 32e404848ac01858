"""Where in a model's bytes do its large tensors lie?

Protocol buffers write a message as fields: a tag, and for texts, bytes and messages their length. Parsing a model
copies every tensor; this module parses only the tags on the way to the tensors of the model's graph, so that
protobuf can parse the rest without them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9  # field numbers of ModelProto, GraphProto and TensorProto
_MOST = 1 << 16  # fields of a tensor: more are numbers one by one, which protobuf reads a hundred times as fast
_BYTES = 2  # what a tag says of a field whose length comes first: a text, bytes or a message


class _Unusual(Exception):
    """The bytes are not as exporters write them; protobuf decides what they mean."""


class _Field(NamedTuple):
    """A field of that kind: where it and the bytes of its value are."""

    start: int
    value: int
    end: int


def without_tensors(data: memoryview, least: int) -> tuple[bytes, Mapping[int, slice]] | None:
    """Return a model without its large tensors, and where they are.

    Args:
        data: A serialized model.
        least: Bytes of a tensor that is large.

    Returns:
        The bytes of the same model without those bytes, and by the number of the graph's initializer where in *data*
        they are. None if there are none, or *data* is anything unusual.
    """
    try:
        graphs = list(_fields(data, 0, len(data), _GRAPH))
        if len(graphs) != 1:
            return None  # several are merged when they are parsed
        graph, places = graphs[0], dict[int, slice]()
        pieces: list[bytes] = []
        done = graph.value
        for index, tensor in enumerate(_fields(data, graph.value, graph.end, _INITIALIZER)):
            if tensor.end - tensor.value < least:
                continue
            raw = list(_fields(data, tensor.value, tensor.end, _RAW_DATA, _MOST))
            if len(raw) != 1 or raw[0].end - raw[0].value < least:
                continue
            places[index] = slice(raw[0].value, raw[0].end)
            rest = bytes(data[tensor.value : raw[0].start]) + bytes(data[raw[0].end : tensor.end])
            pieces += (bytes(data[done : tensor.start]), _message(_INITIALIZER, rest))
            done = tensor.end
    except _Unusual:
        return None
    if not places:
        return None
    pieces.append(bytes(data[done : graph.end]))
    small = bytes(data[: graph.start]), _message(_GRAPH, b"".join(pieces)), bytes(data[graph.end :])
    return b"".join(small), places


def _fields(data: memoryview, start: int, end: int, number: int, most: int | None = None) -> Iterator[_Field]:
    """Return the fields of that number of the message in these bytes; it may have *most* fields of all numbers."""
    passed = 0
    while start < end:
        passed += 1
        if passed == most:
            raise _Unusual
        tag, value = _varint(data, start, end)
        kind = tag & 7
        if kind == 0:
            _, after = _varint(data, value, end)
        elif kind == _BYTES:
            length, value = _varint(data, value, end)
            after = value + length
        elif kind in (1, 5):
            after = value + (8 if kind == 1 else 4)
        else:
            raise _Unusual
        if after > end or (tag >> 3 == number and kind != _BYTES):
            raise _Unusual
        if tag >> 3 == number:
            yield _Field(start, value, after)
        start = after


def _varint(data: memoryview, start: int, end: int) -> tuple[int, int]:
    number = shift = 0
    for position in range(start, min(end, start + 10)):
        byte = data[position]
        number |= (byte & 127) << shift
        if byte < 128:
            return number, position + 1
        shift += 7
    raise _Unusual


def _message(number: int, body: bytes) -> bytes:
    """Return a field with a message."""
    return _written(number << 3 | _BYTES) + _written(len(body)) + body


def _written(number: int) -> bytes:
    digits = bytearray()
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    digits.append(number)
    return bytes(digits)
