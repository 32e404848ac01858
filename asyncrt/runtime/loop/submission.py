"""Who enqueues a long plan? A thread, so that the event loop goes on; until it has, nobody else does on that stream.

Enqueueing a plan of a thousand launches takes a millisecond or more, and longer where the driver's queue is full. A
device says of its prepared launches whether they take so long (`Prepared.long`), and gives up the GIL in them.

A stream's commands belong to one request at a time: its chunk's copies are enqueued on the loop before the thread
begins and after it has ended, and the mark behind them says when all of them are done.
"""

from __future__ import annotations

import asyncio

from asyncrt.devices.base import Prepared, Stream
from asyncrt.loops import on_own_thread, retrieved, to_its_end


class Submissions:
    """The streams that threads enqueue to now."""

    def __init__(self) -> None:
        #: Done when the thread has ended, by stream.
        self._busy: dict[int, asyncio.Future[None]] = {}

    def __repr__(self) -> str:
        return f"<Submissions to {sorted(self._busy)}>"

    def __bool__(self) -> bool:
        """Whether a thread enqueues to any."""
        return bool(self._busy)

    def busy(self, stream: int) -> bool:
        """Whether a thread enqueues to that stream."""
        return stream in self._busy

    async def turn(self, stream: int) -> None:
        """Return when no thread enqueues to that stream; in the same turn of the loop, if none does now."""
        while (busy := self._busy.get(stream)) is not None:
            await asyncio.wait((busy,))

    async def none(self) -> None:
        """Return when no thread enqueues to any."""
        while self._busy:
            await asyncio.wait(tuple(self._busy.values()))

    async def submit(self, number: int, stream: Stream, prepared: Prepared) -> None:
        """Enqueue launches on a thread. If cancelled, stops as soon as the driver has taken one, and returns then.

        Raises:
            DeviceError: As `Prepared.launch()` does.
        """
        loop = asyncio.get_running_loop()
        stop = bytearray(1)
        busy = self._busy[number] = loop.create_future()
        prepared.busy = True
        try:
            # The thread is made anew each time, which is a tenth of the time that it saves the loop.
            work = on_own_thread(f"asyncrt-submit-{number}", lambda: prepared.launch(stream, stop))
            work.add_done_callback(retrieved)  # who is cancelled does not ask for its error
            await to_its_end(work, lambda: stop.__setitem__(0, 1))
        finally:
            prepared.busy = False
            del self._busy[number]
            busy.set_result(None)
