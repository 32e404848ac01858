"""Read a model from a path, bytes or a `ModelProto`, without copying its large tensors.

Large tensors of a file become parts of the mapped file (see `mapped.py`), those of given bytes parts of these bytes;
protobuf parses the rest.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import onnx

from asyncrt.arguments import check_path
from asyncrt.errors import ModelFormatError
from asyncrt.layout import Array
from asyncrt.options import RuntimeOptions

from . import mapped
from .functions import subgraphs, walk
from .tensors import check_size
from .wire import without_tensors

ModelSource: TypeAlias = "str | os.PathLike[str] | bytes | onnx.ModelProto"


_END = 1 << 14  # bytes


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


def read_model(source: ModelSource, options: RuntimeOptions) -> Read:
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
        if isinstance(source, bytes | bytearray | memoryview):
            data, where = np.frombuffer(bytes(source), np.uint8), "the given bytes"
        else:
            path = check_path("a model that is neither bytes nor an onnx.ModelProto", source)
            folder, where = path.absolute().parent.resolve(), f"'{path}'"
            check_size(path.stat().st_size, options, where)
            if path.exists() and not path.is_file() and not path.is_dir():
                raise ModelFormatError(f"{where} is not a regular file")
            file = mapped.map_file(path) if options.uses("map_files") else None
            data = np.frombuffer(path.read_bytes() if file is None else file, np.uint8)
        check_size(data.nbytes, options, where)
        model, large = _parse(data, where, options)
    if not model.graph.output:
        raise ModelFormatError(f"{where} holds no ONNX graph with an output")
    for text in _texts(model):
        if not isinstance(text, str):  # protobuf gives what is not UTF-8 as bytes
            raise ModelFormatError(f"a name in {where} is no UTF-8 text: {text!r}")
    return Read(model, folder, large)


def likeness(source: ModelSource, options: RuntimeOptions) -> str | None:
    """Return what a model is likely to be known by when it is loaded again the same way; None if that takes too long.

    It goes by the size and both ends of the file, so two models may be alike: nothing that is right or wrong may depend
    on it. Raises nothing: whoever reads the model does.
    """
    ends: tuple[bytes, ...] = ()
    nbytes = 0
    if isinstance(source, bytes):
        nbytes, ends = len(source), (source[:_END], source[-_END:])
    elif isinstance(source, str | os.PathLike):
        with contextlib.suppress(Exception), open(source, "rb", opener=_without_waiting) as file:
            status = os.fstat(file.fileno())
            if stat.S_ISREG(status.st_mode):
                nbytes, begin = status.st_size, file.read(_END)
                file.seek(max(0, nbytes - _END))
                ends = begin, file.read(_END)
    if not ends:
        return None
    asked = f"{nbytes}|{options.precision}|{sorted(options.without)}".encode()
    return hashlib.sha256(b"".join((asked, *ends))).hexdigest()


def _without_waiting(path: str, flags: int) -> int:
    """Open a file, and wait for nobody who writes to a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


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
