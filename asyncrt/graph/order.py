"""In which order can a graph's nodes be imported? Each after those whose outputs it takes."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence

import onnx

from asyncrt.errors import ModelFormatError

from .functions import used_names


def in_order(nodes: Sequence[tuple[onnx.NodeProto, str]], known: Collection[str]) -> list[int]:
    """Return the nodes' indices, each after those whose outputs it takes; files in another order exist."""
    made: dict[str, int] = {}
    for i, (node, title) in enumerate(nodes):
        for name in filter(None, node.output):
            if name in made or (name in known):
                raise ModelFormatError(f"'{name}' is defined twice, the second time by {title}")
            made[name] = i
    wants: list[set[int]] = []
    users: list[list[int]] = [[] for _ in nodes]
    for i, (node, title) in enumerate(nodes):
        needed: set[int] = set()
        for name in used_names(node):
            if name in made:
                needed.add(made[name])
            elif name not in known:
                raise ModelFormatError(f"{title} takes '{name}', which nothing in the graph makes")
        wants.append(needed)
        for j in needed:
            users[j].append(i)
    missing = [len(w) for w in wants]
    ready = [i for i, n in enumerate(missing) if n == 0]  # in ascending order, so already a heap
    order: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for j in users[i]:
            missing[j] -= 1
            if missing[j] == 0:
                heapq.heappush(ready, j)
    if len(order) != len(nodes):
        done, path = set(order), [next(i for i, n in enumerate(missing) if n)]
        while path[-1] not in path[:-1]:  # from any node that cannot run, back to one that waits for itself
            path.append(next(j for j in sorted(wants[path[-1]]) if j not in done))
        raise ModelFormatError(f"the graph has a cycle through {nodes[path[-1]][1]}")
    return order
