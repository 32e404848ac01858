"""One inference, chunk after chunk: plan, place, lease, enqueue, wait.

All state of an inference is here and ends with it; what it shares with others is its `CompiledModel`'s.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Mapping
from typing import Any

from asyncrt.events import Event
from asyncrt.graph.branches import takes
from asyncrt.graph.ir import Chunk, ProgramNode
from asyncrt.layout import Array, Layout
from asyncrt.memory.buffer import Lease
from asyncrt.memory.host import HostBudget
from asyncrt.runtime.cooperative import off_loop
from asyncrt.runtime.execute.kept_state import KeptState
from asyncrt.runtime.execute.transfers import Arriving, host_copies, short_copies
from asyncrt.runtime.plan.between_steps import NOTHING
from asyncrt.runtime.plan.bound_plan import BoundPlan
from asyncrt.runtime.plan.chunk_plan import ChunkPlan, Deferred, NodeRecord, Records, State, start_state
from asyncrt.runtime.plan.plan_cache import Planned

from .captures import Captures
from .compiled_model import CompiledModel
from .control_flow import SubgraphBody, carry_out
from .inputs import layouts_of
from .linked import Iterated, Loop
from .missing_kernels import KernelsMissing, StandIn, Wait, choose
from .next_plan import contents_of, step_signature


class Inference:
    """One inference of an admitted request.

    Args:
        model: What is run.
        request: Its number; of a subgraph, that of the request that it is part of.
        arrays: Checked inputs, by value id.
        kept: What a sequence keeps; inputs and outputs of it stay on the device.
        outer: What that request may make on the host, for a subgraph.
        patience_s: Seconds for which it waits for missing kernels, before `KernelsMissing` is raised.
    """

    def __init__(
        self,
        model: CompiledModel,
        request: int,
        arrays: Mapping[int, Array],
        kept: KeptState | None = None,
        outer: HostBudget | None = None,
        *,
        patience_s: float = math.inf,
    ) -> None:
        self.model, self.request, self.kept, self.patience_s = model, request, kept, patience_s
        self.program, self.dispatcher = model.program, model.session.dispatcher
        self.arrays = arrays
        #: Whether there is nothing more to the request.
        self.is_all = outer is None
        self.budget = HostBudget(model.tools.host_limit) if outer is None else outer.inner()
        #: Its memory, and where the streams are when all that it has enqueued is done.
        self.leases: list[Lease] = []
        self.events: list[Event] = []
        self.before = self.left = NOTHING if kept is None else kept.between
        self.values = {id: arrays[id] for id in self.program.value_inputs}
        # Of a step, what is kept says which inputs are not among the arrays.
        self.given = tuple([arrays[id].shape for id in self.program.inputs if id in arrays])
        #: What the plan of the next chunk depends on; None where too much does.
        self.signature: Any = step_signature(self.given, contents_of(self.values.values()), self.before)
        #: What is known after the last planned chunk; and values and layouts learnt since, for the next plan.
        self.state: State | None = None
        self.known: dict[int, Array] = {}
        self.shapes: dict[int, Layout] = {}
        #: What the host has so far: the inputs, what was read, and what nodes with subgraphs made.
        self.present = dict(arrays)
        self.arenas: list[Any] = [None] * len(self.program.chunks)
        self.records: Records = []
        self.plans = model.plans.frugal if self.dispatcher.frugal(request) else model.plans

    async def run(self) -> tuple[dict[int, Array], Records]:
        """Run it; returns the outputs by value id, and what became of each node. May be cancelled at every await."""
        try:
            fetched: dict[int, Array] = {}
            for chunk in self.program.chunks:
                if chunk.control is not None:
                    taken = takes(chunk.control.guards, self.value)
                    fetched = await self.control(chunk.control) if taken else {}
                else:
                    fetched = await self.chunk(chunk)
                self.present.update(fetched)
                if chunk.decides:
                    self.decide(chunk, fetched)
            if self.kept is not None and self.state is not None:
                self.kept.succeeded(self.state.kept, self.left, self.events)
            return {v: fetched[v] for v in self.program.outputs if v not in self.before.outputs}, self.records
        finally:
            if self.kept is not None:
                self.kept.failed(self.events)  # does nothing to a step that has succeeded
            # Memory belongs to the events, not to this task: whatever ended it, the blocks are free again when the
            # streams have passed what was enqueued.
            for lease in self.leases:
                lease.drop(after=self.events)

    # A chunk.

    async def chunk(self, chunk: Chunk) -> dict[int, Array]:
        """Carry out a chunk that is planned; returns what the host gets of it, by value id."""
        model = self.model
        planned = await self.plan(chunk)
        plan, bound = planned.plan, planned.bound or await self.bind(planned)
        if plan.needs_device and (at_once := await self.at_once(chunk, bound, planned)) is not None:
            fetched = at_once
        elif plan.needs_device:
            if self.is_all and model.timed is not None and model.timed.is_brief(bound):
                self.dispatcher.is_brief(self.request)
            stream = await self.dispatcher.place(self.request, bound.work)
            waits, buffers = await self.lease(chunk, plan, stream)
            self.dispatcher.check_deadline(self.request)
            self.check_results(planned)
            enqueue, began = model.enqueuer.enqueue, model.session.device.clock()
            arriving = await enqueue(self.request, bound, stream, waits, self.present, buffers, self.events)
            self.events.append(self.dispatcher.launched(self.request, stream, bound))
            fetched = await self.wait(bound, arriving)
            seconds, others = (model.session.device.clock() - began) / 1e9, self.dispatcher.in_flight - 1
            model.session.check_stalled(bound, buffers, seconds)
            if not others and model.session.presets is not None:
                model.session.presets.took_generally(bound, seconds)
            timed = model.timed or model.pieces
            if timed is not None:
                timed.took_generally(bound, seconds, others=others, is_step=self.kept is not None)
        else:
            self.check_results(planned)
            fetched = short_copies(plan, self.present)
        if bound.copies:
            fetched.update(await off_loop(planned.results, functools.partial(host_copies, bound.copies, self.present)))
        model.session.counters.launches += len(plan.steps)
        model.session.counters.skipped += plan.skipped
        if isinstance(bound.records, Deferred):
            self.records.append(bound.records)
        else:
            self.records += bound.records
        self.state, self.left, self.known, self.shapes = plan.after, bound.left, {}, {}
        return fetched

    async def at_once(self, chunk: Chunk, bound: BoundPlan, planned: Planned) -> dict[int, Array] | None:
        """Carry out one of several chunks on the loop's thread, which returns what the host gets of it; None if it goes
        from thread to thread."""
        kept = self.kept
        if self.model.pieces is None or (kept is not None and kept.missing(planned.plan.after.kept)):
            return None
        await self.model.session.turns.of_part(self.request)
        self.dispatcher.check_deadline(self.request)
        self.check_results(planned)
        memory = self.arenas if kept is None else self.arenas + kept.buffers()
        made = self.model.pieces.carry_out(self.request, chunk.index, bound, memory, self.present)
        if made is None:
            return None
        fetched, lease = made
        if lease is not None:
            self.leases.append(lease)
            self.arenas[chunk.index] = lease.allocation
        return fetched

    async def plan(self, chunk: Chunk) -> Planned:
        """Return the plan of a chunk: one made before, or made ahead for this step, or a new one."""
        model = self.model
        planned = self.plans.find(chunk, self.signature)
        if planned is None and self.kept is not None and self.plans is model.plans:
            planned = model.foreseen(self.kept, self.signature)
        if planned is None:
            async with model.one_plan:
                planned = self.plans.find(chunk, self.signature)  # made meanwhile, by a request like this one
                if planned is None:
                    return await self.new_plan(chunk)
        model.replayed(planned)
        return planned

    async def new_plan(self, chunk: Chunk) -> Planned:
        """Make the plan of a chunk."""
        if chunk.index == 0:
            layouts = layouts_of(self.program, self.arrays, self.before.layouts)
            work = self.plans.first(self.signature, layouts, self.values, self.before.tensors, self.budget)
        else:
            if self.state is None:
                layouts = layouts_of(self.program, self.arrays, self.before.layouts)
                self.state = start_state(self.program, layouts, self.values, self.before.tensors)
            work = self.plans.later(chunk, self.signature, self.state.advanced(self.shapes, self.known), self.budget)
        return await self.model.make_plan(self.request, chunk, work)

    async def bind(self, planned: Planned) -> BoundPlan:
        """Return a plan with its kernels and constants, when they are there; raises `KernelsMissing` instead."""
        bound = self.model.bind_at_once(planned)
        if bound is not None:
            return bound
        kernels = self.model.session.kernels
        if self.patience_s == math.inf:
            with kernels.waited_for():
                return await self.model.bind(planned)
        expected = await kernels.expected(planned.plan.kernels)
        left = self.budget.limit - self.budget.used
        choice = choose(expected, planned.plan.arena_nbytes, left, self.patience_s)
        task = self.model.bind_beside(planned)
        if isinstance(choice, Wait):
            with kernels.waited_for():
                await asyncio.wait((task,), timeout=choice.at_most_s)
        if isinstance(choice, StandIn) or not task.done():
            raise KernelsMissing(choice.why, task)
        return task.result()

    async def lease(self, chunk: Chunk, plan: ChunkPlan, stream: int) -> tuple[tuple[Event, ...], list[Any]]:
        """Lease the chunk's memory; returns what to wait for before it may be used, and the memory of all chunks."""
        waits: tuple[Event, ...] = ()
        if plan.arena_nbytes:
            room = self.model.room(chunk.index, plan.arena_nbytes)
            acquired = await self.model.acquire(self.request, plan.arena_nbytes, stream, room, brief=True)
            self.leases.append(acquired.lease)
            self.arenas[chunk.index], waits = acquired.lease.allocation, acquired.waits
        if self.kept is None:
            return waits, self.arenas
        for slot, nbytes in self.kept.missing(plan.after.kept):
            acquired = await self.model.acquire(self.request, nbytes, stream)
            self.kept.allocated(slot, acquired.lease)
            waits += acquired.waits
        return waits + self.kept.after, self.arenas + self.kept.buffers()

    async def wait(self, bound: BoundPlan, arriving: Arriving) -> dict[int, Array]:
        """Wait until the device has passed the chunk; returns what was read."""
        foresight = self.model.foresight
        if self.kept is None or self.kept.last or foresight is None:
            await self.dispatcher.passed(self.request)
        else:
            with foresight.guessing(self.kept, self.given, bound):
                await self.dispatcher.passed(self.request)
        if self.dispatcher.checks is not None:
            self.dispatcher.checks.looks_at(self.request, arriving.read)
        return arriving.take()

    def check_results(self, planned: Planned) -> None:
        """Raise `OutOfHostMemory` if a chunk's results exceed the request's limit; one tensor may be many outputs."""
        if not self.budget.fits(planned.results):
            self.budget.check(planned.results, f"'{self.program.name}': its results")

    def decide(self, chunk: Chunk, fetched: Mapping[int, Array]) -> None:
        """Note the values on which later plans depend."""
        decides = [v for v in chunk.decides if v in fetched]  # nothing of a branch that was not taken
        self.known.update((v, fetched[v]) for v in decides)
        if self.signature is not None:
            contents = contents_of([fetched[v] for v in decides])
            self.signature = None if contents is None else (self.signature, contents)

    # A node with subgraphs.

    async def control(self, node: ProgramNode) -> dict[int, Array]:
        """Carry out a node with subgraphs; returns its outputs, by value id."""
        bodies: list[SubgraphBody] = []
        captures: list[Captures] = []
        for sub, inner in zip(node.subgraphs, self.model.inner[node.id], strict=True):
            captured = {id: self.value(outer) for id, outer in sub.taken}
            captures.append(Captures(inner, self.request, captured))
            run = functools.partial(self.body, inner, captures[-1], node.operator.name == "If")
            bodies.append(SubgraphBody(sub.label, inner.program, captured, run, inner.output_layouts))
        iterates = functools.partial(self.dispatcher.iterates, self.request)
        try:
            made, record = await carry_out(node, bodies, self.value, self.budget, iterates)
        finally:
            for each in captures:
                each.close()
        self.note(node, record)
        return made

    async def body(
        self, inner: CompiledModel, captures: Captures, once: bool, arrays: Mapping[int, Array], loop: Loop | None
    ) -> Iterated:
        """Run a subgraph; where it may run more than *once*, it waits for kernels: what has run would run again."""
        patience_s = self.patience_s if once else math.inf
        arrays, kept = await captures.of_next(arrays)
        if inner.timed is not None:
            if loop is not None:
                loop = loop._replace(most=min(loop.most, self.dispatcher.iterations_left(self.request)))
            await self.model.session.turns.of_part(self.request)
            iterated = inner.timed.iterate(self.request, arrays, kept, self.budget, loop)
            if iterated is not None:
                return iterated
        inference = Inference(inner, self.request, arrays, kept, self.budget, patience_s=patience_s)
        return Iterated(1, *await inference.run())

    def note(self, node: ProgramNode, record: NodeRecord) -> None:
        """Note what became of a node with subgraphs."""
        self.records.append(record)
        layouts = dict(zip(node.outputs, record.outputs, strict=True))
        self.shapes.update(layouts)
        if self.signature is not None:
            self.signature = self.signature, tuple([x.shape for x in layouts.values()])

    def value(self, id: int) -> Array:
        """Return a value that the host has."""
        array = self.present.get(id)
        if array is None:
            array = self.program.values[id].constant
        if array is None and self.state is not None:
            array = self.state.values[id]
        assert array is not None, self.program.values[id].name
        return array
