"""Blocks of device memory, and claims on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import attrs

from asyncrt.events import Event, latest


@attrs.define(eq=False)
class Buffer:
    """A block of device memory.

    Attributes:
        allocation: The device's own object.
        nbytes: Its size.
        busy_until: The events of its last users; whoever takes it next must come after them.
    """

    allocation: Any
    nbytes: int
    busy_until: tuple[Event, ...] = ()


class Lease:
    """A counted claim on a buffer. It ends when all holders have dropped it, at the events that they gave.

    A buffer belongs to the events that use it, not to the task that asked for it: dropping a lease says *after which
    events* the memory is free, and never waits. The events that the buffer was busy until when it was leased count too.
    """

    __slots__ = ("_after", "_end", "_holders", "buffer")

    def __init__(self, buffer: Buffer, end: Callable[[Buffer], None]) -> None:
        self.buffer = buffer
        self._end = end
        self._holders = 1
        # Whoever leased it may give up before enqueueing the wait for the users before it; they still count then.
        self._after = buffer.busy_until

    def __repr__(self) -> str:
        return f"<Lease {self.buffer.nbytes} bytes, {self._holders} holders>"

    @property
    def allocation(self) -> Any:
        """The device's memory object; usable until the last holder drops the lease."""
        if not self._holders:
            raise RuntimeError("the lease has ended")
        return self.buffer.allocation

    def hold(self) -> Lease:
        """Add a claim, as whoever keeps an alias of the buffer must."""
        if not self._holders:
            raise RuntimeError("the lease has ended")
        self._holders += 1
        return self

    def drop(self, after: Iterable[Event] = ()) -> None:
        """End one claim. The memory may be used again after *after*, and after what other holders gave."""
        if not self._holders:
            raise RuntimeError("the lease has ended")
        self._after = latest((*self._after, *after))
        self._holders -= 1
        if not self._holders:
            self.buffer.busy_until = self._after
            self._end(self.buffer)
