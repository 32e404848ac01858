"""What is loaded for a session? The file as it is, or the model as the program's options and feeds change it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
from onnx.external_data_helper import load_external_data_for_model

from asyncrt.compat.errors import Fail, InvalidArgument, InvalidProtobuf, NoSuchFile, WrongType, error
from asyncrt.compat.options import SessionOptions

from . import edits

_FOLDER = "session.model_external_initializers_file_folder_path"


class Source:
    """A model, read anew whenever it is asked for, so that its weights are not held twice.

    Args:
        path_or_bytes: A path, or the bytes of a file.

    Raises:
        WrongType: It is neither.
    """

    def __init__(self, path_or_bytes: str | bytes | os.PathLike[str], options: SessionOptions) -> None:
        self.path = Path(path_or_bytes) if isinstance(path_or_bytes, str | os.PathLike) and path_or_bytes else None
        self.bytes = path_or_bytes if isinstance(path_or_bytes, bytes) else None
        if self.path is None and self.bytes is None:
            raise WrongType(f"Unable to load from type '{type(path_or_bytes)}'")
        self._options = options
        self._folder = None if self.bytes is None else options.find_config_entry(_FOLDER)

    @property
    def where(self) -> str:
        """How messages about the model begin."""
        return "" if self.path is None else f"Load model from {self.path} failed:"

    def as_it_is(self) -> Path | bytes | None:
        """Return the path or the bytes; None if the program's options change the model or bring data for it."""
        options = self._options
        if options.dims or options.denoted_dims or options.initializers or self._folder is not None:
            return None
        return self.bytes if self.path is None else self.path

    def read(self, *, weights: bool) -> onnx.ModelProto:
        """Read the model, and change it as the options say.

        Args:
            weights: Whether data in external files is read as well.

        Raises:
            NoSuchFile: There is no such file.
            InvalidProtobuf: It is not an ONNX file.
            InvalidArgument: It is one without a graph.
        """
        model = self._parsed()
        folder = self._folder if self.path is None else str(self.path.parent)
        if weights and folder is not None:
            try:
                load_external_data_for_model(model, folder)
            except Exception as cause:  # those of onnx's checker, and of the system
                raise error(Fail, f"{self.where}{cause}") from cause
        edits.fix_dims(model, self._options.dims, self._options.denoted_dims)
        edits.set_initializers(model, self._options.initializers)
        return model

    def changed(self, change: Callable[[onnx.ModelProto], Any]) -> onnx.ModelProto:
        """Return the model with its weights, changed further."""
        model = self.read(weights=True)
        change(model)
        return model

    def _parsed(self) -> onnx.ModelProto:
        model = onnx.ModelProto()
        try:
            model.ParseFromString(self.path.read_bytes() if self.bytes is None and self.path else self.bytes or b"")
        except FileNotFoundError as cause:
            raise error(NoSuchFile, f"{self.where}Load model {self.path} failed. File doesn't exist") from cause
        except IsADirectoryError as cause:
            raise error(InvalidProtobuf, f"{self.where}Protobuf parsing failed.") from cause
        except OSError as cause:
            raise error(Fail, f"{self.where}{cause}") from cause
        except Exception as cause:  # protobuf's own class differs by its implementation
            raise error(InvalidProtobuf, f"{self.where}Protobuf parsing failed.") from cause
        if not model.HasField("graph"):
            raise error(InvalidArgument, f"{self.where}No graph was found in the protobuf.")
        return model
