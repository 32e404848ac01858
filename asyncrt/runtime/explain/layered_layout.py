"""Where is each node of a graph that is drawn in layers, from top to bottom?

A node is one layer below the lowest of those that it takes something from. Where an edge passes a layer, it has a place
there as nodes have. Each layer is ordered by where its neighbours are, and then moved close to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import attrs

WIDTH, HEIGHT = 168, 40  # of a node
MARGIN = 20
_ACROSS, _DOWN = 24, 34  # between nodes, and between layers
_BEND = 12  # the width of a place where an edge passes a layer
_SWEEPS = 4  # down and up again; further ones change little


class GraphEdge(NamedTuple):
    """From one node to a later one, by their positions; `value` is None from a node to what is inside it."""

    source: int
    target: int
    value: str | None


@attrs.define(eq=False)
class LayerSlot:
    """A node, or where an edge passes a layer on its way further down."""

    width: float
    above: list[LayerSlot] = attrs.Factory(list)
    below: list[LayerSlot] = attrs.Factory(list)
    rank: float = 0.0  # its position in its layer
    x: float = 0.0  # its middle
    y: float = 0.0  # its top


class GraphLayout(NamedTuple):
    """Where everything is.

    Attributes:
        nodes: In the order in which they were given.
        ways: What each edge goes through, its ends included.
    """

    nodes: list[LayerSlot]
    ways: list[list[LayerSlot]]
    width: float
    height: float


def lay_out(count: int, edges: Sequence[GraphEdge]) -> GraphLayout:
    """Lay out so many nodes; *edges* come in the order of their targets, and lead from earlier nodes to later ones."""
    depths = [0] * count
    for edge in edges:
        depths[edge.target] = max(depths[edge.target], depths[edge.source] + 1)
    layers: list[list[LayerSlot]] = [[] for _ in range(max(depths, default=-1) + 1)]
    places = [LayerSlot(WIDTH) for _ in range(count)]
    for place, depth in zip(places, depths, strict=True):
        layers[depth].append(place)
    ways = _ways(edges, places, depths, layers)
    _order(layers)
    _spread(layers)
    everything = [p for layer in layers for p in layer]
    left = min((p.x - p.width / 2 for p in everything), default=0) - MARGIN
    right = max((p.x + p.width / 2 for p in everything), default=0) + MARGIN
    for p in everything:
        p.x -= left
    return GraphLayout(places, ways, right - left, len(layers) * (HEIGHT + _DOWN) + MARGIN)


def _ways(
    edges: Sequence[GraphEdge], places: Sequence[LayerSlot], depths: Sequence[int], layers: list[list[LayerSlot]]
) -> list[list[LayerSlot]]:
    """Return the places that each edge goes through, and add those between its ends. Edges of a value share them."""
    ways: list[list[LayerSlot]] = []
    shared: dict[tuple[int, str | None], list[LayerSlot]] = {}
    for edge in edges:
        trunk = shared.setdefault((edge.source, edge.value), [places[edge.source]])
        start, length = depths[edge.source], depths[edge.target] - depths[edge.source]
        while len(trunk) < length:
            bend = LayerSlot(_BEND)
            layers[start + len(trunk)].append(bend)
            _join(trunk[-1], bend)
            trunk.append(bend)
        _join(trunk[length - 1], places[edge.target])
        ways.append([*trunk[:length], places[edge.target]])
    return ways


def _join(above: LayerSlot, below: LayerSlot) -> None:
    above.below.append(below)
    below.above.append(above)


def _sweeps(layers: Sequence[list[LayerSlot]]) -> Iterator[tuple[list[LayerSlot], bool]]:
    """Return each layer with whether the one above it is what counts: downwards, upwards, and again."""
    for _ in range(_SWEEPS):
        yield from ((layer, True) for layer in layers[1:])
        yield from ((layer, False) for layer in layers[-2::-1])


def _order(layers: Sequence[list[LayerSlot]]) -> None:
    """Order each layer by where its places' neighbours are on average; those without any stay where they are."""
    for layer in layers:
        _number(layer)
    for layer, downwards in _sweeps(layers):
        wanted: dict[LayerSlot, float] = {}
        for p in layer:
            near = p.above if downwards else p.below
            wanted[p] = sum(q.rank for q in near) / len(near) if near else p.rank
        layer.sort(key=wanted.__getitem__)
        _number(layer)


def _number(layer: Sequence[LayerSlot]) -> None:
    """Set ranks between 0 and 1, so that places without neighbours compare with those of longer layers."""
    for i, p in enumerate(layer):
        p.rank = (i + 1) / (len(layer) + 1)


def _spread(layers: Sequence[list[LayerSlot]]) -> None:
    """Set where everything is: in its order, without overlap, and close to below what it is connected with."""
    for depth, layer in enumerate(layers):
        for p in layer:
            p.y = MARGIN + depth * (HEIGHT + _DOWN)
        _apart(layer, [0.0] * len(layer))
    for layer, downwards in _sweeps(layers):
        near = [p.above if downwards else p.below for p in layer]
        _apart(layer, [sum(q.x for q in n) / len(n) if n else p.x for p, n in zip(layer, near, strict=True)])


def _apart(layer: Sequence[LayerSlot], wanted: Sequence[float]) -> None:
    """Put a layer's places as near to where they are wanted as their order and widths let them, by least squares.

    Less what is to the left of each, wanted positions need only not fall: neighbours that do are averaged.
    """
    offsets: list[float] = []
    for p in layer:
        gap = (layer[len(offsets) - 1].width + p.width) / 2 + _ACROSS if offsets else 0.0
        offsets.append((offsets[-1] if offsets else 0.0) + gap)
    groups: list[tuple[float, int]] = []  # the sum of what is wanted, and how many places
    for want, offset in zip(wanted, offsets, strict=True):
        total, count = want - offset, 1
        while groups and groups[-1][0] / groups[-1][1] >= total / count:
            more, others = groups.pop()
            total, count = total + more, count + others
        groups.append((total, count))
    found = [total / count for total, count in groups for _ in range(count)]
    for p, start, offset in zip(layer, found, offsets, strict=True):
        p.x = start + offset
