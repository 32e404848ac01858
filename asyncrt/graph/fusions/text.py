"""Patterns written as text: assignments, as in a program, that are compared with a graph from the last line up.

::

    centred = Sub(x, mean)
    square = Pow(centred, 2) | Mul(centred, centred)

A name that has a line is the output of a node of that operator; any other name is whatever value stands there. A number
is a constant of one element, and a name in capitals any such constant. Alternatives are tried in order; a name alone is
the value itself. The two operands of Add and Mul may stand in either order. A name means the same value wherever it
stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from asyncrt.graph.ir import ProgramNode

from .base import Surroundings

_COMMUTE = frozenset({"Add", "Mul"})


class Match(NamedTuple):
    """A pattern found in a graph: what each name stands for, and which nodes its lines are."""

    values: Mapping[str, int]
    nodes: Mapping[str, ProgramNode]


class _Choice(NamedTuple):
    """An alternative of a line; without an operator, the one argument itself."""

    operator: str
    arguments: tuple[str, ...]


class Text:
    """A pattern; its last line is the group's result."""

    def __init__(self, text: str) -> None:
        self.lines: dict[str, list[_Choice]] = {}
        for line in filter(None, map(str.strip, text.splitlines())):
            name, choices = line.split(" = ")
            self.lines[name] = [_choice(c.strip()) for c in choices.split("|")]
        self.last = next(reversed(self.lines))

    def match(self, last: ProgramNode, around: Surroundings) -> Match | None:
        """Return how the pattern is the nodes that end in *last*; every value in between is theirs alone."""
        for values, nodes in self._value(self.last, last.outputs[0], last.chunk, {}, {}, around):
            inner = [n.outputs[0] for n in nodes.values() if n is not last]
            if last in nodes.values() and all(around.hidden(v, nodes.values()) for v in inner):
                return Match(values, nodes)
        return None

    def _value(
        self,
        name: str,
        value: int,
        chunk: int,
        values: dict[str, int],
        nodes: dict[str, ProgramNode],
        around: Surroundings,
    ) -> Iterator[tuple[dict[str, int], dict[str, ProgramNode]]]:
        """Every way in which *value* can be what *name* stands for."""
        if re.fullmatch(r"-?[\d.]+", name):
            constant = around.constant(value)
            if constant is not None and constant.size == 1 and float(constant.reshape(-1)[0]) == float(name):
                yield values, nodes
            return
        if name in values:
            if values[name] == value:
                yield values, nodes
            return
        if name.isupper() and ((constant := around.constant(value)) is None or constant.size != 1):
            return
        bound = {**values, name: value}
        if name not in self.lines:
            yield bound, nodes
            return
        node = around.producer(value, chunk, skipped=True)
        for operator, arguments in self.lines[name]:
            if not operator:
                yield from self._value(arguments[0], value, chunk, bound, nodes, around)
            elif node is not None and node.operator.name == operator and not node.operator.domain:
                given = [v for v in node.inputs[: len(arguments)] if v is not None]
                if len(given) < len(arguments):
                    continue
                orders = [given, given[::-1]] if operator in _COMMUTE else [given]
                for order in orders:
                    pairs = list(zip(arguments, order, strict=True))
                    yield from self._values(pairs, chunk, bound, {**nodes, name: node}, around)

    def _values(
        self,
        pairs: list[tuple[str, int]],
        chunk: int,
        values: dict[str, int],
        nodes: dict[str, ProgramNode],
        around: Surroundings,
    ) -> Iterator[tuple[dict[str, int], dict[str, ProgramNode]]]:
        if not pairs:
            yield values, nodes
            return
        for bound, found in self._value(*pairs[0], chunk, values, nodes, around):
            yield from self._values(pairs[1:], chunk, bound, found, around)


def _choice(text: str) -> _Choice:
    match = re.fullmatch(r"(\w+)\((.*)\)", text)
    return _Choice("", (text,)) if match is None else _Choice(match[1], tuple(a.strip() for a in match[2].split(",")))
