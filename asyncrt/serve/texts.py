"""From texts to a model's inputs, and from its outputs to one vector for each text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from asyncrt.dims import Dim
from asyncrt.layout import Array, PartialLayout
from asyncrt.runtime.model import Model

from .errors import BadRequest, WrongSettings
from .settings import EmbeddingSettings

_IDS, _MASK, _TYPES = "input_ids", "attention_mask", "token_type_ids"


class Texts:
    """What a model that embeds texts needs beside itself.

    Args:
        file: A tokeniser, as `tokenizer.json` has it.

    Raises:
        WrongSettings: It is none, or the model takes no tokens, or has no such output.
    """

    def __init__(self, model: Model, file: Path, settings: EmbeddingSettings) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise WrongSettings("texts need a package that is not installed: tokenizers") from error
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises nothing narrower
            raise WrongSettings(f"{file.name} is no tokeniser: {error}") from error
        self._tokenizer.no_padding()  # with dynamic shapes nothing needs padding
        self._tokenizer.enable_truncation(settings.max_tokens)
        unknown = sorted(set(model.inputs) - {_IDS, _MASK, _TYPES})
        if _IDS not in model.inputs or unknown:
            raise WrongSettings(
                f"a model of texts takes {_IDS}, {_MASK} and {_TYPES}; this one {', '.join(model.inputs)}"
            )
        self._inputs = model.inputs
        self._settings = settings
        self._output, self._pooled = _output(model.outputs, settings)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each text; takes a while, and may be called on a thread."""
        return [found.ids for found in self._tokenizer.encode_batch(list(texts))]

    def inputs_of(self, ids: Sequence[int]) -> dict[str, Array]:
        """Return the model's inputs for one text."""
        if not ids:
            raise BadRequest("a text without tokens has no vector")
        made = {_IDS: list(ids), _MASK: [1] * len(ids), _TYPES: [0] * len(ids)}
        return {
            name: np.array([made[name]], np.int64 if layout.dtype is None else layout.dtype.numpy)
            for name, layout in self._inputs.items()
        }

    def vector_of(self, outputs: Mapping[str, Array]) -> Array:
        """Return the vector of one text."""
        found: Array = outputs[self._output][0].astype(np.float32)
        if not self._pooled:
            found = found[0] if self._settings.pooling == "first" else found.mean(axis=0)
        length = float(np.linalg.norm(found))
        return found / length if self._settings.normalise and length else found


def _output(outputs: Mapping[str, PartialLayout], settings: EmbeddingSettings) -> tuple[str, bool]:
    """Return which output has the vectors, and whether it has one for each text rather than one for each token."""
    floats = {n: x.shape for n, x in outputs.items() if x.shape is not None and (x.dtype is None or x.dtype.is_float)}
    ranks = {n: len(shape) for n, shape in floats.items()}
    wanted = [settings.output] if settings.output is not None else sorted(ranks, key=lambda n: ranks[n] != 2)
    for name in wanted:
        if ranks.get(name) in (2, 3) and not isinstance(floats[name][-1], Dim | None):
            return name, ranks[name] == 2
    raise WrongSettings(f"no output has vectors of texts or tokens; there are {', '.join(outputs)}")
