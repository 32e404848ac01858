"""By what does another thread wake the event loop up? By an eventfd where there is one.

That takes 6 µs less than `call_soon_threadsafe`, a twentieth of a small request, and it takes no Python.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable

from asyncrt.devices.base import Launcher


class WakeUp:
    """An eventfd that the loop listens to.

    Args:
        loop: Where `call` is called.
        call: Called when something was written.

    Attributes:
        file: What other threads write to; None where the system or the loop has no such thing, or it is closed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
        self._loop, self._call = loop, call
        self.file = _listened(loop, self._on_readable)
        if self.file is not None:  # for who closes the loop and nothing else
            self._forgotten = weakref.finalize(self, os.close, self.file)
            self._forgotten.atexit = False  # threads may still write

    def close(self) -> None:
        """Listen no more. No thread may write meanwhile, or later."""
        file, self.file = self.file, None
        if file is not None:
            if not self._loop.is_closed():
                self._loop.remove_reader(file)
            self._forgotten()

    def _on_readable(self) -> None:
        if self.file is not None:
            os.eventfd_read(self.file)
        self._call()


def started(
    loop: asyncio.AbstractEventLoop, call: Callable[[], object], open_launcher: Callable[[int], Launcher | None]
) -> tuple[Launcher, WakeUp] | None:
    """Return a launcher that lets the loop call something when it can be collected; None where that cannot be."""
    wake_up = WakeUp(loop, call)
    launcher = None if wake_up.file is None else open_launcher(wake_up.file)
    if launcher is None:
        wake_up.close()
        return None
    return launcher, wake_up


def _listened(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> int | None:
    if not hasattr(os, "eventfd"):
        return None
    file = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    try:
        loop.add_reader(file, callback)
    except NotImplementedError:
        os.close(file)
        return None
    return file
