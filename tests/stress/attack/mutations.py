"""Ways to change a model so that it is wrong, or only strange: each a function that changes one thing.

A mutation may leave a model that is right; then it has to run. What is drawn are values at the edges of what their
types hold, names that stand for something else or for nothing, and structure that no exporter would write.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from asyncrt.kernels.registry import operators

Mutation: TypeAlias = Callable[[random.Random, onnx.ModelProto], object]
Graph: TypeAlias = "onnx.GraphProto | onnx.FunctionProto"

INTS = (0, 1, -1, 2, 3, 7, 255, -2, -128, 65536, 2**31 - 1, 2**31, -(2**31), 2**32, 2**62, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.0, -1.5, 0.5, 1e-45, 3e38, -3e38, 65504.0, 2.0**31, 2.0**63, np.inf, -np.inf, np.nan)
DIMS = (0, 1, 2, 3, -1, -5, 2**16, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1)
TEXTS = ("", "\0", "SAME_UPPER", "VALID", "linear", "cubic", "reflect", "none", "bilinear", "ij,jk->ik", "...", "é")
NAMES = ("", " ", "n", "n+1", "n*n", "-1", "9", "batch", "x0_0", "\u2028", "a" * 3000, "__init__", "%s{0}")
TYPES = (0, 1, 2, 3, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 17, 21, 22, 23, 99, -1, 2**31 - 1)
PLACES = (
    "", ".", "..", "../secret", "/etc/passwd", "link", "loop", "up/secret", "folder", "folder/../../secret", "nothing",
    "./weights.bin", "weights.bin/", "weights.bin\0", "\\..\\secret", "file:///etc/passwd", "/dev/zero",
    "/proc/self/mem", "w" * 5000,
)  # fmt: skip
NUMBERS = ("", "0", "1", "4", "-1", "64", "4096", str(2**31), str(2**63), str(2**70), "1e3", "0x10", " 8", "eight", "²")


def graphs(model: onnx.ModelProto) -> Iterator[Graph]:
    """Every graph of a model, functions too."""
    todo: list[Graph] = [model.graph, *model.functions]
    for graph in todo:
        yield graph
        if len(todo) < 200:
            for node in graph.node:
                for attribute in node.attribute:
                    if attribute.type == AttributeProto.GRAPH:
                        todo.append(attribute.g)
                    todo.extend(attribute.graphs)


def some_graph(chance: random.Random, model: onnx.ModelProto) -> Graph:
    """One that has nodes, if any does."""
    all_of_them = list(graphs(model))
    return chance.choice([g for g in all_of_them if g.node] or all_of_them)


def some_node(chance: random.Random, model: onnx.ModelProto) -> onnx.NodeProto:
    """One node; a new one where there is none."""
    nodes = some_graph(chance, model).node
    return chance.choice(nodes) if nodes else model.graph.node.add(op_type="Relu")


def names_of(graph: Graph) -> list[str]:
    """What is defined in a graph."""
    given = [i if isinstance(i, str) else i.name for i in graph.input]
    constants = [t.name for t in graph.initializer] if isinstance(graph, onnx.GraphProto) else []
    return [*given, *constants, *(o for n in graph.node for o in n.output)] or ["x"]


def tensors(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Every tensor."""
    found: list[onnx.TensorProto] = []
    for graph in graphs(model):
        if isinstance(graph, onnx.GraphProto):
            found += graph.initializer
        found += [a.t for n in graph.node for a in n.attribute if a.type == AttributeProto.TENSOR]
    return found


def infos(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Every declaration of a value."""
    return [i for g in graphs(model) if isinstance(g, onnx.GraphProto) for i in (*g.input, *g.output, *g.value_info)]


# Attributes.


def set_attribute(chance: random.Random, attribute: onnx.AttributeProto) -> None:
    """Give an attribute another value of its type."""
    kind = attribute.type
    if kind == AttributeProto.INT:
        attribute.i = chance.choice(INTS)
    elif kind == AttributeProto.FLOAT:
        attribute.f = chance.choice(FLOATS)
    elif kind == AttributeProto.STRING:
        attribute.s = chance.choice(TEXTS).encode() if chance.random() < 0.9 else b"\xff\xfe"
    elif kind == AttributeProto.INTS:
        attribute.ints[:] = _listed(chance, list(attribute.ints), INTS)
    elif kind == AttributeProto.FLOATS:
        attribute.floats[:] = _listed(chance, list(attribute.floats), FLOATS)
    elif kind == AttributeProto.STRINGS:
        attribute.strings[:] = _listed(chance, list(attribute.strings), [t.encode() for t in TEXTS])
    elif kind == AttributeProto.TENSOR:
        change_tensor(chance, attribute.t)


def _listed(chance: random.Random, values: list[Any], edges: Any) -> list[Any]:
    what = chance.randrange(7)
    if what == 0 or not values:
        return [chance.choice(edges) for _ in range(chance.choice((0, 0, 1, 2, 4)))]
    if what == 1:
        return values[:-1]
    if what == 2:
        return values + [chance.choice(edges)]
    if what == 3:
        return values * chance.choice((2, 1000))
    values[chance.randrange(len(values))] = chance.choice(edges)
    return values


def attribute_at_the_edge(chance: random.Random, model: onnx.ModelProto) -> None:
    node = some_node(chance, model)
    if node.attribute:
        set_attribute(chance, chance.choice(node.attribute))
    else:
        attribute_of_the_schema(chance, model)


def attribute_of_the_schema(chance: random.Random, model: onnx.ModelProto) -> None:
    """One that its operator knows, at an edge."""
    node = some_node(chance, model)
    schema = _schema(node.op_type, node.domain)
    if schema is None or not schema.attributes:
        return
    known = schema.attributes[chance.choice(sorted(schema.attributes))]
    found = [a for a in node.attribute if a.name == known.name]
    attribute = found[0] if found else node.attribute.add(name=known.name, type=int(known.type))
    if known.name == "to" or known.name == "dtype":
        attribute.i = chance.choice(TYPES)
    else:
        set_attribute(chance, attribute)


def _schema(name: str, domain: str) -> Any:
    try:
        return onnx.defs.get_schema(name, 21, domain)
    except onnx.defs.SchemaError:
        return None


def attribute_of_another_type(chance: random.Random, model: onnx.ModelProto) -> None:
    node = some_node(chance, model)
    if not node.attribute:
        return
    attribute = chance.choice(node.attribute)
    attribute.type = chance.choice((0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13))
    if chance.random() < 0.7:
        set_attribute(chance, attribute)


def attribute_gone_or_twice(chance: random.Random, model: onnx.ModelProto) -> None:
    node = some_node(chance, model)
    if not node.attribute:
        return
    index = chance.randrange(len(node.attribute))
    what = chance.randrange(4)
    if what == 0:
        del node.attribute[index]
    elif what == 1:
        node.attribute.add().CopyFrom(node.attribute[index])
    elif what == 2:
        node.attribute[index].name = chance.choice(NAMES)
    else:
        node.attribute[index].ref_attr_name = chance.choice(NAMES)


# Tensors.


def change_tensor(chance: random.Random, tensor: onnx.TensorProto) -> None:
    """Change what a tensor says of itself, or what it holds."""
    what = chance.randrange(24)
    if what == 0:
        tensor.data_type = chance.choice(TYPES)
    elif what == 1:
        tensor.dims[:] = _listed(chance, list(tensor.dims), DIMS)
    elif what == 2:
        tensor.raw_data = tensor.raw_data[: chance.randrange(len(tensor.raw_data) + 1)]
    elif what == 3:
        tensor.raw_data += bytes(chance.choice((1, 4, 8, 4096)))
    elif what == 4:
        tensor.dims.append(chance.choice(DIMS))
    elif what == 5:
        tensor.int64_data.append(chance.choice(INTS))
    else:  # most often, because this is what loads and runs
        _edges(chance, tensor)


def _edges(chance: random.Random, tensor: onnx.TensorProto) -> None:
    """Some elements of a tensor that is right become those at the edges of its type."""
    try:
        array = np.array(numpy_helper.to_array(tensor))
    except Exception:  # it is wrong already
        return
    flat = array.reshape(-1)
    for _ in range(chance.choice((1, 1, 2, flat.size))):
        if flat.size and array.dtype.kind in "iufb":
            edge = chance.choice(FLOATS if array.dtype.kind == "f" else INTS)
            with np.errstate(all="ignore"):
                flat[chance.randrange(flat.size)] = np.asarray(edge).astype(array.dtype)
    if chance.random() < 0.2:  # of another length, or rank
        array = chance.choice((flat[:0], flat[:-1], np.concatenate([flat, flat]), array[None], flat))
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))


def tensor_at_the_edge(chance: random.Random, model: onnx.ModelProto) -> None:
    found = tensors(model)
    if found:
        change_tensor(chance, chance.choice(found))


def constant_becomes_an_input(chance: random.Random, model: onnx.ModelProto) -> None:
    """What was known while loading comes with each request."""
    constants = model.graph.initializer
    if not constants:
        return
    index = chance.randrange(len(constants))
    tensor = constants[index]
    dims = [chance.choice((d, f"{tensor.name}_{axis}")) for axis, d in enumerate(tensor.dims)]
    model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, dims))
    if chance.random() < 0.8:
        del constants[index]


def constant_out_of_thin_air(chance: random.Random, model: onnx.ModelProto) -> None:
    """An input of a node becomes a constant at an edge."""
    node = some_node(chance, model)
    if not node.input:
        return
    kind = chance.choice((np.int64, np.int64, np.float32, np.int32, np.uint8, np.bool_))
    with np.errstate(all="ignore"):
        values = np.asarray([chance.choice(INTS) for _ in range(chance.choice((0, 1, 1, 2, 3)))]).astype(kind)
    name = f"edge{chance.randrange(1000)}"
    if values.size == 1 and chance.random() < 0.5:
        values = values.reshape(())
    model.graph.initializer.append(numpy_helper.from_array(values, name))
    node.input[chance.randrange(len(node.input))] = name


def constant_gone_or_twice(chance: random.Random, model: onnx.ModelProto) -> None:
    constants = model.graph.initializer
    if constants and chance.random() < 0.5:
        del constants[chance.randrange(len(constants))]
    elif constants:
        constants.add().CopyFrom(chance.choice(constants))


def tensor_in_a_file(chance: random.Random, model: onnx.ModelProto) -> None:
    """A constant lies somewhere else: in the folder, beside it, or nowhere."""
    found = tensors(model)
    if not found:
        return
    tensor = chance.choice(found)
    tensor.data_location = TensorProto.EXTERNAL
    keys = {e.key: e for e in tensor.external_data}
    for key, texts in (("location", PLACES), ("offset", NUMBERS), ("length", NUMBERS), ("basepath", PLACES)):
        if chance.random() < (0.8 if key == "location" else 0.3):
            (keys.get(key) or tensor.external_data.add(key=key)).value = chance.choice(texts)


# Shapes and dtypes that are declared.


def dim_at_the_edge(chance: random.Random, model: onnx.ModelProto) -> None:
    shapes = [i.type.tensor_type.shape for i in infos(model) if i.type.tensor_type.HasField("shape")]
    if not shapes:
        return
    dims = chance.choice(shapes).dim
    what = chance.randrange(8)
    if what == 0:
        for _ in range(chance.choice((1, 1, 9, 300))):
            dims.add(dim_param=f"more{len(dims)}")
    elif what == 1 and dims:
        del dims[chance.randrange(len(dims))]
    elif dims:
        dim = chance.choice(dims)
        if what == 2:
            dim.Clear()
        elif what in (3, 4):
            dim.dim_param = chance.choice((*NAMES, *(d.dim_param for d in dims)))
        else:
            dim.dim_value = chance.choice(DIMS)


def declared_otherwise(chance: random.Random, model: onnx.ModelProto) -> None:
    """Another dtype, no shape, no type, or no tensor at all."""
    found = infos(model)
    if not found:
        return
    kind = chance.choice(found).type
    what = chance.randrange(7)
    if what < 3:
        kind.tensor_type.elem_type = chance.choice(TYPES)
    elif what == 3:
        kind.tensor_type.ClearField("shape")
    elif what == 4:
        kind.Clear()
    elif what == 5:
        kind.sequence_type.elem_type.tensor_type.elem_type = 1
    else:
        kind.optional_type.elem_type.tensor_type.elem_type = 1


def input_or_output_gone_or_twice(chance: random.Random, model: onnx.ModelProto) -> None:
    graph = chance.choice([g for g in graphs(model) if isinstance(g, onnx.GraphProto)])
    values = chance.choice((graph.input, graph.output))
    what = chance.randrange(5)
    if what == 0 and values:
        del values[chance.randrange(len(values))]
    elif what == 1 and values:
        values.add().CopyFrom(chance.choice(values))
    elif what == 2 and values:
        chance.choice(values).name = chance.choice((*NAMES, *names_of(graph)))
    elif what == 3:
        graph.output.add(name=chance.choice(names_of(graph)))
    elif values:
        values.add().CopyFrom(chance.choice(values))
        values[-1].name = f"more{len(values)}"


# Nodes.


def wire(chance: random.Random, model: onnx.ModelProto) -> None:
    """An input of a node comes from elsewhere, or from nowhere."""
    graph = some_graph(chance, model)
    if not graph.node:
        return
    node = chance.choice(graph.node)
    what = chance.randrange(7)
    if what == 0 and len(node.input) > 1:
        a, b = chance.sample(range(len(node.input)), 2)
        node.input[a], node.input[b] = node.input[b], node.input[a]
    elif what == 1 and node.input:
        del node.input[chance.randrange(len(node.input))]
    elif what == 2:
        node.input.extend([chance.choice((*names_of(graph), ""))] * chance.choice((1, 1, 300)))
    elif node.input:
        chosen = chance.choice((*names_of(graph), *names_of(graph), *names_of(graph), *NAMES))
        node.input[chance.randrange(len(node.input))] = chosen


def outputs_renamed(chance: random.Random, model: onnx.ModelProto) -> None:
    graph = some_graph(chance, model)
    if not graph.node:
        return
    node = chance.choice(graph.node)
    what = chance.randrange(5)
    if what == 0 and node.output:
        del node.output[chance.randrange(len(node.output))]
    elif what == 1:
        node.output.extend([f"more{i}" for i in range(chance.choice((1, 2, 300)))])
    elif node.output:
        node.output[chance.randrange(len(node.output))] = chance.choice((*names_of(graph), *NAMES))


def nodes_moved(chance: random.Random, model: onnx.ModelProto) -> None:
    """One node is gone, twice there, or somewhere else."""
    nodes = some_graph(chance, model).node
    if not nodes:
        return
    index = chance.randrange(len(nodes))
    node = onnx.NodeProto.FromString(nodes[index].SerializeToString())
    if chance.random() < 0.7:
        del nodes[index]
    if chance.random() < 0.7:
        nodes.insert(chance.randrange(len(nodes) + 1), node)


def node_inserted(chance: random.Random, model: onnx.ModelProto) -> None:
    """Any operator reads what there is, and whoever read that now reads it."""
    graph = some_graph(chance, model)
    domain, name = chance.choice(sorted(operators()))
    schema = _schema(name, domain)
    least = 1 if schema is None else max(schema.min_input, 1)
    count = least if schema is None else chance.randint(least, max(least, min(schema.max_input, 6)))
    taken = [chance.choice(names_of(graph)) for _ in range(count)]
    made = f"made{len(graph.node)}_{chance.randrange(1000)}"
    for node in graph.node:
        for index, given in enumerate(node.input):
            if given == taken[0] and chance.random() < 0.7:
                node.input[index] = made
    if isinstance(graph, onnx.GraphProto):
        graph.output.add(name=made)
    graph.node.insert(0, helper.make_node(name, taken, [made], domain=domain))
    if schema is not None:
        for known in schema.attributes.values():
            if known.required:
                set_attribute(chance, graph.node[0].attribute.add(name=known.name, type=int(known.type)))


def another_operator(chance: random.Random, model: onnx.ModelProto) -> None:
    node = some_node(chance, model)
    what = chance.random()
    if what < 0.8:
        node.domain, node.op_type = chance.choice(sorted(operators()))
    elif what < 0.9:
        node.op_type = chance.choice((*NAMES, "SequenceConstruct", "StringConcat", "Optional", "TfIdfVectorizer"))
    else:
        node.domain = chance.choice((*NAMES, "com.microsoft", "ai.onnx", "ai.onnx.ml", "own"))


def graph_copied(chance: random.Random, model: onnx.ModelProto) -> None:
    """A graph is put into itself, once or many times over."""
    holders = [n for g in graphs(model) for n in g.node if any(a.type == AttributeProto.GRAPH for a in n.attribute)]
    if not holders:
        node = model.graph.node.add(op_type=chance.choice(("If", "Loop", "Scan")), input=[names_of(model.graph)[0]])
        node.output.append("held")
        node.attribute.add(name=chance.choice(("then_branch", "body")), type=AttributeProto.GRAPH)
        holders.append(node)
    attribute = chance.choice([a for a in chance.choice(holders).attribute if a.type == AttributeProto.GRAPH])
    copied = chance.choice([g for g in graphs(model) if isinstance(g, onnx.GraphProto)])
    for _ in range(chance.choice((1, 1, 1, 6))):
        text = copied.SerializeToString()
        if len(text) > 1 << 18:
            return
        attribute.g.ParseFromString(text)


def function_changed(chance: random.Random, model: onnx.ModelProto) -> None:
    """A function calls itself or another, shadows an operator, is there twice or not at all."""
    if not model.functions:
        function = model.functions.add(name="Own", domain=chance.choice(("", "own")), input=["p"], output=["q"])
        function.node.add(op_type=some_node(chance, model).op_type, input=["p"], output=["q"])
        function.opset_import.add(version=18)
        model.opset_import.add(domain="own", version=1)
    function = chance.choice(model.functions)
    what = chance.randrange(6)
    if what == 0:
        called = chance.choice(model.functions)
        function.node.add(op_type=called.name, domain=called.domain, input=function.input, output=function.output)
    elif what == 1:
        node = some_node(chance, model)
        function.name, function.domain = node.op_type, node.domain
    elif what == 2:
        model.functions.add().CopyFrom(function)
    elif what == 3:
        model.functions.remove(function)
    elif what == 4:
        function.input.append(chance.choice((*NAMES, "p")))
    else:
        node = some_node(chance, model)
        node.op_type, node.domain = function.name, function.domain


# The model itself.


def opset(chance: random.Random, model: onnx.ModelProto) -> None:
    """Another opset, two, or none."""
    what = chance.randrange(6)
    if what == 0:
        del model.opset_import[:]
    elif what == 1:
        model.opset_import.add(domain=chance.choice(("", "ai.onnx", "own", "\0")), version=chance.choice((1, 18, -1)))
    elif model.opset_import:
        version = chance.choice((*range(11, 25), *range(11, 25), 0, 1, 10, -1, 2**31, 2**63 - 1))
        chance.choice(model.opset_import).version = version


def version(chance: random.Random, model: onnx.ModelProto) -> None:
    model.ir_version = chance.choice((0, 1, 3, 4, 8, 10, 13, 99, -1, 2**63 - 1))


def names_all_the_same(chance: random.Random, model: onnx.ModelProto) -> None:
    """Nodes have one name, or a strange one; the model has, too."""
    name = chance.choice(NAMES)
    for node in some_graph(chance, model).node:
        node.name = name
    model.graph.name = chance.choice(NAMES)
    model.producer_name = name


def sparse(chance: random.Random, model: onnx.ModelProto) -> None:
    tensor = model.graph.sparse_initializer.add(dims=[chance.choice(DIMS)])
    tensor.values.CopyFrom(numpy_helper.from_array(np.ones(2, np.float32), chance.choice(names_of(model.graph))))
    tensor.indices.CopyFrom(numpy_helper.from_array(np.array([chance.choice(INTS), 1])))


MUTATIONS: tuple[tuple[Mutation, float], ...] = (
    (attribute_at_the_edge, 20), (attribute_of_the_schema, 14), (attribute_of_another_type, 1),
    (attribute_gone_or_twice, 2), (tensor_at_the_edge, 20), (constant_becomes_an_input, 8),
    (constant_out_of_thin_air, 8), (constant_gone_or_twice, 1), (tensor_in_a_file, 1.5), (dim_at_the_edge, 8),
    (declared_otherwise, 3), (input_or_output_gone_or_twice, 2), (wire, 8), (outputs_renamed, 1.5), (nodes_moved, 3),
    (node_inserted, 8), (another_operator, 7), (graph_copied, 2), (function_changed, 2), (opset, 1.5), (version, 0.5),
    (names_all_the_same, 1), (sparse, 0.3),
)  # fmt: skip
"""Each with how often it is drawn."""


def mutate(chance: random.Random, model: onnx.ModelProto, count: int) -> list[str]:
    """Change *model* so many times; returns the names of what was done."""
    drawn = chance.choices([m for m, _ in MUTATIONS], [w for _, w in MUTATIONS], k=count)
    for mutation in drawn:
        mutation(chance, model)
    return [m.__name__ for m in drawn]


def repair(model: onnx.ModelProto) -> None:
    """Put right what is looked at first, so that the rest is looked at, too."""
    model.ir_version = 10
    domains = {o.domain: o.version for o in model.opset_import}
    del model.opset_import[:]
    for domain in {"": 18, **domains}:
        known = domains.get(domain, 18)
        model.opset_import.add(domain=domain, version=known if 11 <= known <= 23 or domain else 18)


def damage(chance: random.Random, data: bytes) -> bytes:
    """Flip, cut out, double and replace bytes."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 5, 40))):
        place = chance.randrange(len(changed) + 1)
        end = min(len(changed), place + chance.choice((1, 2, 8, 100)))
        what = chance.randrange(7)
        if what == 0:
            del changed[place:]
        elif what == 1:
            del changed[place:end]
        elif what == 2:
            changed[place:place] = changed[place:end] * chance.choice((1, 2, 50))
        elif what == 3:
            other = chance.randrange(len(changed) + 1)
            changed[place:end] = changed[other : other + end - place]
        elif place < len(changed):
            changed[place] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, changed[place] ^ 1 << chance.randrange(8)))
    return bytes(changed)
