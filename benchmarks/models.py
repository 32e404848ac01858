"""Which models are measured, and on what inputs?"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .measure import ROOT, Array, BenchmarkError, Inputs

SMALL = ROOT / "tests" / "models" / "bert_ts13.onnx"
"""A BERT of two small layers, as an exporter writes it; it takes what MiniLM takes, up to 64 tokens."""

_MINILM = ROOT / ".demo" / "minilm.onnx"
_WORDS = 200  # ids below this are words to both models
MEDIAN, SIGMA, LONGEST = 40, 0.6, 256  # tokens of a text of many callers: log-normal


def minilm(given: Path | None = None) -> Path:
    """Return the file of MiniLM: *given*, or the one that the demo uses, which is made if need be.

    Raises:
        BenchmarkError: There is no such file, or what makes it is not installed.
    """
    if given is not None:
        if not given.is_file():
            raise BenchmarkError(f"{given} is not a file; leave --model out to make MiniLM from its weights")
        return given
    if not _MINILM.exists():
        try:
            script = _script(ROOT / "examples" / "minilm.py")
        except ImportError as error:
            raise BenchmarkError(f"{error}; pip install safetensors, or give MiniLM with --model") from error
        try:
            script.write(_MINILM)
        except (script.WeightsMissingError, ImportError) as error:
            raise BenchmarkError(f"{error}\n\nor give the model with --model") from error
    return _MINILM


def _script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tokens(batch: int, length: int, seed: int = 0) -> Inputs:
    """Return a request to MiniLM, or to `SMALL`: *batch* texts of *length* words."""
    ids = np.random.default_rng((seed, batch, length)).integers(0, _WORDS, (batch, length))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def model(
    nodes: Sequence[onnx.NodeProto], shape: Sequence[int | str], constants: Mapping[str, Array], output: str
) -> onnx.ModelProto:
    """Return a model with the float32 input ``x`` of *shape* and one output."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(list(nodes), "benchmark", [x], [onnx.ValueInfoProto(name=output)], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class Chain:
    """Nodes one behind the other: each takes what the one before gave, and constants."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.value = "x"

    def add(self, operator: str, *constants: str, **attributes: Any) -> None:
        """Append a node."""
        result = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, [self.value, *constants], [result], name=result, **attributes))
        self.value = result


class Graph:
    """Nodes and constants of a network, written down as an exporter writes them. Weights are random, seeds are not."""

    def __init__(self, dtype: type[np.floating[Any]] = np.float32) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.dtype = dtype
        self._random = np.random.default_rng(0)

    def add(self, operator: str, *inputs: str, outputs: Sequence[str] | int = 1, **attributes: Any) -> str:
        """Append a node; returns its first output. The others are called as the first, with a number behind."""
        first = f"v{len(self.nodes)}"
        names = [first, *(f"{first}.{i}" for i in range(1, outputs))] if isinstance(outputs, int) else list(outputs)
        self.nodes.append(helper.make_node(operator, list(inputs), names, name=first, **attributes))
        return names[0]

    def constant(self, value: Array | Sequence[int]) -> str:
        """Return the name of a constant; of integers if *value* is no array."""
        array = value if isinstance(value, np.ndarray) else np.array(value, np.int64)
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def weights(self, *shape: int, deviation: float) -> str:
        """Return the name of a constant of normally distributed numbers."""
        numbers = self._random.standard_normal(shape, np.float32) * np.float32(deviation)
        return self.constant(numbers.astype(self.dtype))

    def model(self, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]) -> onnx.ModelProto:
        """Return the model."""
        graph = helper.make_graph(self.nodes, "benchmark", list(inputs), list(outputs), self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def value(name: str, *shape: int | str, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    """Return the description of an input or an output."""
    return helper.make_tensor_value_info(name, dtype, shape)
