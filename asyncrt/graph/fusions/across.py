"""Element-wise groups with nodes between them that move nothing for some shapes.

Such as a Reshape that makes rows of a batch, or a Transpose that moves an axis of length 1. They are looked for when
the groups without such nodes are known: first across nodes that never move anything, then across all. Where one of them
does move data, the smaller groups are carried out instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from asyncrt.graph.ir import ProgramNode
from asyncrt.kernels.fusion.groups import MAX_OPERANDS

from .base import FusionGroup, Surroundings
from .elementwise import MAX_PARTS, calculated, operands

_Wholes: TypeAlias = Mapping[ProgramNode, ProgramNode]
_Passes: TypeAlias = Callable[[ProgramNode], bool]


class _Unit(NamedTuple):
    """Nodes that are calculated without a break: an element-wise node or group, or a product with its epilogue."""

    parts: tuple[ProgramNode, ...]
    product: ProgramNode | None


def find_across(last: ProgramNode, wholes: _Wholes, passes: _Passes, around: Surroundings) -> FusionGroup | None:
    """Return the group that ends in *last* and goes across nodes that may move nothing; None if there is none.

    Args:
        wholes: For each part of the element-wise groups that were found, the node that stands for it.
        passes: Whether to go across a node; asked of those that may move nothing.
    """
    first = _unit(last, wholes, around)
    if first is None or first.parts == (first.product,):
        return None
    parts, product, across = [*first.parts], first.product, 0
    while (found := _grow(parts, product, wholes, passes, around)) is not None:
        passed, unit = found
        parts += [*passed, *unit.parts]
        product, across = product or unit.product, across + len(passed)
    return calculated(parts, product) if across else None


def _grow(
    parts: list[ProgramNode], product: ProgramNode | None, wholes: _Wholes, passes: _Passes, around: Surroundings
) -> tuple[list[ProgramNode], _Unit] | None:
    """Return what *parts* take in next: nodes to go across, and a unit in front of them."""
    readers = [part for part in parts if part is not product]
    for value in dict.fromkeys(v for part in readers for v in part.uses):
        found = _behind(value, readers, wholes, passes, around)
        if found is None:
            continue
        unit = found[1]
        if product is not None and unit.product is not None:
            continue
        together = [*parts, *unit.parts]
        working = sum(part.operator.expression is not None for part in together)
        if working <= MAX_PARTS and operands(together, around) <= MAX_OPERANDS:
            return found
    return None


def _behind(
    value: int, readers: list[ProgramNode], wholes: _Wholes, passes: _Passes, around: Surroundings
) -> tuple[list[ProgramNode], _Unit] | None:
    """Return the unit that makes *value*, with the nodes passed on the way to it, if only *readers* read it."""
    passed: list[ProgramNode] = []
    while around.hidden(value, [*readers, *passed]):
        node = around.maker(value, readers[0].chunk)
        if node is None or node in readers:
            return None
        unit = _unit(node, wholes, around)
        if unit is not None:
            return passed, unit
        if not around.may_move_nothing(node) or not passes(node) or node.inputs[0] is None:
            return None
        passed.append(node)
        value = node.inputs[0]
    return None


def _unit(last: ProgramNode, wholes: _Wholes, around: Surroundings) -> _Unit | None:
    """Return the unit that ends in *last*, if there is one."""
    whole = wholes.get(last)
    if whole is None and not (around.free(last) and (last.operator.expression or last.operator.with_epilogue)):
        return None
    parts = (last,) if whole is None else whole.parts
    return _Unit(parts, next((part for part in parts if part.operator.with_epilogue is not None), None))
