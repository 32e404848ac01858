"""What a Loop or Scan carries on unchanged need not be carried: its body may take it from outside.

Exporters of TensorFlow's loops pass everything that a body reads through the loop, the weights too. As captured values,
constants are constants of the body, and others stay where they are for all iterations.
"""

from __future__ import annotations

from typing import NamedTuple

import attrs

from asyncrt.kernels.call import Attributes
from asyncrt.kernels.registry import find_operator

from .ir import ProgramNode, Subgraph
from .subgraphs import note_captures


def without_invariants(node: ProgramNode) -> list[ProgramNode]:
    """Return a node that carries nothing on unchanged, and before it what makes the outputs that it lost.

    A node that carries nothing so is returned as it is, alone.
    """
    if node.operator.name not in ("Loop", "Scan") or not node.subgraphs:
        return [node]
    (body,) = node.subgraphs
    body.restart()
    places = _invariant(node, body)
    if not places:
        return [node]
    drop_inputs, drop_outputs = {p.given for p in places}, {p.output for p in places}
    drop_formals, drop_made = {p.formal for p in places}, {p.made for p in places}
    inner = attrs.evolve(
        body.graph,
        inputs=tuple(v for i, v in enumerate(body.graph.inputs) if i not in drop_formals),
        outputs=tuple(v for i, v in enumerate(body.graph.outputs) if i not in drop_made),
    )
    captured = dict(body.captured)
    identities: list[ProgramNode] = []
    for place in places:
        source = node.inputs[place.given]
        assert source is not None
        captured[body.graph.inputs[place.formal]] = source
        if place.output < len(node.outputs):
            identities.append(_identity(node, place, source))
    rest = attrs.evolve(
        node,
        inputs=tuple(v for i, v in enumerate(node.inputs) if i not in drop_inputs),
        outputs=tuple(v for i, v in enumerate(node.outputs) if i not in drop_outputs),
        output_types=tuple(t for i, t in enumerate(node.output_types) if i not in drop_outputs),
        subgraphs=(Subgraph(body.label, inner, body.formals - len(places), captured),),
    )
    note_captures(rest)
    return [*identities, rest]


class _Place(NamedTuple):
    """A carried value: which input and output of the node it is, and which of its body."""

    given: int
    output: int
    formal: int
    made: int


def _invariant(node: ProgramNode, body: Subgraph) -> list[_Place]:
    """Return the carried values that every iteration makes of themselves."""
    if node.operator.name == "Loop":
        carried = len(node.inputs) - 2
        places = [_Place(2 + n, n, body.formals - carried + n, 1 + n) for n in range(carried)]
    else:
        places = [_Place(n, n, n, n) for n in range(len(node.inputs) - node.attributes["num_scan_inputs"])]
    inner = body.graph
    same = {n.outputs[0]: n.inputs[0] for n in inner.nodes if n.operator.name == "Identity"}
    found: list[_Place] = []
    for place in places:
        made: int | None = inner.outputs[place.made]
        while made in same:
            made = same[made]
        if made == inner.inputs[place.formal] and node.inputs[place.given] is not None:
            found.append(place)
    return found


def _identity(node: ProgramNode, place: _Place, source: int) -> ProgramNode:
    identity = find_operator("", "Identity")
    assert identity is not None
    output, type = node.outputs[place.output], node.output_types[place.output]
    attributes = Attributes({}, node.attributes.opset, 1)
    name = f"{node.name}/{place.output}"
    return ProgramNode(0, name, identity, attributes, (source,), (output,), (type,), guards=node.guards)
