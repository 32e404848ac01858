"""What only moves quantised values moves the integers.

Exporters quantise behind every operator, also behind those that calculate nothing: ``Q(Transpose(DQ(x)))``. Where both
have the same scale and zero point that is ``Transpose(x)``, bit for bit: a level becomes a float and that level again.
The largest of some levels is the level of the largest float.
"""

from __future__ import annotations

import attrs

from asyncrt.graph.ir import Graph, ProgramNode

from .levels import Level, dequantises, maker, quantises

#: Operators that take elements of their first input where they are. Concat has no others.
_MOVES = frozenset(
    {
        "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "Identity", "MaxPool", "Reshape", "Slice",
        "SpaceToDepth", "Squeeze", "Tile", "Transpose", "Unsqueeze",
    }
)  # fmt: skip


def byte_move(node: ProgramNode, graph: Graph) -> ProgramNode | None:
    """Return the move of integers that *node*, which quantises, and the move before it are; None if they are none."""
    level = quantises(node, graph)
    if level is None or level.scale <= 0:
        return None
    move = maker(node.inputs[0], graph)
    if move is None or move.operator.name not in _MOVES or len(move.outputs) != 1:
        return None
    value = graph.values[move.outputs[0]]
    if value.readers != (node.id,) or value.id in graph.outputs:
        return None
    count = len(move.inputs) if move.operator.name == "Concat" else 1
    given = [_integers(id, level, node, graph) for id in move.inputs[:count]]
    if None in given:
        return None
    return attrs.evolve(
        node, operator=move.operator, attributes=move.attributes, inputs=(*given, *move.inputs[count:])
    )


def _integers(id: int | None, level: Level, node: ProgramNode, graph: Graph) -> int | None:
    """Return the integers that become the floats *id* by *level*, if they have the dtype that *node* makes."""
    made = maker(id, graph)
    if made is None or dequantises(made, graph) != level:
        return None
    integers = made.inputs[0]
    assert integers is not None
    return integers if graph.values[integers].layout.dtype is node.output_types[0] else None
