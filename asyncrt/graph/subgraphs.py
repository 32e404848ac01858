"""The graphs inside If, Loop and Scan: their captures, and what loading knows of their outputs.

A subgraph is a program of its own. Its inputs are its formal ones, which the node gives it in each execution, and the
values that it captures from outside; captured constants are its constants. A subgraph may never run, so what cannot
work in it is an error of the request that runs it, not of the model.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import attrs

from asyncrt.dims import Dim, identical
from asyncrt.errors import ModelFormatError, ModelTypeError
from asyncrt.kernels.call import Attributes, Call, ValueUnknown
from asyncrt.kernels.operator import Operator
from asyncrt.kernels.registry import find_operator
from asyncrt.kinds import fits
from asyncrt.layout import BOOL, INT64, Array, DataType, PartialLayout, PartialShape, Shape

from .ir import Graph, ProgramNode, Subgraph, Value

Infer: TypeAlias = "Callable[[Graph], None]"

_GUESSES = 4  # guesses at the layouts that carried values keep, before nothing is assumed of them
_DEPTH = 3  # loops in loops are inferred once per guess of each level; deeper ones are not guessed at


def _by_its_subgraphs(call: Call) -> Sequence[Shape]:
    raise ValueUnknown(f"'{call.name}': its shapes are those of its subgraphs")


def _carried_out_by_the_network(attributes: Attributes, inputs: Sequence[Array | None]) -> Sequence[Array]:
    raise NotImplementedError("control flow has no reference: its subgraphs are run, see runtime/control_flow.py")


_operator = functools.partial(Operator, infer=_by_its_subgraphs, reference=_carried_out_by_the_network)

CONTROL_FLOW: dict[str, Operator] = {
    "If": _operator(name="If", shape_infer_dependencies=(0,)),
    "Loop": _operator(name="Loop", shape_infer_dependencies=(0, 1)),
    "Scan": _operator(name="Scan"),
}
"""The operators that hold subgraphs. What they depend on by value is what decides what runs, and how often."""

LABELS = {
    "If": {"then_branch": "then", "else_branch": "else"},
    "Loop": {"body": "body"},
    "Scan": {"body": "body"},
}
"""Their graph attributes, and how nodes inside are named after them."""


def note_captures(node: ProgramNode) -> None:
    """Note the values that a node's subgraphs capture from outside."""
    node.captures = tuple(sorted({outer for sub in node.subgraphs for _, outer in sub.taken}))


# While the model is imported.


def formal_types(operator: str, given: Sequence[DataType | None]) -> list[DataType | None]:
    """Return the dtypes of a subgraph's formal inputs, from those of the node's inputs."""
    match operator:
        case "If":
            return []
        case "Loop":
            return [INT64, BOOL, *given[2:]]
    return list(given)


def formal_values(operator: str, attributes: Attributes, inputs: Sequence[int | None]) -> list[int | None]:
    """Return the values that a subgraph's formal inputs are in the first iteration; None for those made for it."""
    match operator:
        case "If":
            return []
        case "Loop":
            return [None, None, *inputs[2:]]
    count = len(inputs) - attributes["num_scan_inputs"]
    return [v if i < count else None for i, v in enumerate(inputs)]


def check_subgraphs(
    operator: str, attributes: Attributes, inputs: int, outputs: int, subs: Sequence[Subgraph], title: str
) -> tuple[DataType, ...]:
    """Check that a node and its subgraphs fit; return the dtypes of the node's outputs.

    Raises:
        ModelFormatError: They do not.
        ModelTypeError: The branches of an If, or a carried value before and after, are not of one dtype.
    """
    types = [[layout.dtype for layout in sub.results] for sub in subs]
    carried, hidden = 0, 0
    if operator == "Loop":
        carried, hidden = inputs - 2, 1
        _check(types[0][:1] == [BOOL], f"{title}: the first output of Loop's body is a condition, of dtype bool")
    elif operator == "Scan":
        count = attributes["num_scan_inputs"]
        _check(0 < count <= inputs, f"{title}: num_scan_inputs is {count}, and Scan has {inputs} inputs")
        carried = inputs - count
        _check_scan(attributes, count, len(types[0]) - carried, title)
    for sub, made in zip(subs, types, strict=True):
        enough = len(made) - hidden >= max(carried, outputs)
        _check(enough, f"{title}: {operator}'s {sub.label} has {len(made)} outputs; {max(carried, outputs)} are used")
    for i, (before, after) in enumerate(_pairs(operator, subs, types, carried, hidden)):
        if not fits(after, before):
            raise ModelTypeError(f"{title}: {_WHAT[operator]} {i} is {before} and {after}; it must be of one dtype")
    return tuple(t for t in types[0][hidden : hidden + outputs] if t is not None)


_WHAT = {"If": "output", "Loop": "carried value", "Scan": "state"}


def _pairs(
    operator: str, subs: Sequence[Subgraph], types: Sequence[Sequence[DataType | None]], carried: int, hidden: int
) -> Iterator[tuple[DataType | None, DataType | None]]:
    if operator == "If":
        return zip(*types, strict=False)
    graph = subs[0].graph
    first = subs[0].formals - carried if operator == "Loop" else 0
    before = [graph.values[id].layout.dtype for id in graph.inputs[first : first + carried]]
    return zip(before, types[0][hidden:], strict=False)


def _check_scan(attributes: Attributes, inputs: int, outputs: int, title: str) -> None:
    for name, count in (
        ("scan_input_axes", inputs),
        ("scan_input_directions", inputs),
        ("scan_output_axes", outputs),
        ("scan_output_directions", outputs),
    ):
        given = attributes.setdefault(name, (0,) * count)
        _check(len(given) == count, f"{title}: {name} has {len(given)} entries for {count} values")
        sense = not name.endswith("directions") or all(d in (0, 1) for d in given)
        _check(sense, f"{title}: {name} is {list(given)}; a direction is 0, forward, or 1, backward")


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise ModelFormatError(message)


# While layouts are inferred.


def chosen_branch(node: ProgramNode, graph: Graph) -> Subgraph | None:
    """Return the branch that an If takes in every request, if loading knows."""
    condition = node.inputs[0] if node.operator is CONTROL_FLOW["If"] else None
    constant = None if condition is None else graph.values[condition].constant
    if constant is None or constant.size != 1:
        return None
    return node.subgraphs[0 if constant.item() else 1]


def spliced(node: ProgramNode, branch: Subgraph, graph: Graph) -> list[ProgramNode]:
    """Return the nodes of *branch* to stand for *node*; its values are added to *graph*."""
    branch.restart()
    inner = branch.graph
    ids = dict(branch.captured)
    made = {output for n in inner.nodes for output in n.outputs}
    copies: list[tuple[int, int]] = []
    for outer, output in zip(node.outputs, inner.outputs, strict=False):
        if output in made and output not in ids:
            ids[output] = outer
        else:
            copies.append((output, outer))
    for value in inner.values:
        if value.id not in ids:
            ids[value.id] = len(graph.values)
            graph.values.append(Value(ids[value.id], value.name, value.layout, constant=value.constant))
    nodes = [
        attrs.evolve(
            n,
            inputs=tuple(None if v is None else ids[v] for v in n.inputs),
            outputs=tuple(ids[v] for v in n.outputs),
            captures=tuple(sorted(ids[v] for v in n.captures)),
            subgraphs=tuple(_moved(sub, ids) for sub in n.subgraphs),
            guards=node.guards,
        )
        for n in inner.nodes
    ]
    identity = find_operator("", "Identity")
    assert identity is not None
    for output, outer in copies:
        type = graph.values[outer].layout.dtype
        assert type is not None
        title, attributes = f"{node.name}/{branch.label}", Attributes({}, node.attributes.opset, 1)
        nodes.append(
            ProgramNode(0, title, identity, attributes, (ids[output],), (outer,), (type,), guards=node.guards)
        )
    return nodes


def _moved(sub: Subgraph, ids: dict[int, int]) -> Subgraph:
    sub.restart()
    return Subgraph(sub.label, sub.graph, sub.formals, {inner: ids[outer] for inner, outer in sub.captured.items()})


def infer_outputs(node: ProgramNode, graph: Graph, infer: Infer) -> None:
    """Infer a node's subgraphs, and the layouts of its outputs from theirs.

    Args:
        infer: Infers the layouts of a graph.
    """
    match node.operator.name:
        case "If":
            shapes = _if(node, graph, infer)
        case "Loop":
            shapes = _loop(node, graph, infer)
        case _:
            shapes = _scan(node, graph, infer)
    for id, dtype, shape in zip(node.outputs, node.output_types, shapes, strict=False):
        graph.values[id].layout = PartialLayout(dtype, shape)
    note_captures(node)


def _if(node: ProgramNode, graph: Graph, infer: Infer) -> list[PartialShape | None]:
    for sub in node.subgraphs:
        sub.begin(graph, ())
        infer(sub.graph)
    either = zip(*(sub.results for sub in node.subgraphs), strict=False)
    return [common_shape(then.shape, other.shape, node, graph) for then, other in either]


def common_shape(
    a: PartialShape | None, b: PartialShape | None, node: ProgramNode, graph: Graph
) -> PartialShape | None:
    """Return what two branches' shapes have in common; a dim in which they differ is one of which nothing is known."""
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple(x if identical((x,), (y,)) else free_dim(node, graph) for x, y in zip(a, b, strict=True))


def free_dim(node: ProgramNode, graph: Graph) -> Dim:
    """Return a dim of which nothing is known."""
    return Dim.named(graph.fresh(f"{node.name}.dim"))


def _static(layout: PartialLayout, node: ProgramNode, graph: Graph) -> PartialShape | None:
    """Return the shape of collected values without symbolic dims, which may be those of one iteration only."""
    if layout.shape is None:
        return None
    return tuple(free_dim(node, graph) if isinstance(d, Dim) else d for d in layout.shape)


def _loop(node: ProgramNode, graph: Graph, infer: Infer) -> list[PartialShape | None]:
    initial = [_layout(v, graph) for v in node.inputs[2:]]
    kept = _carried(node, graph, infer, (None, None), initial, ())
    collected = [_static(layout, node, graph) for layout in node.subgraphs[0].results[1 + len(initial) :]]
    return kept + [None if s is None else (free_dim(node, graph), *s) for s in collected]


def _scan(node: ProgramNode, graph: Graph, infer: Infer) -> list[PartialShape | None]:
    attributes = node.attributes
    count = len(node.inputs) - attributes["num_scan_inputs"]
    initial = [_layout(v, graph) for v in node.inputs[:count]]
    length: int | Dim = free_dim(node, graph)
    elements: list[PartialLayout] = []
    for v, axis in zip(node.inputs[count:], attributes["scan_input_axes"], strict=True):
        dtype, shape = _layout(v, graph)
        if shape is not None:
            if not -len(shape) <= axis < len(shape):
                raise ModelFormatError(f"'{node.name}': Scan over axis {axis} of a tensor of rank {len(shape)}")
            axis %= len(shape)
            length, shape = shape[axis], shape[:axis] + shape[axis + 1 :]
        elements.append(PartialLayout(dtype, shape))
    kept = _carried(node, graph, infer, (), initial, elements)
    for layout, axis in zip(node.subgraphs[0].results[count:], attributes["scan_output_axes"], strict=True):
        shape = _static(layout, node, graph)
        if shape is not None:
            if not -len(shape) - 1 <= axis <= len(shape):
                raise ModelFormatError(f"'{node.name}': Scan along axis {axis} of an output of rank {len(shape) + 1}")
            axis %= len(shape) + 1
            shape = (*shape[:axis], length, *shape[axis:])
        kept.append(shape)
    return kept


def _layout(id: int | None, graph: Graph) -> PartialLayout:
    assert id is not None
    return graph.values[id].layout


def _carried(
    node: ProgramNode,
    graph: Graph,
    infer: Infer,
    before: Sequence[PartialLayout | None],
    initial: Sequence[PartialLayout],
    after: Sequence[PartialLayout],
) -> list[PartialShape | None]:
    """Return shapes that carried values have in every iteration, with the body inferred for them.

    A guess holds if the initial values have these shapes and the body, given such values, makes values of the same
    shapes. The first guess is that nothing changes; dims that the body does not keep become unknown in the next.
    """
    (body,) = node.subgraphs
    first = 1 if node.operator.name == "Loop" else 0
    free: set[str | None] = set()
    shapes = [layout.shape if graph.depth < _DEPTH else None for layout in initial]
    for guess in range(_GUESSES + 1):
        if guess == _GUESSES:
            shapes = [None] * len(shapes)
        layouts = [PartialLayout(i.dtype, shape) for i, shape in zip(initial, shapes, strict=True)]
        body.begin(graph, [*before, *layouts, *after])
        infer(body.graph)
        made = [layout.shape for layout in body.results[first : first + len(shapes)]]
        wider = [_wider(a, b, free, node, graph) for a, b in zip(shapes, made, strict=True)]
        if all(a is None or (b is not None and identical(a, b)) for a, b in zip(shapes, wider, strict=True)):
            break
        shapes = wider
    # Dims that differ between iterations are not those of the final values.
    return [
        None if s is None else tuple(free_dim(node, graph) if _is(d, free) else d for d in s) for s in shapes
    ]


def _wider(
    guess: PartialShape | None, made: PartialShape | None, free: set[str | None], node: ProgramNode, graph: Graph
) -> PartialShape | None:
    if guess is None or made is None or len(guess) != len(made):
        return None
    dims: list[int | Dim] = []
    for a, b in zip(guess, made, strict=True):
        if not _is(a, free) and not identical((a,), (b,)):
            a = free_dim(node, graph)
            free.add(a.name)
        dims.append(a)
    return tuple(dims)


def _is(dim: int | Dim, names: set[str | None]) -> bool:
    return isinstance(dim, Dim) and dim.name in names
