"""Which nodes make integers of 8 bits from floats and back by one scale, and by which?"""

from __future__ import annotations

from typing import NamedTuple

from asyncrt.graph.ir import Graph, ProgramNode
from asyncrt.layout import FLOAT32, INT8, UINT8

BYTES = (UINT8, INT8)


class Level(NamedTuple):
    """One scale and one zero point, which are constants."""

    scale: float
    zero: int


def maker(id: int | None, graph: Graph) -> ProgramNode | None:
    """Return the node that makes a value, if it is one of ONNX's own operators."""
    number = None if id is None else graph.values[id].producer
    node = None if number is None else graph.nodes[number]
    return node if node is not None and not node.operator.domain else None


def quantises(node: ProgramNode, graph: Graph) -> Level | None:
    """Return the level by which *node* makes 8-bit integers of float32; None if it does not, or by several."""
    if node.operator.name != "QuantizeLinear" or node.operator.domain or node.output_types[0] not in BYTES:
        return None
    return _level(node, graph) if _dtype(node.inputs[0], graph) is FLOAT32 else None


def dequantises(node: ProgramNode, graph: Graph) -> Level | None:
    """The same for float32 of 8-bit integers."""
    if node.operator.name != "DequantizeLinear" or node.operator.domain or node.output_types[0] is not FLOAT32:
        return None
    return _level(node, graph) if _dtype(node.inputs[0], graph) in BYTES else None


def _level(node: ProgramNode, graph: Graph) -> Level | None:
    found = [None if id is None else graph.values[id].constant for id in node.inputs[1:3]]
    given = [id for id in node.inputs[1:3] if id is not None]
    if len(given) != sum(array is not None and array.size == 1 for array in found):
        return None
    scale, zero = found[0], found[1] if len(found) > 1 else None
    assert scale is not None, "a scale is always given"
    return Level(float(scale.reshape(())), 0 if zero is None else int(zero.reshape(())))


def _dtype(id: int | None, graph: Graph) -> object:
    return None if id is None else graph.values[id].layout.dtype
