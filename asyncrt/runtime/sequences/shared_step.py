"""How does one inference carry out the steps of several sequences, and which steps may be one?

The state comes to lie together if it does not yet, inputs are laid one behind the other, and each step gets its part
of what comes out.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from asyncrt.layout import Array, Layout
from asyncrt.memory.buffer import Lease
from asyncrt.memory.host import HostBudget, allocating
from asyncrt.runtime.cooperative import off_loop
from asyncrt.runtime.execute.kept_state import KeptState
from asyncrt.runtime.plan.between_steps import between
from asyncrt.runtime.request.network import Network

from .own_state import OwnState
from .rows import Member, Rows, StateLocation, gather
from .sequence import nothing
from .shared_safety import SharedSafety, Sharing
from .stack import StackPart, stack, stacked_nbytes, unstack
from .state_axes import RowTensor, StateAxes

_COMPARED = 1 << 16  # bytes of an input that has to be equal; a larger one is equal to none


@attrs.frozen(eq=False)
class After:
    """What a step leaves: its outputs, and the sequence's state."""

    outputs: dict[int, Array]
    state: OwnState
    place: StateLocation


@attrs.define(eq=False)
class SequenceStep:
    """A step that waits or is under way.

    Attributes:
        arrays: Its inputs; where the state is nothing yet, also those that are kept.
        state: As it is.
        place: Where that is; None if nowhere yet.
        given: Whether the caller has given the state.
        rows: How many it has.
        sizes: Of the named dims.
        along: The dims that may be the past and what is appended together.
        deadline: When it is too late, by the loop's clock.
        future: What it leaves.
        alarm: Goes off at the deadline.
    """

    number: int
    arrays: Mapping[int, Array]
    state: OwnState
    place: StateLocation | None
    given: bool
    rows: int
    sizes: Mapping[str, int]
    along: frozenset[str]
    priority: int
    deadline: float | None
    future: asyncio.Future[After]
    alarm: asyncio.TimerHandle | None = None

    @property
    def over(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.future.done()


def _order(place: StateLocation | None) -> tuple[int, int]:
    """What lies together stays together."""
    return (0, 0) if place is None else (id(place.rows), place.row)


class SharedSteps:
    """Runs steps of one model, one or several as an inference.

    Attributes:
        axes: Of the model.
        sharing: Which steps may run as one; None as long as nobody knows.
        steps, inferences, gathered: Counts of what was done; see `GroupStatistics`.

    Args:
    """

    def __init__(self, network: Network, axes: StateAxes) -> None:
        self._network = network
        self.axes = axes
        self.sharing: SharedSafety | None = None
        self.steps = self.inferences = self.gathered = 0

    def key(self, step: SequenceStep) -> Any:
        """What has to be equal where steps run as one."""
        axes, sharing = self.axes, self.sharing
        if step.given or (sharing is not None and sharing.sharing is Sharing.NONE):
            return step.number
        any_length = self._any_length(step)
        along = step.along if sharing is None else sharing.along
        along = along | {axes.past or ""} if any_length else frozenset()
        parts: list[Any] = [any_length]
        for tensor in axes.inputs:
            array = step.arrays[tensor.id]
            parts.append(tuple([
                size for axis, (name, size) in enumerate(zip(tensor.names, array.shape, strict=True))
                if axis != tensor.rows and name not in along
            ]))  # fmt: skip
            # Where lengths must be equal, only masks of ones were tried out; those with zeros share with their equals.
            masks = not any_length and not step.along.isdisjoint(tensor.names)
            if masks or tensor.id in axes.fixed:
                parts.append(array.tobytes() if array.nbytes <= _COMPARED else step.number)
        parts.append(step.state.sizes_at_any_length if any_length else step.state.sizes)
        return tuple(parts)

    def _any_length(self, step: SequenceStep) -> bool:
        """Whether the step may run with others whose past is shorter or longer, as far as is known."""
        axes, sharing = self.axes, self.sharing
        if axes.past is None:
            return False
        if sharing is None:
            return True
        return sharing.sharing is Sharing.ANY_LENGTH and sharing.along <= step.along

    async def infer(self, steps: Sequence[SequenceStep]) -> list[After]:
        """Run steps as one inference; what each leaves is in the order of *steps*."""
        rows, starts = await self._together(steps)
        try:
            return await self._step_from(rows, starts, steps)
        finally:
            rows.drop()

    async def _together(self, steps: Sequence[SequenceStep]) -> tuple[Rows, list[int]]:
        """Return rows that hold the state of all, to be dropped, and from where on each one's are."""
        covered = sum(step.rows for step in steps)
        places = [step.place for step in steps]
        starts = list(itertools.accumulate((step.rows for step in steps), initial=0))[:-1]
        if all(place is None for place in places):
            return Rows(self._nothing(), covered).hold(), starts
        if self._lie_together(steps):
            first, *_ = [place for place in places if place is not None]
            return first.rows.hold(), [place.row for place in places if place is not None]
        order = sorted(range(len(steps)), key=lambda i: _order(places[i]))
        members = [Member(steps[i].state.layouts, steps[i].rows, places[i]) for i in order]
        moves, tensors = gather(self.axes, self._network.tools, members)
        kept = self._nothing()
        leases: list[Lease] = []
        if moves.new:
            leases, kept.after = await self._network.move(moves, min(step.priority for step in steps))
            self.gathered += 1
        kept.between = between([t for t, _ in tensors])
        kept.leases = [None if number is None else leases[number] for _, number in tensors]
        start = 0
        for i in order:
            starts[i] = start
            start += steps[i].rows
        return Rows(kept, covered).hold(), starts

    def _lie_together(self, steps: Sequence[SequenceStep]) -> bool:
        """Whether the steps can start from where their state is, others' rows with them."""
        places = [step.place for step in steps]
        first = next(place for place in places if place is not None).rows
        if not first.newest or any(place is None or place.rows is not first for place in places):
            return False
        if any(self._pad(step, first) for step in steps) and not all(self._any_length(step) for step in steps):
            return False
        # Copying what lies together costs about what it costs to calculate as many rows for nothing.
        covered = sum(step.rows for step in steps)
        idle = first.count - covered
        return not idle or first.idle + idle < covered

    def _pad(self, step: SequenceStep, rows: Rows) -> int:
        """By how much the step's past is shorter than what lies there."""
        axes = self.axes
        if axes.past is None:
            return 0
        grows, tensor = next((s.grows, t) for s, t in zip(axes.states, rows.kept.tensors, strict=True)
                             if s.grows is not None)  # fmt: skip
        return tensor.layout.shape[grows] - step.sizes[axes.past] if tensor.layout.count else 0

    async def _step_from(self, rows: Rows, starts: list[int], steps: Sequence[SequenceStep]) -> list[After]:
        axes, tensors = self.axes, rows.kept.tensors
        parts = [
            StackPart(s.arrays, s.sizes, s.rows, self._pad(s, rows), start)
            for s, start in zip(steps, starts, strict=True)
        ]
        along: frozenset[str] = frozenset()
        if axes.past is not None and any(p.pad for p in parts):
            assert self.sharing is not None
            along = self.sharing.along | {axes.past}
        nowhere = [
            RowTensor(s.input, s.rows, t.layout.shape)
            for s, t in zip(axes.states, tensors, strict=True) if not t.layout.count
        ]  # fmt: skip
        taken = [*axes.inputs, *nowhere]
        nbytes, what = stacked_nbytes(taken, parts, along, rows.count), f"the inputs of {len(steps)} steps as one"
        HostBudget(self._network.tools.host_limit).check(nbytes, what)
        with allocating(what):
            arrays = await off_loop(nbytes, lambda: stack(taken, parts, along, rows.count))
        deadlines = [step.deadline for step in steps if step.deadline is not None]
        step_state = rows.begin()
        try:
            results, records = await self._network.infer(
                arrays, min(step.priority for step in steps), kept=step_state, deadline=min(deadlines, default=None)
            )
        except BaseException:
            rows.failed(step_state)
            raise
        self._network.note(records)
        self.steps += len(steps)
        self.inferences += 1
        after = rows.succeeded(step_state, rows.count - sum(step.rows for step in steps)).hold()
        try:
            nbytes = sum([array.nbytes for array in results.values()])
            outputs = await off_loop(nbytes, lambda: [unstack(axes.outputs, results, part, along) for part in parts])
            own = {alike: self._left_by(*alike, after) for alike in {(part.rows, part.pad) for part in parts}}
            return [
                After(made, own[part.rows, part.pad], StateLocation(after.hold(), part.start))
                for made, part in zip(outputs, parts, strict=True)
            ]
        finally:
            after.drop()

    def _left_by(self, rows: int, pad: int, after: Rows) -> OwnState:
        """The own state after a step of sequences that have so many rows, and a past that is shorter by *pad*."""
        layouts: list[Layout] = []
        for state, tensor in zip(self.axes.states, after.kept.tensors, strict=True):
            dtype, shape = tensor.layout
            past = None if state.grows is None else shape[state.grows] - pad
            layouts.append(Layout(dtype, state.shape_of(shape, rows, past)))
        return OwnState.of(self.axes.states, layouts)

    def _nothing(self) -> KeptState:
        return nothing(self._network.program, [(s.input, s.output) for s in self.axes.states])
