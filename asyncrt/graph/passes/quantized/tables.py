"""What is calculated of one 8-bit value and becomes 8 bits again is looked up in a table of 256.

Statically quantised models quantise around each step: ``Q(x * Sigmoid(DQ(Q(Sigmoid(DQ(x))))))`` is dozens of
instructions and four divisions for each element, and yet has only as many results as ``x`` has values. They are
calculated once, while the model is loaded, by the operators' meaning in NumPy; results differ from those of kernels by
one step at most, where a quotient lies next to a half.

Source: tables of 8-bit activations in TensorFlow Lite (`kernels/internal/common.h:LUTPopulate`) and of ONNX Runtime's
QLinearSigmoid, which have one step each.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from asyncrt.dims import identical
from asyncrt.graph.ir import Graph, ProgramNode, Value
from asyncrt.kernels.call import Attributes
from asyncrt.kernels.ops.quantization.byte_table import ENTRIES, OPERATOR
from asyncrt.layout import Array, PartialLayout, dtype_of

from .levels import BYTES, quantises

_CHEAP = frozenset(
    {"QuantizeLinear", "DequantizeLinear", "Relu", "Clip", "Identity", "Add", "Sub", "Mul", "Neg", "Abs"}
)
_MOST = 32  # nodes


def byte_table(node: ProgramNode, graph: Graph) -> ProgramNode | None:
    """Return the table that *node*, which quantises, stands for with what is before it; None if there is none."""
    if quantises(node, graph) is None:
        return None
    found = _steps(node, graph)
    if found is None:
        return None
    x, steps = found
    shape, result = (graph.values[id].layout.shape for id in (x, node.outputs[0]))
    if not shape or result is None or not identical(shape, result):
        return None
    if _is_cheap([step.operator.name for step in steps.values()]):
        return None
    table = _calculated(x, steps, graph, len(shape)).get(node.outputs[0])
    if table is None or table.size != ENTRIES:
        return None
    layout = PartialLayout(dtype_of(table.dtype), (ENTRIES,))
    value = Value(len(graph.values), graph.fresh(f"{node.name}.table"), layout, constant=table.reshape(ENTRIES))
    graph.values.append(value)
    return attrs.evolve(
        node, operator=OPERATOR, attributes=Attributes({}, node.attributes.opset), inputs=(x, value.id)
    )


def _is_cheap(steps: Sequence[str]) -> bool:
    """Whether the kernel that makes what they begin with does them beside its own work, and a table, which is one more
    walk through memory, would take as long. To quantise is to divide."""
    return all(step in _CHEAP for step in steps) and steps.count("QuantizeLinear") < 2


def _steps(node: ProgramNode, graph: Graph) -> tuple[int, dict[int, ProgramNode]] | None:
    """Return the earliest 8-bit value that *node* depends on alone, and all steps from there, by number; None for none.

    The latest of the values that it is made of is followed back to what that is made of, as long as that is possible.
    """
    steps: dict[int, ProgramNode] = {}
    given: set[int] = set()
    best = None
    number: int | None = node.id
    while number is not None and _collect(number, graph, steps, given) and given:
        if len(given) == 1:
            best = next(iter(given)), dict(steps)
        latest = max(given, key=lambda id: -1 if graph.values[id].producer is None else graph.values[id].producer or 0)
        given.remove(latest)
        number = graph.values[latest].producer
    return best


def _collect(number: int, graph: Graph, steps: dict[int, ProgramNode], given: set[int]) -> bool:
    """Add a node and what it depends on to *steps*, and to *given* the 8-bit values from which on.

    False if that is more than element-wise steps and single numbers.
    """
    if number in steps:
        return True
    node, table = graph.nodes[number], graph.nodes[number].operator is OPERATOR
    if len(steps) == _MOST or len(node.outputs) != 1 or not (table or node.operator.expression is not None):
        return False
    steps[number] = node
    for value in (graph.values[id] for id in node.inputs if id is not None):
        if value.constant is not None:
            if not table and (value.constant.size != 1 or value.constant.ndim > 1):
                return False
        elif value.layout.dtype in BYTES:
            given.add(value.id)
        elif value.producer is None or not _collect(value.producer, graph, steps, given):
            return False
    return True


def _calculated(x: int, steps: dict[int, ProgramNode], graph: Graph, rank: int) -> dict[int, Array]:
    """Return what the steps make of all values of *x*, by value; without those of steps that do not take them.

    Args:
        rank: How many axes it has.
    """
    dtype = graph.values[x].layout.dtype
    assert dtype is not None
    every = np.arange(ENTRIES).astype(np.uint8).view(dtype.numpy)
    made: dict[int, Array] = {x: every.reshape(*(1,) * (rank - 1), ENTRIES)}
    for number in sorted(steps):
        step = steps[number]
        inputs = [None if id is None else made.get(id, graph.values[id].constant) for id in step.inputs]
        if any(id is not None and array is None for id, array in zip(step.inputs, inputs, strict=True)):
            break
        with np.errstate(all="ignore"):
            made[step.outputs[0]] = np.asarray(step.operator.reference(step.attributes, inputs)[0])
    return made
