"""Where do the tensors lie that a sequence keeps on the device between its steps?

A cache of keys and values grows by a few rows each step: the model concatenates the past and what is new. If there is
room behind the past, only the new rows are written, behind it; the past's own bytes do not change, so whoever reads it
may do so before or after. If there is none, memory with room for more steps is allocated, and past and new are copied.
Any other tensor that is kept, such as a recurrent state, is copied out of the step's arena when the step is over.

How much room is OpenVINO's rule for a known axis (`ShapePredictor.predict`), with the number of steps chosen so that
the length comes out round: then the capacity depends on the length alone, and sequences that began with different
prompts share plans. There are more the longer it is, half of what there is at most: a new capacity takes a copy of all,
and plans that are made step by step. One step's room is never used: memory that is full would need plans of its own.

Keys and values of a layer come one behind the other, and are alike: they are written in one launch, or of one text by
the product that makes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from asyncrt.errors import ShapeError
from asyncrt.graph.ir import ProgramNode
from asyncrt.kernels.call import Call
from asyncrt.kernels.impl import Launch, inp, out
from asyncrt.kernels.patterns.copy import copied_as_made, copy_launch, copy_two_launch
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Layout, Shape
from asyncrt.memory.predictor import ShapePredictor
from asyncrt.memory.view import View

from .chunk_plan import Home, Kept
from .memory_plan import MemoryPlan
from .numpy_launches import reference_append
from .tensors import Listed, Location, PlannedTensor

_STEPS = 128  # that there is room for, at most, where a tensor is short


def grown(shape: Shape, axis: int) -> Shape:
    """Return the capacity to allocate for a tensor of *shape* that grows along *axis*."""
    predictor = ShapePredictor()
    predictor.record(shape)
    steps = max(_STEPS, 1 << max(shape[axis].bit_length() - 2, 0))
    capacity = predictor.predict(bits=0, axis=axis, iterations=steps - shape[axis] % steps)
    assert capacity is not None
    return capacity


class _Written(NamedTuple):
    """A copy that was listed last."""

    listed: Listed
    view: View
    part: View


class KeptMemory:
    """Plans what a step keeps.

    Args:
        memory: Of the chunk.
        traits: Of the device; None if it takes no source.
    """

    def __init__(self, memory: MemoryPlan, traits: DeviceTraits | None) -> None:
        self._memory = memory
        self._traits = traits
        self._slots = {k.output: slot for slot, k in enumerate(memory.kept) if not k.done}
        self._latest: _Written | None = None

    def appends(self, node: ProgramNode) -> bool:
        """Whether the node lays the past and what is new side by side, as an output that is kept."""
        slot = self._slots.get(node.outputs[0])
        return slot is not None and node.operator.destinations is not None and (
            node.inputs[0] == self._memory.kept[slot].input
        )

    def append(self, node: ProgramNode, call: Call, parts: Sequence[View]) -> str:
        """Write the result of such a node to where it is kept; returns how, for `explain()`."""
        memory, output = self._memory, call.outputs[0]
        slot = self._slots.pop(node.outputs[0])
        kept = memory.kept[slot]
        axis = next((a for a, (m, n) in enumerate(zip(parts[0].shape, output.shape, strict=True)) if m != n), 0)
        there = all(room == dim if a != axis else room > dim
                    for a, (room, dim) in enumerate(zip(kept.capacity, output.shape, strict=True)))  # fmt: skip
        in_place = kept.layout.count > 0 and there
        capacity = kept.capacity if in_place else grown(output.shape, axis)
        nbytes = 0 if in_place else Layout(output.dtype, capacity).nbytes
        memory.kept[slot] = kept._replace(layout=output, capacity=capacity, new=nbytes, done=True)
        place = Location(Home(Kept(slot, new=not in_place), 0), 0)
        written = 0
        for index, part in enumerate(parts):
            layout = call.inputs[index]
            assert layout is not None
            if not layout.count or (index == 0 and in_place):
                continue
            start = part.offset // part.strides[axis] if part.strides[axis] else 0
            self._copy(node, layout, memory.place_of(node.inputs[index]), place, capacity, axis, start)
            written += layout.shape[axis]
        view = memory.kept[slot].view
        memory.places[node.outputs[0]] = Location(place.base, 0, None if view.is_dense else view)
        return f"appended, {written} of {output.shape[axis]} written"

    def finish(self, node: ProgramNode) -> None:
        """Keep the outputs that lie elsewhere. *node* is the last one."""
        memory = self._memory
        for slot, kept in enumerate(memory.kept):
            if kept.done:
                continue
            layout = memory.layouts[kept.output]
            assert layout is not None
            nbytes = 0
            if layout.count:
                source = memory.place_of(kept.output)
                if isinstance(source.base, Home) and source.base.buffer == Kept(slot) and not source.offset:
                    memory.kept[slot] = kept._replace(done=True)  # it was only passed on
                    continue
                nbytes = layout.nbytes
                target = Location(Home(Kept(slot, new=True), 0), 0)
                self._copy(node, layout, source, target, layout.shape, 0, 0)
            memory.kept[slot] = kept._replace(layout=layout, capacity=layout.shape, new=nbytes, done=True)

    def _copy(
        self,
        node: ProgramNode,
        layout: Layout,
        source: Location,
        target: Location,
        capacity: Shape,
        axis: int,
        start: int,
    ) -> None:
        """List the launch that copies a tensor to indices of *axis* from *start* on, of memory of shape *capacity*."""
        whole = View.dense(capacity)
        part = whole.slice(axis, start, layout.shape[axis]) if layout.shape else whole
        view = View.dense(layout.shape) if source.view is None else source.view
        places: tuple[Location, ...] = (source, target)
        if self._traits is None:
            launch: Launch | None = reference_append(layout, view, part, capacity)
            places = (source, target, target)
        else:
            if self._with_maker(layout, source, target, view, part):
                return
            if self._with_latest(node, layout, source, target, view, part, self._traits):
                return
            launch = copy_launch(inp(0), view, out(0), part, layout.dtype.itemsize, self._traits)
        if launch is None:
            raise ShapeError(f"'{node.name}': nothing to keep")
        call = Call(node.name, node.attributes, (layout,), (None,), (layout,), strided=(view,))
        self._memory.read(source, node.id)
        self._memory.launch(node.id, call, launch, places, written=(part,))
        self._latest = _Written(self._memory.launches[-1], view, part)

    def _with_maker(self, layout: Layout, source: Location, target: Location, view: View, part: View) -> bool:
        """Let the launch that was listed just before, and made the tensor, write it to *target* as well; False where it
        cannot."""
        launches, base = self._memory.launches, source.base
        maker = launches[-1] if launches else None
        if maker is None or maker.launch.also is None or not isinstance(base, PlannedTensor):
            return False
        made = maker.places[maker.launch.buffers.index(out(0))]
        if made.base is not base or made.offset or base.whole is not None:
            return False
        first = source.offset // layout.dtype.itemsize
        both = copied_as_made(maker.launch, View(view.shape, view.strides, view.offset + first), part)
        if both is None:
            return False
        launches.pop()
        written = maker.written or (View.dense(maker.call.outputs[0].shape),)
        call = maker.call._replace(outputs=(*maker.call.outputs, layout))
        self._memory.launch(maker.node, call, both, (*maker.places, target), written=(*written, part))
        return True

    def _with_latest(
        self,
        node: ProgramNode,
        layout: Layout,
        source: Location,
        target: Location,
        view: View,
        part: View,
        traits: DeviceTraits,
    ) -> bool:
        """Make the copy that was listed just before do this one as well; False where they are not alike."""
        latest, self._latest = self._latest, None
        launches = self._memory.launches
        if latest is None or launches[-1] is not latest.listed:
            return False
        first_source, first_target = latest.listed.places
        first = latest.listed.call.outputs[0]
        if first.dtype != layout.dtype or latest.part.offset != part.offset or latest.part.shape != part.shape:
            return False
        slots = [_slot_of(place) for place in (first_source, first_target, source, target)]
        if slots[1] in (slots[2], slots[3]) or slots[0] == slots[3]:
            return False  # one makes what the other reads, or both the same
        joint = copy_two_launch(
            (inp(0), inp(1)), (latest.view, view), (out(0), out(1)), (latest.part, part), layout.dtype.itemsize, traits
        )
        if joint is None:
            return False
        layouts = first, layout
        call = Call(node.name, node.attributes, layouts, (None, None), layouts, strided=(latest.view, view))
        for place in (first_source, source):
            self._memory.read(place, node.id)
        launches.pop()
        places = (first_source, source, first_target, target)
        self._memory.launch(node.id, call, joint, places, written=(latest.part, part))
        return True


def _slot_of(place: Location) -> int | None:
    """Return which kept tensor's memory it is; None if it is none's."""
    base = place.base
    return base.buffer.slot if isinstance(base, Home) and isinstance(base.buffer, Kept) else None
