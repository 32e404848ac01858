"""Which specialised kernels are built, measured and used? All of that happens beside the requests, never in their way.

A plan that is replayed often asks for variants of its steps; `kernels/codegen/variants.py` decides which. Each is built
when nobody waits for another build, and measured against the kernel that it would replace while no request is there: on
memory of its own, filled with zeros, which are valid indices and valid data. Until then, and for good where nothing is
gained, the generic kernel serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from asyncrt.devices.base import Device, Kernel, Stream
from asyncrt.errors import (
    AsyncrtError,
    DeviceCommandError,
    DeviceLostError,
    KernelBuildError,
    OutOfDeviceMemory,
    RuntimeClosedError,
)
from asyncrt.kernels.codegen.variants import Variant, Variants, variant_of
from asyncrt.kernels.impl import KernelSource
from asyncrt.kernels.resident.kernel_cache import ImplCache
from asyncrt.loops import settle_later
from asyncrt.lru import LruCache
from asyncrt.runtime.loop.background import BackgroundWork
from asyncrt.runtime.loop.dispatcher import Dispatcher
from asyncrt.runtime.plan.bound_plan import BoundPlan
from asyncrt.runtime.plan.chunk_plan import PlanStep

OFTEN = 64  # replays after which a plan asks
_CHOSEN = 512  # variants in use
_SCRATCH = 64 << 20  # bytes: plans of larger arenas are not measured
_ROUNDS = 15
_BATCH_S, _BATCH = 0.5e-3, 16  # launches are timed together: for so long, but no more than so many
_TRIES = 8  # times that requests may interrupt a measurement

Timings: TypeAlias = tuple[list[float], list[float]]
Measure: TypeAlias = Callable[[BoundPlan, int, Kernel], Awaitable[Timings | None]]


class Specialiser:
    """The specialised variants of a runtime's kernels.

    Args:
        device: What they run on.
        impls: Builds them.
        dispatcher: Knows whether a request is there.
        measure: Times a step of a plan with its own kernel and with another; for tests.
    """

    def __init__(
        self, device: Device, impls: ImplCache, dispatcher: Dispatcher, *, measure: Measure | None = None
    ) -> None:
        self._device = device
        self._impls = impls
        self._dispatcher = dispatcher
        self.measure = measure or self.measure_on_device
        self.variants = Variants()
        #: Those in use; asked for by plans that are replayed.
        self._chosen: LruCache[Variant, Kernel] = LruCache(_CHOSEN)
        #: What builds and measures.
        self.trying = BackgroundWork()
        self._stream: Stream | None = None
        #: Changes with the variants in use: a plan bound at another generation may be bound anew.
        self.generation = 0

    def __repr__(self) -> str:
        return f"<Specialiser {len(self._chosen)} in use, {self.variants!r}>"

    def kernel(self, step: PlanStep) -> Kernel | None:
        """Return the specialised kernel of a step, if there is one and it is faster."""
        variant = _variant(step)
        return None if variant is None else self._chosen.peek(variant)

    def saw(self, bound: BoundPlan, times: int) -> None:
        """Note that a plan was replayed *times* times more."""
        steps = bound.plan.steps
        variants = {i: v for i, step in enumerate(steps) if (v := _variant(step)) is not None}
        self.variants.saw(variants.values(), times)
        for variant in variants.values():
            self._chosen.get(variant)
        if bound.plan.arena_nbytes <= _SCRATCH:
            self.trying.begin(functools.partial(self._work, bound, variants))

    async def _work(self, bound: BoundPlan, variants: dict[int, Variant]) -> None:
        """Build and measure what is worth it of a plan."""
        # Memory of earlier chunks is not at hand.
        own = {i: v for i, v in variants.items() if all(b == bound.plan.chunk for b in _arenas(bound, i))}
        index_of = {v: i for i, v in own.items()}
        while (variant := self.variants.next(index_of)) is not None:
            try:
                begun = time.perf_counter()
                source = variant.source()
                kernel = (await self._impls.ensure([source], urgent=False))[source]
                self.variants.built(time.perf_counter() - begun)
                timings = await self.measure(bound, index_of[variant], kernel)
            except (RuntimeClosedError, OutOfDeviceMemory, DeviceLostError):
                return
            except (KernelBuildError, DeviceCommandError):
                self.variants.failed(variant)
                continue
            if timings is None:
                return  # there are too many requests; the plan will ask again
            if self.variants.measured(variant, *timings):
                self._chosen.put(variant, kernel)
                self.generation += 1

    async def measure_on_device(self, bound: BoundPlan, index: int, special: Kernel) -> Timings | None:
        """Return seconds for a launch in every round: the step's own kernel, and *special*. None if disturbed."""
        if self._stream is None:
            self._stream = self._device.open_stream()
        for _ in range(_TRIES):
            while not self._idle:
                await self._dispatcher.progress()
                self._dispatcher.check_lost()
            allocation = self._device.allocate(max(bound.plan.arena_nbytes, 1))
            try:
                self._stream.fill(allocation, 0, bound.plan.arena_nbytes, 0)
                timings = await self._rounds(bound.steps[index], allocation, special)
            finally:
                self._device.release(allocation)
            if timings is not None:
                return timings
        return None

    @property
    def _idle(self) -> bool:
        return not self._dispatcher.busy and not self._dispatcher.in_flight

    async def _rounds(self, step: tuple[Any, ...], allocation: Any, special: Kernel) -> Timings | None:
        generic, buffers, *arguments = step
        memory = [allocation if isinstance(b, int) else b for b in buffers]
        await self._time(special, memory, arguments, 1)  # a first launch may cost the driver more
        once = min([await self._time(generic, memory, arguments, 1) for _ in range(2)])
        count = max(1, min(_BATCH, int(_BATCH_S / once)))
        timings: Timings = ([], [])
        for round in range(_ROUNDS):
            both = ((generic, timings[0]), (special, timings[1]))
            for kernel, seconds in both if round % 2 else both[::-1]:
                if not self._idle:
                    return None
                seconds.append(await self._time(kernel, memory, arguments, count))
        return timings

    async def _time(self, kernel: Kernel, memory: list[Any], arguments: list[Any], count: int) -> float:
        """Return seconds for a launch, of *count* in a row. If cancelled, waits for the device all the same."""
        assert self._stream is not None
        reached: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        begun = time.perf_counter()
        for _ in range(count):
            self._stream.launch(kernel, memory, *arguments)

        def passed(error: BaseException | None) -> None:
            settle_later(reached, error, (time.perf_counter() - begun) / count)

        self._stream.when_reached(self._stream.mark(), passed)
        try:
            return await asyncio.shield(reached)
        except asyncio.CancelledError:
            with contextlib.suppress(AsyncrtError):
                await reached
            raise


def _variant(step: PlanStep) -> Variant | None:
    if not isinstance(step.kernel, KernelSource) or not step.kernel.ints:
        return None
    return variant_of(step.kernel, step.ints, step.varying)


def _arenas(bound: BoundPlan, index: int) -> list[int]:
    return [b for b in bound.plan.steps[index].buffers if isinstance(b, int)]
