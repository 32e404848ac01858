"""Calls the compiler of a driver on one thread of the process, where it keeps memory for each thread that called it.

Intel's CPU runtime keeps 30 MB for each thread on which it has compiled, as long as the process lives, and half as much
for one that has loaded a hundred programs. Threads of runtimes come and go, and each would leave as much behind. It
compiles and loads one program after the other anyway, so one thread for all runtimes keeps nobody waiting. What takes
milliseconds there does not wait behind what takes seconds and has not begun.
"""

from __future__ import annotations

import functools
import itertools
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeAlias, TypeVar

from ..drivers import INTEL_CPU

KEEPS = frozenset({INTEL_CPU})
"""Platforms, and kinds of their devices, whose compiler keeps memory for each thread."""

Result = TypeVar("Result")
_Call: TypeAlias = tuple[bool, int, Callable[[], Any], Future[Any]]
"""What comes first is the least: whether it may take long, and when it was asked for."""


class OneThread:
    """A thread that is there from the first call on. The interpreter does not wait for it when it exits."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._calls: queue.PriorityQueue[_Call] | None = None
        self._numbers = itertools.count()

    def call(self, work: Callable[[], Result], *, brief: bool = False) -> Result:
        """Return what *work* returns, or raise what it raises. Blocks until those asked for before are done as well.

        Args:
            brief: It takes milliseconds, and goes before all that are not.
        """
        done: Future[Result] = Future()
        with self._lock:
            if self._calls is None:
                self._calls = queue.PriorityQueue()
                threading.Thread(target=self._run, args=(self._calls,), name=self._name, daemon=True).start()
            self._calls.put((not brief, next(self._numbers), work, done))
        return done.result()

    @staticmethod
    def _run(calls: queue.PriorityQueue[_Call]) -> None:
        while True:
            _, _, work, done = calls.get()
            try:
                done.set_result(work())
            except BaseException as error:  # any is for the caller
                done.set_exception(error)
            del work, done  # it holds nothing while it waits


@functools.cache
def compiling_thread(platform: str, kind: str) -> OneThread | None:
    """Return the thread on which a driver is to compile and to load; None where any will do."""
    return OneThread("asyncrt-compile") if (platform, kind) in KEEPS else None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=compiling_thread.cache_clear)  # the child has no such thread
