"""What does a session's profile say? What asyncrt's trace says of all that runs meanwhile, for the same viewers."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack

from asyncrt.public import AsyncrtError
from asyncrt.sync import SyncRuntime

from .log import once


class Profile:
    """A trace of the runtime, from when it is made until `end()`.

    Args:
        prefix: Of the file's name.
    """

    def __init__(self, runtime: SyncRuntime, prefix: str) -> None:
        now = time.time()
        stamp = time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(now))
        self._path = f"{prefix}_{stamp}_{int(now * 1000) % 1000}.json"
        self._stack = ExitStack()
        self.start_ns = time.monotonic_ns()
        try:
            self._stack.enter_context(runtime.trace(self._path))
        except AsyncrtError as error:
            self._path = ""
            once(f"a session is not profiled: {error.message}", logging.WARNING)

    def end(self) -> str:
        """Write the file and return its name, which is empty if there is none."""
        self._stack.close()
        path, self._path = self._path, ""
        return path
