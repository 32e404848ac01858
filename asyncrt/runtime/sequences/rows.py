"""Where is the state of each sequence of a group: which rows of which tensors?

Steps that run together leave their state in one set of tensors, a row (or several) for each sequence. Such a set never
changes once a step has left it: the next step leaves another one, which may share its memory, because what is appended
lies behind what was there. So a step that fails, or whose caller has gone, leaves a sequence where it was, and one that
sits a step out stays where it is while its rows are calculated with those of the others, for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import attrs

from asyncrt.events import latest
from asyncrt.layout import Layout
from asyncrt.memory.buffer import Lease
from asyncrt.runtime.execute.device_copies import Box, DeviceCopies
from asyncrt.runtime.execute.kept_state import KeptState
from asyncrt.runtime.plan.chunk_plan import KeptTensor
from asyncrt.runtime.plan.kv_append import grown
from asyncrt.runtime.plan.tools import Tools

from .state_axes import StateAxes


@attrs.define(eq=False)
class Rows:
    """The state of some rows, as a step left it. Given back when the last of its users drops it.

    Attributes:
        kept: Its tensors and their memory.
        count: Of rows.
        idle: Rows that were calculated for nothing since they came to lie together.
        newest: Whether nothing has been appended behind it in its memory.
    """

    kept: KeptState
    count: int
    idle: int = 0
    newest: bool = True
    _users: int = 0

    def hold(self) -> Rows:
        """Be one more user."""
        self._users += 1
        return self

    def drop(self) -> None:
        """Remove a user; the last one gives the memory back."""
        self._users -= 1
        if not self._users:
            self.kept.close()

    def begin(self) -> KeptState:
        """Return the state for a step to start from; it may leave another one there."""
        leases = [None if lease is None else lease.hold() for lease in self.kept.leases]
        return KeptState(self.kept.between, leases, self.kept.after)

    def failed(self, step: KeptState) -> None:
        """Note that the step has failed."""
        self.kept.after = latest((*self.kept.after, *step.after))
        step.close()

    def succeeded(self, step: KeptState, idle: int) -> Rows:
        """Return what the step has left, in which *idle* rows were calculated for nothing."""
        self.kept.after = latest((*self.kept.after, *step.after))
        if any(a is b for a, b in zip(self.kept.leases, step.leases, strict=True) if a is not None):
            self.newest = False
        return Rows(step, self.count, self.idle + idle)


class StateLocation(NamedTuple):
    """Where a sequence's state is: from which row on."""

    rows: Rows
    row: int


class Member(NamedTuple):
    """A sequence whose state is to lie beside others'.

    Attributes:
        layouts: Of its own state, by slot.
        rows: How many it has.
        place: None if its state is zeros that lie nowhere yet.
    """

    layouts: Sequence[Layout]
    rows: int
    place: StateLocation | None


class _Run(NamedTuple):
    """Rows that lie one behind the other and will again; those of members from `first` to `last`."""

    place: StateLocation
    rows: int
    start: int


def gather(
    axes: StateAxes, tools: Tools, members: Sequence[Member]
) -> tuple[DeviceCopies, list[tuple[KeptTensor, int | None]]]:
    """Return what lays the members' state one behind the other; and its tensors, each with its number in the moves.

    The past is as long as the longest; all end at the same index.
    """
    runs = _runs(members)
    count = sum(m.rows for m in members)
    moves = DeviceCopies(tools, latest(e for run in runs for e in run.place.rows.kept.after))
    tensors: list[tuple[KeptTensor, int | None]] = []
    for slot, state in enumerate(axes.states):
        layouts = [m.layouts[slot] for m in members]
        past = None if state.grows is None else max(x.shape[state.grows] for x in layouts)
        layout = Layout(layouts[0].dtype, state.shape_of(layouts[0].shape, count, past))
        if not layout.count:
            tensors.append((KeptTensor(state.input, state.output, layout, layout.shape), None))
            continue
        capacity = layout.shape if state.grows is None else grown(layout.shape, state.grows)
        gaps = any(m.place is None or x.shape != state.shape_of(layout.shape, m.rows, None)
                   for m, x in zip(members, layouts, strict=True))  # fmt: skip
        target = moves.allocate(Layout(layout.dtype, capacity).nbytes, zeroed=gaps)
        for run in runs:
            source = run.place.rows.kept.tensors[slot]
            lease: Lease | None = run.place.rows.kept.leases[slot]
            part = list(state.shape_of(source.layout.shape, run.rows, None))
            begin, end = [0] * len(part), [0] * len(part)
            begin[state.rows], end[state.rows] = run.place.row, run.start
            if state.grows is not None:
                assert past is not None
                part[state.grows] = min(past, source.layout.shape[state.grows])
                begin[state.grows] = source.layout.shape[state.grows] - part[state.grows]
                end[state.grows] = past - part[state.grows]
            if 0 in part or lease is None:
                continue
            moves.copy(
                lease, (source.capacity, Box(tuple(begin), tuple(part))),
                target, (capacity, Box(tuple(end), tuple(part))), Layout(layout.dtype, tuple(part)),
            )  # fmt: skip
        tensors.append((KeptTensor(state.input, state.output, layout, capacity), target))
    return moves, tensors


def _runs(members: Sequence[Member]) -> list[_Run]:
    runs: list[_Run] = []
    start = 0
    for member in members:
        if member.place is not None:
            last = runs[-1] if runs else None
            if (
                last is not None
                and last.place.rows is member.place.rows
                and last.place.row + last.rows == member.place.row
                and last.start + last.rows == start
            ):
                runs[-1] = last._replace(rows=last.rows + member.rows)
            else:
                runs.append(_Run(member.place, member.rows, start))
        start += member.rows
    return runs
