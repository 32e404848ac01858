"""Constants on the device: as the model has them, or packed the way a kernel wants them.

Each is uploaded once per program and layout, however many inferences ask at the same time; all of them wait until it
has arrived, so that no kernel needs an event for a weight. A layout that turns out to be the model's own bytes shares
their memory. Where there is a bound, what nobody uses leaves: packed ones first, those unused longest first.
"""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import numpy as np

from asyncrt.devices.base import Device, Stream, mark_behind
from asyncrt.errors import OutOfDeviceMemory, RuntimeClosedError
from asyncrt.layout import Array
from asyncrt.loops import end, retrieved, tell_loop
from asyncrt.memory.own_pages import bytes_of, same_bytes
from asyncrt.memory.paged import page_out, pages_of

_PAGED = 1 << 20  # bytes of a constant that is worth a file
_PACKERS = 2  # constants that are packed or on their way packed at once: each is a copy in host memory


class Stored(NamedTuple):
    """A constant in a layout; the empty layout is the model's own."""

    value: int
    layout: str = ""


class Packing(NamedTuple):
    """How the bytes of a `Stored` are made; None is the constant as it is."""

    key: Stored
    pack: Callable[[Array], Array] | None = None


class Resident:
    """A constant on the device as its users have it: as long as one holds it, its memory stays.

    Attributes:
        memory: The device's own object.
    """

    __slots__ = ("__weakref__", "memory")

    def __init__(self, memory: Any) -> None:
        self.memory = memory


@attrs.define(eq=False)
class _Resident:
    """Memory with a constant in it.

    Attributes:
        keys: What it is; more than one where layouts are the same bytes.
        users: Finds the `Resident` that its users hold, if there are any.
    """

    keys: list[Stored]
    memory: Any
    nbytes: int
    users: Callable[[], Resident | None] = lambda: None

    def resident(self) -> Resident:
        resident = self.users()
        if resident is None:
            resident = Resident(self.memory)
            self.users = weakref.ref(resident)
        return resident


@attrs.define(eq=False)
class _Upload:
    """Memory that a constant is on its way to.

    Attributes:
        arrived: What its task waits for; done before the stream is past the upload if that was given up.
        passed: Whether the stream is.
    """

    memory: Any
    nbytes: int
    arrived: asyncio.Future[None]
    passed: bool = False


@attrs.frozen
class WeightsStatistics:
    """Counts of a `WeightsCache`.

    Attributes:
        entries: Constants on the device; one in two layouts counts twice.
        nbytes: Their bytes, those on their way included.
        packed: Entries in another layout than the model's.
        shared: Those among them that are the model's bytes all the same, and need no memory of their own.
        evictions: Entries that left because there was no room, all time.
    """

    entries: int
    nbytes: int
    packed: int
    shared: int
    evictions: int


class WeightsCache:
    """The constants of one program on one device.

    Args:
        device: Where they go.
        stream: Carries the uploads.
        constant: Gives a constant's value by its id.
        folder: Where files may be for constants that the device reads where they lie; None makes none.
        used: Told a value when it was read, for now; what it raises, those who wait for the constant are told.
        limit: Bytes beyond which those that nobody uses leave; None keeps all.
        let_go: Asked while there is no room and everything is in use: lets go of some constants that are not needed
            at the moment, and returns False if there are none.
    """

    def __init__(
        self,
        device: Device,
        stream: Stream,
        constant: Callable[[int], Array],
        *,
        folder: Path | None = None,
        used: Callable[[Array], None] = lambda constant: None,
        limit: int | None = None,
        let_go: Callable[[], bool] = lambda: False,
    ) -> None:
        self._device = device
        self._stream = stream
        self._constant = constant
        self._folder = folder if device.info.shares_memory else None
        self._used = used
        self._limit = limit
        self._let_go = let_go
        #: Least recently used first.
        self._entries: OrderedDict[Stored, _Resident] = OrderedDict()
        self._pending: dict[Stored, asyncio.Task[Resident]] = {}
        #: Those that the stream is not past, given up or not.
        self._uploads: set[_Upload] = set()
        self._packers = asyncio.Semaphore(_PACKERS)
        self._nbytes = 0
        self._evictions = 0
        self._closed = False

    def __repr__(self) -> str:
        s = self.statistics()
        return f"<WeightsCache {s.entries} entries ({s.packed} packed), {s.nbytes} bytes>"

    def statistics(self) -> WeightsStatistics:
        """Return the cache's numbers."""
        packed = [(key, entry) for key, entry in self._entries.items() if key.layout]
        return WeightsStatistics(
            entries=len(self._entries),
            nbytes=self._nbytes,
            packed=len(packed),
            shared=sum(Stored(key.value) in entry.keys for key, entry in packed),
            evictions=self._evictions,
        )

    def missing(self, packings: Iterable[Packing]) -> list[Packing]:
        """Return those that are not on the device."""
        return [p for p in packings if p.key not in self._entries]

    def at_hand(self, packings: Iterable[Packing]) -> Mapping[Stored, Resident] | None:
        """Return all as `ensure()` does if they are on the device; else None, and nothing is brought for it."""
        entries = [(packing.key, self._entries.get(packing.key)) for packing in packings]
        residents = {key: entry.resident() for key, entry in entries if entry is not None}
        if len(residents) < len(entries):
            return None
        for key in residents:
            self._entries.move_to_end(key)
        return residents

    async def ensure(self, packings: Iterable[Packing]) -> Mapping[Stored, Resident]:
        """Return all when they are on the device; they stay there as long as what is returned is held.

        Raises:
            OutOfDeviceMemory: They do not fit. Those that did stay; the others are tried again the next time.
            RuntimeClosedError: The program was closed before they arrived.
        """
        residents: dict[Stored, Resident] = {}
        tasks: dict[Stored, asyncio.Task[Resident]] = {}
        for packing in packings:
            entry = self._entries.get(packing.key)
            if entry is None:
                tasks[packing.key] = self._task(packing)
            else:
                self._entries.move_to_end(packing.key)
                residents[packing.key] = entry.resident()
        if not tasks:
            return residents
        # Shielded: who stops waiting must not stop what others wait for.
        arrived = await asyncio.gather(*(asyncio.shield(t) for t in tasks.values()))
        return residents | dict(zip(tasks, arrived, strict=True))

    def _task(self, packing: Packing) -> asyncio.Task[Resident]:
        """Return the task that brings a constant, which ends with what holds it."""
        task = self._pending.get(packing.key)
        if task is None:
            self._check_open()
            task = asyncio.create_task(self._bring(packing))
            task.add_done_callback(retrieved)
            self._pending[packing.key] = task
        return task

    async def _bring(self, packing: Packing) -> Resident:
        key = packing.key
        try:
            if packing.pack is None:
                constant = np.ascontiguousarray(self._constant(key.value))
                return await self._adopt(key, constant) or await self._store(key, constant)
            async with self._packers:
                constant = self._constant(key.value)
                data = await asyncio.to_thread(_pack, packing.pack, constant)
                self._used(constant)
                if data is not None:
                    return await self._store(key, data)
            # The same bytes: reinterpreted, as it were.
            plain = Packing(Stored(key.value))
            resident = (await self.ensure([plain]))[plain.key]
            self._check_open()
            entry = self._entries[plain.key]
            entry.keys.append(key)
            self._entries[key] = entry
            return resident
        except asyncio.CancelledError:
            self._check_open()  # those who wait for it are told so, and are not cancelled themselves
            raise
        finally:
            self._pending.pop(key, None)

    async def _adopt(self, key: Stored, constant: Array) -> Resident | None:
        """Let the device read a constant where it lies, or a large one in a file of its own; None if it should have a copy."""
        if self._device.info.adopts_arrays:
            memory = self._allocate(constant.nbytes, functools.partial(self._device.adopt, bytes_of(constant)))
            entry = self._entries[key] = _Resident([key], memory, constant.nbytes)
            return entry.resident()
        if self._folder is None or constant.nbytes < _PAGED:
            return None
        pages = pages_of(constant)
        if pages is None:
            paged = await asyncio.to_thread(page_out, [constant], self._folder)
            self._used(constant)
            pages = None if paged is None else pages_of(paged[0])
        if pages is None:
            return None
        self._check_open()
        memory = self._allocate(constant.nbytes, functools.partial(self._device.adopt, pages))
        entry = self._entries[key] = _Resident([key], memory, constant.nbytes)
        return entry.resident()

    async def _store(self, key: Stored, data: Array) -> Resident:
        self._check_open()
        loop = asyncio.get_running_loop()
        allocate = functools.partial(self._device.allocate, max(data.nbytes, 1))
        upload = _Upload(self._allocate(data.nbytes, allocate), data.nbytes, loop.create_future())
        self._uploads.add(upload)
        try:
            self._enqueue(upload, data, loop)
            await upload.arrived
            self._used(data)
            self._check_open()
        except BaseException:
            if upload.passed:
                self._release(upload)
            else:
                upload.arrived.cancel()  # the memory is the stream's until it is past
            raise
        self._uploads.discard(upload)
        entry = self._entries[key] = _Resident([key], upload.memory, data.nbytes)
        return entry.resident()

    def _allocate(self, nbytes: int, allocate: Callable[[], Any]) -> Any:
        while self._limit is not None and self._nbytes + nbytes > self._limit and self.make_room():
            pass
        while True:
            try:
                allocation = allocate()
            except OutOfDeviceMemory:
                if not self.make_room():
                    raise
            else:
                self._nbytes += nbytes
                return allocation

    def make_room(self) -> bool:
        """Give the memory of one constant back that nobody uses; False if all are in use, which they may be."""
        while True:
            unused = [e for e in self._entries.values() if e.users() is None]
            if unused:
                # Those in the model's own layout are wanted by more kernels than any packed one.
                self._leave(next((e for e in unused if all(k.layout for k in e.keys)), unused[0]))
                return True
            if not self._let_go():
                return False

    def _leave(self, entry: _Resident) -> None:
        for key in entry.keys:
            del self._entries[key]
        self._evictions += len(entry.keys)
        self._nbytes -= entry.nbytes
        self._device.release(entry.memory)

    def _enqueue(self, upload: _Upload, data: Array, loop: asyncio.AbstractEventLoop) -> None:
        """Enqueue the upload. Should it be refused, part of it may be on the stream all the same."""

        def reached(error: BaseException | None) -> None:
            tell_loop(loop, self._passed, upload, error)

        try:
            if data.nbytes:
                self._stream.write(upload.memory, 0, data)
        finally:
            self._stream.when_reached(mark_behind(self._stream), reached)

    def _passed(self, upload: _Upload, error: BaseException | None) -> None:
        upload.passed = True
        if upload.arrived.done():
            self._release(upload)
        elif error is None:
            upload.arrived.set_result(None)
        else:
            upload.arrived.set_exception(error)

    def _release(self, upload: _Upload) -> None:
        if upload in self._uploads:  # else the device was closed meanwhile
            self._uploads.discard(upload)
            self._device.release(upload.memory)
            self._nbytes -= upload.nbytes

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeClosedError("the program was closed while its constants were brought to the device")

    async def stop(self) -> None:
        """Bring nothing any more, and tell those who wait; returns when no task is left."""
        self._closed = True
        await asyncio.sleep(0)  # by then each has begun, and can tell
        await end(list(self._pending.values()))

    def close(self) -> None:
        """Give the memory back that nothing is on its way to; the device must have passed all commands that use it."""
        self._closed = True
        for entry in set(self._entries.values()):
            self._device.release(entry.memory)
            self._nbytes -= entry.nbytes
        self._entries.clear()

    @property
    def bringing(self) -> bool:
        """Whether anything is on its way."""
        return bool(self._uploads or self._pending)

    def fail(self, error: BaseException) -> None:
        """Tell those who wait for what is on its way that it will not come."""
        for upload in self._uploads:
            if not upload.arrived.done():
                upload.arrived.set_exception(error)

    def device_closed(self) -> None:
        """The device was closed: nothing is on its way any more."""
        self.close()
        for upload in list(self._uploads):
            self._release(upload)


def _pack(pack: Callable[[Array], Array], constant: Array) -> Array | None:
    """Return the constant packed, or None if that changes none of its bytes."""
    packed = np.ascontiguousarray(pack(constant))
    return None if same_bytes(packed, constant) else packed
