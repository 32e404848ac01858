"""What each node of a chunk needs, now that the shapes are known: the heart, from top to bottom.

For a whole chunk: infer all shapes, take all skip decisions (final, never tentative), choose implementations, plan
memory. Nothing here waits, touches a device or looks at the clock, and nothing about a request is stored on a node:
the same state gives the same plan. The functions bear the names of the mechanisms they are (docs/mechanisms.md).
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import numpy as np

from asyncrt.errors import AsyncrtError, ShapeError
from asyncrt.graph.node import Place, ProgramNode
from asyncrt.graph.passes.fold_constants import evaluate
from asyncrt.graph.passes.memory_dependencies import FOREVER
from asyncrt.graph.program import Chunk, Program
from asyncrt.kernels.impl import Impl, Launch, Ref, ReferenceKernel, inp, out
from asyncrt.kernels.operator import Call, Decision, DeviceTraits, Empty, Run, Skip, decide
from asyncrt.kernels.weights import Packing, Stored
from asyncrt.layout import Array, Layout, dtype_of
from asyncrt.memory.arena import ALIGNMENT, Interval, plan_arena

from .plan import ChunkPlan, Fetch, Home, NodeRecord, State, Step, Upload

_REMEMBERED = 1 << 14  # answers
_COMPARED = 1024  # bytes of a value
_STAGED = 4096  # bytes: larger inputs are not worth a copy to travel with the others


@attrs.frozen
class Tools:
    """What planning needs to know of the device and the options.

    Attributes:
        traits: Of the device.
        takes_source: Whether the device builds kernels; otherwise references are launched.
        pack: The device's packing of a launch's offsets and sizes.
        skip: Whether nodes may be skipped.
        memo: Answers by question, of one program; see `_Planner.remember`.
    """

    traits: DeviceTraits
    takes_source: bool
    pack: Callable[[list[int], tuple[int, ...]], Any]
    skip: bool = True
    memo: dict[Any, PrimitiveInst] = attrs.field(factory=dict, eq=False, repr=False)


@attrs.define(eq=False)
class Tensor:
    """Bytes of this chunk's arena while it is planned: how many, and from which node to which they are needed."""

    nbytes: int
    first: int
    last: int
    #: The graph input, or the output of a node with subgraphs, that it is a copy of, if it is one.
    source: int | None = None
    #: The host value it is a copy of, if it is one.
    array: Array | None = None
    #: Whether a kernel or a read touches it; an upload that nobody touches is left out.
    used: bool = False
    offset: int = 0


@attrs.define(eq=False)
class PrimitiveInst:
    """What one node is during one request: its shapes, what was decided, and its implementation."""

    node: ProgramNode
    call: Call
    decision: Decision | None = None
    impl: Impl | None = None

    @property
    def can_be_optimized(self) -> bool:
        """Whether the node is elided in this request."""
        return isinstance(self.decision, Skip)


class _Place:
    """Where a value's bytes will lie: *offset* bytes into a tensor of this chunk, or into a home of an earlier one."""

    __slots__ = ("base", "offset")

    def __init__(self, base: Tensor | Home, offset: int) -> None:
        self.base, self.offset = base, offset


def start_state(program: Program, layouts: list[Layout], value_inputs: dict[int, Array]) -> State:
    """Return what is known before the first chunk.

    Args:
        layouts: Of the program's inputs, in their order.
        value_inputs: Contents of the inputs that decide shapes or skips, by value id.
    """
    known: list[Layout | None] = [None] * len(program.values)
    values: list[Array | None] = [None] * len(program.values)
    for value in program.values:
        if value.constant is not None:
            dtype = dtype_of(value.constant.dtype)
            assert dtype is not None
            known[value.id], values[value.id] = Layout(dtype, value.constant.shape), value.constant
    for id, layout in zip(program.inputs, layouts, strict=True):
        known[id] = layout
    for id, array in value_inputs.items():
        values[id] = array
    return State(tuple(known), tuple(values), (None,) * len(program.values))


class _BrokenFormula(Exception):
    """A shape is not what loading's formula says."""


def prepare_chunk(program: Program, chunk: Chunk, state: State, tools: Tools) -> ChunkPlan:
    """Plan a chunk.

    Args:
        state: What is known: after the chunk before it, with the values that the host has read since.

    Raises:
        ShapeError: The shapes or values do not fit a node.
    """
    try:
        return _Planner(program, chunk, state, tools, formulas=chunk.index == 0).plan()
    except _BrokenFormula:
        return _Planner(program, chunk, state, tools, formulas=False).plan()


class _Planner:
    def __init__(self, program: Program, chunk: Chunk, state: State, tools: Tools, *, formulas: bool) -> None:
        self.program, self.chunk, self.tools = program, chunk, tools
        self.layouts = list(state.layouts)
        self.values = list(state.values)
        self.places: list[_Place | None] = [None if h is None else _Place(h, 0) for h in state.homes]
        self.tensors: list[Tensor] = []
        self.launches: list[tuple[int, Launch, tuple[_Place, ...]]] = []
        self.packings: dict[Stored, Packing] = {}
        self.records: list[NodeRecord] = []
        self.inputs = program.arriving
        self.formulas = formulas
        self.expected: dict[int, tuple[int, ...]] = {}

    def plan(self) -> ChunkPlan:
        symbolic = self.evaluate_formulas() if self.formulas else frozenset()
        for node in self.chunk.nodes:
            if node.id in symbolic:
                self.take_formula(node)
            else:
                self.prepare(node)
        return self.finish()

    def evaluate_formulas(self) -> frozenset[int]:
        """Set the values of shape arithmetic that loading has as formulas; returns the nodes that need not run."""
        layouts = [self.layouts[id] for id in self.program.inputs]
        try:
            found, self.expected = self.program.symbolic.evaluate(layouts)  # type: ignore[arg-type]  # inputs have layouts
        except ZeroDivisionError:
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
        """One node: shapes, then whether it runs, then with what, then where its output goes."""
        if node.place is Place.HOST:
            self.run_on_host(self.update_shape(node))
            return
        inst = self.remember(node)
        match inst.decision:
            case Empty():
                self.bind_nothing(inst)
            case Skip():
                self.update_output_memory(inst, inst.decision)
            case Run():
                assert inst.impl is not None
                weights = self.update_weights(inst, inst.impl)
                self.realloc_if_needed(inst, inst.impl, weights)
                self.records.append(NodeRecord(node, inst.decision, inst.call.outputs, inst.impl.name, inst.call))

    def remember(self, node: ProgramNode) -> PrimitiveInst:
        """Shapes, decision and implementation of the node: what was answered before for an equal node at equal
        layouts and values, in this request or another, holds again."""
        memo, key = self.tools.memo, self.question(node)
        found = memo.get(key) if key is not None else None
        if found is not None:
            for v, layout in zip(node.outputs, found.call.outputs, strict=True):
                self.layouts[v] = layout
            return PrimitiveInst(node, found.call, found.decision, found.impl)
        inst = self.update_shape(node)
        inst.decision = self.decide(inst)
        if isinstance(inst.decision, Run):
            self.update_impl(inst)
        if key is not None:
            if len(memo) >= _REMEMBERED:
                memo.clear()
            memo[key] = inst
        return inst

    def question(self, node: ProgramNode) -> Any:
        """Everything that shapes, decision and implementation depend on; None if it is too large to compare."""
        parts: list[Any] = [self.program.kinds[node.id]]
        for position, v in enumerate(node.inputs):
            if v is None:
                parts.append(None)
                continue
            parts.append(self.layouts[v])
            if position in node.operator.declared:
                value = self.values[v]
                if value is not None:
                    if value.nbytes > _COMPARED:
                        return None
                    parts.append(value.tobytes())
        return tuple(parts)

    # Shapes.

    def update_shape(self, node: ProgramNode) -> PrimitiveInst:
        """Infer the node's output shapes from its inputs' layouts and the values it needs, all known by now."""
        layouts, values, declared = self.layouts, self.values, node.operator.declared
        on_host = node.place is Place.HOST
        inputs = tuple([None if v is None else layouts[v] for v in node.inputs])
        # An operator sees the values that it declares, and no others: that is what `question` compares.
        known = tuple(
            [values[v] if v is not None and (on_host or i in declared) else None for i, v in enumerate(node.inputs)]
        )
        constants = tuple([v is not None and self.program.values[v].constant is not None for v in node.inputs])
        call = Call(node.name, node.attributes, inputs, known, (), node.output_types, constants)
        if on_host and node.operator.evaluate is None:
            return PrimitiveInst(node, call)  # its value brings its shape
        with _naming(node, call, "cannot infer its shapes"):
            shapes = node.operator.infer(call)
        outputs = tuple([Layout(t, tuple(s)) for t, s in zip(node.output_types, shapes, strict=True)])
        for v, layout in zip(node.outputs, outputs, strict=True):
            layouts[v] = layout
        return PrimitiveInst(node, call._replace(outputs=outputs))

    def decide(self, inst: PrimitiveInst) -> Decision:
        """Whether the node runs, is skipped, or has nothing to do. Final."""
        with _naming(inst.node, inst.call, "cannot be decided"):
            return decide(inst.node.operator, inst.call, skip=self.tools.skip)

    def run_on_host(self, inst: PrimitiveInst) -> None:
        """Evaluate a node of shape arithmetic, or one without a kernel; its values need no device."""
        node, call = inst.node, inst.call
        with _naming(node, call, "failed on the host"):
            results = evaluate(node.operator, call, call.values)
        outputs = []
        for v, dtype, result in zip(node.outputs, node.output_types, results, strict=False):
            array = np.asarray(result, dtype.numpy)
            self.values[v] = array
            self.layouts[v] = Layout(dtype, array.shape)
            outputs.append(Layout(dtype, array.shape))
        self.records.append(NodeRecord(node, None, tuple(outputs), "host"))

    # Skips.

    def bind_nothing(self, inst: PrimitiveInst) -> None:
        """All outputs have no elements: nothing runs, and readers get a place of no bytes."""
        for v in inst.node.outputs:
            self.places[v] = _Place(self.tensor(0, inst.node.id, v), 0)
        self.records.append(NodeRecord(inst.node, inst.decision, inst.call.outputs))

    def update_output_memory(self, inst: PrimitiveInst, skip: Skip) -> None:
        """A skipped node's outputs are its input's bytes, which must live as long as the outputs' readers."""
        node = inst.node
        for v, source, offset in zip(node.outputs, skip.sources, skip.offsets, strict=True):
            place = self.place_of(node.inputs[source])
            if isinstance(place.base, Tensor):
                place.base.last = max(place.base.last, self.program.last_use[v])
            self.places[v] = _Place(place.base, place.offset + offset)
        self.records.append(NodeRecord(node, skip, inst.call.outputs))

    # Implementations.

    def update_impl(self, inst: PrimitiveInst) -> Impl:
        """Choose how the node runs at these shapes. Kernels take sizes as arguments: nothing need be built anew."""
        operator, call = inst.node.operator, inst.call
        if not self.tools.takes_source:
            inst.impl = _reference_impl(inst.node, call)
        else:
            assert operator.implement is not None
            with _naming(inst.node, call, "has no implementation here"):
                inst.impl = operator.implement(call, self.tools.traits)
        return inst.impl

    def update_weights(self, inst: PrimitiveInst, impl: Impl) -> tuple[_Place, ...]:
        """Constants in the layout that the implementation wants: packed once per program and layout, then shared."""
        places: list[_Place] = []
        for request in impl.weights:
            value = inst.node.inputs[request.source]
            assert value is not None
            key = Stored(value, request.layout)
            if key not in self.packings:
                self.packings[key] = Packing(key, request.pack)
            places.append(_Place(Home(key, 0), 0))
        return tuple(places)

    # Memory.

    def realloc_if_needed(self, inst: PrimitiveInst, impl: Impl, weights: tuple[_Place, ...]) -> None:
        """Give outputs and scratch buffers their tensors, and list the launches. Offsets come when the chunk ends."""
        node = inst.node
        for v, layout in zip(node.outputs, inst.call.outputs, strict=True):
            self.places[v] = _Place(self.tensor(layout.nbytes, node.id, v), 0)
        scratch: list[_Place] = []
        for nbytes in impl.scratch:
            tensor = Tensor(nbytes, node.id, node.id)
            self.tensors.append(tensor)
            scratch.append(_Place(tensor, 0))
        for launch in impl.launches:
            places: list[_Place] = []
            for kind, index in launch.buffers:
                if kind == "input":
                    place = self.place_of(node.inputs[index])
                    if isinstance(place.base, Tensor):
                        place.base.used = True
                        place.base.last = max(place.base.last, node.id)
                    elif isinstance(place.base.buffer, Stored):
                        self.packings.setdefault(place.base.buffer, Packing(place.base.buffer))
                elif kind == "output":
                    place = self.place_of(node.outputs[index])
                elif kind == "weights":
                    place = weights[index]
                else:
                    place = scratch[index]
                places.append(place)
            self.launches.append((node.id, launch, tuple(places)))

    def tensor(self, nbytes: int, first: int, value: int) -> Tensor:
        """A new tensor for *value*, made by node *first*."""
        tensor = Tensor(nbytes, first, max(self.program.last_use[value], first))
        self.tensors.append(tensor)
        return tensor

    def place_of(self, id: int | None) -> _Place:
        """Where a value lies; what only the host has so far is uploaded at the chunk's start."""
        assert id is not None
        place = self.places[id]
        if place is None:
            layout = self.layouts[id]
            assert layout is not None
            if self.program.values[id].constant is not None:
                place = _Place(Home(Stored(id), 0), 0)
            else:
                source = id if id in self.inputs else None
                tensor = Tensor(layout.nbytes, -1, self.program.last_use[id], source)
                if source is None:
                    tensor.array = self.values[id]
                    assert tensor.array is not None, self.program.values[id].name
                place = _Place(tensor, 0)
                self.tensors.append(tensor)
            self.places[id] = place
        return place

    # The plan.

    def finish(self) -> ChunkPlan:
        fetches = [self.fetch(v) for v in self.chunk.reads]
        if self.chunk is self.program.chunks[-1]:
            fetches += [self.fetch(v) for v in self.program.outputs]
        else:
            self.keep_aliases()
        staging, staging_tensor, staged = self.stage()
        kept = [t for t in self.tensors if (t.source is None and t.array is None) or (t.used and t not in staged)]
        arena = plan_arena([Interval(max(t.nbytes, 1), t.first, t.last) for t in kept])
        for tensor, offset in zip(kept, arena.offsets, strict=True):
            tensor.offset = offset
        for tensor in staged:
            tensor.offset += staging_tensor.offset
        uploads = tuple(
            Upload(t.source, t.offset - (staging_tensor.offset if t in staged else 0), t.nbytes, t in staged)
            for t in self.tensors
            if t.used and t.source is not None and t.nbytes
        )
        steps = tuple(self.step(*launch) for launch in self.launches)
        homes = tuple([None if p is None else self.home(p) for p in self.places])
        return ChunkPlan(
            chunk=self.chunk.index,
            arena_nbytes=arena.nbytes,
            staging=staging,
            staging_offset=staging_tensor.offset,
            uploads=uploads,
            steps=steps,
            packings=tuple(self.packings.values()),
            fetches=tuple(self.bind_fetch(f) for f in fetches),
            records=tuple(self.records),
            after=State(tuple(self.layouts), tuple(self.values), homes),
        )

    def keep_aliases(self) -> None:
        """A later chunk can upload a host value itself, but not the part of one that an alias stands for."""
        for v, place in enumerate(self.places):
            if place is not None and isinstance(place.base, Tensor) and self.program.last_use[v] == FOREVER:
                place.base.used |= v not in self.inputs and self.values[v] is None

    def stage(self) -> tuple[bytes, Tensor, set[Tensor]]:
        """Lay host values and small inputs side by side, so that they travel in one transfer."""
        uploads = [t for t in self.tensors if t.used and (t.array is not None or t.source is not None)]
        staged = [t for t in uploads if t.array is not None or t.nbytes <= _STAGED]
        whole = Tensor(0, -1, -1)
        parts: list[bytes] = []
        for tensor in staged:
            tensor.offset = whole.nbytes
            data = b"" if tensor.array is None else np.ascontiguousarray(tensor.array).tobytes()
            padded = -(-max(tensor.nbytes, 1) // ALIGNMENT) * ALIGNMENT
            parts.append(data.ljust(padded, b"\0"))
            whole.nbytes += padded
            whole.last = max(whole.last, tensor.last)
        if staged:
            self.tensors.append(whole)
        return b"".join(parts), whole, set(staged)

    def fetch(self, id: int) -> tuple[int, Layout, _Place | None, Array | None]:
        """How the host gets a value: it has it already, or reads it."""
        layout = self.layouts[id]
        assert layout is not None
        if layout.count == 0:
            return id, layout, None, np.empty(layout.shape, layout.dtype.numpy)
        if self.places[id] is None and id not in self.inputs and self.values[id] is not None:
            return id, layout, None, self.values[id]
        place = self.place_of(id)
        base = place.base
        if isinstance(base, Tensor):
            base.last = FOREVER
            if base.array is not None and not base.used:
                return id, layout, None, _part(base.array, place.offset, layout)
        elif isinstance(base.buffer, Stored) and not base.buffer.layout:
            constant = self.program.values[base.buffer.value].constant
            assert constant is not None
            return id, layout, None, _part(constant, base.offset + place.offset, layout)
        return id, layout, place, None

    def bind_fetch(self, fetch: tuple[int, Layout, _Place | None, Array | None]) -> Fetch:
        id, layout, place, array = fetch
        if place is None:
            return Fetch(id, layout, array=array)
        if isinstance(place.base, Tensor) and place.base.source is not None:
            return Fetch(id, layout, source=place.base.source, offset=place.offset)
        return Fetch(id, layout, home=self.home(place))

    def home(self, place: _Place) -> Home | None:
        if isinstance(place.base, Tensor):
            if not place.base.used and (place.base.source is not None or place.base.array is not None):
                return None  # nothing was uploaded; a later chunk that wants it uploads it
            return Home(self.chunk.index, place.base.offset + place.offset)
        return Home(place.base.buffer, place.base.offset + place.offset)

    def step(self, node: int, launch: Launch, places: tuple[_Place, ...]) -> Step:
        homes = [self.home(p) for p in places]
        offsets = [h.offset for h in homes if h is not None]
        try:
            record = self.tools.pack(offsets, launch.ints)
        except struct.error as error:
            name = self.program.nodes[node].name
            raise ShapeError(
                f"'{name}': a size or stride does not fit 32 bits: {max(launch.ints)}", hint="split the tensor"
            ) from error
        buffers = tuple([h.buffer for h in homes if h is not None])
        return Step(
            node, launch.kernel, buffers, record, launch.grid, launch.group, launch.local, launch.ints, launch.varying
        )


def _reference_impl(node: ProgramNode, call: Call) -> Impl:
    """The operator's reference as one launch. Values that the plan knows are part of it; the rest is read."""
    known = call.values
    read = [i for i, layout in enumerate(call.inputs) if layout is not None and known[i] is None]
    attributes, reference = node.attributes, node.operator.reference
    types = call.output_types

    def run(arrays: Any) -> list[Array]:
        given = [known[i] if a is None else a for i, a in enumerate(arrays)]
        results = reference(attributes, given)
        return [np.asarray(r, t.numpy) for r, t in zip(results, types, strict=False)]

    kernel = ReferenceKernel(
        node.operator.name,
        run,
        tuple(layout if i in read else None for i, layout in enumerate(call.inputs)),
        call.outputs,
    )
    buffers: tuple[Ref, ...] = (*(inp(i) for i in read), *(out(i) for i in range(len(call.outputs))))
    return Impl("reference", (Launch(kernel, buffers, (), (1,)),))


def _part(array: Array, offset: int, layout: Layout) -> Array:
    """The tensor of *layout* that lies *offset* bytes into *array*."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return flat[offset : offset + layout.nbytes].view(layout.dtype.numpy).reshape(layout.shape)


@contextlib.contextmanager
def _naming(node: ProgramNode, call: Call, what: str) -> Iterator[None]:
    """Turn whatever an operator's code trips over into a `ShapeError` that names the node and its inputs."""
    try:
        yield
    except AsyncrtError:
        raise
    except Exception as error:
        raise ShapeError(f"'{node.name}': {node.operator.name} {what}: {error!r}", detail=_inputs(call)) from error


def _inputs(call: Call) -> str:
    return "\n".join(f"input {i}  {layout}" for i, layout in enumerate(call.inputs) if layout is not None)
