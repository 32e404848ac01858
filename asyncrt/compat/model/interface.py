"""What does a session say of its model? Inputs, outputs, initializers that a run may replace, and the metadata.

Names, types and shapes are those of the file, read once and let go; what the file leaves open of outputs is what
loading has inferred.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

import attrs
import onnx

from asyncrt.compat.types import tensor_type, type_string
from asyncrt.layout import PartialLayout

_IR_OF_DEFAULTS = 4
"""From this version of the format on, an input that has an initializer is one with a default."""
_NO_VERSION = (1 << 63) - 1
"""What ONNX Runtime says of a model that says none."""


@attrs.frozen(eq=False)
class NodeArg:
    """An input or an output.

    Attributes:
        name: Its name.
        type: Its type, such as ``tensor(float)``.
        shape: Its dims, each a size, a name, or None; nothing if its rank is unknown.
    """

    name: str
    type: str
    shape: list[int | str | None]

    def __str__(self) -> str:
        return f"NodeArg(name={self.name!r}, type={self.type!r}, shape={self.shape})"


@attrs.frozen(eq=False)
class ModelMetadata:
    """What a model says of itself."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


@attrs.frozen(eq=False)
class Interface:
    """What is known of a model from outside.

    Attributes:
        overridable: Initializers that a run may replace.
    """

    inputs: list[NodeArg]
    outputs: list[NodeArg]
    overridable: list[NodeArg]
    metadata: ModelMetadata

    @property
    def args(self) -> dict[str, NodeArg]:
        """What a run may be given, by name."""
        return {arg.name: arg for arg in (*self.inputs, *self.overridable)}


def interface_of(model: onnx.ModelProto, inferred: Mapping[str, PartialLayout]) -> Interface:
    """Return the interface of a model.

    Args:
        inferred: What loading knows of the outputs.
    """
    graph = model.graph
    constants = {t.name for t in graph.initializer} | {s.values.name for s in graph.sparse_initializer}
    names = {d.dim_param for info in graph.input for d in _dims(info.type) or ()}
    defaults = [i for i in graph.input if i.name in constants] if model.ir_version >= _IR_OF_DEFAULTS else []
    return Interface(
        inputs=[_declared(i) for i in graph.input if i.name not in constants],
        outputs=[_inferred(o, inferred.get(o.name), names) for o in graph.output],
        overridable=[_declared(i) for i in defaults],
        metadata=ModelMetadata(
            producer_name=model.producer_name,
            graph_name=graph.name,
            domain=model.domain,
            description=model.doc_string,
            graph_description=graph.doc_string,
            version=model.model_version if model.HasField("model_version") else _NO_VERSION,
            custom_metadata_map={p.key: p.value for p in model.metadata_props},
        ),
    )


def _dims(proto: onnx.TypeProto) -> Iterable[Any] | None:
    """Return the dims of a tensor, or of what is optional and a tensor; None if there are none to tell."""
    if proto.WhichOneof("value") == "optional_type":
        return _dims(proto.optional_type.elem_type)
    if proto.WhichOneof("value") == "tensor_type" and proto.tensor_type.HasField("shape"):
        dims: Iterable[Any] = proto.tensor_type.shape.dim
        return dims
    return None


def _declared(info: onnx.ValueInfoProto) -> NodeArg:
    return NodeArg(info.name, type_string(info.type), [_dim(d) for d in _dims(info.type) or ()])


def _dim(dim: Any) -> int | str | None:
    return dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None


def _inferred(info: onnx.ValueInfoProto, layout: PartialLayout | None, names: Container[str | None]) -> NodeArg:
    """Return an output: what the file says of it, completed by what loading knows."""
    declared = _declared(info)
    if layout is None or (declared.type and not declared.type.startswith("tensor(")):
        return declared
    type = declared.type or ("" if layout.dtype is None else tensor_type(layout.dtype.onnx))
    if layout.shape is None:
        return NodeArg(info.name, type, declared.shape)
    known = [d if isinstance(d, int) else d.name if d.name in names else None for d in layout.shape]
    if len(declared.shape) != len(known):
        return NodeArg(info.name, type, declared.shape if _dims(info.type) is not None else known)
    merged = [k if isinstance(k, int) else d or k for d, k in zip(declared.shape, known, strict=True)]
    return NodeArg(info.name, type, merged)
