"""What does a node on the host give? Its size is judged before it runs, and a large one stops no event loop."""

from __future__ import annotations

import functools

import numpy as np

from asyncrt.graph.ir import ProgramNode
from asyncrt.kernels.call import Call
from asyncrt.kernels.operator import evaluate, host_nbytes
from asyncrt.kinds import nbytes_of
from asyncrt.layout import Array, DataType, whole_numbers
from asyncrt.memory.host import HostBudget
from asyncrt.runtime.cooperative import Slices, in_one_piece

from .node_errors import naming
from .traced_int import Unfollowed, Witness

_FOLLOWED = 1024  # elements: more than any shape


def run_on_host(node: ProgramNode, call: Call, budget: HostBudget) -> Slices[list[Array]]:
    """Evaluate a node of shape arithmetic, or one without a kernel; its values need no device.

    Args:
        budget: Of the request; what the node gives is taken of it.

    Raises:
        OutOfHostMemory: What it gives, or needs on the way, is too much; told before it runs.
        ShapeError: The values do not fit the node.
    """
    needed = given = 0
    if node.operator.evaluate is None:  # else it looks at layouts, and gives a few numbers
        given = sum([nbytes_of(a) for a in call.values if a is not None])
        looked_at = [call.value(i) for i in node.operator.shape_infer_dependencies]
        looks = sum([a.nbytes for a in looked_at if a is not None])
        needed = yield from in_one_piece(looks, functools.partial(judged, node, call))
        budget.check(needed, title(node))
    results = yield from in_one_piece(max(given, needed), functools.partial(_results, node, call))
    budget.take(sum(map(nbytes_of, results)), title(node))
    return results


def follow_on_host(node: ProgramNode, call: Call) -> list[Array]:
    """Evaluate a node of shape arithmetic whose numbers may be witnesses, which they stay: as arrays of objects.

    Raises:
        Unfollowed: It is none, or takes them in a way that a recording cannot follow.
    """
    if any(t.is_float and len(node.inputs) > 1 for t in node.output_types):
        raise Unfollowed
    if any(a is not None and a.size > _FOLLOWED for a in call.values):
        raise Unfollowed
    try:
        results = evaluate(node.operator, call, call.values)
    except Exception as error:  # NumPy's refusals of what is no number of its own are of every class
        raise Unfollowed from error
    return [_followed(np.asarray(r), t) for r, t in zip(results, node.output_types, strict=False)]


def _followed(result: Array, dtype: DataType) -> Array:
    """A result in its dtype; what has witnesses must be numbers that the dtype has."""
    elements = result.reshape(-1).tolist()
    if not any(isinstance(e, Witness) for e in elements):
        return np.asarray(result, dtype.numpy, order="C")
    least, most = whole_numbers(dtype)
    if not all(isinstance(e, int) and least <= e <= most for e in elements):
        raise Unfollowed
    return result


def judged(node: ProgramNode, call: Call) -> int:
    """Return how many bytes the node's reference makes at most."""
    with naming(node, call, "cannot infer its shapes"):
        return host_nbytes(node.operator, call)


def title(node: ProgramNode) -> str:
    """Return the node as messages name it."""
    return f"'{node.name}': {node.operator.name}"


def _results(node: ProgramNode, call: Call) -> list[Array]:
    with naming(node, call, "failed on the host"):
        results = evaluate(node.operator, call, call.values)
        arrays = [np.asarray(r, t.numpy) for r, t in zip(results, node.output_types, strict=False)]
        return [np.asarray(a, order="C") for a in arrays]
