"""Pairs of convolutions: one of one cell, and a depthwise one that alone reads it, each with what follows it.

Blocks of networks for phones begin so. The pairs are looked for when each convolution has what is calculated behind it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from asyncrt.graph.ir import ProgramNode
from asyncrt.kernels.fusion.expansion import Pair, fused_expansion

from .base import FusionGroup, Surroundings
from .elementwise import operands, unit_of


def find_expansion(
    last: ProgramNode, wholes: Mapping[ProgramNode, ProgramNode], around: Surroundings
) -> FusionGroup | None:
    """Return the pair that ends in *last*; None if there is none.

    Args:
        wholes: For each part of the element-wise groups that were found, the node that stands for it.
    """
    outer = unit_of(last, wholes, around)
    second = None if outer is None else _convolution(outer)
    if outer is None or second is None or not _is_depthwise(second, around):
        return None
    value = second.inputs[0]
    maker = around.maker(value, last.chunk)
    inner = None if maker is None else unit_of(maker, wholes, around)
    first = None if inner is None else _convolution(inner)
    if value is None or inner is None or first is None or not _is_product(first, around):
        return None
    if not around.hidden(value, [second]) or operands(list(inner), around):
        return None
    ordered = sorted([*inner, *outer], key=lambda n: n.id)
    number = {part: i for i, part in enumerate(ordered)}
    pair = Pair(number[first], frozenset(number[p] for p in inner if p is not first), number[second])
    given = [(*node.inputs, None)[:3] for node in (first, second)]
    return FusionGroup(ordered, (*given[0], *given[1][1:]), functools.partial(fused_expansion, pair=pair))


def _convolution(unit: tuple[ProgramNode, ...]) -> ProgramNode | None:
    """Return the convolution of a unit whose other nodes are calculated from it element by element."""
    found = [node for node in unit if node.operator.expression is None]
    return found[0] if len(found) == 1 and found[0].operator.name == "Conv" else None


def _is_depthwise(conv: ProgramNode, around: Surroundings) -> bool:
    filters = around.constant(conv.inputs[1])
    return filters is not None and filters.ndim == 4 and len(filters) == conv.attributes.get("group", 1) > 1


def _is_product(conv: ProgramNode, around: Surroundings) -> bool:
    filters = around.constant(conv.inputs[1])
    return filters is not None and filters.shape[2:] == (1, 1) and conv.attributes.get("group", 1) == 1
