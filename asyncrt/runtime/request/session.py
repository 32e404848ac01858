"""What an open runtime shares with everything that runs on it: its streams, its memory, its kernels, its options.

It is made when the device is open, and says whether the runtime is still open, and where its event loop is.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from asyncio import get_running_loop
from collections.abc import AsyncIterator, Callable, Sequence

from asyncrt.devices.base import Allocation, BuildsGently, Device, DeviceInfo, LaunchesAside, LoadsAhead, Stream
from asyncrt.errors import AsyncrtError, DeviceLostError, RuntimeClosedError, WrongLoopError
from asyncrt.events import Timeline
from asyncrt.kernels.resident.build_pauses import BuildPauses
from asyncrt.kernels.resident.kernel_cache import ImplCache
from asyncrt.kernels.resident.store import BinaryStore, cache_folder
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.memory.host import host_limit
from asyncrt.memory.pool import MemoryPool
from asyncrt.options import RuntimeOptions
from asyncrt.runtime.counters import Counters
from asyncrt.runtime.execute.one_launch import PATIENCE_S, OneLaunch
from asyncrt.runtime.execute.prepared_launches import Presets
from asyncrt.runtime.execute.specialise import Specialiser
from asyncrt.runtime.loop.crew import Crew, TellEnd, find_crew
from asyncrt.runtime.loop.dispatcher import Dispatcher
from asyncrt.runtime.loop.gc_pauses import Collector
from asyncrt.runtime.loop.planning_turns import PlanningTurns
from asyncrt.runtime.loop.trio_bridge import Elsewhere
from asyncrt.runtime.plan.bound_plan import BoundPlan
from asyncrt.runtime.plan.parallel_lanes import branches_of
from asyncrt.runtime.plan.tools import Tools
from asyncrt.runtime.watch.checked import CheckedDevice, CheckedStream, CheckedTimeline, Checks
from asyncrt.runtime.watch.traced import TracedStream, Tracer
from asyncrt.runtime.watch.watched import WatchedDevice, WatchedStream
from asyncrt.scheduler.policies import make_policy
from asyncrt.scheduler.state import SchedulerState
from asyncrt.version import __version__

from .callers_turns import CallersTurns

_APART = 4  # on a CPU: each of so many is one call of the driver, and less than a copy that travels with others
_NICE = 10  # by which builds yield to requests: they get a tenth of a core that both want


class Session:
    """An open runtime, as its models and requests see it.

    Args:
        device: That was opened.
        streams: How many in-order queues; None suits the device.
        elsewhere: Where the runtime runs if its callers are not on asyncio's loops.
        name: What the device is called; "" by its spec.

    Attributes:
        dispatcher: Carries out what the scheduler decides.
        pool: Memory of intermediates.
        kernels: Those that are built.
        binaries: Where they are kept, with notes of models; None where nothing is.
        uploads: A stream for constants.
        memory_device: The device, as those see it that allocate: where hazards are checked, the checker is told.
        tools: What planning needs to know.
        counters: What was done so far.
        specialiser: None where kernels are not specialised.
        presets: None where no arguments are set beforehand.
        checks: None where hazards are not checked.
        loop: The event loop that the runtime was opened on.
        turns: Of the callers whose threads run requests.
        planning: Turns of the threads that plan for likely sizes.
        devices: How many there are, as `Sessions` has several.
    """

    devices = 1

    def __init__(
        self,
        device: Device,
        options: RuntimeOptions,
        streams: int | None = None,
        elsewhere: Elsewhere | None = None,
        name: str = "",
    ) -> None:
        self.name = name or device.info.spec
        self.device, self.options, self.elsewhere = device, options, elsewhere
        self.loop = get_running_loop()
        self.counters = Counters()
        self.checks: Checks | None = None
        self._state = "open"
        info = device.info
        count = streams or stream_count(info)
        native = options.uses("native_submit")
        opening = functools.partial(device.open_stream, options.uses("pinned"), options.spin, native)
        opened: list[Stream] = [opening() for _ in range(count)]

        aside = device if native and isinstance(device, LaunchesAside) else None

        def crew(cores: int, ended: TellEnd) -> Crew:
            return find_crew(aside, cores, opening, self.loop, ended)

        watched, timeline = self._watched(opened, opening())
        limit = options.memory_limit or info.memory * 9 // 10
        self.pool = MemoryPool(self.memory_device, timeline, limit, reuse=options.uses("pool"))
        self.collector = Collector(self.loop) if options.collect_when_idle else None
        self.dispatcher = Dispatcher(
            watched, _scheduler(options, count), timeline,
            checks=self.checks, on_idle=self.pool.trim, idle_s=options.idle_release_s, collector=self.collector,
            max_iterations=options.max_iterations, most=options.max_in_flight,
            cores=info.compute_units,
            open_crew=crew if streams is None and _may_own_cores(info, options) else None,
            open_launcher=None if aside is None else aside.open_launcher,
        )  # fmt: skip
        self.turns = CallersTurns(self.dispatcher, self.loop, device.clock)
        self.planning = PlanningTurns()
        self.dispatcher.when_lost.add(functools.partial(_keep_all, self.pool))
        self.binaries = kept_binaries(options) if info.takes_source else None
        self.kernels = _kernel_cache(device, self._watched_device, self.binaries, options, self.dispatcher)
        self.specialiser = None
        if options.specialise and options.uses("replay") and info.takes_source:
            self.specialiser = Specialiser(device, self.kernels, self.dispatcher)
        self.presets = None
        if options.uses("prepared_launches"):
            one = None
            if options.uses("one_launch") and "persistent" in info.features:
                one = OneLaunch(device, self.kernels, count)
            self.presets = Presets(device, options.plan_bytes, native=native, one=one, pauses=self.kernels.pauses)
        self.tools = _tools(device, options, count)

    def _watched(self, streams: list[Stream], uploads: Stream) -> tuple[list[Stream], Timeline]:
        """Wrap the streams and the device where hazards are checked; returns the streams that requests see."""
        count = len(streams)
        self.uploads = WatchedStream(uploads)  # networks hold it, so a trace wraps the stream behind it
        self._watched_device = self.memory_device = WatchedDevice(self.device)
        if not self.options.check_hazards:
            return streams, Timeline(count)
        checks = self.checks = Checks(count + 1)
        self.uploads = CheckedStream(self.uploads.stream, count, checks, self.loop)
        self.memory_device = CheckedDevice(self.device, checks)
        return [CheckedStream(s, i, checks) for i, s in enumerate(streams)], CheckedTimeline(count, checks)

    @property
    def streams(self) -> int:
        """How many chunks the device works on at once."""
        return len(self.dispatcher.streams)

    def check_stalled(self, bound: BoundPlan, memory: Sequence[Allocation], seconds: float) -> None:
        """Raise `DeviceStalledError` if groups of the launch of a plan, which took so long, gave up."""
        if seconds >= PATIENCE_S and self.presets is not None:
            self.presets.check(bound, memory, seconds)

    # Whether it is open, and where.

    @property
    def state(self) -> str:
        """Return "open", "closed" or "left behind"."""
        return self._state

    def check_open(self) -> None:
        """Raise unless the runtime is open.

        Raises:
            RuntimeClosedError: It was closed.
            WrongLoopError: It is a copy that a fork has made.
            DeviceLostError: Its device is lost.
        """
        if self._state != "open":
            if self.left_behind:
                raise WrongLoopError(
                    "the runtime belongs to the process that opened it, and this one was forked from that",
                    hint="open a runtime in each process after it has begun, or start processes by 'spawn'",
                )
            raise RuntimeClosedError("the runtime is closed")
        self.dispatcher.check_lost()

    def check_here(self) -> None:
        """Raise as `check_open()` does, and `WrongLoopError` unless this is the event loop that it was opened on."""
        self.check_open()
        if get_running_loop() is not self.loop:
            self.check_loop()

    def check_loop(self) -> None:
        """Raise `WrongLoopError` unless this is the event loop that it was opened on."""
        if get_running_loop() is not self.loop:
            raise WrongLoopError(
                "the runtime is used on another event loop than it was opened on",
                detail=f"opened on   {self.loop!r}\nused on     {get_running_loop()!r}",
                hint="open a runtime on each loop; from other threads use `infer_sync()` or `load_sync()`",
            )

    @property
    def left_behind(self) -> bool:
        """Whether this is a copy in a process that was forked: there is nothing to run or to close here."""
        return self._state == "left behind"

    def leave_behind(self) -> None:
        """Note that this is such a copy."""
        self._state = "left behind"

    def end(self) -> None:
        """Refuse all calls from now on."""
        self._state = "closed"

    # Traces.

    @contextlib.asynccontextmanager
    async def traced(self) -> AsyncIterator[Tracer]:
        """Give a tracer that is told of everything while this lasts; afterwards the streams have passed all of it."""
        self.check_here()
        dispatcher, uploads = self.dispatcher, self.uploads
        await dispatcher.submissions.none()  # streams are exchanged between chunks
        self.check_open()
        if dispatcher.tracer is not None:
            raise AsyncrtError("a trace of this runtime is being taken", hint="wait until it has ended")
        dispatcher.overlapping.drain()
        tracer = Tracer(self.device, self.pool.statistics, self.name)
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
        await self.dispatcher.submissions.turn(number)  # the mark must be behind what a thread still enqueues
        await stream.passed(self.dispatcher.when_lost)


def _kernel_cache(
    device: Device, watched: Device, store: BinaryStore | None, options: RuntimeOptions,
    dispatcher: Dispatcher,
) -> ImplCache:  # fmt: skip
    """Return what builds and keeps a device's kernels; where requests need not wait for builds, these give way."""
    gentle = device if isinstance(device, BuildsGently) else None
    rests = gentle if device.info.is_cpu else None
    beside = gentle if options.uses("stand_in") and gentle is not None and gentle.build_gently() else None
    return ImplCache(
        watched,
        store,
        version=__version__,
        threads=options.build_threads or device.builds_at_once,
        nbytes=options.kernel_cache_bytes,
        timeout_s=options.build_timeout_s,
        nice=_NICE if options.uses("stand_in") and beside is None else 0,
        hurry=None if beside is None else beside.hurry_builds,
        ahead=device if isinstance(device, LoadsAhead) else None,
        pauses=None if rests is None else BuildPauses(rests.pause_builds, functools.partial(_busy, dispatcher)),
    )


def _busy(dispatcher: Dispatcher) -> bool:
    return dispatcher.in_flight > 0


def _keep_all(pool: MemoryPool, lost: DeviceLostError) -> None:
    pool.keep_all()


def kept_binaries(options: RuntimeOptions) -> BinaryStore | None:
    """Return where compiled kernels are kept, if they are."""
    return BinaryStore(cache_folder(options)) if options.uses("disk_cache") else None


def stream_count(info: DeviceInfo) -> int:
    """Return how many in-order queues suit a device.

    A kernel does not keep many cores busy to its end, nor while the next is begun: other requests' kernels do. Four
    cores for each queue answer most requests a second; one or two cores each answer no more, and each takes longer.
    """
    if info.kind == "gpu":
        return 4
    return max(min(2, info.compute_units), min(info.compute_units // 4, 8))


def _may_own_cores(info: DeviceInfo, options: RuntimeOptions) -> bool:
    """Whether requests may have cores of their own."""
    return info.compute_units > 1 and "local_thread" in info.features and options.uses("own_cores")


def _scheduler(options: RuntimeOptions, streams: int) -> Callable[[], SchedulerState]:
    """Return what makes schedulers that know no request."""
    policy, most = options.policy, options.max_in_flight
    return lambda: SchedulerState(streams, make_policy(policy), max_in_flight=most)


def _tools(device: Device, options: RuntimeOptions, streams: int) -> Tools:
    info = device.info
    traits = DeviceTraits(
        kind="cpu" if info.is_cpu else "gpu",
        compute_units=info.compute_units,
        max_group=info.max_group,
        local_memory=info.local_memory,
        features=info.features,
        registers=info.registers,
        packed_weights=options.uses("packed_weights"),
        winograd=options.uses("winograd"),
        split_floats=options.uses("split_floats"),
        narrow_weights=options.precision == "bf16",
    )
    return Tools(
        traits,
        info.takes_source,
        device.pack,
        options.uses("skip"),
        views=options.uses("views"),
        in_place=options.uses("in_place"),
        origins=options.check_hazards,
        branches=branches_of(options.branches, info, streams),
        host_limit=host_limit(options.memory_limit),
        apart=_APART if info.is_cpu else 0,
        max_rank=options.max_rank,
    )
