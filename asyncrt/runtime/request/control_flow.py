"""How are If, Loop and Scan carried out: which subgraph runs, how often, on which inputs, and where do its results go?

The host decides, so a condition or trip count is read exactly before anything depends on it. Values go in and out as
arrays of the host, as a request's do; a subgraph's memory is given back after each execution. Where ONNX's text and
ONNX Runtime differ, ONNX Runtime is followed: a Loop without a condition still ends when its body says so.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

import attrs
import numpy as np

from asyncrt.errors import DeviceError, ShapeError
from asyncrt.graph.branches import element_of, holds
from asyncrt.graph.ir import Program, ProgramNode
from asyncrt.layout import Array, DataType, Layout, show_shape
from asyncrt.memory.host import HostBudget
from asyncrt.runtime.cooperative import off_loop
from asyncrt.runtime.plan.chunk_plan import NodeRecord, Records

from .linked import Iterated, Loop

_PIECE = 160  # bytes: an array of few elements takes more than these
_MOST = 1 << 16  # iterations at once

Between: TypeAlias = Callable[[int], Awaitable[None]]
"""Lets others go on behind so many iterations, which a body that needs no device never would, and raises if there is to
be no more of them."""


@attrs.frozen(eq=False)
class SubgraphBody:
    """A subgraph for one execution of its node.

    Attributes:
        label: "then", "else" or "body".
        program: The subgraph's.
        captured: What it takes from outside, by the ids of its inputs.
        run: Runs it once, or as often as it can of the iterations of a loop; takes its inputs by id.
        layouts: Returns the layouts of its outputs for such inputs, as far as they are known without running it.
    """

    label: str
    program: Program
    captured: Mapping[int, Array]
    run: Callable[[Mapping[int, Array], Loop | None], Awaitable[Iterated]]
    layouts: Callable[[Mapping[int, Array]], Awaitable[Sequence[Layout | None]]]

    async def __call__(self, formals: Sequence[Array]) -> tuple[list[Array], Records]:
        """Run it once; returns its outputs in their order."""
        went = await self.run(self.inputs(formals), None)
        return [went.last[id] for id in self.program.outputs], went.records

    def inputs(self, formals: Sequence[Array]) -> dict[int, Array]:
        """Return all its inputs by id."""
        return {**dict(zip(self.program.inputs, formals, strict=False)), **self.captured}

    def element(self, index: int, value: bool | int) -> Array:
        """Return one element for a formal input, in the shape that the body wants: a scalar or a vector of one."""
        dtype, shape = self.program.values[self.program.inputs[index]].layout
        assert dtype is not None
        return np.full(shape or (), value, dtype.numpy)

    async def no_elements(self, formals: Sequence[Array], index: int, axis: int, node: ProgramNode) -> Array:
        """Return output *index* collected along *axis* over no iterations: empty there, with its other dims."""
        id = self.program.outputs[index]
        layout = (await self.layouts(self.inputs(formals)))[index]
        dims = layout.shape if layout is not None else self.program.values[id].layout.shape or ()
        shape = [d if isinstance(d, int) else 0 for d in dims]
        shape.insert(_axis(node, axis, len(shape) + 1), 0)
        return np.empty(shape, _dtype(self.program, id).numpy)


class Collected:
    """What the iterations of a node make, for each of its outputs that is collected.

    Args:
        budget: What the request may make on the host: each piece counts twice, because the whole is made while the
            pieces are there.
    """

    def __init__(self, node: ProgramNode, outputs: int, budget: HostBudget) -> None:
        self._node, self._budget, self._nbytes, self._times = node, budget, 0, 0
        #: Each piece is what some iterations made, one after the other.
        self.outputs: list[list[Array]] = [[] for _ in range(outputs)]

    def add(self, results: Sequence[Array]) -> None:
        """Add what an iteration made; raises `OutOfHostMemory` if that is too much."""
        self.add_several([each[np.newaxis] for each in results], 1)

    def add_several(self, results: Sequence[Array], times: int) -> None:
        """Add what so many iterations made, which lies together for each output, and room behind it."""
        self._times += times
        for pieces, each in zip(self.outputs, results, strict=True):
            piece = each[:times]
            nbytes = piece.nbytes + _PIECE
            self._budget.take(nbytes + piece.nbytes, f"'{self._node.name}': what {self._times} iterations made")
            self._nbytes += nbytes
            pieces.append(piece)

    def let_go(self) -> None:
        """Note that the pieces were joined and are gone."""
        self._budget.used -= self._nbytes
        self.outputs.clear()


async def carry_out(
    node: ProgramNode,
    bodies: Sequence[SubgraphBody],
    value: Callable[[int], Array],
    budget: HostBudget,
    between: Between,
) -> tuple[dict[int, Array], NodeRecord]:
    """Carry out a node.

    Args:
        bodies: Its subgraphs.
        value: Returns an input of the node by its id.
        budget: What the request may make on the host.
        between: Awaited between two iterations.

    Returns:
        Its outputs by id, and what became of it.

    Raises:
        ShapeError: The values do not fit the node, or those inside do not fit a node there.
        DeviceError: Something inside failed on the device, or found no memory.
        OutOfHostMemory: What is collected is too much.
    """
    inputs = [None if v is None else value(v) for v in node.inputs]
    try:
        match node.operator.name:
            case "If":
                results, how, inner = await _if(node, bodies, inputs)
            case "Loop":
                results, how, inner = await _loop(node, bodies[0], inputs, budget, between)
            case _:
                results, how, inner = await _scan(node, bodies[0], inputs, budget, between)
    except DeviceError as error:  # unlike a node's own errors, it does not say where
        raise type(error)(f"in '{node.name}': {error.message}", detail=error.detail, hint=error.hint) from error
    outputs = dict(zip(node.outputs, results, strict=False))
    layouts = tuple([Layout(t, outputs[v].shape) for v, t in zip(node.outputs, node.output_types, strict=True)])
    return outputs, NodeRecord(node, None, layouts, how, inner=inner)


_Result = tuple[list[Array], str, tuple[Program, Records] | None]


async def _if(node: ProgramNode, bodies: Sequence[SubgraphBody], inputs: Sequence[Array | None]) -> _Result:
    body = bodies[0 if holds(inputs[0], node.name) else 1]
    results, records = await body(())
    return results, f"the {body.label} branch", (body.program, records)


async def _loop(
    node: ProgramNode, body: SubgraphBody, inputs: Sequence[Array | None], budget: HostBudget, between: Between
) -> _Result:
    limit = None if inputs[0] is None else int(element_of(node.name, "its trip count", inputs[0]))
    going = inputs[1] is None or bool(element_of(node.name, "its condition", inputs[1]))
    carried = _present(inputs[2:])
    collected = Collected(node, len(body.program.outputs) - 1 - len(carried), budget)
    records: Records | None = None
    trips = 0
    while going and (limit is None or trips < limit):
        formals = (body.element(0, trips), body.element(1, going), *carried)
        most = _MOST if limit is None else min(_MOST, limit - trips)
        went = await body.run(body.inputs(formals), Loop(trips, most, len(carried)))
        goes, *made = [went.last[id] for id in body.program.outputs]
        going, records = bool(element_of(node.name, "the condition that its body makes", goes)), went.records
        carried, pieces = made[: len(carried)], body.program.outputs[1 + len(carried) :]
        if went.times == 1:
            collected.add(made[len(carried) :])
        else:
            collected.add_several([went.collected[id] for id in pieces], went.times)
        trips += went.times
        await between(went.times)
    formals = (body.element(0, 0), body.element(1, True), *carried)
    first = 1 + len(carried)
    stacked = [await _stacked(node, body, r, formals, first + i, 0) for i, r in enumerate(collected.outputs)]
    collected.let_go()
    return carried + stacked, _times(trips), None if records is None else (body.program, records)


async def _scan(
    node: ProgramNode, body: SubgraphBody, inputs: Sequence[Array | None], budget: HostBudget, between: Between
) -> _Result:
    attributes = node.attributes
    count = len(inputs) - attributes["num_scan_inputs"]
    given = _present(inputs)
    carried = given[:count]
    sequences: list[Array] = []
    for array, axis, backward in zip(
        given[count:], attributes["scan_input_axes"], attributes["scan_input_directions"], strict=True
    ):
        sequence = np.moveaxis(array, _axis(node, axis, array.ndim), 0)
        sequences.append(sequence[::-1] if backward else sequence)
    trips = len(sequences[0])
    if any(len(s) != trips for s in sequences):
        lengths = ", ".join(str(len(s)) for s in sequences)
        raise ShapeError(f"'{node.name}': Scan goes over sequences of one length, got lengths {lengths}")
    collected = Collected(node, len(body.program.outputs) - count, budget)
    records: Records | None = None
    for trip in range(trips):
        elements = [s[trip, ...] for s in sequences]  # arrays, where s[trip] may be a text
        parts = [await off_loop(e.nbytes, functools.partial(_dense, e)) for e in elements]
        outputs, records = await body((*carried, *parts))
        carried = outputs[:count]
        collected.add(outputs[count:])
        await between(1)
    elements = [np.broadcast_to(np.zeros((), s.dtype), s.shape[1:]) for s in sequences]  # their shapes alone matter
    stacked: list[Array] = []
    for i, (results, axis, backward) in enumerate(
        zip(collected.outputs, attributes["scan_output_axes"], attributes["scan_output_directions"], strict=True)
    ):
        ordered = results[::-1] if backward else results
        stacked.append(await _stacked(node, body, ordered, (*carried, *elements), count + i, axis))
    collected.let_go()
    return carried + stacked, _times(trips), None if records is None else (body.program, records)


async def _stacked(
    node: ProgramNode, body: SubgraphBody, results: Sequence[Array], formals: Sequence[Array], index: int, axis: int
) -> Array:
    """Return what the iterations made, along a new axis."""
    if not results:
        return await body.no_elements(formals, index, axis, node)
    shapes = list(dict.fromkeys(r.shape[1:] for r in results))
    if len(shapes) > 1:
        raise ShapeError(
            f"'{node.name}': output {index} of its body is {show_shape(shapes[0])} in one iteration and "
            f"{show_shape(shapes[1])} in another; {node.operator.name} collects tensors of one shape"
        )
    along = _axis(node, axis, results[0].ndim)
    joined = functools.partial(np.concatenate, results)
    return await off_loop(sum([r.nbytes for r in results]), lambda: _dense(np.moveaxis(joined(), 0, along)))


def _axis(node: ProgramNode, axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise ShapeError(f"'{node.name}': axis {axis} is outside a tensor of rank {rank}")
    return axis % rank


def _present(inputs: Sequence[Array | None]) -> list[Array]:
    return [array for array in inputs if array is not None]


def _dense(array: Array) -> Array:
    """Return *array* row-major, as devices take it; unlike NumPy's own, scalars stay scalars."""
    return np.asarray(array, order="C")


def _dtype(program: Program, id: int) -> DataType:
    dtype = program.values[id].layout.dtype
    assert dtype is not None
    return dtype


def _times(trips: int) -> str:
    return "1 iteration" if trips == 1 else f"{trips} iterations"
