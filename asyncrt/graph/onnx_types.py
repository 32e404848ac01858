"""How ONNX writes types: in schemas as text, in files as messages; tensors, sequences, optionals and maps alike."""

from __future__ import annotations

import functools

import onnx

from asyncrt.kinds import ValueType, map_of, optional_of, sequence_of
from asyncrt.layout import DATA_TYPES, NARROW_TYPES, STRING, DataType, PartialLayout, dtype_from_onnx

_SPELLED = {"float32": "float", "float64": "double"}
_HOLDERS = {"seq": sequence_of, "optional": optional_of}


@functools.cache
def type_string(dtype: DataType) -> str:
    """Return a type as schemas write it."""
    if not isinstance(dtype, ValueType):
        return f"tensor({_SPELLED.get(dtype.name, dtype.name)})"
    if dtype.key is None:
        return f"{dtype.kind}({type_string(dtype.element)})"
    return f"map({dtype.key.name}, {_SPELLED.get(dtype.element.name, dtype.element.name)})"


_TENSORS = {type_string(t): t for t in (*DATA_TYPES, *NARROW_TYPES, STRING)}
_SCALARS = {text[len("tensor(") : -1]: t for text, t in _TENSORS.items()}


@functools.cache
def type_of_string(text: str) -> DataType | None:
    """Return the type that schemas write so, or None if asyncrt has none."""
    kind, _, inside = text.removesuffix(")").partition("(")
    if kind == "map":
        key, value = (_SCALARS.get(word.strip()) for word in inside.split(","))
        return None if key is None or value is None else map_of(key, value)
    if kind in _HOLDERS:
        element = type_of_string(inside)
        return None if element is None else _HOLDERS[kind](element)
    return _TENSORS.get(text)


def type_of_proto(proto: onnx.TypeProto) -> DataType | None:
    """Return the type that a file declares, or None if it says none or asyncrt has none."""
    match proto.WhichOneof("value"):
        case "tensor_type":
            return dtype_from_onnx(proto.tensor_type.elem_type)
        case "sequence_type":
            element = type_of_proto(proto.sequence_type.elem_type)
            return None if element is None else sequence_of(element)
        case "optional_type":
            element = type_of_proto(proto.optional_type.elem_type)
            return None if element is None else optional_of(element)
        case "map_type":
            key, element = dtype_from_onnx(proto.map_type.key_type), type_of_proto(proto.map_type.value_type)
            return None if key is None or element is None else map_of(key, element)
    return None


def proto_of(layout: PartialLayout) -> onnx.TypeProto:
    """Return a type as files declare it; dims that are not known are left open."""
    proto = onnx.TypeProto()
    dtype, shape = layout
    if isinstance(dtype, ValueType):
        inside = proto_of(PartialLayout(dtype.element, None))
        if dtype.kind == "map":
            assert dtype.key is not None
            proto.map_type.key_type = dtype.key.onnx
            proto.map_type.value_type.CopyFrom(inside)
        else:
            held = proto.sequence_type if dtype.kind == "seq" else proto.optional_type
            held.elem_type.CopyFrom(inside)
    elif dtype is not None:
        proto.tensor_type.elem_type = dtype.onnx
        if shape is not None:
            proto.tensor_type.shape.SetInParent()
            for dim in shape:
                known = proto.tensor_type.shape.dim.add()
                if isinstance(dim, int):
                    known.dim_value = dim
    return proto
