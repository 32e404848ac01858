"""What is loaded for a session? The file as it is, or the model as the program's options and feeds change it.

The file is looked at as loading looks at it, without its large tensors (`asyncrt.graph.reading`), so that weights are
not held twice; only a model that is changed is read as a whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
from onnx.external_data_helper import load_external_data_for_model

from asyncrt.compat.errors import (
    Fail,
    InvalidArgument,
    InvalidProtobuf,
    NoSuchFile,
    WrongType,
    error,
    translated,
)
from asyncrt.compat.options import SessionOptions
from asyncrt.compat.shared import configuration
from asyncrt.graph.reading.model import read_model
from asyncrt.public import ModelFormatError, RuntimeOptions

from . import edits

_FOLDER = "session.model_external_initializers_file_folder_path"


class Source:
    """A model, read anew whenever it is asked for.

    Args:
        path_or_bytes: A path, or the bytes of a file.

    Raises:
        WrongType: It is neither.
    """

    def __init__(self, path_or_bytes: str | bytes | os.PathLike[str], options: SessionOptions) -> None:
        self.path = Path(path_or_bytes) if isinstance(path_or_bytes, str | os.PathLike) and path_or_bytes else None
        self.bytes = path_or_bytes if isinstance(path_or_bytes, bytes) else None
        given = self.bytes if self.path is None else self.path
        if given is None:
            raise WrongType(f"Unable to load from type '{type(path_or_bytes)}'")
        self._given: Path | bytes = given
        self._options = options
        self._folder = None if self.bytes is None else options.find_config_entry(_FOLDER)

    @property
    def where(self) -> str:
        """How messages about the model begin."""
        return "" if self.path is None else f"Load model from {self.path} failed:"

    def outline(self) -> onnx.ModelProto:
        """Return the model without its large tensors, and with its dims as the options say.

        Raises:
            NoSuchFile: There is no such file.
            InvalidProtobuf: It is not an ONNX file.
            InvalidArgument: It is one without a graph.
            Fail: It cannot be read, or is too large.
        """
        with translated(self.where):
            model = self._read()
        edits.fix_dims(model, self._options.dims, self._options.denoted_dims)
        return model

    def to_load(self) -> Path | bytes | onnx.ModelProto:
        """Return what is loaded: the path or the bytes, unless the options change the model or bring data for it."""
        options = self._options
        if options.dims or options.denoted_dims or options.initializers or self._folder is not None:
            return self.changed(lambda model: None)
        return self._given

    def changed(self, change: Callable[[onnx.ModelProto], Any]) -> onnx.ModelProto:
        """Return the model with its weights, changed as the options say and then by *change*.

        Raises:
            Fail: Its external data cannot be read, or an initializer that was given does not fit.
        """
        model = onnx.ModelProto()
        model.ParseFromString(self._given if isinstance(self._given, bytes) else self._given.read_bytes())
        folder = self._folder if self.path is None else str(self.path.parent)
        if folder is not None:
            try:
                load_external_data_for_model(model, folder)
            except Exception as cause:  # those of onnx's checker, and of the system
                raise error(Fail, f"{self.where}{cause}") from cause
        edits.fix_dims(model, self._options.dims, self._options.denoted_dims)
        edits.set_initializers(model, self._options.initializers)
        change(model)
        return model

    def _read(self) -> onnx.ModelProto:
        try:
            return read_model(self._given, configuration()[1] or RuntimeOptions()).model
        except FileNotFoundError as cause:
            raise error(NoSuchFile, f"{self.where}Load model {self.path} failed. File doesn't exist") from cause
        except IsADirectoryError as cause:
            raise error(InvalidProtobuf, f"{self.where}Protobuf parsing failed.") from cause
        except ModelFormatError as cause:
            is_onnx = cause.__cause__ is None
            text = "No graph was found in the protobuf." if is_onnx else "Protobuf parsing failed."
            raise error(InvalidArgument if is_onnx else InvalidProtobuf, f"{self.where}{text} {cause}") from cause
