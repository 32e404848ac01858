"""May a request run on the thread that asks for it, from its inputs to its results, while nothing else is there?

A request of some tens of microseconds spends most of its time between threads, one of some hundreds half of it: on a
task, on futures, on a thread that waits for the device and wakes the event loop. Where the device lends its work to the
thread that waits (`asyncrt.devices.base.Prepared.run`), and nobody else is to be ordered against, one call copies the
inputs, launches, and copies the results, in less time than a thread takes to wake up.

Some devices can leave all of it to that thread alone, so that no other one has to wake up (`Prepared.single`). That is
sooner done where the work is small, or others want the cores; what was measured of either says which.

So the scheduler, the timeline and the marks never hear of it: before it and after it, no request is known and every
stream has passed all it was given. Whatever is not as plain as that goes the general way: requests beside it, a plan
that no recipe gives at once, launches that are not prepared, a device that takes longer, checks and traces.

One that keeps a thread for longer is no less alone, and the event loop is not to wait for it. Where there is a thread
without Python (`asyncrt.devices.base.Launcher`), that one does all of it, and says when there are results.

Callers who ask at once take turns (`callers_turns.py`), where each request takes less so than the general way takes of
the event loop's thread: one after the other they are all answered sooner. Where the device works by itself, a request
of each of several callers is at work at once instead (`asyncrt/runtime/loop/overlapping.py`).
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

from asyncrt.devices.base import Prepared, Transfer
from asyncrt.errors import DeviceError, OutOfDeviceMemory
from asyncrt.layout import Array
from asyncrt.memory.buffer import Lease
from asyncrt.memory.host import HostBudget
from asyncrt.runtime.execute.kept_state import KeptState
from asyncrt.runtime.execute.prepared_launches import Company
from asyncrt.runtime.execute.transfers import downloads, uploads
from asyncrt.runtime.loop.overlapping import End
from asyncrt.runtime.plan.between_steps import NOTHING, Between
from asyncrt.runtime.plan.bound_plan import BoundPlan
from asyncrt.runtime.plan.chunk_plan import Deferred, Records
from asyncrt.runtime.plan.plan_cache import Planned

from ..callers_turns import TURN_S
from ..compiled_model import CompiledModel
from ..inputs import layouts_of
from ..linked import Iterated, Loop, linked, own_inputs
from ..next_plan import contents_of, step_signature
from .own_core_work import OwnCoreWork, Ready
from .usual import ASIDE_S, BESIDE_S, LAUNCH_S, Usual, choose_way, may_keep_s, own_part

_SEVERAL = 16  # launches, from which on enqueueing them says what one takes
TRIAL_S = 2e-3
"""For which the caller's thread may be kept to find out, a few times, how long steps of a sequence take there."""
OVERLAP_S = 1e-3
"""For which a request may take the device alone, of those that are at work beside each other: the event loop waits for
one of them in each turn, for less the more there are."""
_FORGETS = 0.99
_LEAST_AT_ONCE = 2
_STREAM = 0
_NO_STREAM = -1  # of those that others know


class _Brief(NamedTuple):
    """How much a plan is for the device (`BoundPlan.work`), and how long it took on its caller's thread."""

    work: int
    seconds: float


class Direct:
    """Runs requests of one model on their callers' threads, where that is the way they go.

    The caller's thread has the event loop's turn: it is that thread, or the loop waits meanwhile.

    Of a model of several chunks, whose host decides between them, it runs each that nothing is enqueued beside.

    Args:
        model: Whose first chunk is planned, if it has but one.
    """

    def __init__(self, model: CompiledModel) -> None:
        assert may_be_direct(model)
        self._model, self._session = model, model.session
        self._dispatcher, self._turns = model.session.dispatcher, model.session.turns
        self._clock = model.session.device.clock
        self._chunk = model.program.chunks[0]
        self._usual: weakref.WeakKeyDictionary[BoundPlan, Usual] = weakref.WeakKeyDictionary()
        #: The largest plan that was brief here; None if none was.
        self._brief: _Brief | None = None
        #: What a unit of `BoundPlan.work` takes one core, in seconds; None if none had a core of its own yet.
        self._core_s: float | None = None
        self._latest_step: Callable[[], BoundPlan | None] = lambda: None
        self._least_launch_s = LAUNCH_S["cpu" if model.session.device.info.is_cpu else "gpu"]
        self._launch_s = self._least_launch_s

    @property
    def ran(self) -> bool:
        """Whether a request has run so in this turn of the event loop."""
        return self._turns.ran

    @property
    def crowded(self) -> bool:
        """Whether who wants to run a request now has to ask for its `turn()`."""
        return not self._turns.free or self._dispatcher.in_flight > 0 or self._dispatcher.beside

    @property
    def accompanied(self) -> bool:
        """Whether other callers have requests here, or wait for a turn."""
        dispatcher = self._dispatcher
        return self._turns.wanted or dispatcher.in_flight > 0 or dispatcher.beside

    def has_company(self) -> bool:
        """Whether other callers are here, or have been lately: one that asks again at once needs no other's stream."""
        overlapping = self._dispatcher.overlapping
        if self.accompanied:
            overlapping.expect()
        return not overlapping.lonely

    async def turn(
        self, arrays: Mapping[int, Array], priority: int, until: float | None, kept: KeptState | None = None
    ) -> bool:
        """Return when it is the caller's turn to run a request; False at once if it had better not wait for that.

        Args:
            arrays: Its inputs, by value id.
            until: When it is too late.
            kept: What the sequence keeps that it is a step of.
        """
        if (self._dispatcher.in_flight or self._turns.wanted) and not self.suits(arrays, kept):
            return False
        return await self.take_turn(priority, until)

    async def take_turn(self, priority: int, until: float | None) -> bool:
        """Do what `turn()` does, for a request that `suits()` or that nobody is in the way of."""
        dispatcher, turns = self._dispatcher, self._turns
        others = dispatcher.in_flight or turns.wanted
        if others and not await turns.drained():
            return False
        if others or not turns.free:  # those who have waited for the same go on one after the other
            await turns.wait(priority, until)
        return not dispatcher.in_flight

    def suits(self, arrays: Mapping[int, Array], kept: KeptState | None = None) -> bool:
        """Whether callers of such a request had better take turns; for the arguments see `turn()`."""
        planned = self._find(arrays, NOTHING if kept is None else kept.between, kept)
        return planned is not None and planned.bound is not None and self.gains_beside(planned.bound)

    def gains_beside(self, bound: BoundPlan) -> bool:
        """Whether requests of a plan are sooner done one after the other, each on its caller's thread."""
        usual, presets = self._usual.get(bound), self._session.presets
        return usual is not None and presets is not None and usual.gains_beside and presets.ready(bound)

    def is_brief(self, bound: BoundPlan) -> bool:
        """Whether it is worth it to wait until such a request has ended that goes the general way."""
        return self.gains_beside(bound) or self._may_overlap(bound)

    def overlapping(self, arrays: Mapping[int, Array]) -> Planned | None:
        """Return the plan of a request that had better be at work beside those of other callers; None if it is none."""
        presets = self._session.presets
        if presets is None or not presets.begins or self._dispatcher.overlapping.most < _LEAST_AT_ONCE:
            return None
        planned = self._find(arrays, NOTHING)
        return None if planned is None or planned.bound is None or not self._may_overlap(planned.bound) else planned

    def _may_overlap(self, bound: BoundPlan) -> bool:
        usual, presets = self._usual.get(bound), self._session.presets
        if usual is None or presets is None or usual.seconds > OVERLAP_S:
            return False
        return presets.begins and presets.ready(bound)

    def aside(
        self, arrays: Mapping[int, Array], priority: int, until: float | None
    ) -> Coroutine[Any, Any, tuple[dict[int, Array], Records] | None] | None:
        """Return what does as `attempt()` does for a request that nobody is beside, and that a thread without Python
        had better carry out; it is to be awaited at once. None if the request is none."""
        presets, dispatcher = self._session.presets, self._dispatcher
        if presets is None or dispatcher.overlapping.launcher is None or not dispatcher.alone or not self._turns.free:
            return None
        planned = self._find(arrays, NOTHING)
        if planned is None or planned.bound is None or not presets.ready(planned.bound):
            return None
        if planned.plan.lanes is not None:  # its branches go to several streams
            return None
        usual = self._usual.get(planned.bound)
        if usual is None or usual.seconds > ASIDE_S:
            return None
        return self.overlap(planned, arrays, priority, until, Company.NOBODY_YET)

    async def overlap(
        self,
        planned: Planned,
        arrays: Mapping[int, Array],
        priority: int,
        until: float | None,
        company: Company = Company.OTHERS,
    ) -> tuple[dict[int, Array], Records] | None:
        """Do what `attempt()` does, beside requests of other callers, or where those may come.

        Args:
            planned: What `overlapping()` has returned, or `aside()` has found.
        """

        def begin(stream: int) -> End | None:
            return self._begin(stream, planned, arrays, until, company)

        made: tuple[dict[int, Array], Records] | None
        made = await self._dispatcher.overlapping.run(begin, priority, until)
        return made

    def _begin(
        self, number: int, planned: Planned, arrays: Mapping[int, Array], until: float | None, company: Company
    ) -> End | None:
        """Begin a request on the stream of a number; returns what ends it, or None if it has to go the general way."""
        ready = self._ready(number, planned, arrays, until, company)
        if ready is None:
            return None
        stream, launcher = self._dispatcher.streams[number], self._dispatcher.overlapping.launcher
        prepared, began, posted = ready.prepared, self._clock(), None
        try:
            if launcher is not None:
                posted = launcher.post(prepared, stream, ready.writes, ready.reads)
                wait = posted.check
                prepared.busy = True  # it is not enqueued yet
            else:
                wait = functools.partial(prepared.end, stream, ready.reads)
                prepared.begin(stream, ready.writes)
        except BaseException:
            if launcher is None:
                with contextlib.suppress(DeviceError):
                    prepared.end(stream, ())  # what was enqueued uses the memory
            ready.give_back()
            raise

        def end() -> tuple[dict[int, Array], Records]:
            try:
                wait()
                if posted is not None and company is Company.NOBODY_YET:
                    self._took_aside(planned, posted.seconds)
                return self._ended(planned, ready, (self._clock() - began) / 1e9)
            finally:
                ready.give_back()

        return end

    def _took_aside(self, planned: Planned, seconds: float) -> None:
        """Note how long a request took of which a thread did all, from its inputs to its results."""
        bound = planned.bound
        assert bound is not None
        if self._session.presets is not None:
            self._session.presets.took_generally(bound, seconds)
        self._usual[bound].took(seconds, single=False)

    def _ready(
        self, number: int, planned: Planned, arrays: Mapping[int, Array], until: float | None, company: Company
    ) -> Ready | None:
        """Return what a request beside others has to do, and has; None if it has to go the general way.

        Args:
            number: Of the stream whose commands use its memory; -1 if those are of none that others know.
        """
        session, bound = self._session, planned.bound
        assert bound is not None
        assert session.presets is not None
        if until is not None and until <= self._dispatcher.clock():
            return None
        if not HostBudget(self._model.tools.host_limit).fits(planned.results):
            return None
        lease = None
        if bound.plan.arena_nbytes:
            room = self._model.room(self._chunk.index, bound.plan.arena_nbytes)
            try:
                lease, waits = session.pool.acquire(bound.plan.arena_nbytes, number, room=room, brief=True)
            except OutOfDeviceMemory:
                return None  # others may give some back, or say that there is none
            if waits:
                lease.drop()
                return None
        ready = None
        try:
            arena = None if lease is None else lease.allocation
            alone = number == _NO_STREAM  # on a core of its own; the general way would keep all of them
            prepared = session.presets.find(bound, [arena], apart=False, company=company, now=alone)
            if prepared is not None and self._can(prepared[0], alone):
                writes = uploads(bound, [arena], arrays)
                arriving, reads = downloads(bound, self._dispatcher.streams[max(number, _STREAM)], [arena], arrays)
                ready = Ready(prepared[0], [arena], writes, reads, arriving, lease)
            return ready
        finally:
            if ready is None and lease is not None:
                lease.drop()

    def _can(self, prepared: Prepared, alone: bool) -> bool:
        """Whether launches can be carried out so: by a core alone, by a thread of the device's, or by the device while
        the event loop's thread does something else."""
        if alone:
            return prepared.single
        return prepared.begins if self._dispatcher.overlapping.launcher is None else prepared.runs

    def _ended(self, planned: Planned, ready: Ready, seconds: float) -> tuple[dict[int, Array], Records]:
        """Return the outcome of a request that was at work beside others, for so many seconds."""
        bound = planned.bound
        assert bound is not None
        self._session.check_stalled(bound, ready.memory, seconds)
        self._model.replayed(planned)
        self._session.counters.requests += 1
        return self._made(bound, 1, ready.arriving.take())

    def _ended_alone(self, planned: Planned, ready: Ready, seconds: float) -> tuple[dict[int, Array], Records]:
        """Do what `_ended()` does for a request that had a core of its own."""
        assert planned.bound is not None
        each, before = seconds / planned.bound.work, self._core_s
        self._core_s = each if before is None else before + (each - before) / 4
        return self._ended(planned, ready, seconds)

    def for_own_core(self, arrays: Mapping[int, Array]) -> Planned | None:
        """Return the plan of a request that had better have a core of its own now; None if it is none."""
        own_cores, presets = self._dispatcher.own_cores, self._session.presets
        planned = self._find(arrays, NOTHING) if presets is not None and own_cores.wanted else None
        if presets is None or planned is None or planned.bound is None:
            return None
        usual = self._usual.get(planned.bound)
        if usual is None or presets.is_long(planned.bound):
            return None
        if self._core_s is None:
            brief, seconds = usual.seconds <= BESIDE_S, usual.seconds * own_cores.cores
        else:  # what one took on the general way, beside those on cores of their own, says less
            seconds = self._core_s * planned.bound.work
            brief = seconds <= BESIDE_S
        return planned if own_cores.suits(seconds) and not brief else None  # the brief take turns

    async def on_own_core(
        self, planned: Planned, arrays: Mapping[int, Array], priority: int, until: float | None
    ) -> tuple[dict[int, Array], Records] | None:
        """Do what `attempt()` does, on a core of its own.

        Args:
            planned: What `for_own_core()` has returned.
        """

        def begin() -> OwnCoreWork | None:
            ready = self._ready(_NO_STREAM, planned, arrays, until, Company.OTHERS)
            if ready is None:
                return None
            return OwnCoreWork(ready, functools.partial(self._ended_alone, planned, ready), self._clock)

        made: tuple[dict[int, Array], Records] | None
        made = await self._dispatcher.own_cores.run(begin, priority, until)
        return made

    def took_generally(self, bound: BoundPlan, seconds: float, *, others: int = 0, is_step: bool = False) -> None:
        """Note how long a request took on the general way, from its inputs to its results.

        Args:
            others: How many there were beside it: then that is no more than a guess.
            is_step: Whether it was a step of a sequence.
        """
        usual, own = self._usual.get(bound), own_part(seconds / (1 + others))
        between = self._turns.between_ends(seconds, others)
        if usual is None:
            usual = self._usual[bound] = Usual(own)
        elif usual.guessed:  # the first of its shape may have been slow
            usual.together = min(usual.together, own)
        elif usual.seconds > self._most_s(bound, None) or (others and not usual.gains_beside):
            # Something else may have been in the way: after a while it is tried again.
            usual.together *= _FORGETS
        if between is not None:
            usual.beside += (between - usual.beside) / 4 if usual.beside else between
        if is_step and not self._was_briefer(self._latest_step(), self._usual[bound]):
            self._latest_step = weakref.ref(bound)

    def _was_briefer(self, bound: BoundPlan | None, than: Usual) -> bool:
        """Whether a request of a plan has run on its caller's thread, and took less than another is guessed to take."""
        usual = None if bound is None else self._usual.get(bound)
        return usual is not None and not usual.guessed and usual.seconds < than.seconds

    def attempt(
        self, arrays: Mapping[int, Array], until: float | None, *, kept: KeptState | None = None, on_loop: bool = True
    ) -> tuple[dict[int, Array], Records] | None:
        """Run a request and return what `Network.infer()` does; None if it goes the general way.

        Args:
            arrays: Checked inputs, by value id.
            until: Its deadline, by the loop's clock.
            kept: What the sequence keeps that it is a step of.
            on_loop: Whether this is the thread of the event loop.

        Raises:
            DeviceError: A command was refused, or failed.
            IndexOutOfRange: As for any request.
        """
        model, dispatcher = self._model, self._dispatcher
        if not dispatcher.alone:
            return None
        began = self._clock()
        planned = self._find(arrays, NOTHING if kept is None else kept.between, kept)
        if planned is None and kept is None:
            planned = self._make(arrays)
        if planned is None or planned.bound is None:
            return None
        bound = planned.bound
        late = until is not None and until <= dispatcher.clock()
        usual = self._usual_of(bound, kept)
        seconds = None if usual is None else usual.seconds
        way = choose_way(seconds, alone=True, late=late, most_s=self._most_s(bound, kept))
        if usual is None or not way.direct:
            return None
        if not HostBudget(model.tools.host_limit).fits(planned.results):
            return None
        if on_loop:
            self._turns.begin()
        if watched := dispatcher.gaps.watched:
            dispatcher.gaps.begin()
        try:
            outcome = self._run(bound, usual, arrays) if kept is None else self._step(bound, usual, arrays, kept)
        except BaseException:
            dispatcher.gaps.end()
            raise
        if outcome is None:
            return None
        if kept is None:
            self._note(bound, usual)
        if watched:
            dispatcher.gaps.end()
        if on_loop:
            self._turns.took((self._clock() - began) / 1e9)
        model.replayed(planned)
        dispatcher.rest(on_loop=on_loop)
        return outcome.last, outcome.records

    def _make(self, arrays: Mapping[int, Array]) -> Planned | None:
        """Return a new plan, made by recipe and bound, where it can be prepared at once; None if that is not so, or if
        the request goes the general way."""
        model, presets, brief = self._model, self._session.presets, self._brief
        if presets is None or not presets.prepares_at_once or brief is None or model.one_plan.locked():
            return None
        signature = self._signature(arrays, NOTHING)
        if signature is None or model.plans.knows(signature):
            return None
        values = {id: arrays[id] for id in model.program.value_inputs}
        planned = model.plans.at_once(signature, layouts_of(model.program, arrays), values)
        if planned is None:
            return None
        planned.fresh = True
        model.session.counters.plans += 1
        bound = model.bind_at_once(planned)
        if bound is None or bound.copies:
            return None
        self._usual[bound] = Usual(brief.seconds * max(1.0, bound.work / brief.work))
        return planned

    def _note(self, bound: BoundPlan, usual: Usual) -> None:
        """Note that a plan has run on its caller's thread: new ones are guessed to take as long, for as much work."""
        presets, brief = self._session.presets, self._brief
        if presets is None or not presets.prepares_at_once or usual.seconds > self._most_s(bound, None):
            return
        if brief is None or bound.work >= brief.work:
            self._brief = _Brief(max(1, bound.work), usual.seconds)  # of what the host knows, nothing is the device's

    def _usual_of(self, bound: BoundPlan, kept: KeptState | None) -> Usual | None:
        """Return for how long a plan keeps who waits for it; of one of a sequence that has not run here by the step
        before it."""
        usual, presets = self._usual.get(bound), self._session.presets
        if kept is None or presets is None or not (usual is None or usual.guessed) or not presets.shares(bound):
            return usual
        before = self._latest_step()
        known = None if before is None else self._usual.get(before)
        if known is not None and (usual is None or self._was_briefer(before, usual)):
            usual = self._usual[bound] = Usual(known.seconds)
        return usual

    def _enqueued(self, launches: int, seconds: float) -> None:
        """Note for how long launches have kept this thread: as long as they would on the general way."""
        if launches >= _SEVERAL:
            least = self._least_launch_s
            each = min(max(seconds / launches, least), 2 * least)
            self._launch_s += (each - self._launch_s) / _SEVERAL

    def _most_s(self, bound: BoundPlan, kept: KeptState | None) -> float:
        """Return for how long a request may keep its caller's thread; at first longer, of a new family of plans."""
        presets = self._session.presets
        if kept is not None and presets is not None and presets.tries(bound):
            return TRIAL_S
        return may_keep_s(len(bound.steps), self._launch_s)

    def _step(
        self, bound: BoundPlan, usual: Usual, arrays: Mapping[int, Array], kept: KeptState
    ) -> Iterated | None:
        """Run a step of a sequence, and make the plan of the next while the device is at work."""
        pool, foresight = self._session.pool, self._model.foresight
        given = tuple([arrays[id].shape for id in self._model.program.inputs if id in arrays])

        def meanwhile(until_s: float, memory: Sequence[Any]) -> None:
            if foresight is not None and not kept.last:
                following = foresight.guess_now(kept, given, bound, until_s)
                if until_s and following is not None and self._session.presets is not None:
                    self._session.presets.foresee(following, memory)

        try:
            for slot, nbytes in kept.missing(bound.plan.after.kept):
                kept.allocated(slot, pool.acquire(nbytes, _STREAM).lease)
            outcome = self._run(bound, usual, arrays, kept.buffers(), meanwhile=meanwhile)
            if outcome is not None:
                kept.succeeded(bound.plan.after.kept, bound.left, ())
                self._latest_step = weakref.ref(bound)
            return outcome
        except OutOfDeviceMemory:
            return None  # others may give some back, or say that there is none
        finally:
            kept.failed(())  # does nothing to a step that has succeeded

    def iterate(
        self, request: int, arrays: Mapping[int, Array], kept: KeptState | None, budget: HostBudget, loop: Loop | None
    ) -> Iterated | None:
        """Run one iteration of a node of a request, whose body this is, or some; None if it goes the general way.

        Args:
            arrays: The inputs that are not kept, by value id.
            kept: What it finds on the device; nothing of it changes.
            budget: What the request may make on the host.
            loop: The iterations that are to come, where there may be more than one.

        Raises:
            DeviceError: A command was refused, or failed.
            IndexOutOfRange: As for any request.
        """
        planned = self._find(arrays, NOTHING if kept is None else kept.between)
        if planned is None or planned.bound is None or not budget.fits(planned.results):
            return None
        usual = self._usual.get(planned.bound)
        if usual is None or not self._may_keep(request, usual):
            return None
        own = None
        if loop is not None and not usual.guessed:
            loop = loop._replace(most=min(loop.most, int(TURN_S / max(usual.seconds, usual.latest))))
            if loop.most > 1 and budget.fits(planned.results * (loop.most + 1)):
                own = own_inputs(self._model.program, planned.plan, arrays, loop)
        memory = () if kept is None else kept.buffers()
        given, loop = (arrays, None) if own is None else (own, loop)
        with self._turns.part():
            outcome = self._run(planned.bound, usual, given, memory, whole=False, loop=loop)
        if outcome is not None:
            self._model.replayed(planned)
        return outcome

    def _may_keep(self, request: int, usual: Usual) -> bool:
        """Whether a part of a request may keep the loop's thread now: it is brief, and the device has nothing else to
        do; where other requests are there, if all are answered sooner so."""
        dispatcher = self._dispatcher
        if not dispatcher.nothing_enqueued(request) or dispatcher.frugal(request):
            return False
        return choose_way(usual.seconds, alone=dispatcher.in_flight == 1 or usual.gains_beside).direct

    def carry_out(
        self, request: int, place: int, bound: BoundPlan, memory: list[Any], present: Mapping[int, Array]
    ) -> tuple[dict[int, Array], Lease | None] | None:
        """Carry out one of a request's several chunks; None if it goes the general way.

        Args:
            place: The chunk's.
            memory: Of all chunks; what this one uses comes to its place.
            present: What the host has of the request's values.

        Returns:
            What the host gets of it, and the lease of its memory, which later chunks may read.

        Raises:
            DeviceError: A command was refused, or failed.
            IndexOutOfRange: As for any request.
        """
        session, nbytes, usual = self._session, bound.plan.arena_nbytes, self._usual.get(bound)
        if usual is None or not self._may_keep(request, usual):
            return None
        assert session.presets is not None
        lease = None
        if nbytes:
            try:
                lease = session.pool.acquire(nbytes, _STREAM, room=self._model.room(place, nbytes), brief=True).lease
            except OutOfDeviceMemory:
                return None  # others may give some back, or say that there is none
        before, fetched = memory[place], None
        memory[place] = None if lease is None else lease.allocation
        try:
            prepared = session.presets.find(bound, memory, apart=False, company=Company.NOBODY)
            if prepared is not None and prepared[0].runs:
                with self._turns.part():
                    _, fetched, _ = self._finish(prepared[0], bound, memory, present, usual, None, None)
        finally:
            if fetched is None:
                memory[place] = before
                if lease is not None:
                    lease.drop()
        return None if fetched is None else (fetched, lease)

    def _find(self, arrays: Mapping[int, Array], before: Between, kept: KeptState | None = None) -> Planned | None:
        """Return the plan for such inputs, if there is one and nothing has to be done off the loop for it; of the step
        of a sequence also one that was made before the step came."""
        signature = self._signature(arrays, before)
        planned = self._model.plans.find(self._chunk, signature)
        if planned is None and kept is not None:
            planned = self._model.foreseen(kept, signature)
        return None if planned is None or planned.bound is None or planned.bound.copies else planned

    def _signature(self, arrays: Mapping[int, Array], before: Between) -> Any:
        """Return what the plan for such inputs is kept under; None if none is."""
        program = self._model.program
        given = tuple([arrays[id].shape for id in program.inputs if id in arrays])
        return step_signature(given, contents_of([arrays[id] for id in program.value_inputs]), before)

    def _run(
        self,
        bound: BoundPlan,
        usual: Usual,
        arrays: Mapping[int, Array],
        kept: Sequence[Any] = (),
        *,
        whole: bool = True,
        meanwhile: Callable[[float, Sequence[Any]], None] | None = None,
        loop: Loop | None = None,
    ) -> Iterated | None:
        """Carry out a plan; None if its launches are not prepared, or there is no memory.

        Args:
            usual: How long it takes.
            kept: The memory of what lies on the device already.
            whole: Whether that is all of a request.
            meanwhile: What to do while the device is at work, for so many seconds, with this memory.
            loop: How often it is carried out, as iterations whose inputs are `own_inputs()`.
        """
        session, plan = self._session, bound.plan
        assert session.presets is not None
        lease = None
        arena = session.pool.at_hand(plan.arena_nbytes) if plan.arena_nbytes else None
        if arena is None and plan.arena_nbytes:
            room = self._model.room(self._chunk.index, plan.arena_nbytes)
            try:
                lease = session.pool.acquire(plan.arena_nbytes, _STREAM, room=room, brief=True).lease
            except OutOfDeviceMemory:
                return None  # others may give some back, or say that there is none
            arena = lease.allocation
        try:
            memory = [arena, *kept]
            prepared = session.presets.find(bound, memory, apart=False, company=Company.NOBODY)
            if prepared is None or not prepared[0].runs:
                return None
            session.counters.requests += whole
            times, fetched, collected = self._finish(prepared[0], bound, memory, arrays, usual, meanwhile, loop)
        finally:
            if lease is not None:
                lease.drop()
        return Iterated(times, *self._made(bound, times, fetched), collected)

    def _made(
        self, bound: BoundPlan, times: int, fetched: Mapping[int, Array]
    ) -> tuple[dict[int, Array], Records]:
        """Count what a plan has done so many times; returns the outputs of the last, and what became of each node."""
        counters = self._session.counters
        counters.launches += times * len(bound.plan.steps)
        counters.skipped += times * bound.plan.skipped
        records: Records = [bound.records] if isinstance(bound.records, Deferred) else list(bound.records)
        stays = bound.left.outputs  # on the device
        return {id: fetched[id] for id in self._model.program.outputs if id not in stays}, records

    def _finish(
        self,
        prepared: Prepared,
        bound: BoundPlan,
        memory: Sequence[Any],
        arrays: Mapping[int, Array],
        usual: Usual,
        meanwhile: Callable[[float, Sequence[Any]], None] | None,
        loop: Loop | None,
    ) -> tuple[int, dict[int, Array], Mapping[int, Array]]:
        """Copy, launch, copy back, once or as often as a loop goes on.

        Returns:
            How often, what the host gets of the last time, when it is there, and what is collected of each.
        """
        writes, stream = uploads(bound, memory, arrays), self._dispatcher.streams[_STREAM]
        single = prepared.single and usual.prefers_single
        collected: Mapping[int, Array] = {}
        times, beside = 1, 0
        began = self._clock()
        if loop is None and prepared.begins:
            try:
                prepared.begin(stream, writes)
            except DeviceError:
                with contextlib.suppress(DeviceError):
                    prepared.end(stream, ())  # what was enqueued uses the memory
                raise
            begun, reads = self._clock(), list[Transfer]()
            try:  # what can be done beside the device is
                arriving, reads = downloads(bound, stream, memory, arrays)
                arriving.lay()
                if meanwhile is not None:
                    self._enqueued(len(bound.steps), (begun - began) / 1e9)
                    meanwhile(usual.seconds, memory)
                    beside = self._clock() - begun  # it may be longer than the device is at work
            finally:
                prepared.end(stream, reads)
        else:
            arriving, reads = downloads(bound, stream, memory, arrays)
            if loop is not None:
                again, collected = linked(self._model.program, bound.plan, arrays, writes, arriving, loop)
                times = prepared.repeat(stream, writes, reads, again, single=single)
            else:
                prepared.run(stream, writes, reads, single=single)
            if meanwhile is not None:
                begun = self._clock()
                meanwhile(0.0, memory)
                beside = self._clock() - begun
        took = (self._clock() - began - beside) / 1e9
        self._session.check_stalled(bound, memory, took)
        took /= times
        if self._session.presets is not None:
            self._session.presets.took(bound, took)
        usual.took(took, single=single)
        return times, arriving.take(), collected


def may_be_direct(model: CompiledModel) -> bool:
    """Whether anything of a model may run so at all: its launches are prepared sooner or later."""
    session = model.session
    return (
        session.options.uses("direct")
        and session.presets is not None
        and session.collector is None  # it has timers, which only the loop's thread may set
    )


def can_be_direct(model: CompiledModel) -> bool:
    """Whether whole requests of a model may: it is one chunk."""
    chunks = model.program.chunks
    return may_be_direct(model) and len(chunks) == 1 and chunks[0].control is None
