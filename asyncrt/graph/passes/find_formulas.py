"""Find the values that are expressions of the inputs' dims; see `graph/symbolic.py`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asyncrt.dims import Dim
from asyncrt.graph.ir import Graph, Placement, ProgramNode
from asyncrt.graph.symbolic import LARGE, Formula, SymbolicValues
from asyncrt.layout import Layout


def symbolic_values(graph: Graph) -> SymbolicValues:
    """Return the values of *graph* that are expressions of its inputs' dims, and the nodes that they replace."""
    names: dict[str, tuple[int, int]] = {}
    for position, id in enumerate(graph.inputs):
        for axis, dim in enumerate(graph.values[id].layout.shape or ()):
            if isinstance(dim, Dim) and dim.name is not None:
                names.setdefault(dim.name, (position, axis))
    nodes = {n.id for n in graph.nodes if _is_symbolic(n, graph, names)}
    wanted = {v for n in graph.nodes if n.id not in nodes for v in n.uses} | set(graph.outputs)
    expressions: list[Dim] = []
    formulas: list[Formula] = []
    for node in graph.nodes:
        for id in node.outputs if node.id in nodes else ():
            if id in wanted:
                formulas.append(_formula(graph, id, expressions))
    shapes: list[tuple[int, tuple[int, ...], tuple[tuple[int, int], ...]]] = []
    limits = [
        limit
        for node in graph.nodes
        for id in (node.outputs if node.id in nodes else ())
        for limit in _limits(graph, id, expressions)
    ]
    relied_on = {n.uses[0] for n in graph.nodes if n.id in nodes and n.operator.evaluate is not None}
    for id in sorted(relied_on):
        shape = graph.values[id].layout.shape or ()
        plain, places = _number(list(shape), expressions)
        shapes.append((id, tuple(plain), places))
    used = {name for e in expressions for name in e.names()}
    return SymbolicValues(
        frozenset(nodes),
        tuple(shapes),
        tuple((name, *names[name]) for name in sorted(used)),
        tuple(expressions),
        tuple(formulas),
        tuple(dict.fromkeys(limits)),
    )


def _is_symbolic(node: ProgramNode, graph: Graph, names: dict[str, tuple[int, int]]) -> bool:
    if node.place is not Placement.HOST or node.chunk != 0:
        return False
    for id in node.outputs:
        partial = graph.values[id].partial
        if partial is None:
            return False
        dims = [d for d in partial.reshape(-1).tolist() if isinstance(d, Dim)]
        if any(name not in names for d in dims for name in d.names()):
            return False
    if node.operator.evaluate is not None:
        shape = graph.values[node.uses[0]].layout.shape
        if shape is None or any(name not in names for d in shape if isinstance(d, Dim) for name in d.names()):
            return False
    return True


def _formula(graph: Graph, id: int, expressions: list[Dim]) -> Formula:
    value = graph.values[id]
    partial, dtype = value.partial, value.layout.dtype
    assert partial is not None
    assert dtype is not None
    plain, places = _number(partial.reshape(-1).tolist(), expressions)
    template = np.array(plain, dtype.numpy).reshape(partial.shape)
    return Formula(id, Layout(dtype, partial.shape), template, places)


def _limits(graph: Graph, id: int, expressions: list[Dim]) -> list[tuple[int, int, int]]:
    """Return the limits of the elements of a value that could leave their dtype in some request; each gets a number."""
    value = graph.values[id]
    partial, dtype = value.partial, value.layout.dtype
    assert partial is not None
    assert dtype is not None
    if dtype.numpy.kind == "b":
        return []
    low, high = int(np.iinfo(dtype.name).min), int(np.iinfo(dtype.name).max)
    open_ = [e for e in partial.reshape(-1).tolist() if isinstance(e, Dim) and (low == 0 or e.bound(LARGE) > high)]
    return [(number, low, high) for _, number in _number(open_, expressions)[1]]


def _number(elements: Sequence[int | Dim], expressions: list[Dim]) -> tuple[list[int], tuple[tuple[int, int], ...]]:
    """Return *elements* with zeros for symbolic ones, and the expression at each by its number; new ones get one."""
    places: list[tuple[int, int]] = []
    for position, element in enumerate(elements):
        if isinstance(element, Dim):
            number = next((n for n, e in enumerate(expressions) if e.same_as(element)), len(expressions))
            if number == len(expressions):  # not a dict: it would compare two expressions whose hashes are equal
                expressions.append(element)
            places.append((position, number))
    return [0 if isinstance(e, Dim) else e for e in elements], tuple(places)
