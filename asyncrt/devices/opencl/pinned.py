"""How are bytes copied between the host and a device on a bus without delaying other work? Through pinned memory.

Such a device copies to and from pinned memory, which the system does not move; the memory of a NumPy array is not.
Drivers copy to that slowly: on an H200, a kernel of 28 µs and a read of 4 KB behind it take 57 µs, and 80 to 240 while
other queues are busy; to pinned memory it is 31, and 33. Writes of up to 48 KB are as fast either way, those of 256 KB
are late by 250 µs.

So reads land in pinned memory, and are copied to their arrays when their mark is reached; writes of some size are
copied to pinned memory first. Results of some size are themselves in pinned memory, which is lent to whoever holds
them: it is used again when nothing refers to them any more. What is large goes the driver's way, and so does
everything while too much is pinned already: the system can use that memory for nothing else.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from asyncrt.layout import Array

LARGEST_READ = 4 << 20
SMALLEST_WRITE, LARGEST_WRITE = 64 << 10, 1 << 20
SMALLEST_LENT, LARGEST_LENT = 64 << 10, 64 << 20
MOST = 256 << 20  # bytes that a device pins
MOST_LENT = 192 << 20

_SMALLEST = 4096


class PinnedBlock(NamedTuple):
    """Pinned memory.

    Attributes:
        array: Its bytes.
        release: Gives it back to the system.
    """

    array: Array
    release: Callable[[], object]


class PinnedMemory:
    """Blocks of powers of two that are used again. Any thread may take one and give it back.

    Args:
        pin: Returns a block of so many bytes, or None if the driver has none. May block for a moment.
        most, most_lent: Bytes that may be pinned at a time, and of them be in results that somebody holds.
    """

    def __init__(
        self, pin: Callable[[int], PinnedBlock | None], most: int = MOST, most_lent: int = MOST_LENT
    ) -> None:
        self._pin = pin
        self._most, self._most_lent = most, most_lent
        self._lock = threading.Lock()
        self._free: dict[int, list[PinnedBlock]] = {}
        #: Bytes that are pinned, and how many of them are taken.
        self.nbytes = 0
        self.taken = 0
        #: Of them, in results; and where those begin.
        self.lent = 0
        self._lent_at: set[int] = set()
        #: What nobody holds any more. Its holder may go in the middle of anything, so nothing is locked then.
        self._left: deque[PinnedBlock] = deque()
        self._closed = False

    def __repr__(self) -> str:
        return f"<PinnedMemory {self.nbytes} bytes, {self.taken} of them taken>"

    def take(self, nbytes: int) -> PinnedBlock | None:
        """Return a block of *nbytes* or more; None if that would be too much."""
        size = _size(nbytes)
        with self._lock:
            self._collect()
            free = self._free.setdefault(size, [])
            block = free.pop() if free else None
            if block is None and self.nbytes + size <= self._most:
                block = self._pin(size)
                self.nbytes += 0 if block is None else size
            self.taken += 0 if block is None else size
            return block

    def give_back(self, block: PinnedBlock) -> None:
        """Let others have a block that no command uses any more."""
        with self._lock:
            self._free[block.array.nbytes].append(block)
            self.taken -= block.array.nbytes

    def lend(self, nbytes: int) -> Array | None:
        """Return pinned bytes that are taken as long as something refers to them; None if that would be too much."""
        with self._lock:
            self._collect()
            if self.lent + _size(nbytes) > self._most_lent:
                return None
        block = self.take(nbytes)
        if block is None:
            return None
        at = block.array.ctypes.data
        with self._lock:
            self.lent += block.array.nbytes
            self._lent_at.add(at)
        owner = (ctypes.c_char * nbytes).from_address(at)
        weakref.finalize(owner, self._leave, block).atexit = False
        return np.frombuffer(memoryview(owner), np.uint8)

    def is_lent(self, target: Array) -> bool:
        """Return whether *target* begins where somebody was lent memory."""
        return bool(self._lent_at) and target.ctypes.data in self._lent_at

    def _leave(self, block: PinnedBlock) -> None:
        if self._closed:
            block.release()
        else:
            self._left.append(block)

    def _collect(self) -> None:
        """Take back what was lent and left."""
        while self._left:
            block = self._left.popleft()
            self._free[block.array.nbytes].append(block)
            self._lent_at.discard(block.array.ctypes.data)
            self.lent -= block.array.nbytes
            self.taken -= block.array.nbytes

    def close(self) -> None:
        """Release all that is not taken; what is lent is released once nothing refers to it."""
        with self._lock:
            self._closed = True
            self._pin = _nothing
            self._collect()
            for blocks in self._free.values():
                while blocks:
                    block = blocks.pop()
                    self.nbytes -= block.array.nbytes
                    block.release()


def _nothing(nbytes: int) -> None:
    """The device is closed."""


def _size(nbytes: int) -> int:
    """Return the bytes of the block that holds *nbytes*."""
    return max(_SMALLEST, 1 << (nbytes - 1).bit_length())


class _Transfer(NamedTuple):
    block: PinnedBlock
    target: Array | None


class PinnedTransfers:
    """The transfers of one stream through pinned memory. One thread enqueues them; they land on any."""

    def __init__(self, memory: PinnedMemory) -> None:
        self._memory = memory
        self._lock = threading.Lock()
        self._pending: deque[_Transfer] = deque()
        self._landed = 0
        #: How many were enqueued so far: what a mark behind them has to remember.
        self.enqueued = 0

    def __repr__(self) -> str:
        return f"<PinnedTransfers {len(self._pending)} pending, {self._memory!r}>"

    def lend(self, nbytes: int) -> Array | None:
        """Return memory for a result of some size, which reads land in by themselves."""
        return self._memory.lend(nbytes) if SMALLEST_LENT <= nbytes <= LARGEST_LENT else None

    @contextlib.contextmanager
    def read(self, target: Array) -> Iterator[Array]:
        """Give the bytes that a read of *target*, bytes too, is to be enqueued to while this lasts."""
        lent = target.nbytes >= SMALLEST_LENT and self._memory.is_lent(target)
        block = self._memory.take(target.nbytes) if target.nbytes <= LARGEST_READ and not lent else None
        with self._note(block, target):
            yield target if block is None else block.array[: target.nbytes]

    @contextlib.contextmanager
    def write(self, source: Array) -> Iterator[Array]:
        """Give the bytes that a write of *source*, bytes too, is to be enqueued from while this lasts."""
        block = self._memory.take(source.nbytes) if SMALLEST_WRITE <= source.nbytes <= LARGEST_WRITE else None
        with self._note(block, None):
            if block is None:
                yield source
            else:
                data = block.array[: source.nbytes]
                data[:] = source
                yield data

    @contextlib.contextmanager
    def _note(self, block: PinnedBlock | None, target: Array | None) -> Iterator[None]:
        try:
            yield
        except BaseException:
            if block is not None:
                self._memory.give_back(block)  # what was refused uses nothing
            raise
        if block is not None:
            with self._lock:
                self._pending.append(_Transfer(block, target))
                self.enqueued += 1

    def land(self, until: int, failed: bool = False) -> None:
        """The stream has passed the first *until* transfers: copy what they read, unless a command *failed*."""
        with self._lock:
            while self._landed < until:
                block, target = self._pending.popleft()
                self._landed += 1
                if target is not None and not failed:
                    target[:] = block.array[: target.nbytes]
                self._memory.give_back(block)
