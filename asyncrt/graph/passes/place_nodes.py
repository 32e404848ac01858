"""Which nodes run on the host.

Shape arithmetic is evaluated on the host as values and never costs a device command: a node belongs there if its value
is needed for a shape, and everything it needs is itself on the host (constants, shapes, the caller's integer inputs).
A node whose operator has no kernel for its dtypes runs on the host as well, whatever that costs.
"""

from __future__ import annotations

import math
from collections.abc import Container

from asyncrt.dims import Dim
from asyncrt.graph.ir import Graph, Placement, ProgramNode, Value
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT64
from asyncrt.options import RuntimeOptions

_SMALL = 1024  # elements: more than any shape, less than what is worth a kernel
_SCALARS = 16


def place_nodes(graph: Graph, traits: DeviceTraits, options: RuntimeOptions) -> None:
    """Set each node's place."""
    possible = {v.id for v in graph.values if v.constant is not None} | {
        i for i in graph.inputs if _small_or_vector(graph.values[i])
    }
    free = {v.id for v in graph.values if v.constant is not None}  # known from shapes alone, without reading inputs
    for node in graph.nodes:
        by_layout, small = node.operator.evaluate is not None, small_outputs(node, graph)
        if (small and node.subgraphs) or may_be_on_host(node, graph, possible):
            possible.update(node.outputs)
        if by_layout or (small and all(v in free for v in node.uses) and _scalars(graph, node)):
            free.update(node.outputs)
    needed: set[int] = set()
    for node in reversed(graph.nodes):
        host_only = not _has_kernel(node, graph, traits)
        wanted = any(o in needed for o in node.outputs) and all(o in possible for o in node.outputs)
        on_host = host_only or wanted or all(o in free for o in node.outputs)
        node.place = Placement.HOST if on_host else Placement.DEVICE
        # What a subgraph captures is read, but need not be computed on the host for that.
        reads = (*node.conditions, *node.get_shape_infer_dependencies()) if node.subgraphs else node.host_reads
        needed.update(reads)


def may_be_on_host(node: ProgramNode, graph: Graph, possible: Container[int]) -> bool:
    """Whether the host can evaluate a node, *possible* being what it has: few numbers, or what layouts alone say."""
    if node.operator.evaluate is not None:
        return True
    # What is made of shapes and constants alone has few elements if a shape needs it, also where loading does not
    # know how many. Were it calculated on the device, each request would have to read it back before it goes on.
    unknown = all(graph.values[o].layout.shape is None for o in node.outputs)
    few = not node.subgraphs and (unknown or small_outputs(node, graph))
    return few and all(v in possible for v in node.uses)


def small_outputs(node: ProgramNode, graph: Graph) -> bool:
    """Whether all that a node makes has few elements, or is a vector of integers."""
    return all(_small_or_vector(graph.values[o]) for o in node.outputs)


def _has_kernel(node: ProgramNode, graph: Graph, traits: DeviceTraits) -> bool:
    types = [graph.values[v].layout.dtype for v in node.inputs if v is not None] + list(node.output_types)
    if FLOAT64 in types and "fp64" not in traits.features:
        return False
    if any(t is not None and t.is_on_host for t in types):
        return False
    first = graph.values[node.inputs[0]].layout.dtype if node.inputs and node.inputs[0] is not None else None
    return node.operator.has_kernel(first)


def _small_or_vector(value: Value) -> bool:
    """An integer tensor of at most one axis, or of few elements; floats only as a few scalars."""
    dtype, shape = value.layout
    if dtype is None or shape is None:
        return False
    static = not any(isinstance(d, Dim) for d in shape)
    count = math.prod(shape) if static else None
    if dtype.numpy.kind in "iub":
        return len(shape) <= 1 or (isinstance(count, int) and count <= _SMALL)
    return isinstance(count, int) and count <= _SCALARS


def _scalars(graph: Graph, node: ProgramNode) -> bool:
    shapes = [graph.values[o].layout.shape for o in node.outputs]
    return all(
        s is not None and not any(isinstance(d, Dim) for d in s) and math.prod(s) <= _SCALARS for s in shapes
    )
