"""A program on a device: its constants there, its plans, and one inference after the other or many at once.

Concurrent inferences of one network share its program, kernels, constants and plans, all of which never change once
made, and nothing else that a result could depend on. What is remembered of them is how large their arenas were: it
decides how large new blocks of memory are, and nothing of what is in them.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

import attrs

from asyncrt.arguments import check_deadline
from asyncrt.errors import AsyncrtError, DeviceError, OutOfDeviceMemory
from asyncrt.events import Event
from asyncrt.graph.ir import Chunk, Program, ProgramNode
from asyncrt.graph.mapped import check, used
from asyncrt.kernels.resident.store import cache_folder
from asyncrt.kernels.resident.weights import Resident, Stored, WeightsCache, WeightsStatistics
from asyncrt.layout import Array, Layout
from asyncrt.memory.buffer import Lease
from asyncrt.memory.host import HostBudget, refused
from asyncrt.memory.pool import Acquired, Room
from asyncrt.memory.predictor import SIZES, ShapePredictor
from asyncrt.runtime.cooperative import Slices, in_turns, off_loop
from asyncrt.runtime.execute.device_copies import Moves
from asyncrt.runtime.execute.enqueue import host_copies, short_copies
from asyncrt.runtime.execute.kept_state import KeptState
from asyncrt.runtime.execute.route import Enqueueing
from asyncrt.runtime.execute.specialise import OFTEN, Specialiser
from asyncrt.runtime.loop.waiting import RunAgain, internal
from asyncrt.runtime.plan.between_steps import NOTHING
from asyncrt.runtime.plan.bound_plan import BoundPlan, bind
from asyncrt.runtime.plan.chunk_plan import ChunkPlan, Deferred, NodeRecord, Records, State, start_state
from asyncrt.runtime.plan.plan_cache import KEYED_BYTES, PlanCounts, Planned, Plans
from asyncrt.runtime.plan.planner import prepare_in_slices
from asyncrt.runtime.plan.tools import Tools

from .control_flow import Body, carry_out
from .inputs import Checked, layouts_of
from .next_plan import Foresight, step_signature
from .session import Session

_REQUESTS = itertools.count(1)
_T = TypeVar("_T")


class Network:
    """A program on a device.

    Args:
        program: What to run.
        session: The runtime's.

    Attributes:
        last: What became of the nodes of the inference that finished last, for `explain()`.
    """

    def __init__(self, program: Program, session: Session) -> None:
        self.program, self.session = program, session
        options = session.options
        self.checked = Checked(program, session.tools.host_limit)
        self.last: Records | None = None
        self._dispatcher, self._pool, self._impls = session.dispatcher, session.pool, session.kernels
        # Answers are numbered by this program's kinds of node.
        self._tools = attrs.evolve(session.tools, memo=OrderedDict())
        self._options, self._counters, self._specialiser = options, session.counters, session.specialiser
        self._enqueueing = Enqueueing(program, session.dispatcher, session.presets)
        self.weights = WeightsCache(
            session.memory_device, session.uploads, self._constant,
            folder=cache_folder(options) if options.page_constants and options.disk_cache else None,
            used=used, limit=options.weights_bytes, let_go=self._unbind_one,
        )  # fmt: skip
        session.dispatcher.when_lost.add(self.weights.fail)
        #: What nodes with subgraphs run, by node.
        self._inner: dict[int, tuple[Network, ...]] = {}
        for node in program.nodes:
            programs = [sub.program for sub in node.subgraphs if sub.program is not None]
            if programs:
                self._inner[node.id] = tuple(Network(p, session) for p in programs)
        self._plans = Plans(
            program,
            self._tools,
            replay=options.replay,
            recipes=options.recipes and options.replay,  # what does not replay is what replaying is compared with
            entries=options.plan_entries,
            nbytes=options.plan_bytes,
        )
        bind_ahead = self._bound if options.weights_bytes is None else None
        self._foresight = Foresight(program, self._plans, session.dispatcher, bind_ahead) if options.foresee else None
        #: A second plan can often be made by the recipe of the first; and of equal ones, one is enough.
        self._one_plan = asyncio.Lock()
        #: The sizes of the arenas lately, by chunk; of equal ones in a row only the first.
        self._sizes: dict[int, ShapePredictor] = {}

    def __repr__(self) -> str:
        return f"<Network {self.program!r}, {len(self._plans)} plans, {self.weights!r}>"

    def _constant(self, id: int) -> Array:
        constant = self.program.values[id].constant
        assert constant is not None
        check(constant)
        return constant

    # Loading.

    async def warm(self) -> None:
        """Bring the constants to the device, and build the kernels that likely shapes need."""
        for network in self._inside():
            await network.warm()
        first = self.program.chunks[0]
        if first.control is not None:
            return  # what comes after it depends on what it gives
        plans = await asyncio.to_thread(self._plans.likely)
        for plan in plans:  # one after the other, so that no more than one needs is in use at once
            await self.weights.ensure(plan.packings)
        await self._impls.ensure(k for plan in plans for k in plan.kernels)

    # Inference.

    @property
    def tools(self) -> Tools:
        """What planning knows of the device."""
        return self._tools

    def number(self) -> int:
        """Return a number for a request; no other has it."""
        return next(_REQUESTS)

    def until(self, deadline: float | None) -> float | None:
        """Return when a deadline is by the loop's clock that is given in seconds from now."""
        return None if deadline is None else self._dispatcher.clock() + check_deadline(deadline)

    async def infer(
        self,
        arrays: Mapping[int, Array],
        priority: int = 0,
        *,
        kept: KeptState | None = None,
        request: int | None = None,
        deadline: float | None = None,
    ) -> tuple[dict[int, Array], Records]:
        """Run once. May be cancelled at every await: memory comes back when the device has passed its work.

        Args:
            arrays: Checked inputs, by value id.
            priority: Lower goes first.
            kept: What a sequence keeps; inputs and outputs of it stay on the device.
            request: Its `number()`, if the caller wants to know it.
            deadline: When it is too late to launch it, by the loop's clock.

        Returns:
            The outputs by value id, and what became of each node.
        """
        if request is None:
            request = self.number()
        tracer = self._dispatcher.tracer
        if tracer is not None:
            with tracer.request(request):
                return await self._infer(request, arrays, priority, deadline, kept)
        return await self._infer(request, arrays, priority, deadline, kept)

    async def _infer(
        self,
        request: int,
        arrays: Mapping[int, Array],
        priority: int,
        deadline: float | None,
        kept: KeptState | None,
    ) -> tuple[dict[int, Array], Records]:
        self._counters.requests += 1

        async def work() -> tuple[dict[int, Array], Records]:
            outcome = await self.run(request, arrays, kept)
            if self._dispatcher.checks is not None:
                self._dispatcher.checks.gives_back(request, arrays.values())
            return outcome

        return await self._admitted(request, priority, deadline, work)

    async def _admitted(
        self, request: int, priority: int, deadline: float | None, work: Callable[[], Awaitable[_T]]
    ) -> _T:
        """Do a request's work when it is its turn; once more where it is told to run again."""
        dispatcher = self._dispatcher
        try:
            again = False
            while True:
                try:
                    await (dispatcher.begin_again(request) if again else dispatcher.admit(request, priority, deadline))
                    return await work()
                except RunAgain:
                    again = True
                    self._pool.trim()
        except asyncio.CancelledError:
            self._counters.cancelled += 1
            raise
        except Exception as error:
            self._counters.failed += 1
            if isinstance(error, DeviceError):
                dispatcher.ask_device()
            if isinstance(error, AsyncrtError):
                raise
            if isinstance(error, MemoryError):
                raise refused(f"a request of '{self.program.name}'", error) from error
            raise internal(error, f"request {request} failed") from error
        finally:
            dispatcher.end(request)

    async def move(self, moves: Moves, priority: int = 0) -> tuple[list[Lease], tuple[Event, ...]]:
        """Allocate memory, and fill it with what lies elsewhere on the device; see `Moves`.

        Returns:
            Leases of the new memory, and the events after which it may be used.
        """
        request = self.number()

        async def work() -> tuple[list[Lease], tuple[Event, ...]]:
            kernels = await self._impls.ensure(moves.kernels)
            return await moves.carry_out(request, self._dispatcher, kernels, self._acquire)

        return await self._admitted(request, priority, None, work)

    async def run(
        self, request: int, arrays: Mapping[int, Array], kept: KeptState | None = None, outer: HostBudget | None = None
    ) -> tuple[dict[int, Array], Records]:
        """Run once as part of an admitted request, which for a subgraph is that of the node it is in.

        Args:
            outer: What that request may make on the host, for a subgraph.
        """
        leases: list[Lease] = []
        events: list[Event] = []
        budget = HostBudget(self._tools.host_limit) if outer is None else outer.inner()
        try:
            return await self._run(request, arrays, kept, leases, events, budget)
        finally:
            if kept is not None:
                kept.failed(events)  # of a step that has succeeded nothing is left to be given up
            # Memory belongs to the events, not to this task: whatever ended it, the blocks are free again when the
            # streams have passed what was enqueued.
            for lease in leases:
                lease.drop(after=events)

    async def _run(
        self,
        request: int,
        arrays: Mapping[int, Array],
        kept: KeptState | None,
        leases: list[Lease],
        events: list[Event],
        budget: HostBudget,
    ) -> tuple[dict[int, Array], Records]:
        dispatcher, program = self._dispatcher, self.program
        before = NOTHING if kept is None else kept.between
        values = {id: arrays[id] for id in program.value_inputs}
        # Of a step, what is kept says which inputs are not among the arrays.
        given = tuple([arrays[id].shape for id in program.inputs if id in arrays])
        signature = step_signature(given, _contents(values.values()), before)
        state: State | None = None
        left = before
        #: What the host has so far: the inputs, what was read, and what nodes with subgraphs made.
        present = dict(arrays)
        #: What has come since `state` and later plans start from.
        known: dict[int, Array] = {}
        shapes: dict[int, Layout] = {}
        arenas: list[Any] = [None] * len(program.chunks)
        records: Records = []
        fetched: dict[int, Array] = {}
        plans = self._plans.frugal if dispatcher.frugal(request) else self._plans
        for chunk in program.chunks:
            node = chunk.control
            if node is not None:
                fetched, record = await self._control(request, node, present, state, budget)
                records.append(record)
                made = dict(zip(node.outputs, record.outputs, strict=True))
                shapes.update(made)
                signature = None if signature is None else (signature, tuple([x.shape for x in made.values()]))
            else:
                planned, new = plans.find(chunk, signature), False
                if planned is None and kept is not None and plans is self._plans:
                    planned = self._foreseen(kept, signature)
                    new = planned is not None
                if planned is None:
                    async with self._one_plan:
                        planned = plans.find(chunk, signature)  # made meanwhile, by a request like this one
                        if planned is None:
                            new = True
                            if chunk.index == 0:
                                layouts = layouts_of(program, arrays, before.layouts)
                                work = plans.first(signature, layouts, values, before.tensors, budget)
                            else:
                                if state is None:
                                    layouts = layouts_of(program, arrays, before.layouts)
                                    state = start_state(program, layouts, values, before.tensors)
                                work = plans.later(chunk, signature, state.advanced(shapes, known), budget)
                            planned = await self._plan(request, chunk, work)
                if not new:
                    self._counters.replays += 1
                    if self._specialiser is not None:
                        self._specialise(planned, self._specialiser)
                plan, bound = planned.plan, planned.bound or await self._bind(planned)
                if plan.needs_device:
                    stream = await dispatcher.place(request, bound.work)
                    lease = await self._lease(request, chunk.index, plan.arena_nbytes, stream, leases)
                    waits: tuple[Event, ...] = ()
                    if lease is not None:
                        arenas[chunk.index], waits = lease.lease.allocation, lease.waits
                    buffers = arenas
                    if kept is not None:
                        for slot, nbytes in kept.missing(plan.after.kept):
                            acquired = await self._acquire(request, nbytes, stream)
                            kept.allocated(slot, acquired.lease)
                            waits += acquired.waits
                        waits += kept.after
                        buffers = arenas + kept.buffers()
                    dispatcher.check_deadline(request)
                    self._check_results(planned, budget)
                    arriving = await self._enqueueing.enqueue(request, bound, stream, waits, present, buffers, events)
                    events.append(dispatcher.launched(request, stream, bound))
                    if kept is None or self._foresight is None:
                        await dispatcher.passed(request)
                    else:
                        with self._foresight.guessing(kept, given, bound):
                            await dispatcher.passed(request)
                    if dispatcher.checks is not None:
                        dispatcher.checks.looks_at(request, arriving.read)
                    fetched = arriving.take()
                else:
                    self._check_results(planned, budget)
                    fetched = short_copies(plan, present)
                if bound.copies:
                    large = functools.partial(host_copies, bound.copies, present)
                    fetched.update(await off_loop(planned.results, large))
                self._counters.launches += len(plan.steps)
                self._counters.skipped += plan.skipped
                if isinstance(bound.records, Deferred):
                    records.append(bound.records)
                else:
                    records += bound.records
                state, left, known, shapes = plan.after, bound.left, {}, {}
                del bound  # its constants may make room for those of the next chunk
            present.update(fetched)
            if chunk.decides:
                known.update((v, fetched[v]) for v in chunk.decides)
                if signature is not None:
                    contents = _contents(fetched[v] for v in chunk.decides)
                    signature = None if contents is None else (signature, contents)
        if kept is not None and state is not None:
            kept.succeeded(state.kept, left, events)
        return {v: fetched[v] for v in program.outputs if v not in before.outputs}, records

    def _check_results(self, planned: Planned, budget: HostBudget) -> None:
        """Raise if the host may not have what a chunk gives: one tensor may be many outputs."""
        if not budget.fits(planned.results):
            budget.check(planned.results, f"'{self.program.name}': its results")

    async def _lease(
        self, request: int, chunk: int, nbytes: int, stream: int, leases: list[Lease]
    ) -> Acquired | None:
        """Lease a chunk's arena."""
        if not nbytes:
            return None
        room = self._room(chunk, nbytes) if self._options.preallocate else None
        acquired = await self._acquire(request, nbytes, stream, room, brief=True)
        leases.append(acquired.lease)
        return acquired

    async def _acquire(
        self, request: int, nbytes: int, stream: int, room: Room | None = None, *, brief: bool = False
    ) -> Acquired:
        """Lease memory. If it is short, wait for what others give back; raise if nobody will."""
        asked = False
        while True:
            frugal = self._dispatcher.frugal(request)
            try:
                return self._pool.acquire(nbytes, stream, room=None if frugal else room, exact=frugal, brief=brief)
            except OutOfDeviceMemory as error:
                short = error
            if not asked:
                # It may have been the device that refused, because it is lost: then nothing would come back.
                asked = True
                self._dispatcher.ask_device()
            await self._dispatcher.memory(request, short)

    def _room(self, chunk: int, nbytes: int) -> Room:
        """Return what says how large a new block for this arena should be, going by the sizes before it.

        Requests of the same size, one after the other or at once, are no growth and count once.
        """
        sizes = self._sizes.get(chunk)
        if sizes is None:
            sizes = self._sizes[chunk] = ShapePredictor(SIZES)
        if sizes.last != (nbytes,):
            sizes.record((nbytes,))
        return lambda: (sizes.predict(bits=8) or (0,))[0]

    async def _control(
        self, request: int, node: ProgramNode, present: Mapping[int, Array], state: State | None, budget: HostBudget
    ) -> tuple[dict[int, Array], NodeRecord]:
        """Carry out a node with subgraphs; returns its outputs, and what became of it."""

        def value(id: int) -> Array:
            array = present.get(id)
            if array is None:
                array = self.program.values[id].constant
            if array is None and state is not None:
                array = state.values[id]
            assert array is not None, self.program.values[id].name
            return array

        bodies = [
            Body(
                sub.label,
                network.program,
                {id: value(outer) for id, outer in sub.taken},
                functools.partial(network.run, request, outer=budget),
                network.output_layouts,
            )
            for sub, network in zip(node.subgraphs, self._inner[node.id], strict=True)
        ]
        return await carry_out(node, bodies, value, budget, functools.partial(self._dispatcher.iterates, request))

    async def output_layouts(self, arrays: Mapping[int, Array]) -> list[Layout | None]:
        """Return the outputs' layouts for these inputs as far as they are known without running anything."""
        program = self.program
        state = start_state(program, layouts_of(program, arrays), {id: arrays[id] for id in program.value_inputs})
        if program.chunks[0].control is None:
            with contextlib.suppress(AsyncrtError):  # what never runs need not fit
                state = (await in_turns(prepare_in_slices(program, program.chunks[0], state, self._tools))).after
        return [state.layouts[id] for id in program.outputs]

    # Plans.

    def _foreseen(self, kept: KeptState, signature: Any) -> Planned | None:
        """Return the plan of a step that was guessed while the device worked on the one before."""
        guessed = None if self._foresight is None else self._foresight.take(kept, signature)
        if guessed is None:
            return None
        self._counters.plans += 1
        return self._plans.keep_made(signature, *guessed)

    async def _plan(self, request: int, chunk: Chunk, work: Slices[Planned]) -> Planned:
        """Return the plan when it is made, a slice in each turn of the loop."""
        self._counters.plans += 1
        tracer = self._dispatcher.tracer
        with contextlib.nullcontext() if tracer is None else tracer.planning(request, chunk.index):
            return await in_turns(work)

    async def _bind(self, planned: Planned) -> BoundPlan:
        constants = await self.weights.ensure(planned.plan.packings)
        kernels = await self._impls.ensure(planned.plan.kernels)
        bound = planned.bound = self._bound(planned.plan, kernels, constants)
        return bound

    def _bound(
        self, plan: ChunkPlan, kernels: Mapping[Any, Any], constants: Mapping[Stored, Resident]
    ) -> BoundPlan:
        if self._specialiser is None:
            return bind(plan, kernels, constants)
        return bind(plan, kernels, constants, self._specialiser.kernel, self._specialiser.generation)

    def _specialise(self, planned: Planned, specialiser: Specialiser) -> None:
        """Ask for specialised kernels now and then, and bind the plan to those that have come."""
        bound = planned.bound
        if bound is None:
            return
        planned.replays += 1
        if planned.replays % OFTEN == 0:
            specialiser.saw(bound, OFTEN)
        if bound.generation != specialiser.generation:
            planned.bound = self._bound(bound.plan, bound.kernels, bound.constants)

    def _unbind_one(self) -> bool:
        """Let go of what the plan unused longest is bound to, if one is; it is bound again when it is used again."""
        planned = self._plans.unused()
        if planned is not None:
            planned.bound = None
        return planned is not None

    def close(self) -> None:
        """Give the constants back; the device must have passed all requests."""
        for network in self._inside():
            network.close()
        self._plans.clear()
        self.weights.close()
        self._dispatcher.when_lost.discard(self.weights.fail)

    @property
    def lets_go(self) -> bool:
        """Whether it is closed, but the device not done with bringing its constants."""
        return self.weights.uploading or any(network.lets_go for network in self._inside())

    def device_closed(self) -> None:
        """The device was closed: give everything back."""
        self.close()
        for network in self._inside():
            network.device_closed()
        self.weights.device_closed()

    def weights_statistics(self) -> list[WeightsStatistics]:
        """Return the counts of its constants on the device, and those of each subgraph."""
        inside = [s for network in self._inside() for s in network.weights_statistics()]
        return [self.weights.statistics(), *inside]

    def plan_counts(self) -> PlanCounts:
        """Return how many plans there are, and how some were made; those of subgraphs included."""
        own = PlanCounts(len(self._plans), self._plans.by_recipe, self._foresight.taken if self._foresight else 0)
        return PlanCounts(*map(sum, zip(own, *(network.plan_counts() for network in self._inside()), strict=True)))

    def _inside(self) -> list[Network]:
        return [network for networks in self._inner.values() for network in networks]


def _contents(arrays: Iterable[Array]) -> tuple[Any, ...] | None:
    """Return what to compare values by; None if they are too large to be worth it."""
    arrays = list(arrays)
    if sum(a.nbytes for a in arrays) > KEYED_BYTES:
        return None
    return tuple([(a.shape, a.tobytes()) for a in arrays])
