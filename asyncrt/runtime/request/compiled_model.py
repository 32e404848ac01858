"""A program on a device, with its constants, its kernels and its plans.

Concurrent inferences of one model share its program, kernels, constants and plans, none of which changes once made;
they share nothing else that a result could depend on. Only the sizes of past arenas are remembered: they decide how
large new blocks of memory are, never what is in them.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import attrs
import numpy as np

from asyncrt.devices.base import GrowsMemory
from asyncrt.errors import AsyncrtError, OutOfDeviceMemory, RuntimeClosedError
from asyncrt.graph.ir import Chunk, Program
from asyncrt.graph.reading.mapped import check, used
from asyncrt.kernels.resident.store import cache_folder
from asyncrt.kernels.resident.weights import Resident, Stored, WeightsCache, WeightsStatistics
from asyncrt.layout import Array, Layout
from asyncrt.loops import end
from asyncrt.memory.buffer import Lease
from asyncrt.memory.host import HostBudget
from asyncrt.memory.pool import Acquired, Room
from asyncrt.memory.predictor import SIZES, ShapePredictor
from asyncrt.runtime.cooperative import Slices, in_turns
from asyncrt.runtime.execute.enqueue import ChunkEnqueuer
from asyncrt.runtime.execute.kept_state import KeptState
from asyncrt.runtime.execute.specialise import OFTEN
from asyncrt.runtime.plan.bound_plan import BoundPlan, bind
from asyncrt.runtime.plan.chunk_plan import ChunkPlan, start_state
from asyncrt.runtime.plan.plan_cache import PlanCounts, Planned, Plans
from asyncrt.runtime.plan.planner import prepare_in_slices
from asyncrt.runtime.plan.tools import Tools, new_memo

from .inputs import Checked, layouts_of
from .linked import Iterated, Loop
from .next_plan import Foresight
from .session import Session
from .warming import Warming

_log = logging.getLogger("asyncrt")


class Timed(Protocol):
    """Wants to know how long requests take, and runs those that are brief."""

    def took_generally(self, bound: BoundPlan, seconds: float, *, others: int = 0, is_step: bool = False) -> None:
        """Note how long a plan took, from its inputs to its results, beside so many other requests."""
        ...

    def is_brief(self, bound: BoundPlan) -> bool:
        """Whether it is worth it to wait until such a request has ended that goes the general way."""
        ...

    def iterate(
        self, request: int, arrays: Mapping[int, Array], kept: KeptState | None, budget: HostBudget, loop: Loop | None
    ) -> Iterated | None:
        """Run one iteration of a node at once, or some of a loop's, if they are brief and nothing is enqueued; else
        return None."""
        ...


class Pieces(Protocol):
    """Runs chunks of a model that has several."""

    def took_generally(self, bound: BoundPlan, seconds: float, *, others: int = 0, is_step: bool = False) -> None:
        """Note how long a plan took, from what goes up to what is read, beside so many other requests."""
        ...

    def carry_out(
        self, request: int, place: int, bound: BoundPlan, memory: list[Any], present: Mapping[int, Array]
    ) -> tuple[dict[int, Array], Lease | None] | None:
        """Carry out a chunk at once, if it is brief and nothing is enqueued; else return None."""
        ...


class CompiledModel:
    """A program on a device.

    Args:
        program: What to run.
        session: The runtime's.

    Attributes:
        checked: Looks at the inputs of requests.
        plans: By signature.
        one_plan: Held while a plan is made. The next can often be made by the recipe of the first, and of two equal
            ones only one is made.
        foresight: Makes the plan of a sequence's next step; None where nobody does.
        enqueuer: Enqueues its chunks.
        inner: What nodes with subgraphs run, by node.
        timed: Is told how long requests take; None where nobody wants to know.
        pieces: Runs its chunks, where it has several; None where nobody does.
    """

    timed: Timed | None = None
    pieces: Pieces | None = None

    def __init__(self, program: Program, session: Session) -> None:
        self.program, self.session = program, session
        options = session.options
        self.checked = Checked(program, session.tools.host_limit)
        self._dispatcher, self._pool, self._impls = session.dispatcher, session.pool, session.kernels
        # Answers are numbered by this program's kinds of node.
        self._tools = attrs.evolve(session.tools, memo=new_memo())
        self._counters, self._specialiser = session.counters, session.specialiser
        self._preallocates = options.uses("preallocate")
        self.enqueuer = ChunkEnqueuer(program, session.dispatcher, session.presets)
        self.inner: dict[int, tuple[CompiledModel, ...]] = {}
        for node in program.nodes:
            programs = [sub.program for sub in node.subgraphs if sub.program is not None]
            if programs:
                self.inner[node.id] = tuple(CompiledModel(p, session) for p in programs)
        self.plans = Plans(
            program,
            self._tools,
            replay=options.uses("replay"),
            recipes=options.uses("recipes"),
            nbytes=options.plan_bytes,
        )
        self.weights = WeightsCache(
            session.memory_device, session.uploads, functools.partial(_constant, program),
            folder=cache_folder(options) if options.uses("page_constants") else None,
            used=used, limit=options.weights_bytes, let_go=functools.partial(_unbind_one, self.plans),
        )  # fmt: skip
        session.dispatcher.when_lost.add(self.weights.fail)
        #: Otherwise those that were not asked for lately leave.
        self._keeps_constants = options.weights_bytes is None
        bind_ahead = self._bound if self._keeps_constants else None
        self.foresight = None
        if options.uses("next_plan"):
            self.foresight = Foresight(program, self.plans, session.dispatcher, bind_ahead)
        self.one_plan = asyncio.Lock()
        #: What likely shapes need, if that was asked for.
        self.warming: Warming | None = None
        self._binding: dict[Planned, asyncio.Task[BoundPlan]] = {}
        #: Plans that were bound, as long as anybody has them, by the constants that they name: a later one may share
        #: their steps.
        self._bound_lately: weakref.WeakValueDictionary[int, BoundPlan] = weakref.WeakValueDictionary()
        #: The sizes of the arenas lately, by chunk; of equal ones in a row only the first.
        self._sizes: dict[int, ShapePredictor] = {}

    def __repr__(self) -> str:
        return f"<CompiledModel {self.program!r}, {len(self.plans)} plans, {self.weights!r}>"

    # Loading.

    def begin_warming(
        self,
        busy: Callable[[], bool],
        *,
        urgent: bool,
        patience_s: float,
        model: str | None = None,
        asked: list[Layout] | None = None,
    ) -> Warming:
        """Begin to bring the constants to the device, and to build the kernels, that likely shapes need.

        Args:
            busy: Whether requests are in flight; asked on a thread.
            urgent: Whether somebody waits for all of it; otherwise requests go first.
            patience_s: Seconds after which nobody waits for what the most likely size needs.
            model: What it is known by to the next process; None if by nothing.
            asked: Layouts of the inputs that its first request had the last time, if that is known.
        """
        # Chunks behind a node with subgraphs depend on its results.
        guessed = [network for network in self.everywhere() if network.program.chunks[0].control is None]
        session, presets = self.session, self.session.presets
        fold = None if presets is None or presets.one is None else presets.one.build_ahead
        self.warming = Warming(
            guessed, self._impls, busy, session.dispatcher.gaps, session.planning,
            fold=fold, urgent=urgent, patience_s=patience_s, model=model, asked=asked,
        )  # fmt: skip
        return self.warming

    async def bring(self, arrays: Mapping[int, Array]) -> None:
        """Bring what requests of these shapes and contents need."""
        if self.program.chunks[0].control is not None:
            return
        values = {id: np.asarray(arrays[id], order="C") for id in self.program.value_inputs}
        async with self.one_plan:
            work = self.plans.first(
                None, layouts_of(self.program, arrays), values, (), HostBudget(self._tools.host_limit)
            )
            planned = await in_turns(work)
        await self.bind(planned)
        await self.bring_memory(planned.plan.arena_nbytes)

    async def bring_memory(self, nbytes: int) -> None:
        """Have room for an arena of that size at hand, where a request would wait for the system to find its pages."""
        device = self.session.device
        if nbytes and isinstance(device, GrowsMemory):
            with contextlib.suppress(OutOfDeviceMemory):  # who asks for as much is told
                acquired = self._pool.acquire(nbytes, 0, brief=True)
                allocation = acquired.lease.allocation
                acquired.lease.drop()
                await asyncio.to_thread(device.touch, allocation)

    def stop_warming(self) -> None:
        """Go no further with it."""
        if self.warming is not None:
            self.warming.stop()

    async def stop(self) -> None:
        """Bring nothing any more, and tell those who wait for it; returns when no task is left that does."""
        self.stop_warming()
        if self.warming is not None:
            await self.warming.ended()
        for network in self._inside():
            await network.stop()
        await end(list(self._binding.values()))
        await self.weights.stop()

    def everywhere(self) -> Iterator[CompiledModel]:
        """Yield those of its subgraphs, and itself."""
        for network in self._inside():
            yield from network.everywhere()
        yield self

    # What an inference asks for.

    @property
    def tools(self) -> Tools:
        """What planning knows of the device."""
        return self._tools

    async def acquire(
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

    def room(self, chunk: int, nbytes: int) -> Room | None:
        """Return what says how large a new block for this arena should be, going by the sizes before it.

        Requests of the same size, one after the other or at once, are no growth and count once.
        """
        if not self._preallocates:
            return None
        sizes = self._sizes.get(chunk)
        if sizes is None:
            sizes = self._sizes[chunk] = ShapePredictor(SIZES)
        if sizes.last != (nbytes,):
            sizes.record((nbytes,))
        return lambda: (sizes.predict(bits=8) or (0,))[0]

    async def output_layouts(self, arrays: Mapping[int, Array]) -> list[Layout | None]:
        """Return the outputs' layouts for these inputs as far as they are known without running anything."""
        program = self.program
        state = start_state(program, layouts_of(program, arrays), {id: arrays[id] for id in program.value_inputs})
        if program.chunks[0].control is None:
            with contextlib.suppress(AsyncrtError):  # what never runs need not fit
                state = (await in_turns(prepare_in_slices(program, program.chunks[0], state, self._tools))).after
        return [state.layouts[id] for id in program.outputs]

    # Plans.

    def foreseen(self, kept: KeptState, signature: Any) -> Planned | None:
        """Return the plan of a step that was guessed while the device worked on the one before."""
        guessed = None if self.foresight is None else self.foresight.take(kept, signature)
        if guessed is None:
            return None
        self._counters.plans += 1
        planned = self.plans.keep_made(signature, *guessed)
        planned.fresh = True
        return planned

    async def make_plan(self, request: int, chunk: Chunk, work: Slices[Planned]) -> Planned:
        """Return the plan when it is made, a slice in each turn of the loop."""
        self._counters.plans += 1
        tracer = self._dispatcher.tracer
        with contextlib.nullcontext() if tracer is None else tracer.planning(request, chunk.index):
            return await in_turns(work)

    async def bind(self, planned: Planned) -> BoundPlan:
        constants = await self.weights.ensure(planned.plan.packings)
        kernels = await self._impls.ensure(planned.plan.kernels)
        bound = planned.bound = self._bound(planned.plan, kernels, constants)
        return bound

    def bind_at_once(self, planned: Planned) -> BoundPlan | None:
        """Bind a plan if all that it needs is at hand; else return None."""
        like, packings = self._like(planned.plan), planned.plan.packings
        constants: Mapping[Stored, Resident] | None
        if self._keeps_constants and like is not None:
            constants = like.constants
        else:
            constants = self.weights.at_hand(packings)
        kernels = None if constants is None else self._impls.at_hand(planned.plan.kernels)
        if constants is None or kernels is None:
            return None
        planned.bound = self._bound(planned.plan, kernels, constants)
        return planned.bound

    def bind_beside(self, planned: Planned) -> asyncio.Task[BoundPlan]:
        """Begin to bind a plan, and go on whoever stops waiting for it; the task of one that is being bound stays."""
        task = self._binding.get(planned)
        if task is None:
            task = self._binding[planned] = asyncio.create_task(self.bind(planned))
            task.add_done_callback(functools.partial(self._on_bound, planned))
        return task

    def _on_bound(self, planned: Planned, task: asyncio.Task[BoundPlan]) -> None:
        del self._binding[planned]
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, RuntimeClosedError):
            _log.warning("'%s': the device will not have what a request needs: %s", self.program.name, error)

    def _bound(
        self, plan: ChunkPlan, kernels: Mapping[Any, Any], constants: Mapping[Stored, Resident]
    ) -> BoundPlan:
        special, generation = None, 0
        if self._specialiser is not None:
            special, generation = self._specialiser.kernel, self._specialiser.generation
        bound = bind(plan, kernels, constants, special, generation, self._like(plan))
        self._bound_lately[id(plan.packings)] = bound
        return bound

    def _like(self, plan: ChunkPlan) -> BoundPlan | None:
        """Return what was bound last of the plans that need the same constants and have them still, as those of one
        recipe do."""
        return self._bound_lately.get(id(plan.packings))

    def replayed(self, planned: Planned) -> None:
        """A plan is used again: ask for specialised kernels now and then, and bind it to those that have come."""
        if planned.fresh:
            planned.fresh = False  # it is used for the first time
            return
        self._counters.replays += 1
        bound, specialiser = planned.bound, self._specialiser
        if bound is None or specialiser is None:
            return
        planned.replays += 1
        if planned.replays % OFTEN == 0:
            specialiser.saw(bound, OFTEN)
        if bound.generation != specialiser.generation:
            planned.bound = self._bound(bound.plan, bound.kernels, bound.constants)

    def close(self) -> None:
        """Give the constants back; the device must have passed all requests.

        What refers back to it goes, so that all that it holds is freed with whoever has it last, without a collection.
        """
        self.stop_warming()
        self.warming = self.foresight = self.timed = self.pieces = None
        for network in self._inside():
            network.close()
        self.plans.clear()
        self.weights.close()
        self._dispatcher.when_lost.discard(self.weights.fail)

    @property
    def lets_go(self) -> bool:
        """Whether it is closed, but constants are still on their way to the device."""
        return self.weights.bringing or any(network.lets_go for network in self._inside())

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
        own = PlanCounts(len(self.plans), self.plans.by_recipe, self.foresight.taken if self.foresight else 0)
        return PlanCounts(*map(sum, zip(own, *(network.plan_counts() for network in self._inside()), strict=True)))

    def _inside(self) -> list[CompiledModel]:
        return [network for networks in self.inner.values() for network in networks]


def _constant(program: Program, id: int) -> Array:
    constant = program.values[id].constant
    assert constant is not None
    check(constant)
    return constant


def _unbind_one(plans: Plans) -> bool:
    """Let go of what the plan unused longest is bound to, if one is; it is bound again when it is used again."""
    planned = plans.unused()
    if planned is not None:
        planned.bound = None
    return planned is not None
