"""The threads that call the driver's compiler, which may take long or never come back.

The threads are daemons: an interpreter that ends waits for all others, and nothing can end a thread inside a driver. It
waits some seconds for those that were busy when their cache was closed. A
thread that does not come back is abandoned: another one takes its place, and if it does come back after all, it ends.
Jobs that nobody waits for share one thread, and begin only while no other job is waiting or running. All of them may
be held back for a moment, while somebody else needs the processor more.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import attrs

_EXIT_S = 10.0
#: Threads that were in a driver when nobody wanted to wait for them any more.
_left: set[threading.Thread] = set()


@atexit.register
def _end() -> None:
    """Let them come out: a driver that is unloaded while it compiles aborts the process."""
    deadline = time.monotonic() + _EXIT_S
    for thread in _left:
        thread.join(max(0.0, deadline - time.monotonic()))


@attrs.frozen(eq=False)
class Job:
    """A piece of work.

    Attributes:
        work: What to do; blocks.
        begun: Called on the thread when it begins.
        ended: Called on the thread with the result or the error, also if the job was abandoned.
    """

    work: Callable[[], Any]
    begun: Callable[[], None]
    ended: Callable[[Any, BaseException | None], None]


@attrs.define(eq=False)
class _Worker:
    """A thread, and the job that it does."""

    urgent: bool
    job: Job | None = None
    thread: threading.Thread | None = None


class Builders:
    """A few threads, and the jobs that wait for them.

    Args:
        threads: Urgent jobs at once.
        name: Of the threads.
        nice: By how much their priority is lower than that of the process, and that of processes which they start;
            only Linux has one for each thread.
    """

    def __init__(self, threads: int, name: str = "asyncrt-build", *, nice: int = 0) -> None:
        self._nice = nice
        self._limit = threads
        self._name = name
        self._changed = threading.Condition()
        self._urgent: deque[Job] = deque()
        self._background: deque[Job] = deque()
        self._workers: set[_Worker] = set()
        #: Until when no job begins, by the monotonic clock.
        self._held_until = 0.0
        self._closed = False

    def __repr__(self) -> str:
        running = sum(w.job is not None for w in self._workers)
        return f"<Builders {running} running, {len(self._urgent)} waiting, {len(self._background)} in the background>"

    @property
    def quiet(self) -> bool:
        """Whether background jobs may begin: no urgent one runs or waits."""
        return not self._urgent and not any(w.urgent and w.job is not None for w in self._workers)

    def submit(self, job: Job, *, urgent: bool = True) -> None:
        """Let a thread do the job, or if it is not urgent, when there is nothing else to do. No job begins after `stop()`."""
        with self._changed:
            if not self._closed:
                (self._urgent if urgent else self._background).append(job)
                self._staff()

    def hurry(self, job: Job) -> None:
        """Somebody waits for the job now; if it has not begun, it is urgent."""
        with self._changed:
            if job in self._background:
                self._background.remove(job)
                self._urgent.append(job)
                self._staff()

    def abandon(self, job: Job) -> None:
        """Replace the thread of the job, if it is still busy with it."""
        with self._changed:
            self._workers = {w for w in self._workers if w.job is not job}
            self._staff()

    def hold_back(self, seconds: float) -> None:
        """Let no job begin for so long, or until `go_on()`. Those that have begun go on."""
        with self._changed:
            self._held_until = max(self._held_until, time.monotonic() + seconds)

    def go_on(self) -> None:
        """Let jobs begin again."""
        with self._changed:
            if self._held_until:
                self._held_until = 0.0
                self._changed.notify_all()

    def stop(self) -> None:
        """Drop the jobs that wait; no other job begins."""
        with self._changed:
            self._closed = True
            self._urgent.clear()
            self._background.clear()
            self._changed.notify_all()

    def join(self, patience_s: float) -> None:
        """After `stop()`, return when the jobs that run have ended, or *patience_s* seconds have passed. Blocks."""
        deadline = time.monotonic() + patience_s
        with self._changed:
            threads = [w.thread for w in self._workers if w.thread is not None]
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                _left.add(thread)

    def _staff(self) -> None:
        """Start threads for the jobs that wait, and wake idle ones."""
        urgent = [w for w in self._workers if w.urgent]
        idle = sum(w.job is None for w in urgent)
        for _ in range(min(len(self._urgent) - idle, self._limit - len(urgent))):
            self._start(urgent=True)
        if self._background and all(w.urgent for w in self._workers):
            self._start(urgent=False)
        self._changed.notify_all()

    def _start(self, *, urgent: bool) -> None:
        worker = _Worker(urgent)
        worker.thread = threading.Thread(target=self._run, args=(worker,), name=self._name, daemon=True)
        self._workers.add(worker)
        worker.thread.start()

    def _run(self, worker: _Worker) -> None:
        if self._nice and sys.platform == "linux":
            with contextlib.suppress(OSError):
                thread = threading.get_native_id()
                os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, 0) + self._nice)
        while True:
            with self._changed:
                while (held := self._held_until - time.monotonic()) > 0 or (job := self._next(worker)) is None:
                    if self._closed:
                        return
                    self._changed.wait(held if held > 0 else None)
                worker.job = job
            job.begun()
            result: Any = None
            error: BaseException | None = None
            try:
                result = job.work()
            except BaseException as failure:  # any error is for those who wait
                error = failure
            job.ended(result, error)
            del job, result, error  # an idle thread holds no kernel
            with self._changed:
                worker.job = None
                if worker not in self._workers:
                    return
                self._changed.notify_all()  # background jobs wait until nothing urgent runs

    def _next(self, worker: _Worker) -> Job | None:
        if worker.urgent:
            return self._urgent.popleft() if self._urgent else None
        return self._background.popleft() if self._background and self.quiet else None
