"""What one sequence keeps on the device: its tensors, and the memory that they lie in, from step to step.

A step changes nothing here until it has succeeded: the rows that a failed or cancelled step has written lie behind the
kept ones and do not count, and the memory that it allocated is given back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from asyncrt.events import Event, latest
from asyncrt.layout import Shape
from asyncrt.memory.buffer import Lease
from asyncrt.runtime.plan.between_steps import Between
from asyncrt.runtime.plan.chunk_plan import KeptTensor
from asyncrt.runtime.plan.foreseen_plan import Guess


@attrs.define(eq=False)
class KeptState:
    """The tensors of a sequence, by slot, and their memory.

    Attributes:
        between: The tensors as the next step finds them.
        leases: Their memory; None where a tensor is empty.
        after: Where the streams must come before the next step may touch that memory.
        given: The shapes of what the last step was given.
        guess: What the next step may be; see `Foresight`.
        last: Whether no other step follows.
    """

    between: Between
    leases: list[Lease | None]
    after: tuple[Event, ...] = ()
    given: tuple[Shape, ...] | None = None
    guess: Guess | None = None
    last: bool = False
    #: The memory that the step under way has allocated, by slot.
    _new: dict[int, Lease] = attrs.field(factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of device memory."""
        return sum(lease.buffer.nbytes for lease in self.leases if lease is not None)

    @property
    def tensors(self) -> tuple[KeptTensor, ...]:
        """As the next step finds them."""
        return self.between.tensors

    def buffers(self) -> list[Any]:
        """Device memory at the places of `place`, which count from the end."""
        if not self._new:
            return [x for lease in reversed(self.leases) for x in (None, None if lease is None else lease.allocation)]
        found: list[Any] = []
        for slot in reversed(range(len(self.tensors))):
            lease, new = self.leases[slot], self._new.get(slot)
            found += [None if new is None else new.allocation, None if lease is None else lease.allocation]
        return found

    def missing(self, tensors: Sequence[KeptTensor]) -> list[tuple[int, int]]:
        """Return the slots, and how many bytes each, that a plan which leaves *tensors* has to allocate."""
        return [(slot, t.new) for slot, t in enumerate(tensors) if t.new and slot not in self._new]

    def allocated(self, slot: int, lease: Lease) -> None:
        """Note memory for the step under way."""
        self._new[slot] = lease

    def succeeded(self, tensors: Sequence[KeptTensor], left: Between, events: Iterable[Event]) -> None:
        """Note that the step has succeeded: its plan leaves *tensors*, which the next step finds as *left*."""
        events = tuple(events)
        for slot, tensor in enumerate(tensors):
            old = self.leases[slot]
            if old is not None and (tensor.new or 0 in tensor.layout.shape):
                old.drop(after=(*self.after, *events))
                self.leases[slot] = None
            if tensor.new:
                self.leases[slot] = self._new.pop(slot)
        self.between = left
        self.failed(events)

    def failed(self, events: Iterable[Event]) -> None:
        """Note that the step is over and give back memory that it does not keep; its commands end at *events*."""
        self.after = latest((*self.after, *events))
        for lease in self._new.values():
            lease.drop(after=self.after)
        self._new.clear()

    def close(self) -> None:
        """Give the memory back, when the device has passed what uses it."""
        for lease in self.leases:
            if lease is not None:
                lease.drop(after=self.after)
        self.leases = [None] * len(self.tensors)
        self.guess = None
