"""The models of tests/models: inputs for each of their shape cases, and what ONNX Runtime says.

Beside each ``.onnx`` lies a ``.json`` with its inputs, its cases (settings of its symbolic dims) and how inputs are
drawn.
"""

from __future__ import annotations

import functools
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import attrs
import numpy as np
import onnx

from asyncrt.layout import Array

from .second_opinion import onnxruntime_session

T = TypeVar("T")
FOLDER = Path(__file__).parent / "models"
BY_RECIPE = {"bert_dynamo18", "bert_ts13", "gru_tagger_ts17", "lstm_state_dynamo18", "skip_slice_assign_ts13"}
"""Some of those whose new shapes are planned by recipe, on whatever device."""


@attrs.frozen
class ZooModel:
    """A model of the zoo."""

    name: str
    spec: dict[str, Any] = attrs.field(repr=False)

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.onnx"

    @property
    def cases(self) -> int:
        return len(self.spec["cases"])

    @property
    def tolerance(self) -> tuple[float, float]:
        """Relative and absolute."""
        given = self.spec.get("tolerance")
        return (given["rtol"], given["atol"]) if given else (1e-3, 1e-4)

    def inputs(self, case: int, salt: int = 0) -> dict[str, Array]:
        """Return the inputs of a case; the same for the same salt."""
        return self.inputs_of(self.spec["cases"][case], f"{case}/{salt}")

    def inputs_of(self, sizes: Mapping[str, int], salt: str = "") -> dict[str, Array]:
        """Return inputs of those sizes of its symbolic dims; the same for the same salt."""
        feeds: dict[str, Array] = {}
        for name, io in self.spec["inputs"].items():
            shape = tuple(d if isinstance(d, int) else sizes[d] for d in io["shape"])
            random = np.random.default_rng(zlib.crc32(f"{self.name}/{name}/{salt}".encode()))
            words = self.spec["input_ranges"][name].split()
            numbers = [sizes[w] if w in sizes else float(w) if "." in w or "e" in w else int(w) for w in words[1:]]
            drawn = np.asarray(draw(words[0], numbers, shape, random)).astype(io["dtype"])
            feeds[name] = np.ascontiguousarray(drawn).reshape(shape)
        return feeds

    def expected(self, inputs: dict[str, Array]) -> dict[str, Array]:
        """Return what ONNX Runtime gives, with its graph optimisations off."""
        session = _session(str(self.path))
        names = [o.name for o in session.get_outputs()]
        return dict(zip(names, session.run(names, inputs), strict=True))


def draw(word: str, numbers: list[Any], shape: tuple[int, ...], random: np.random.Generator) -> Any:
    """Return an array drawn as *word* says."""
    match word:
        case "normal":
            return random.standard_normal(shape) * (numbers[0] if numbers else 1)
        case "uniform":
            return random.uniform(numbers[0], numbers[1], shape)
        case "randint":
            return random.integers(numbers[0], numbers[1], shape) if np.prod(shape) else np.zeros(shape)
        case "lens":
            lengths = random.integers(numbers[0], numbers[1], shape)
            lengths.reshape(-1)[:1] = numbers[1] - 1
            return lengths
        case "ones":
            return np.ones(shape)
        case "zeros":
            return np.zeros(shape)
        case "const":
            return np.full(shape, numbers[0])
        case "bool":
            return random.random(shape) < numbers[0]
        case "arange":
            return np.broadcast_to(numbers[0] + np.arange(shape[-1]), shape)
        case "values":
            return np.array(numbers).reshape(shape)
        case "perm":
            return random.permuted(np.broadcast_to(np.arange(shape[-1]), shape), axis=-1)
        case "padmask":
            mask = np.zeros(shape)
            for row in mask.reshape(-1, shape[-1]) if mask.size else ():
                row[: random.integers(max(1, shape[-1] // 2), shape[-1] + 1)] = 1
            return mask
    raise ValueError(f"input_ranges word {word!r}")


def zoo() -> list[ZooModel]:
    """Return every model of tests/models."""
    return [ZooModel(p.stem, json.loads(p.read_text())) for p in sorted(FOLDER.glob("*.json"))]


def some(items: Sequence[T], each: int, first: int = 0) -> Sequence[T]:
    """Return each so manieth of *items*, from *first* on; all of them if ASYNCRT_THOROUGH is 1.

    For what costs seconds for each model: together the models of a run show it, and a release asks for all of them.
    """
    return items if os.environ.get("ASYNCRT_THOROUGH") == "1" else items[first::each]


@functools.cache
def _session(path: str) -> Any:
    return onnxruntime_session(onnx.load(path))


def assert_equal(expected: dict[str, Array], got: dict[str, Array], model: ZooModel, what: str) -> None:
    """Floats within the model's tolerance, everything else exactly; every name, dtype and shape."""
    assert list(expected) == list(got), what
    relative, absolute = model.tolerance
    for name, e in expected.items():
        g = got[name]
        assert (e.dtype, e.shape) == (g.dtype, g.shape), f"{what}: {name}"
        if e.dtype.kind == "f":
            np.testing.assert_allclose(g, e, rtol=relative, atol=absolute, err_msg=f"{what}: {name}")
        else:
            np.testing.assert_array_equal(g, e, err_msg=f"{what}: {name}")
