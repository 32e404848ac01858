"""How is a chunk planned, now that its shapes are known? This is the heart of the runtime, in the order of its steps.

For a whole chunk: infer all shapes, take all skip decisions (final, never tentative), choose implementations, plan
memory. Nothing here waits, touches a device or looks at the clock, and nothing about a request is stored on a node:
the same state gives the same plan.

`PrimitiveInst` and the functions `update_shape`, `update_impl`, `update_weights`, `realloc_if_needed` and
`update_output_memory` bear the names that OpenVINO's GPU plugin has for the mechanisms they are (docs/mechanisms.md).
All other names are asyncrt's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from asyncrt.graph.branches import takes
from asyncrt.graph.ir import FOREVER, Chunk, Placement, Program, ProgramNode
from asyncrt.graph.reading.limits import check_rank
from asyncrt.kernels.call import Call
from asyncrt.kernels.decide import Apart, Decision, Empty, Run, Skip, Viewed, decide, decide_together, wants_dense
from asyncrt.kernels.impl import Impl, inp, out
from asyncrt.kernels.indices import Indices
from asyncrt.kernels.patterns.copy import copy_launch, materialise
from asyncrt.kernels.patterns.indexing import look_at
from asyncrt.kernels.resident.weights import Packing, Stored
from asyncrt.layout import Layout
from asyncrt.memory.host import HostBudget
from asyncrt.memory.view import View
from asyncrt.runtime.cooperative import Slices, finished

from .chunk_plan import ChunkPlan, Home, NodeRecord, State, run_records
from .host_nodes import follow_on_host, judged, run_on_host, title
from .joined_rows import join_rows
from .kv_append import KeptMemory
from .memory_plan import STAGED, MemoryPlan
from .node_errors import naming
from .numpy_launches import reference_copy, reference_impl, reference_look
from .tensors import Location, PlannedTensor
from .tools import Tools
from .traced_int import settled

_COMPARED = 1024  # bytes of a value
_SLICE = 4  # nodes that are prepared without an interruption; with witnesses, one


@attrs.define(eq=False)
class PrimitiveInst:
    """One node at one set of shapes: its layouts, what was decided, and its implementation."""

    node: ProgramNode
    call: Call
    decision: Decision | Apart | None = None
    impl: Impl | None = None
    #: What the device has to look at while it runs.
    indices: Indices | None = None
    #: Inputs that come as views and have to be written out first; then nothing else is answered yet.
    wants_dense: tuple[int, ...] = ()

    @property
    def can_be_optimized(self) -> bool:
        """Whether the node is elided in this request."""
        return isinstance(self.decision, Skip | Viewed)


class _BrokenFormula(Exception):
    """A shape differs from the formula that loading found for it."""


def prepare_chunk(program: Program, chunk: Chunk, state: State, tools: Tools) -> ChunkPlan:
    """Plan a chunk at once; as `prepare_in_slices`."""
    return finished(prepare_in_slices(program, chunk, state, tools))


def prepare_in_slices(
    program: Program, chunk: Chunk, state: State, tools: Tools, budget: HostBudget | None = None
) -> Slices[ChunkPlan]:
    """Plan a chunk.

    Args:
        state: What is known: after the chunk before it, with the values that the host has read since.
        budget: What the request may make on the host; None: as much as one may alone.

    Raises:
        ShapeError: The shapes or values do not fit a node.
        OutOfHostMemory: What nodes on the host make is too much.
    """
    budget = budget or HostBudget(tools.host_limit)
    used = budget.used
    try:
        return (yield from _Planner(program, chunk, state, tools, budget, formulas=chunk.index == 0).plan())
    except _BrokenFormula:
        budget.used = used
        return (yield from _Planner(program, chunk, state, tools, budget, formulas=False).plan())


def list_chunk(
    program: Program, chunk: Chunk, state: State, tools: Tools
) -> Slices[tuple[MemoryPlan, list[NodeRecord]]]:
    """Return all that a plan is made of, its numbers as they are calculated: the ints of *state* may be witnesses.

    Raises:
        Unfollowed: A value is calculated in a way that witnesses do not follow.
        ShapeError: The shapes or values do not fit a node.
    """
    tools = attrs.evolve(tools, origins=False, recording=True)
    planner = _Planner(program, chunk, state, tools, HostBudget(tools.host_limit), formulas=True)
    try:
        yield from planner.walk()
    except _BrokenFormula:
        planner = _Planner(program, chunk, state, tools, HostBudget(tools.host_limit), formulas=False)
        yield from planner.walk()
    return planner.memory, planner.records


class _Planner:
    def __init__(
        self, program: Program, chunk: Chunk, state: State, tools: Tools, budget: HostBudget, *, formulas: bool
    ) -> None:
        self.program, self.chunk, self.tools, self.budget = program, chunk, tools, budget
        self.layouts = list(state.layouts)
        self.values = list(state.values)
        self.memory = MemoryPlan(
            program, chunk, state, self.layouts, self.values, tools.pack,
            origins=tools.origins, branches=tools.branches, apart=tools.apart,
        )  # fmt: skip
        self.places = self.memory.places
        self.kept = KeptMemory(self.memory, tools.traits if tools.takes_source else None)
        self.records: list[NodeRecord] = []
        #: Values that lie as views, and where the record of the node that made them is; None if in an earlier chunk.
        self.viewed: dict[int, int | None] = dict.fromkeys(state.views)
        self.formulas = formulas
        self.expected: dict[int, tuple[int, ...]] = {}

    def plan(self) -> Slices[ChunkPlan]:
        yield from self.walk()
        return (yield from self.memory.finish(self.records))

    def walk(self) -> Slices[None]:
        """Prepare every node."""
        for v in self.program.arriving:
            self.check_rank(f"'{self.program.values[v].name}'", self.layouts[v])
        symbolic = self.evaluate_formulas() if self.formulas else frozenset()
        for number, node in enumerate(self.chunk.nodes, 1):
            if node.guards and not takes(node.guards, self.values.__getitem__):
                self.memory.absent.update(node.outputs)
            elif node.id in symbolic:
                self.take_formula(node)
            elif node.place is Placement.HOST:
                yield from self.run_on_host(self.update_shape(node))
            else:
                self.prepare(node)
            if number % _SLICE == 0 or self.tools.recording:
                yield
        self.write_out_views()
        yield

    def evaluate_formulas(self) -> frozenset[int]:
        """Set the values of shape arithmetic that loading has as formulas; returns the nodes that need not run."""
        layouts = [self.layouts[id] for id in self.program.inputs]
        try:
            found, self.expected = self.program.symbolic.evaluate(
                layouts, as_objects=self.tools.recording  # type: ignore[arg-type]  # inputs have layouts
            )
        except (ZeroDivisionError, OverflowError):  # the nodes say what comes of it
            return frozenset()
        for id, layout, value in found:
            self.layouts[id], self.values[id] = layout, value
        return self.program.symbolic.nodes

    def take_formula(self, node: ProgramNode) -> None:
        """A host node whose value a formula gave. Where it reads a shape, the shape must be what the formula says."""
        if node.operator.evaluate is not None:
            layout = self.layouts[node.uses[0]]
            if layout is None or layout.shape != self.expected[node.uses[0]]:
                raise _BrokenFormula
        self.records.append(NodeRecord(node, None, (), "host"))

    def prepare(self, node: ProgramNode) -> None:
        """One node of the device: shapes, then whether it runs, then with what, then where its output goes."""
        if self.kept.appends(node):
            self.append(node)
            return
        if node.parts and not self.tools.takes_source:
            self.prepare_apart(node, "")
            return
        inst = self.remember(node)
        if inst.indices is not None and (inst.impl is None or not inst.impl.looks_at_indices):
            self.look_at(inst, inst.indices)
        match inst.decision:
            case Apart(why):
                self.prepare_apart(node, why)
            case Empty() as empty:
                self.bind_nothing(inst, empty)
            case Skip() | Viewed():
                self.update_output_memory(inst, inst.decision)
            case Run() as run:
                assert inst.impl is not None
                weights = self.update_weights(inst, inst.impl)
                how = self.realloc_if_needed(inst, inst.impl, weights)
                self.records += run_records(node, inst.call, run, how)

    def prepare_apart(self, node: ProgramNode, why: str) -> None:
        """Prepare the parts of a fused node one after the other, as if they had not been fused."""
        start = len(self.records)
        for part in node.apart:
            self.prepare(part)
        if why:
            self.records[start:] = [r.not_fused(why) for r in self.records[start:]]

    def append(self, node: ProgramNode) -> None:
        """Prepare a node that appends to what a sequence keeps."""
        inst = self.update_shape(node)
        assert node.operator.destinations is not None
        with naming(node, inst.call, "cannot be kept"):
            how = self.kept.append(node, inst.call, node.operator.destinations(inst.call))
        place = self.places[node.outputs[0]]
        if place is not None and place.view is not None:
            self.viewed[node.outputs[0]] = len(self.records)
        self.records.append(NodeRecord(node, Run("what it keeps stays on the device"), inst.call.outputs, how))

    def remember(self, node: ProgramNode) -> PrimitiveInst:
        """Shapes, decision and implementation of the node: what was answered before for an equal node at equal
        layouts and values, in this request or another, holds again."""
        memo = self.tools.memo
        while True:
            strided = self.strided(node) if self.viewed else ()
            key = None if self.tools.recording else self.question(node, strided)
            inst = memo.get(key) if key is not None else None
            if inst is None:
                inst = self.answer(node, strided)
                if key is not None:
                    memo.put(key, inst)
            if not inst.wants_dense:
                break
            for index in inst.wants_dense:
                self.write_out(node.inputs[index], node.id, f"'{node.name}' reads it dense")
        for v, layout in zip(node.outputs, inst.call.outputs, strict=True):
            self.layouts[v] = layout
        return inst if inst.node is node else PrimitiveInst(node, inst.call, inst.decision, inst.impl, inst.indices)

    def answer(self, node: ProgramNode, strided: tuple[View | None, ...]) -> PrimitiveInst:
        """Shapes, decision and implementation; or which views have to be written out before that is asked again."""
        inst = self.update_shape(node, strided)
        with naming(node, inst.call, "cannot tell where its indices may point"):
            inst.indices = node.operator.unseen_indices(inst.call)
        inst.decision = self.decide_together(inst) if node.parts else None
        if isinstance(inst.decision, Apart):
            return inst
        if strided:
            with naming(node, inst.call, "cannot be decided"):
                inst.wants_dense = wants_dense(node.operator, inst.call)
        if not inst.wants_dense:
            inst.decision = inst.decision or self.decide(inst)
            if isinstance(inst.decision, Run):
                self.update_impl(inst)
        return inst

    def strided(self, node: ProgramNode) -> tuple[View | None, ...]:
        """How the node's inputs lie, where some of them are views; else nothing."""
        if not any(v in self.viewed for v in node.inputs):
            return ()
        return tuple([self.places[v].view if v in self.viewed else None for v in node.inputs])  # type: ignore

    def question(self, node: ProgramNode, strided: tuple[View | None, ...] = ()) -> Any:
        """Everything that shapes, decision and implementation depend on; None if it is too large to compare."""
        declared = self.program.declared[node]
        parts: list[Any] = [self.program.kinds[node], strided]
        for position, v in enumerate(node.inputs):
            if v is None:
                parts.append(None)
                continue
            parts.append(self.layouts[v])
            if position in declared:
                value = self.values[v]
                if value is not None:
                    if value.nbytes <= _COMPARED:
                        parts.append(value.tobytes())
                    elif self.program.values[v].constant is not None:
                        parts.append(v)
                    else:
                        return None
        return tuple(parts)

    # Shapes.

    def update_shape(self, node: ProgramNode, strided: tuple[View | None, ...] = ()) -> PrimitiveInst:
        """Infer the node's output shapes from its inputs' layouts and the values it needs, all known by now.

        Those of a node that stands for several are its parts', inferred one after the other.
        """
        calls = tuple([self.update_shape(part, self.strided(part)).call for part in node.parts])
        layouts, values, declared = self.layouts, self.values, self.program.declared[node]
        on_host = node.place is Placement.HOST
        inputs = tuple([None if v is None else layouts[v] for v in node.inputs])
        # An operator sees the values that it declares, and no others: that is what `question` compares.
        known = tuple(
            [values[v] if v is not None and (on_host or i in declared) else None for i, v in enumerate(node.inputs)]
        )
        if self.tools.recording and not on_host and not node.operator.asks_hints:
            needed = node.operator.shape_infer_dependencies
            known = tuple([x if i in needed or x is None else settled(x) for i, x in enumerate(known)])
        constants = tuple([v is not None and self.program.values[v].constant is not None for v in node.inputs])
        call = Call(node.name, node.attributes, inputs, known, (), node.output_types, constants, strided, calls)
        if on_host and node.operator.evaluate is None:
            return PrimitiveInst(node, call)  # its value brings its shape
        with naming(node, call, "cannot infer its shapes"):
            shapes = node.operator.infer(call)
        outputs = tuple([Layout(t, tuple(s)) for t, s in zip(node.output_types, shapes, strict=True)])
        for v, layout in zip(node.outputs, outputs, strict=True):
            self.check_rank(f"'{node.name}': its output", layout)
            layouts[v] = layout
        return PrimitiveInst(node, call._replace(outputs=outputs))

    def check_rank(self, what: str, layout: Layout | None) -> None:
        """As while loading, where not every rank is known."""
        if layout is not None:
            check_rank(layout.rank, what, self.tools.max_rank)

    def decide(self, inst: PrimitiveInst) -> Decision:
        """Whether the node runs, is skipped, or has nothing to do. Final."""
        with naming(inst.node, inst.call, "cannot be decided"):
            stay = self.tools.views and any(self.program.takes_view[v] for v in inst.node.outputs)
            return decide(inst.node.operator, inst.call, skip=self.tools.skip, stay=stay)

    def decide_together(self, inst: PrimitiveInst) -> Run | Apart:
        """Whether a fused node runs, or its parts do. Final."""
        with naming(inst.node, inst.call, "cannot be decided"):
            operators = [part.operator for part in inst.node.parts]
            return decide_together(inst.node.operator, operators, inst.call, self.tools.traits)

    def run_on_host(self, inst: PrimitiveInst) -> Slices[None]:
        """Evaluate a node of shape arithmetic, or one without a kernel; its values need no device."""
        node = inst.node
        if self.tools.recording:
            results = follow_on_host(node, inst.call)
        else:
            results = yield from run_on_host(node, inst.call, self.budget)
        layouts = tuple([Layout(t, array.shape) for t, array in zip(node.output_types, results, strict=False)])
        for v, layout, array in zip(node.outputs, layouts, results, strict=False):
            self.layouts[v], self.values[v] = layout, array
            self.check_rank(f"'{node.name}': its output", layout)
        self.records.append(NodeRecord(node, None, layouts, "host"))

    # Skips.

    def bind_nothing(self, inst: PrimitiveInst, empty: Empty) -> None:
        """Place outputs without elements: nothing runs, and their readers get a place of no bytes."""
        for v in inst.node.outputs:
            self.places[v] = Location(self.memory.tensor(0, inst.node.id, v), 0)
        self.records.append(NodeRecord(inst.node, empty, inst.call.outputs))

    def update_output_memory(self, inst: PrimitiveInst, elided: Skip | Viewed) -> None:
        """Let a skipped node's outputs be its input's bytes, which must then live as long as the outputs' readers."""
        node = inst.node
        views = elided.views if isinstance(elided, Viewed) else (None,) * len(node.outputs)
        for v, source, offset, view in zip(node.outputs, elided.sources, elided.offsets, views, strict=True):
            place = self.memory.place_of(node.inputs[source])
            if isinstance(place.base, PlannedTensor):
                place.base.last = max(place.base.last, self.program.last_use[v])
            self.places[v] = Location(place.base, place.offset + offset, view)
            if view is not None:
                self.viewed[v] = len(self.records)
        self.records.append(NodeRecord(node, elided, inst.call.outputs, call=inst.call))

    def write_out(self, id: int | None, at: int, why: str) -> None:
        """Copy a value that lies as a view to where it is dense, for node *at* and all that read it after it."""
        assert id is not None
        place, layout = self.places[id], self.layouts[id]
        assert place is not None
        assert place.view is not None
        assert layout is not None
        tensor = self.memory.tensor(layout.nbytes, at, id)
        dense = Location(tensor, 0)
        record = self.viewed.pop(id)
        self.memory.read(place, at)
        self.copy(self.program.nodes[at], layout, place.view, place, dense)
        self.places[id] = dense
        if record is not None and isinstance(self.records[record].decision, Viewed):
            self.records[record] = self.records[record]._replace(decision=Run(why), how="copy")

    def write_out_views(self) -> None:
        """Copy the views that the host or a later chunk reads, so that they are dense."""
        if not self.chunk.nodes:
            return
        last = self.chunk.nodes[-1]
        if self.chunk is self.program.chunks[-1]:
            self.kept.finish(last)
        stay = {v for kept in self.memory.kept for v in (kept.input, kept.output)}
        for v in [v for v in self.viewed if self.program.last_use[v] == FOREVER and v not in stay]:
            self.write_out(v, last.id, "what reads it takes no strides")

    def copy(self, node: ProgramNode, layout: Layout, view: View, source: Location, target: Location) -> None:
        """List a launch of *node* that writes *view* of what lies at *source* densely to *target*."""
        if self.tools.takes_source:
            dense = View.dense(layout.shape)
            launch = copy_launch(inp(0), view, out(0), dense, layout.dtype.itemsize, self.tools.traits)
            assert launch is not None, "what has no elements is not copied"
        else:
            launch = reference_copy(layout, view)
        call = Call(node.name, node.attributes, (layout,), (None,), (layout,), strided=(view,))
        self.memory.launch(node.id, call, launch, (source, target))

    # Implementations.

    def update_impl(self, inst: PrimitiveInst) -> Impl:
        """Choose how the node runs at these shapes. Kernels take sizes as arguments: nothing need be built anew."""
        operator, call = inst.node.operator, inst.call
        if not self.tools.takes_source:
            if operator.host_nbytes is not None:
                self.budget.check(judged(inst.node, call), title(inst.node))
            inst.impl = reference_impl(inst.node, call, inst.indices)
        else:
            assert operator.implement is not None
            with naming(inst.node, call, "has no implementation here"):
                moved = operator.views(call) if call.strided and operator.views is not None else None
                if moved is not None:  # a view of views
                    inst.impl = materialise(call, moved, self.tools.traits)
                else:
                    inst.impl = operator.implement(call, self.tools.traits)
        return inst.impl

    def update_weights(self, inst: PrimitiveInst, impl: Impl) -> tuple[Location, ...]:
        """Constants in the layout that the implementation wants: packed once per program and layout, then shared."""
        places: list[Location] = []
        for request in impl.weights:
            value = inst.node.inputs[request.source]
            assert value is not None
            key = Stored(value, request.layout)
            self.memory.packings.setdefault(key, Packing(key, request.pack))
            places.append(Location(Home(key, 0), 0))
        return tuple(places)

    def look_at(self, inst: PrimitiveInst, indices: Indices) -> None:
        """List a launch that looks at the node's indices, where none of those that carry it out does."""
        node, call = inst.node, inst.call
        if self.tools.takes_source:
            launch = look_at(call, indices, self.tools.traits)
        else:
            launch = reference_look(call, indices)
        if launch is None:
            return
        place = self.memory.place_of(node.inputs[indices.input])
        self.memory.read(place, node.id)
        self.memory.launch(node.id, call, launch, (place, self.memory.finding(node, indices)))

    # Memory.

    def realloc_if_needed(self, inst: PrimitiveInst, impl: Impl, weights: tuple[Location, ...]) -> str:
        """Give outputs and scratch buffers their tensors, and list the launches. Offsets come when the chunk ends.

        Returns:
            How the node runs, for `explain()`.
        """
        node = inst.node
        for v, layout in zip(node.outputs, inst.call.outputs, strict=True):
            self.places[v] = Location(self.memory.tensor(layout.nbytes, node.id, v), 0)
        scratch = [self.memory.scratch(nbytes, node.id) for nbytes in impl.scratch]
        if self.tools.in_place and node.operator.destinations is not None:
            in_place = self.find_destinations(inst, node.operator.destinations(inst.call))
            if in_place:
                return f"in place, {in_place} of {len(node.inputs)} inputs"
        for launch in impl.launches:
            places: list[Location] = []
            for kind, index in launch.buffers:
                if kind == "input":
                    place = self.memory.place_of(node.inputs[index])
                    self.memory.read(place, node.id)
                elif kind == "output":
                    place = self.memory.place_of(node.outputs[index])
                elif kind == "weights":
                    place = weights[index]
                elif kind == "found":
                    assert inst.indices is not None
                    place = self.memory.finding(node, inst.indices)
                else:
                    place = scratch[index]
                places.append(place)
            joined = join_rows(self.memory, node.id, inst.call, launch, places, impl)
            if joined is not None:
                self.note_joined(joined, inst.call.name)
                continue
            self.memory.launch(node.id, inst.call, launch, tuple(places), impl=impl)
        return impl.name

    def note_joined(self, made: int, by: str) -> None:
        """Say of a node that another one's launch carries it out."""
        place = next((i for i in range(len(self.records) - 1, -1, -1) if self.records[i].node.id == made), None)
        if place is not None:
            record = self.records[place]
            self.records[place] = record._replace(how=f"{record.how}, by '{by}'")

    def find_destinations(self, inst: PrimitiveInst, parts: Sequence[View]) -> int:
        """Make tensors that a node lays side by side parts of its output, so that they are made where they belong.

        Whatever else reads them reads them there; that they were given a place before does not matter, because offsets
        come when the chunk ends. A tensor is part of one other at most, and all of it: with aliases and cascades its
        bytes are at one place all the same.

        Args:
            parts: Of output 0, which each input becomes.

        Returns:
            How many inputs are in place; the others are copied. If none is, nothing has changed.
        """
        node, call = inst.node, inst.call
        output = self.places[node.outputs[0]]
        assert output is not None
        target = output.base
        assert isinstance(target, PlannedTensor)
        itemsize = call.outputs[0].dtype.itemsize
        copied: list[tuple[int, View]] = []
        found = 0
        for index, part in enumerate(parts):
            layout = call.inputs[index]
            assert layout is not None
            if not layout.count:
                continue
            if not part.is_dense:
                return 0  # nor is any other
            place = self.memory.place_of(node.inputs[index])
            tensor = place.base
            if (
                isinstance(tensor, PlannedTensor)
                and tensor.whole is None
                and tensor.nbytes == layout.nbytes
                and place.view is None
                # What is small travels with others, which lie elsewhere.
                and (tensor.source is None or tensor.nbytes > STAGED)
                and tensor.array is None
            ):
                tensor.whole, tensor.offset, tensor.used = target, part.offset * itemsize, True
                found += 1
            else:
                copied.append((index, part))
        if found:
            for index, part in copied:
                layout, place = call.inputs[index], self.memory.place_of(node.inputs[index])
                assert layout is not None
                self.memory.read(place, node.id)
                there = Location(target, part.offset * itemsize)
                self.copy(node, layout, call.view(index), place, there)
        return found
