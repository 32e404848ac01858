"""Products, with what is calculated behind them, whose left-hand side is a normalisation that they alone read.

Blocks of transformers begin so. They are looked for when each product has what is calculated behind it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from asyncrt.graph.ir import ProgramNode
from asyncrt.kernels.fusion.normalised import STATISTICS, fused_normalised

from .base import FusionGroup, Surroundings
from .elementwise import unit_of


def find_normalised(
    last: ProgramNode, wholes: Mapping[ProgramNode, ProgramNode], around: Surroundings
) -> FusionGroup | None:
    """Return the normalisation, the product, and what follows it up to *last*; None if that is not what there is.

    Args:
        wholes: For each part of the element-wise groups that were found, the node that stands for it.
    """
    unit = unit_of(last, wholes, around) or ()
    products = [node for node in unit if node.operator.with_normal is not None]
    if len(products) != 1:
        return None
    product = products[0]
    value = product.inputs[0]
    normal = around.producer(value, last.chunk)
    if value is None or normal is None or not around.hidden(value, [product]) or not _of_rows(normal, around):
        return None
    ordered = sorted([normal, *unit], key=lambda n: n.id)
    build = functools.partial(fused_normalised, normal=ordered.index(normal), product=ordered.index(product))
    return FusionGroup(ordered, (normal.inputs[0], *product.inputs[1:], *normal.inputs[1:]), build)


def _of_rows(node: ProgramNode, around: Surroundings) -> bool:
    """Whether a node normalises along the last axis."""
    axis, shape = node.attributes.get("axis", -1), around.shape(node.uses[0])
    last = axis == -1 or (shape is not None and axis == len(shape) - 1)
    return node.operator.name in STATISTICS and not node.operator.domain and last
