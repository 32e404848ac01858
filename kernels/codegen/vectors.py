"""In which vectors are elements of a dtype calculated, sixteen at a time, on CPU devices, and how is a row walked in them?"""

from __future__ import annotations

from collections.abc import Sequence

from asyncrt.layout import BOOL, FLOAT16, FLOAT32, INT8, INT32, UINT8

VECTORS = {FLOAT32: "float16", FLOAT16: "float16", BOOL: "int16"}

INTEGER_VECTORS = {UINT8: "int16", INT8: "int16", INT32: "int16"}
"""For expressions that say so alone: nothing wraps around at eight bits there."""

ALL_VECTORS = VECTORS | INTEGER_VECTORS

LANES = f"(int16)({', '.join(map(str, range(16)))})"
"""The numbers of a vector's elements, as OpenCL C."""


def steps(vectors: Sequence[str], end: str) -> str:
    """Walk ``c`` to *end* in steps of that many statements, each for 16 elements, then of half as many, down to one.

    Fewer than 16 elements are left.
    """
    k = len(vectors)
    loops = [f"for (; c + {16 * k} <= {end}; c += {16 * k}) {{ {' '.join(vectors)} }}"]
    while (k := k // 2) > 0:
        loops.append(f"if (c + {16 * k} <= {end}) {{ {' '.join(vectors[:k])} c += {16 * k}; }}")
    return " ".join(loops)
