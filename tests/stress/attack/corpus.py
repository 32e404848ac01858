"""What mutated models are made from: right models of every kind, each with inputs that it takes.

The zoo, one model around each example of each operator, random graphs, and texts for what those have not: control flow,
functions, constants of every form, tensors in files of their own.
"""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, helper, numpy_helper

from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.registry import operators
from asyncrt.kinds import ValueType, shown_to_caller
from asyncrt.layout import DataType

from ...ops.run import arrays, type_of
from ...zoo import ZooModel, zoo
from ..graphs import draw_model

SECRET = b"what lies outside of the model's folder "
"""The contents of a file that no model may name."""

LARGEST_OF_ZOO = 400_000
"""Bytes; larger models only take longer."""


class Origin(NamedTuple):
    """A right model: what it is called, and inputs that it takes."""

    name: str
    model: onnx.ModelProto
    inputs: dict[str, Any]


TEXTS = (
    """<ir_version: 8, opset_import: ["" : 17]>
    g (float[n, 3] x, bool c, int64 m) => (y, last, stack) {
      y = If (c) <then_branch = t () => (float[n, 3] a) { a = Relu (x) },
                  else_branch = e () => (float[k] b) { s = Constant <value_ints = [-1]> () b = Reshape (x, s) }>
      always = Constant <value = bool {1}> ()
      last, stack = Loop (m, always, x) <
        body = b (int64 i, bool go, float[n, 3] v) => (bool on, float[n, 3] w, float[n, 3] o) {
        on = Identity (go) half = Constant <value = float {0.5}> () w = Mul (v, half) o = Add (w, x) }>
    }""",
    """<ir_version: 8, opset_import: ["" : 16]>
    g (int64 m, float[3] x) => (total, all) {
      go = Constant <value = bool {1}> ()
      total, all = Loop (m, go, x) <body = outer (int64 i, bool c, float[3] v) => (bool d, float[3] w, float[3] o) {
        two = Constant <value = int64 {2}> ()
        w, unused = Loop (two, c, v) <body = inner (int64 j, bool e, float[3] a) => (bool f, float[3] b, int64 h) {
            f = Identity (e) b = Add (a, a) h = Identity (j) }>
        limit = Constant <value = int64 {5}> ()
        d = Less (i, limit) o = Identity (v) }>
    }""",
    """<ir_version: 8, opset_import: ["" : 16]>
    g (float[2] start, float[t, 2] xs) => (end, ys) {
      end, ys = Scan <num_scan_inputs = 1, body = b (float[2] s, float[2] x) => (float[2] n, float[2] y) {
        n = Add (s, x) y = Identity (n) }> (start, xs)
    }""",
    """<ir_version: 8, opset_import: ["" : 18, "own" : 1]>
    g (float[a, b] x, float[b, c] w) => (y) { z = own.Twice <alpha = 0.1> (x) q = own.Once (z) y = MatMul (q, w) }
    <domain: "own", opset_import: ["" : 18, "own" : 1]>
    Twice <alpha> (p) => (q) { h = own.Once (p) q = LeakyRelu <alpha: float = @alpha> (h) }
    <domain: "own", opset_import: ["" : 18]>
    Once (p) => (q) { q = Neg (p) }""",
    """<ir_version: 8, opset_import: ["" : 18]>
    g (float[n, 6] x) => (y, z) {
      s = Shape (x) k = Constant <value_ints = [0]> () first = Gather <axis = 0> (s, k)
      rest = Constant <value_ints = [2, 3]> ()
      shape = Concat <axis = 0> (first, rest) r = Reshape (x, shape) t = Transpose <perm = [0, 2, 1]> (r)
      s2 = Constant <value_ints = [1, 3, 2]> () e = Expand (t, s2)
      m = ReduceMax <keepdims = 0> (x) c = Cast <to = 7> (m)
      zero = Constant <value_int = 0> () one = Constant <value_int = 1> () z = Range (zero, c, one)
      f = Constant <value_floats = [1.0, 2.0]> () y = Mul (e, f)
    }""",
    """<ir_version: 8, opset_import: ["" : 18]>
    g (float[n, k] x, int64 top, float threshold) => (v, i, p, u) {
      shape = Constant <value_ints = [-1]> () flat = Reshape (x, shape) one = Reshape (top, shape)
      v, i = TopK <axis = 0> (flat, one) over = Greater (flat, threshold) where = NonZero (over)
      p = Compress (flat, over) u, a, b, c = Unique (flat)
    }""",
    """<ir_version: 10, opset_import: ["" : 21]>
    g (float[n, 4] x, uint8[4, 4] w) => (y) {
      s = Constant <value = float {0.05}> () z = Constant <value = uint8 {128}> ()
      q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) e = DequantizeLinear (w, s, z) m = MatMul (d, e)
      p = QuantizeLinear (m, s, z) y = DequantizeLinear (p, s, z)
    }""",
)


def origin(chance: random.Random) -> Origin:
    """Draw one."""
    kind = chance.choices(("example", "text", "graph", "zoo", "external"), (58, 16, 12, 8, 6))[0]
    if kind == "example":
        return around(*chance.choice(_examples()), chance)
    if kind == "text":
        return from_text(chance.randrange(len(TEXTS)), chance)
    if kind == "zoo":
        chosen = chance.choice(_small_zoo())
        return Origin(chosen.name, onnx.load(chosen.path), chosen.inputs(chance.randrange(chosen.cases)))
    if kind == "external":
        return in_files(chance)
    drawn = draw_model(random.Random(chance.randrange(1 << 30)))
    return Origin("graph", drawn.proto, drawn.inputs(chance))


def from_text(index: int, chance: random.Random) -> Origin:
    """Return the model of a text of `TEXTS`, with inputs."""
    parsed = onnx.parser.parse_model(TEXTS[index])
    sizes: dict[str, int] = {}
    inputs = {}
    for value in parsed.graph.input:
        dims = [sizes.setdefault(d.dim_param, chance.choice((1, 2, 3, 5))) if d.dim_param else d.dim_value
                for d in value.type.tensor_type.shape.dim]  # fmt: skip
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        inputs[value.name] = np.asarray(np.random.default_rng(chance.randrange(1 << 30)).integers(0, 4, dims), dtype)
    return Origin(f"text {index}", parsed, inputs)


@functools.cache
def _examples() -> list[tuple[Operator, Example]]:
    ordered = sorted(operators().values(), key=lambda o: (o.domain, o.name))
    return [(operator, example) for operator in ordered for example in operator.examples]


@functools.cache
def _small_zoo() -> list[ZooModel]:
    return [z for z in zoo() if z.path.stat().st_size < LARGEST_OF_ZOO]


def around(operator: Operator, example: Example, chance: random.Random) -> Origin:
    """Return a model of one operator: its inputs given, or constants; its dims static, or with names."""
    held = {f"x{i}": a for i, a in enumerate(arrays(example)) if a is not None}
    kinds = {name: type_of(example.inputs[int(name[1:])], array) for name, array in held.items()}
    given = {name: shown_to_caller(kinds[name], array) for name, array in held.items()}
    names = [f"x{i}" if f"x{i}" in given else "" for i in range(len(example.inputs))]
    outputs = [f"y{i}" for i in range(example.outputs)]
    attributes = {k: _attribute(v) for k, v in example.attributes.items()}
    nodes = [helper.make_node(operator.name, names, outputs, name="it", domain=operator.domain, **attributes)]
    tensors = [name for name, array in held.items() if array.dtype.kind != "O"]
    constants = {n for n in tensors if chance.random() < (0.1 if n == next(iter(held)) else 0.5)}
    dynamic = chance.random()
    infos, feeds = [], {}
    for name, array in given.items():
        if name not in constants:
            dims = [f"{name}_{axis}" if chance.random() < dynamic else d for axis, d in enumerate(held[name].shape)]
            infos.append(helper.make_value_info(name, _declared(kinds[name], dims)))
            feeds[name] = array
    if chance.random() < 0.4:  # a neighbour, that there is something to fuse, or to read a view
        nodes.append(helper.make_node(chance.choice(("Identity", "Neg", "Abs", "Shape", "Cast")), [outputs[0]], ["z"]))
        if nodes[-1].op_type == "Cast":
            nodes[-1].attribute.add(name="to", i=chance.choice((1, 6, 7, 10)), type=onnx.AttributeProto.INT)
        outputs.append("z")
    initializers = [numpy_helper.from_array(given[n], n) for n in sorted(constants)]
    results = [onnx.ValueInfoProto(name=o) for o in outputs]
    graph = helper.make_graph(nodes, operator.name, infos, results, initializers)
    opset = example.opset or 21
    opsets = [helper.make_opsetid(operator.domain, opset)]
    if operator.domain:
        opsets.append(helper.make_opsetid("", 21))
    return Origin(operator.name, helper.make_model(graph, opset_imports=opsets, ir_version=10), feeds)


def _declared(kind: DataType, dims: list[Any] | None) -> onnx.TypeProto:
    """Return the type that a file declares for a value; of tensors inside of others it says no dims."""
    if not isinstance(kind, ValueType):
        return helper.make_tensor_type_proto(kind.onnx, dims)
    element = _declared(kind.element, None)
    if kind.kind == "seq":
        return helper.make_sequence_type_proto(element)
    if kind.kind == "optional":
        return helper.make_optional_type_proto(element)
    assert kind.key is not None
    return helper.make_map_type_proto(kind.key.onnx, element)


def _attribute(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return numpy_helper.from_array(value)
    return list(value) if isinstance(value, tuple) else value


def in_files(chance: random.Random) -> Origin:
    """Return a model whose constants lie in files beside it; `write` makes those."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 4] x) => (y) { a = MatMul (x, w) y = Add (a, v) }"""
    )
    for name, dims, offset in (("w", (4, 4), 0), ("v", (4,), 64)):
        tensor = model.graph.initializer.add(name=name, dims=dims, data_type=TensorProto.FLOAT)
        tensor.data_location = TensorProto.EXTERNAL
        nbytes = 4 * int(np.prod(dims))
        for key, text in (("location", "weights.bin"), ("offset", str(offset)), ("length", str(nbytes))):
            tensor.external_data.add(key=key, value=text)
    rows = chance.choice((1, 2, 5))
    return Origin("external", model, {"x": np.ones((rows, 4), np.float32)})


def write(folder: Path) -> Path:
    """Make the files that `in_files` names in a folder of *folder*, and others that no model may read; returns it."""
    inside = folder / "model"
    inside.mkdir(exist_ok=True)
    (inside / "weights.bin").write_bytes(np.arange(64, dtype=np.float32).tobytes())
    secret = folder / "secret"
    secret.write_bytes(SECRET * 64)
    (inside / "folder").mkdir(exist_ok=True)
    for name, target in (("link", secret), ("loop", inside / "loop"), ("up", folder)):
        if not (inside / name).is_symlink():
            (inside / name).symlink_to(target)
    return inside
