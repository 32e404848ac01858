"""A device with its streams, memory and kernels, for any number of models and inferences."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import attrs

from asyncrt.arguments import check_path, whole
from asyncrt.devices.base import Device, DeviceInfo
from asyncrt.devices.find import open_device
from asyncrt.errors import ArgumentError, RuntimeClosedError
from asyncrt.loops import on_own_thread, retrieved
from asyncrt.options import RuntimeOptions
from asyncrt.scheduler.policies import make_policy

from .loop.forks import tell_children
from .loop.malloc_trim import give_back_freed
from .loop.trio_bridge import Elsewhere, anywhere, entered, find_elsewhere

if TYPE_CHECKING:
    from asyncrt.graph.reading import ModelSource
    from asyncrt.kernels.resident.kernel_cache import CacheStatistics
    from asyncrt.kernels.resident.store import BinaryStore
    from asyncrt.kernels.resident.weights import WeightsStatistics
    from asyncrt.layout import Layout
    from asyncrt.memory.pool import PoolStatistics
    from asyncrt.scheduler.state import SchedulerStatistics

    from .execute.prepared_launches import PresetStatistics
    from .model import Model
    from .request.network import Network
    from .request.session import Session
    from .request.stand_in import StandIns
    from .request.warming import Progress
    from .watch.checked import Checks

_PATIENCE_S = 2.0  # for a lost device
_MOST_STREAMS = 1024  # each has a thread


@attrs.frozen
class RuntimeStatistics:
    """What a runtime has done, and what it holds.

    Attributes:
        requests: Inferences begun.
        in_flight: Inferences not ended.
        cancelled, failed: Inferences that ended so.
        plans: Chunks planned: new shape signatures.
        by_recipe: Those made by the formulas of another shape's plan.
        foreseen: Those of them that were made before the step of a sequence that uses them had begun.
        plans_kept: Plans there to be used again.
        replays: Chunks run by a plan made before.
        launches: Kernels enqueued.
        native: How often native code enqueued all launches of a chunk, or of one of its lanes, in one call.
        skipped: Nodes skipped.
        stood_in: Inferences that NumPy answered, because kernels that they need were being built.
        scheduler: Requests by their state.
        memory: Of intermediates.
        kernels: Of built kernels.
        weights: Constants on the device, of all models.
        presets: Of launches whose arguments are set beforehand.
    """

    requests: int
    in_flight: int
    cancelled: int
    failed: int
    plans: int
    by_recipe: int
    foreseen: int
    plans_kept: int
    replays: int
    launches: int
    native: int
    skipped: int
    stood_in: int
    scheduler: SchedulerStatistics
    memory: PoolStatistics
    kernels: CacheStatistics
    weights: WeightsStatistics
    presets: PresetStatistics

    @property
    def kernels_built(self) -> int:
        """Kernels built by the driver."""
        return self.kernels.built

    @property
    def kernels_from_disk(self) -> int:
        """Kernels loaded from disk instead."""
        return self.kernels.from_disk

    @property
    def weights_nbytes(self) -> int:
        """Bytes of constants on the device."""
        return self.weights.nbytes


class Runtime:
    """Runs models on one device. Use it as ``async with asyncrt.Runtime() as rt``.

    Args:
        device: None for the best found, or "cpu", "gpu", "gpu:1", "opencl:0:1", "host", "simulated"; or a `Device`.
        streams: In-order queues to spread inferences over; None suits the device.
        options: Everything else.

    Raises:
        ArgumentError: An argument has a value that it cannot have.
    """

    def __init__(
        self, device: str | Device | None = None, *, streams: int | None = None, options: RuntimeOptions | None = None
    ) -> None:
        if options is not None and not isinstance(options, RuntimeOptions):
            raise ArgumentError(f"options must be RuntimeOptions or None, got a {type(options).__name__}")
        if not (device is None or isinstance(device, str) or hasattr(device, "open_stream")):
            raise ArgumentError(f"device must be its name, a Device or None, got a {type(device).__name__}")
        self._wanted = device
        self._streams = None if streams is None else whole("streams", streams, 1, _MOST_STREAMS)
        self.options = options or RuntimeOptions()
        make_policy(self.options.policy)  # raises if there is none
        self._session: Session | None = None
        self._networks: list[Network] = []
        #: Models whose loading failed while their constants were being uploaded.
        self._leaving: list[Network] = []
        self._unloading: list[Network] = []
        self._closing: asyncio.Task[None] | None = None
        #: Answers requests while kernels are missing; None where they wait for them.
        self._stand_ins: StandIns | None = None
                #: Where it runs if it was opened on another loop than one of asyncio's.
        self.elsewhere: Elsewhere | None = None

    def __repr__(self) -> str:
        session = self._session
        if session is None or session.state != "open":
            return f"<Runtime {'new' if session is None else session.state}>"
        c = session.counters
        return (
            f"<Runtime {session.device.info.spec} {len(self._networks)} models, {c.requests} requests, {c.launches} "
            f"launches, {c.skipped} skipped, {session.dispatcher!r}, {session.pool!r}, {session.kernels!r}>"
        )

    @property
    def session(self) -> Session:
        """What it shares with its models.

        Raises:
            RuntimeClosedError: It was not opened yet.
        """
        if self._session is None:
            hint = "use it inside `async with asyncrt.Runtime() as rt`"
            raise RuntimeClosedError("the runtime is not open yet", hint=hint)
        return self._session

    @property
    def device(self) -> Device:
        """The device."""
        return self.session.device

    @property
    def checks(self) -> Checks | None:
        """The checks of the order of its commands; None unless `RuntimeOptions.check_hazards` is on."""
        return self.session.checks

    @property
    def info(self) -> DeviceInfo:
        """What is known of the device."""
        return self.session.device.info

    @property
    def streams(self) -> int:
        """How many inferences the device works on at once."""
        return len(self.session.dispatcher.streams)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop it was opened on."""
        return self.session.loop

    async def __aenter__(self) -> Runtime:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Open the device; `async with` does it.

        Raises:
            NoDeviceError: There is none, or none that works, with the reasons.
        """
        if self._session is not None:
            raise RuntimeClosedError(f"the runtime is {self._session.state}; make a new one")
        elsewhere = self.elsewhere = find_elsewhere()
        if elsewhere is None:
            await self._open_here()
            return
        try:
            await elsewhere.call(self._open_here)
        except BaseException:
            await elsewhere.close()
            raise

    async def _open_here(self) -> None:
        wanted = self._wanted
        # What runs models is some hundred modules; they are imported while the driver is tried.
        imported = asyncio.create_task(asyncio.to_thread(_import_machinery))
        try:
            if wanted is None or isinstance(wanted, str):
                binaries = functools.partial(_binaries, self.options)
                wanted = await asyncio.to_thread(open_device, wanted, binaries)
        finally:
            await imported
        try:
            from .request.session import Session

            self._session = Session(wanted, self.options, self._streams, self.elsewhere)
        except BaseException:
            wanted.close()
            raise
        tell_children(self._session)
        if self.options.uses("stand_in") and wanted.info.takes_source:
            from .request.stand_in import StandIns

            self._stand_ins = StandIns(self._session)

    @anywhere
    async def load(self, source: ModelSource, *, progress: Callable[[Progress], object] | None = None) -> Model:
        """Load an ONNX model: check it, compile it for the device, bring its weights there.

        It waits for kernels for `RuntimeOptions.load_patience_s` at most. Those that take longer are built while
        requests run, and NumPy answers what needs them (docs/decisions/0014-numpy-answers-while-kernels-are-built.md);
        `Model.ready()` waits for them.

        Args:
            source: A path, the bytes of a file, or an `onnx.ModelProto`.
            progress: Called on the loop with how far the kernels are, until all are there.

        Raises:
            ModelError: One of its children, naming the node.
            KernelBuildError: The driver refused a kernel.
            OutOfDeviceMemory: The weights do not fit.
        """
        from asyncrt.graph.build import build_program
        from asyncrt.graph.reading import likeness

        from .model import Model
        from .request.asked import Asked
        from .request.network import Network

        self.check_here()
        session = self.session
        known = await asyncio.to_thread(likeness, source, self.options)
        if known is not None:
            session.kernels.foretell(known)
        program = await asyncio.to_thread(build_program, source, session.tools.traits, self.options)
        # Where loading waits for what all likely shapes need, their order makes no difference.
        asked = Asked(session.binaries, known) if self._stand_ins and session.binaries and known else None
        first = None if asked is None else await asyncio.to_thread(asked.layouts, program)
        self.check_open()
        network = Network(program, session, self._stand_ins, asked)
        if self.options.warm:
            try:
                await self._warm(network, known, first, progress)
                self.check_open()
            except BaseException:
                network.close()
                self._leaving = [n for n in (*self._leaving, network) if n.lets_go]
                raise
        self._networks.append(network)
        if session.collector is not None and not session.dispatcher.in_flight:
            session.collector.quiet()  # so that what was loaded is frozen before requests come
        if network.warming is None or network.warming.whole.done():
            await asyncio.to_thread(give_back_freed, _constants_nbytes(network))
        else:
            network.warming.whole.add_done_callback(functools.partial(_give_back_later, _constants_nbytes(network)))
        return Model(network)

    @anywhere
    async def unload(self, model: Model) -> None:
        """Give back what a model holds: its constants on the device, its plans, its file.

        Its inferences that are under way end as usual, and this waits for them; those begun after it are refused with
        `RuntimeClosedError`. Close its sequences and its batching before. Other models are not disturbed.

        Raises:
            ArgumentError: It is no model of this runtime, or was unloaded before.
        """
        from .model import Model

        self.check_here()
        network = model.network if isinstance(model, Model) else None
        if network is None or network not in self._networks:
            raise ArgumentError("model must be one that this runtime has loaded and not unloaded since")
        self._networks.remove(network)
        # Should this be cancelled, or its constants still be on their way, then the runtime closes it.
        self._unloading.append(network)
        await network.unload()
        self._unloading = [n for n in self._unloading if n is not network or n.lets_go]
        await asyncio.to_thread(give_back_freed, _constants_nbytes(network))

    @property
    def _in_flight(self) -> int:
        """How many inferences have not ended."""
        return self.session.dispatcher.in_flight + (0 if self._stand_ins is None else self._stand_ins.in_flight)

    async def _warm(
        self,
        network: Network,
        known: str | None,
        asked: list[Layout] | None,
        progress: Callable[[Progress], object] | None,
    ) -> None:
        """Bring what likely shapes need; where requests need not wait for it, only what is soon there."""
        beside, patience_s = self._stand_ins is not None, self.options.load_patience_s
        warming = network.begin_warming(
            lambda: self._in_flight > 0, urgent=not beside, patience_s=patience_s, model=known, asked=asked
        )
        if progress is not None:
            warming.tell(progress)
        if beside:
            await asyncio.wait((warming.whole, warming.first), timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
        if not beside or warming.whole.done():
            await warming.whole

    def statistics(self) -> RuntimeStatistics:
        """Return counts of what was done and what is held."""
        from asyncrt.kernels.resident.weights import WeightsStatistics

        from .execute.prepared_launches import PresetStatistics

        session = self.session
        c = session.counters
        plans = [network.plan_counts() for network in self._networks]
        weights = [s for network in self._networks for s in network.weights_statistics()]
        return RuntimeStatistics(
            requests=c.requests,
            in_flight=self._in_flight,
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
            stood_in=self._stand_ins.answered if self._stand_ins else 0,
            presets=PresetStatistics(0, 0, 0) if session.presets is None else session.presets.statistics(),
        )

    @contextlib.asynccontextmanager
    async def trace(self, path: str | Path) -> AsyncIterator[None]:
        """While this lasts, note what the streams and the host do; write it to *path* then, for Perfetto or Chrome.

        Requests that began before are in it with what they do meanwhile.

        Raises:
            AsyncrtError: Another trace is being taken.
        """
        async with entered(self.elsewhere, self._trace(check_path("path", path))):
            yield

    @contextlib.asynccontextmanager
    async def _trace(self, path: Path) -> AsyncIterator[None]:
        async with self.session.traced() as tracer:
            yield
        await asyncio.to_thread(tracer.trace().write, path)

    def check_open(self) -> None:
        """Raise unless the runtime is open.

        Raises:
            RuntimeClosedError: It was closed, or is not open yet.
            WrongLoopError: It is a copy that a fork has made.
            DeviceLostError: Its device is lost.
        """
        self.session.check_open()

    def check_here(self) -> None:
        """Raise as `check_open()` does, and `WrongLoopError` unless this is the event loop that it was opened on."""
        self.session.check_here()

    @property
    def left_behind(self) -> bool:
        """Whether this is a copy in a process that was forked: there is nothing to run or to close here."""
        return self._session is not None and self._session.left_behind

    async def close(self) -> None:
        """Let what is enqueued run out and give everything back. Inferences begun after this are refused.

        Whoever is cancelled while this waits is cancelled when it is done, so that nothing is left half closed. It does
        not wait for commands on a lost device. In a process that was forked there is nothing to close.

        Raises:
            WrongLoopError: It was opened on another loop, which is not closed.
        """
        elsewhere = self.elsewhere
        if elsewhere is None or elsewhere.here:
            await self._close_here()
            return
        try:
            await elsewhere.call(self._close_here)
        finally:
            await elsewhere.close()

    async def _close_here(self) -> None:
        session = self._session
        if session is None or session.left_behind:
            return
        if session.state == "open":
            if not session.loop.is_closed():  # otherwise nobody waits there any more
                session.check_loop()
            session.end()
            self._closing = asyncio.create_task(self._close(session))
        if self._closing is None:
            return
        cancelled = False
        while not self._closing.done():
            try:
                await asyncio.wait((self._closing,))
            except asyncio.CancelledError:
                cancelled = True
        if cancelled:
            raise asyncio.CancelledError
        self._closing.result()

    async def _close(self, session: Session) -> None:
        orphaned = session.loop.is_closed()
        if self._stand_ins is not None:
            await self._stand_ins.close(orphaned=orphaned)
        if not orphaned:
            for network in self._networks:
                network.stop_warming()
            await session.dispatcher.drained()
        lost = session.dispatcher.lost
        try:
            if session.specialiser is not None and not orphaned:
                await session.specialiser.close(_PATIENCE_S if lost else None)
            session.kernels.stop()
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
            for network in (*self._networks, *self._leaving, *self._unloading):
                network.device_closed()
            session.pool.close()


def _give_back_later(nbytes: int, warmed: asyncio.Task[None]) -> None:
    """Give freed memory back when all is there that likely shapes need; the first answers need not wait for it."""
    if not warmed.cancelled():
        asyncio.get_running_loop().run_in_executor(None, give_back_freed, nbytes)


def _constants_nbytes(network: Network) -> int:
    return sum(v.constant.nbytes for v in network.program.values if v.constant is not None)


def _import_machinery() -> None:
    """Import what an open runtime needs: whoever only names `Runtime` does without. Blocks."""
    from asyncrt.graph import build  # noqa: F401
    from asyncrt.kernels.registry import operators

    from . import model  # noqa: F401
    from .request import stand_in  # noqa: F401  # and with it networks and sessions

    operators()


def _binaries(options: RuntimeOptions) -> BinaryStore | None:
    """Return where compiled kernels are kept, if they are."""
    from .request.session import kept_binaries

    return kept_binaries(options)


async def _abandonable(work: Callable[[], None], patience_s: float) -> None:
    """Return when *work*, on a thread, is done or has failed, or after *patience_s* seconds."""
    ended = on_own_thread("asyncrt-close", work)
    ended.add_done_callback(retrieved)
    await asyncio.wait((ended,), timeout=patience_s)
