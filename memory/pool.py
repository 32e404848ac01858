"""Which block of device memory does a request get, and what must its stream wait for before it uses it?

A block comes back with the events of its last users. On the stream of those events, which is in order, it can be used
again at once; on another stream it comes with those events to wait for. OpenCL keeps a released buffer alive until
queued commands are done with it, but knows nothing of a pool that gives it to another queue: this file makes that safe.

Source of the ordering rules: RMM's stream-ordered memory resources.
"""

from __future__ import annotations

import bisect
import contextlib
import operator
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import attrs

from asyncrt.devices.base import Device, GrowsMemory
from asyncrt.errors import OutOfDeviceMemory
from asyncrt.events import Event, Timeline

from .buffer import Buffer, Lease

_RECLAIM = 10  # times what was asked lately: a free block that is larger goes back to the device; the plugin's factor
_LATELY = 64  # requests
_LEAST = 4096  # bytes of a block
_ANY = 1 << 62  # times too large: however large


Room: TypeAlias = Callable[[], int]
"""How many bytes a new block should have; 0 for no more than are needed."""


class Acquired(NamedTuple):
    """A lease, and the events of other streams that its first user must wait for."""

    lease: Lease
    waits: tuple[Event, ...]


@attrs.frozen
class PoolStatistics:
    """Bytes and counts of a pool.

    Attributes:
        active: Bytes under a lease.
        held: Bytes free for the next lease.
        limit: Most bytes that active and held may be together.
        leases: Leases that have not ended.
        reused: Requests met from held memory, all time.
        reused_with_wait: Those among them that had to wait for another stream.
        allocated: Requests that needed a new block, all time.
    """

    active: int
    held: int
    limit: int
    leases: int
    reused: int
    reused_with_wait: int
    allocated: int


def block_size(nbytes: int) -> int:
    """Round up so that nearby sizes share blocks: to an eighth of the power of two below, at least 4 KiB."""
    if nbytes <= _LEAST:
        return _LEAST
    step = 1 << max((nbytes - 1).bit_length() - 4, 0)
    return -(-nbytes // step) * step


_nbytes = operator.attrgetter("nbytes")


class MemoryPool:
    """Leases of device memory, ordered by events.

    Args:
        device: Where the memory is.
        timeline: What each stream has passed.
        limit: Most bytes to take from the device.
        reuse: False gives every block back to the device as soon as its events are reached.
    """

    def __init__(self, device: Device, timeline: Timeline, limit: int, *, reuse: bool = True) -> None:
        self._device = device
        self._timeline = timeline
        self.limit = limit
        self._reuse = reuse
        #: Free blocks, by size; each with the events it is busy until.
        self._free: list[Buffer] = []
        #: The sizes asked lately.
        self._asked: deque[int] = deque(maxlen=_LATELY)
        self._keeps = False
        self._closed = False
        self._active = 0
        self._held = 0
        self._leases = 0
        self._reused = self._waited = self._allocated = 0

    def __repr__(self) -> str:
        s = self.statistics()
        return (
            f"<MemoryPool active={s.active} held={s.held} limit={s.limit} leases={s.leases} "
            f"reused={s.reused} allocated={s.allocated}>"
        )

    @property
    def free(self) -> tuple[Buffer, ...]:
        """The blocks that nobody leases, by size; each with the events it is busy until."""
        return tuple(self._free)

    def statistics(self) -> PoolStatistics:
        """Return the pool's numbers."""
        return PoolStatistics(
            self._active, self._held, self.limit, self._leases, self._reused, self._waited, self._allocated
        )

    def acquire(
        self, nbytes: int, stream: int, *, room: Room | None = None, exact: bool = False, brief: bool = False
    ) -> Acquired:
        """Return at least *nbytes* bytes for commands on *stream*.

        In order of cost: a block that is free now or was last used on this stream; a new block; a block that another
        stream is not done with, with its events to wait for.

        Args:
            nbytes: How many.
            stream: Whose commands use them first.
            room: Says how large a new block should be, for what will be asked later; asked only if there is to be one.
                It is no larger than needed where that would exceed the limit or what the device has, and where reuse
                is off.
            exact: Take no free block that is larger than needed, unless nothing else is left.
            brief: They are given back soon. While nobody else has any, one block serves requests of all sizes, as large
                as the largest needs: each takes it, and a larger one takes its place.

        Raises:
            OutOfDeviceMemory: With what was asked, what is in use and the limit.
        """
        size = min(block_size(nbytes), max(nbytes, min(self.limit, self._device.info.max_allocation)))
        self._reclaim(size)
        buffer = None
        alone = brief and not exact and not self._leases
        if self._reuse:
            slack = 1 if exact else _ANY if alone else 2
            buffer = self._take(size, lambda b: all(e.stream == stream for e in self._pending(b)), slack)
        if buffer is None and alone:
            buffer = self._grow(size, room)
        if buffer is None:
            try:
                buffer = self._allocate_room(size, room) or self._allocate(size)
            except OutOfDeviceMemory:
                buffer = self._take(size, lambda b: True, _ANY)
                if buffer is None:
                    raise
        waits = tuple(e for e in self._pending(buffer) if e.stream != stream)
        self._waited += bool(waits)
        self._active += buffer.nbytes
        self._leases += 1
        return Acquired(Lease(buffer, self._give_back), waits)

    def at_hand(self, nbytes: int) -> Any | None:
        """Return memory of a free block, of at least *nbytes* bytes, without a lease; None where `acquire()` is to say.

        It is for commands that are done before anybody else has a turn: then nobody needs to know of them.
        """
        first = bisect.bisect_left(self._free, nbytes, key=_nbytes)
        if first == len(self._free) or not self._reuse:
            return None
        buffer = self._free[first]
        return None if buffer.nbytes > _RECLAIM * max(nbytes, _LEAST) or self._pending(buffer) else buffer.allocation

    def trim(self) -> int:
        """Give back to the device the free blocks that nothing uses any more; returns how many bytes."""
        if self._keeps:
            return 0
        free, self._free = self._free, []
        before = self._held
        for buffer in free:
            if self._pending(buffer):
                self._free.append(buffer)
            else:
                self._release(buffer)
        return before - self._held

    def keep_all(self) -> None:
        """Release nothing until `close()`: the device is lost, and nobody can tell any more who is done with what."""
        self._keeps = True

    def close(self) -> None:
        """Give all blocks back, those under a lease when it ends; the device must have passed all commands."""
        self._closed = True
        for buffer in self._free:
            self._release(buffer)
        self._free = []

    def _pending(self, buffer: Buffer) -> tuple[Event, ...]:
        if buffer.busy_until:
            buffer.busy_until = self._timeline.pending(buffer.busy_until)
        return buffer.busy_until

    def _take(self, size: int, accept: Callable[[Buffer], bool], slack: int) -> Buffer | None:
        """The smallest free block that fits and is not wastefully large; of equal ones that given back last."""
        start = bisect.bisect_left(self._free, size, key=_nbytes)
        for position in range(start, len(self._free)):
            buffer = self._free[position]
            if buffer.nbytes > size * slack and (slack == 1 or buffer.nbytes > 1 << 20):
                break
            if accept(buffer):
                del self._free[position]
                self._held -= buffer.nbytes
                self._reused += 1
                return buffer
        return None

    def _reclaim(self, size: int) -> None:
        """Give free blocks that are far too large for this size and those asked lately back to the device."""
        self._asked.append(size)
        most = _RECLAIM * max(self._asked)
        for position in range(len(self._free) - 1, -1, -1):
            if self._free[position].nbytes <= most:
                break
            if not self._pending(self._free[position]):
                self._release(self._free.pop(position))

    def _grow(self, size: int, room: Room | None) -> Buffer | None:
        """The largest free block made larger, so that memory which was in use stays so; all others go back.

        None where the device cannot do that, or there is no room; then all free blocks go back.
        """
        grows = self._device if self._reuse and not self._keeps and isinstance(self._device, GrowsMemory) else None
        last = self._free.pop() if grows is not None and self._free and not self._pending(self._free[-1]) else None
        if last is not None:
            self._held -= last.nbytes
        self.trim()
        if grows is None:
            return None
        larger, most = 0 if room is None else block_size(room()), self.limit - self._active - self._held
        nbytes = larger if size < larger <= most else size
        allocation: Any = None
        with contextlib.suppress(OutOfDeviceMemory):
            if nbytes <= most:
                allocation = grows.grow(None if last is None else last.allocation, nbytes)
        if allocation is not None:
            self._allocated += 1
            return Buffer(allocation, nbytes)
        if last is not None:
            self._device.release(last.allocation)
        return None

    def _allocate_room(self, size: int, room: Room | None) -> Buffer | None:
        """A new block with room for more than *size*; None where none is wanted, or it would be at others' cost."""
        if room is None:
            return None
        larger = block_size(room())
        most = min(self.limit - self._active - self._held, self._device.info.max_allocation)
        if not self._reuse or not size < larger <= most:
            return None
        try:
            allocation: Any = self._device.allocate(larger)
        except OutOfDeviceMemory:
            return None
        self._allocated += 1
        return Buffer(allocation, larger)

    def _allocate(self, size: int) -> Buffer:
        """A new block; free ones that nothing uses make room for it where the limit or the device is full."""
        if not self._reuse or self._active + self._held + size > self.limit:
            self.trim()
        if self._active + self._held + size > self.limit:
            raise OutOfDeviceMemory(
                f"{size} bytes wanted for intermediates; {max(self.limit - self._active - self._held, 0)} free "
                f"within the limit of {self.limit}",
                detail=f"pool  {self!r}",
                hint="raise RuntimeOptions.memory_limit, or lower RuntimeOptions.max_in_flight",
            )
        try:
            allocation: Any = self._device.allocate(size)
        except OutOfDeviceMemory:
            if not self.trim():
                raise
            allocation = self._device.allocate(size)
        self._allocated += 1
        return Buffer(allocation, size)

    def _give_back(self, buffer: Buffer) -> None:
        self._active -= buffer.nbytes
        self._leases -= 1
        self._held += buffer.nbytes
        # Before others of its size: what was used last is used next, so that who comes back finds the memory it had,
        # which is in the processor's caches, and for which the arguments of launches may be set.
        bisect.insort_left(self._free, buffer, key=_nbytes)
        if self._closed:
            self.close()
        elif not self._reuse:
            self.trim()

    def _release(self, buffer: Buffer) -> None:
        self._held -= buffer.nbytes
        self._device.release(buffer.allocation)
