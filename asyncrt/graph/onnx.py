"""From an ONNX file to nodes and values: reading, checking against ONNX's schemas, and nothing else.

Whatever is wrong with a file ends in a `ModelError` that names the node; no input crashes the importer. The schemas of
the onnx package say how many inputs an operator takes, which dtypes, which attributes, and their defaults.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import numpy as np
import onnx
from onnx import defs, inliner, numpy_helper

from asyncrt.dims import Dim
from asyncrt.errors import ModelError, ModelFormatError, ModelLimitError, ModelTypeError, UnsupportedOperatorError
from asyncrt.kernels.operator import Attributes, Operator
from asyncrt.kernels.registry import find_operator
from asyncrt.layout import DATA_TYPES, Array, DataType, PartialLayout, dtype_from_onnx, dtype_of
from asyncrt.options import RuntimeOptions

from .node import ProgramNode, Value

ModelSource: TypeAlias = "str | os.PathLike[str] | bytes | onnx.ModelProto"

MIN_OPSET = 11
_TYPE_STRINGS = {
    "tensor(" + {"float32": "float", "float64": "double"}.get(t.name, t.name) + ")": t for t in DATA_TYPES
}


@attrs.define(eq=False)
class Graph:
    """What the passes work on, and what a program is made of."""

    name: str
    values: list[Value]
    nodes: list[ProgramNode]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def value(self, id: int | None) -> Value:
        assert id is not None
        return self.values[id]


def read_model(source: ModelSource, options: RuntimeOptions) -> tuple[onnx.ModelProto, Path | None]:
    """Return the model and the folder that its external data may lie in.

    Args:
        source: A path, the bytes of a file, or a model.

    Raises:
        ModelFormatError: Not an ONNX model, or truncated.
        ModelLimitError: Larger than the options allow.
        FileNotFoundError: No such file.
    """
    folder: Path | None = None
    if isinstance(source, onnx.ModelProto):
        model = onnx.ModelProto()
        model.CopyFrom(source)
    else:
        if isinstance(source, bytes | bytearray | memoryview):
            data, where = bytes(source), "the given bytes"
        else:
            path = Path(source)
            folder, where = path.resolve().parent, str(path)
            _check_size(path.stat().st_size, options, where)
            data = path.read_bytes()
        _check_size(len(data), options, where)
        model = onnx.ModelProto()
        try:
            model.ParseFromString(data)
        except Exception as error:  # protobuf's own class differs by its implementation
            raise ModelFormatError(
                f"{where} is not an ONNX model, or is cut short ({len(data)} bytes)", detail=str(error)
            ) from error
        if not model.graph.node and not model.graph.output:
            raise ModelFormatError(f"{where} holds no ONNX graph ({len(data)} bytes)")
    if model.functions:
        try:
            model = inliner.inline_local_functions(model)
        except Exception as error:
            raise ModelFormatError("the model's local functions cannot be inlined", detail=str(error)) from error
    return model, folder


def import_model(source: ModelSource, options: RuntimeOptions) -> Graph:
    """Read and check a model.

    Raises:
        ModelError: One of its children, naming the node.
    """
    model, folder = read_model(source, options)
    return _Importer(model, folder, options).run()


def _check_size(nbytes: int, options: RuntimeOptions, where: str) -> None:
    if nbytes > options.max_model_bytes:
        raise ModelLimitError(
            f"{where} has {nbytes} bytes; RuntimeOptions.max_model_bytes is {options.max_model_bytes}"
        )


class _Importer:
    def __init__(self, model: onnx.ModelProto, folder: Path | None, options: RuntimeOptions) -> None:
        self.proto = model.graph
        self.folder = folder
        self.options = options
        self.opsets = _opsets(model)
        self.values: list[Value] = []
        self.by_name: dict[str, int] = {}
        self.nodes: list[ProgramNode] = []
        self.loaded_bytes = 0

    def run(self) -> Graph:
        for tensor in self.proto.initializer:
            self._add(tensor.name, "initializer", constant=self._tensor(tensor))
        if self.proto.sparse_initializer:
            raise UnsupportedOperatorError("the model has sparse initializers, which asyncrt does not read")
        inputs: list[int] = []
        for info in self.proto.input:
            if info.name in self.by_name:
                continue  # an initializer that IR version 3 also lists as an input
            inputs.append(self._add(info.name, "input", layout=self._declared(info)))
        for node in self._in_order():
            self._node(node)
        outputs: list[int] = []
        for info in self.proto.output:
            if info.name not in self.by_name:
                raise ModelFormatError(f"output '{info.name}' of the graph is made by no node")
            outputs.append(self.by_name[info.name])
        for node in self.nodes:
            for v in {i for i in node.inputs if i is not None}:
                self.values[v].readers += (node.id,)
        return Graph(self.proto.name, self.values, self.nodes, tuple(inputs), tuple(outputs))

    # Values.

    def _add(
        self, name: str, what: str, *, constant: Array | None = None, layout: PartialLayout = PartialLayout(None, None)
    ) -> int:
        if not name:
            raise ModelFormatError(f"an {what} of the graph has no name")
        if name in self.by_name:
            raise ModelFormatError(f"'{name}' is defined twice, the second time as {what}")
        if constant is not None:
            dtype = dtype_of(constant.dtype)
            assert dtype is not None
            layout = PartialLayout(dtype, constant.shape)
        if layout.shape is not None and len(layout.shape) > self.options.max_rank:
            raise ModelLimitError(
                f"'{name}' has rank {len(layout.shape)}; RuntimeOptions.max_rank is {self.options.max_rank}"
            )
        value = Value(len(self.values), name, layout, constant=constant)
        self.values.append(value)
        self.by_name[name] = value.id
        return value.id

    def _declared(self, info: onnx.ValueInfoProto) -> PartialLayout:
        kind = info.type.WhichOneof("value")
        if kind != "tensor_type":
            raise UnsupportedOperatorError(f"input '{info.name}' is a {kind or 'value without a type'}, not a tensor")
        tensor = info.type.tensor_type
        dtype = dtype_from_onnx(tensor.elem_type)
        if dtype is None:
            raise ModelTypeError(f"input '{info.name}' has dtype {_dtype_name(tensor.elem_type)}, which asyncrt lacks")
        if not tensor.HasField("shape"):
            return PartialLayout(dtype, None)
        dims: list[int | Dim] = []
        for axis, dim in enumerate(tensor.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value >= 0:
                dims.append(dim.dim_value)
            else:
                dims.append(Dim.named(dim.dim_param or f"{info.name}.{axis}"))
        return PartialLayout(dtype, tuple(dims))

    def _tensor(self, tensor: onnx.TensorProto, where: str = "") -> Array:
        name = where or f"initializer '{tensor.name}'"
        if dtype_from_onnx(tensor.data_type) is None:
            raise ModelTypeError(f"{name} has dtype {_dtype_name(tensor.data_type)}, which asyncrt lacks")
        if any(d < 0 for d in tensor.dims):
            raise ModelFormatError(f"{name} has a negative dim: {list(tensor.dims)}")
        if len(tensor.dims) > self.options.max_rank:
            raise ModelLimitError(
                f"{name} has rank {len(tensor.dims)}; RuntimeOptions.max_rank is {self.options.max_rank}"
            )
        external = tensor.data_location == onnx.TensorProto.EXTERNAL
        try:
            array = self._external(tensor, name) if external else numpy_helper.to_array(tensor)
        except ModelError:
            raise
        except Exception as error:
            raise ModelFormatError(f"{name} does not hold the data of its shape", detail=str(error)) from error
        return np.ascontiguousarray(array).reshape(tuple(tensor.dims))

    def _external(self, tensor: onnx.TensorProto, name: str) -> Array:
        fields = {entry.key: entry.value for entry in tensor.external_data}
        location = fields.get("location", "")
        if self.folder is None:
            raise ModelFormatError(
                f"{name} lies in the external file '{location}', and the model was not given as a path",
                hint="load the model by its path, or put its tensors inside it",
            )
        path = (self.folder / location).resolve()
        if not location or Path(location).is_absolute() or not path.is_relative_to(self.folder):
            raise ModelFormatError(f"{name} names the external file '{location}', outside the model's folder")
        if not path.is_file():
            raise ModelFormatError(f"{name} lies in '{location}', which is not beside the model")
        dtype = dtype_from_onnx(tensor.data_type)
        assert dtype is not None
        shape = tuple(tensor.dims)
        nbytes = int(np.prod(shape, dtype=object)) * dtype.itemsize if shape else dtype.itemsize
        offset, length = int(fields.get("offset", "0")), int(fields.get("length", str(nbytes)))
        size = path.stat().st_size
        if length != nbytes or offset < 0 or offset + length > size:
            raise ModelFormatError(
                f"{name} needs {nbytes} bytes of '{location}'; it names bytes {offset} to {offset + length} of {size}"
            )
        self.loaded_bytes += nbytes
        _check_size(self.loaded_bytes, self.options, "the model's external data")
        with path.open("rb") as f:
            f.seek(offset)
            return np.frombuffer(f.read(length), dtype.numpy).reshape(shape)

    # Nodes.

    def _in_order(self) -> Iterable[onnx.NodeProto]:
        """The nodes, each after those whose outputs it takes; files in another order exist."""
        nodes = list(self.proto.node)
        made: dict[str, int] = {}
        for i, node in enumerate(nodes):
            for name in filter(None, node.output):
                if name in made or name in self.by_name:
                    raise ModelFormatError(f"'{name}' is defined twice, the second time by {_title(node, i)}")
                made[name] = i
        wants: list[set[int]] = []
        for i, node in enumerate(nodes):
            needed: set[int] = set()
            for name in _names_used(node):
                if name in made:
                    needed.add(made[name])
                elif name not in self.by_name:
                    raise ModelFormatError(f"{_title(node, i)} takes '{name}', which nothing in the graph makes")
            wants.append(needed)
        users: list[list[int]] = [[] for _ in nodes]
        missing = [len(w) for w in wants]
        for i, needed in enumerate(wants):
            for j in needed:
                users[j].append(i)
        ready = [i for i, n in enumerate(missing) if n == 0]
        order: list[int] = []
        import heapq

        heapq.heapify(ready)
        while ready:
            i = heapq.heappop(ready)
            order.append(i)
            for j in users[i]:
                missing[j] -= 1
                if missing[j] == 0:
                    heapq.heappush(ready, j)
        if len(order) != len(nodes):
            stuck = next(i for i, n in enumerate(missing) if n)
            raise ModelFormatError(f"the graph has a cycle through {_title(nodes[stuck], stuck)}")
        return [nodes[i] for i in order]

    def _node(self, proto: onnx.NodeProto) -> None:
        id = len(self.nodes)
        title = _title(proto, id)
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        operator = find_operator(domain, proto.op_type)
        if operator is None:
            where = f" of domain '{domain}'" if domain else ""
            raise UnsupportedOperatorError(
                f"{title}: asyncrt has no operator {proto.op_type}{where}",
                hint="docs/operators.md lists those it has",
            )
        opset = self.opsets.get(domain)
        if opset is None:
            raise ModelFormatError(f"{title}: the model imports no opset of domain '{domain}'")
        try:
            schema = defs.get_schema(proto.op_type, opset, domain)
        except defs.SchemaError as error:
            raise UnsupportedOperatorError(
                f"{title}: ONNX knows no operator {proto.op_type} in opset {opset} of domain '{domain}'"
            ) from error
        if schema.deprecated:
            raise UnsupportedOperatorError(f"{title}: {proto.op_type} is deprecated in opset {opset}")
        attributes = self._attributes(proto, schema, opset, title)
        inputs = tuple(self.by_name[name] if name else None for name in proto.input)
        while inputs and inputs[-1] is None:
            inputs = inputs[:-1]
        _check_counts(schema, inputs, proto.output, title)
        types = self._output_types(operator, schema, attributes, inputs, len(proto.output), title)
        outputs: list[int] = []
        for i, (name, dtype) in enumerate(zip(proto.output, types, strict=True)):
            output = self._add(name or f"{title}#{i}", f"output of {title}", layout=PartialLayout(dtype, None))
            self.values[output].producer = id
            outputs.append(output)
        self.nodes.append(ProgramNode(id, title, operator, attributes, inputs, tuple(outputs), types))

    def _attributes(self, proto: onnx.NodeProto, schema: defs.OpSchema, opset: int, title: str) -> Attributes:
        values: dict[str, Any] = {}
        for name, known in schema.attributes.items():
            if known.default_value is not None and known.default_value.type != onnx.AttributeProto.UNDEFINED:
                values[name] = self._attribute(known.default_value, title)
        for attribute in proto.attribute:
            if attribute.name not in schema.attributes:
                raise UnsupportedOperatorError(
                    f"{title}: {proto.op_type} of opset {opset} has no attribute '{attribute.name}'",
                    detail=f"it has {', '.join(sorted(schema.attributes)) or 'none'}",
                )
            if attribute.type != schema.attributes[attribute.name].type.value:
                raise ModelFormatError(
                    f"{title}: attribute '{attribute.name}' should be {schema.attributes[attribute.name].type.name}"
                )
            values[attribute.name] = self._attribute(attribute, title)
        for name, known in schema.attributes.items():
            if known.required and name not in values:
                raise ModelFormatError(f"{title}: {proto.op_type} needs the attribute '{name}'")
        return Attributes(values, opset, len(proto.output))

    def _attribute(self, attribute: onnx.AttributeProto, title: str) -> Any:
        kind = onnx.AttributeProto
        if attribute.type == kind.TENSOR:
            return self._tensor(attribute.t, f"attribute '{attribute.name}' of {title}")
        if attribute.type in (kind.GRAPH, kind.GRAPHS, kind.FLOAT, kind.INT):
            return onnx.helper.get_attribute_value(attribute)
        if attribute.type == kind.STRING:
            return attribute.s.decode("utf-8", "replace")
        if attribute.type in (kind.FLOATS, kind.INTS):
            return tuple(onnx.helper.get_attribute_value(attribute))
        if attribute.type == kind.STRINGS:
            return tuple(s.decode("utf-8", "replace") for s in attribute.strings)
        raise UnsupportedOperatorError(
            f"{title}: attribute '{attribute.name}' is a {kind.AttributeType.Name(attribute.type)}"
        )

    def _output_types(
        self,
        operator: Operator,
        schema: defs.OpSchema,
        attributes: Attributes,
        inputs: tuple[int | None, ...],
        outputs: int,
        title: str,
    ) -> tuple[DataType, ...]:
        given = [None if v is None else self.values[v].layout.dtype for v in inputs]
        allowed: Mapping[str, list[str]] = {c.type_param_str: list(c.allowed_type_strs) for c in schema.type_constraints}
        bound: dict[str, DataType] = {}
        for i, dtype in enumerate(given):
            formal = schema.inputs[min(i, len(schema.inputs) - 1)]
            if dtype is None:
                continue
            choices = [_TYPE_STRINGS.get(s) for s in allowed.get(formal.type_str, [formal.type_str])]
            if dtype not in choices:
                raise ModelTypeError(
                    f"{title}: input {i} ('{formal.name}') of {operator.name} is {dtype}; it takes "
                    + ", ".join(t.name for t in choices if t is not None)
                )
            homogeneous = formal.option != defs.OpSchema.FormalParameterOption.Variadic or formal.is_homogeneous
            if formal.type_str in allowed and homogeneous and bound.setdefault(formal.type_str, dtype) is not dtype:
                raise ModelTypeError(
                    f"{title}: input {i} ('{formal.name}') of {operator.name} is {dtype}, "
                    f"another of the same type is {bound[formal.type_str]}"
                )
        if operator.types is not None:
            return tuple(operator.types(attributes, given, outputs))
        result: list[DataType] = []
        for i in range(outputs):
            formal = schema.outputs[min(i, len(schema.outputs) - 1)]
            choices = [_TYPE_STRINGS.get(s) for s in allowed.get(formal.type_str, [formal.type_str])]
            dtype = bound.get(formal.type_str) or (choices[0] if len(choices) == 1 else None)
            if dtype is None:
                raise UnsupportedOperatorError(f"{title}: the dtype of output {i} of {operator.name} is not known")
            result.append(dtype)
        return tuple(result)


def _opsets(model: onnx.ModelProto) -> dict[str, int]:
    opsets = {("" if o.domain == "ai.onnx" else o.domain): o.version for o in model.opset_import}
    if "" not in opsets and any(n.domain in ("", "ai.onnx") for n in model.graph.node):
        raise ModelFormatError("the model does not say which ONNX opset it uses")
    newest, version = defs.onnx_opset_version(), opsets.get("", MIN_OPSET)
    if not MIN_OPSET <= version <= newest:
        raise UnsupportedOperatorError(
            f"the model uses opset {version}; asyncrt reads {MIN_OPSET} to {newest}",
            hint="onnx.version_converter can lift older models" if version < MIN_OPSET else "a newer onnx package may know it",
        )
    return opsets


def _check_counts(schema: defs.OpSchema, inputs: tuple[int | None, ...], outputs: Iterable[str], title: str) -> None:
    for what, count, least, most in (
        ("inputs", len(inputs), schema.min_input, schema.max_input),
        ("outputs", len(list(outputs)), schema.min_output, schema.max_output),
    ):
        if not least <= count <= most:
            wanted = str(least) if least == most else f"{least} to {most}"
            raise ModelFormatError(f"{title}: {schema.name} takes {wanted} {what}, it has {count}")
    for i, value in enumerate(inputs):
        formal = schema.inputs[min(i, len(schema.inputs) - 1)]
        if value is None and formal.option == defs.OpSchema.FormalParameterOption.Single:
            raise ModelFormatError(f"{title}: input {i} ('{formal.name}') of {schema.name} is missing")


def _names_used(node: onnx.NodeProto) -> set[str]:
    """The values that a node takes, those that its subgraphs take from outside included."""
    names = set(filter(None, node.input))
    for attribute in node.attribute:
        for graph in ([attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs):
            inside = {i.name for i in graph.input} | {t.name for t in graph.initializer}
            for inner in graph.node:
                names |= _names_used(inner) - inside
                inside |= set(inner.output)
    return names


def _title(node: onnx.NodeProto, index: int) -> str:
    return node.name or f"{node.op_type}_{index}"


def _dtype_name(number: int) -> str:
    try:
        return str(onnx.TensorProto.DataType.Name(number)).lower()
    except ValueError:
        return str(number)


