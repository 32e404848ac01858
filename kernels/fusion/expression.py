"""Several element-wise operators as one function of OpenCL C, to be called for each element of a kernel's result.

Each operator becomes a statement of its own, rounded to its dtype, so that the function gives what the operators' own
kernels give; no product and sum are joined into one rounding, in neither (`EACH_ROUNDED`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from asyncrt.kernels.call import Call
from asyncrt.kernels.codegen import constants
from asyncrt.kernels.codegen.literals import literal
from asyncrt.kernels.codegen.source import EACH_ROUNDED, compute_type, rounded
from asyncrt.kernels.codegen.vectors import ALL_VECTORS, INTEGER_VECTORS, VECTORS
from asyncrt.kernels.operator import Expression
from asyncrt.layout import BOOL, FLOAT32, DataType

Wiring: TypeAlias = tuple[tuple[int | None, ...], ...]
"""For each part, where each of its inputs comes from: input k of the whole, or ``~j``, output 0 of part j."""

class Function(NamedTuple):
    """A function over operands, called ``$_fused``, where ``$`` stands for the unique name of the kernel it is in.

    Attributes:
        text: Its OpenCL C with all that it calls; for scalars, and also for vectors if `vector`.
        operands: For each of its parameters the input of the whole that it is.
        vector: Whether it also takes vectors of 16.
        integers: Whether some of what it takes, makes or goes through is of `INTEGER_VECTORS`.
        numbers: What its last parameters are: the constants of the parts (`constants.lift`).
    """

    text: str
    operands: tuple[int, ...]
    vector: bool
    integers: bool = False
    numbers: tuple[float, ...] = ()

    def call(self, first: str = "") -> str:
        """Return the expression that calls it with ``a0, a1, ...``, after an operand named *first* if there is one."""
        names = [first] if first else []
        names += [f"a{i}" for i in range(len(self.operands))]
        return f"$_fused({', '.join(names + [constants.read(i) for i in range(len(self.numbers))])})"


class Part(NamedTuple):
    """An operator of a function.

    Attributes:
        number: Which part of the whole it is.
        expression: What it is at the shapes at hand.
        sources: Where each of its inputs comes from, as in `Wiring`.
        moves: Whether it only gives its input's elements another shape.
    """

    number: int
    call: Call
    expression: Expression
    sources: tuple[int | None, ...]
    moves: bool = False

    @property
    def positions(self) -> list[int]:
        """The inputs that the expression reads from somewhere: those it names, but for literals."""
        return [p for p in _used(self) if self.sources[p] is not None and _literal(self.call, p) is None]


def function(parts: Sequence[Part], *, start: tuple[int, DataType] | None = None) -> Function:
    """Return *parts* as one function of what they take from outside.

    Args:
        parts: In order; the last one's result is the function's.
        start: The number of a part that is not among *parts*, and the dtype of its result: the first parameter.
    """
    operands: dict[int, DataType] = {}
    for part in parts:
        for position in part.positions:
            source = part.sources[position]
            if source is not None and source >= 0:
                operands[source] = part.call.dtype(position)
    numbers = {source: number for number, source in enumerate(operands)}
    dtypes = {*operands.values(), *(p.call.outputs[0].dtype for p in parts)}
    dtypes |= set() if start is None else {start[1]}
    vector = all(map(_is_vector, parts)) and dtypes <= ALL_VECTORS.keys()
    helpers = list(dict.fromkeys(p.expression.helpers for p in parts))
    texts: list[str] = []
    values: tuple[float, ...] = ()
    for part in parts:
        text, values = constants.lift(_text(part, numbers), values)
        texts.append(text)
    for wide in (False, True) if vector else (False,):
        parameters: list[str] = []
        lines: list[str] = []
        if start is not None:
            number, dtype = start
            parameters.append(f"const {_type(dtype, wide)} unrounded")
            lines.append(f"const {_type(dtype, wide)} t{number} = {_rounded('unrounded', dtype, wide)};")
        for part, text in zip(parts, texts, strict=True):
            dtype = part.call.outputs[0].dtype
            lines.append(f"const {_type(dtype, wide)} t{part.number} = {_rounded(text, dtype, wide)};")
        parameters += [f"const {_type(t, wide)} a{i}" for i, t in enumerate(operands.values())]
        parameters += [f"const float k{i}" for i in range(len(values))]
        result = _type(parts[-1].call.outputs[0].dtype, wide)
        head = f"inline {result} __attribute__((overloadable)) $_fused({', '.join(parameters)})"
        helpers.append("\n  ".join([f"{head} {{", f"\n{EACH_ROUNDED}\n", *lines, f"return t{parts[-1].number};"]) + "\n}")
    text = "\n".join(filter(None, dict.fromkeys(helpers)))
    return Function(text, tuple(operands), vector, not dtypes.isdisjoint(INTEGER_VECTORS), values)


def _is_vector(part: Part) -> bool:
    """Whether the part's expression holds for vectors of the dtypes that it has here."""
    dtypes = {*(part.call.dtype(p) for p in part.positions), part.call.outputs[0].dtype}
    return part.expression.vector and (part.expression.integers or dtypes <= VECTORS.keys())


def _type(dtype: DataType, wide: bool) -> str:
    return ALL_VECTORS[dtype] if wide else compute_type(dtype)


def _used(part: Part) -> list[int]:
    """The positions of the part's inputs that its expression names."""
    numbers = dict.fromkeys(int(n) for n in re.findall(r"\ba(\d+)\b", part.expression.text))
    return [part.expression.operands[n] for n in numbers]


def _text(part: Part, numbers: dict[int, int]) -> str:
    """The part's expression with the names that its operands have in the function."""

    def name(match: re.Match[str]) -> str:
        position = part.expression.operands[int(match[1])]
        literal = _literal(part.call, position)
        if literal is not None:
            return literal
        source = part.sources[position]
        assert source is not None
        return f"t{~source}" if source < 0 else f"a{numbers[source]}"

    return re.sub(r"\ba(\d+)\b", name, part.expression.text)


def _literal(call: Call, position: int) -> str | None:
    """A float constant of one element needs no buffer: it is an argument, or part of the text (`constants.lift`)."""
    value = call.value(position)
    if value is None or not call.constants[position] or value.size != 1 or compute_type(call.dtype(position)) != "float":
        return None
    number = float(value.reshape(-1)[0])
    return None if math.isnan(number) else literal(number, FLOAT32)  # a NaN keeps its bits in a buffer


def _rounded(text: str, dtype: DataType, wide: bool) -> str:
    if dtype is BOOL:
        return f"({text}) != 0"
    return rounded(f"({_type(dtype, wide)})({text})", dtype)
