"""Ints that remember how they were calculated and which questions were asked of them: witnesses.

Planning with witnesses is planning as usual, and leaves a recording: a formula for every number of the plan over the
sizes that it began with, and the answers that its decisions relied on. Where the sizes of another request give the same
answers, planning would decide the same, so the formulas give its plan.

A use that formulas cannot express (the int's hash, its bits) makes the recording hold for that one value alone, which
is safe and of little use. The text of a witness has a mark in it, which shows that a text, such as a kernel's source,
depends on it.
"""

from __future__ import annotations

import functools
import operator
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from asyncrt.layout import Array
from asyncrt.runtime.cooperative import Slices

MARK = "\N{WHITE SQUARE}"
_PART = 128  # lines that are compiled without an interruption, which takes some tenths of a millisecond
_NAME = re.compile(r"\b[tx]\d+\b")
_DIVISIONS = ("//", "%")
_CODES = {s: code for code, s in enumerate(("+", "-", "*", "//", "%", "neg", "==", "!=", "<", "<=", ">", ">="))}
_QUESTIONS = _CODES["=="]
_MAY_FAIL = re.compile(r"[/%] [tx]")  # where planning would divide by 0

Formulas: TypeAlias = Callable[..., tuple[int, ...] | None]
"""Numbers for sizes; None, or `ZeroDivisionError`, where an answer is another one."""
Evaluate: TypeAlias = Callable[[bytes, bytes, bytes, tuple[int, ...]], tuple[int, ...] | None]
_Function: TypeAlias = Callable[..., tuple[tuple[int, ...], tuple[int, ...]] | None]
"""Results for the numbers that a part reads, and those that are read later; None where an answer is another one."""


class Unfollowed(Exception):
    """A witness is used in a way that a recording cannot express, so there is none."""


_Line: TypeAlias = tuple[str, str, str, str, bool]
"""A formula or a question: the name of what the formula gives, "" for a question; the operator; names of numbers, or
numbers, at its left and its right, which is 0 where one is negated; and the answer.

A plain tuple, because a garbage collection does not go through those of texts: a recording has thousands.
"""


def _may_fail(line: _Line) -> bool:
    """Whether planning might divide by 0 there."""
    _, symbol, _, right, _ = line
    return symbol in _DIVISIONS and _NAME.fullmatch(right) is not None


def _written(line: _Line) -> str:
    """Return the line in Python."""
    made, symbol, left, right, answer = line
    if symbol == "neg":
        return f"{made} = -{left}"
    if made:
        return f"{made} = {left} {symbol} {right}"
    return f"if {'not ' if answer else ''}({left} {symbol} {right}): return None"


class Recording:
    """Formulas and answers, as lines of a calculation over the sizes ``x0, x1, ...``."""

    def __init__(self) -> None:
        self._lines: list[_Line] = []
        self._names: dict[tuple[str, str, str], str] = {}
        self._asked: set[tuple[str, str, str]] = set()
        #: Names of ints that can have no other value.
        self.fixed: set[str] = set()
        self._sizes: tuple[int, ...] = ()

    def size(self, value: int) -> Witness:
        """Return a size that is *value* now, and an argument of `compiled`."""
        self._sizes += (int(value),)
        return Witness(value, f"x{len(self._sizes) - 1}", self)

    @property
    def asked_any(self) -> bool:
        """Whether a question was asked: it then holds for some sizes only."""
        return bool(self._asked)

    def make(self, value: int, symbol: str, left: str, right: str = "0") -> Witness:
        """Return the int that a formula gives; equal formulas are one."""
        formula = symbol, left, right
        name = self._names.get(formula)
        if name is None:
            name = self._names[formula] = f"t{len(self._names)}"
            self._lines.append((name, *formula, True))
        return Witness(value, name, self)

    def asked(self, symbol: str, left: str, right: str, answer: bool) -> bool:
        """Note that a question had that answer; returns it."""
        question = symbol, left, right
        if question not in self._asked:
            self._asked.add(question)
            self._lines.append(("", *question, answer))
        return answer

    def compiled(self, results: Sequence[int], lines: int = _PART, *, native: bool = True) -> Slices[Formulas]:
        """Return the function of the sizes that gives *results*; None where an answer is another one.

        Args:
            lines: How many are compiled at a time.
            native: Evaluate them in C, where that was built and the numbers have 64 bits.
        """
        names = list(map(text, results))
        if native and (evaluate := native_evaluate()) is not None:
            table = yield from self.table(results)
            if table is not None and evaluate(*table, self._sizes) is not None:
                return functools.partial(_in_c, evaluate, *table)
        parts = yield from self._cut(dict.fromkeys(filter(_NAME.fullmatch, names)), lines)
        taken = [f"x{i}" for i in range(len(self._sizes))]
        constants = [name for name in names if not _NAME.fullmatch(name)]
        made = [name for part in parts for name in part.made]
        places = {name: place for place, name in enumerate([*taken, *constants, *made])}
        functions: list[_Function] = []
        for part in parts:
            yield
            functions.append(_compile(taken, part))
            taken = part.read_later
        begin, order = tuple(map(int, constants)), [places[name] for name in names]
        return functools.partial(_in_turn, functions, begin, order)

    def forget(self) -> None:
        """Let all lines go, for none is wanted any more: whoever holds a witness holds its recording."""
        self._lines.clear()
        self._names.clear()
        self._asked.clear()

    def table(self, results: Sequence[int]) -> Slices[tuple[bytes, bytes, bytes] | None]:
        """Return lines, constants and the places of *results* as `_formulas.c` reads them; None if one is too large.

        A number's place is that among the sizes, the constants, and the lines.
        """
        names = list(map(text, results))
        wanted, lines = set(names), []
        for number, line in enumerate(reversed(self._lines), 1):
            if number % (8 * _PART) == 0:
                yield
            if not line[0] or line[0] in wanted or _may_fail(line):
                lines.append(line)
                wanted.update(line[2:4])
        constants = [name for name in wanted if not _NAME.fullmatch(name)]
        if not all(-1 << 63 <= int(name) < 1 << 63 for name in constants):
            return None
        places = {name: place for place, name in enumerate([*(f"x{i}" for i in range(len(self._sizes))), *constants])}
        known, table = len(places), array("i")
        for number, line in enumerate(reversed(lines)):
            if number % (8 * _PART) == 0:
                yield
            made, symbol, left, right, answer = line
            code = _CODES[symbol] if made else 2 * _CODES[symbol] - _QUESTIONS + answer
            table.extend((code, places[left], places[right]))
            places[made] = known + number
        order = array("i", [places[name] for name in names])
        return table.tobytes(), array("q", map(int, constants)).tobytes(), order.tobytes()

    def _cut(self, results: Mapping[str, object], lines: int) -> Slices[list[_Part]]:
        """Return the lines in parts, without those that no question and no result wants.

        What is a result alone is handed over at once: passed from part to part, it would be there a hundred times.
        """
        parts: list[_Part] = [_Part([], [], [])]
        wanted: dict[str, None] = {}
        for number, line in enumerate(map(_written, reversed(self._lines)), 1):
            if number % (4 * _PART) == 0:
                yield
            made, is_formula, formula = line.partition(" = ")
            if is_formula and not (made in wanted or made in results or _MAY_FAIL.search(formula)):
                continue
            if len(parts[-1].lines) == lines:
                parts.append(_Part([], [], [*wanted]))
            parts[-1].lines.append(line)
            wanted.pop(made, None)
            if made in results:
                parts[-1].made.append(made)
            wanted.update(dict.fromkeys(_NAME.findall(formula if is_formula else line)))
        for part in parts:
            part.lines.reverse()
        return parts[::-1]


class _Part(NamedTuple):
    """Lines that are compiled together, the results that they make, and which names others read that come later."""

    lines: list[str]
    made: list[str]
    read_later: list[str]


def _compile(taken: list[str], part: _Part) -> _Function:
    """Compile a part, which reads names of *taken*."""
    made, read = (f"({''.join(f'{name}, ' for name in names)})" for names in (part.made, part.read_later))
    source = "\n  ".join([f"def numbers({', '.join(taken)}):", *part.lines, f"return {made}, {read}"])
    scope: dict[str, Any] = {}
    exec(compile(source, "<recipe>", "exec"), {"__builtins__": {}}, scope)  # of ints and operators alone
    function: _Function = scope["numbers"]
    return function


@functools.cache
def native_evaluate() -> Evaluate | None:
    """Return what evaluates formulas in C, with None where Python would divide by 0; None where it was not built."""
    try:
        from . import _formulas
    except ImportError:
        return None
    return _formulas.evaluate if " ".join(_CODES) == _formulas.CODES else None


def _in_c(evaluate: Evaluate, lines: bytes, constants: bytes, results: bytes, *sizes: int) -> tuple[int, ...] | None:
    return evaluate(lines, constants, results, sizes)


def _in_turn(
    parts: list[_Function], constants: tuple[int, ...], order: list[int], *sizes: int
) -> tuple[int, ...] | None:
    """Call the parts, each with what the one before it leaves; returns the sizes, constants and results in *order*."""
    numbers, given = [*sizes, *constants], sizes
    for part in parts:
        found = part(*given)
        if found is None:
            return None
        made, given = found
        numbers += made
    return tuple(map(numbers.__getitem__, order))


def settled(values: Array) -> Array:
    """Return *values* with plain ints for witnesses."""
    if values.dtype != object:
        return values
    plain = [v.settled() if isinstance(v, Witness) else v for v in values.reshape(-1).tolist()]
    return np.array(plain, np.int64).reshape(values.shape)


def text(value: int) -> str:
    """Return what stands for *value* in a formula."""
    return value.name if isinstance(value, Witness) else int.__repr__(int(value))


class Witness(int):
    """An int with its formula."""

    name: str
    recording: Recording

    def __new__(cls, value: int, name: str, recording: Recording) -> Witness:
        self = super().__new__(cls, value)
        self.name, self.recording = name, recording
        return self

    def settled(self) -> int:
        """Return the plain int; from here on the recording holds for this value alone."""
        value = _plain(self)
        self.recording.fixed.add(self.name)
        self.recording.asked("==", self.name, str(value), True)
        return value

    def __hash__(self) -> int:
        return hash(self.settled())

    def __bool__(self) -> bool:
        return self.recording.asked("!=", self.name, "0", _plain(self) != 0)

    def __neg__(self) -> Witness:
        return self.recording.make(-_plain(self), "neg", self.name)

    def __abs__(self) -> int:
        return self if self >= 0 else -self

    def __divmod__(self, other: int) -> tuple[int, int]:
        return self // other, self % other

    def __rdivmod__(self, other: int) -> tuple[int, int]:
        return other // self, other % self

    def __pos__(self) -> int:
        return self

    def __trunc__(self) -> int:
        return self

    __floor__ = __ceil__ = __trunc__

    def __round__(self, digits: Any = None) -> int:
        return self.settled()

    def __format__(self, how: str) -> str:
        return repr(self)

    def __repr__(self) -> str:
        return f"{MARK}{self.name}{MARK}"  # mostly for messages that are never shown

    __str__ = __repr__


def _plain(value: int) -> int:
    return int.__index__(value)


def _follow(symbol: str, function: Callable[[Any, Any], Any], *, swapped: bool) -> Callable[[Witness, Any], Any]:
    def method(self: Witness, other: Any) -> Any:
        if isinstance(other, float):  # which would take the value, and forget the rest
            return function(other, self.settled()) if swapped else function(self.settled(), other)
        if not isinstance(other, int):
            return NotImplemented
        a, b = (other, self) if swapped else (self, other)
        value = function(_plain(a), _plain(b))
        if not isinstance(other, Witness):
            if symbol == "*" and other in (0, 1):
                return self if other else 0
            if (symbol == "+" and other == 0) or (not swapped and (symbol, other) in (("-", 0), ("//", 1))):
                return self
        return self.recording.make(value, symbol, text(a), text(b))

    return method


def _compare(symbol: str, function: Callable[[Any, Any], bool]) -> Callable[[Witness, Any], Any]:
    def method(self: Witness, other: Any) -> Any:
        if isinstance(other, float):
            return function(self.settled(), other)
        if not isinstance(other, int):
            return NotImplemented
        answer = function(_plain(self), _plain(other))
        if isinstance(other, Witness) and other.name == self.name:
            return answer
        if (symbol, answer) in (("==", True), ("!=", False)) and not isinstance(other, Witness):
            self.recording.fixed.add(self.name)
        return self.recording.asked(symbol, self.name, text(other), answer)

    return method


def _settle(name: str) -> Callable[..., Any]:
    def method(self: Witness, *others: Any) -> Any:
        plain = [o.settled() if isinstance(o, Witness) else o for o in others]
        return getattr(self.settled(), name)(*plain)

    return method


for _symbol, _name in (("+", "add"), ("-", "sub"), ("*", "mul"), ("//", "floordiv"), ("%", "mod")):
    _function = getattr(operator, _name)
    setattr(Witness, f"__{_name}__", _follow(_symbol, _function, swapped=False))
    setattr(Witness, f"__r{_name}__", _follow(_symbol, _function, swapped=True))
for _symbol, _name in (("==", "eq"), ("!=", "ne"), ("<", "lt"), ("<=", "le"), (">", "gt"), (">=", "ge")):
    setattr(Witness, f"__{_name}__", _compare(_symbol, getattr(operator, _name)))
for _name in (
    *("int", "float", "truediv", "rtruediv", "pow", "rpow", "lshift", "rlshift", "rshift", "rrshift"),
    *("and", "rand", "or", "ror", "xor", "rxor", "invert"),
):
    setattr(Witness, f"__{_name}__", _settle(f"__{_name}__"))
for _name in ("bit_length", "bit_count", "to_bytes", "as_integer_ratio"):
    setattr(Witness, _name, _settle(_name))
