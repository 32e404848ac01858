"""Who calls the driver for requests that are at work beside each other? A thread in C (`_launcher.c`).

To enqueue a request's copies and launches takes a driver some 50 to 400 microseconds, and to wait for its end and copy
its results as much again. The event loop's thread would do nothing else meanwhile, and a thread of Python's would wait
for the interpreter between its calls. A driver may have one lock for a context, so there is one thread for a device.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from asyncrt.devices.base import Prepared, Stream, Transfer

from .prepared import OpenCLPrepared
from .submit import CALLS, LAYOUT, native_submitter

if TYPE_CHECKING:
    from types import ModuleType


PATIENCE_NS = 150_000
"""For which the thread waits for the next request when one has ended, before it waits for the device: about what the
event loop takes to collect a result, and its caller to ask again."""


class OpenCLLauncher:
    """Carries out `OpenCLPrepared`s.

    Args:
        module: The extension.
        file: An eventfd that it writes to.

    Raises:
        RuntimeError: The system has no more threads.
    """

    def __init__(self, module: ModuleType, file: int) -> None:
        self._module, self._thread = module, module.start(file, PATIENCE_NS)
        self._posted: deque[_Posted] = deque()

    def __repr__(self) -> str:
        return f"<OpenCLLauncher {len(self._posted)} posted>"

    def post(
        self, prepared: Prepared, stream: Stream, writes: Sequence[Transfer], reads: Sequence[Transfer]
    ) -> Callable[[], None]:
        """Let the thread copy to the device, launch on an `OpenCLStream`, and copy from it; see `Launcher`."""
        assert isinstance(prepared, OpenCLPrepared)
        prepared.hand_over(functools.partial(self._module.post, self._thread), stream, writes, reads)
        posted = _Posted(prepared, len(writes))
        self._posted.append(posted)
        return posted.check

    def collect(self) -> int:
        """Return how many have ended that were posted first."""
        outcomes = self._module.collect(self._thread)
        for outcome in outcomes:
            self._posted.popleft().outcome = outcome
        return len(outcomes)

    def wait(self) -> None:
        """Return when all have ended. Blocks."""
        self._module.wait(self._thread)

    def close(self) -> None:
        """End the thread when that is so. Blocks."""
        self._module.close(self._thread)


class _Posted:
    """What was posted, and what has become of it."""

    __slots__ = ("_copied", "_prepared", "outcome")

    def __init__(self, prepared: OpenCLPrepared, copied: int) -> None:
        self._prepared, self._copied = prepared, copied
        self.outcome: tuple[int, int] | None = None

    def check(self) -> None:
        """Raise what it failed with.

        Raises:
            DeviceError: The driver refused a command, or one failed.
        """
        self._prepared.check(self.outcome, self._copied)


def native_launcher(file: int) -> OpenCLLauncher | None:
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
        return OpenCLLauncher(_launcher, file)
    except RuntimeError:
        return None
