"""Who carries out requests that have a core each? Threads without Python where a device has some, else Python's own.

A thread of Python's waits for the interpreter when a request has ended, for as long as the event loop is busy: 16 cores
answer a twentieth less so.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from asyncrt.devices.base import Launcher, LaunchesAside, Posted, Stream
from asyncrt.loops import tell_loop

from .wake_up import WakeUp, started


class Work(Protocol):
    """A request that is ready to be carried out."""

    def carry_out(self, stream: Stream) -> None:
        """Do all of it, on the thread that calls this; raises what fails."""
        ...

    def hand_over(self, launcher: Launcher) -> Posted:
        """Let one of a launcher's threads do that."""
        ...

    def stop(self) -> None:
        """Nobody waits for it any more: let it end soon."""
        ...

    def end(self, error: BaseException | None) -> Any:
        """Give back what it has used, and return its outcome or raise what it failed with. On the event loop."""
        ...


TellEnd: TypeAlias = Callable[[asyncio.Future[Any], BaseException | None], None]
"""Called on the event loop when a request has ended, with the future by which it is told and what it failed with."""
OpenStream: TypeAlias = Callable[[], Stream]


class Crew(Protocol):
    """Threads, each with a stream of its own."""

    def has(self, wanted: int) -> bool:
        """Whether there are threads, as many as that if the system lets there be."""
        ...

    def give(self, work: Work, future: asyncio.Future[Any]) -> None:
        """Let the next thread that is free carry it out."""
        ...

    def close(self) -> None:
        """Let them end when they have done what they were given."""
        ...


def find_crew(
    device: LaunchesAside | None, cores: int, open_stream: OpenStream, loop: asyncio.AbstractEventLoop, ended: TellEnd
) -> Crew:
    """Return the threads for so many cores.

    Args:
        device: Has native ones; None if it has not, or is not to use them.
        open_stream: Opens the stream of one.
        loop: Where `ended` is called.
        ended: Hears of each request.
    """
    native = None if device is None else NativeCrew.of(device, cores, open_stream, loop, ended)
    return ThreadCrew(cores, open_stream, loop, ended) if native is None else native


class NativeCrew:
    """A launcher's threads.

    Args:
        launcher: Whose.
        wake_up: By which they let `collect()` be called.
        ended: Hears of each request.
    """

    def __init__(self, launcher: Launcher, wake_up: WakeUp, ended: TellEnd) -> None:
        self._launcher, self._wake_up, self._ended = launcher, wake_up, ended
        self._given: dict[Posted, asyncio.Future[Any]] = {}

    @classmethod
    def of(
        cls, device: LaunchesAside, cores: int, open_stream: OpenStream, loop: asyncio.AbstractEventLoop, ended: TellEnd
    ) -> NativeCrew | None:
        """Return the crew of a device; None if it has no such threads, or the loop can not be told by an eventfd."""
        crew: NativeCrew | None = None
        found = started(
            loop,
            lambda: None if crew is None else crew.collect(),
            lambda file: device.open_launcher(file, [open_stream() for _ in range(cores)]),
        )
        if found is not None:
            crew = cls(*found, ended)
        return crew

    def has(self, wanted: int) -> bool:
        """There are as many as cores from the beginning."""
        return True

    def give(self, work: Work, future: asyncio.Future[Any]) -> None:
        """Post it."""
        self._given[work.hand_over(self._launcher)] = future

    def collect(self) -> None:
        """Tell of those that have ended."""
        for posted in self._launcher.collect():
            error: BaseException | None = None
            try:
                posted.check()
            except Exception as failure:
                error = failure
            self._ended(self._given.pop(posted), error)

    def close(self) -> None:
        """End them. Those that were at work have ended, or their device is lost."""
        if not self._given:
            self._launcher.close()
        self._wake_up.close()
        self._given.clear()


class ThreadCrew:
    """Python's threads, as many as were needed so far.

    Args:
        cores: How many there may be.
        open_stream: Opens the stream of each.
        loop: Where `ended` is called.
        ended: Hears of each request.
    """

    def __init__(
        self, cores: int, open_stream: OpenStream, loop: asyncio.AbstractEventLoop, ended: TellEnd
    ) -> None:
        self._cores, self._open_stream, self._loop, self._ended = cores, open_stream, loop, ended
        self._inbox: queue.SimpleQueue[tuple[Work, asyncio.Future[Any]] | None] = queue.SimpleQueue()
        self._threads = 0

    def has(self, wanted: int) -> bool:
        """Start one more if there are fewer than that."""
        if self._threads < min(self._cores, wanted):
            serve = _serving(self._inbox, self._open_stream(), self._loop, self._ended)
            try:
                threading.Thread(target=serve, name=f"asyncrt-core-{self._threads}", daemon=True).start()
                self._threads += 1
            except RuntimeError:  # the system has no more
                pass
        return self._threads > 0

    def give(self, work: Work, future: asyncio.Future[Any]) -> None:
        """Put it where the next thread that is free takes it."""
        self._inbox.put((work, future))

    def close(self) -> None:
        """Tell each of them to end."""
        for _ in range(self._threads):
            self._inbox.put(None)


def _serving(
    inbox: queue.SimpleQueue[tuple[Work, asyncio.Future[Any]] | None],
    stream: Stream,
    loop: asyncio.AbstractEventLoop,
    ended: TellEnd,
) -> Callable[[], None]:
    """Return what a thread does: carry out what is ready, one request after the other."""

    def serve() -> None:
        while (item := inbox.get()) is not None:
            work, future = item
            error: BaseException | None = None
            try:
                work.carry_out(stream)
            except BaseException as failure:
                error = failure
            tell_loop(loop, ended, future, error)
            del item, work, future, error  # hold nothing of it while idle

    return serve
