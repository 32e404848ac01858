"""From an ONNX file to nodes and values: reading, checking against ONNX's schemas, and nothing else.

Whatever is wrong with a file ends in a `ModelError` that names the node; no input crashes the importer. The schemas of
the onnx package say how many inputs an operator takes, which dtypes, which attributes, and their defaults.
"""

# pyright: reportAttributeAccessIssue=false
# Onnx's stubs lack some of its schemas' attributes.

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import attrs
import onnx
from onnx import defs

from asyncrt.dims import Dim
from asyncrt.errors import ModelError, ModelFormatError, ModelTypeError, UnsupportedOperatorError
from asyncrt.kernels.call import Attributes
from asyncrt.kernels.operator import Operator
from asyncrt.kernels.registry import find_operator
from asyncrt.kinds import ValueType, fits
from asyncrt.layout import (
    Array,
    DataType,
    PartialLayout,
    dtype_of,
    show_shape,
)
from asyncrt.options import RuntimeOptions

from .early_shapes import EarlyShapes
from .evaluator import evaluated
from .functions import (
    FunctionBody,
    LocalFunctions,
    Opsets,
    captured_names,
    defined_names,
    instantiate,
    names_from_outside,
    opsets_of,
    schema_body,
    title_of,
)
from .ir import Graph, ProgramNode, Subgraph, Value
from .names import Names
from .onnx_types import type_of_proto, type_of_string
from .order import in_order
from .reading.limits import check_rank
from .reading.model import read_model
from .reading.source import ModelBytes, ModelSource
from .reading.tensors import TensorReader, dtype_name
from .rewriting.contributed import DOMAINS, contributed_schema
from .rewriting.draft import Draft, Rule
from .rewriting.rules import OPSETS, find_rule
from .sparse import dense
from .subgraphs import CONTROL_FLOW, LABELS, check_subgraphs, formal_types, formal_values

_UNKNOWN = PartialLayout(None, None)
_SCHEMAS = 1024  # operators, in one version of each, of which is kept what their schemas say
_ANY_SIZE = "?"
"""Some exporters write this where a dim has no name, also for several dims of one input: they need not be equal."""

FLAGS = frozenset({
    "align_corners", "allowzero", "antialias", "ceil_mode", "center_point_box", "count_include_pad", "detect_negative",
    "detect_positive", "exclude_outside", "exclusive", "fmod", "input_forget", "interleaved", "inverse", "is_causal",
    "keepdims", "largest", "layout", "linear_before_reset", "new_axis", "noop_with_empty_axes", "onesided", "periodic",
    "reverse", "saturate", "select_last_index", "sorted", "storage_order", "training_mode", "transA", "transB",
    "upper", "zeros",
})  # fmt: skip
"""Attributes that are 0 or 1 in every operator that has them. ONNX does not say what another number means, and runtimes
differ: for some anything but 0 is yes, for others anything but 1 is no."""


def import_model(source: ModelSource | ModelBytes, options: RuntimeOptions) -> Graph:
    """Read and check a model.

    Raises:
        ModelError: One of its children, naming the node.
        OSError: The file cannot be read.
    """
    try:
        model, folder, large = read_model(source, options)
        opsets = opsets_of(model.opset_import)
        if not opsets and 0 < model.ir_version < 3:
            opsets = {"": 1}  # the first files could not say it
        functions = LocalFunctions(model, opsets, options.max_nodes)
        shared = _Shared(options, functions, TensorReader(folder, options), Names())
        graph = _Importer(model.graph, shared).run(opsets, large)
        graph.other_files = shared.tensors.other_files
        return graph
    except RecursionError as error:
        raise ModelFormatError("the model's functions use each other too deeply") from error


@attrs.frozen(eq=False)
class _Shared:
    """What the importers of a model's graphs have in common."""

    options: RuntimeOptions
    functions: LocalFunctions
    tensors: TensorReader
    names: Names


class _Importer:
    """Imports one graph.

    Args:
        proto: The model's graph, or one inside a node.
        prefix: Of the names of its nodes.
        depth: How many nodes it is inside of.
    """

    def __init__(self, proto: onnx.GraphProto, shared: _Shared, prefix: str = "", depth: int = 0) -> None:
        self.proto, self.shared, self.prefix, self.depth = proto, shared, prefix, depth
        self.options, self.functions, self.tensors = shared.options, shared.functions, shared.tensors
        self.fresh = shared.names.fresh
        self.values: list[Value] = []
        self.by_name: dict[str, int] = {}
        self.nodes: list[ProgramNode] = []
        self.shapes = EarlyShapes(self.values, self.nodes)
        self.captured_constants: Mapping[int, Array] = {}
        shared.names.known |= defined_names(proto)
        shared.names.known |= {d.dim_param for i in proto.input for d in i.type.tensor_type.shape.dim}

    def run(self, opsets: Opsets, large: Mapping[int, Array]) -> Graph:
        """Import the model's graph; *large* are the bytes of initializers that lie elsewhere, by their number."""
        self.add_initializers(large)
        given = {t.name for t in self.proto.initializer}
        sparse = {s.values.name for s in self.proto.sparse_initializer}
        inputs: list[int] = []
        for info in self.proto.input:
            layout = self.declared(info)
            if info.name in sparse:
                continue
            if info.name in given:
                given.remove(info.name)
                self.check_default(info.name, layout)
                continue  # IR version 3 lists initializers as inputs; later ones allow it for inputs with a default
            inputs.append(self.add(info.name, "input", layout=layout))
        return self.graph(inputs, opsets)

    def run_inside(
        self,
        label: str,
        types: Sequence[DataType | None],
        first: Sequence[int | None],
        outside: _Importer,
        opsets: Opsets,
    ) -> Subgraph:
        """Import a graph inside a node of *outside*.

        Args:
            types: The dtypes of its formal inputs.
            first: The values that these are when it runs first, by their ids in *outside*; None for one that is made.
        """
        captured: dict[int, int] = {}
        for name in sorted(names_from_outside(self.proto)):
            outer = outside.by_name[name]
            layout = PartialLayout(outside.values[outer].layout.dtype, None)
            captured[self.add(name, "captured value", layout=layout)] = outer
        self.shapes.outside.update({id: (outside.shapes, outer) for id, outer in captured.items()})
        constants = {id: outside.constant(outer) for id, outer in captured.items()}
        self.captured_constants = {id: value for id, value in constants.items() if value is not None}
        self.add_initializers()
        where = self.prefix.rstrip("/")
        if len(self.proto.input) != len(types):
            raise ModelFormatError(f"{where} takes {len(self.proto.input)} inputs, its node gives it {len(types)}")
        inputs: list[int] = []
        for info, dtype in zip(self.proto.input, types, strict=True):
            if _says_type(info.type) and not fits(dtype, declared := type_of_proto(info.type)):
                raise ModelTypeError(
                    f"input '{info.name}' of {where} is {dtype}, declared as {declared or _type_name(info.type)}"
                )
            # Shapes are inferred from the inputs: files declare those of some iteration. The iteration number and the
            # condition have one element, in the shape that the body declares.
            shape = (1,) if len(info.type.tensor_type.shape.dim) == 1 else ()
            inputs.append(self.add(info.name, "input", layout=PartialLayout(dtype, shape)))
        places = [None if value is None else (outside.shapes, value) for value in first]
        self.shapes.outside.update(zip(inputs, places, strict=True))
        return Subgraph(label, self.graph((*inputs, *captured), opsets), len(inputs), captured)

    def graph(self, inputs: Sequence[int], opsets: Opsets) -> Graph:
        self.add_nodes([(node, self.prefix + title_of(node, i)) for i, node in enumerate(self.proto.node)], opsets)
        outputs = self.outputs()
        graph = Graph(self.proto.name, self.values, self.nodes, tuple(inputs), outputs, self.fresh, self.depth)
        graph.keep(self.nodes)
        return graph

    def add_initializers(self, large: Mapping[int, Array] | None = None) -> None:
        for sparse in self.proto.sparse_initializer:
            name = sparse.values.name
            nodes = dense(sparse, name, f"sparse initializer '{name}'", self.fresh)
            self.add_nodes([(node, node.name) for node in nodes], OPSETS)
        last = {tensor.name: i for i, tensor in enumerate(self.proto.initializer)}
        for i, tensor in enumerate(self.proto.initializer):
            if last[tensor.name] != i:
                continue  # exporters write one twice; ONNX Runtime warns and uses the last, too
            raw = None if large is None else large.get(i)
            array = self.tensors.read(tensor, f"initializer '{tensor.name}'", raw)
            self.add(tensor.name, "initializer", constant=array)

    def outputs(self) -> tuple[int, ...]:
        outputs: list[int] = []
        for info in self.proto.output:
            if info.name not in self.by_name:
                raise ModelFormatError(f"output '{info.name}' of the graph is made by no node")
            value = self.values[self.by_name[info.name]]
            if _says_type(info.type) and not fits(value.layout.dtype, type_of_proto(info.type)):
                raise ModelTypeError(
                    f"output '{info.name}' is {value.layout.dtype}, declared as {_type_name(info.type)}"
                )
            outputs.append(value.id)
        return tuple(outputs)

    # Values.

    def add(self, name: str, what: str, *, constant: Array | None = None, layout: PartialLayout = _UNKNOWN) -> int:
        if not name:
            raise ModelFormatError(f"an {what} of the graph has no name")
        if name in self.by_name:
            raise ModelFormatError(f"'{name}' is defined twice, the second time as {what}")
        if constant is not None:
            layout = PartialLayout(dtype_of(constant.dtype), constant.shape)
        value = Value(len(self.values), name, layout, constant=constant)
        self.values.append(value)
        self.by_name[name] = value.id
        return value.id

    def declared(self, info: onnx.ValueInfoProto) -> PartialLayout:
        """Return the layout that the file declares for an input. Dims without a name get a unique one."""
        kind, dtype = info.type.WhichOneof("value"), type_of_proto(info.type)
        if kind is None:
            raise UnsupportedOperatorError(f"input '{info.name}' is a value without a type")
        if dtype is None:
            raise ModelTypeError(f"input '{info.name}' has dtype {_type_name(info.type)}, which asyncrt lacks")
        if isinstance(dtype, ValueType):
            return PartialLayout(dtype, ())
        tensor = info.type.tensor_type
        if not tensor.HasField("shape"):
            return PartialLayout(dtype, None)
        check_rank(len(tensor.shape.dim), f"input '{info.name}'", self.options.max_rank)
        dims: list[int | Dim] = []
        for axis, dim in enumerate(tensor.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value >= 0:
                dims.append(dim.dim_value)
            else:  # some exporters write -1
                name = dim.dim_param if dim.dim_param != _ANY_SIZE else ""
                dims.append(Dim.named(name or self.fresh(f"{info.name}.{axis}")))
        return PartialLayout(dtype, tuple(dims))

    def check_default(self, name: str, declared: PartialLayout) -> None:
        """An input with an initializer is a constant here: callers cannot give another value."""
        actual = self.values[self.by_name[name]].layout
        if actual.dtype is not declared.dtype:
            raise ModelTypeError(f"input '{name}' is {declared.dtype}, its initializer {actual.dtype}")
        shape = actual.shape or ()
        if declared.shape is not None and (
            len(declared.shape) != len(shape)
            or any(isinstance(d, int) and d != s for d, s in zip(declared.shape, shape, strict=True))
        ):
            raise ModelFormatError(
                f"input '{name}' is {show_shape(declared.shape)}, its initializer {show_shape(shape)}"
            )

    # Nodes.

    def add_nodes(self, nodes: Sequence[tuple[onnx.NodeProto, str]], opsets: Opsets) -> None:
        for i in in_order(nodes, self.by_name):
            self.add_node(*nodes[i], opsets)

    def add_node(self, proto: onnx.NodeProto, title: str, opsets: Opsets) -> None:
        body = self.functions.find(proto)
        if body is not None:
            self.add_body(body, proto, title)
            return
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        operator = find_operator(domain, proto.op_type) or (None if domain else CONTROL_FLOW.get(proto.op_type))
        opset = opsets.get(domain, DOMAINS.get(domain))
        schema = None if opset is None else _schema(proto.op_type, opset, domain)
        if schema is None or opset is None:
            where = f" of domain '{domain}'" if domain else ""
            if operator is None:
                raise _missing(title, proto.op_type, where)
            if opset is None:
                raise ModelFormatError(f"{title}: the model does not say which opset it uses{where}")
            raise UnsupportedOperatorError(f"{title}: ONNX knows no operator {proto.op_type} in opset {opset}{where}")
        rule = find_rule(schema, opset)
        if schema.deprecated and rule is None:
            raise UnsupportedOperatorError(f"{title}: {proto.op_type} is deprecated in opset {opset}")
        attributes = self.attributes(proto, schema, opset, title)
        inputs = _trimmed([self.by_name[name] if name else None for name in proto.input], schema.min_input)
        names = _trimmed([name or None for name in proto.output])
        _check_counts(schema, inputs, names, title)
        bound = self.check_types(schema, inputs, title)
        if rule is not None and self.add_rewritten(rule, proto.op_type, title, attributes, inputs, names):
            return
        if operator is None:
            layouts = [None if v is None else self.values[v].layout for v in inputs]
            body = schema_body(schema, proto, opset, layouts, opsets)
            if body is not None:
                self.add_body(body, proto, title)
                return
            operator = evaluated(schema)
            if operator is None:
                raise _missing(title, proto.op_type, f" of domain '{domain}'" if domain else "")
        held: tuple[Subgraph, ...] = ()
        if operator is CONTROL_FLOW.get(operator.name):
            given = formal_types(operator.name, [None if v is None else self.values[v].layout.dtype for v in inputs])
            first = formal_values(operator.name, attributes, inputs)
            held = tuple(
                self.inside(attributes.pop(name), label, given, first, opsets, title)
                for name, label in LABELS[operator.name].items()
            )
            types = check_subgraphs(operator.name, attributes, len(inputs), len(names), held, title)
        else:
            types = self.output_types(operator, schema, attributes, inputs, len(names), bound, title)
        outputs = tuple(
            self.add(name or self.fresh(f"{title}#{i}"), f"output of {title}", layout=PartialLayout(dtype, None))
            for i, (name, dtype) in enumerate(zip(names, types, strict=True))
        )
        captures = tuple(sorted({self.by_name[name] for name in captured_names(proto)}))
        self.nodes.append(
            ProgramNode(
                len(self.nodes), title, operator, attributes, inputs, outputs, types, captures=captures, subgraphs=held
            )
        )

    def inside(
        self,
        proto: onnx.GraphProto,
        label: str,
        types: Sequence[DataType | None],
        first: Sequence[int | None],
        opsets: Opsets,
        title: str,
    ) -> Subgraph:
        """Import a graph inside a node; other arguments as `run_inside` takes them."""
        inner = _Importer(proto, self.shared, f"{title}/{label}/", self.depth + 1)
        return inner.run_inside(label, types, first, self, opsets)

    def constant(self, id: int) -> Array | None:
        """Return a value's constant, also one that a graph inside a node has from outside."""
        constant = self.values[id].constant
        return self.captured_constants.get(id) if constant is None else constant

    def add_rewritten(
        self,
        rule: Rule,
        op: str,
        title: str,
        attributes: Attributes,
        inputs: Sequence[int | None],
        names: Sequence[str | None],
    ) -> bool:
        """Put the nodes of a rule in the place of a node that was checked; return whether the rule has any."""
        given = [None if v is None else self.values[v] for v in inputs]
        draft = Draft(
            op,
            title,
            attributes,
            ["" if v is None else v.name for v in given],
            [name or "" for name in names],
            [None if v is None else v.layout for v in given],
            [None if v is None else self.constant(v) for v in inputs],
            lambda index: None if (value := given[index]) is None else self.shapes.rank(value.id),
            self.fresh,
        )
        results = rule(draft)
        if results is not None:
            self.add_nodes([(node, node.name) for node in draft.nodes(results)], OPSETS)
        return results is not None

    def add_body(self, body: FunctionBody, proto: onnx.NodeProto, title: str) -> None:
        """Put the nodes of a function in the place of a node of it."""
        nodes = [(node, node.name) for node in instantiate(body, proto, title, self.fresh)]
        self.add_nodes(nodes, body.opsets)

    def attributes(
        self, proto: onnx.NodeProto, schema: defs.OpSchema, opset: int, title: str
    ) -> Attributes:
        values: dict[str, Any] = {}
        known = _formal_attributes(schema)
        for name, formal in known.items():
            if formal.default is not None:
                values[name] = self.attribute(formal.default, title)
        given: set[str] = set()
        for attribute in proto.attribute:
            name = attribute.name
            if name not in known:
                raise UnsupportedOperatorError(
                    f"{title}: {proto.op_type} of opset {opset} has no attribute '{name}'",
                    detail=f"it has {', '.join(sorted(known)) or 'none'}",
                )
            if attribute.type != known[name].kind.value:
                raise ModelFormatError(f"{title}: attribute '{name}' should be {known[name].kind.name}")
            if name in given:
                raise ModelFormatError(f"{title}: attribute '{name}' is given twice")
            given.add(name)
            values[name] = self.attribute(attribute, title)
            if name in FLAGS and values[name] not in (0, 1):
                raise ModelFormatError(f"{title}: attribute '{name}' should be 0 or 1, it is {values[name]}")
        for name, formal in known.items():
            if formal.required and name not in values:
                raise ModelFormatError(f"{title}: {proto.op_type} needs the attribute '{name}'")
        return Attributes(values, opset, len(_trimmed([name or None for name in proto.output])))

    def attribute(self, attribute: onnx.AttributeProto, title: str) -> Any:
        kind = onnx.AttributeProto
        if attribute.ref_attr_name:
            raise ModelFormatError(
                f"{title}: attribute '{attribute.name}' is that of a function, '{attribute.ref_attr_name}', "
                "and the node is in none"
            )
        match attribute.type:
            case kind.FLOAT:
                return attribute.f
            case kind.INT:
                return attribute.i
            case kind.STRING:
                return attribute.s.decode("utf-8", "replace")
            case kind.TENSOR:
                return self.tensors.read(attribute.t, f"attribute '{attribute.name}' of {title}")
            case kind.SPARSE_TENSOR:
                return attribute.sparse_tensor
            case kind.FLOATS:
                return tuple(attribute.floats)
            case kind.INTS:
                return tuple(attribute.ints)
            case kind.STRINGS:
                return tuple(s.decode("utf-8", "replace") for s in attribute.strings)
            case kind.GRAPH:
                return attribute.g
            case kind.TYPE_PROTO:
                return type_of_proto(attribute.tp)
        raise UnsupportedOperatorError(
            f"{title}: attribute '{attribute.name}' is a {kind.AttributeType.Name(attribute.type)}"
        )

    # Types.

    def check_types(
        self, schema: defs.OpSchema, inputs: tuple[int | None, ...], title: str
    ) -> Mapping[str, DataType]:
        """Check the inputs' dtypes; return the dtype of each of the schema's type variables."""
        allowed = _allowed(schema)
        bound: dict[str, DataType] = {}
        for i, v in enumerate(inputs):
            dtype = None if v is None else self.values[v].layout.dtype
            if dtype is None:
                continue
            formal = _formal(schema.inputs, i)
            choices = [type_of_string(s) for s in allowed.get(formal.type_str, (formal.type_str,))]
            if dtype not in choices:
                raise ModelTypeError(
                    f"{title}: input {i} ('{formal.name}') of {schema.name} is {dtype}; it takes "
                    + (", ".join(t.name for t in choices if t is not None) or "no tensors")
                )
            one_type = formal.option != defs.OpSchema.FormalParameterOption.Variadic or formal.is_homogeneous
            if formal.type_str in allowed and one_type and bound.setdefault(formal.type_str, dtype) is not dtype:
                raise ModelTypeError(
                    f"{title}: input {i} ('{formal.name}') of {schema.name} is {dtype}, "
                    f"another of the same type is {bound[formal.type_str]}"
                )
        return bound

    def output_types(
        self,
        operator: Operator,
        schema: defs.OpSchema,
        attributes: Attributes,
        inputs: tuple[int | None, ...],
        outputs: int,
        bound: Mapping[str, DataType],
        title: str,
    ) -> tuple[DataType, ...]:
        if operator.types is not None:
            given = [None if v is None else self.values[v].layout.dtype for v in inputs]
            try:
                return tuple(operator.types(attributes, given, outputs))[:outputs]
            except ModelError as error:
                raise type(error)(f"{title}: {error.message}", detail=error.detail, hint=error.hint) from error
            except Exception as error:  # an attribute of the right type may still make no sense
                raise ModelFormatError(f"{title}: {schema.name} does not tell its outputs' dtypes: {error}") from error
        allowed = _allowed(schema)
        result: list[DataType] = []
        for i in range(outputs):
            formal = _formal(schema.outputs, i)
            choices = [type_of_string(s) for s in allowed.get(formal.type_str, (formal.type_str,))]
            dtype = bound.get(formal.type_str) or (choices[0] if len(choices) == 1 else None)
            if dtype is None:
                raise UnsupportedOperatorError(f"{title}: the dtype of output {i} of {operator.name} is not known")
            result.append(dtype)
        return tuple(result)


def _says_type(proto: onnx.TypeProto) -> bool:
    return proto.WhichOneof("value") not in (None, "tensor_type") or bool(proto.tensor_type.elem_type)


def _type_name(proto: onnx.TypeProto) -> str:
    """Return a declared type for messages, also one that asyncrt lacks."""
    dtype = type_of_proto(proto)
    if dtype is not None:
        return dtype.name
    kind = proto.WhichOneof("value")
    return dtype_name(proto.tensor_type.elem_type) if kind == "tensor_type" else str(kind)


def _missing(title: str, operator: str, where: str) -> UnsupportedOperatorError:
    return UnsupportedOperatorError(
        f"{title}: asyncrt has no operator {operator}{where}", hint="docs/operators.md lists those it has"
    )


@functools.lru_cache(_SCHEMAS)
def _schema(name: str, opset: int, domain: str) -> defs.OpSchema | None:
    try:
        return defs.get_schema(name, opset, domain)
    except defs.SchemaError:
        return contributed_schema(domain, name)


class _FormalAttribute(NamedTuple):
    """What a schema says of an attribute; asked of the schema itself, its default is parsed each time."""

    kind: Any
    required: bool
    default: onnx.AttributeProto | None


@functools.lru_cache(_SCHEMAS)
def _formal_attributes(schema: defs.OpSchema) -> Mapping[str, _FormalAttribute]:
    found = {}
    for name, formal in schema.attributes.items():
        default: onnx.AttributeProto | None = formal.default_value
        if default is not None and default.type == onnx.AttributeProto.UNDEFINED:
            default = None
        found[name] = _FormalAttribute(formal.type, formal.required, default)
    return found


@functools.lru_cache(_SCHEMAS)
def _allowed(schema: defs.OpSchema) -> Mapping[str, Sequence[str]]:
    return {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}


def _formal(formals: Sequence[defs.OpSchema.FormalParameter], index: int) -> defs.OpSchema.FormalParameter:
    """The last parameter of a schema may stand for any number of them."""
    return formals[min(index, len(formals) - 1)]


def _trimmed(given: Sequence[Any], least: int = 0) -> tuple[Any, ...]:
    """Return inputs or outputs without absent ones at the end.

    Args:
        least: How many must be kept.
    """
    count = len(given)
    while count > least and given[count - 1] is None:
        count -= 1
    return tuple(given[:count])


def _check_counts(
    schema: defs.OpSchema, inputs: Sequence[int | None], outputs: Sequence[str | None], title: str
) -> None:
    option = defs.OpSchema.FormalParameterOption
    for what, given, formals, least, most in (
        ("inputs", inputs, schema.inputs, schema.min_input, schema.max_input),
        ("outputs", outputs, schema.outputs, schema.min_output, schema.max_output),
    ):
        if not least <= len(given) <= most:
            variadic = bool(formals) and formals[-1].option == option.Variadic
            wanted = f"at least {least}" if variadic else str(least) if least == most else f"{least} to {most}"
            raise ModelFormatError(f"{title}: {schema.name} takes {wanted} {what}, it has {len(given)}")
    for i, value in enumerate(inputs):
        formal = _formal(schema.inputs, i)
        if value is None and formal.option != option.Optional:
            raise ModelFormatError(f"{title}: input {i} ('{formal.name}') of {schema.name} is missing")
