"""Partial shapes forward through the graph, with the values of shape arithmetic beside them.

Asks each operator's own `infer` with symbolic dims. What depends on the request stays unknown; what can never fit is
reported now, naming the node.
"""

from __future__ import annotations

from asyncrt.dims import Undetermined
from asyncrt.errors import ModelError, ModelFormatError, ModelLimitError
from asyncrt.graph.branches import JOIN, comparable, decidable, infer_join, inlined
from asyncrt.graph.invariants import without_invariants
from asyncrt.graph.ir import Graph, ProgramNode
from asyncrt.graph.reading.limits import check_rank
from asyncrt.graph.subgraphs import chosen_branch, free_dim, infer_outputs, spliced
from asyncrt.kernels.call import Call, ValueUnknown
from asyncrt.layout import Array, Layout, PartialLayout, show_shape
from asyncrt.memory.host import HostBudget, host_limit
from asyncrt.options import RuntimeOptions

from .fold_constants import as_model_error, fold, is_shape_like
from .place_nodes import may_be_on_host


def infer_layouts(graph: Graph, options: RuntimeOptions, budget: HostBudget | None = None) -> None:
    """Infer the layout of every value as far as it can be known, and its contents where they are constant.

    An If whose condition turns out to be constant is replaced by the branch that it takes, and one whose condition a
    request knows before it is planned by both, under guards. What a Loop or Scan carries on unchanged is captured.

    Args:
        budget: Bytes that loading may allocate on the host; None: twice the constants', plus a request's limit.
    """
    if budget is None:
        constants = sum(v.constant.nbytes for v in graph.values if v.constant is not None)
        budget = HostBudget(host_limit(options.memory_limit) + 2 * constants)
    seen, known = 0, comparable(graph)
    waiting, nodes = graph.nodes[::-1], []
    while waiting:
        for value in graph.values[seen:]:
            known.update((value.id,) if value.constant is not None else ())
            if value.constant is not None and is_shape_like(value.constant):
                value.partial = value.constant
        seen = len(graph.values)
        node = waiting.pop()
        branch = chosen_branch(node, graph)
        if branch is not None:
            waiting += reversed(spliced(node, branch, graph))
            continue
        if decidable(node, known):
            waiting += reversed(inlined(node, graph))
            continue
        *passed_on, node = without_invariants(node)
        if passed_on:
            waiting += [node, *reversed(passed_on)]
            continue
        nodes.append(node)
        try:
            _infer_node(node, graph, options, budget)
        except ModelError as error:
            if (graph.depth == 0 and not node.guards) or isinstance(error, ModelLimitError):
                raise
            # Inside a node that may never run this is no error of the model; a request that gets here reports it.
        known.update(v for v in node.outputs if graph.values[v].constant is not None)
        if may_be_on_host(node, graph, known):
            known.update(node.outputs)
    graph.keep(nodes)


def _infer_node(node: ProgramNode, graph: Graph, options: RuntimeOptions, budget: HostBudget) -> None:
    if node.operator is JOIN:
        infer_join(node, graph)
        return
    if node.subgraphs:
        infer_outputs(node, graph, lambda inner: infer_layouts(inner, options, budget))
        return
    call = partial_call(node, graph)
    if call is not None:
        call = _infer(node, call, graph, options)
    fold(node, graph, call, options, budget)


def partial_call(node: ProgramNode, graph: Graph) -> Call | None:
    """Return the node's call as far as loading knows it; None if the rank of an input is unknown."""
    layouts: list[Layout | None] = []
    for id in node.inputs:
        layout = None if id is None else graph.values[id].layout
        if layout is not None and (layout.shape is None or layout.dtype is None):
            return None
        layouts.append(None if layout is None else Layout(layout.dtype, layout.shape))  # type: ignore[arg-type]  # dims may be symbolic
    values = tuple(None if id is None else _known(graph, id) for id in node.inputs)
    constants = tuple(id is not None and graph.values[id].constant is not None for id in node.inputs)
    return Call(node.name, node.attributes, tuple(layouts), values, (), node.output_types, constants)


def _known(graph: Graph, id: int) -> Array | None:
    value = graph.values[id]
    return value.partial if value.partial is not None else value.constant


def _infer(node: ProgramNode, call: Call, graph: Graph, options: RuntimeOptions) -> Call | None:
    try:
        shapes = _shapes(node, call, graph)
        if shapes is None:
            return call  # a request reports it
        pairs = list(zip(node.outputs, shapes, node.output_types, strict=True))
    except Exception as error:
        raise as_model_error(node, f"cannot infer its shapes from {_inputs(call)}", error) from error
    outputs: list[Layout] = []
    for id, shape, dtype in pairs:
        check_rank(len(shape), f"'{node.name}': its output", options.max_rank)
        if any(isinstance(d, int) and d < 0 for d in shape):
            raise ModelFormatError(
                f"'{node.name}': {node.operator.name} of {_inputs(call)} would have the shape {show_shape(shape)}"
            )
        graph.values[id].layout = PartialLayout(dtype, shape)
        outputs.append(Layout(dtype, shape))
    return call._replace(outputs=tuple(outputs))


def _shapes(node: ProgramNode, call: Call, graph: Graph) -> list[tuple[int, ...]] | None:
    """Return the shapes of a node's outputs, with dims of their own where only a request knows; None: it knows all."""
    try:
        return [tuple(s) for s in node.operator.infer(call)]
    except (Undetermined, ValueUnknown):
        if node.operator.axes is None:
            return None
    return [tuple([free_dim(node, graph) if d is None else d for d in s]) for s in node.operator.axes(call)]  # type: ignore[misc]  # dims may be symbolic


def _inputs(call: Call) -> str:
    return ", ".join("nothing" if layout is None else str(layout) for layout in call.inputs) or "nothing"
