"""Which element of an operand goes into which element of a fused result, where some parts only change the shape?

Each element of the result is calculated on its own, so every intermediate value needs a view that says which of its
elements belongs to an index of the result. For the result this is the index itself. From a part's output to its operands
the view is broadcast (`View.expand`); a part that only changes the shape leaves it as it is, since elements keep their
order.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncrt.kernels.call import Call
from asyncrt.memory.view import View

from .expression import Part


def lying_under(parts: Sequence[Part], call: Call) -> dict[int, View] | str:
    """Return for each operand of *parts* its elements over the result's shape, or why there is no such view.

    Args:
        parts: In order, of the same *call*; the last one makes the result. An input that comes from a part that is not
            among them must be in the result's order.
    """
    result = View.dense(parts[-1].call.outputs[0].shape)
    itself = result.through(result)
    assert itself is not None
    operands: dict[int, View] = {}
    made: dict[int, View] = {parts[-1].number: itself}
    for part in reversed(parts):
        mine = made[part.number]
        for position in part.positions:
            source = part.sources[position]
            assert source is not None
            base = call.view(source) if source >= 0 else View.dense(part.call.shape(position))
            if not part.moves:
                base = base.expand(part.call.outputs[0].shape)
            view = mine.through(base)
            if view is None:
                return f"no strides say where an element of the result finds what '{part.call.name}' takes"
            known, key = (operands, source) if source >= 0 else (made, ~source)
            if known.setdefault(key, view) != view:
                return f"'{part.call.name}' takes in another order what another node takes, too"
    for number in made.keys() - {part.number for part in parts}:
        if made[number] != itself:
            return f"'{call.parts[number].name}' makes its result in another order"
    return operands
