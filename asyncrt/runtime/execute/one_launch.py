"""May a plan be one launch, and of which kernel? The steps become rows of a table that one kernel walks.

`kernels/persistent/walker.py` says what that gains, `scheduler/persistent.py` how many groups the kernel may have. A
GPU builds the kernel for all likely sizes when a model is loaded. Where a plan has others, and on a processor, it is
built in the background, of the kernels that a plan has and those that the plan before had, so that one serves many
sizes. Until it is there, and where a plan gains nothing, the steps are launched.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import math
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import attrs

from asyncrt.devices.base import Allocation, Device, FoldsLaunches, PreparedLaunch
from asyncrt.errors import AsyncrtError
from asyncrt.kernels.impl import KernelSource
from asyncrt.kernels.persistent.finder import FINDER
from asyncrt.kernels.persistent.table import LAYOUT, MOST_SLOTS, ROW_NBYTES, Row, pack
from asyncrt.kernels.persistent.walker import (
    LEAST_GROUP,
    MEETING_NBYTES,
    MOST_GROUP,
    SHARE_NBYTES,
    Function,
    Walker,
    function_of,
    walker,
)
from asyncrt.kernels.resident.kernel_cache import ImplCache
from asyncrt.lru import LruCache
from asyncrt.runtime.loop.background import BackgroundWork
from asyncrt.runtime.plan.bound_plan import BoundPlan
from asyncrt.runtime.plan.chunk_plan import ChunkPlan, PlanStep
from asyncrt.scheduler.persistent import groups_for, groups_sharing, most_groups

_log = logging.getLogger("asyncrt")

LEAST_STEPS = 3
MOST_ARENAS = 64
_MOST_ARENAS_PTX = 8
"""Of a kernel that no step of a sequence has: each launch sets all of them as its arguments, used or not."""
_MOST_KERNELS = 32
"""Of a walker that is built ahead, or serves several plans."""
_MOST_KERNELS_CPU = 96
"""Of one that a processor builds for a single plan: it takes 0.1 s for each, when nobody waits for another build."""
_OFTEN_CPU = 16  # times that a plan has come: it takes a processor's own cores to build the kernel
_LONG_STEP_S = 200e-6
"""What a step takes of a processor, on average, of whose time a launch is less than a twentieth."""
_BRIEF_S = 0.5e-3
"""What a plan takes that is one launch also beside other requests on a processor: it leaves the other cores to them."""
_WALKERS = 16
PATIENCE_S = 1.0
"""For which a group waits for the others: no plan that is folded takes a tenth of that."""
# Steps whose groups take so many turns on average keep the device busy by themselves: to launch them costs nothing
# beside. Where other requests are there, the host's time counts as well.
_TURNS, _TURNS_BESIDE = 2, 4


class _Shape(NamedTuple):
    """What of a step does not depend on the walker.

    Attributes:
        groups, group: Work-groups, and work-items of one, along each axis.
    """

    source: KernelSource
    groups: tuple[int, int, int]
    group: tuple[int, int, int]


class _Table(NamedTuple):
    """A plan's rows on the device, for one walker.

    Attributes:
        numbers: What the numbers among the buffers of the plan's steps are, in the order of the walker's buffers.
        wanted: For how many groups each step has something to do.
    """

    walker: Walker
    kernel: Any
    memory: Allocation
    numbers: tuple[int, ...]
    wanted: tuple[int, ...]


@attrs.define(eq=False)
class TurningTable:
    """One launch for plans that share most of theirs: its table is that of one of them at a time.

    Attributes:
        launch: Carries out the plan that it is now.
        first: The launches of the plan that it was first.
        constants: What all of them read, held by this; the plan itself is not, whose end is that of this.
        rows: The first plan's.
        address: Where they lie in the host's memory.
        now: By their places, the rows of the plan that it is now, as far as they differ from the first's.
        known: Such rows of the plans that it was.
    """

    launch: PreparedLaunch
    first: Sequence[PreparedLaunch]
    constants: object
    rows: Sequence[Row]
    address: int
    now: Mapping[int, bytes] = attrs.Factory(dict)
    known: weakref.WeakKeyDictionary[BoundPlan, Mapping[int, bytes]] = attrs.Factory(weakref.WeakKeyDictionary)

    def become(self, rows: Mapping[int, bytes]) -> None:
        """Have other rows from now on in the place of the first plan's. Nothing on the device may read the table."""
        for place in self.now.keys() - rows.keys():
            self._write(place, pack((self.rows[place],)))
        for place, row in rows.items():
            if self.now.get(place) is not row:
                self._write(place, row)
        self.now = rows

    def _write(self, place: int, row: bytes) -> None:
        ctypes.memmove(self.address + place * ROW_NBYTES, row, len(row))


class OneLaunch:
    """The plans of a runtime that are launched as one.

    Args:
        device: One that folds launches.
        impls: Builds walkers.
        streams: On which requests are launched.
    """

    def __init__(self, device: Device, impls: ImplCache, streams: int) -> None:
        assert isinstance(device, FoldsLaunches)
        self._device, self._folds = device, device
        self._impls = impls
        self._units, self._streams = device.info.compute_units, streams
        self._functions: weakref.WeakKeyDictionary[KernelSource, Function | None] = weakref.WeakKeyDictionary()
        #: Work-items of each kernel's work-groups.
        self._sizes: weakref.WeakKeyDictionary[KernelSource, int] = weakref.WeakKeyDictionary()
        self._walkers: LruCache[frozenset[KernelSource], tuple[Walker, Any]] = LruCache(_WALKERS)
        #: Of the plans that were folded.
        self.tables: weakref.WeakKeyDictionary[BoundPlan, _Table] = weakref.WeakKeyDictionary()
        self._refused: set[frozenset[KernelSource]] = set()
        self._latest: frozenset[KernelSource] = frozenset()
        #: What builds a walker.
        self.building = BackgroundWork()
        #: How often a plan has to come before it is one launch.
        self.often = 0 if self._folds.ptx else _OFTEN_CPU
        #: Whether launches gain most of what one saves where requests are beside each other.
        self.gains_beside = self._folds.ptx
        #: Whether groups wait for none that has not begun: then others may come at any time.
        self.shares = not self._folds.ptx
        self._most_kernels = _MOST_KERNELS if self._folds.ptx else _MOST_KERNELS_CPU
        self._most_arenas = _MOST_ARENAS_PTX if self._folds.ptx else MOST_ARENAS
        #: Changes when a walker was built: a plan that could not be folded may be by now.
        self.generation = 0
        #: Whether groups waited for each other in vain; then nothing is folded any more.
        self.stalled = False

    def __repr__(self) -> str:
        return f"<OneLaunch {len(self._walkers)} walkers, {len(self.tables)} tables>"

    def gains(self, steps: int, seconds: float) -> bool:
        """Return whether a plan may gain by being one launch whose steps, launched each, take so long; where that is
        to be measured, it was."""
        return not self.shares or seconds < steps * _LONG_STEP_S

    def gains_among(self, seconds: float) -> bool:
        """Return whether a plan whose steps take so long gains by being one launch beside other requests."""
        return seconds <= _BRIEF_S

    def fold(self, bound: BoundPlan, *, alone: bool, asks: bool = True) -> PreparedLaunch | None:
        """Return the launch that carries out a plan; None if there is none, or not yet.

        Args:
            alone: Whether nothing else is on any stream until it has ended, or on a processor, until now.
            asks: Whether to have the kernel built that it needs, if there is none.
        """
        if self.stalled:
            return None
        table = self.tables.get(bound)
        if table is None:
            table = self._table(bound, asks=asks) if self._may_be_brief(bound.plan.steps, alone=alone) else None
            if table is None:
                return None
            self.tables[bound] = table
        return self._launch(table, alone=alone)

    def _may_be_brief(self, steps: Sequence[PlanStep], *, alone: bool) -> bool:
        """Whether steps of a GPU may be brief. Those of large batches surely are not: none is looked at, and no kernel
        is built."""
        if self.shares:
            return True
        groups = most_groups(self._units, self._streams, alone=alone)
        least = [-(-math.prod(step.grid) // MOST_GROUP) for step in steps]
        return groups > 0 and _is_brief(least, groups, alone=alone)

    def turning(self, bound: BoundPlan) -> TurningTable | None:
        """Return one launch for a plan and those that share most launches with it; None if there is none, or not yet.

        Only on a processor, whose memory the host writes as well.
        """
        found = None if self.stalled or not self.shares else self._table_and_rows(bound)
        if found is None:
            return None
        table, rows = found
        launch = self._launch(table, alone=True)
        if launch is None:
            return None
        address = self._folds.addresses([table.memory])[0]
        return TurningTable(launch, bound.steps, bound.constants, rows, address)

    def turn(self, turning: TurningTable, bound: BoundPlan) -> bool:
        """Let a table be that of a plan which shares most launches with the one that it is; returns whether it can be.

        Nothing on the device may read the table.
        """
        rows = turning.known.get(bound)
        if rows is None:
            rows = self._other_rows(turning, bound)
            if rows is None:
                return False
            turning.known[bound] = rows
        turning.become(rows)
        return True

    def _other_rows(self, turning: TurningTable, bound: BoundPlan) -> Mapping[int, bytes] | None:
        """Return, by their places, a plan's rows that differ from the first's; None if one has no room, or has other
        memory."""
        found: dict[int, bytes] = {}
        for place, (step, launch) in enumerate(zip(bound.plan.steps, bound.steps, strict=True)):
            first = turning.first[place]
            if launch is first:
                continue
            shape = self._shape(step)
            _, buffers, record, _, _, local = launch
            if shape is None or buffers != first[1]:
                return None
            row = turning.rows[place]._replace(groups=shape.groups, group=shape.group, record=record, local=local)
            if not row.fits:
                return None
            found[place] = pack((row,))[: row.nbytes]
        return found

    def _launch(self, table: _Table, *, alone: bool) -> PreparedLaunch | None:
        """Return the launch that walks a table; None where it has too many groups, or too few."""
        wanted, nbytes = max(table.wanted), MEETING_NBYTES
        if self._folds.ptx:
            groups = groups_for(wanted, self._units, self._streams, alone=alone)
            if not groups or not _is_brief(table.wanted, groups, alone=alone):
                return None
        else:
            groups = groups_sharing(wanted, self._units, alone=alone)
            nbytes += SHARE_NBYTES * len(table.wanted)
        walks = table.walker
        meeting = self._folds.holding(bytes(nbytes))
        spare = (table.memory,) * (walks.arenas - len(table.numbers))
        buffers = (table.memory, meeting, *table.numbers, *spare)
        record = self._device.pack((0,) * len(buffers), (len(table.wanted), int(1000 * PATIENCE_S)))
        return table.kernel, buffers, record, (groups * walks.group,), (walks.group,), ()

    def _table(self, bound: BoundPlan, *, asks: bool) -> _Table | None:
        found = self._native_table(bound)
        if found is None:
            found, _ = self._table_and_rows(bound, asks=asks) or (None, ())
        return found

    def _native_table(self, bound: BoundPlan) -> _Table | None:
        """Do what `_table_and_rows()` does, in C; None if there is none, or that has to find out more."""
        steps, rows = bound.plan.steps, _native_rows() if self._folds.ptx else None
        known = None if rows is None else self._known(frozenset([step.kernel for step in steps]))
        if rows is None or known is None or len(steps) < LEAST_STEPS or len(bound.numbers) > self._most_arenas:
            return None
        (walks, kernel), places = known, {number: place for place, number in enumerate(bound.numbers)}
        made = rows(
            steps, bound.steps, walks.kernels, walks.own, places, walks.group, walks.space, self._folds.lanes
        )
        if made is None:
            return None
        table, wanted = made
        return _Table(walks, kernel, self._folds.holding(table), bound.numbers, wanted)

    def _table_and_rows(self, bound: BoundPlan, *, asks: bool = True) -> tuple[_Table, Sequence[Row]] | None:
        steps, numbers = bound.plan.steps, bound.numbers
        shapes = [shape for step in steps if (shape := self._shape(step)) is not None]
        if not LEAST_STEPS <= len(shapes) == len(steps) or len(numbers) > self._most_arenas:
            return None
        sources = frozenset([s.source for s in shapes])
        found = self._walker(sources) if asks else self._known(sources)
        if found is None:
            return None
        walks, kernel = found
        rows = self._rows(bound, shapes, walks)
        if rows is None:
            return None
        wanted = tuple([-(-row.total // row.slots) for row in rows])
        return _Table(walks, kernel, self._folds.holding(pack(rows)), numbers, wanted), rows

    def _rows(self, bound: BoundPlan, shapes: Sequence[_Shape], walks: Walker) -> list[Row] | None:
        """Return the steps as rows; None if one has no room."""
        places = {number: i for i, number in enumerate(bound.numbers)}
        memory = [b for launch in bound.steps for b in launch[1] if not isinstance(b, int)]
        addresses = iter(self._folds.addresses(memory))
        rows = []
        for shape, (_, buffers, record, _, _, local) in zip(shapes, bound.steps, strict=True):
            kernel, size = walks.kernels[shape.source], math.prod(shape.group)
            own = tuple([places[b] if isinstance(b, int) else next(addresses) for b in buffers])
            row = Row(kernel, shape.groups, shape.group, 1, own, record, local, walks.own[kernel])
            fitting = walks.space // row.local_nbytes if row.local_nbytes else MOST_SLOTS
            slots = 1 if self.shares else min(walks.group // size, fitting, MOST_SLOTS)
            if slots < 1 or not row.fits:
                return None
            rows.append(row._replace(slots=slots))
        return rows

    def _shape(self, step: PlanStep) -> _Shape | None:
        """Return what of a step goes into a row; None if it cannot."""
        source = step.kernel
        if not isinstance(source, KernelSource):
            return None
        function = self._functions.get(source, _UNKNOWN)
        if function is _UNKNOWN:
            function = self._functions[source] = function_of(source)
        if function is None:
            return None
        grid = (*step.grid, 1, 1)[:3]
        group = (*(step.group or _usual_group(step.grid)), 1, 1)[:3]
        size = math.prod(group)
        # Without PTX one work-item does the work of a group, one after the other, which must not wait for each other.
        if self.shares and size > 1 and "barrier(" in source.text:
            return None
        if size > MOST_GROUP or size % self._folds.lanes or any(g % w for g, w in zip(grid, group, strict=True)):
            return None
        self._sizes[source] = size
        return _Shape(source, tuple(g // w for g, w in zip(grid, group, strict=True)), group)  # type: ignore[arg-type]

    def differs(self, launch: PreparedLaunch | None, generation: int) -> bool:
        """Return whether a plan may be launched in another way than it was: by *launch*, or step by step if that is
        None, when so many walkers had been built."""
        return self.stalled if launch is not None else not self.stalled and generation != self.generation

    def gave_up(self, launch: PreparedLaunch, seconds: float) -> bool:
        """Return whether groups of a launch that took so long waited in vain for others; then nothing is folded any
        more."""
        if seconds < PATIENCE_S:
            return False
        _, (_, meeting, *_), *_ = launch
        if int.from_bytes(self._folds.read_now(meeting, MEETING_NBYTES)[4:8], "little"):
            self.stalled = True
            _log.warning("the device does not run all groups of a kernel together; plans are launched step by step")
            return True
        return False

    # Walkers.

    async def build_ahead(self, plans: Iterable[ChunkPlan]) -> None:
        """Build the walker of the kernels that those of *plans* have which are brief, before one of them comes.

        Some of their kernels are no functions: other plans have the rest of them, which are not among *plans* for that.
        A processor needs its cores for other builds then: there a plan has to show first that it comes often.
        """
        if not self.shares:
            await self._build_unknown(self._of_brief(plans))

    async def build_for_others(self, plans: Sequence[ChunkPlan]) -> None:
        """Build the walker of the first plan where it would have to come often first, for processes that find it on
        disk.

        A process that uses the model itself has that built when it is worth it: what Intel's driver keeps of a program
        that was loaded, it keeps for ever.
        """
        if self.shares:
            await self._build_unknown(self._of_first(plans))

    async def _build_unknown(self, sources: frozenset[KernelSource]) -> None:
        if sources and not any(sources <= known for known, _ in self._walkers.items()):
            self._latest = sources
            await self._build(sources)

    def _of_first(self, plans: Sequence[ChunkPlan]) -> frozenset[KernelSource]:
        """Return the kernels of the first plan; none if it cannot be one launch."""
        steps = plans[0].steps if plans else ()
        shapes = [shape for step in steps if (shape := self._shape(step)) is not None]
        sources = frozenset([s.source for s in shapes])
        whole = LEAST_STEPS <= len(shapes) == len(steps)
        return sources if whole and len(sources) <= self._most_kernels else frozenset()

    def _of_brief(self, plans: Iterable[ChunkPlan]) -> frozenset[KernelSource]:
        """Return the kernels of all plans that are brief, as far as one walker may have them."""
        sources: frozenset[KernelSource] = frozenset()
        for plan in plans:
            shapes = [shape for step in plan.steps if (shape := self._shape(step)) is not None]
            together = sources.union(s.source for s in shapes)
            some = len(shapes) >= LEAST_STEPS and len(together) <= _MOST_KERNELS
            if some and _is_brief([_least_wanted(s) for s in shapes], self._units, alone=True):
                sources = together
        return sources

    def _known(self, sources: frozenset[KernelSource]) -> tuple[Walker, Any] | None:
        """Return a walker that has these kernels, if one was built."""
        known = next((k for k, _ in self._walkers.items() if sources <= k), None)
        return None if known is None else self._walkers.get(known)

    def _walker(self, sources: frozenset[KernelSource]) -> tuple[Walker, Any] | None:
        """Return the walker of plans with these kernels; None if it is being built, or cannot be."""
        known = self._known(sources)
        if known is not None:
            return known
        if sources not in self._refused and not self.building.busy:
            together = sources | self._latest
            wanted = together if len(together) <= _MOST_KERNELS and together not in self._refused else sources
            self._latest = wanted
            if len(wanted) <= self._most_kernels:
                self.building.begin(functools.partial(self._build, wanted))
        return None

    async def _build(self, sources: frozenset[KernelSource]) -> None:
        """Build the walker of some kernels, when nobody waits for another build."""
        ordered = sorted(sources, key=lambda s: s.name)
        most = max(self._sizes[s] for s in ordered)
        group = (LEAST_GROUP if most <= LEAST_GROUP else MOST_GROUP) if self._folds.ptx else 1
        walks = walker(ordered, group, self._folds.space, self._most_arenas, ptx=self._folds.ptx)
        try:
            kernels = await self._impls.ensure([walks.source, FINDER], urgent=False)
        except AsyncrtError as error:
            self._refused.add(sources)
            _log.info("plans of %d kernels are launched step by step: %s", len(sources), error)
            return
        self._folds.find_by(kernels[FINDER])
        self._walkers.put(sources, (walks, kernels[walks.source]))
        self.generation += 1


_UNKNOWN: Any = object()


@functools.cache
def _native_rows() -> Callable[..., tuple[bytes, tuple[int, ...]] | None] | None:
    """Return what makes a table in C; None where it was not built, or for other rows."""
    try:
        from . import _rows
    except ImportError:
        return None
    return _rows.rows if _rows.LAYOUT == LAYOUT else None


def _is_brief(wanted: Sequence[int], groups: int, *, alone: bool) -> bool:
    """Return whether *groups* carry out steps that have something to do for so many in few turns."""
    turns = sum(-(-each // groups) for each in wanted)
    return turns <= (_TURNS if alone else _TURNS_BESIDE) * len(wanted)


def _least_wanted(shape: _Shape) -> int:
    """Return for how many groups of a walker a step has something to do, where its arrays leave room for many."""
    return -(-math.prod(shape.groups) // max(1, LEAST_GROUP // math.prod(shape.group)))


def _usual_group(grid: tuple[int, ...]) -> tuple[int, ...]:
    """Return work-groups for a kernel that takes any."""
    return (next((n for n in (128, 64, 32) if grid[0] % n == 0), 1),)
