"""Several element-wise operators as one function of OpenCL C, to be called for each element of a kernel's result.

Each operator becomes a statement of its own, so that the function gives what the operators' own kernels give; no product
and sum are joined into one rounding, in neither (`EACH_ROUNDED`). Only what lies between two operators of half precision
is not rounded to it, as nobody sees it: results are nearer to those of float32.
"""

from __future__ import annotations

import functools
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
from asyncrt.layout import BFLOAT16, BOOL, FLOAT16, FLOAT32, DataType

Wiring: TypeAlias = tuple[tuple[int | None, ...], ...]
"""For each part, where each of its inputs comes from: input k of the whole, or ``~j``, output 0 of part j."""

_HALVES = (FLOAT16, BFLOAT16)


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
        return [p for p in _used(self.expression) if self.sources[p] is not None and _literal(self.call, p) is None]


class _Term(NamedTuple):
    """What of a part the text of a function depends on.

    Attributes:
        taken: Each input that it names, where that comes from, its dtype, and the literal that stands for it.
        made: The dtype of its result.
    """

    number: int
    expression: Expression
    taken: tuple[tuple[int, int, DataType, str | None], ...]
    made: DataType

    @property
    def rounds(self) -> bool:
        """Whether its result is rounded although what follows takes it as it is: where it is of another dtype than what
        it is made of, that is what the model asks for."""
        return self.made not in _HALVES or any(dtype not in (self.made, BOOL) for _, _, dtype, _ in self.taken)


def function(parts: Sequence[Part], *, start: tuple[int, DataType] | None = None) -> Function:
    """Return *parts* as one function of what they take from outside.

    Args:
        parts: In order; the last one's result is the function's.
        start: The number of a part that is not among *parts*, and the dtype of its result: the first parameter.
    """
    return composed(tuple(map(_term, parts)), start)


def _term(part: Part) -> _Term:
    call, sources = part.call, part.sources
    taken = [(p, s, call.dtype(p), _literal(call, p)) for p in _used(part.expression) if (s := sources[p]) is not None]
    return _Term(part.number, part.expression, tuple(taken), call.outputs[0].dtype)


@functools.lru_cache(1024)  # the same for nearly all shapes
def composed(terms: tuple[_Term, ...], start: tuple[int, DataType] | None) -> Function:
    """Return what `function` does, of what its text depends on."""
    operands: dict[int, DataType] = {}
    for term in terms:
        for _, source, dtype, written in term.taken:
            if written is None and source >= 0:
                operands[source] = dtype
    numbers = {source: number for number, source in enumerate(operands)}
    dtypes = {*operands.values(), *(term.made for term in terms)}
    dtypes |= set() if start is None else {start[1]}
    vector = all(map(_is_vector, terms)) and dtypes <= ALL_VECTORS.keys()
    helpers = list(dict.fromkeys(term.expression.helpers for term in terms))
    texts: list[str] = []
    values: tuple[float, ...] = ()
    for term in terms:
        text, values = constants.lift(_text(term, numbers), values)
        texts.append(text)
    for wide in (False, True) if vector else (False,):
        parameters: list[str] = []
        lines: list[str] = []
        if start is not None:
            number, dtype = start
            parameters.append(f"const {_type(dtype, wide)} unrounded")
            kept = "unrounded" if dtype in _HALVES else _rounded("unrounded", dtype, wide)
            lines.append(f"const {_type(dtype, wide)} t{number} = {kept};")
        for term, text in zip(terms, texts, strict=True):
            kept = _rounded(text, term.made, wide) if term.rounds else f"({_type(term.made, wide)})({text})"
            lines.append(f"const {_type(term.made, wide)} t{term.number} = {kept};")
        parameters += [f"const {_type(t, wide)} a{i}" for i, t in enumerate(operands.values())]
        parameters += [f"const float k{i}" for i in range(len(values))]
        result = _type(terms[-1].made, wide)
        head = f"inline {result} __attribute__((overloadable)) $_fused({', '.join(parameters)})"
        helpers.append("\n  ".join([f"{head} {{", f"\n{EACH_ROUNDED}\n", *lines, f"return t{terms[-1].number};"]) + "\n}")
    text = "\n".join(filter(None, dict.fromkeys(helpers)))
    return Function(text, tuple(operands), vector, not dtypes.isdisjoint(INTEGER_VECTORS), values)


def _is_vector(term: _Term) -> bool:
    """Whether the expression holds for vectors of the dtypes that it has here."""
    read = [dtype for _, _, dtype, written in term.taken if written is None]
    dtypes = {*read, term.made}
    return term.expression.vector and (term.expression.integers or dtypes <= VECTORS.keys())


def _type(dtype: DataType, wide: bool) -> str:
    return ALL_VECTORS[dtype] if wide else compute_type(dtype)


@functools.lru_cache(1024)
def _used(expression: Expression) -> tuple[int, ...]:
    """The positions of the inputs that an expression names."""
    numbers = dict.fromkeys(int(n) for n in re.findall(r"\ba(\d+)\b", expression.text))
    return tuple([expression.operands[n] for n in numbers])


def _text(term: _Term, numbers: dict[int, int]) -> str:
    """The expression with the names that its operands have in the function."""
    taken = {position: (source, written) for position, source, _, written in term.taken}

    def name(match: re.Match[str]) -> str:
        source, written = taken[term.expression.operands[int(match[1])]]
        if written is not None:
            return written
        return f"t{~source}" if source < 0 else f"a{numbers[source]}"

    return re.sub(r"\ba(\d+)\b", name, term.expression.text)


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
