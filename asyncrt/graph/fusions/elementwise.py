"""Element-wise operators that follow one another, and a product in front of them.

Such as ``x * sigmoid(x)``, GELU written out, a residual connection, or the bias and activation of a linear layer. The
group grows from its last node towards the inputs, for as long as what it takes in is read by nobody else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from asyncrt.dims import Dim, Undetermined
from asyncrt.graph.ir import ProgramNode
from asyncrt.kernels.fusion.groups import MAX_OPERANDS, fused_elementwise, fused_product
from asyncrt.layout import FLOAT32, INT8, UINT8

from .base import FusionGroup, Pattern, Surroundings

MAX_PARTS = 32  # the longest that exporters write is GELU with a bias and a residual connection, about twelve


def find(last: ProgramNode, around: Surroundings) -> FusionGroup | None:
    if last.operator.expression is None:
        return None
    parts: list[ProgramNode] = [last]
    product: ProgramNode | None = None
    narrowed: ProgramNode | None = None
    shape = around.shape(last.outputs[0])
    grown = True
    while grown and len(parts) < MAX_PARTS:
        grown = False
        readers = [part for part in parts if part is not product]  # what goes into a product is made before it
        for value in dict.fromkeys(v for part in readers for v in part.uses):
            node = around.producer(value, last.chunk)
            if node is None or node in parts or not around.hidden(value, readers):
                continue
            is_product = node.operator.with_epilogue is not None
            if is_product and (product is not None or _differ(around.shape(value), shape)):
                continue
            if not is_product and (node.operator.expression is None or _left_to_its_product(node, shape, around)):
                continue
            source = None if is_product else _narrowed_product(node, around)
            chosen = product or narrowed
            if source is not None and chosen is not None and source is not chosen:
                continue  # a product of its own, which stores bytes rather than what becomes bytes here
            if operands([*parts, node], around) > MAX_OPERANDS:
                continue
            narrowed = narrowed or source
            parts.append(node)
            product = node if is_product else product
            grown = True
    return calculated(parts, product) if len(parts) > 1 else None


def _left_to_its_product(node: ProgramNode, shape: tuple[object, ...] | None, around: Surroundings) -> bool:
    """Whether *node* is calculated from a product whose result is not of *shape*.

    Such as the gate of a squeeze-and-excite block, one number for each channel. In the group it would be calculated for
    each element, or where it does not fit be carried out alone; the product does it before it stores.
    """

    def follows(value: int, reader: ProgramNode) -> bool:
        own = around.shape(reader.outputs[0])
        return not _surely_equal(own, shape) and _surely_equal(around.shape(value), own)

    return _product_behind(node, around, follows) is not None


def _narrowed_product(node: ProgramNode, around: Surroundings) -> ProgramNode | None:
    """Return the product whose results *node* makes integers of 8 bits of; None if it does not, or of none."""
    if around.dtype(node.outputs[0]) not in (UINT8, INT8):
        return None
    return _product_behind(node, around, lambda value, reader: True)


def _product_behind(
    node: ProgramNode, around: Surroundings, follows: Callable[[int, ProgramNode], bool]
) -> ProgramNode | None:
    """Return a product from which *node* is calculated element by element, and nobody else; None if there is none.

    Args:
        follows: Whether to go on from a reader to the value that it reads.
    """
    for value in node.uses:
        maker = around.producer(value, node.chunk)
        if maker is None or not around.hidden(value, [node]) or not follows(value, node):
            continue
        if maker.operator.with_epilogue is not None:
            return maker
        found = _product_behind(maker, around, follows) if maker.operator.expression is not None else None
        if found is not None:
            return found
    return None


def _surely_equal(a: tuple[object, ...] | None, b: tuple[object, ...] | None) -> bool:
    """Whether two shapes are the same in every request; so are ones, and dims, of which nothing is known."""
    if a is None or b is None:
        return True
    return len(a) == len(b) and all(_may_stay(x, y) for x, y in zip(a, b, strict=True))


def _may_stay(own: object, other: object) -> bool:
    """Whether a dim is not surely another one; a number and a dim that only a request knows are two."""
    try:
        return own == other
    except Undetermined:
        return isinstance(own, Dim) and isinstance(other, Dim)


def calculated(parts: list[ProgramNode], product: ProgramNode | None) -> FusionGroup:
    """Return the group of element-wise *parts*, one of which may be a product."""
    if product is None:
        return FusionGroup(parts, (), fused_elementwise)
    index = sorted(parts, key=lambda n: n.id).index(product)
    return FusionGroup(parts, product.inputs, functools.partial(fused_product, product=index))


def unit_of(
    last: ProgramNode, wholes: Mapping[ProgramNode, ProgramNode], around: Surroundings
) -> tuple[ProgramNode, ...] | None:
    """Return the nodes that are calculated without a break and end in *last*: its group, or it alone."""
    whole = wholes.get(last)
    if whole is not None:
        return whole.parts if whole.parts[-1] is last else None
    return (last,) if around.free(last) else None


def operands(parts: list[ProgramNode], around: Surroundings) -> int:
    """Return how many operands element-wise *parts* have that need a buffer."""
    made = {part.outputs[0] for part in parts}
    calculated = [part for part in parts if part.operator.expression is not None]
    return len(
        {
            v
            for part in calculated
            for position, v in enumerate(part.inputs)
            if v is not None and v not in made and not _is_literal(part, position, v, around)
        }
    )


def _is_literal(part: ProgramNode, position: int, value: int, around: Surroundings) -> bool:
    """Whether an input may be written into the kernel's text: a float, where the operator sees its value."""
    constant = around.constant(value)
    seen = position in part.operator.declared and around.dtype(value) is FLOAT32
    return seen and constant is not None and constant.size == 1


def _differ(a: tuple[object, ...] | None, b: tuple[object, ...] | None) -> bool:
    """Whether two shapes surely differ in every request."""
    if a is None or b is None:
        return False
    known = [(x, y) for x, y in zip(a, b, strict=False) if isinstance(x, int) and isinstance(y, int)]
    return len(a) != len(b) or any(x != y for x, y in known)


ELEMENTWISE = Pattern("element-wise", find)
