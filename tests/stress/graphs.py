"""Random models of whatever makes skips, views and memory hard, and inputs of many sizes for them.

A model is drawn from a `random.Random`: from a seed's for many, from Hypothesis's for few that shrink. Each dim is
known as a formula over the inputs' dims, so that what is drawn is right for every size, 0 and 1 among them. Values are
drawn to be used again: diamonds, skips of chains, values read by many and by nobody, outputs that are inputs,
constants, aliases or each other. What decides (conditions, counts, positions) is calculated exactly, so that devices
that round differently still decide the same.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import attrs
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from asyncrt.layout import Array

Formula: TypeAlias = "int | str | tuple[Any, ...]"
"""A dim: a number, an input's dim by its name, or a tuple that says how it comes from others. Equal ones are equal."""

SIZES = (0, 1, 1, 1, 1, 2, 3, 5, 7, 8, 16, 17)
"""Of named dims; 1 often, because skips fire on ones."""

_ALL, _REVERSED = (0, 1 << 40, 1), (-1, -(1 << 40), -1)
_CUTS_OF_AN_AXIS = (_ALL, _ALL, (1, 1 << 40, 1), (0, -1, 1), (0, 1, 1), (0, 1 << 40, 2), _REVERSED)

BUDGET = {"MatMul": 2e-5, "Softmax": 2e-6, "LayerNormalization": 2e-5, "ReduceSum": 1e-5, "ReduceMean": 1e-5}
"""Relative error that a node may add; others 1e-6."""


class Tensor(NamedTuple):
    """A value of the model: its name, dims, and whether every device calculates it to the last bit."""

    name: str
    dims: tuple[Formula, ...]
    exact: bool = True


@attrs.frozen
class Model:
    """A model, and what was drawn into it.

    Attributes:
        proto: The model.
        names: Of its inputs' dims.
        features: How often each feature is in it.
        tolerance: Relative, between devices.
    """

    proto: onnx.ModelProto = attrs.field(repr=False)
    names: tuple[str, ...]
    features: Counter[str]
    tolerance: float

    def inputs(self, chance: random.Random) -> dict[str, Array]:
        """Draw sizes, and inputs of these sizes: small whole numbers, so that sums of them are exact."""
        sizes = {name: chance.choice(SIZES) for name in self.names}
        numbers = np.random.default_rng(chance.randrange(1 << 30))
        arrays: dict[str, Array] = {}
        for value in self.proto.graph.input:
            shape = [sizes[d.dim_param] if d.dim_param else d.dim_value for d in value.type.tensor_type.shape.dim]
            arrays[value.name] = numbers.integers(-4, 5, shape).astype(np.float32)
        return arrays


class Builder:
    """Draws nodes one after the other; each method draws one, or returns without one where nothing fits."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.features: Counter[str] = Counter()
        self.count = 0
        self.inputs = self._inputs()
        self.tensors = list(self.inputs)

    def _inputs(self) -> list[Tensor]:
        shapes: list[tuple[Formula, ...]] = [("n", 4), ("n", "m"), ("m", 4), ("n", "m", 4), (1, "n", 4), ("n", "n", 2)]
        return [Tensor(f"x{i}", self.chance.choice(shapes)) for i in range(self.chance.randrange(1, 4))]

    # Tools.

    def pick(self, fits: Callable[[Tensor], bool] = lambda t: True) -> Tensor | None:
        """A tensor, more often one that came lately."""
        found = [t for t in self.tensors if fits(t)]
        if not found:
            return None
        return self.chance.choice(found[-4:] if self.chance.random() < 0.6 else found)

    def constant(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def i64(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def node(self, operator: str, inputs: Sequence[str], outputs: int = 1, **attributes: Any) -> list[str]:
        names = [f"v{self.count + i}" for i in range(outputs)]
        self.count += outputs
        self.nodes.append(helper.make_node(operator, list(inputs), names, **attributes))
        self.features[operator] += 1
        return names

    def keep(self, name: str, dims: Sequence[Formula], exact: bool) -> Tensor:
        tensor = Tensor(name, tuple(dims), exact)
        self.tensors.append(tensor)
        return tensor

    # Element-wise.

    def unary(self, t: Tensor) -> None:
        operator = self.chance.choice(("Neg", "Relu", "Abs", "Identity", "Identity", "Tanh", "Sigmoid"))
        self.keep(self.node(operator, [t.name])[0], t.dims, t.exact and operator not in ("Tanh", "Sigmoid"))

    def same_type(self, t: Tensor) -> None:
        if self.chance.random() < 0.5:
            self.keep(self.node("Cast", [t.name], to=TensorProto.FLOAT)[0], t.dims, t.exact)
        else:
            self.keep(self.node("Dropout", [t.name])[0], t.dims, t.exact)

    def binary(self, t: Tensor) -> None:
        """With itself, another of the same dims (a diamond, often), a scalar, or one that is broadcast."""
        other = self.pick(lambda o: o.dims == t.dims) or t
        drawn = self.chance.random()
        if drawn < 0.2:
            other = Tensor(self.constant(np.float32(self.chance.choice((1, 2, -1)))), ())
        elif drawn < 0.4:
            other = self.pick(lambda o: len(o.dims) <= len(t.dims) and _broadcasts(o.dims, t.dims)) or other
        operator = self.chance.choice(("Add", "Sub", "Max", "Min"))
        pair = [t.name, other.name]
        self.chance.shuffle(pair)
        self.keep(self.node(operator, pair)[0], t.dims, False)

    def where(self, t: Tensor) -> None:
        condition = self.pick(lambda o: o.exact and o.dims == t.dims)
        if condition is not None:
            chosen = self.node("Greater", [condition.name, self.constant(np.float32(0))])[0]
            self.keep(self.node("Where", [chosen, t.name, self.constant(np.float32(0))])[0], t.dims, t.exact)

    # Movement.

    def transpose(self, t: Tensor) -> None:
        if t.dims:
            order = list(range(len(t.dims)))
            self.chance.shuffle(order)
            self.keep(self.node("Transpose", [t.name], perm=order)[0], [t.dims[i] for i in order], t.exact)

    def unsqueeze(self, t: Tensor) -> None:
        if len(t.dims) < 4:
            axis = self.chance.randrange(len(t.dims) + 1)
            name = self.node("Unsqueeze", [t.name, self.i64(axis)])[0]
            self.keep(name, [*t.dims[:axis], 1, *t.dims[axis:]], t.exact)

    def squeeze(self, t: Tensor) -> None:
        ones = [i for i, d in enumerate(t.dims) if d == 1]
        if ones:
            axis = self.chance.choice(ones)
            self.keep(
                self.node("Squeeze", [t.name, self.i64(axis)])[0], [*t.dims[:axis], *t.dims[axis + 1 :]], t.exact
            )

    def flatten(self, t: Tensor) -> None:
        if t.dims:
            axis = self.chance.randrange(len(t.dims) + 1)
            dims = (_product(t.dims[:axis]), _product(t.dims[axis:]))
            self.keep(self.node("Flatten", [t.name], axis=axis)[0], dims, t.exact)

    def reshape_as_another(self, t: Tensor) -> None:
        """To the shape of another of as many elements, which only the request has."""
        other = self.pick(lambda o: o != t and _product(o.dims) == _product(t.dims))
        if other is not None:
            shape = self.node("Shape", [other.name])[0]
            self.keep(self.node("Reshape", [t.name, shape], allowzero=1)[0], other.dims, t.exact)

    def reshape_by_arithmetic(self, t: Tensor) -> None:
        """Its last two axes become one, by Shape, Slice and Concat."""
        if len(t.dims) >= 2:
            shape = self.node("Shape", [t.name])[0]
            front = self.node("Slice", [shape, self.i64(0), self.i64(-2)])[0]
            back = self.node("Slice", [shape, self.i64(-2), self.i64(1 << 40)])[0]
            last = self.node("ReduceProd", [back], keepdims=1)[0]
            whole = self.node("Concat", [front, last], axis=0)[0]
            dims = [*t.dims[:-2], _product(t.dims[-2:])]
            self.keep(self.node("Reshape", [t.name, whole], allowzero=1)[0], dims, t.exact)

    def slice(self, t: Tensor) -> None:
        if t.dims:
            axis = self.chance.randrange(len(t.dims))
            start, end, step = self.chance.choice(_CUTS_OF_AN_AXIS)
            bounds = [self.i64(v) for v in (start, end, axis, step)]
            dims = list(t.dims)
            if (start, end, step) not in (_ALL, _REVERSED):
                dims[axis] = _sliced(dims[axis], start, end, step)
            self.keep(self.node("Slice", [t.name, *bounds])[0], dims, t.exact)

    def split(self, t: Tensor) -> None:
        axes = [i for i, d in enumerate(t.dims) if isinstance(d, int) and d >= 2]
        if axes:
            axis = self.chance.choice(axes)
            whole = t.dims[axis]
            assert isinstance(whole, int)
            sizes = [1, whole - 1] if self.chance.random() < 0.5 else [whole, 0]
            names = self.node("Split", [t.name, self.i64(*sizes)], 2, axis=axis)
            for name, size in zip(names, sizes, strict=True):
                self.keep(name, [*t.dims[:axis], size, *t.dims[axis + 1 :]], t.exact)

    def concat(self, t: Tensor) -> None:
        """Of two or three that fit beside each other; the same one twice, too."""
        if t.dims:
            axis = self.chance.randrange(len(t.dims))

            def beside(o: Tensor) -> bool:
                return len(o.dims) == len(t.dims) and all(
                    a == b for i, (a, b) in enumerate(zip(o.dims, t.dims, strict=True)) if i != axis
                )

            parts = [t, *filter(None, (self.pick(beside) for _ in range(self.chance.randrange(1, 3))))]
            self.chance.shuffle(parts)
            dims = list(t.dims)
            dims[axis] = _sum([p.dims[axis] for p in parts])
            name = self.node("Concat", [p.name for p in parts], axis=axis)[0]
            self.keep(name, dims, all(p.exact for p in parts))

    def expand(self, t: Tensor) -> None:
        other = self.pick(lambda o: len(o.dims) >= len(t.dims) and _broadcasts(t.dims, o.dims))
        if other is not None:
            shape = self.node("Shape", [other.name])[0]
            self.keep(self.node("Expand", [t.name, shape])[0], other.dims, t.exact)

    def gather(self, t: Tensor) -> None:
        axes = [i for i, d in enumerate(t.dims) if isinstance(d, int) and d >= 1]
        if axes:
            axis = self.chance.choice(axes)
            size = t.dims[axis]
            assert isinstance(size, int)
            order = list(range(size)) if self.chance.random() < 0.5 else [self.chance.randrange(size) for _ in range(3)]
            name = self.node("Gather", [t.name, self.i64(*order)], axis=axis)[0]
            self.keep(name, [*t.dims[:axis], len(order), *t.dims[axis + 1 :]], t.exact)

    def pad(self, t: Tensor) -> None:
        if t.dims:
            by = self.chance.choice((0, 0, 1))
            pads = [0] * (2 * len(t.dims))
            pads[-1] = by
            name = self.node("Pad", [t.name, self.i64(*pads)])[0]
            self.keep(name, [*t.dims[:-1], _sum([t.dims[-1], by])], t.exact)

    def tile(self, t: Tensor) -> None:
        if t.dims:
            times = [1] * len(t.dims)
            times[0] = self.chance.choice((1, 1, 2))
            dims = [_product([times[0], t.dims[0]]), *t.dims[1:]]
            self.keep(self.node("Tile", [t.name, self.i64(*times)])[0], dims, t.exact)

    # What reduces and multiplies.

    def reduce(self, t: Tensor) -> None:
        if t.dims:
            axis, keepdims = self.chance.randrange(len(t.dims)), self.chance.randrange(2)
            operator = "ReduceSum"
            if isinstance(t.dims[axis], int) and t.dims[axis] != 0:
                operator = self.chance.choice(("ReduceSum", "ReduceMax", "ReduceMean"))
            name = self.node(operator, [t.name, self.i64(axis)], keepdims=keepdims)[0]
            dims = [*t.dims[:axis], *([1] if keepdims else []), *t.dims[axis + 1 :]]
            self.keep(name, dims, t.exact and operator == "ReduceMax")

    def matmul(self, t: Tensor) -> None:
        if len(t.dims) >= 2 and isinstance(t.dims[-1], int) and t.dims[-1]:
            numbers = np.random.default_rng(self.chance.randrange(1 << 30))
            weights = numbers.integers(-2, 3, (t.dims[-1], 4)).astype(np.float32) / 4
            self.keep(self.node("MatMul", [t.name, self.constant(weights)])[0], [*t.dims[:-1], 4], False)

    def normalize(self, t: Tensor) -> None:
        if len(t.dims) >= 2 and isinstance(t.dims[-1], int) and t.dims[-1]:
            if self.chance.random() < 0.5:
                self.keep(self.node("Softmax", [t.name], axis=-1)[0], t.dims, False)
            else:
                scale = self.constant(np.ones(t.dims[-1], np.float32))
                self.keep(self.node("LayerNormalization", [t.name, scale], epsilon=0.1)[0], t.dims, False)

    # What cuts the program.

    def positions(self, t: Tensor) -> None:
        """How many elements are above zero: a shape that only the device knows."""
        if t.exact and t.dims:
            above = self.node("Relu", [t.name])[0]
            found = self.node("NonZero", [above])[0]
            count: Formula = ("nonzero", t.name)
            turned = self.node("Transpose", [found], perm=[1, 0])[0]
            self.keep(self.node("GatherND", [above, turned])[0], [count], True)

    def repeated(self, t: Tensor) -> None:
        """As many elements as the sum of an input says, but at most three."""
        source = self.pick(lambda o: o.exact)
        if source is not None and source in self.inputs:
            total = self.node("ReduceSum", [source.name], keepdims=0)[0]
            low = self.node("Clip", [total, self.constant(np.float32(0)), self.constant(np.float32(3))])[0]
            count = self.node("Cast", [low], to=TensorProto.INT64)[0]
            line = self.node("Range", [self.constant(np.int64(0)), count, self.constant(np.int64(1))])[0]
            self.keep(self.node("Cast", [line], to=TensorProto.FLOAT)[0], [("range", source.name)], True)

    def condition(self) -> str | None:
        """What a size of an input says, which is known before a request is planned, or the sum of its elements."""
        source = self.pick(lambda o: o.exact and o in self.inputs)
        if source is None:
            return None
        if source.dims and self.chance.random() < 0.5:
            size = self.node("Gather", [self.node("Shape", [source.name])[0], self.constant(np.int64(0))])[0]
            return self.node("Greater", [size, self.constant(np.int64(2))])[0]
        total = self.node("ReduceSum", [source.name], keepdims=0)[0]
        return self.node("Greater", [total, self.constant(np.float32(0))])[0]

    def branch(self, t: Tensor) -> None:
        """An If whose branches are a view, a kernel, the value itself or an outer constant, all of one shape."""
        condition = self.condition()
        if condition is not None:
            other = self.pick(lambda o: o.dims == t.dims) or t
            ways = [("Neg", t.name), ("Identity", other.name), ("Abs", other.name), ("Identity", t.name)]
            graphs = []
            for label in ("then", "else"):
                operator, source = self.chance.choice(ways)
                out = f"{label}{self.count}"
                node = helper.make_node(operator, [source], [out])
                graphs.append(helper.make_graph([node], label, [], [onnx.ValueInfoProto(name=out)]))
            name = self.node("If", [condition], then_branch=graphs[0], else_branch=graphs[1])[0]
            self.keep(name, t.dims, t.exact and other.exact)

    def loop(self, t: Tensor) -> None:
        """A few trips; each turns the sign and adds a value from outside."""
        names = {k: f"{k}{self.count}" for k in ("i", "go", "x", "again", "neg", "next", "row")}
        nodes = [
            helper.make_node("Identity", [names["go"]], [names["again"]]),
            helper.make_node("Neg", [names["x"]], [names["neg"]]),
            helper.make_node("Add", [names["neg"], t.name], [names["next"]]),
            helper.make_node("Identity", [names["neg"]], [names["row"]]),
        ]
        inputs = [
            helper.make_tensor_value_info(names["i"], TensorProto.INT64, []),
            helper.make_tensor_value_info(names["go"], TensorProto.BOOL, []),
            helper.make_tensor_value_info(names["x"], TensorProto.FLOAT, None),
        ]
        outputs = [onnx.ValueInfoProto(name=names[k]) for k in ("again", "next", "row")]
        body = helper.make_graph(nodes, "body", inputs, outputs)
        trips = self.chance.randrange(0, 4)
        found = self.node("Loop", [self.constant(np.int64(trips)), "", t.name], 2, body=body)
        self.keep(found[0], t.dims, False)
        if trips:
            self.keep(found[1], [trips, *t.dims], False)


_MOVES = (
    Builder.transpose, Builder.unsqueeze, Builder.squeeze, Builder.flatten, Builder.reshape_as_another,
    Builder.reshape_by_arithmetic, Builder.slice, Builder.split, Builder.concat, Builder.concat, Builder.expand,
    Builder.gather, Builder.pad, Builder.tile, Builder.same_type,
)  # fmt: skip
_WORK = (Builder.unary, Builder.unary, Builder.binary, Builder.binary, Builder.where, Builder.reduce)
_HEAVY = (Builder.matmul, Builder.normalize)
_CUTS = (Builder.positions, Builder.repeated, Builder.branch, Builder.loop)


def draw_model(chance: random.Random) -> Model:
    """Draw a model of 3 to 20 steps."""
    builder = Builder(chance)
    for _ in range(chance.randrange(3, 21)):
        drawn = chance.random()
        kind = _MOVES if drawn < 0.55 else _WORK if drawn < 0.85 else _HEAVY if drawn < 0.93 else _CUTS
        tensor = builder.pick()
        assert tensor is not None
        chance.choice(kind)(builder, tensor)
    outputs = [builder.tensors[-1]]
    outputs += [t for t in builder.tensors if chance.random() < 0.2]
    names = list(dict.fromkeys(t.name for t in outputs))
    inputs = [t.name for t in builder.inputs]
    made = [n for n in names if n not in inputs]
    returned = [n for n in names if n in inputs]
    for name in returned:
        made.append(builder.node("Identity", [name])[0])
        builder.features["input returned"] += 1
    graph = helper.make_graph(
        builder.nodes,
        "drawn",
        [_value(t) for t in builder.inputs],
        [onnx.ValueInfoProto(name=n) for n in made],
        [numpy_helper.from_array(array, name) for name, array in builder.constants.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    dims = dict.fromkeys(d for t in builder.inputs for d in t.dims if isinstance(d, str))
    tolerance = 1e-6 + sum(BUDGET.get(n.op_type, 1e-6) for n in builder.nodes)
    return Model(proto, tuple(dims), builder.features, tolerance)


def _value(tensor: Tensor) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT, list(tensor.dims))


def _broadcasts(dims: Sequence[Formula], to: Sequence[Formula]) -> bool:
    """Whether *dims* are those of *to*, or ones, counted from the end."""
    return all(a in (b, 1) for a, b in zip(reversed(dims), reversed(to), strict=False))


def _product(dims: Sequence[Formula]) -> Formula:
    """In a form in which equal products are equal."""
    factors: list[Formula] = []
    number = 1
    for dim in dims:
        if isinstance(dim, int):
            number *= dim
        elif isinstance(dim, tuple) and dim[0] == "product":
            number *= dim[1]
            factors += dim[2:]
        else:
            factors.append(dim)
    if number == 0 or not factors:
        return number
    if number == 1 and len(factors) == 1:
        return factors[0]
    return ("product", number, *sorted(factors, key=repr))


def _sum(dims: Sequence[Formula]) -> Formula:
    terms: list[Formula] = []
    number = 0
    for dim in dims:
        if isinstance(dim, int):
            number += dim
        elif isinstance(dim, tuple) and dim[0] == "sum":
            number += dim[1]
            terms += dim[2:]
        else:
            terms.append(dim)
    if not terms:
        return number
    if number == 0 and len(terms) == 1:
        return terms[0]
    return ("sum", number, *sorted(terms, key=repr))


def _sliced(dim: Formula, start: int, end: int, step: int) -> Formula:
    return len(range(dim)[start:end:step]) if isinstance(dim, int) else ("slice", dim, start, end, step)
