"""What operators of other domains than ONNX's own take and give: their schemas, which no package brings along.

A signature reads ``signature("Gelu", "X:F", "Y:F")``: the inputs and the outputs with their types. A letter stands for
one of several dtypes, the same wherever it is; letters with different numbers are independent; "?" marks what may be
absent, "*" any number, each of its own dtype. Attributes have a default, or are a kind: `INT` may be absent,
`REQUIRED_INT` may not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx import defs, helper

from asyncrt.graph.onnx_types import type_string
from asyncrt.layout import (
    BFLOAT16,
    BOOL,
    DATA_TYPES,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UINT8,
    UINT16,
    DataType,
)

_Formal = defs.OpSchema.FormalParameter
_Option = defs.OpSchema.FormalParameterOption
_Kind = defs.OpSchema.AttrType

INT, FLOAT, TEXT = _Kind.INT, _Kind.FLOAT, _Kind.STRING
INTS, FLOATS, STRINGS, TENSOR = _Kind.INTS, _Kind.FLOATS, _Kind.STRINGS, _Kind.TENSOR
REQUIRED_INT, REQUIRED_INTS, REQUIRED_FLOAT, REQUIRED_TEXT = (INT,), (INTS,), (FLOAT,), (TEXT,)

_TYPES: dict[str, Sequence[DataType]] = {
    "F": (FLOAT32, FLOAT16, BFLOAT16, FLOAT64),
    "N": (FLOAT32, FLOAT64, INT64, INT32),
    "I": (INT32, INT64),
    "B": (INT8, UINT8),
    "Q": (INT8, UINT8, INT16, UINT16, INT32),
    "Z": (UINT8, FLOAT32, FLOAT16, BFLOAT16),
    "M": (INT32, INT64, BOOL, FLOAT32, FLOAT16),
    "A": DATA_TYPES,
    "b": (BOOL,),
    "c": (INT8,),
    "f": (FLOAT32,),
    "i": (INT32,),
    "l": (INT64,),
    "u": (UINT8,),
    "s": (STRING,),
}  # fmt: skip


def signature(
    name: str, inputs: str, outputs: str, domain: str = "", version: int = 1, **attributes: Any
) -> defs.OpSchema:
    """Return a schema."""
    formals = [[_formal(word) for word in text.split()] for text in (inputs, outputs)]
    letters = {f.type_str for level in formals for f in level}
    constraints = [(v, [type_string(t) for t in _TYPES[v[0]]], "") for v in sorted(letters)]
    return defs.OpSchema(
        name, domain, version, inputs=formals[0], outputs=formals[1], type_constraints=constraints,
        attributes=[_attribute(key, value) for key, value in attributes.items()],
    )  # fmt: skip


def _formal(word: str) -> defs.OpSchema.FormalParameter:
    name, kind = word.split(":")
    option = {"?": _Option.Optional, "*": _Option.Variadic}.get(kind[-1], _Option.Single)
    return _Formal(name, kind.rstrip("?*"), param_option=option, is_homogeneous=option is not _Option.Variadic)


def _attribute(name: str, value: Any) -> defs.OpSchema.Attribute:
    if isinstance(value, _Kind):
        return defs.OpSchema.Attribute(name, value, "", required=False)
    if isinstance(value, tuple) and isinstance(value[0], _Kind):
        return defs.OpSchema.Attribute(name, value[0], "", required=True)
    return defs.OpSchema.Attribute(name, helper.make_attribute(name, value), "")
