"""Who calls the driver for requests that are at work beside each other? Threads in C (`_launcher.c`).

To enqueue a request's copies and launches takes a driver some 50 to 400 microseconds, and to wait for its end and copy
its results as much again. The event loop's thread would do nothing else meanwhile, and a thread of Python's would wait
for the interpreter between its calls, for as long as the loop is busy.

A driver may have one lock for a context, so there is one thread for all streams of a device; where threads carry out by
themselves what they enqueue, each has a stream of its own. That of a device which computes on the threads that wait for
it computes, too, and is asked for one request at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from asyncrt.devices.base import Prepared, Stream, Transfer

from .prepared import OpenCLPrepared
from .submit import CALLS, LAYOUT, native_submitter

if TYPE_CHECKING:
    from types import ModuleType


PATIENCE_NS = 150_000
"""For which the thread of a device that works by itself waits for the next request when one has ended, before it waits
for the device: about what the event loop takes to collect a result, and its caller to ask again."""


class OpenCLPosted:
    """What was posted, and what has become of it; see `Posted`."""

    __slots__ = ("_copied", "_prepared", "outcome", "seconds")

    def __init__(self, prepared: OpenCLPrepared, copied: int) -> None:
        self._prepared, self._copied = prepared, copied
        self.outcome: tuple[int, int] | None = None
        self.seconds = 0.0

    def check(self) -> None:
        """Raise what it failed with.

        Raises:
            DeviceError: The driver refused a command, or one failed.
        """
        self._prepared.check(self.outcome, self._copied)


class OpenCLLauncher:
    """Carries out `OpenCLPrepared`s.

    Args:
        module: The extension.
        file: An eventfd that it writes to.
        queues: Those of threads that have one each; none for one thread of all streams.
        patience_ns: For which one of all streams waits for the next request.

    Raises:
        RuntimeError: The system has no more threads.
    """

    def __init__(
        self, module: ModuleType, file: int, queues: Sequence[int] = (), patience_ns: int = PATIENCE_NS
    ) -> None:
        self._module, self._threads = module, module.start(file, patience_ns, tuple(queues))
        self._posted: dict[int, OpenCLPosted] = {}

    def __repr__(self) -> str:
        return f"<OpenCLLauncher {len(self._posted)} posted>"

    def post(
        self,
        prepared: Prepared,
        stream: Stream | None,
        writes: Sequence[Transfer],
        reads: Sequence[Transfer],
        stop: bytearray | None = None,
    ) -> OpenCLPosted:
        """Let a thread copy to the device, launch on an `OpenCLStream`, and copy from it; see `Launcher`."""
        assert isinstance(prepared, OpenCLPrepared)
        post = functools.partial(self._module.post, self._threads)
        number = prepared.hand_over(post, stream, writes, reads, stop)
        posted = self._posted[number] = OpenCLPosted(prepared, len(writes))
        return posted

    def collect(self) -> Sequence[OpenCLPosted]:
        """Return those that have ended, in the order in which they have."""
        ended = []
        for number, done, status, took in self._module.collect(self._threads):
            posted = self._posted.pop(number)
            posted.outcome, posted.seconds = (done, status), took / 1e9
            ended.append(posted)
        return ended

    def wait(self) -> None:
        """Return when all have ended. Blocks."""
        self._module.wait(self._threads)

    def close(self) -> None:
        """End the threads when that is so. Blocks."""
        self._module.close(self._threads)


def native_launcher(
    file: int, queues: Sequence[int] = (), *, patience_ns: int = PATIENCE_NS
) -> OpenCLLauncher | None:
    """Return a launcher that writes to an eventfd; None where it was not built, or no thread can be started."""
    if native_submitter() is None:
        return None
    try:
        from . import _launcher
    except ImportError:
        return None
    if (_launcher.LAYOUT, _launcher.CALLS) != (LAYOUT, CALLS):
        return None
    try:
        return OpenCLLauncher(_launcher, file, queues, patience_ns)
    except RuntimeError:
        return None
