"""Operators made of other operators: a model's own functions, and those whose ONNX schema has a body.

A node of such an operator is replaced by the nodes of its body, under names that nothing else has. Nothing is
converted: a body's nodes keep the opsets that the body was written for.
"""

# pyright: reportAttributeAccessIssue=false
# Onnx's stubs lack some of its schemas' attributes.

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import attrs
import onnx
from onnx import defs

from asyncrt.errors import ModelFormatError, ModelLimitError, UnsupportedOperatorError
from asyncrt.layout import PartialLayout

from .onnx_types import proto_of

MAX_NESTING = 32  # graphs in graphs

Opsets: TypeAlias = Mapping[str, int]
#: Makes a name that nothing else has from one that something may have.
Fresh: TypeAlias = Callable[[str], str]


@attrs.frozen(eq=False)
class FunctionBody:
    """What a node of a function stands for.

    Attributes:
        function: Its nodes, under the function's own names.
        opsets: The versions that they are written for, by domain.
        defaults: Attributes of the function where the node gives none.
    """

    function: onnx.FunctionProto
    opsets: Opsets
    defaults: Mapping[str, onnx.AttributeProto]


class LocalFunctions:
    """The functions that come with a model.

    Args:
        opsets: The model's, for domains that a function does not name.
        most: Nodes that the model may have with its functions written out; ten lines can ask for more than any memory
            holds.

    Raises:
        ModelFormatError: One is defined twice, or uses itself.
        ModelLimitError: Written out, the model would be too long.
    """

    def __init__(self, model: onnx.ModelProto, opsets: Opsets, most: int) -> None:
        self._bodies: dict[tuple[str, str, str], FunctionBody] = {}
        for function in model.functions:
            key = (_domain(function.domain), function.name, function.overload)
            if key in self._bodies:
                raise ModelFormatError(f"the model defines the function {_show(key)} twice")
            defaults = {a.name: a for a in function.attribute_proto}
            self._bodies[key] = FunctionBody(function, {**opsets, **opsets_of(function.opset_import)}, defaults)
        count = self._count(model.graph.node, {})
        if count > most:
            out = ", its functions written out" if self._bodies else ""
            raise ModelLimitError(
                f"the model has {count} nodes{out}; RuntimeOptions.max_nodes is {most}",
                hint="raise max_nodes, if the model is to be trusted",
            )

    def find(self, node: onnx.NodeProto) -> FunctionBody | None:
        """Return what *node* stands for, or None if it is of no function of the model."""
        return self._bodies.get((_domain(node.domain), node.op_type, node.overload)) if self._bodies else None

    def _count(self, nodes: Iterable[onnx.NodeProto], known: dict[int, int | None]) -> int:
        """How many nodes *nodes* are with all functions written out; *known* is None for one that is being counted."""
        total = 0
        for node in walk(nodes):
            total += 1
            body = self.find(node)
            if body is None:
                continue
            if id(body) not in known:
                known[id(body)] = None
                known[id(body)] = self._count(body.function.node, known)
            inside = known[id(body)]
            if inside is None:
                raise ModelFormatError(f"the function {node.op_type} of the model uses itself")
            total += inside
        return total


def has_body(schema: defs.OpSchema) -> bool:
    """Whether ONNX defines an operator by others, for some inputs at least."""
    return bool(schema.has_function or schema.has_context_dependent_function)


def schema_body(
    schema: defs.OpSchema,
    node: onnx.NodeProto,
    opset: int,
    inputs: Sequence[PartialLayout | None],
    opsets: Opsets,
) -> FunctionBody | None:
    """Return the body that ONNX gives an operator, or None if it gives none for these inputs.

    Args:
        node: Checked against *schema*.
        opset: Of the node's domain; a body may have several versions.
        inputs: What is known of the inputs; some bodies depend on their dtypes.
        opsets: The model's: a body of another domain than ONNX's own may not say which of ONNX's it means.
    """
    defaults = {
        name: known.default_value
        for name, known in schema.attributes.items()
        if known.default_value is not None and known.default_value.type != onnx.AttributeProto.UNDEFINED
    }
    try:
        if schema.has_function:
            version = max(v for v in schema.function_opset_versions if v <= opset)
            data = schema.get_function_with_opset_version(version)
        elif schema.has_context_dependent_function:
            version = max(v for v in schema.context_dependent_function_opset_versions if v <= opset)
            names = itertools.count()  # onnx writes the body as a text, in which names are words
            given = _Writer({}, lambda name: f"inner_{next(names)}").node(node, {})
            named = {a.name for a in node.attribute}
            given.attribute.extend(d for name, d in defaults.items() if name not in named)
            types = [proto_of(layout or PartialLayout(None, None)).SerializeToString() for layout in inputs]
            data = schema.get_context_dependent_function_with_opset_version(version, given.SerializeToString(), types)
        else:
            return None
    except Exception:  # onnx has no body for this version, or refuses these inputs
        return None
    function = onnx.FunctionProto.FromString(data)
    if not function.node:
        return None
    own = opsets_of(function.opset_import)
    written = {**opsets, schema.domain: version, **own} if schema.domain else {"": version, **own}
    return FunctionBody(function, written, defaults)


def instantiate(body: FunctionBody, node: onnx.NodeProto, title: str, fresh: Fresh) -> list[onnx.NodeProto]:
    """Return the body's nodes for *node*: formal names replaced by the node's, all others by fresh ones.

    Raises:
        ModelFormatError: The node does not fit the function, or the body contradicts itself.
    """
    function = body.function
    for what, given, formal in (("inputs", node.input, function.input), ("outputs", node.output, function.output)):
        if len(given) > len(formal):
            raise ModelFormatError(f"{title}: the function {node.op_type} has {len(formal)} {what}, got {len(given)}")
    names = dict(itertools.zip_longest(function.input, node.input, fillvalue=""))
    made = [output for inner in function.node for output in inner.output if output]
    for output in made:
        if output in names:
            raise ModelFormatError(f"{title}: the body of {node.op_type} defines '{output}' twice")
    for formal, actual in zip(function.output, node.output, strict=False):
        if formal not in made:
            raise ModelFormatError(f"{title}: the body of {node.op_type} does not make its output '{formal}'")
        if actual:
            names[formal] = actual
    for output in made:
        if output not in names:
            names[output] = fresh(f"{title}/{output}")
    attributes = dict(body.defaults)
    known = {*function.attribute, *attributes}
    for attribute in node.attribute:
        if attribute.name not in known:
            raise UnsupportedOperatorError(f"{title}: the function {node.op_type} has no attribute '{attribute.name}'")
        attributes[attribute.name] = attribute
    writer = _Writer(attributes, lambda name: fresh(f"{title}/{name}"))
    copies: list[onnx.NodeProto] = []
    for index, inner in enumerate(function.node):
        for name in filter(None, used_names(inner)):
            if name not in names:
                raise ModelFormatError(
                    f"{title}: {title_of(inner, index)} in the body of {node.op_type} takes '{name}', "
                    "which nothing there makes"
                )
        copy = writer.node(inner, names)
        copy.name = f"{title}/{title_of(inner, index)}"
        copies.append(copy)
    return copies


@attrs.frozen(eq=False)
class _Writer:
    """Copies nodes under other names, with the function's attributes put in where a body refers to them."""

    attributes: Mapping[str, onnx.AttributeProto]
    fresh: Fresh

    def node(self, node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for field in (copy.input, copy.output):
            field[:] = [name and names.get(name, name) for name in field]
        del copy.attribute[:]
        for attribute in node.attribute:
            given: onnx.AttributeProto | None = attribute
            if attribute.ref_attr_name:
                given = self.attributes.get(attribute.ref_attr_name)
            if given is None:
                continue  # the caller leaves it out, and so does the body
            target = copy.attribute.add()
            target.CopyFrom(given)
            target.name = attribute.name
        if any(True for _ in subgraphs(node)):
            for graph in subgraphs(copy):
                self._graph(graph, names)
        return copy

    def _graph(self, graph: onnx.GraphProto, outside: Mapping[str, str]) -> None:
        names = dict(outside) | {name: self.fresh(name) for name in defined_names(graph)}
        del graph.value_info[:], graph.quantization_annotation[:]
        for named in (*graph.input, *graph.initializer, *(s.values for s in graph.sparse_initializer), *graph.output):
            named.name = names.get(named.name, named.name)
        nodes = [self.node(node, names) for node in graph.node]
        del graph.node[:]
        graph.node.extend(nodes)


# Names.


def used_names(node: onnx.NodeProto) -> set[str]:
    """Return the values that a node takes, with those that its subgraphs take from outside."""
    return set(filter(None, node.input)) | captured_names(node)


def captured_names(node: onnx.NodeProto) -> set[str]:
    """Return the values that a node's subgraphs take from outside."""
    return set().union(*(names_from_outside(graph) for graph in subgraphs(node)))


def names_from_outside(graph: onnx.GraphProto) -> set[str]:
    """Return the values that a subgraph takes from outside: for its nodes, for graphs inside these, as its outputs."""
    taken = {name for info in graph.output if (name := info.name)}
    for inner in graph.node:
        taken |= used_names(inner)
    return taken - defined_names(graph)


def defined_names(graph: onnx.GraphProto) -> set[str]:
    """Return the values that a graph itself defines."""
    names = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    names |= {s.values.name for s in graph.sparse_initializer}
    names |= {output for node in graph.node for output in node.output}
    return names - {""}


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs among a node's attributes."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            yield from attribute.graphs


def walk(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield *nodes* and all nodes inside them.

    Raises:
        ModelFormatError: Graphs are nested more than `MAX_NESTING` deep.
    """
    waiting = [(nodes, 0)]
    while waiting:
        level, depth = waiting.pop()
        if depth > MAX_NESTING:
            raise ModelFormatError(f"the model has graphs in graphs, more than {MAX_NESTING} deep")
        for node in level:
            yield node
            if node.attribute:
                waiting += [(graph.node, depth + 1) for graph in subgraphs(node)]


def title_of(node: onnx.NodeProto, index: int) -> str:
    """Return a node's name, or one made of its operator and place."""
    return node.name or f"{node.op_type}_{index}"


def opsets_of(entries: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Return the opset of each domain.

    Raises:
        ModelFormatError: A domain has two.
        UnsupportedOperatorError: asyncrt does not read that version of ONNX's own operators.
    """
    opsets: dict[str, int] = {}
    for entry in entries:
        domain, version = _domain(entry.domain), entry.version
        if opsets.setdefault(domain, version) != version:
            raise ModelFormatError(f"opsets {opsets[domain]} and {version} of domain '{domain}' at once")
        if not 0 <= version < 1 << 31:
            raise ModelFormatError(f"{version} is no opset of domain '{domain}'")
        newest = defs.onnx_opset_version()
        if domain == "" and not 1 <= version <= newest:
            raise UnsupportedOperatorError(
                f"the model uses opset {version}; asyncrt reads 1 to {newest}",
                hint="a newer onnx package may know it",
            )
    return opsets


def _domain(domain: str) -> str:
    """ONNX's own operators have two names for their domain."""
    return "" if domain == "ai.onnx" else domain


def _show(key: tuple[str, str, str]) -> str:
    return ":".join(filter(None, key))
