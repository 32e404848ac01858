"""Which nodes are carried out as one, where the shapes of a request allow it?

Runs when everything else is decided. The nodes stay, and a fused node is put beside them: a request that cannot use it
uses its parts. The parts of a group are moved together, to the place of the last of them.
"""

from __future__ import annotations

from asyncrt.graph.fusions import PATTERNS
from asyncrt.graph.fusions.across import find_across
from asyncrt.graph.fusions.base import Surroundings, fused_node
from asyncrt.graph.fusions.elementwise import ELEMENTWISE
from asyncrt.graph.fusions.expansion import find_expansion
from asyncrt.graph.fusions.normalised import find_normalised
from asyncrt.graph.ir import Graph, ProgramNode
from asyncrt.kernels.decide import SkipMode


def fuse(graph: Graph) -> None:
    """Find groups, latest first, so that each is as large as can be, then groups of them; note all in `Graph.fused`,
    the larger ones behind those that they hold."""
    found = _Groups(graph)
    found.by_pattern()
    found.across(SkipMode.ALWAYS)
    found.across(SkipMode.ALWAYS, SkipMode.AT_RUNTIME)
    found.pairs()
    graph.fused = sorted(found.all, key=lambda whole: whole.id)


class _Groups:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.all: list[ProgramNode] = []
        self.taken: set[ProgramNode] = set()
        #: For each part of an element-wise group, the largest that it is in.
        self.calculated: dict[ProgramNode, ProgramNode] = {}
        self.around = Surroundings(graph, self.taken)

    def by_pattern(self) -> None:
        """Nodes that a pattern describes."""
        for pattern in PATTERNS:
            for node in reversed(self.graph.nodes):
                group = pattern.find(node, self.around) if self.around.free(node) else None
                if group is not None:
                    whole = fused_node(group)
                    self.all.append(whole)
                    self.taken.update(whole.parts)
                    if pattern is ELEMENTWISE:
                        self.calculated |= dict.fromkeys(whole.parts, whole)
        self.move_together()

    def across(self, *modes: SkipMode) -> None:
        """Groups of element-wise groups and nodes with only nodes of these skip modes between them."""
        smaller = dict(self.calculated)
        within: set[ProgramNode] = set()
        for node in reversed(self.graph.nodes):
            if node in within:
                continue
            group = find_across(node, smaller, lambda n: n.skip_mode in modes, self.around)
            if group is not None:
                whole = fused_node(group, smaller)
                self.all.append(whole)
                self.taken.update(whole.parts)
                self.calculated |= dict.fromkeys(whole.parts, whole)
                within.update(whole.parts)
        self.move_together()

    def pairs(self) -> None:
        """Convolutions, with what follows each, that are carried out together; products with what they alone read."""
        smaller = dict(self.calculated)
        within: set[ProgramNode] = set()
        for node in reversed(self.graph.nodes):
            if node in within:
                continue
            group = find_expansion(node, smaller, self.around) or find_normalised(node, smaller, self.around)
            if group is not None:
                whole = fused_node(group, smaller)
                self.all.append(whole)
                self.taken.update(whole.parts)
                within.update(whole.parts)
        self.move_together()

    def move_together(self) -> None:
        """Put the parts of each group where its last one is, those of the largest last, and number all anew."""
        largest = {part: whole for whole in self.all for part in whole.parts}
        moved = {whole.parts[-1]: whole.parts for whole in largest.values()}
        nodes = self.graph.nodes
        self.graph.keep(n for node in nodes if node in moved or node not in largest for n in moved.get(node, (node,)))
        for whole in self.all:
            whole.id = whole.parts[-1].id
