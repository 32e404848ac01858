"""A device, its streams, its memory and its kernels, for as many models and inferences as one likes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from asyncio import get_running_loop
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import TracebackType

import attrs

from asyncrt.arguments import whole
from asyncrt.devices.base import Device, DeviceInfo, Stream
from asyncrt.devices.find import open_device
from asyncrt.errors import ArgumentError, AsyncrtError, RuntimeClosedError, WrongLoopError
from asyncrt.events import Timeline
from asyncrt.given import check_path
from asyncrt.graph.program import build_program
from asyncrt.graph.reading import ModelSource
from asyncrt.kernels.cache import CacheStatistics, ImplCache
from asyncrt.kernels.operator import DeviceTraits
from asyncrt.kernels.registry import operators
from asyncrt.kernels.store import BinaryStore, cache_folder
from asyncrt.kernels.weights import WeightsStatistics
from asyncrt.memory.host import host_limit
from asyncrt.memory.pool import MemoryPool, PoolStatistics
from asyncrt.options import RuntimeOptions
from asyncrt.scheduler.policies import make_policy
from asyncrt.scheduler.state import SchedulerState, SchedulerStatistics
from asyncrt.version import __version__

from .branches import branches_of
from .checked import CheckedDevice, CheckedStream, CheckedTimeline, Checks
from .collecting import Collector
from .counters import Counters
from .dispatcher import Dispatcher
from .elsewhere import Elsewhere, anywhere, entered, find_elsewhere
from .forked import tell_children
from .freed import give_back_freed
from .model import Model
from .network import Network
from .preset import Presets, PresetStatistics
from .specialise import Specialiser
from .tools import Tools
from .traced import TracedStream, Tracer
from .watched import WatchedDevice, WatchedStream

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
        foreseen: Those made so before their step of a sequence came.
        plans_kept: Plans there to be used again.
        replays: Chunks run by a plan made before.
        launches: Kernels enqueued.
        native: Times that native code enqueued those of a chunk, or of one of its lanes.
        skipped: Nodes skipped.
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
        ArgumentError: One of these cannot be so.
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
        self._state = "new"
        self._networks: list[Network] = []
        #: Those whose loading failed while their constants were brought.
        self._leaving: list[Network] = []
        self._closing: asyncio.Task[None] | None = None
        self._counters = Counters()
        self._checks: Checks | None = None
        #: Where it runs if it was opened on another loop than one of asyncio's.
        self.elsewhere: Elsewhere | None = None
        self._collector: Collector | None = None

    def __repr__(self) -> str:
        if self._state != "open":
            return f"<Runtime {self._state}>"
        c = self._counters
        return (
            f"<Runtime {self.device.info.spec} {len(self._networks)} models, {c.requests} requests, "
            f"{c.launches} launches, {c.skipped} skipped, {self._dispatcher!r}, {self._pool!r}, {self._impls!r}>"
        )

    @property
    def checks(self) -> Checks | None:
        """What is checked of the order of its commands; None unless `RuntimeOptions.check_hazards` is on."""
        return self._checks

    @property
    def info(self) -> DeviceInfo:
        """What is known of the device."""
        return self.device.info

    @property
    def streams(self) -> int:
        """How many inferences the device works on at once."""
        return len(self._dispatcher.streams)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop it was opened on."""
        return self._loop

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
        if self._state != "new":
            raise RuntimeClosedError(f"the runtime is {self._state}; make a new one")
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
        self._loop = asyncio.get_running_loop()
        wanted = self._wanted
        # The operators are some hundred modules; they are imported while the driver is tried.
        imported = asyncio.create_task(asyncio.to_thread(operators))
        try:
            if wanted is None or isinstance(wanted, str):
                wanted = await asyncio.to_thread(open_device, wanted, self._binaries)
        finally:
            await imported
        self.device: Device = wanted
        try:
            self._open()
        except BaseException:
            if self._collector is not None:
                self._collector.close()
            self.device.close()
            raise
        self._state = "open"
        tell_children(self)

    def _binaries(self) -> BinaryStore | None:
        """Return where compiled kernels are kept, if they are."""
        return BinaryStore(cache_folder(self.options)) if self.options.disk_cache else None

    def _open(self) -> None:
        info, options = self.device.info, self.options
        count = self._streams or (4 if info.kind == "gpu" else max(1, min(2, info.compute_units)))
        open_stream = functools.partial(self.device.open_stream, options.pinned, options.spin, options.native_submit)
        streams: list[Stream] = [open_stream() for _ in range(count)]
        reports = self.device.reports(streams) if options.native_callbacks else None
        self._uploads = WatchedStream(open_stream())  # networks keep it; a trace puts another behind it
        timeline = Timeline(count)
        self._watched_device = self._memory_device = WatchedDevice(self.device)
        if options.check_hazards:
            checks = self._checks = Checks(count + 1)
            streams = [CheckedStream(s, i, checks) for i, s in enumerate(streams)]
            self._uploads = CheckedStream(self._uploads.stream, count, checks, self._loop)
            timeline = CheckedTimeline(count, checks)
            self._memory_device = CheckedDevice(self.device, checks)
        limit = options.memory_limit or info.memory * 9 // 10
        self._pool = MemoryPool(self._memory_device, timeline, limit, reuse=options.pool)
        self._collector = Collector(self._loop) if options.collect_when_idle else None
        self._dispatcher = Dispatcher(
            streams, self._scheduler(count), timeline,
            checks=self._checks, on_idle=self._pool.trim, idle_s=options.idle_release_s,
            collector=self._collector,
        )  # fmt: skip
        self._dispatcher.when_lost.add(lambda error: self._pool.keep_all())
        if reports is not None:
            self._dispatcher.listen(reports)
        self._impls = ImplCache(
            self._watched_device,
            self._binaries() if info.takes_source else None,
            version=__version__,
            threads=options.build_threads,
            entries=options.impl_cache_entries,
            nbytes=options.impl_cache_bytes,
            timeout_s=options.build_timeout_s,
        )
        self._specialiser = None
        if options.specialise and options.replay and info.takes_source:
            self._specialiser = Specialiser(self.device, self._impls, self._dispatcher)
        self._presets = None
        if options.preset and options.replay:
            self._presets = Presets(
                self.device, options.preset_entries, native=options.native_submit, hold=options.hold_tiny
            )
        traits = DeviceTraits(
            kind="cpu" if info.is_cpu else "gpu",
            compute_units=info.compute_units,
            max_group=info.max_group,
            features=info.features,
            packed_weights=options.packed_weights,
            narrow_weights=options.precision == "bf16",
        )
        self._tools = Tools(
            traits,
            info.takes_source,
            self.device.pack,
            options.skip,
            views=options.skip and options.views,
            in_place=options.in_place,
            origins=options.check_hazards,
            branches=branches_of(options.branches, info, count),
            host_limit=host_limit(options.memory_limit),
            max_rank=options.max_rank,
        )

    def _scheduler(self, streams: int) -> Callable[[], SchedulerState]:
        """Return what makes schedulers that know no request."""
        policy, most = self.options.policy, self.options.max_in_flight
        return lambda: SchedulerState(streams, make_policy(policy), max_in_flight=most)

    @anywhere
    async def load(self, source: ModelSource) -> Model:
        """Load an ONNX model: check it, compile it for the device, bring its weights there.

        Args:
            source: A path, the bytes of a file, or an `onnx.ModelProto`.

        Raises:
            ModelError: One of its children, naming the node.
            KernelBuildError: The driver refused a kernel.
            OutOfDeviceMemory: The weights do not fit.
        """
        self.check_here()
        program = await asyncio.to_thread(build_program, source, self._tools.traits, self.options)
        self.check_open()
        network = Network(
            program, self._memory_device, self._dispatcher, self._pool, self._impls, self._uploads, self._tools,
            self.options, self._counters, self._specialiser, self._presets,
        )  # fmt: skip
        if self.options.warm:
            try:
                await network.warm()
                self.check_open()
            except BaseException:
                network.close()
                self._leaving = [n for n in (*self._leaving, network) if n.lets_go]
                raise
        self._networks.append(network)
        if self._collector is not None and not self._dispatcher.in_flight:
            self._collector.quiet()  # so that what was loaded is frozen before requests come
        loaded = sum(v.constant.nbytes for v in program.values if v.constant is not None)
        await asyncio.to_thread(give_back_freed, loaded)
        return Model(self, network)

    def statistics(self) -> RuntimeStatistics:
        """Return counts of what was done and what is held."""
        c = self._counters
        plans = [network.plan_counts() for network in self._networks]
        weights = [s for network in self._networks for s in network.weights_statistics()]
        return RuntimeStatistics(
            requests=c.requests,
            in_flight=self._dispatcher.in_flight,
            cancelled=c.cancelled,
            failed=c.failed,
            plans=c.plans,
            by_recipe=sum(c.by_recipe for c in plans),
            foreseen=sum(c.foreseen for c in plans),
            plans_kept=sum(c.kept for c in plans),
            replays=c.replays,
            launches=c.launches,
            native=sum(stream.native for stream in self._dispatcher.streams),
            skipped=c.skipped,
            scheduler=self._dispatcher.state.statistics(),
            memory=self._pool.statistics(),
            kernels=self._impls.statistics(),
            weights=WeightsStatistics(*(sum(counts) for counts in zip(*map(attrs.astuple, weights), strict=True)))
            if weights
            else WeightsStatistics(0, 0, 0, 0, 0),
            presets=PresetStatistics(0, 0, 0) if self._presets is None else self._presets.statistics(),
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
        async with self.traced() as tracer:
            yield
        await asyncio.to_thread(tracer.trace().write, path)

    @contextlib.asynccontextmanager
    async def traced(self) -> AsyncIterator[Tracer]:
        """Give a tracer that is told of everything while this lasts; afterwards the streams have passed all of it."""
        self.check_here()
        dispatcher, uploads = self._dispatcher, self._uploads
        await dispatcher.submissions.none()  # streams are exchanged between chunks
        self.check_open()
        if dispatcher.tracer is not None:
            raise AsyncrtError("a trace of this runtime is being taken", hint="wait until it has ended")
        tracer = Tracer(self.device, self._pool.statistics)
        traced: list[TracedStream] = []
        with contextlib.ExitStack() as undo:
            for i, stream in enumerate([*dispatcher.streams, uploads]):
                name = "constants" if stream is uploads else f"stream {i}"
                if isinstance(stream, WatchedStream):
                    between = tracer.stream(stream.stream, i, name)
                    undo.callback(setattr, stream, "stream", between.stream)
                    stream.stream = between
                else:
                    between = tracer.stream(stream, i, name)
                    undo.callback(dispatcher.streams.__setitem__, i, stream)
                    dispatcher.streams[i] = between
                undo.callback(between.stream.time_commands, False)
                traced.append(between)
            undo.callback(setattr, self._watched_device, "on_build", None)
            undo.callback(setattr, dispatcher, "tracer", None)
            self._watched_device.on_build, dispatcher.tracer = tracer.built, tracer
            yield tracer
        if self._state == "open":  # otherwise they were closed, and that waits for everything
            await asyncio.gather(*(self._passed(number, stream) for number, stream in enumerate(traced)))

    async def _passed(self, number: int, stream: TracedStream) -> None:
        """Return when the device has passed what is on a stream."""
        await self._dispatcher.submissions.turn(number)  # nobody else marks it until it is all there
        await stream.passed(self._dispatcher.when_lost)

    def check_open(self) -> None:
        """Raise unless the runtime is open.

        Raises:
            RuntimeClosedError: It was closed, or is not open yet.
            WrongLoopError: It is a copy that a fork has made.
            DeviceLostError: Its device is lost.
        """
        if self._state != "open":
            if self.left_behind:
                raise WrongLoopError(
                    "the runtime belongs to the process that opened it, and this one was forked from that",
                    hint="open a runtime in each process after it has begun, or start processes by 'spawn'",
                )
            new = self._state == "new"
            hint = "use it inside `async with asyncrt.Runtime() as rt`" if new else ""
            raise RuntimeClosedError(f"the runtime is {'not open yet' if new else 'closed'}", hint=hint)
        self._dispatcher.check_lost()

    def check_here(self) -> None:
        """Raise as `check_open()` does, and `WrongLoopError` unless this is the event loop that it was opened on."""
        self.check_open()
        if get_running_loop() is not self._loop:
            self._check_loop()

    def _check_loop(self) -> None:
        if get_running_loop() is not self._loop:
            raise WrongLoopError(
                "the runtime is used on another event loop than it was opened on",
                detail=f"opened on   {self._loop!r}\nused on     {get_running_loop()!r}",
                hint="open a runtime on each loop; from other threads use `infer_sync()` or `load_sync()`",
            )

    @property
    def left_behind(self) -> bool:
        """Whether this is a copy in a process that was forked: there is nothing to run or to close here."""
        return self._state == "left behind"

    def leave_behind(self) -> None:
        """Note that this is such a copy."""
        self._state = "left behind"

    async def close(self) -> None:
        """Let what is enqueued run out and give everything back. Inferences begun after this are refused.

        Who is cancelled while waiting for it waits on, and is cancelled then: nothing is left behind half closed. What
        a lost device has is not waited for. In a process that was forked there is nothing to close.

        Raises:
            WrongLoopError: The loop that it was opened on is another one, and not closed.
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
        if self.left_behind:
            return
        if self._state == "open":
            if not self._loop.is_closed():  # otherwise nobody waits there any more
                self._check_loop()
            self._state = "closed"
            self._closing = asyncio.create_task(self._close())
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

    async def _close(self) -> None:
        orphaned = self._loop.is_closed()
        if not orphaned:
            await self._dispatcher.drained()
        lost = self._dispatcher.lost
        try:
            if self._specialiser is not None and not orphaned:
                await self._specialiser.close(_PATIENCE_S if lost else None)
            if lost:
                await _abandonable(self.device.close, _PATIENCE_S)
            else:
                await asyncio.to_thread(self.device.close)
        finally:
            if self._collector is not None:
                self._collector.close()
            self._dispatcher.close()
            if self._checks is not None:
                self._checks.finish()
            await self._impls.close()
            for network in (*self._networks, *self._leaving):
                network.device_closed()
            self._pool.close()


async def _abandonable(work: Callable[[], None], patience_s: float) -> None:
    """Return when *work*, on a thread, is done or has failed, or after *patience_s* seconds."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def run() -> None:
        with contextlib.suppress(Exception):
            work()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(done.set)

    # A daemon: the interpreter would wait for any other, and nothing ends a thread inside a driver.
    threading.Thread(target=run, name="asyncrt-close", daemon=True).start()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patience_s):
            await done.wait()
