"""Constants on the device: as the model has them, or packed the way a kernel wants them.

Each is uploaded once per program and layout, however many inferences ask at the same time; all of them wait until it
has arrived, so that no kernel needs an event for a weight.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import attrs
import numpy as np

from asyncrt.devices.base import Device, Stream
from asyncrt.errors import RuntimeClosedError
from asyncrt.layout import Array


class Stored(NamedTuple):
    """A constant in a layout; the empty layout is the model's own."""

    value: int
    layout: str = ""


class Packing(NamedTuple):
    """How the bytes of a `Stored` are made; None is the constant as it is."""

    key: Stored
    pack: Callable[[Array], Array] | None = None


@attrs.frozen
class WeightsStatistics:
    """Counts of a `WeightsCache`.

    Attributes:
        entries: Constants on the device; one in two layouts counts twice.
        nbytes: Their bytes.
        packed: Entries in another layout than the model's.
    """

    entries: int
    nbytes: int
    packed: int


class WeightsCache:
    """The constants of one program on one device.

    Args:
        device: Where they go.
        stream: Carries the uploads.
        constant: Gives a constant's value by its id.
    """

    def __init__(self, device: Device, stream: Stream, constant: Callable[[int], Array]) -> None:
        self._device = device
        self._stream = stream
        self._constant = constant
        self._entries: dict[Stored, Any] = {}
        self._nbytes: dict[Stored, int] = {}
        self._pending: dict[Stored, asyncio.Future[None]] = {}
        self._closed = False

    def __repr__(self) -> str:
        s = self.statistics()
        return f"<WeightsCache {s.entries} entries ({s.packed} packed), {s.nbytes} bytes>"

    def statistics(self) -> WeightsStatistics:
        return WeightsStatistics(
            len(self._entries), sum(self._nbytes.values()), sum(1 for k in self._entries if k.layout)
        )

    def get(self, key: Stored) -> Any:
        """Return the device memory of a constant that `ensure` has brought there."""
        return self._entries[key]

    def missing(self, packings: Iterable[Packing]) -> list[Packing]:
        """Return those that are not on the device yet."""
        return [p for p in packings if p.key not in self._entries]

    async def ensure(self, packings: Iterable[Packing]) -> None:
        """Return when all are on the device.

        Raises:
            OutOfDeviceMemory: They do not fit. Those that did stay; the others are tried again the next time.
            RuntimeClosedError: The program was closed before they arrived.
        """
        wanted = self.missing(packings)
        for packing in wanted:
            if packing.key not in self._pending:
                task = asyncio.ensure_future(self._bring(packing))
                task.add_done_callback(_seen)
                self._pending[packing.key] = task
        tasks = {self._pending[p.key] for p in wanted if p.key in self._pending}
        await asyncio.gather(*(asyncio.shield(t) for t in tasks))

    async def _bring(self, packing: Packing) -> None:
        try:
            data = self._constant(packing.key.value)
            if packing.pack is not None:
                data = await asyncio.to_thread(packing.pack, data)
            data = np.ascontiguousarray(data)
            self._check_open()
            allocation = self._device.allocate(max(data.nbytes, 1))
            try:
                await self._upload(allocation, data)
                self._check_open()
            except BaseException:
                self._device.release(allocation)
                raise
            self._entries[packing.key] = allocation
            self._nbytes[packing.key] = data.nbytes
        finally:
            self._pending.pop(packing.key, None)

    async def _upload(self, allocation: Any, data: Array) -> None:
        loop = asyncio.get_running_loop()
        arrived: asyncio.Future[None] = loop.create_future()
        if data.nbytes:
            self._stream.write(allocation, 0, data)

        def reached(error: BaseException | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_settle, arrived, error)

        self._stream.when_reached(self._stream.mark(), reached)
        await arrived

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeClosedError("the program was closed while its constants were brought to the device")

    def close(self) -> None:
        """Give the memory back; the device must have passed all commands that use it."""
        self._closed = True
        for allocation in self._entries.values():
            self._device.release(allocation)
        self._entries.clear()
        self._nbytes.clear()


def _settle(future: asyncio.Future[None], error: BaseException | None) -> None:
    if not future.done():
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


def _seen(task: asyncio.Future[None]) -> None:
    """Fetch the outcome, so that a failure nobody waits for any more is not reported as lost."""
    if not task.cancelled():
        task.exception()
