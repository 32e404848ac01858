"""Which plans have launches with their arguments set beforehand, and for which memory?

Setting the arguments of a launch takes longer than enqueueing it. A plan that is replayed often gets its launches
prepared by the device (`asyncrt.devices.base.Prepared`) for the memory of a request; a later request on the same memory
only enqueues them. On other memory a plan gets another set of launches, up to a number; then the one unused longest is
bound to that memory. How many launches there may be in all is bounded, too.

The plans of a sequence's lengths share most launches, and few come often. They have one set, which each takes over from
the one before it: only the records of launches that differ are set anew. On a processor they have one launch together
as well, of whose table the rows that differ are written anew while nothing is on the device.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import math
import operator
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import attrs

from asyncrt.devices.base import Allocation, Device, Prepared, PreparedLaunch
from asyncrt.errors import DeviceError, DeviceStalledError
from asyncrt.kernels.resident.build_pauses import BuildPauses
from asyncrt.runtime.plan.bound_plan import BoundPlan

from .one_launch import OneLaunch, TurningTable

OFTEN = 8  # times that a plan is enqueued before its launches are prepared, which costs what 2 or 3 replays save
LAUNCH_NBYTES = 4096
"""What a driver takes for one launch with its arguments set, at most; about 1500 where it is small."""
_TRIALS = 5  # times that each way is tried first
_SELDOM = 512  # one of so many uses is of the other way: of one in a hundred the slowest requests would be made
_DOWN, _UP = 0.25, 1.02  # see `Trial.took`
_AGAIN = 7  # uses for which what was found is not looked for again, which takes a tenth of the briefest request
_SETS = 64  # per plan: as many requests of one signature as are in flight at once by default


@attrs.frozen
class PresetStatistics:
    """Counts of launches with their arguments set beforehand.

    Attributes:
        launches: How many there are.
        replays: Chunks that were enqueued so, all time.
        rebound: Those among them that had to be bound to other memory before, all time.
    """

    launches: int
    replays: int
    rebound: int


class Company(enum.Enum):
    """What else may be on the device while a plan's launches are."""

    NOBODY = "nothing, until they have ended"
    NOBODY_YET = "nothing, but others may come"
    OTHERS = "launches of other requests"
    ANYTHING = "nobody knows"

    __hash__ = object.__hash__  # that of `Enum` is Python's, and takes longer than all else of looking for launches


class _Use(NamedTuple):
    """What launches are for.

    Attributes:
        apart: Whether each segment of the plan's lanes may go to another stream.
        company: Who may be there meanwhile; `ANYTHING` are never one launch.
    """

    apart: bool
    company: Company


@attrs.define(eq=False)
class _Set:
    """All launches of a plan, and the memory that they are bound to: it is held, so that no other has its identity.

    Attributes:
        parts: One, or one for each segment of the plan's lanes, because each of those may go to another stream.
        one: The launch that does all steps, if there is one; its memory is held.
        generation: How many kernels for that had been built by then.
    """

    parts: Sequence[Prepared]
    memory: tuple[Allocation, ...]
    one: PreparedLaunch | None = None
    generation: int = 0

    @property
    def busy(self) -> bool:
        """Whether a thread enqueues them."""
        return any(part.busy for part in self.parts)


@attrs.define
class Trial:
    """How long a plan takes one way.

    Attributes:
        times: How often that was measured.
        seconds: What it takes where little is in the way: a quarter of the measurements are less, or fewer.
    """

    times: int = 0
    seconds: float = math.inf

    def took(self, seconds: float) -> None:
        """Note a measurement. What is in the way makes it longer, never shorter, so less counts for more."""
        self.times += 1
        if self.times <= _TRIALS:
            self.seconds = min(seconds, self.seconds)
        elif seconds < self.seconds:
            self.seconds += _DOWN * (seconds - self.seconds)
        else:
            self.seconds = min(seconds, _UP * self.seconds)


def better_folded(one: Trial, steps: Trial) -> bool:
    """Return whether a plan that is alone is to be one launch: by what both ways took, once both were tried. The other
    way is tried again from time to time."""
    less = min(one.times, steps.times)
    if less < _TRIALS or less * _SELDOM < one.times + steps.times:
        return one.times <= steps.times
    return one.seconds <= steps.seconds


@attrs.define(eq=False)
class _Plan:
    """What is known of a plan.

    Attributes:
        size: How many launches a set is.
        is_step: Whether it is a step's of a sequence.
        long: Whether enqueueing its launches takes so long that a thread should do it.
        numbers: Of the arenas that its steps use, once it has been used often.
        uses: How often it was enqueued since its sets were dropped, or in all.
        last: When it was used last.
        trials: How long it took when it was alone: as one launch, and step by step.
        folded: Whether it was one launch when it was used last.
        sets: By what they are for, and the identities of the memory they are bound to; those unused longest first.
        latest: The one used last, if nobody was there.
        again: For how many more such uses no other way is looked for.
        family: Those with which it shares most launches; None if there are none.
    """

    size: int
    is_step: bool
    long: bool = False
    numbers: tuple[int, ...] | None = None
    uses: int = 0
    last: int = 0
    trials: tuple[Trial, Trial] = attrs.Factory(lambda: (Trial(), Trial()))
    folded: bool = False
    sets: OrderedDict[tuple[_Use, tuple[int, ...]], _Set] = attrs.Factory(OrderedDict)
    latest: _Set | None = None
    again: int = 0
    family: _Family | None = None

    @property
    def ways(self) -> tuple[Trial, Trial]:
        """How long it takes either way, or those do with which it shares most launches."""
        return self.trials if self.family is None else self.family.trials

    def same_again(self, memory: Sequence[Allocation]) -> _Set | None:
        """Return what was used last, where it may be used again for such memory without another look."""
        latest, numbers = self.latest, self.numbers
        if latest is None or numbers is None or not self.again:
            return None
        for number, before in zip(numbers, latest.memory):  # noqa: B905  # of the same length
            if memory[number] is not before:
                return None
        return latest


@attrs.define(eq=False)
class _Family:
    """Plans that share most of their launches.

    Attributes:
        owner: The one that has the set now, as long as anybody has that plan.
        tried: How often one ran on its caller's thread.
        uses: How often one was enqueued where it may be one launch.
        trials: How long one took when it was alone: as one launch, and step by step.
        folded: The set that is one launch, and its table; None if there is none.
        refused: How many kernels for that had been built when there could be none.
    """

    owner: Callable[[], _Plan | None]
    tried: int = 0
    uses: int = 0
    trials: tuple[Trial, Trial] = attrs.Factory(lambda: (Trial(), Trial()))
    folded: tuple[_Set, TurningTable] | None = None
    refused: int | None = None


class Presets:
    """The prepared launches of one runtime. They are released with the plans that they belong to.

    Args:
        device: Prepares launches.
        nbytes: Of the host's memory that prepared launches may take, at `LAUNCH_NBYTES` each.
        native: Whether native code may enqueue them.
        one: Makes one launch of a plan's, where it can; None where that is not wanted.
        pauses: Lets builds rest when requests come; None where they do not.
    """

    def __init__(
        self, device: Device, nbytes: int, *, native: bool = True, one: OneLaunch | None = None,
        pauses: BuildPauses | None = None,
    ) -> None:  # fmt: skip
        self._device = device
        self._native = native
        self.one = one
        self._comes: Callable[[], None] = _nobody_builds if pauses is None else pauses.touch
        self._most = nbytes // LAUNCH_NBYTES
        self._plans: weakref.WeakKeyDictionary[BoundPlan, _Plan] = weakref.WeakKeyDictionary()
        #: The plan that was seen last, as long as anybody has it, and what is known of it.
        self._latest: tuple[Callable[[], BoundPlan | None], Callable[[], _Plan | None]] = (lambda: None, lambda: None)
        self._clock = itertools.count()
        self._replays = 0
        self._rebound = 0
        #: No fewer launches than are prepared.
        self._counted = 0
        #: Whether the device works by itself on launches that were prepared (`Prepared.begins`).
        self.begins = False

    def __repr__(self) -> str:
        return f"<Presets {self.statistics()}>"

    def statistics(self) -> PresetStatistics:
        """Return the counts."""
        return PresetStatistics(self._launches(), self._replays, self._rebound)

    def find(
        self,
        bound: BoundPlan,
        memory: Sequence[Allocation],
        apart: bool,
        company: Company = Company.ANYTHING,
        *,
        now: bool = False,
    ) -> Sequence[Prepared] | None:
        """Return a plan's launches, bound to a request's memory; None if they are to be enqueued one by one.

        Args:
            memory: What the numbers among the buffers of the plan's steps stand for.
            apart: Whether the launches of each segment of the plan's lanes are wanted; otherwise there is one part.
            company: What else may be on the device meanwhile.
            now: Prepare them even if the plan did not come often yet.
        """
        self._comes()
        plan = self._known(bound)
        plan.uses = max(plan.uses, OFTEN) + 1 if now else plan.uses + 1
        often = OFTEN if self.one is None else min(self.one.often, OFTEN)
        if (plan.family is None and plan.uses <= often) or not plan.size:
            return None
        plan.last = next(self._clock)
        if apart:
            company = Company.ANYTHING
        elif company is Company.NOBODY_YET:
            company = Company.NOBODY if self.one is not None and self.one.shares else Company.ANYTHING
        stalled = self.one is not None and self.one.stalled
        if company is Company.NOBODY and not stalled and (latest := plan.same_again(memory)) is not None:
            plan.again -= 1
            self._replays += 1
            return latest.parts
        asked = company
        if plan.numbers is None:
            plan.numbers = bound.numbers
        used = tuple([memory[n] for n in plan.numbers])
        if plan.family is not None and company is Company.NOBODY:
            turned = self._turned(bound, plan, plan.family, memory, used)
            plan.folded, plan.latest, plan.again = turned is not None, None, 0
            if turned is not None:
                self._replays += 1
                return turned.parts
        if not self._folds_for(plan, company):
            company = Company.ANYTHING
        key = _Use(apart, company), tuple(map(id, used))
        found = plan.sets.get(key)
        if found is not None and self._may_be_folded(found, company):
            del plan.sets[key]
            found = None
        if found is None:
            if plan.uses <= OFTEN and company is Company.ANYTHING and (plan.family is None or apart):
                return None
            try:
                found = self._bind(bound, plan, memory, used, key[0])
            except DeviceError:
                found = None  # enqueueing one by one may still work; if not, its error says why
            if found is None:
                if plan.uses > OFTEN:
                    _forget(plan)
                return None
            self._keep(plan, key, found)
        plan.sets.move_to_end(key)
        plan.folded = found.one is not None
        plan.latest, plan.again = (found, _AGAIN) if asked is Company.NOBODY else (None, 0)
        self._replays += 1
        return found.parts

    def foresee(self, bound: BoundPlan, memory: Sequence[Allocation]) -> None:
        """Let the launches of the plan used last become those of one that is to come next, and shares most of them.

        The device may be at work on them: what was enqueued stays what it is.
        """
        plan = self._known(bound)
        if plan.family is None or plan.numbers is None:
            return
        used = tuple([memory[n] for n in plan.numbers])
        key = _Use(apart=False, company=Company.ANYTHING), tuple(map(id, used))
        with contextlib.suppress(DeviceError):  # that step will say
            if key not in plan.sets and (found := self._take_over(bound, plan, plan.family, memory, used)) is not None:
                self._keep(plan, key, found)

    def _known(self, bound: BoundPlan) -> _Plan:
        """Return what is known of a plan, which is little if it was not seen before."""
        like, known = self._latest[0](), self._latest[1]()
        if like is bound and known is not None:
            return known
        plan = self._plans.get(bound)
        if plan is None:
            plan = self._plans[bound] = _Plan(len(bound.steps), bool(bound.left.outputs))
            if like is not None and known is not None and shares_most(bound, like):
                if known.family is None:
                    known.family = _Family(weakref.ref(known))
                plan.family, plan.numbers = known.family, known.numbers
        self._latest = weakref.ref(bound), weakref.ref(plan)
        return plan

    @property
    def prepares_at_once(self) -> bool:
        """Whether a plan may be one launch when it comes for the first time."""
        return self.one is not None and not self.one.often and not self.one.stalled

    def ready(self, bound: BoundPlan) -> bool:
        """Whether a plan was enqueued so often that its launches are prepared from now on, and in a moment enqueued."""
        plan = self._plans.get(bound)
        return plan is not None and plan.uses >= OFTEN and not plan.long

    def is_long(self, bound: BoundPlan) -> bool:
        """Whether enqueueing a plan's launches, where they are prepared, takes so long that a thread should do it."""
        plan = self._plans.get(bound)
        return plan is not None and plan.long

    def shares(self, bound: BoundPlan) -> bool:
        """Whether a plan has the launches of a family, also when it comes for the first time."""
        return self._known(bound).family is not None

    def tries(self, bound: BoundPlan) -> bool:
        """Whether few of its family have run on their caller's thread."""
        family = self._known(bound).family
        return family is not None and family.tried < _TRIALS

    def _folds_for(self, plan: _Plan, company: Company) -> bool:
        """Return whether a plan is to be one launch, if it can be.

        Where there is a plan for each length, they have one launch together (`_turned`). A step of a sequence is none
        on a GPU, an iteration of a loop as little: its launches have few groups each, and follow each other as soon as
        the groups of one would meet.
        """
        if self.one is None or company is Company.ANYTHING or plan.uses <= self.one.often:
            return False
        if plan.family is not None or (plan.is_step and not self.one.shares):
            return False
        if company is Company.OTHERS and self.one.gains_beside:
            return True
        one, steps = plan.trials
        if not self.one.gains(plan.size, steps.seconds):
            return False
        if company is Company.OTHERS:
            tried = min(one.times, steps.times) >= _TRIALS
            return tried and one.seconds <= steps.seconds and self.one.gains_among(steps.seconds)
        return better_folded(one, steps)

    def _turned(
        self, bound: BoundPlan, plan: _Plan, family: _Family, memory: Sequence[Allocation], used: tuple[Allocation, ...]
    ) -> _Set | None:
        """Return the one launch of a family as that of a plan, where it gains; None if it is to be launched in steps.

        Nothing of the family is on the device.
        """
        one = self.one
        family.uses += 1
        if one is None or not one.shares or one.stalled or family.uses <= one.often:
            return None
        if not one.gains(plan.size, family.trials[1].seconds) or not better_folded(*family.trials):
            return None
        if family.folded is None:
            if family.refused == one.generation:
                return None
            family.refused = one.generation
            table = one.turning(bound)
            part = None if table is None else self._device.prepare((table.launch,), memory, self._native)
            if table is None or part is None:
                return None
            family.folded = _Set([part], used, table.launch, one.generation), table
            return family.folded[0]
        found, table = family.folded
        if not one.turn(table, bound):
            family.folded = None
            return None
        if not all(map(operator.is_, used, found.memory)):
            found.parts[0].bind(memory)
            found.memory = used
        return found

    def _may_be_folded(self, found: _Set, company: Company) -> bool:
        """Return whether launches that were prepared before may be one now, or may be one no more."""
        one = self.one
        return one is not None and company is not Company.ANYTHING and one.differs(found.one, found.generation)

    def took(self, bound: BoundPlan, seconds: float) -> None:
        """Note how long a plan took on its caller's thread, alone on the device."""
        plan = self._known(bound)
        if plan.family is not None:
            plan.family.tried += 1
        if self.one is not None:
            plan.ways[not plan.folded].took(seconds)

    def took_generally(self, bound: BoundPlan, seconds: float) -> None:
        """Note how long a plan took on the general way, alone, from when it was enqueued to its results."""
        plan = self._plans.get(bound)
        if plan is not None and self.one is not None and self.one.shares:
            plan.ways[not plan.folded].took(seconds)

    def check(self, bound: BoundPlan, memory: Sequence[Allocation], seconds: float) -> None:
        """Raise `DeviceStalledError` if a plan that took so long was one launch whose groups gave up."""
        plan = self._plans.get(bound)
        if self.one is None or plan is None or plan.numbers is None:
            return
        used = tuple([id(memory[n]) for n in plan.numbers])
        own = {key: s.one for key, s in plan.sets.items() if key[1] == used and s.one is not None}
        if any(self.one.gave_up(launch, seconds) for launch in own.values()):
            plan.latest = None
            for key in own:
                del plan.sets[key]
            raise DeviceStalledError(
                f"work-groups of one launch waited {seconds:.1f} s for each other, and not all were on the device",
                hint="ask again: from now on the steps of a plan are launched one by one",
            )

    def _bind(
        self, bound: BoundPlan, plan: _Plan, memory: Sequence[Allocation], used: tuple[Allocation, ...], use: _Use
    ) -> _Set | None:
        """Return a set for other memory than there are sets for; None if there can be none."""
        if plan.family is not None and not use.apart:
            found = self._take_over(bound, plan, plan.family, memory, used)
            if found is not None:
                return found
        # One launch that is on the device still meets where another of the same set would.
        alike = next((key for key, s in plan.sets.items() if key[0] == use and not (s.busy or s.one)), None)
        plenty = alike is None or self._has_at_most(self._most // 2 - plan.size)
        if plenty and len(plan.sets) < _SETS and self._make_room(plan):
            return self._prepare(bound, plan, memory, used, use)
        if alike is None:
            other = next((key for key, s in plan.sets.items() if not s.busy), None)
            if other is None:
                return None
            del plan.sets[other]  # a new one takes its place
            return self._prepare(bound, plan, memory, used, use)
        oldest = plan.sets.pop(alike)
        for part in oldest.parts:
            part.bind(memory)
        oldest.memory = used
        self._rebound += 1
        return oldest

    def _take_over(
        self, bound: BoundPlan, plan: _Plan, family: _Family, memory: Sequence[Allocation], used: tuple[Allocation, ...]
    ) -> _Set | None:
        """Return the set of a plan that shares most launches with this one, made its own; None if there is none."""
        owner = family.owner()
        if owner is None:
            return None
        key = next((k for k, s in owner.sets.items() if not (k[0].apart or s.busy or s.one)), None)
        if key is None:
            return None
        found = owner.sets.pop(key)
        owner.latest = None
        if not all(part.become(bound.steps, memory) for part in found.parts):
            return None
        found.memory, family.owner = used, weakref.ref(plan)
        self._rebound += 1
        return found

    def _prepare(
        self, bound: BoundPlan, plan: _Plan, memory: Sequence[Allocation], used: tuple[Allocation, ...], use: _Use
    ) -> _Set | None:
        """Return a new set; None if the device gains nothing by it, or the plan does not come often enough."""
        one = None
        if self.one is not None and use.company is not Company.ANYTHING:
            one = self.one.fold(bound, alone=use.company is Company.NOBODY, asks=plan.uses > 1)
        steps: list[Sequence[PreparedLaunch]] = [bound.steps if one is None else (one,)]
        if one is None and plan.uses <= OFTEN and plan.family is None:
            return None
        if plan.family is not None:
            plan.family.owner = weakref.ref(plan)
        if use.apart:
            assert bound.plan.lanes is not None
            steps = [bound.steps[segment.begin : segment.end] for segment in bound.plan.lanes.segments]
        parts = [self._device.prepare(part, memory, self._native) for part in steps]
        found = [part for part in parts if part is not None]
        self.begins = self.begins or any(part.begins for part in found)
        plan.long = any(part.long for part in found)
        generation = 0 if self.one is None else self.one.generation
        return _Set(found, used, one, generation) if len(found) == len(parts) else None

    def _make_room(self, plan: _Plan) -> bool:
        """Make room for a set; returns whether there is.

        Of other plans go those that were used longest ago: the sets that they have beside another one, and all of them
        only for a plan's first.
        """
        if plan.size > self._most:
            return False
        while not self._has_at_most(self._most - plan.size):
            others = [p for p in self._plans.values() if p.sets and p is not plan]
            spare = [p for p in others if len(p.sets) > 1]
            if plan.sets and not spare:
                return False
            oldest = min(spare or others, key=lambda p: p.last)
            if spare:
                oldest.sets.popitem(last=False)
                oldest.latest = None
            else:
                _forget(oldest)
        return True

    def _keep(self, plan: _Plan, key: tuple[_Use, tuple[int, ...]], found: _Set) -> None:
        plan.sets[key] = found
        self._counted += plan.size

    def _has_at_most(self, launches: int) -> bool:
        """Whether no more launches are prepared; they are counted only where that is not sure."""
        if self._counted > launches:
            self._counted = self._launches()
        return self._counted <= launches

    def _launches(self) -> int:
        return sum(p.size * len(p.sets) for p in self._plans.values())


def _nobody_builds() -> None:
    """There are no builds that would have to rest."""


def shares_most(bound: BoundPlan, other: BoundPlan) -> bool:
    """Whether most launches of two plans are the same, and the others have the same kernels and buffers."""
    one, two = bound.plan, other.plan
    if 2 * one.shared < len(one.steps) or len(one.steps) != len(two.steps):
        return False
    return all(a.buffers is b.buffers and a.kernel is b.kernel for a, b in zip(one.steps, two.steps, strict=True))


def _forget(plan: _Plan) -> None:
    """Drop a plan's sets. It has to be used often again before new ones are made, so that plans do not evict each
    other in turn."""
    plan.sets.clear()
    plan.latest = None
    plan.uses = 0
