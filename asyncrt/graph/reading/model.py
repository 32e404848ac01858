"""Read a model from a path, bytes or a `ModelProto`, without copying its large tensors.

Large tensors of a file become parts of the mapped file (see `mapped.py`), those of given bytes parts of these bytes;
protobuf parses the rest.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import onnx

from asyncrt.errors import ModelFormatError
from asyncrt.graph.functions import subgraphs, walk
from asyncrt.layout import Array
from asyncrt.options import RuntimeOptions

from . import mapped
from .source import ModelBytes, ModelSource, bytes_of
from .wire import without_tensors


class Read(NamedTuple):
    """A model that was read.

    Attributes:
        model: Without its large tensors.
        folder: Where its external data may lie; None if it did not come from a file.
        large: The bytes of those tensors, by the number of the graph's initializer.
    """

    model: onnx.ModelProto
    folder: Path | None
    large: Mapping[int, Array]


def read_model(source: ModelSource | ModelBytes, options: RuntimeOptions) -> Read:
    """Read a model.

    Args:
        source: A path, the bytes of a file, or a model, which is only read.

    Raises:
        ArgumentError: It is none of these.
        ModelFormatError: Not an ONNX model, or truncated.
        ModelLimitError: Larger than the options allow.
        OSError: The file cannot be read: `FileNotFoundError`, `IsADirectoryError`, `PermissionError`.
    """
    folder: Path | None = None
    large: Mapping[int, Array] = {}
    if isinstance(source, onnx.ModelProto):
        model, where = source, "the given model"
    else:
        given = source if isinstance(source, ModelBytes) else bytes_of(source, options)
        folder, where = given.folder, given.where
        model, large = _parse(given.data, where, options)
    if not model.graph.output:
        raise ModelFormatError(f"{where} holds no ONNX graph with an output")
    for text in _texts(model):
        if not isinstance(text, str):  # protobuf gives what is not UTF-8 as bytes
            raise ModelFormatError(f"a name in {where} is no UTF-8 text: {text!r}")
    return Read(model, folder, large)


def _parse(data: Array, where: str, options: RuntimeOptions) -> tuple[onnx.ModelProto, Mapping[int, Array]]:
    kept = without_tensors(data.data, mapped.LEAST) if options.uses("map_files") else None
    small, places = kept or (data.tobytes(), {})
    model = onnx.ModelProto()
    try:
        model.ParseFromString(small)
    except Exception as error:  # protobuf's own class differs by its implementation
        raise ModelFormatError(
            f"{where} is not an ONNX model, or is cut short ({data.nbytes} bytes)", detail=str(error)
        ) from error
    return model, {index: data[place] for index, place in places.items()}


def _texts(model: onnx.ModelProto) -> Iterator[str | bytes]:
    """Return every name that the importer may meet. On the way, `walk` finds graphs that are nested too deeply."""
    yield from (o.domain for o in model.opset_import)
    yield from _graph_texts(model.graph)
    for function in model.functions:
        yield from (function.name, function.domain, function.overload)
        yield from (o.domain for o in function.opset_import)
        yield from itertools.chain(function.input, function.output, function.attribute)
        yield from (a.name for a in function.attribute_proto)
    for node in itertools.chain(walk(model.graph.node), *(walk(f.node) for f in model.functions)):
        yield from (node.name, node.op_type, node.domain, node.overload)
        yield from node.input
        yield from node.output
        for attribute in node.attribute:
            yield from (attribute.name, attribute.ref_attr_name)
        for graph in subgraphs(node):
            yield from _graph_texts(graph)


def _graph_texts(graph: onnx.GraphProto) -> Iterator[str | bytes]:
    yield graph.name
    for info in itertools.chain(graph.input, graph.output):
        yield info.name
        yield from (d.dim_param for d in info.type.tensor_type.shape.dim)
    yield from (t.name for t in graph.initializer)
    yield from (s.values.name for s in graph.sparse_initializer)
