"""Which models are there? One ONNX file, or a folder of models, each with its settings; nothing is loaded here.

models/
  text.onnx            the model "text", version 1
  text.toml            its settings, if it has any
  pictures/
    model.toml         settings
    tokenizer.json     for texts, if it takes them
    1/model.onnx       version 1
    2/model.onnx       version 2
"""

from __future__ import annotations

from pathlib import Path

import attrs

from .errors import NotFound, WrongSettings
from .settings import ModelSettings

_FILE, _SETTINGS, _TOKENIZER = "model.onnx", "model.toml", "tokenizer.json"


@attrs.frozen
class Found:
    """A model on disk.

    Attributes:
        files: Of each version, by its number.
        settings: Where they are, if there are any.
        tokenizer: Likewise.
    """

    name: str
    files: dict[int, Path]
    settings: Path | None = None
    tokenizer: Path | None = None

    def read_settings(self, default: ModelSettings) -> ModelSettings:
        """Return its settings; *default* if it has none."""
        return default if self.settings is None else ModelSettings.read(self.settings)

    def chosen(self, settings: ModelSettings) -> list[int]:
        """Return the versions that are to be served, the oldest first.

        Raises:
            WrongSettings: One of them is not there.
        """
        if settings.versions == "latest":
            return [max(self.files)]
        if isinstance(settings.versions, str):
            return sorted(self.files)
        missing = [v for v in settings.versions if v not in self.files]
        if missing or not settings.versions:
            there = ", ".join(map(str, sorted(self.files)))
            raise WrongSettings(f"model '{self.name}' has no version {missing[:1] or 'chosen'}; there are {there}")
        return sorted(set(settings.versions))


class Repository:
    """A file, or a folder of models.

    Args:
        name: What the model of a single file is called; None goes by the file.
    """

    def __init__(self, path: Path, name: str | None = None) -> None:
        self.path = path
        self._name = name

    def names(self) -> list[str]:
        """Return the names of all models that are there, in order."""
        if not self.path.is_dir():
            return [self._name or self.path.stem]
        found = {p.stem for p in self.path.glob("*.onnx")}
        found |= {p.name for p in self.path.iterdir() if p.is_dir() and _files(p)}
        return sorted(name for name in found if not name.startswith("."))

    def find(self, name: str) -> Found:
        """Return where a model is.

        Raises:
            NotFound: There is none of that name.
        """
        if name not in self.names():  # what is no name of a model is no path either
            raise NotFound(f"there is no model '{name[:100]}'")
        if not self.path.is_dir():
            return _single(name, self.path)
        folder = self.path / name
        files = _files(folder) if folder.is_dir() else {}
        if not files:
            return _single(name, self.path / f"{name}.onnx")
        return Found(name, files, _there(folder / _SETTINGS), _there(folder / _TOKENIZER))


def _single(name: str, file: Path) -> Found:
    return Found(name, {1: file}, _there(file.with_suffix(".toml")), _there(file.with_name(_TOKENIZER)))


def _files(folder: Path) -> dict[int, Path]:
    found = {int(p.parent.name): p for p in folder.glob(f"*/{_FILE}") if p.parent.name.isdecimal()}
    if not found and (folder / _FILE).is_file():
        found = {1: folder / _FILE}
    return {version: file for version, file in found.items() if version > 0}


def _there(path: Path) -> Path | None:
    return path if path.is_file() else None
