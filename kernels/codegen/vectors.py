"""In which vectors are elements of a dtype calculated, sixteen at a time, on CPU devices?"""

from __future__ import annotations

from asyncrt.layout import BOOL, FLOAT16, FLOAT32, INT8, INT32, UINT8

VECTORS = {FLOAT32: "float16", FLOAT16: "float16", BOOL: "int16"}

INTEGER_VECTORS = {UINT8: "int16", INT8: "int16", INT32: "int16"}
"""For expressions that say so alone: nothing wraps around at eight bits there."""

ALL_VECTORS = VECTORS | INTEGER_VECTORS

LANES = f"(int16)({', '.join(map(str, range(16)))})"
"""The numbers of a vector's elements, as OpenCL C."""
