"""Devices with their streams, memory and kernels, for any number of models and inferences."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeAlias

from asyncrt.arguments import check_listener, check_path, whole
from asyncrt.devices.base import Device, DeviceInfo
from asyncrt.devices.find import open_devices
from asyncrt.errors import ArgumentError, DeviceLostError, RuntimeClosedError
from asyncrt.loops import to_its_end
from asyncrt.options import RuntimeOptions
from asyncrt.scheduler.policies import make_policy
from asyncrt.uncollected import uncollected

from .loop.forks import tell_children
from .loop.trio_bridge import Elsewhere, anywhere, entered, find_elsewhere
from .statistics import RuntimeStatistics, together

if TYPE_CHECKING:
    from asyncrt.graph.ir import Program
    from asyncrt.graph.kept.programs import Found
    from asyncrt.graph.reading.source import ModelSource
    from asyncrt.kernels.resident.store import BinaryStore
    from asyncrt.kernels.traits import DeviceTraits
    from asyncrt.scheduler.balancing import Backlog
    from asyncrt.trace import Trace

    from .model import Model
    from .one_device import OneDevice
    from .request.network import Network
    from .request.replicas import Replicas
    from .request.session import Session
    from .request.warming import Progress
    from .watch.checked import Checks

_MOST_STREAMS = 1024  # each has a thread

Wanted: TypeAlias = "str | Device | Sequence[str | Device] | None"
"""How a user names one or several devices."""


class Runtime:
    """Runs models on one device, or on several. Use it as ``async with asyncrt.Runtime() as rt``.

    On several devices each model is on all of them, and a request goes to the one where it ends first.

    Args:
        device: None for the best found, or "cpu", "gpu", "gpu:1", "opencl:0:1", "host", "simulated"; or a `Device`.
            "gpu:*" is all of a kind; "gpu:0,gpu:2", or a sequence of names and devices, is several.
        streams: In-order queues of each device to spread inferences over; None suits the device.
        options: Everything else. Limits of memory and of requests in flight are each device's.

    Raises:
        ArgumentError: An argument has a value that it cannot have.
    """

    def __init__(
        self, device: Wanted = None, *, streams: int | None = None, options: RuntimeOptions | None = None
    ) -> None:
        if options is not None and not isinstance(options, RuntimeOptions):
            raise ArgumentError(f"options must be RuntimeOptions or None, got a {type(options).__name__}")
        self._wanted = _wanted(device)
        self._streams = None if streams is None else whole("streams", streams, 1, _MOST_STREAMS)
        self.options = options or RuntimeOptions()
        make_policy(self.options.policy)  # raises if there is none
        self._devices: tuple[OneDevice, ...] = ()
        #: What each of several devices has to do.
        self._backlogs: tuple[Backlog, ...] = ()
        self._closing: asyncio.Task[None] | None = None
        #: Programs that are being written for the next process.
        self._keeping: set[asyncio.Future[None]] = set()
        #: Where it runs if it was opened on another loop than one of asyncio's.
        self.elsewhere: Elsewhere | None = None

    def __repr__(self) -> str:
        state = self._state
        if state != "open":
            return f"<Runtime {state}>"
        return f"<Runtime {'; '.join(map(repr, self._devices))}>"

    @property
    def _state(self) -> str:
        return self._devices[0].session.state if self._devices else "new"

    @property
    def sessions(self) -> tuple[Session, ...]:
        """What each device shares with its models.

        Raises:
            RuntimeClosedError: It was not opened yet.
        """
        if not self._devices:
            hint = "use it inside `async with asyncrt.Runtime() as rt`"
            raise RuntimeClosedError("the runtime is not open yet", hint=hint)
        return tuple([device.session for device in self._devices])

    @property
    def session(self) -> Session:
        """That of the first device."""
        return self.sessions[0]

    @property
    def device(self) -> Device:
        """The device; of several the first."""
        return self.session.device

    @property
    def checks(self) -> Checks | None:
        """The checks of the order of its commands; None unless `RuntimeOptions.check_hazards` is on.

        Of several devices those of the first; `sessions` has each.
        """
        return self.session.checks

    @property
    def info(self) -> DeviceInfo:
        """What is known of the device; of several the first."""
        return self.session.device.info

    @property
    def infos(self) -> tuple[DeviceInfo, ...]:
        """What is known of each device."""
        return tuple([session.device.info for session in self.sessions])

    @property
    def streams(self) -> int:
        """How many inferences the devices work on at once."""
        return sum(session.streams for session in self.sessions)

    @property
    def depths(self) -> list[int]:
        """How many chunks each stream has to pass, device after device."""
        depths: list[int] = []
        for session in self.sessions:
            counts = Counter(event.stream for event in session.dispatcher.marks.pending)
            depths += [counts[i] for i in range(session.streams)]
        return depths

    @property
    def lost(self) -> bool:
        """Whether no device takes commands any more."""
        return all(session.dispatcher.lost for session in self.sessions)

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
        """Open the devices; `async with` does it.

        Raises:
            NoDeviceError: There is none, or none that works, with the reasons.
        """
        if self._devices:
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
        with uncollected():
            await self._open_devices()

    async def _open_devices(self) -> None:
        # What runs models is some hundred modules; they are imported while the driver is tried.
        imported = asyncio.create_task(asyncio.to_thread(_import_machinery, self.options))
        try:
            if any(isinstance(wanted, str | None) for wanted in self._wanted):
                binaries = functools.partial(_binaries, self.options)
                found = await asyncio.to_thread(open_devices, self._wanted, binaries)
            else:
                found = open_devices(self._wanted)
        finally:
            await imported
        from .one_device import OneDevice
        from .request.session import Session

        try:
            names = _names([device.info.spec for device in found])
            self._devices = tuple([
                OneDevice(Session(device, self.options, self._streams, self.elsewhere, name))
                for device, name in zip(found, names, strict=True)
            ])
        except BaseException:
            for device in found:
                device.close()
            raise
        for session in self.sessions:
            tell_children(session)
        if len(found) > 1:
            from asyncrt.scheduler.balancing import Backlog

            self._backlogs = tuple([Backlog() for _ in found])
            _share_builds(self.sessions)

    @anywhere
    async def load(self, source: ModelSource, *, progress: Callable[[Progress], object] | None = None) -> Model:
        """Load an ONNX model: check it, compile it for each device, bring its weights there.

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
        from asyncrt.graph.reading.source import likeness

        from .model import Model

        self.check_here()
        check_listener("progress", progress)
        there = [i for i, device in enumerate(self._devices) if not device.session.dispatcher.lost]
        known = await asyncio.to_thread(likeness, source, self.options)
        if known is not None:
            for i in there:
                self._devices[i].session.kernels.foretell(known)
        found = await self._compiled(source, known, [self._devices[i] for i in there])
        self.check_open()
        programs = [each.program for each in found]
        if len(self._devices) == 1:
            from .request.network import Network

            device = self._devices[0]
            asked = device.asked(known)
            network = Network(programs[0], device.session, device.stand_ins, asked)
            await device.load(network, known, progress, asked)
            self._keep_later(found[0], network)
            return Model(network)
        replicas = await self._on_several(there, programs, known, progress)
        for each in set(found):
            self._keep_later(each, replicas.each[0])
        return Model(replicas)

    async def _compiled(self, source: ModelSource, known: str | None, devices: list[OneDevice]) -> list[Found]:
        """Return the model as compiled for each device; for devices that are alike it is read and compiled once."""
        from asyncrt.graph.kept.programs import find_program

        made: dict[DeviceTraits, Found] = {}
        for device in devices:
            traits, store = device.session.tools.traits, device.session.binaries
            if traits not in made:
                made[traits] = await asyncio.to_thread(find_program, source, known, traits, self.options, store)
        return [made[device.session.tools.traits] for device in devices]

    def _keep_later(self, found: Found, network: Network) -> None:
        """Keep a model's program when all is there that likely shapes need, or when that has been given up."""
        keep, loop = found.keep, asyncio.get_running_loop()
        if keep is None:
            return

        def begin(_: object = None) -> None:
            keeping = loop.run_in_executor(None, keep)
            self._keeping.add(keeping)
            keeping.add_done_callback(self._keeping.discard)

        if network.warming is None:
            begin()
        else:
            network.warming.whole.add_done_callback(begin)

    async def _on_several(
        self,
        there: list[int],
        programs: list[Program],
        known: str | None,
        progress: Callable[[Progress], object] | None,
    ) -> Replicas:
        """Bring a model to several devices; if one of them refuses it, to none."""
        from asyncrt.scheduler.balancing import Costs

        from .request.replicas import Replica, Replicas, on_each, summed

        costs: dict[str, Costs] = {}  # devices that are alike learn together
        replicas: list[tuple[OneDevice, Replica]] = []
        for i, program in zip(there, programs, strict=True):
            device = self._devices[i]
            alike = costs.setdefault(device.session.device.info.identity, Costs())
            replica = Replica(program, device.session, device.stand_ins, backlog=self._backlogs[i], costs=alike)
            replicas.append((device, replica))
        told = summed(progress, len(replicas))
        try:
            await on_each([d.load(r, known, tell) for (d, r), tell in zip(replicas, told, strict=True)])
        except BaseException:
            for device, replica in replicas:
                if device.holds(replica):
                    with contextlib.suppress(RuntimeClosedError, DeviceLostError):
                        await device.unload(replica)
            raise
        return Replicas([replica for device, replica in replicas if device.holds(replica)])

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
        holding = [
            (device, network)
            for network in (model.network.each if isinstance(model, Model) else ())
            for device in self._devices
            if device.holds(network)
        ]
        if not holding:
            raise ArgumentError("model must be one that this runtime has loaded and not unloaded since")
        await asyncio.gather(*(device.unload(network) for device, network in holding))

    def statistics(self) -> RuntimeStatistics:
        """Return counts of what was done and what is held: of several devices the sums, and each under its name."""
        self.sessions  # noqa: B018  # raises if it is not open yet
        return together({device.session.name: device.statistics() for device in self._devices})

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
        async with self.traced() as trace:
            yield
        await asyncio.to_thread(lambda: trace().write(path))

    @contextlib.asynccontextmanager
    async def traced(self) -> AsyncIterator[Callable[[], Trace]]:
        """While this lasts, note what the streams and the host do; gives what returns the trace then.

        A device that is lost is left out.

        Raises:
            AsyncrtError: Another trace is being taken.
        """
        self.check_here()
        async with contextlib.AsyncExitStack() as stack:
            tracers = [
                await stack.enter_async_context(session.traced())
                for session in self.sessions
                if not session.dispatcher.lost
            ]
            from .watch.traced import together as drawn_together

            yield lambda: drawn_together(tracers)

    def check_open(self) -> None:
        """Raise unless the runtime is open.

        Raises:
            RuntimeClosedError: It was closed, or is not open yet.
            WrongLoopError: It is a copy that a fork has made.
            DeviceLostError: Its device is lost; of several, all are.
        """
        self._there.check_open()

    def check_here(self) -> None:
        """Raise as `check_open()` does, and `WrongLoopError` unless this is the event loop that it was opened on."""
        self._there.check_here()

    @property
    def _there(self) -> Session:
        """A device that is not lost, if there is any."""
        return next((s for s in self.sessions if not s.dispatcher.lost), self.sessions[0])

    @property
    def left_behind(self) -> bool:
        """Whether this is a copy in a process that was forked: there is nothing to run or to close here."""
        return bool(self._devices) and self.session.left_behind

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
        if not self._devices or self.left_behind:
            return
        if self._state == "open":
            session = self.session
            if not session.loop.is_closed():  # otherwise nobody waits there any more
                session.check_loop()
            for each in self.sessions:
                each.end()
            self._closing = asyncio.create_task(self._close())
        if self._closing is not None:
            await to_its_end(self._closing)

    async def _close(self) -> None:
        outcomes = await asyncio.gather(*(device.close() for device in self._devices), return_exceptions=True)
        await asyncio.sleep(0)  # models that were still on their way begin to be kept
        here = [keeping for keeping in self._keeping if keeping.get_loop() is asyncio.get_running_loop()]
        if here:
            await asyncio.wait(here)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome


def _wanted(device: Wanted) -> tuple[str | Device | None, ...]:
    """Return the devices that are named, one by one."""
    several = isinstance(device, Sequence) and not isinstance(device, str)
    each = tuple(device) if isinstance(device, Sequence) and not isinstance(device, str) else (device,)
    for one in each:
        if not (isinstance(one, str) or hasattr(one, "open_stream") or (one is None and not several)):
            raise ArgumentError(
                f"device must be its name, a Device, several of them or None, got a {type(one).__name__}"
            )
    if not each:
        raise ArgumentError("device must name at least one device, got none")
    return each


def _share_builds(sessions: Sequence[Session]) -> None:
    """Let devices that take each other's binaries build each kernel once."""
    for session in sessions:
        session.kernels.alike = tuple([
            other.kernels
            for other in sessions
            if other is not session and other.device.info.identity == session.device.info.identity
        ])


def _names(specs: list[str]) -> list[str]:
    """Return what devices are called: their specs, with a number behind that of one that is open already."""
    seen: Counter[str] = Counter()
    names: list[str] = []
    for spec in specs:
        seen[spec] += 1
        names.append(spec if seen[spec] == 1 else f"{spec}#{seen[spec]}")
    return names


def _import_machinery(options: RuntimeOptions) -> None:
    """Import what an open runtime needs: whoever only names `Runtime` does without. Blocks."""
    from asyncrt.graph.kept.programs import import_ahead

    from . import model, one_device  # noqa: F401  # and with it networks and sessions

    import_ahead(options, _binaries(options))


def _binaries(options: RuntimeOptions) -> BinaryStore | None:
    """Return where compiled kernels are kept, if they are."""
    from .request.session import kept_binaries

    return kept_binaries(options)
