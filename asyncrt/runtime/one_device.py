"""One device of a runtime, and the models on it: how they come there, what they hold, and how all of it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from asyncrt.graph.ir import Program
from asyncrt.kernels.resident.weights import WeightsStatistics
from asyncrt.layout import Layout
from asyncrt.loops import on_own_thread, retrieved

from .execute.prepared_launches import PresetStatistics
from .loop.malloc_trim import give_back_freed
from .request.asked import Asked
from .request.network import Network
from .request.session import Session
from .request.stand_in import StandIns
from .statistics import RuntimeStatistics

if TYPE_CHECKING:
    from .request.warming import Progress

_PATIENCE_S = 2.0  # for a lost device
_NODE_NBYTES = 128 << 10  # that plans and recipes for likely shapes take for each node of a model, about
_WORTH = 16 << 20  # bytes that loading a model takes, after which freed memory is given back


class OneDevice:
    """A device of a runtime.

    Args:
        session: The device's.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._networks: list[Network] = []
        self._loading: list[Network] = []
        #: Models whose loading failed while their constants were being uploaded.
        self._leaving: list[Network] = []
        self._unloading: list[Network] = []
        #: Answers requests while kernels are missing; None where they wait for them.
        self.stand_ins: StandIns | None = None
        if session.options.uses("stand_in") and session.device.info.takes_source:
            self.stand_ins = StandIns(session)

    def __repr__(self) -> str:
        session, c = self.session, self.session.counters
        return (
            f"{session.name} {len(self._networks)} models, {c.requests} requests, {c.launches} launches, "
            f"{c.skipped} skipped, {session.dispatcher!r}, {session.pool!r}, {session.kernels!r}"
        )

    @property
    def _all(self) -> tuple[Network, ...]:
        """Those that are here, and those that come or go."""
        return (*self._networks, *self._loading, *self._leaving, *self._unloading)

    @property
    def in_flight(self) -> int:
        """How many inferences have not ended."""
        dispatcher = self.session.dispatcher
        beside = 0 if self.stand_ins is None else self.stand_ins.in_flight
        return dispatcher.in_flight + len(dispatcher.overlapping) + len(dispatcher.own_cores) + beside

    def asked(self, known: str | None) -> Asked | None:
        """Return the note of a model's first request; None where loading waits for all likely shapes, in any order.

        Args:
            known: What the model is known by; None if by nothing.
        """
        store = self.session.binaries
        return None if known is None or store is None or self.stand_ins is None else Asked(store, known)

    async def load(
        self,
        network: Network,
        known: str | None,
        progress: Callable[[Progress], object] | None,
        asked: Asked | None = None,
    ) -> None:
        """Bring a model here: what likely shapes need, as far as requests have to wait for it.

        Args:
            network: The model, as compiled for the device.
            known: What the model is known by; None if by nothing.
            progress: Called with how far the kernels are.
            asked: The note of its first request.
        """
        session = self.session
        if session.options.warm:
            self._loading.append(network)
            try:
                first = None if asked is None else await asyncio.to_thread(asked.layouts, network.program)
                await self._warm(network, known, first, progress)
                session.check_open()
            except BaseException:
                network.close()
                self._leaving = [n for n in (*self._leaving, network) if n.lets_go]
                raise
            finally:
                self._loading = [n for n in self._loading if n is not network]
        self._networks.append(network)
        if session.collector is not None and not session.dispatcher.in_flight:
            session.collector.quiet()  # so that what was loaded is frozen before requests come
        if _nbytes_of(network.program) < _WORTH:
            return
        if network.warming is None or network.warming.whole.done():
            await asyncio.to_thread(give_back_freed)
        else:
            network.warming.whole.add_done_callback(_give_back_later)

    async def _warm(
        self,
        network: Network,
        known: str | None,
        asked: list[Layout] | None,
        progress: Callable[[Progress], object] | None,
    ) -> None:
        """Bring what likely shapes need; where requests need not wait for it, only what is soon there."""
        self.session.check_open()
        beside, patience_s = self.stand_ins is not None, self.session.options.load_patience_s
        warming = network.begin_warming(
            lambda: self.in_flight > 0, urgent=not beside, patience_s=patience_s, model=known, asked=asked
        )
        if progress is not None:
            warming.tell(progress)
        if beside:
            either = (warming.whole, warming.first)
            with self.session.kernels.unpaused():
                await asyncio.wait(either, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.wait((warming.whole,))
        if warming.whole.done():
            warming.check()

    def holds(self, network: Network) -> bool:
        """Whether a model is here, and not about to go."""
        return network in self._networks

    async def unload(self, network: Network) -> None:
        """Give back what a model holds, when its inferences that are under way have ended."""
        self._networks.remove(network)
        # Should this be cancelled, or its constants still be on their way, then the runtime closes it.
        self._unloading.append(network)
        await network.unload()
        if not self.session.dispatcher.lost:
            self._unloading = [n for n in self._unloading if n is not network or n.lets_go]
        await asyncio.to_thread(give_back_freed)

    def statistics(self) -> RuntimeStatistics:
        """Return counts of what was done here and what is held."""
        session = self.session
        c = session.counters
        plans = [network.plan_counts() for network in self._networks]
        weights = [s for network in self._networks for s in network.weights_statistics()]
        return RuntimeStatistics(
            requests=c.requests,
            in_flight=self.in_flight,
            cancelled=c.cancelled,
            failed=c.failed,
            plans=c.plans,
            by_recipe=sum(c.by_recipe for c in plans),
            foreseen=sum(c.foreseen for c in plans),
            plans_kept=sum(c.kept for c in plans),
            replays=c.replays,
            launches=c.launches,
            native=sum(stream.native for stream in session.dispatcher.streams),
            skipped=c.skipped,
            scheduler=session.dispatcher.state.statistics(),
            memory=session.pool.statistics(),
            kernels=session.kernels.statistics(),
            weights=WeightsStatistics(*(sum(counts) for counts in zip(*map(attrs.astuple, weights), strict=True)))
            if weights
            else WeightsStatistics(0, 0, 0, 0, 0),
            stood_in=self.stand_ins.answered if self.stand_ins else 0,
            presets=PresetStatistics(0, 0, 0) if session.presets is None else session.presets.statistics(),
        )

    async def close(self) -> None:
        """Let what is enqueued run out and give everything back; commands on a lost device are not waited for."""
        session = self.session
        orphaned = session.loop.is_closed()
        if self.stand_ins is not None:
            if not orphaned and not session.dispatcher.lost:
                await self.stand_ins.finish_builds()
            await self.stand_ins.close(orphaned=orphaned)
        if not orphaned:
            for network in self._networks:
                network.stop_warming()
            await session.dispatcher.drained()
        lost = session.dispatcher.lost
        try:
            if session.presets is not None and session.presets.one is not None and not orphaned:
                await session.presets.one.building.close(_PATIENCE_S if lost else None)
            if session.specialiser is not None and not orphaned:
                await session.specialiser.trying.close(_PATIENCE_S if lost else None)
            session.kernels.stop()
            if not orphaned:
                for network in self._all:
                    await network.stop()
                await session.kernels.ended()
            if lost:
                await _abandonable(session.device.close, _PATIENCE_S)
            else:
                await asyncio.to_thread(session.device.close)
        finally:
            if session.collector is not None:
                session.collector.close()
            session.dispatcher.close()
            if session.checks is not None:
                session.checks.finish()
            await session.kernels.close()
            for network in self._all:
                network.device_closed()
            session.pool.close()
            self._networks, self._leaving, self._unloading = [], [], []
            await asyncio.to_thread(give_back_freed)


def _give_back_later(warmed: asyncio.Task[None]) -> None:
    """Give freed memory back when all is there that likely shapes need; the first answers need not wait for it."""
    if not warmed.cancelled():
        asyncio.get_running_loop().run_in_executor(None, give_back_freed)


def _nbytes_of(program: Program) -> int:
    """Return what a model takes on the host while it is loaded, about."""
    constants = sum(v.constant.nbytes for v in program.values if v.constant is not None)
    return constants + _NODE_NBYTES * len(program.nodes)


async def _abandonable(work: Callable[[], None], patience_s: float) -> None:
    """Return when *work*, on a thread, is done or has failed, or after *patience_s* seconds."""
    ended = on_own_thread("asyncrt-close", work)
    ended.add_done_callback(retrieved)
    await asyncio.wait((ended,), timeout=patience_s)
