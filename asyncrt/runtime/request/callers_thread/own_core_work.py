"""A request that a thread of its own carries out, on a core that no other request is on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from asyncrt.devices.base import Launcher, Posted, Prepared, Stream, Transfer
from asyncrt.layout import Array
from asyncrt.memory.buffer import Lease
from asyncrt.runtime.execute.transfers import Arriving
from asyncrt.runtime.plan.chunk_plan import Records


class Ready(NamedTuple):
    """What a request beside others has to do, and has.

    Attributes:
        prepared: Its launches.
        memory: That they use.
        writes: What comes before them.
        reads: What comes behind them.
        arriving: What is read so.
        lease: Of that memory; None if it uses none.
    """

    prepared: Prepared
    memory: Sequence[Any]
    writes: Sequence[Transfer]
    reads: Sequence[Transfer]
    arriving: Arriving
    lease: Lease | None

    def give_back(self) -> None:
        """It is over: its launches may be bound to other memory, and others may have its own."""
        self.prepared.busy = False
        if self.lease is not None:
            self.lease.drop()


class OwnCoreWork:
    """A request that a thread carries out alone; see `asyncrt.runtime.loop.own_cores.Work`.

    Args:
        ready: What it is.
        outcome: Returns what has become of it, after so many seconds of work.
        clock: Returns now in nanoseconds.
    """

    def __init__(
        self, ready: Ready, outcome: Callable[[float], tuple[dict[int, Array], Records]], clock: Callable[[], int]
    ) -> None:
        self._ready, self._outcome, self._clock = ready, outcome, clock
        self._posted: Posted | None = None
        self._seconds = 0.0
        self._stop = bytearray(1)
        ready.prepared.busy = True  # until it has ended they are this memory's

    def carry_out(self, stream: Stream) -> None:
        ready, began = self._ready, self._clock()
        ready.prepared.run(stream, ready.writes, ready.reads, single=True, stop=self._stop)
        self._seconds = (self._clock() - began) / 1e9

    def hand_over(self, launcher: Launcher) -> Posted:
        ready = self._ready
        self._posted = launcher.post(ready.prepared, None, ready.writes, ready.reads, self._stop)
        return self._posted

    def stop(self) -> None:
        self._stop[0] = 1

    def end(self, error: BaseException | None) -> tuple[dict[int, Array], Records]:
        try:
            if error is not None:
                raise error
            return self._outcome(self._seconds if self._posted is None else self._posted.seconds)
        finally:
            self._ready.give_back()
