"""Answers requests with NumPy while kernels that they need are being built.

What runs is the same program, on the reference device (`asyncrt/devices/host.py`), with one stream, and so one request
at a time: others that wait for it go to the device as soon as their kernels are there. The first requests of a model
are answered so; after `ENOUGH` requests or `ENOUGH_S` seconds those that have no deadline wait for a while, and builds
get the processor; then NumPy answers as many again. Constants are read where the
model has them. All of it is made when it is needed first, and is gone once no kernel is missing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from asyncrt.devices.host import HostDevice
from asyncrt.errors import DeviceError, OutOfDeviceMemory, OutOfHostMemory
from asyncrt.graph.ir import Program
from asyncrt.graph.reading.mapped import check, file_of
from asyncrt.layout import Array
from asyncrt.memory.host import host_limit
from asyncrt.runtime.execute.kept_state import KeptState
from asyncrt.runtime.plan.chunk_plan import Deferred, Records, flat

from .missing_kernels import KernelsMissing
from .network import Network
from .session import Session

_log = logging.getLogger("asyncrt")

ENOUGH = 8
"""Requests of a model that NumPy answers before others rather wait for kernels.

A caller who asks again and again is served sooner so: NumPy takes the processor that builds need.
"""
ENOUGH_S = 0.5
"""Seconds that NumPy computes for a model, all its requests together, after which it is enough as well."""
FINISH_S = 2.0
"""Seconds that closing waits for builds at most; as long again for the first, if none was done by then."""
ALONE_S = 0.5
"""Seconds from a model's first request for which no build begins.

Beside compilers on all cores NumPy takes five to ten times as long: threads of its products wait for each other.
"""


class StandIns:
    """The stand-in of one runtime: NumPy, for as long as kernels are missing.

    Args:
        session: The runtime's.

    Attributes:
        answered: How many requests were answered so, all time.
        spent_s: Seconds that those waited for their answers.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._present: _Present | None = None
        #: Those that are to end, and those that are ending.
        self._retiring: set[asyncio.Task[None]] = set()
        self.answered, self.spent_s = 0, 0.0

    @property
    def present(self) -> bool:
        """Whether there is a stand-in now."""
        return self._present is not None

    @property
    def in_flight(self) -> int:
        """How many requests it has, those that wait for it included."""
        return 0 if self._present is None else self._present.session.dispatcher.in_flight

    def has_done_enough(self, program: Program) -> bool:
        return self._present is not None and self._present.has_done_enough(program)

    async def answer(
        self,
        network: Network,
        missing: KernelsMissing,
        arrays: Mapping[int, Array],
        priority: int,
        deadline: float | None,
    ) -> tuple[dict[int, Array], Records] | None:
        """Return a request's outcome; None once it is better to give it to the device.

        Raises:
            AsyncrtError: What the request raises by itself, or why the device will never have what it needs.
        """
        present = self._present
        if present is None:
            present = self._present = _Present(self._session)
            present.retiring = asyncio.create_task(self._retire(present))
            self._retiring.add(present.retiring)
            present.retiring.add_done_callback(self._retiring.discard)
        begin = time.perf_counter()
        if not present.knows(network.program):
            self._session.kernels.hold_back(ALONE_S)
        instead = present.network(network.program)
        instead.goes_on()
        answer = asyncio.create_task(instead.infer(arrays, priority, deadline=deadline))
        present.answers.add(answer)
        answer.add_done_callback(present.ended)
        either: set[asyncio.Task[Any]] = {answer, missing.bound}
        try:
            done, _ = await asyncio.wait(either, timeout=ENOUGH_S, return_when=asyncio.FIRST_COMPLETED)
            if not done:  # by now it is as good to wait for the kernels
                with self._session.kernels.waited_for():
                    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            answer.cancel()  # if it is not done
        if not answer.done():
            missing.bound.result()  # raises what the builds raised
            return None
        try:
            outputs, records = answer.result()
        except (DeviceError, OutOfHostMemory, OutOfDeviceMemory) as error:  # of NumPy's, which need not be the device's
            _log.info("'%s': NumPy does not answer for the device: %s", network.program.name, error)
            return None
        took = time.perf_counter() - begin
        self.answered, self.spent_s = self.answered + 1, self.spent_s + took
        why = f"answered by NumPy in {took:.3g} s, because {missing.why}"
        _log.info("a request of '%s' was %s", network.program.name, why)
        return outputs, [Deferred(lambda: tuple(r._replace(note=why) for r in flat(records)))]

    async def finish_builds(self) -> None:
        """Let missing kernels come for as long as requests waited for NumPy because of them, and one at least.

        The next process finds them. So a model that many short processes use gets its kernels, some in each, and none
        takes much more than twice as long as without.
        """
        kernels = self._session.kernels
        if self._session.binaries is not None and self.answered and kernels.building:
            one, every = asyncio.ensure_future(kernels.one_settled()), asyncio.ensure_future(kernels.settled())
            with kernels.waited_for():
                await asyncio.wait((every,), timeout=min(self.spent_s, FINISH_S))
                await asyncio.wait((one,), timeout=FINISH_S)
            one.cancel()
            every.cancel()

    async def _retire(self, present: _Present) -> None:
        """Let the stand-in go when no kernel is missing and nobody waits for it."""
        while present.answers or self._session.kernels.building:
            await self._session.kernels.settled()
            if present.answers:
                await asyncio.wait(present.answers)
        if self._present is present:
            self._present = None
        await present.close()

    async def close(self, *, orphaned: bool = False) -> None:
        """Let what is under way run out and give everything back.

        Args:
            orphaned: The loop of the requests is closed, so that nothing is under way any more.
        """
        present, self._present = self._present, None
        if present is not None:
            if not orphaned:
                present.retiring.cancel()
                await asyncio.wait((present.retiring,))
            await present.close(orphaned=orphaned)
        if self._retiring and not orphaned:
            await asyncio.wait(self._retiring)


class _Present:
    """NumPy as a device of its own, beside the runtime's."""

    def __init__(self, beside: Session) -> None:
        options = beside.options
        self.device = HostDevice(adopts_arrays=True)
        self.session = Session(
            self.device,
            attrs.evolve(
                options,
                max_in_flight=1, memory_limit=host_limit(options.memory_limit), weights_bytes=None,
                idle_release_s=None, collect_when_idle=False, specialise=False,
            ),
            streams=1,
        )  # fmt: skip
        self._networks: dict[Program, _NumpyNetwork] = {}
        #: Requests that are being answered, or wait for that.
        self.answers: set[asyncio.Task[tuple[dict[int, Array], Records]]] = set()
        self.retiring: asyncio.Task[None]
        self._closed = False

    def knows(self, program: Program) -> bool:
        """Whether a request of *program* has come before."""
        return program in self._networks

    def network(self, program: Program) -> _NumpyNetwork:
        network = self._networks.get(program)
        if network is None:
            network = self._networks[program] = _NumpyNetwork(program, self.session, self.device.drop)
        return network

    def has_done_enough(self, program: Program) -> bool:
        network = self._networks.get(program)
        return network is not None and network.has_done_enough

    def ended(self, answer: asyncio.Task[tuple[dict[int, Array], Records]]) -> None:
        self.answers.discard(answer)
        if not answer.cancelled():
            answer.exception()  # somebody may have gone to the device meanwhile

    async def close(self, *, orphaned: bool = False) -> None:
        if self._closed:
            return
        self._closed = True
        session = self.session
        session.end()
        if not orphaned:
            await session.dispatcher.drained()
            for network in self._networks.values():
                await network.stop()
        await asyncio.to_thread(self.device.close)
        session.dispatcher.close()
        if session.checks is not None:
            session.checks.finish()
        await session.kernels.close()
        for network in self._networks.values():
            network.device_closed()
        session.pool.close()


class _NumpyNetwork(Network):
    """A network on the stand-in.

    Args:
        drop: Lets what is enqueued do nothing; only one request at a time has anything there.

    """

    def __init__(self, program: Program, session: Session, drop: Callable[[], None]) -> None:
        super().__init__(program, session)
        #: Of requests, whatever came of them, and seconds that they took, since others have waited for kernels.
        self._ran, self._spent_s = 0, 0.0
        self._drop = drop
        constants = [value.constant for value in program.values if value.constant is not None]
        #: One for each file of which constants are read where they lie.
        self._of_files = list({file: c for c in constants if (file := file_of(c)) is not None}.values())

    @property
    def has_done_enough(self) -> bool:
        """Whether requests are to wait for kernels for a while."""
        return self._ran >= ENOUGH or self._spent_s >= ENOUGH_S

    def goes_on(self) -> None:
        """One is to be answered all the same: it has waited long enough."""
        if self.has_done_enough:
            self._ran, self._spent_s = 0, 0.0

    async def run(
        self, request: int, arrays: Mapping[int, Array], kept: KeptState | None, *, patience_s: float
    ) -> tuple[dict[int, Array], Records]:
        begin = time.perf_counter()
        self._check_files()  # who reads what was cut off is ended by the system
        try:
            outcome = await super().run(request, arrays, kept, patience_s=patience_s)
        except asyncio.CancelledError:
            self._drop()
            raise
        finally:
            self._ran += 1
            self._spent_s += time.perf_counter() - begin
        self._check_files()
        return outcome

    def _check_files(self) -> None:
        for constant in self._of_files:
            check(constant)
