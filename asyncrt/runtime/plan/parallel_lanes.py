"""Do the branches of a chunk run side by side, on which lanes, and which tensors may share bytes then?

What comes after what is known by value: a launch comes after those that wrote what it reads or writes, or read what it
writes. `scheduler/lanes.py` makes lanes of that. Tensors of the arena may share bytes only where the order of the lanes
and of the waits between them has the last user of the one come before the first user of the other; the same plan is
then right for one stream, too, where the steps are enqueued in their order.

`Branches.against` decides whether a launch gains by running beside others. It is a rough guess from the launch's sizes:
nothing is measured, so that the same shapes give the same plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import attrs

from asyncrt.devices.base import DeviceInfo
from asyncrt.graph.ir import FOREVER, Program
from asyncrt.kernels.impl import Access
from asyncrt.kernels.resident.weights import Stored
from asyncrt.layout import Shape
from asyncrt.memory.arena import Lifetimes
from asyncrt.scheduler.lanes import Lanes, find_lanes

from .chunk_plan import Deferred, Home, Kept, NodeRecord, OnLane
from .tensors import Closed, Listed, PlannedTensor

_GROUP = 256  # work-items, where the driver chooses
# Bytes that each work-group of a launch reads, from which on it may take longer than another stream costs the host: a
# mark and a wait are about two launches, some 10 µs, and one multiprocessor gets about 25 bytes in a nanosecond. A
# kernel that calculates with what it reads takes longer.
_LONG = 1 << 15
_PICKS = frozenset({"Gather", "GatherElements", "GatherND"})  # they read a few elements of their first input


class Cost(NamedTuple):
    """What is known of how much a launch is.

    Attributes:
        groups: Work-groups.
        nbytes: Of all that it reads.
    """

    groups: int
    nbytes: int


def cost_of(grid: Shape, group: Shape | None, nbytes: int) -> Cost:
    """Return a launch's cost."""
    if group is None:
        return Cost(-(-math.prod(grid) // _GROUP), nbytes)
    return Cost(math.prod(-(-n // size) for n, size in zip(grid, group, strict=True)), nbytes)


def bytes_of(program: Program, launches: Sequence[Listed]) -> list[int]:
    """Return how many bytes each launch reads."""
    found: list[int] = []
    for node, call, launch, places, scratch, _ in launches:
        picks = program.nodes[node].operator.name in _PICKS
        nbytes = 0
        for (kind, index), place, access in zip(launch.buffers, places, launch.kernel.accesses, strict=True):
            if access is Access.WRITE or kind == "found" or (picks and kind == "input" and not index):
                continue
            if kind == "weights":
                assert isinstance(place.base, Home)
                assert isinstance(place.base.buffer, Stored)
                constant = program.values[place.base.buffer.value].constant
                nbytes += 0 if constant is None else constant.nbytes
            elif kind == "scratch":
                nbytes += scratch[index]
            else:
                layout = (call.inputs if kind == "input" else call.outputs)[index]
                nbytes += 0 if layout is None else layout.nbytes
        found.append(nbytes)
    return found


def costs_of(program: Program, launches: Sequence[Listed]) -> list[Cost]:
    """Return the cost of each launch."""
    return [
        cost_of(listed.launch.grid, listed.launch.group, nbytes)
        for listed, nbytes in zip(launches, bytes_of(program, launches), strict=True)
    ]


@attrs.frozen
class Branches:
    """Whether branches run side by side where there are some.

    Attributes:
        most: On how many lanes.
        units: Compute units of the device, by which it is told what gains; None: everything does.
    """

    most: int
    units: int | None = None

    def spreading(self, launches: Sequence[Listed], closed: Closed) -> LaneFinder:
        """Return what finds lanes for a chunk whose launches are all listed."""
        return LaneFinder(self, launches, closed)

    def spread(
        self, program: Program, launches: Sequence[Listed], closed: Closed, records: list[NodeRecord]
    ) -> tuple[LanePlan | None, Deferred]:
        """Return the lanes for a chunk, None if one is best, and the nodes' records with what came of each."""
        spreading = self.spreading(launches, closed)
        costs = costs_of(program, launches)
        nodes = [listed.node for listed in launches]

        def noted() -> tuple[NodeRecord, ...]:
            found = dict(zip(nodes, spreading.notes(costs), strict=True))
            return tuple([r._replace(lane=found.get(r.node.id, r.lane)) for r in records])

        return spreading.spread(costs), Deferred(noted, len(records))

    def gains(self, cost: Cost) -> bool:
        """Whether a launch gains by running beside others."""
        groups, nbytes = cost
        return self.units is None or (2 * groups <= self.units and nbytes >= _LONG * groups)

    def against(self, cost: Cost) -> str:
        """Return why it gains nothing; nothing if it does."""
        groups, nbytes = cost
        if self.gains(cost):
            return ""
        assert self.units is not None
        if 2 * groups > self.units:
            return f"fills the device: {groups} work-groups for {self.units} compute units"
        return f"too short to run beside others: {groups} work-groups read {nbytes} bytes, fewer than {_LONG} each"


def branches_of(wanted: bool | None, info: DeviceInfo, streams: int) -> Branches | None:
    """Return how branches run on a device; None if one after the other.

    Args:
        wanted: `RuntimeOptions.branches`.
        streams: How many there are.
    """
    if wanted is False or streams < 2:
        return None
    if wanted is None:
        # On a CPU every kernel has work for all cores, and commands of two queues only share them.
        return Branches(streams, info.compute_units) if info.kind == "gpu" else None
    return Branches(streams)


class LanePlan(NamedTuple):
    """A chunk's lanes, and what lies where then."""

    lanes: Lanes
    lifetimes: Lifetimes


class LaneFinder:
    """Finds lanes for a chunk, of which it knows what no size changes.

    Args:
        launches: In order.
        closed: The chunk's memory.
    """

    def __init__(self, branches: Branches, launches: Sequence[Listed], closed: Closed) -> None:
        self._branches = branches
        self._before = _before(launches)
        self._steps = [(t.first, t.last) for t in closed.roots]
        self._users = _users(launches, closed)
        #: By the launches that gain, a bit for each.
        self._found: dict[int, LanePlan | None] = {}

    def spread(self, costs: Iterable[Cost]) -> LanePlan | None:
        """Return the lanes for launches of these costs; None if one lane is best."""
        gains = 0
        for step, cost in enumerate(costs):
            if self._branches.gains(cost):
                gains |= 1 << step
        if gains not in self._found:
            lanes = find_lanes(self._before, gains, self._branches.most)
            self._found[gains] = None if lanes is None else LanePlan(lanes, self._lifetimes(lanes))
        return self._found[gains]

    def notes(self, costs: Iterable[Cost]) -> list[OnLane]:
        """Return for each launch where it is, and why it is not spread."""
        costs = list(costs)
        why = [self._branches.against(cost) for cost in costs]
        spread = self.spread(costs)
        if spread is not None:
            lanes = spread.lanes
            return [OnLane(lane + 1, lanes.width, w) for lane, w in zip(lanes.of_steps(), why, strict=True)]
        alone = all(step in after for step, after in enumerate(self._before[1:]))  # one comes after the other
        return [OnLane(why="" if alone else w) for w in why]

    def _lifetimes(self, lanes: Lanes) -> Lifetimes:
        """The tensors' lifetimes: those that have no order by lanes and waits are needed at the same time."""
        before, end = lanes.before(), 1 << len(self._before)
        users: list[int] = []
        after: list[int] = []
        for (first, last), steps in zip(self._steps, self._users, strict=True):
            over = end - 1 if first >= 0 else 0  # what is uploaded is there before all steps
            mask = end if last == FOREVER else 0
            for step in steps:
                mask |= 1 << step
                over &= before[step]
            users.append(mask)
            after.append(over)
        return Lifetimes(self._steps, lambda a, b: not users[a] & ~after[b] or not users[b] & ~after[a])


def _before(launches: Sequence[Listed]) -> list[set[int]]:
    """Return for each launch those that it comes after by what they read and write.

    A tensor meets itself, the parts of it, and what it is a part of; parts of one tensor do not meet each other.
    """
    #: Who uses a tensor, or memory that is kept, and whether they write it: the whole of it, or (True) a part of it.
    uses: dict[tuple[object, bool], list[tuple[int, bool]]] = {}
    found: list[set[int]] = []
    for number, listed in enumerate(launches):
        after: set[int] = set()
        noted: list[tuple[tuple[object, bool], bool]] = []
        for place, access in zip(listed.places, listed.launch.kernel.accesses, strict=True):
            base, write = place.base, access is not Access.READ
            own: object = base
            wholes: list[object] = []
            if isinstance(base, PlannedTensor):
                while base.whole is not None:
                    base = base.whole
                    wholes.append(base)
            elif isinstance(base.buffer, Kept):
                own = base.buffer.slot
            else:
                assert not write, "constants, and arenas of chunks before, are only read"
                continue
            for key in ((own, False), (own, True), *[(whole, False) for whole in wholes]):
                after.update([step for step, wrote in uses.get(key, ()) if write or wrote])
            noted += [((own, False), write), *[((whole, True), write) for whole in wholes]]
        for key, write in noted:  # only now, because a launch does not come after itself
            uses.setdefault(key, []).append((number, write))
        found.append(after)
    return found


def _users(launches: Sequence[Listed], closed: Closed) -> list[set[int]]:
    """Return for each tensor that has a place of its own in the arena the launches that use it, or a part of it."""
    numbers = {tensor: number for number, tensor in enumerate(closed.roots)}
    for tensor in closed.staged:
        numbers[tensor] = numbers[closed.staging]
    users: list[set[int]] = [set() for _ in closed.roots]
    for step, listed in enumerate(launches):
        for place in listed.places:
            base = place.base
            if isinstance(base, PlannedTensor):
                while base.whole is not None:
                    base = base.whole
                if base in numbers:
                    users[numbers[base]].add(step)
    return users
