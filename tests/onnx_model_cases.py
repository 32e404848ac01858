"""The models that come with the onnx package, as cases: those of its backend tests, and large networks without weights.

The large ones ("light") have their weights from nodes that fill them with one number. Here these are drawn at random,
and ONNX Runtime says what is right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import DATA_DIR, load_model_tests

from asyncrt.layout import Array

from .second_opinion import onnxruntime_session

IN_FILES = ("simple", "pytorch-converted", "pytorch-operator")
LIGHT = "light"


def model_cases(kind: str) -> Iterator[TestCase]:
    """Yield the cases of a kind, each read when it is asked for: `IN_FILES`, or `LIGHT`."""
    if kind == LIGHT:
        yield from (_drawn(path) for path in sorted((Path(DATA_DIR) / LIGHT).glob("*.onnx")))
        return
    for case in sorted(load_model_tests(kind=kind), key=lambda case: case.name):
        folder = Path(case.model_dir)
        case.model = onnx.load(folder / "model.onnx")
        types = ([i.type for i in case.model.graph.input], [o.type for o in case.model.graph.output])
        case.data_sets = [
            tuple(_read(data, what, t) for what, t in zip(("input", "output"), types, strict=True))
            for data in sorted(folder.glob("test_data_set*"))
        ]
        yield case


def _read(folder: Path, what: str, types: list[onnx.TypeProto]) -> list[Any]:
    files = sorted(folder.glob(f"{what}_*.pb"), key=lambda file: int(file.stem.rpartition("_")[2]))
    made = {"sequence_type": onnx.SequenceProto, "optional_type": onnx.OptionalProto}
    found = [made.get(t.WhichOneof("value"), onnx.TensorProto)() for t in types[: len(files)]]
    for file, proto in zip(files, found, strict=True):
        proto.ParseFromString(file.read_bytes())
    return found


def _drawn(path: Path) -> TestCase:
    model, random = onnx.load(path), np.random.default_rng(len(path.name))
    graph = model.graph
    sizes = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    filled = [n for n in graph.node if n.op_type == "ConstantOfShape" and n.input[0] in sizes]
    for node in filled:
        weights = _weights(random, tuple(int(d) for d in sizes[node.input[0]]))
        graph.initializer.append(numpy_helper.from_array(weights, node.output[0]))
        graph.node.remove(node)
    given = [i for i in graph.input if i.name not in sizes]
    del graph.input[:]
    graph.input.extend(given)
    feeds = {
        i.name: random.random(tuple(d.dim_value or 1 for d in i.type.tensor_type.shape.dim), np.float32) for i in given
    }
    model.ir_version = max(model.ir_version, 4)  # before, each initializer had to be an input as well
    wanted = onnxruntime_session(model).run(None, feeds)
    sets = [(list(feeds.values()), list(wanted))]
    least = 1e-4 * max(float(np.abs(array).max()) for array in wanted)  # what is near zero is a sum of what is not
    return TestCase(path.stem, path.stem, None, None, model, sets, LIGHT, rtol=1e-3, atol=least)


def _weights(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Draw what neither grows nor vanishes from layer to layer; scales and variances are positive."""
    if len(shape) < 2:
        return random.uniform(0.5, 1.5, shape).astype(np.float32)
    return (random.standard_normal(shape, np.float32) * math.sqrt(2 / math.prod(shape[1:]))).astype(np.float32)
