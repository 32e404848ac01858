"""Evaluate nodes whose result is the same in every request, and shape arithmetic as far as loading knows it.

A node whose inputs are all constants becomes a constant. A small integer node over dims that are still symbolic gets a
*partial* value, an array of dtype object, so that shapes computed from shapes are known as expressions.
"""

from __future__ import annotations

import numpy as np

from asyncrt.dims import Dim, Undetermined
from asyncrt.errors import AsyncrtError, ModelError, ModelFormatError
from asyncrt.graph.ir import Graph, ProgramNode
from asyncrt.kernels.call import Call, ValueUnknown
from asyncrt.kernels.operator import evaluate, host_nbytes
from asyncrt.layout import Array, DataType, PartialLayout
from asyncrt.memory.host import HostBudget
from asyncrt.options import RuntimeOptions

_ELEMENTS = 1024  # more than any shape
_WORKSPACE = 16  # times the bytes that may be folded, or are given: what an evaluation may take
_RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)


def as_model_error(node: ProgramNode, failed: str, error: Exception) -> ModelError:
    """Return *error*, met while loading a node, as a `ModelError` that names the node."""
    detail, hint = (error.detail, error.hint) if isinstance(error, AsyncrtError) else ("", "")
    message = error.message if isinstance(error, AsyncrtError) else f"{failed}: {error!r}"
    if node.name not in message:
        message = f"'{node.name}': {node.operator.name}: {message}"
    kind = type(error) if isinstance(error, ModelError) else ModelFormatError
    return kind(message, detail=detail, hint=hint)


def is_shape_like(array: Array) -> bool:
    """Whether *array* could take part in shape arithmetic: few integers."""
    return array.size <= _ELEMENTS and array.dtype.kind in "iub"


def fold(
    node: ProgramNode, graph: Graph, call: Call | None, options: RuntimeOptions, budget: HostBudget
) -> None:
    """Give the node's outputs their constant or partial values, where they have any.

    Args:
        call: What is known of the node; None if the rank of an input is unknown.
        budget: Bytes that loading may allocate on the host. A node that does not fit stays; requests report it.
    """
    if call is None or node.captures or node.operator.name in _RANDOM:
        return
    inputs = [None if v is None else graph.values[v] for v in node.inputs]
    if all(v is None or v.constant is not None for v in inputs):
        known = [None if v is None else v.constant for v in inputs]
        if _is_worth_folding(node, call, known, options, budget):
            _fold_constant(node, graph, call, known, budget)
    elif node.operator.evaluate is not None or all(v is None or v.partial is not None for v in inputs):
        _fold_partial(node, graph, call, [None if v is None else v.partial for v in inputs])


def _is_worth_folding(
    node: ProgramNode, call: Call, inputs: list[Array | None], options: RuntimeOptions, budget: HostBudget
) -> bool:
    """Whether a node of constants should become a constant, by its sizes alone: nothing is calculated before."""
    try:
        needed = host_nbytes(node.operator, call)
    except (Undetermined, ValueUnknown):
        needed = 0  # more than sizes is unknown; evaluating it reports what is wrong
    except Exception as error:
        raise as_model_error(node, "of constants cannot be evaluated", error) from error
    given = sum(a.nbytes for a in inputs if a is not None)
    made = sum(o.nbytes for o in call.outputs) if call.outputs else needed
    if made > max(options.max_folded_bytes, 2 * given):
        return False  # a small expression for a large tensor is better made anew than kept
    return needed <= _WORKSPACE * max(options.max_folded_bytes, given) and budget.fits(made)


def _fold_constant(
    node: ProgramNode, graph: Graph, call: Call, inputs: list[Array | None], budget: HostBudget
) -> None:
    try:
        results = [np.asarray(r, t.numpy) for r, t in _results(node, call, inputs)]
    except MemoryError:
        return
    except Exception as error:
        raise as_model_error(node, "of constants cannot be evaluated", error) from error
    budget.used += sum(r.nbytes for r in results)
    for output, result in zip(node.outputs, results, strict=True):
        _set_constant(graph, output, result)


def _fold_partial(node: ProgramNode, graph: Graph, call: Call, inputs: list[Array | None]) -> None:
    if any(t.numpy.kind not in "iub" for t in node.output_types):
        return
    if any(isinstance(o.count, int) and o.count > _ELEMENTS for o in call.outputs):
        return
    try:
        results = [np.asarray(r) for r, _ in _results(node, call, inputs)]
    except Exception:
        return  # it needs the actual sizes; NumPy's refusals of symbolic elements are of every class
    for output, result, dtype in zip(node.outputs, results, node.output_types, strict=True):
        elements = result.reshape(-1).tolist()
        if len(elements) > _ELEMENTS or not all(_fits(e, dtype) for e in elements):
            continue
        if any(isinstance(e, Dim) for e in elements):
            graph.values[output].partial = result
            graph.values[output].layout = PartialLayout(dtype, result.shape)
        else:
            _set_constant(graph, output, np.array(elements, dtype.numpy).reshape(result.shape))


def _results(node: ProgramNode, call: Call, inputs: list[Array | None]) -> list[tuple[Array, DataType]]:
    """Return the operator's results (there may be more than the node has outputs) in the outputs' dtypes."""
    results = evaluate(node.operator, call, inputs)[: len(node.outputs)]
    return list(zip(results, node.output_types, strict=True))


def _fits(element: object, dtype: DataType) -> bool:
    """Whether a value fits its dtype: symbolic dims do not wrap around as a kernel's integers do."""
    if isinstance(element, Dim) or dtype.numpy.kind == "b":
        return isinstance(element, Dim | bool)
    if not isinstance(element, int):
        return False
    limits = np.iinfo(dtype.name)
    return limits.min <= element <= limits.max


def _set_constant(graph: Graph, id: int, result: Array) -> None:
    value = graph.values[id]
    array = np.asarray(result, order="C")
    value.constant = array
    value.layout = PartialLayout(value.layout.dtype, array.shape)
    if is_shape_like(array):
        value.partial = array
