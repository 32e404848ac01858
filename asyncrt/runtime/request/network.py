"""A compiled model that requests are sent to: each is admitted, runs, and is told how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from asyncrt.arguments import check_deadline
from asyncrt.errors import AsyncrtError, DeviceError, RuntimeClosedError
from asyncrt.events import Event
from asyncrt.graph.ir import Program
from asyncrt.layout import Array, Layout
from asyncrt.memory.buffer import Lease
from asyncrt.memory.host import HostBudget, allocating, refused
from asyncrt.runtime.execute.device_copies import DeviceCopies
from asyncrt.runtime.execute.kept_state import KeptState
from asyncrt.runtime.execute.read_back import read_back
from asyncrt.runtime.loop.pending_request import RunAgain, internal
from asyncrt.runtime.plan.chunk_plan import Records
from asyncrt.runtime.plan.plan_cache import Planned

from .asked import Asked
from .callers_thread.direct import Direct, can_be_direct, may_be_direct
from .compiled_model import CompiledModel
from .inference import Inference
from .missing_kernels import PATIENCE_S, KernelsMissing
from .session import Session

if TYPE_CHECKING:
    from .warming import Progress

_NOTHING = contextlib.nullcontext()
_REQUESTS = itertools.count(1)
_ENDS = itertools.count(1)
_T = TypeVar("_T")


class Instead(Protocol):
    """What answers requests while kernels that they need are being built."""

    def has_done_enough(self, program: Program) -> bool:
        """Whether requests of *program* that can wait for kernels are to do so for a while."""
        ...

    async def answer(
        self,
        network: Network,
        missing: KernelsMissing,
        arrays: Mapping[int, Array],
        priority: int,
        deadline: float | None,
    ) -> tuple[dict[int, Array], Records] | None:
        """Return a request's outcome; None once it is better to give it to the device."""
        ...


class Network(CompiledModel):
    """A compiled model that requests are sent to.

    Args:
        instead: Answers requests while kernels are missing; None where requests wait for them.
        asked: Notes the first request for the next process; None where nobody does.

    Attributes:
        last: What became of the nodes of the inference that finished last, for `explain()`.
        ends: A number that grows with each such inference, whatever model it is of.
        direct: Runs requests on their callers' threads; None where none may.
        sequences: Those that keep state here.
    """

    def __init__(
        self, program: Program, session: Session, instead: Instead | None = None, asked: Asked | None = None
    ) -> None:
        super().__init__(program, session)
        self._instead, self._asked = instead, asked
        self.last: Records | None = None
        self.ends = 0
        self.sequences: weakref.WeakSet[Any] = weakref.WeakSet()
        self._under_way = 0
        self._unloaded = False
        #: Done when a request has ended that the stand-in was to answer.
        self._standing_in: set[asyncio.Future[None]] = set()
        self.direct = Direct(self) if can_be_direct(self) else None
        for model in self.everywhere():
            model.timed = Direct(model) if model is not self and can_be_direct(model) else None
            model.pieces = Direct(model) if may_be_direct(model) and not can_be_direct(model) else None
        self.timed = self.direct

    # What a model on several devices chooses; see `Replicas`.

    def placed(self, arrays: Mapping[int, Array]) -> tuple[Network, Mapping[int, Array]]:
        """Return where a request goes, and its inputs as they are called there."""
        return self, arrays

    def for_sequence(self) -> Network:
        """Return where a sequence is to stay."""
        return self

    def for_request(self) -> Network:
        """Return where a request goes of which nothing is known yet."""
        return self

    @property
    def latest(self) -> Network:
        """The one whose inference finished last."""
        return self

    @property
    def where(self) -> str:
        """On which of several devices that was, and why."""
        return ""

    def note(self, records: Records) -> None:
        """Note what became of the nodes of an inference that has finished."""
        self.last, self.ends = records, next(_ENDS)

    @property
    def each(self) -> tuple[Network, ...]:
        """The model, as often as it is there."""
        return (self,)

    async def warmed(self, progress: Callable[[Progress], object] | None = None) -> None:
        """Return when all is there that likely shapes need; see `Warming.wait()`."""
        if self.warming is not None:
            await self.warming.wait(progress)
            await self.bring_memory(max([network.plans.likely_arena for network in self.everywhere()]))

    async def build_for_others(self) -> None:
        """Have on disk, too, what this process would build only once the model is used."""
        presets = self.session.presets
        if self.warming is not None and presets is not None and presets.one is not None:
            await presets.one.build_for_others(self.warming.likely)

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
        may_stand_in: bool = False,
    ) -> tuple[dict[int, Array], Records]:
        """Run once. May be cancelled at every await: memory comes back when the device has passed its work.

        Args:
            arrays: Checked inputs, by value id.
            priority: Lower goes first.
            kept: What a sequence keeps; inputs and outputs of it stay on the device.
            request: Its `number()`, if the caller wants to know it.
            deadline: When it is too late to launch it, by the loop's clock.
            may_stand_in: Whether the outcome may be that of the stand-in, while kernels are missing: that of anybody
                who compares bits or times may not.

        Returns:
            The outputs by value id, and what became of each node.
        """
        aside = None if self.direct is None or kept is not None else self.direct.aside(arrays, priority, deadline)
        if aside is not None and (made := await self._beside_others(aside)) is not None:
            return made
        if request is None:
            request = self.number()
        self._counters.requests += 1
        tracer = self._dispatcher.tracer
        with _NOTHING if tracer is None else tracer.request(request):
            instead = self._instead if may_stand_in else None
            if instead is None:
                patience_s = math.inf
            else:  # whoever has to be there in time asks NumPy
                patience_s = PATIENCE_S if deadline is None and instead.has_done_enough(self.program) else 0.0
            try:
                outcome = await self._infer(request, arrays, priority, deadline, kept, patience_s=patience_s)
            except KernelsMissing as missing:
                outcome = await self._beside(request, missing, arrays, priority, deadline)
        if may_stand_in and self._asked is not None:
            asked, self._asked = self._asked, None
            asyncio.get_running_loop().run_in_executor(None, asked.note, self.program, arrays)
        return outcome

    async def _beside(
        self,
        request: int,
        missing: KernelsMissing,
        arrays: Mapping[int, Array],
        priority: int,
        deadline: float | None,
    ) -> tuple[dict[int, Array], Records]:
        """Have a request answered by the stand-in, or run it after all; `unload()` waits for it."""
        assert self._instead is not None
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._standing_in.add(ended)
        try:
            outcome = await self._instead.answer(self, missing, arrays, priority, deadline)
            if outcome is None:
                outcome = await self._infer(request, arrays, priority, deadline, None, begun=True)
            return outcome
        finally:
            self._standing_in.discard(ended)
            ended.cancel()

    async def _infer(
        self,
        request: int,
        arrays: Mapping[int, Array],
        priority: int,
        deadline: float | None,
        kept: KeptState | None,
        *,
        patience_s: float = math.inf,
        begun: bool = False,
    ) -> tuple[dict[int, Array], Records]:
        async def work() -> tuple[dict[int, Array], Records]:
            outcome = await self.run(request, arrays, kept, patience_s=patience_s)
            if self._dispatcher.checks is not None:
                self._dispatcher.checks.gives_back(request, arrays.values())
            return outcome

        return await self._admitted(request, priority, deadline, work, begun=begun)

    async def run(
        self, request: int, arrays: Mapping[int, Array], kept: KeptState | None, *, patience_s: float
    ) -> tuple[dict[int, Array], Records]:
        """Carry out a request that was admitted.

        Args:
            patience_s: Seconds for which it waits for missing kernels.

        Raises:
            KernelsMissing: It is not to wait for them any longer.
        """
        return await Inference(self, request, arrays, kept, patience_s=patience_s).run()

    async def _admitted(
        self,
        request: int,
        priority: int,
        deadline: float | None,
        work: Callable[[], Awaitable[_T]],
        *,
        begun: bool = False,
    ) -> _T:
        """Do a request's work when it is its turn; once more where it is told to run again.

        Args:
            begun: Whether it was there before, and so before the model may have been unloaded.
        """
        dispatcher = self._dispatcher
        if self._unloaded and not begun:
            raise RuntimeClosedError(f"the model '{self.program.name}' was unloaded")
        self._under_way += 1
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
        except KernelsMissing:
            raise
        except Exception as error:
            said = self._failed(error, f"request {request}")
            if said is error:
                raise
            raise said from error
        finally:
            self._left()
            dispatcher.end(request)

    def _failed(self, error: Exception, what: str) -> AsyncrtError:
        """Note that a request has failed; returns what it raises."""
        self._counters.failed += 1
        if isinstance(error, DeviceError):
            self._dispatcher.ask_device()
        if isinstance(error, AsyncrtError):
            return error
        if isinstance(error, MemoryError):
            return refused(f"a request of '{self.program.name}'", error)
        return internal(error, f"{what} failed")

    def attempt(
        self, arrays: Mapping[int, Array], until: float | None, *, kept: KeptState | None = None, on_loop: bool = True
    ) -> tuple[dict[int, Array], Records] | None:
        """Run once on this thread and return what `infer()` does; None if it goes the general way; see `Direct`."""
        if self.direct is None or self._unloaded:
            return None
        try:
            return self.direct.attempt(arrays, until, kept=kept, on_loop=on_loop)
        except Exception as error:
            said = self._failed(error, "a request on its caller's thread")
            if said is error:
                raise
            raise said from error

    async def attempt_in_turn(
        self, arrays: Mapping[int, Array], priority: int, until: float | None, *, kept: KeptState | None = None
    ) -> tuple[dict[int, Array], Records] | None:
        """Do what `attempt()` does, on the event loop, when it is the caller's turn."""
        direct = self.direct
        if direct is not None and direct.crowded:
            planned = None if kept is not None else direct.overlapping(arrays)
            if planned is not None and direct.has_company():
                return await self._overlapped(direct, planned, arrays, priority, until)
            alone = None if kept is not None else direct.for_own_core(arrays)
            if alone is not None:
                return await self._beside_others(direct.on_own_core(alone, arrays, priority, until))
            here = await direct.turn(arrays, priority, until, kept)
            self.session.check_here()
            if not here:
                return None
            if planned is not None and direct.accompanied:  # by who has come meanwhile
                return await self._overlapped(direct, planned, arrays, priority, until)
        return self.attempt(arrays, until, kept=kept)

    async def _overlapped(
        self, direct: Direct, planned: Planned, arrays: Mapping[int, Array], priority: int, until: float | None
    ) -> tuple[dict[int, Array], Records] | None:
        """Do what `attempt()` does beside other callers' requests, when there is a stream for it."""
        if not await self.session.turns.drained():
            return None
        self.session.check_here()
        return await self._beside_others(direct.overlap(planned, arrays, priority, until))

    async def _beside_others(
        self, outcome: Coroutine[Any, Any, tuple[dict[int, Array], Records] | None]
    ) -> tuple[dict[int, Array], Records] | None:
        """Return the outcome of a request of which the scheduler does not know."""
        if self._unloaded:
            outcome.close()
            return None
        self._under_way += 1
        try:
            return await outcome
        except asyncio.CancelledError:
            self._counters.cancelled += 1
            raise
        except Exception as error:
            said = self._failed(error, "a request beside others")
            if said is error:
                raise
            raise said from error
        finally:
            self._left()

    def _left(self) -> None:
        """Note that a request is under way no more; who unloads the model may wait for that alone."""
        self._under_way -= 1
        if self._unloaded:
            self._dispatcher.tell()

    async def unload(self) -> None:
        """Refuse requests from now on; give everything back when those under way have ended, on the device as well.

        What is on a lost device is not waited for, and given back when the runtime is closed: it may be used for ever.
        """
        self._unloaded = True
        dispatcher = self._dispatcher
        while self._standing_in or (self._under_way and not dispatcher.lost):
            await (asyncio.wait(self._standing_in) if self._standing_in else dispatcher.progress())
        # Who was cancelled has ended before what it enqueued; nothing of this model comes behind these.
        behind, begun = set(dispatcher.marks.pending), set(dispatcher.begun_beside)
        while not dispatcher.lost and not (
            behind.isdisjoint(dispatcher.marks.pending) and begun.isdisjoint(dispatcher.begun_beside)
        ):
            await dispatcher.progress()
        self.last = None
        await self.stop()
        if not dispatcher.lost:
            self.close()

    def close(self) -> None:
        """As for any compiled model."""
        super().close()
        self.direct = None

    async def move(self, moves: DeviceCopies, priority: int = 0) -> tuple[list[Lease], tuple[Event, ...]]:
        """Allocate memory, and fill it with what lies elsewhere on the device; see `DeviceCopies`.

        Returns:
            Leases of the new memory, and the events after which it may be used.
        """
        request = self.number()

        async def work() -> tuple[list[Lease], tuple[Event, ...]]:
            kernels = await self._impls.ensure(moves.kernels)
            return await moves.carry_out(request, self._dispatcher, kernels, self.acquire)

        return await self._admitted(request, priority, None, work)

    async def read(self, lease: Lease, layout: Layout, after: tuple[Event, ...]) -> Array:
        """Return what lies in memory, when it was read; the claim on the memory ends with that.

        Raises:
            OutOfHostMemory: It is larger than what a request may make on the host.
        """
        request = self.number()
        events: list[Event] = []

        async def work() -> Array:
            HostBudget(self._tools.host_limit).check(layout.nbytes, "a tensor that is read from the device")
            with allocating("a tensor that is read from the device"):
                return await read_back(request, self._dispatcher, lease, layout, after, events)

        try:
            return await self._admitted(request, 0, None, work, begun=True)
        finally:
            lease.drop(after=(*after, *events))
