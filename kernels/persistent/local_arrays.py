"""A kernel's arrays in local memory, as places in a space that several kernels share one after the other.

OpenCL C lets only a kernel declare them, and each keeps its own for as long as the kernel runs. As functions of one
kernel (`walker.py`) several use the same bytes.
"""

from __future__ import annotations

import re
from typing import NamedTuple

ALIGNMENT = 16
"""Bytes: copies and matrices begin at multiples of it."""
_NBYTES = {
    "char": 1, "uchar": 1, "short": 2, "ushort": 2, "half": 2, "int": 4, "uint": 4, "float": 4, "long": 8, "ulong": 8,
    "double": 8,
}  # fmt: skip
_DECLARATION = re.compile(r"__local (\w+) (\w+\[[^;=]*);")
_ATTRIBUTE = re.compile(r"__attribute__\(\([^;]*?\)\)\)?")
_ARRAY = re.compile(r"^(\w+)((?:\[[^\]]*\])+)$")
_SUM = re.compile(r"^[\d\s+*()]+$")


class Placed(NamedTuple):
    """A kernel's text with its arrays in a space of *nbytes* bytes."""

    text: str
    nbytes: int


def placed(text: str, space: str) -> Placed | None:
    """Return *text* with its ``__local`` arrays at offsets from *space*, which points to char; None if one has a size
    or a type that is not known here."""
    end, known = 0, True

    def place(match: re.Match[str]) -> str:
        nonlocal end, known
        kind, lines = match[1], []
        for declarator in _ATTRIBUTE.sub("", match[2]).split(","):
            array = _ARRAY.match(declarator.strip())
            sizes = [] if array is None else re.findall(r"\[([^\]]*)\]", array[2])
            if array is None or kind not in _NBYTES or not all(_SUM.match(size) for size in sizes):
                known = False
                return match[0]
            lines.append(_pointer(kind, array[1], sizes, f"{space} + {end}"))
            nbytes = _NBYTES[kind]
            for size in sizes:
                nbytes *= _value(size)
            end += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return " ".join(lines)

    moved = _DECLARATION.sub(place, text)
    return Placed(moved, end) if known else None


def _pointer(kind: str, name: str, sizes: list[str], place: str) -> str:
    """Declare a pointer that is used as the array was."""
    rest = "".join(f"[{size}]" for size in sizes[1:])
    declared, cast = (f"(* const {name}){rest}", f"(*){rest}") if rest else (f"* const {name}", "*")
    return f"__local {kind} {declared} = (__local {kind} {cast})({place});"


def _value(size: str) -> int:
    """Return what a sum of products of numbers is."""
    value: int = eval(compile(size, "a size", "eval"), {"__builtins__": {}})  # digits, + and * alone
    return value
