"""How does an event loop learn that a mark is reached, without a thread that waits for it?

The driver calls back (`clSetEventCallback`) into C (`_reached.c`), which writes an eventfd that the loop polls. That
saves waking a thread that wants the GIL, and then the loop through a pipe.

It is not the default: on Intel's runtime the waiting thread takes part in the computation, and without it a core idles.

Not every driver can be trusted with it. PoCL 3.1 calls back for a failed command as if it had succeeded, or not at all;
NVIDIA's driver looks for callbacks only every few milliseconds. There a thread waits.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections import deque
from typing import Any, Protocol

from asyncrt.devices.base import Reached
from asyncrt.errors import DeviceCommandError

from .arguments import loader

TRUSTED = frozenset({("Intel(R) OpenCL", "cpu")})
"""Platforms and kinds of devices whose drivers call back at once, and tell of failures."""


class Waits(Protocol):
    """A mark of an `OpenCLStream`."""

    event: Any

    def wait(self) -> None: ...

    def forget(self, failed: bool) -> None: ...


class _Watched:
    """A mark, and what the driver said when it was reached."""

    __slots__ = ("callback", "error", "mark", "reached")

    def __init__(self, mark: Waits, callback: Reached) -> None:
        self.mark = mark
        self.callback = callback
        self.reached = False
        self.error: BaseException | None = None


class Watch:
    """The marks of one stream that have not been reached. Drivers report in any order; callbacks keep theirs."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._waiting: deque[_Watched] = deque()
        self._lock = threading.RLock()  # whoever is called back may watch the next mark

    def watch(self, mark: Waits, callback: Reached) -> None:
        """Call *callback*, on the thread that collects or closes, once *mark* is reached."""
        watched = _Watched(mark, callback)
        with self._lock:
            self._waiting.append(watched)
        self._inbox.watch(self, watched)

    def reached(self, watched: _Watched, error: BaseException | None) -> None:
        """Note that a mark is reached; call back for all reached marks that have no unreached one before them."""
        with self._lock:
            watched.reached, watched.error = True, error
            while self._waiting and self._waiting[0].reached:
                first = self._waiting.popleft()
                first.mark.forget(first.error is not None)
                first.callback(first.error)

    def finish(self) -> None:
        """Wait for all marks, and tell of them. Blocks."""
        while True:
            with self._lock:
                if not self._waiting:
                    return
                watched = self._waiting[0]
            error: BaseException | None = None
            try:
                watched.mark.wait()
            except Exception as failure:
                error = failure
            with self._lock:
                if self._waiting and self._waiting[0] is watched:
                    self.reached(watched, error)


class Inbox:
    """What the driver has reported of a device's marks.

    Args:
        module: The extension.
        set_callback: The address of `clSetEventCallback`.
    """

    def __init__(self, module: Any, set_callback: int) -> None:
        self._module = module
        self._set_callback = set_callback
        self._inbox, self.file = module.inbox()
        self._numbers = itertools.count()
        self._watched: dict[int, tuple[Watch, _Watched]] = {}

    def watch(self, watch: Watch, watched: _Watched) -> None:
        """Have a mark reported."""
        number = next(self._numbers)
        self._watched[number] = watch, watched
        if self._module.watch(self._inbox, self._set_callback, watched.mark.event.int_ptr, number):
            del self._watched[number]
            watch.finish()  # the driver is out of memory, so that a thread might not start either

    def collect(self) -> None:
        """Tell of all marks that were reported since."""
        for number, status in self._module.collect(self._inbox):
            watch, watched = self._watched.pop(number)
            error = None
            if status:
                error = DeviceCommandError("the driver refused running commands", detail=f"status {status}")
            watch.reached(watched, error)


def open_inbox() -> Inbox | None:
    """Return an inbox, which uses a file; None where there is no extension, or the loader is not to be called."""
    library = loader()
    if library is None:
        return None
    try:
        from . import _reached

        function = library["clSetEventCallback"]
    except (ImportError, AttributeError):
        return None
    address = ctypes.cast(function, ctypes.c_void_p).value
    return None if address is None else Inbox(_reached, address)
