"""Brings what likely shapes need, constants and kernels, before requests ask for it or beside them.

Plans for likely sizes say what that is. They are made on a thread, apart from those of requests, and their recipes are
handed over when they are done. Once a caller may be there, the thread works early in the gaps between requests
(`asyncrt/runtime/loop/gaps.py`), or seldom where there are none, and not while what the most likely size needs is
brought; and kernels are built one program after the other, behind those that requests wait for.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Protocol

import attrs

from asyncrt.errors import RuntimeClosedError
from asyncrt.kernels.resident.kernel_cache import ImplCache
from asyncrt.kernels.resident.weights import WeightsCache
from asyncrt.layout import Layout
from asyncrt.loops import on_own_thread, retrieved, tell_loop
from asyncrt.runtime.loop.gaps import Gaps
from asyncrt.runtime.loop.planning_turns import PlanningTurns
from asyncrt.runtime.plan.chunk_plan import ChunkPlan
from asyncrt.runtime.plan.plan_cache import Plans

_log = logging.getLogger("asyncrt")
_SLICE_S, _PAUSES, _PAUSE_S, _MOST_S = 2e-4, 300, 0.015, 1.0  # see `pause_of_planning`
FIRST_REQUEST_S = 0.25
"""Seconds for which builds that nobody waits for let a model's first request come, which NumPy answers meanwhile.

Compilers on all cores would make that answer several times as slow (`asyncrt/runtime/request/stand_in.py:ALONE_S`).
"""


@attrs.frozen
class Progress:
    """How far the kernels of a model are.

    Attributes:
        built: Kernels that are there.
        wanted: Kernels that are known to be wanted; more may be found as long as planning goes on.
        planning: Whether it goes on.
    """

    built: int
    wanted: int
    planning: bool


def pause_of_planning(planned_s: float, *, busy: bool, bringing: bool) -> float:
    """Return for how many seconds planning pauses that has gone on for so many.

    Requests may lose what they share the interpreter with, and few may: one in a hundred of those of two milliseconds.
    And without a pause each step from one thread to another would take five milliseconds, as long as the interpreter
    leaves it to a thread; there are some for each kernel and each constant.

    Args:
        planned_s: Since the last pause.
        busy: Whether requests are in flight.
        bringing: Whether what the most likely size needs is being brought.
    """
    if planned_s < _SLICE_S or not (busy or bringing):
        return 0.0
    return min(max(_PAUSE_S, planned_s * _PAUSES), _MOST_S) if busy else _PAUSE_S


class Warmed(Protocol):
    """What there is to warm of a model, or of one of its subgraphs."""

    @property
    def plans(self) -> Plans: ...
    @property
    def weights(self) -> WeightsCache: ...
    @property
    def one_plan(self) -> asyncio.Lock: ...


class Warming:
    """What likely shapes of a model need, on its way.

    Args:
        networks: The model and its subgraphs, as far as sizes can be guessed.
        kernels: Builds them.
        busy: Whether requests are in flight; asked on a thread.
        gaps: The times between requests.
        turns: Whose planning goes on, of all that share the interpreter with the same requests.
        fold: Brings what makes one launch of such plans; None where nothing does.
        urgent: Whether somebody waits for all of it.
        model: What the model is known by to the next process; None if by nothing.
        asked: Layouts of the inputs that the model's first request had the last time, if that is known.

    Attributes:
        first: Done when what the most likely size needs is there, or when that is known to take long.
        whole: Done when everything is there.
        likely: The model's plan for its most likely size, once there is one.
    """

    def __init__(
        self,
        networks: Sequence[Warmed],
        kernels: ImplCache,
        busy: Callable[[], bool],
        gaps: Gaps | None = None,
        turns: PlanningTurns | None = None,
        *,
        fold: Callable[[Sequence[ChunkPlan]], Coroutine[Any, Any, None]] | None = None,
        urgent: bool,
        patience_s: float,
        model: str | None = None,
        asked: list[Layout] | None = None,
    ) -> None:
        self._model, self._asked = model, asked
        self._gaps, self._turns, self._fold = gaps or Gaps(), turns or PlanningTurns(), fold
        self._networks, self._kernels, self._busy, self._patience_s = networks, kernels, busy, patience_s
        self._urgent = urgent
        #: Those of which there is a plan.
        self._begun: list[Warmed] = []
        self._planning = True
        self._stops = False
        #: Seconds of planning since the last pause, and since when it goes on.
        self._planned_s, self._went_on = 0.0, time.perf_counter()
        #: Whether the thread that plans has found a plan, and whether it has the turn.
        self._has_found = self._has_turn = False
        #: Done when the thread has ended that makes plans; None if there is none.
        self._planner: asyncio.Future[list[ChunkPlan]] | None = None
        #: Set when there are no more pauses.
        self._awake = threading.Event()
        if urgent:
            self._awake.set()
        else:
            kernels.hold_back(FIRST_REQUEST_S)
        self.likely: list[ChunkPlan] = []
        self._wanted: dict[Any, None] = {}
        self._built = 0
        self._told: list[Callable[[Progress], object]] = []
        self._bringing: set[asyncio.Task[None]] = set()
        self.first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.whole = asyncio.create_task(self._warm())
        self.whole.add_done_callback(self._end)

    async def wait(self, progress: Callable[[Progress], object] | None = None) -> None:
        """Return when everything is there, or raise what was in the way. Whoever stops waiting stops nothing.

        Args:
            progress: Is told meanwhile.

        Raises:
            RuntimeClosedError: It was stopped.
        """
        self.hurry()
        if progress is not None:
            self.tell(progress)
        try:
            with self._kernels.waited_for():
                await asyncio.wait((self.whole,))
        finally:
            if progress is not None:
                self.tell_no_more(progress)
        self.check()

    def check(self) -> None:
        """Raise what was in the way; it has ended.

        Raises:
            RuntimeClosedError: It was stopped.
        """
        if self.whole.cancelled():
            raise RuntimeClosedError("the runtime was closed while kernels were built")
        self.whole.result()

    def hurry(self) -> None:
        """Somebody waits for all of it: build as much at once as may be."""
        self._urgent = True
        self._awake.set()
        self._gaps.ring()
        self._turns.look_again()
        self._kernels.go_on()
        if not self.whole.done():
            self._kernels.begin(self._wanted, urgent=True)

    def tell(self, listener: Callable[[Progress], object]) -> None:
        """Call *listener* with the progress, now and whenever there is some, on the loop."""
        listener(self.progress)
        self._told.append(listener)

    def tell_no_more(self, listener: Callable[[Progress], object]) -> None:
        """Do not call it any more."""
        self._told = [told for told in self._told if told is not listener]

    @property
    def progress(self) -> Progress:
        """How far it is."""
        return Progress(self._built, len(self._wanted), self._planning)

    def stop(self) -> None:
        """Go no further."""
        self._stops = True
        self._awake.set()
        self._gaps.ring()
        self._turns.look_again()
        self.whole.cancel()

    async def ended(self) -> None:
        """Return when no task and no thread of it is left; it was stopped."""
        await asyncio.wait((self.whole,))
        if self._planner is not None:
            await asyncio.wait((self._planner,))
            self._planner = None
        if self._bringing:
            await asyncio.wait(self._bringing)

    # How.

    async def _warm(self) -> None:
        try:
            plans: list[tuple[Warmed, ChunkPlan]] = []
            with self._gaps:
                for network in self._networks:
                    with network.plans.scouting() as scout:
                        work = functools.partial(self._plan, asyncio.get_running_loop(), network, scout)
                        self._planner = on_own_thread("asyncrt-plan", work)
                        self._planner.add_done_callback(retrieved)
                        made = await asyncio.shield(self._planner)
                        self._planner = None
                        async with network.one_plan:
                            network.plans.learn(scout)
                    plans += [(network, plan) for plan in made]
                    self.likely = made[:1]
            self._planning = False
            if self._fold is not None:  # it takes as long as all the kernels, and needs none of them
                self._bringing.add(task := asyncio.create_task(self._fold([plan for _, plan in plans])))
                task.add_done_callback(retrieved)
            for network, plan in plans:  # one after the other, so that no more than one needs is in use at once
                await network.weights.ensure(plan.packings)
            await self._bring(kernel for _, plan in plans for kernel in plan.kernels)
            for each in tuple(self._bringing):
                await each
        finally:
            self._planning = False
            for task in self._bringing:
                task.cancel()

    # On the thread that plans.

    def _plan(self, loop: asyncio.AbstractEventLoop, network: Warmed, scout: Plans) -> list[ChunkPlan]:
        def found(plan: ChunkPlan) -> None:
            self._has_found = True
            tell_loop(loop, self._on_found, network, plan)

        asked = self._asked if self._is_model(network) else None
        try:
            return scout.likely(asked=asked, found=found, go_on=self._may_go_on)
        finally:
            self._give_turn_back()
            self._has_found = False

    def _give_turn_back(self) -> None:
        if self._has_turn:
            self._has_turn = False
            self._turns.give_back()

    @property
    def _may(self) -> bool:
        """Whether planning is in nobody's way now."""
        return self._gaps.open and not self._busy()

    def _may_go_on(self) -> bool:
        self._planned_s += time.perf_counter() - self._went_on
        bringing = bool(self._begun) and not self.first.done()
        if pause := pause_of_planning(self._planned_s, busy=not self._may, bringing=bringing):
            self._give_turn_back()
            self._pause(pause, bringing=bringing)
            self._planned_s = 0.0
        if self._turns.wanted_urgently and not self._urgent:
            self._give_turn_back()
        if self._has_found and not self._has_turn:  # the first plan of each is made at once: what it needs can begin
            self._has_turn = self._turns.take(lambda: self._urgent, lambda: self._stops)
        self._went_on = time.perf_counter()
        return not self._stops

    def _pause(self, seconds: float, *, bringing: bool) -> None:
        """Wait for so long, or where gaps between requests are long enough, only for the next."""
        until = time.perf_counter() + seconds
        while not self._awake.is_set() and (left := until - time.perf_counter()) > 0:
            if bringing or not self._gaps.useful or self._gaps.open:  # or it is NumPy that has a request
                self._awake.wait(left)
            else:
                self._gaps.wait(left, self._awake)
                if self._may:
                    return

    def _on_found(self, network: Warmed, plan: ChunkPlan) -> None:
        """The first plan of a network tells most of what it needs, and that begins to come at once."""
        if not self.whole.done() and network not in self._begun:
            self._begun.append(network)
            task = asyncio.create_task(self._bring_first(network, plan))
            self._bringing.add(task)
            task.add_done_callback(retrieved)

    async def _bring_first(self, network: Warmed, plan: ChunkPlan) -> None:
        expected = await self._kernels.expected(plan.kernels, urgent=self._urgent)
        late = expected.seconds > self._patience_s
        if late:
            self._settle()
        if late and not self._urgent:
            self._kernels.hold_back(FIRST_REQUEST_S)
        else:
            self._kernels.go_on()
        await network.weights.ensure(plan.packings)
        await self._bring(plan.kernels)
        await self._kernels.ensure(plan.kernels, urgent=self._urgent)  # others may have asked for them before
        self._settle()
        if self._model is not None and self._is_model(network):
            await self._kernels.note(self._model, plan.kernels)

    def _is_model(self, network: Warmed) -> bool:
        """Whether it is the model itself, and none of its subgraphs."""
        return network is self._networks[-1]

    def _settle(self) -> None:
        if not self.first.done():
            self.first.set_result(None)

    async def _bring(self, kernels: Iterable[Any]) -> None:
        fresh = [k for k in dict.fromkeys(kernels) if k not in self._wanted]
        self._wanted.update(dict.fromkeys(fresh))
        self._kernels.begin(fresh, urgent=self._urgent)
        for kernel in fresh:
            await self._kernels.ensure([kernel], urgent=self._urgent)
            self._built += 1
            self._tell()

    def _tell(self) -> None:
        for listener in tuple(self._told):
            try:
                listener(self.progress)
            except Exception:  # kernels are built whatever becomes of who watches
                self.tell_no_more(listener)
                _log.exception("what was to be told of the progress of builds failed, and is told no more")

    def _end(self, task: asyncio.Task[None]) -> None:
        self._settle()
        self._tell()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("what likely shapes need did not all come: %s", error)
